"""The operators of ai.onnx.ml against onnxruntime, with random models, and against their documents where it differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from onnxtrain.errors import ModelWarning, OperatorError, StaticValueError
from tests.lowering.one_node import run_node

ML = "ai.onnx.ml"
GENERATOR = np.random.default_rng(5)


def floats(*shape: int) -> list[float]:
    return GENERATOR.normal(size=shape).astype(np.float32).reshape(-1).tolist()


ROWS = np.array(floats(7, 3), np.float32).reshape(7, 3)
WHOLE = np.array([[1, 2, 0], [3, 2, 7]], np.int64)
TEXT = np.array([["b", "a"], ["c", "x"]], object)
HOLES = np.array([[np.nan, 1, 0], [2, np.nan, 0]], np.float32)

TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "s": TensorProto.STRING}


@dataclass(frozen=True)
class Case:
    """One node; `outputs` has a letter for the type of each output, and with text among them inputs are static."""

    op_type: str
    name: str
    attributes: dict[str, Any]
    outputs: str = "f"
    inputs: tuple[Any, ...] = (ROWS,)
    opset: int = 3

    def __str__(self) -> str:
        return f"{self.op_type} {self.name}"


def run(case: Case) -> tuple[Any, ...]:
    with jax.enable_x64(True):
        return run_node(
            case.op_type,
            case.inputs,
            opset=case.opset,
            domain=ML,
            outputs=len(case.outputs),
            static_inputs=range(len(case.inputs)) if "s" in case.outputs else (),
            attributes=as_read(case.attributes),
        )


def as_read(attributes: dict[str, Any]) -> dict[str, Any]:
    """Lists as the reader of models gives them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in attributes.items()}


def run_elsewhere(case: Case) -> Sequence[Any]:
    inputs = {f"x{i}": value for i, value in enumerate(case.inputs)}
    outputs = {f"y{i}": TYPES[letter] for i, letter in enumerate(case.outputs)}
    node = helper.make_node(case.op_type, list(inputs), list(outputs), domain=ML, **case.attributes)
    graph = helper.make_graph(
        [node],
        "ml",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in inputs.items()
        ],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(ML, case.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(list(outputs), inputs)


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
THREE = {"classlabels_ints": [5, 1, 3]}
TWO = {"classlabels_ints": [0, 1]}
NAMES = {"classlabels_strings": ["a", "b", "c"]}


def linear_cases() -> list[Case]:
    three = {"coefficients": floats(3, 3), "intercepts": floats(3)}
    one = {"coefficients": floats(3), "intercepts": floats(1), "post_transform": "LOGISTIC"}
    return [
        *(
            Case("LinearClassifier", f"three {name}", {**three, **THREE, "post_transform": name}, "if")
            for name in TRANSFORMS
        ),
        Case("LinearClassifier", "two", {**one, **TWO}, "if"),
        Case("LinearClassifier", "names", {**three, **NAMES}, "sf"),
        Case("LinearRegressor", "two targets", {"coefficients": floats(6), "intercepts": floats(2), "targets": 2}),
        Case("LinearRegressor", "one target", {"coefficients": floats(3)}),
    ]


def svm_cases() -> list[Case]:
    cases = []
    kernels = {"LINEAR": [0.0, 0.0, 0.0], "POLY": [0.5, 1.0, 3.0], "RBF": [0.4, 0.0, 0.0], "SIGMOID": [0.3, 0.1, 0.0]}
    machine = {"vectors_per_class": [2, 1, 3], "support_vectors": floats(6, 3), "coefficients": floats(2, 6)}
    three = {**machine, "rho": floats(3), "kernel_params": kernels["RBF"], "kernel_type": "RBF"}
    two = {**three, "vectors_per_class": [3, 3], "coefficients": floats(6), "rho": [0.2]}
    for kernel, parameters in kernels.items():
        own = {"kernel_type": kernel, "kernel_params": parameters}
        regression = {"n_supports": 4, "support_vectors": floats(4, 3), "coefficients": floats(4), "rho": [0.3]}
        cases.append(Case("SVMRegressor", kernel, {**regression, **own}))
        cases.append(Case("SVMClassifier", f"three {kernel}", {**three, **own, **THREE}, "if"))
    likely = {"prob_a": [-1.0, -2.0, -0.5], "prob_b": [0.1, 0.2, -0.1]}
    no_vectors = {"coefficients": floats(3), "rho": [0.1], "kernel_params": kernels["LINEAR"]}
    return [
        *cases,
        Case("SVMClassifier", "probabilities of three", {**three, **likely, **THREE}, "if"),
        Case("SVMClassifier", "names", {**three, **likely, **NAMES}, "sf"),
        Case("SVMClassifier", "two", {**two, **TWO}, "if"),
        Case("SVMClassifier", "two LOGISTIC", {**two, **TWO, "post_transform": "LOGISTIC"}, "if"),
        Case("SVMClassifier", "probabilities of two", {**two, **TWO, "prob_a": [-1.0], "prob_b": [0.2]}, "if"),
        Case("SVMClassifier", "linear", {**no_vectors, **THREE, "coefficients": floats(9)}, "if"),
        Case("SVMRegressor", "linear", no_vectors),
        Case("SVMRegressor", "one class", {**no_vectors, "one_class": 1}),
    ]


def random_trees(count: int, modes: Sequence[str] = ("BRANCH_LEQ",)) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Full trees of depth 3 as attributes `nodes_*`, and the (tree, node) of every leaf."""
    keys = [(tree, node) for tree in range(count) for node in range(15)]
    attributes = {
        "nodes_treeids": [tree for tree, _ in keys],
        "nodes_nodeids": [node for _, node in keys],
        "nodes_truenodeids": [2 * node + 1 if node < 7 else 0 for _, node in keys],
        "nodes_falsenodeids": [2 * node + 2 if node < 7 else 0 for _, node in keys],
        "nodes_featureids": GENERATOR.integers(3, size=len(keys)).tolist(),
        "nodes_modes": [modes[node % len(modes)] if node < 7 else "LEAF" for _, node in keys],
        "nodes_values": floats(len(keys)),
        "nodes_missing_value_tracks_true": [node % 2 for _, node in keys],
    }
    return attributes, [key for key in keys if key[1] >= 7]


def votes(leaves: list[tuple[int, int]], prefix: str, targets: Sequence[int], positive: bool = False) -> dict[str, Any]:
    """Every leaf votes for every target."""
    weights = floats(len(leaves) * len(targets))
    return {
        f"{prefix}_treeids": [tree for tree, _ in leaves for _ in targets],
        f"{prefix}_nodeids": [node for _, node in leaves for _ in targets],
        f"{prefix}_ids": [target for _ in leaves for target in targets],
        f"{prefix}_weights": [abs(weight) / 3 for weight in weights] if positive else weights,
    }


def tree_cases() -> list[Case]:
    cases = []
    nodes, leaves = random_trees(3)
    mixed, _ = random_trees(3, ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"))
    holes = np.where(GENERATOR.random(ROWS.shape) < 0.3, np.float32(np.nan), ROWS)
    for function in ("SUM", "AVERAGE", "MIN", "MAX"):
        attributes = {**votes(leaves, "target", [0]), "n_targets": 1, "aggregate_function": function}
        cases.append(Case("TreeEnsembleRegressor", function, {**mixed, **attributes, "base_values": [0.5]}))
        cases.append(Case("TreeEnsembleRegressor", f"{function} with NaN", {**nodes, **attributes}, inputs=(holes,)))
    three = {**nodes, **votes(leaves, "class", [0, 1, 2])}
    labels = {"classlabels_int64s": [4, 2, 8]}
    for name in TRANSFORMS:
        cases.append(Case("TreeEnsembleClassifier", f"three {name}", {**three, **labels, "post_transform": name}, "if"))
    for name in ("NONE", "LOGISTIC"):
        for positive in (False, True):
            one = {**nodes, **votes(leaves, "class", [0], positive), "post_transform": name}
            of_what = f"one score {name}{' of probabilities' if positive else ''}"
            cases.append(Case("TreeEnsembleClassifier", of_what, {**one, "classlabels_int64s": [0, 1]}, "if"))
    two_targets = {**nodes, **votes(leaves, "target", [0, 1]), "n_targets": 2}
    return [
        *cases,
        Case("TreeEnsembleRegressor", "two targets", two_targets),
        Case("TreeEnsembleClassifier", "base", {**three, **labels, "base_values": [0.1, 2.0, 0.3]}, "if"),
        Case("TreeEnsembleClassifier", "names", {**three, **NAMES}, "sf"),
    ]


def feature_cases() -> list[Case]:
    zero = np.concatenate([np.zeros((1, 3), np.float32), ROWS])
    for_nan = {"imputed_value_floats": [5.0, 6.0, 7.0], "replaced_value_float": float("nan")}
    return [
        *(Case("Normalizer", norm, {"norm": norm}, inputs=(zero,)) for norm in ("MAX", "L1", "L2")),
        Case("Scaler", "each column", {"scale": floats(3), "offset": floats(3)}),
        Case("Scaler", "integers", {"scale": [2.0], "offset": [0.5]}, inputs=(WHOLE,)),
        Case("Binarizer", "", {"threshold": 0.2}),
        Case("Imputer", "NaN", for_nan, inputs=(HOLES,)),
        Case("Imputer", "zero", {"imputed_value_floats": [5.0], "replaced_value_float": 0.0}, inputs=(HOLES,)),
        Case("Imputer", "integers", {"imputed_value_int64s": [9], "replaced_value_int64": 2}, "i", (WHOLE,)),
        Case("FeatureVectorizer", "", {"inputdimensions": [3, 2]}, inputs=(ROWS, ROWS[:, :2])),
        Case("ArrayFeatureExtractor", "", {}, inputs=(ROWS, np.array([2, 0], np.int64))),
        Case("OneHotEncoder", "integers", {"cats_int64s": [2, 7, 3]}, inputs=(WHOLE,)),
        Case("OneHotEncoder", "floats", {"cats_int64s": [2, 7, 3]}, inputs=(WHOLE.astype(np.float32),)),
        Case("OneHotEncoder", "text", {"cats_strings": ["a", "b"]}, inputs=(TEXT,)),
    ]


def label_cases() -> list[Case]:
    text, whole = ("LabelEncoder", "CategoryMapper"), {"cats_strings": ["a", "b"], "cats_int64s": [7, 2]}
    encoder, mapper = text
    from_nan = {"keys_floats": [1.5, float("nan")], "values_int64s": [1, 2]}
    to_floats = {"keys_int64s": [2, 7], "values_floats": [0.5, 1.5], "default_float": 9.0}
    return [
        Case(encoder, "integers", {"keys_int64s": [2, 7], "values_int64s": [5, 6]}, "i", (WHOLE,)),
        Case(encoder, "to floats", to_floats, inputs=(WHOLE,)),
        Case(encoder, "NaN", from_nan, "i", (np.array([1.5, np.nan, 2.5], np.float32),), opset=4),
        Case(encoder, "from text", {"keys_strings": ["a", "b"], "values_int64s": [1, 2]}, "i", (TEXT,)),
        Case(encoder, "to text", {"keys_int64s": [2, 7], "values_strings": ["two", "seven"]}, "s", (WHOLE,)),
        Case(encoder, "positions", {"classes_strings": ["a", "b", "c"]}, "i", (TEXT,), opset=1),
        Case(encoder, "of positions", {"classes_strings": ["a", "b", "c"]}, "s", (WHOLE,), opset=1),
        Case(mapper, "from text", {**whole, "default_int64": -5}, "i", (TEXT,)),
        Case(mapper, "to text", whole, "s", (WHOLE,)),
    ]


CASES = [*linear_cases(), *svm_cases(), *tree_cases(), *feature_cases(), *label_cases()]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators_of_ai_onnx_ml_agree_with_onnxruntime(case: Case) -> None:
    for found, expected in zip(run(case), run_elsewhere(case), strict=True):
        assert found.shape == expected.shape
        if expected.dtype == object:
            np.testing.assert_array_equal(found, expected)
        else:
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case.name == "names"], ids=str)
def test_labels_that_are_text_need_an_input_that_is_known_while_tracing(case: Case) -> None:
    with pytest.raises(StaticValueError, match="'X' must be known while tracing"):
        run_node(case.op_type, case.inputs, opset=3, domain=ML, outputs=2, attributes=as_read(case.attributes))


@pytest.mark.parametrize("op_type", ["LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"])
def test_scores_of_two_classes_from_one_are_opposite_before_a_softmax(op_type: str) -> None:
    """As in ONNX's reference; onnxruntime leaves these transforms out."""
    nodes, leaves = random_trees(2)
    attributes = {
        "LinearClassifier": {"coefficients": floats(3), **TWO},
        "SVMClassifier": {
            "vectors_per_class": [3, 3],
            "support_vectors": floats(6, 3),
            "coefficients": floats(6),
            "rho": [0.2],
            **TWO,
        },
        "TreeEnsembleClassifier": {**nodes, **votes(leaves, "class", [0]), "classlabels_int64s": [0, 1]},
    }[op_type]
    _, plain = run(Case(op_type, "", attributes, "if"))
    _, softmax = run(Case(op_type, "", {**attributes, "post_transform": "SOFTMAX"}, "if"))
    np.testing.assert_array_equal(plain[:, 0], -plain[:, 1])
    np.testing.assert_allclose(softmax, jax.nn.softmax(plain, axis=1), rtol=1e-6)


def test_the_gradient_of_a_linear_model_is_its_coefficients() -> None:
    coefficients = tuple(floats(3))

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(run_node("LinearRegressor", [x], opset=1, domain=ML, coefficients=coefficients)[0])

    np.testing.assert_allclose(jax.grad(total)(ROWS), np.tile(coefficients, (7, 1)), rtol=1e-6)


def test_the_gradient_of_a_normalized_row_of_zeros_is_finite() -> None:
    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(run_node("Normalizer", [x], opset=1, domain=ML, norm="L2")[0])

    np.testing.assert_array_equal(jax.grad(total)(np.zeros((1, 3), np.float32)), np.ones((1, 3)))


def test_the_last_of_equal_keys_counts_in_a_label_encoder(x64: None) -> None:
    attributes = {"keys_int64s": (2, 7, 2), "values_int64s": (5, 6, 8)}
    for static_inputs in ((), (0,)):
        (found,) = run_node(
            "LabelEncoder", [WHOLE], opset=4, domain=ML, static_inputs=static_inputs, attributes=attributes
        )
        np.testing.assert_array_equal(found, [[-1, 8, -1], [-1, 8, 6]])


def test_an_unknown_category_is_refused_when_zeros_are_not_wanted() -> None:
    with pytest.raises(OperatorError, match="not listed"):
        run_node("OneHotEncoder", [TEXT], opset=1, domain=ML, cats_strings=("a", "b"), zeros=0)


def test_maps_turn_into_arrays_and_arrays_into_maps() -> None:
    def run_map(op_type: str, value: Any, **attributes: Any) -> Any:
        return run_node(op_type, [value], opset=1, domain=ML, **attributes)[0]

    known = {2: np.float32(5.5), 0: np.float32(1)}
    np.testing.assert_array_equal(run_map("CastMap", known), [[1, 5.5]])
    np.testing.assert_array_equal(run_map("CastMap", known, map_form="SPARSE", max_map=4), [[1, 0, 5.5, 0]])
    np.testing.assert_array_equal(run_map("CastMap", known, cast_to="TO_INT64"), np.array([[1, 5]]))
    named = {"a": np.float32(4), "c": np.float32(8)}
    vocabulary = ("a", "c", "b", "z")
    np.testing.assert_array_equal(run_map("DictVectorizer", named, string_vocabulary=vocabulary), [4, 8, 0, 0])
    first, *_ = run_map("ZipMap", ROWS, classlabels_strings=("a", "b", "c"))
    assert {key: float(value) for key, value in first.items()} == dict(zip("abc", ROWS[0].tolist(), strict=True))


def test_coefficients_that_are_too_many_are_read_from_the_first_on_with_a_warning() -> None:
    """As onnxruntime does, for a file whose input has fewer features than its classifier was fitted to."""
    x = np.array([[1, 10]], np.float32)
    attributes = {"coefficients": [1.0, 2, 3, 4, 5], "intercepts": [0.0, 0.5], "classlabels_ints": [0, 1]}
    with pytest.warns(ModelWarning, match="The first 4 are taken"):
        _, scores = run_node("LinearClassifier", [x], opset=1, domain="ai.onnx.ml", outputs=2, attributes=attributes)
    np.testing.assert_array_equal(scores, [[21, 43.5]])
