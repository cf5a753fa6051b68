"""Static and traced values: numpy arrays are known while tracing, JAX arrays are only known at run time.

Shapes, axes and other small integers of a model are static; they are computed in numpy, so that reshapes work for
every batch size and no 64-bit value is cut to 32 bits on the way. Rules that fold call `namespace` to compute with
numpy or JAX, whichever the values are.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain import dtypes, limits
from onnxtrain.errors import OperatorError, StaticValueError, UnsupportedError

# A larger array that a node makes from a small one is made at run time: it would be a constant in the compiled code.
MAX_STATIC_ELEMENTS = 1 << 18


class StaticInputError(StaticValueError):
    """A rule needs input number `position` to be static; the interpreter adds where it stands and how it came.

    `shape_like` says that the input is a few numbers, such as a shape, and no data.
    """

    def __init__(self, parameter: str, position: int, shape_like: bool = False):
        super().__init__(f"Input '{parameter}' must be known while tracing.")
        self.parameter = parameter
        self.position = position
        self.shape_like = shape_like


def is_static(value: Any) -> bool:
    """Whether a value is known while tracing: numpy arrays and scalars, None, and containers of such."""
    if isinstance(value, list | tuple):
        return all(is_static(item) for item in value)
    if isinstance(value, dict):
        return all(is_static(item) for item in value.values())
    return not isinstance(value, jax.Array)


def on_host(value: Any) -> Any:
    """The value with JAX arrays as numpy arrays, so that it is known while tracing; tracers cannot be."""
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_host(item) for item in value)
    return np.asarray(value) if isinstance(value, jax.Array) else value


def namespace(*values: Any) -> ModuleType:
    """`numpy` when every value is static, else `jax.numpy`."""
    return np if all(is_static(value) for value in values) else jnp


def known(value: Any, what: str) -> np.ndarray:
    """The value as a numpy array, or an error that says it had to be known while tracing."""
    if isinstance(value, jax.Array):
        raise StaticValueError(f"{what} must be known while tracing, but it is only known at run time.")
    return np.asarray(value)


def device_dtype(dtype: np.dtype | type) -> np.dtype:
    """The dtype that an array of this type has on the device: 64-bit integers are 32-bit unless 64-bit types are on."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.dtype(dtype)))


def cast(value: Any, dtype: np.dtype | type) -> Any:
    """The value in another element type, staying static or traced as it is; the caller has dealt with ranges."""
    if is_static(value):
        return np.asarray(value).astype(dtype)
    return jax.lax.convert_element_type(value, device_dtype(dtype))


def wide_dtype(dtype: np.dtype | type) -> np.dtype:
    """The type in which sums over values of this type keep their digits: float32 for floats of fewer bits."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype


def widened(value: Any) -> jax.Array:
    """The value as a JAX array in its `wide_dtype`."""
    return jnp.asarray(value).astype(wide_dtype(value.dtype))


def magnitude(value: Any) -> Any:
    """The absolute value. Its gradient at 0 is 0, as in other frameworks; that of JAX's own is 1."""
    if is_static(value) or not dtypes.is_float(value.dtype):
        return namespace(value).abs(value)
    return value * jnp.sign(jax.lax.stop_gradient(value))


def traced(value: Any) -> Any:
    """A static array as the JAX array of the same values; what JAX's present setting cannot hold is refused."""
    return jnp.asarray(representable(value)) if is_static(value) else value


def check_shape(shape: Sequence[int]) -> None:
    """Refuses, before anything is allocated, a shape that a model computed and that is beyond all measure."""
    if excess := limits.current().excess(shape):
        raise OperatorError(excess)


def traced_if_large(value: Any, elements: int) -> Any:
    """The value that an array of so many elements is made from: a JAX array if that one had better not be static."""
    return value if elements <= MAX_STATIC_ELEMENTS or value.dtype == dtypes.STRING else traced(value)


def representable(value: Any) -> Any:
    """A static array in the types that JAX's present setting has, or an error when that would change a value."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind in "OUSb":
        return value
    target = device_dtype(value.dtype)
    if target == value.dtype:
        return value
    if value.dtype.kind not in "iu" or not _fits(value, target):
        raise UnsupportedError(
            f"A {dtypes.name_of(value.dtype)} value cannot be represented: 64-bit types are off in JAX. "
            "Switch them on with jax.enable_x64(True), or use TrainingSession, which does so for its own calls."
        )
    return value.astype(target)


def _fits(value: np.ndarray | np.generic, target: np.dtype) -> bool:
    limits = np.iinfo(target)
    return value.size == 0 or bool(limits.min <= value.min() and value.max() <= limits.max)
