"""A few bytes of a file cannot ask for more memory than a machine has."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxtrain import TrainingSession, limits
from onnxtrain.errors import ModelError, OperatorError
from onnxtrain.graph.model import SparseTensor
from onnxtrain.limits import Limits
from tests.graph.training_models import tensor


def ints(name: str, *values: int) -> TensorProto:
    return tensor(name, values, np.int64)


def model_of(op_type: str, *inputs: TensorProto, **attributes: Any) -> onnx.ModelProto:
    """A model of one node whose inputs all stand in the file."""
    node = helper.make_node(op_type, [one.name for one in inputs], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], inputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


ONE = tensor("one", [1.0])
HUGE = 2**40

COMPUTED = {
    "ConstantOfShape": model_of("ConstantOfShape", ints("shape", HUGE)),
    "ConstantOfShape whose product overflows": model_of("ConstantOfShape", ints("shape", 2**32, 2**32)),
    "ConstantOfShape of many dimensions": model_of("ConstantOfShape", ints("shape", *[1] * 10_000)),
    "Expand": model_of("Expand", ONE, ints("shape", HUGE)),
    "Tile": model_of("Tile", ONE, ints("repeats", HUGE)),
    "Range": model_of("Range", tensor("start", 0.0), tensor("limit", float(HUGE)), tensor("delta", 1.0)),
    "Pad": model_of("Pad", ONE, ints("pads", 0, HUGE)),
    "OneHot": model_of("OneHot", ints("indices", 0), tensor("depth", HUGE, np.int64), tensor("values", [0.0, 1.0])),
    "Col2Im": model_of("Col2Im", tensor("x", np.ones((1, 1, 1))), ints("image", HUGE, 1), ints("block", 1, 1)),
    "RandomNormal": model_of("RandomNormal", shape=[HUGE]),
}


@pytest.mark.parametrize("model", COMPUTED.values(), ids=COMPUTED)
def test_a_shape_that_a_model_computes_is_refused_beyond_the_limits(model: onnx.ModelProto) -> None:
    with pytest.raises(OperatorError, match=r"The limit is \d+\. If you trust the model"):
        TrainingSession(model).infer({})


def test_a_sparse_tensor_does_not_become_dense_beyond_the_limits() -> None:
    sparse = SparseTensor(np.ones(1, np.float32), np.zeros(1, np.int64), (HUGE,))
    with pytest.raises(ModelError, match=f"has {HUGE} elements"):
        sparse.to_dense()


def test_limits_hold_within_their_block() -> None:
    model = model_of("ConstantOfShape", ints("shape", 8))
    with limits.using(Limits(elements=7)), pytest.raises(OperatorError, match=r"has 8 elements\. The limit is 7"):
        TrainingSession(model).infer({})
    assert limits.current() == Limits()
    with limits.using(Limits(elements=8)):
        assert TrainingSession(model).infer({})["y"].shape == (8,)


def test_an_empty_array_may_have_a_large_dimension() -> None:
    assert Limits().excess((0, HUGE)) == ""
