"""A small problem that can be learned in a second, for every test that trains."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.graph.training_models import floats, tensor, training_info, training_model


def classification(size: int = 100, seed: int = 0) -> dict[str, np.ndarray]:
    """Data for `mlp_with_momentum`: the label says which of the first three numbers is the largest."""
    x = np.random.default_rng(seed).normal(size=(size, 4)).astype(np.float32)
    return {"x": x, "labels": x[:, :3].argmax(axis=1)}


def fix_batch(size: int) -> Callable[[onnx.ModelProto], None]:
    """A change that fixes the first dimension of every input and output, as some exporters do."""

    def change(model: onnx.ModelProto) -> None:
        graphs = (model.graph, *(info.algorithm for info in model.training_info))
        for value in (value for graph in graphs for value in (*graph.input, *graph.output)):
            dims = value.type.tensor_type.shape.dim
            if dims and dims[0].dim_param:
                dims[0].dim_value = size

    return change


def counting_model() -> onnx.ModelProto:
    """Infers y = total + x; a step adds the sum of `x` to `total` and gives `rows`, how many rows the batch had."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "total"], ["y"])],
        "sum",
        [floats("x", "N")],
        [floats("y", "N")],
        [tensor("total", 0.0)],
    )
    algorithm = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["x"], ["batch_total"], keepdims=0),
            helper.make_node("Add", ["total", "batch_total"], ["total_new"]),
            helper.make_node("Size", ["x"], ["count"]),
            helper.make_node("Cast", ["count"], ["rows"], to=TensorProto.FLOAT),
        ],
        "add",
        [],
        [floats("total_new"), floats("rows")],
    )
    return training_model(graph, training_info(algorithm, {"total": "total_new"}))
