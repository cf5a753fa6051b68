"""A training model as pure functions: `jax.jit` compiles a step, `jax.vmap` trains eight models at once.

python examples/pure_functions.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot

# A small regressor: one hidden layer between x and y.
shapes = {"w1": (1, 32), "b1": (32,), "w2": (32, 1), "b2": (1,)}
graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["hidden"]),
        helper.make_node("Tanh", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "w2", "b2"], ["y"]),
    ],
    "regressor",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])],
    [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in shapes.items()],
)
network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
model: onnx.ModelProto = ot.make_trainable(
    network, loss="mean_squared_error", optimizer="adam", learning_rate=0.01, initialize="glorot_uniform", seed=None
)

# No state is hidden: `initialize` makes one from a key, and `step` gives a new one.
with jax.enable_x64(True):  # the model counts its steps in int64, which JAX has only in this mode
    program = ot.lower(model)
    keys = jax.random.split(jax.random.key(0), 8)
    states = jax.vmap(program.initialize)(keys)  # eight models, each with weights of its own

    x = jnp.linspace(-3, 3, 128, dtype=jnp.float32)[:, None]
    batch = {"x": x, "labels": jnp.sin(x)}
    step = jax.jit(jax.vmap(program.step, in_axes=(0, None)))
    losses = np.empty(8)
    for _ in range(500):
        states, outputs = step(states, batch)
        losses = outputs["loss"]
    print("losses:", np.round(losses, 5))
    assert losses.max() < 0.01

    predictions = jax.vmap(program.infer, in_axes=(0, None))(states, {"x": x})["y"]
    ensemble = predictions.mean(axis=0)
    print("error of their mean:", float(jnp.abs(ensemble - jnp.sin(x)).max()))

    # The derivative of what the first model infers, by its input.
    first = jax.tree.map(lambda leaf: leaf[0], states)
    slope = jax.grad(lambda at: program.infer(first, {"x": at})["y"].sum())(jnp.zeros((1, 1), jnp.float32))
    print("slope at 0:", float(slope[0, 0]), "(that of sin is 1)")
