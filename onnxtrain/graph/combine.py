"""One graph for each method: the inference graph, each initialization, and each algorithm combined with inference.

The graphs that come out have their nodes sorted, those of subgraphs included. What they do not contain yet is the
choice of outputs: `order.needed_nodes` drops the nodes that a call does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from onnxtrain.dtypes import name_of
from onnxtrain.errors import Problem, ValidationError
from onnxtrain.graph.model import Graph, Model, TensorType, ValueInfo, ValueType
from onnxtrain.graph.names import Definition, clashes, definitions, graph_place
from onnxtrain.graph.order import own_names, reads, sort_graph

INFERENCE_PATH = "graph"


def algorithm_path(index: int) -> str:
    """Where an algorithm stands in the file."""
    return f"training_info[{index}].algorithm"


def initialization_path(index: int) -> str:
    """Where an initialization graph stands in the file."""
    return f"training_info[{index}].initialization"


def inference_graph(model: Model) -> Graph:
    """The graph that `infer` runs.

    Raises:
      ModelError: a name clashes, is undefined or belongs to an algorithm (T-09), or the nodes form a cycle.
    """
    _raise_any(inference_problems(model))
    return sort_graph(model.graph)


def algorithm_graph(model: Model, index: int) -> Graph:
    """The combined graph that a step of one algorithm runs (T-08): the inference graph, then the algorithm.

    Raises:
      ModelError: the two graphs do not fit together; the message names what clashes.
    """
    _raise_any([*inference_problems(model), *combination_problems(model, index)])
    inference, algorithm = model.graph, model.training_info[index].algorithm
    return sort_graph(
        Graph(
            name=algorithm_path(index),
            inputs=_join(inference.inputs, algorithm.inputs),
            outputs=_join(inference.outputs, algorithm.outputs),
            nodes=(*inference.nodes, *algorithm.nodes),
            initializers={**inference.initializers, **algorithm.initializers},
            sparse=inference.sparse | algorithm.sparse,
            value_info=_join(inference.value_info, algorithm.value_info),
        )
    )


def initialization_graph(model: Model, index: int) -> Graph:
    """The graph that `initialize` runs for one `TrainingInfoProto`.

    It may read initializers of the inference graph and of its own algorithm, so that a later initialization sees
    what an earlier one assigned (T-04); `order.captured_names` of the result lists those that it reads.

    Raises:
      ModelError: a name clashes or is undefined, or the nodes form a cycle.
    """
    info = model.training_info[index]
    path = initialization_path(index)
    _raise_any(clash_problems(definitions(info.initialization, path)))
    known = frozenset((*model.graph.initializers, *info.algorithm.initializers))
    return sort_graph(replace(info.initialization, name=path), known)


@dataclass(frozen=True)
class DataInput(ValueInfo):
    """A graph input that the caller feeds; one that is not `required` has an initializer as its default."""

    required: bool


def data_inputs(model: Model, graph: Graph) -> tuple[DataInput, ...]:
    """The inputs of a graph that the caller must or may feed (T-17).

    An input with an initializer is a default that a feed overrides, save where the initializer is a state variable
    or the IR version is below 4, when every initializer had to be listed as an input.
    """
    state = frozenset(model.state_variables)
    fixed = frozenset(name for name in graph.initializers if model.ir_version < 4 or name in state)
    return tuple(
        DataInput(value.name, value.type, required=value.name not in graph.initializers)
        for value in graph.inputs
        if value.name not in fixed
    )


def inference_problems(model: Model) -> list[Problem]:
    """What keeps the inference graph from running by itself: names defined twice, and values of an algorithm."""
    problems = clash_problems(definitions(model.graph, INFERENCE_PATH))
    place = graph_place(model.graph, INFERENCE_PATH)
    readers = [(place.node_path(index), reads(node)) for index, node in enumerate(model.graph.nodes)]
    readers += [(f"{INFERENCE_PATH}.output[{name!r}]", frozenset((name,))) for name in model.graph.output_names]
    owners = {name: index for index, info in enumerate(model.training_info) for name in own_names(info.algorithm)}
    for where, names in readers:
        for name in sorted(names & owners.keys() - place.scope.names):
            problems.append(
                Problem(
                    "T-09",
                    where,
                    f"The inference graph reads {name!r}, which only {algorithm_path(owners[name])} defines, "
                    "but it must run without any algorithm.",
                    "Define that value in the inference graph, or move what reads it into the algorithm.",
                )
            )
    return problems


def combination_problems(model: Model, index: int) -> list[Problem]:
    """What keeps an algorithm from being combined with the inference graph and the algorithms before it."""
    algorithm, path = model.training_info[index].algorithm, algorithm_path(index)
    return [
        *clash_problems(definitions(algorithm, path), after=definitions(model.graph, INFERENCE_PATH)),
        *_input_problems(model.graph, algorithm, path),
        *_sharing_problems(model, index),
    ]


def clash_problems(defined: Iterable[Definition], after: Iterable[Definition] = ()) -> list[Problem]:
    """One problem for every definition of a name that is taken, by an earlier one or by those it comes `after`."""
    return [
        Problem(
            "T-08",
            second.where,
            f"{second.name!r} is defined a second time, after {first.where}; a value has one producer.",
            "Rename one of the two, along with everything that reads it.",
        )
        for first, second in clashes(defined, after)
    ]


def types_agree(first: ValueType | None, second: ValueType | None) -> bool:
    """Whether one value can have both declared types; what a type does not say agrees with anything."""
    if first is None or second is None:
        return True
    if not (isinstance(first, TensorType) and isinstance(second, TensorType)):
        return first == second
    return first.dtype == second.dtype and shapes_agree(first.shape, second.shape)


def shapes_agree(first: tuple[int | str | None, ...] | None, second: tuple[int | str | None, ...] | None) -> bool:
    """Whether one tensor can have both declared shapes; symbols and unknown sizes agree with anything."""
    if first is None or second is None:
        return True
    sizes = zip(first, second, strict=False)
    return len(first) == len(second) and all(
        one == other for one, other in sizes if isinstance(one, int) and isinstance(other, int)
    )


def describe_type(value_type: ValueType | None) -> str:
    """A type in words: ``float32[N, 3]``."""
    if not isinstance(value_type, TensorType):
        return "no stated type" if value_type is None else str(value_type)
    if value_type.shape is None:
        return f"{name_of(value_type.dtype)} of unknown rank"
    sizes = ", ".join("?" if size is None else str(size) for size in value_type.shape)
    return f"{name_of(value_type.dtype)}[{sizes}]"


def _input_problems(inference: Graph, algorithm: Graph, path: str) -> Iterator[Problem]:
    declared = {value.name: value.type for value in inference.inputs}
    for value in algorithm.inputs:
        if not types_agree(declared.get(value.name), value.type):
            yield Problem(
                "T-16",
                f"{path}.input[{value.name!r}]",
                f"The input is declared as {describe_type(value.type)} here and as "
                f"{describe_type(declared[value.name])} in the inference graph; one name is one input.",
                "Declare the same type in both, or rename one of the inputs.",
            )


def _sharing_problems(model: Model, index: int) -> Iterator[Problem]:
    mine = model.training_info[index].algorithm.initializers
    for earlier in range(index):
        theirs = model.training_info[earlier].algorithm.initializers
        for name in mine:
            if name in theirs and not _same_value(mine[name], theirs[name]):
                yield Problem(
                    "T-15",
                    f"{algorithm_path(index)}.initializer[{name!r}]",
                    f"{algorithm_path(earlier)} has an initializer of the same name with another type, shape or "
                    "value; two algorithms share a variable only when they store the same one.",
                    "Rename one of the two, or store the same value in both.",
                )


def _same_value(first: np.ndarray, second: np.ndarray) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    # Bytes, so that NaN equals itself; strings are Python objects and compare as such.
    return first.tolist() == second.tolist() if first.dtype.kind == "O" else first.tobytes() == second.tobytes()


def _join(first: tuple[ValueInfo, ...], second: tuple[ValueInfo, ...]) -> tuple[ValueInfo, ...]:
    """Both lists in order; a name that stands in both is one value, with the first type that says something."""
    joined: dict[str, ValueInfo] = {}
    for value in (*first, *second):
        if value.name not in joined or joined[value.name].type is None:
            joined[value.name] = value
    return tuple(joined.values())


def _raise_any(problems: list[Problem]) -> None:
    if problems:
        raise ValidationError(problems)
