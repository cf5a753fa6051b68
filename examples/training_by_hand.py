"""Training information written by hand: a straight line, its loss, its gradient, and one step of descent.

python examples/training_by_hand.py
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot


def a_float(name: str, *shape: str | int) -> onnx.ValueInfoProto:
    """The declaration of a float32 value."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


# What the model infers: y = slope * x + offset.
inference = helper.make_graph(
    [helper.make_node("Mul", ["x", "slope"], ["scaled"]), helper.make_node("Add", ["scaled", "offset"], ["y"])],
    "line",
    [a_float("x", "N")],
    [a_float("y", "N")],
    [numpy_helper.from_array(np.array(0, np.float32), name) for name in ("slope", "offset")],
)

# What one training step computes. It reads values of the inference graph (y, slope, offset) by their names.
algorithm = helper.make_graph(
    [
        helper.make_node("Sub", ["y", "target"], ["error"]),
        helper.make_node("Mul", ["error", "error"], ["squared"]),
        helper.make_node("ReduceMean", ["squared"], ["loss"], keepdims=0),
        helper.make_node(
            "Gradient",
            ["slope", "offset"],
            ["d_slope", "d_offset"],
            xs=["slope", "offset"],
            y="loss",
            domain="ai.onnx.preview.training",
        ),
        helper.make_node("Mul", ["d_slope", "rate"], ["slope_step"]),
        helper.make_node("Mul", ["d_offset", "rate"], ["offset_step"]),
        helper.make_node("Sub", ["slope", "slope_step"], ["new_slope"]),
        helper.make_node("Sub", ["offset", "offset_step"], ["new_offset"]),
    ],
    "descent",
    [a_float("target", "N")],
    [a_float("loss"), a_float("new_slope"), a_float("new_offset")],
    [numpy_helper.from_array(np.array(0.1, np.float32), "rate")],
)

# After a step, `slope` takes the value of `new_slope`, and `offset` that of `new_offset`.
updates = [("slope", "new_slope"), ("offset", "new_offset")]

opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.preview.training", 1)]
model = helper.make_model(inference, opset_imports=opsets, ir_version=9)
model.training_info.append(helper.make_training_info(algorithm, updates, None, None))
assert ot.validate(model) == []

generator = np.random.default_rng(0)
session = ot.TrainingSession(model)
for step in range(1, 201):
    x = generator.uniform(-1, 1, 64).astype(np.float32)
    outputs = session.step({"x": x, "target": 3 * x + 2})
    if step % 50 == 0:
        print(f"step {step}: loss {float(outputs['loss']):.6f}")

slope, offset = session.variables["slope"], session.variables["offset"]
print(f"y = {slope:.3f} x + {offset:.3f}")
assert abs(slope - 3) < 0.01
assert abs(offset - 2) < 0.01
