"""Writes JAX functions as ONNX: `write_function` traces one and adds its operations to a graph.

The functions need not know of ONNX: whatever `jax.make_jaxpr` traces is written, as far as each primitive has a rule.
An optimizer of optax and a loss of one's own come into a file this way. The rest of `authoring` does without JAX: this
package is imported when a JAX function is given, not before.
"""

from onnxtrain.authoring.jax_functions import control_flow, elementwise, indexing, linear, random, reductions, shapes
from onnxtrain.authoring.jax_functions.tracing import types_for, write_function
from onnxtrain.authoring.value_types import Value

__all__ = [
    "Value",
    "control_flow",
    "elementwise",
    "indexing",
    "linear",
    "random",
    "reductions",
    "shapes",
    "types_for",
    "write_function",
]
