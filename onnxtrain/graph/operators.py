"""What can be wrong with the operators that a model applies: unknown ones, wrong arity, recursion, Gradient's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnxtrain import schema
from onnxtrain.dtypes import is_float, name_of
from onnxtrain.errors import Problem
from onnxtrain.graph.model import Function, FunctionKey, Model, Node, TensorType
from onnxtrain.graph.names import Place, Scope, function_name, function_place, with_subgraphs
from onnxtrain.graph.order import TRAINING_DOMAIN, depth_first, is_gradient

_TRAINING_OPERATORS = ("Gradient", "Adam", "Adagrad", "Momentum")
_DOMAINS_TAKEN_FOR_TRAINING = ("", "ai.onnx.preview", "ai.onnx.training")


def operator_problems(model: Model, place: Place, opset_imports: Mapping[str, int]) -> Iterator[Problem]:
    """Everything wrong with the operators of a place; subgraphs are places of their own."""
    for index, node in enumerate(place.graph.nodes):
        where = place.node_path(index)
        function = model.functions.get(function_key(node))
        if function is not None:
            yield from _call_problems(node, function, where)
        elif node.op_type == "GraphCall" and node.domain in (TRAINING_DOMAIN, *_DOMAINS_TAKEN_FOR_TRAINING):
            yield _graph_call(where)
        elif node.op_type in _TRAINING_OPERATORS and node.domain in _DOMAINS_TAKEN_FOR_TRAINING:
            yield _mistaken_domain(node, where)
        elif node.domain in schema.NEWEST_TESTED and (node.domain, node.op_type) not in schema.FOREIGN:
            yield from _standard_problems(node, where, opset_imports)
        if is_gradient(node) and function is None:
            yield from _gradient_problems(node, where, place.scope)


def recursion_problems(model: Model) -> list[Problem]:
    """Functions that call themselves, directly or through others, also from inside a subgraph (M-02)."""
    functions = tuple(model.functions.values())
    numbers = {function.key: number for number, function in enumerate(functions)}
    _, cycle = depth_first([sorted(_called(function, numbers)) for function in functions])
    if not cycle:
        return []
    names = [function_name(functions[number]) for number in (*cycle, cycle[0])]
    return [
        Problem(
            "M-02",
            function_place(functions[cycle[0]]).path,
            f"Functions call each other in a circle: {' calls '.join(names)}. A call would never end.",
            "Write the repetition with Loop or Scan, or remove one of the calls.",
        )
    ]


def function_key(node: Node) -> FunctionKey:
    """The key of the model-local function that a node calls, if there is one."""
    return (node.domain, node.op_type, node.overload)


def _called(function: Function, numbers: Mapping[FunctionKey, int]) -> set[int]:
    nodes = (node for place in with_subgraphs(function_place(function)) for node in place.graph.nodes)
    return {numbers[function_key(node)] for node in nodes if function_key(node) in numbers}


def _call_problems(node: Node, function: Function, where: str) -> Iterator[Problem]:
    for word, given, declared in (
        ("inputs", node.inputs, function.inputs),
        ("outputs", node.outputs, function.outputs),
    ):
        if len(given) > len(declared):
            yield Problem(
                "M-02",
                where,
                f"The call has {len(given)} {word}, but function {function_name(function)!r} has {len(declared)}.",
                f"Remove the {word} that the function does not have, or add them to the function.",
            )


def _graph_call(where: str) -> Problem:
    return Problem(
        "T-20",
        where,
        "GraphCall was removed from ONNX: the combined graph of a step holds the inference nodes already.",
        "Remove the node and let the algorithm read the inference graph's values by their names.",
    )


def _mistaken_domain(node: Node, where: str) -> Problem:
    return Problem(
        "T-20",
        where,
        f"{node.op_type} stands in the domain {node.domain or 'ai.onnx'!r}, which has no such operator.",
        f"Set the node's domain to {TRAINING_DOMAIN!r} and import version 1 of it.",
    )


def _standard_problems(node: Node, where: str, opset_imports: Mapping[str, int]) -> Iterator[Problem]:
    domain = node.domain or "ai.onnx"
    opset = opset_imports.get(node.domain)
    if opset is None:
        yield Problem(
            "M-01",
            where,
            f"The node belongs to the domain {domain!r}, which opset_import does not list.",
            f"Add the version of {domain!r} that the node was written for to opset_import.",
        )
        return
    found = schema.find(node.domain, node.op_type, opset)
    if found is None:
        yield _unknown_operator(node, where, domain, opset)
    else:
        yield from _arity_problems(node, where, found)


def _unknown_operator(node: Node, where: str, domain: str, opset: int) -> Problem:
    versions = schema.versions(node.domain, node.op_type)
    if versions:
        message = f"{domain} {opset} has no operator {node.op_type!r}; it came with version {versions[0]}."
        remedy = f"Import {domain} {versions[0]} or later, converting the other nodes with it."
    else:
        message = f"{domain} has no operator {node.op_type!r}, and the model has no function of that name."
        remedy = "Correct the operator's name or domain, or add a model-local function for it."
    return Problem("M-01", where, message, remedy)


def _arity_problems(node: Node, where: str, found: schema.Schema) -> Iterator[Problem]:
    label = f"{node.op_type} of version {found.since_version}"
    for position, parameter in enumerate(found.inputs):
        given = position < len(node.inputs) and node.inputs[position] != ""
        if not (given or parameter.optional or parameter.variadic):
            yield Problem("M-01", where, f"Input {parameter.name!r} of {label} is missing.", "Connect the input.")
    given = len(node.inputs)
    if given < found.min_inputs and found.inputs[-1].variadic:
        message = f"{label} takes at least {found.min_inputs} inputs, but {given} are given."
        yield Problem("M-01", where, message, "Connect the inputs that are missing.")
    if given > found.max_inputs:
        message = f"{label} takes at most {found.max_inputs} inputs, but {given} are given."
        yield Problem("M-01", where, message, "Remove those that are too many, or import the version that has them.")
    variadic = bool(found.outputs) and found.outputs[-1].variadic
    if len(node.outputs) > len(found.outputs) and not variadic:
        message = f"{label} has at most {len(found.outputs)} outputs, but {len(node.outputs)} are named."
        yield Problem("M-01", where, message, "Remove those that are too many, or import the version that has them.")


def _gradient_problems(node: Node, where: str, scope: Scope) -> Iterator[Problem]:
    xs, zs, y = (node.attributes.get(name, default) for name, default in (("xs", ()), ("zs", ()), ("y", "")))
    if not (isinstance(xs, tuple) and isinstance(zs, tuple) and isinstance(y, str)):
        return  # a reference to an attribute of the function around has its value only when that is called
    for attribute, value, meaning in (("xs", xs, "the tensors to differentiate by"), ("y", y, "what to differentiate")):
        if not value:
            message = f"Gradient has no {attribute!r}, which names {meaning}."
            yield Problem("G-01", where, message, f"Set the attribute {attribute!r}.")
    if xs:
        yield from _gradient_arity(node, where, xs, zs)
    for attribute, names in (("xs", xs), ("zs", zs), ("y", (y,) if y else ())):
        for name in names:
            if name not in scope:
                yield Problem(
                    "G-08",
                    f"{where}.{attribute}",
                    f"{name!r} names no value that this node can see.",
                    "Name an input, an initializer or a node output of the same graph, or of a graph around it.",
                )
    for name in dict.fromkeys((*xs, *node.inputs[: len(xs)])):
        found = scope.type_of(name)
        if isinstance(found, TensorType) and not is_float(found.dtype):
            yield Problem(
                "G-07",
                f"{where}.xs",
                f"{name!r} holds {name_of(found.dtype)}; a derivative is taken by floating-point values only.",
                f"Remove {name!r} from 'xs', name it in 'zs', or differentiate by its Cast to a floating-point type.",
            )


def _gradient_arity(node: Node, where: str, xs: tuple[str, ...], zs: tuple[str, ...]) -> Iterator[Problem]:
    given = len([name for name in node.inputs if name])
    if given != len(xs) + len(zs):
        yield Problem(
            "G-03",
            where,
            f"Gradient needs one input for each of the {len(xs)} names in 'xs' and the {len(zs)} in 'zs', "
            f"but {given} are given.",
            "Give the inputs in the order of 'xs' and then 'zs'.",
        )
    if len(node.outputs) > len(xs):
        yield Problem(
            "G-01",
            where,
            f"Gradient has one output for each of the {len(xs)} names in 'xs', but {len(node.outputs)} are named.",
            "Remove the outputs that are too many, or name their tensors in 'xs'.",
        )
