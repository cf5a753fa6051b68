"""The quantizers of QONNX: floats stay floats, and take only so many values. Gradients pass straight through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import levels, named_functions
from onnxtrain.lowering.contrib.domains import qonnx
from onnxtrain.lowering.registry import Array, StraightThroughWanted

_ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "ROUND": jnp.rint,
    "HALF_EVEN": jnp.rint,
    "CEIL": jnp.ceil,
    "FLOOR": jnp.floor,
    "UP": lambda x: jnp.sign(x) * jnp.ceil(jnp.abs(x)),
    "DOWN": jnp.trunc,
    "ROUND_TO_ZERO": jnp.trunc,
    "HALF_UP": lambda x: jnp.sign(x) * jnp.floor(jnp.abs(x) + 0.5),
    "HALF_DOWN": lambda x: jnp.sign(x) * jnp.ceil(jnp.abs(x) - 0.5),
}


@qonnx("Quant")
@qonnx("IntQuant")
def quant(
    x: Array,
    scale: Array,
    zeropt: Array,
    bitwidth: Array,
    *,
    narrow: bool = False,
    rounding_mode: str = "ROUND",
    signed: bool = True,
    straight_through: StraightThroughWanted,
) -> Array:
    """The gradient is 1 in range and 0 outside; scale and zero point have that of learned step sizes.

    One signed bit, for which ONNX has no integers, stands for -1 and 1.
    """
    rounding = _ROUNDINGS.get(rounding_mode.upper())
    if rounding is None:
        raise OperatorError(f"rounding_mode must be one of {', '.join(_ROUNDINGS)}, not {rounding_mode!r}.")
    moved = x / scale + zeropt
    lowest, highest = _range(lax.stop_gradient(bitwidth), signed, narrow)
    clipped = named_functions.clip(moved, lowest, highest)
    nearest = rounding(clipped)
    if signed:
        nearest = jnp.where(bitwidth == 1, jnp.where(moved >= 0, 1, -1).astype(moved.dtype), nearest)
    nearest = levels.with_gradient_of(nearest, clipped) if straight_through else lax.stop_gradient(nearest)
    return (nearest - zeropt) * scale


def _range(bitwidth: Array, signed: bool, narrow: bool) -> tuple[Any, Any]:
    if not signed:
        return 0.0, 2.0**bitwidth - (2 if narrow else 1)
    half = 2.0 ** (bitwidth - 1)
    # a single signed bit has no 0, so its range has to reach 1
    return (1 - half if narrow else -half), jnp.where(bitwidth == 1, 1, half - 1)


@qonnx("BipolarQuant")
def bipolar_quant(x: Array, scale: Array, *, straight_through: StraightThroughWanted) -> Array:
    """Minus or plus the scale. The gradient passes where x is no larger than that."""
    moved = x / scale
    sign = jnp.where(moved >= 0, 1, -1).astype(moved.dtype)
    return (levels.with_gradient_of(sign, named_functions.clip(moved, -1.0, 1.0)) if straight_through else sign) * scale
