"""How the windows of convolution and pooling lie on the spatial axes of their input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.static import wide_dtype, widened

# Windows of at most this many elements, all axes added up, are worked through slice by slice, which XLA fuses.
_MOST_SLICES = 64


@dataclass(frozen=True)
class Axis:
    """One spatial axis: how far the input reaches, and how windows of `kernel` elements lie on it."""

    size: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def extent(self) -> int:
        """How many elements a window spans, gaps included."""
        return self.dilation * (self.kernel - 1) + 1

    def count(self, ceil_mode: bool = False) -> int:
        """How many windows there are. In ceil mode the last may overhang, but not start behind the input."""
        room = self.size + self.before + self.after - self.extent
        windows = (-(-room // self.stride) if ceil_mode else room // self.stride) + 1
        if ceil_mode and (windows - 1) * self.stride >= self.size + self.before:
            windows -= 1
        if windows < 1:
            raise OperatorError(f"A window of {self.extent} elements does not fit on an axis of {self.size}.")
        return windows

    def positions(self, ceil_mode: bool = False) -> np.ndarray:
        """The input position of each element of each window, [windows, kernel]; padding lies outside [0, size)."""
        starts = np.arange(self.count(ceil_mode)) * self.stride - self.before
        return starts[:, None] + np.arange(self.kernel) * self.dilation


def place(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
) -> tuple[Axis, ...]:
    """The axes of an operator with ONNX's attributes; SAME paddings are worked out for these sizes."""
    rank = len(sizes)
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * (2 * rank)
    if not (len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank):
        raise OperatorError(
            f"An input of {rank} spatial axes does not go with kernel_shape {list(kernel)}, strides {list(strides)}, "
            f"dilations {list(dilations)} and pads {list(pads)}."
        )
    axes = (
        Axis(size, length, stride, dilation, before, after)
        for size, length, stride, dilation, before, after in zip(
            sizes, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True
        )
    )
    return tuple(_padded(axis, auto_pad) for axis in axes)


def _padded(axis: Axis, auto_pad: str) -> Axis:
    if auto_pad in ("", "NOTSET"):
        return axis
    total = 0
    if auto_pad != "VALID":
        total = max((-(-axis.size // axis.stride) - 1) * axis.stride + axis.extent - axis.size, 0)
    before, after = halves(total, auto_pad)
    return Axis(axis.size, axis.kernel, axis.stride, axis.dilation, before, after)


def halves(total: int, auto_pad: str) -> tuple[int, int]:
    """Padding in front and behind; the odd element goes behind for SAME_UPPER, in front otherwise."""
    if auto_pad not in ("", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise OperatorError(f"auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, not {auto_pad!r}.")
    small = total // 2
    return (small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small)


def few(axes: Sequence[Axis]) -> bool:
    """Whether the windows are small enough to be worked through slice by slice."""
    return sum(axis.kernel for axis in axes) <= _MOST_SLICES


def fold(
    combine: Callable[[Any, Any], Any],
    values: Sequence[Any],
    fills: Sequence[Any],
    axes: Sequence[Axis],
    ceil_mode: bool,
) -> Any:
    """Combines the elements of each window, over the last axes of arrays that belong together.

    One axis after the other, the last first, the slices at each offset of the window are combined from the first to the
    last: `combine(earlier, later)` takes and returns tuples with one array for each of `values`. Padding is `fills`.
    """
    rank = len(axes)
    folded = tuple(values)
    for number, axis in reversed(list(enumerate(axes))):
        at = folded[0].ndim - rank + number
        padded = tuple(_pad(value, fill, axis, at, ceil_mode) for value, fill in zip(folded, fills, strict=True))
        count = axis.count(ceil_mode)
        slices = (
            tuple(_every(value, at, offset * axis.dilation, count, axis.stride) for value in padded)
            for offset in range(axis.kernel)
        )
        folded = reduce(combine, slices)
    return folded


def padding(axis: Axis, ceil_mode: bool = False) -> tuple[int, int]:
    """Elements to add in front and behind so that exactly the windows fit; negative where the input reaches further."""
    return axis.before, (axis.count(ceil_mode) - 1) * axis.stride + axis.extent - axis.size - axis.before


def _pad(value: Any, fill: Any, axis: Axis, at: int, ceil_mode: bool) -> Any:
    before, after = padding(axis, ceil_mode)
    after = max(after, 0)
    if not before and not after:
        return value
    widths = [(0, 0, 0)] * value.ndim
    widths[at] = (before, after, 0)
    return lax.pad(value, jnp.asarray(fill, value.dtype), widths)


def _every(value: Any, at: int, start: int, count: int, stride: int) -> Any:
    return lax.slice_in_dim(value, start, start + (count - 1) * stride + 1, stride, at)


def reduction_arguments(axes: Sequence[Axis], ceil_mode: bool) -> tuple[Any, ...]:
    """Window, strides and padding of `lax.reduce_window`, with batch and channels in front."""
    around = [(before, max(after, 0)) for before, after in (padding(axis, ceil_mode) for axis in axes)]
    return (
        (1, 1, *(axis.kernel for axis in axes)),
        (1, 1, *(axis.stride for axis in axes)),
        [(0, 0), (0, 0), *around],
    )


def maximum(x: Any, axes: Sequence[Axis], ceil_mode: bool) -> Any:
    """The maximum of each window of x [N, C, ...]; of equal ones the first has the gradient."""
    if few(axes) or any(axis.dilation > 1 for axis in axes):
        (y,) = fold(lambda a, b: (_first_maximum(*a, *b),), (x,), (lowest(x.dtype),), axes, ceil_mode)
        return y
    return lax.reduce_window(x, lowest(x.dtype), lax.max, *reduction_arguments(axes, ceil_mode))


def lowest(dtype: np.dtype) -> Any:
    """What is no larger than any value of the type."""
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min


@jax.custom_jvp
def _first_maximum(earlier: Any, later: Any) -> Any:
    return jnp.maximum(earlier, later)


@_first_maximum.defjvp
def _first_maximum_jvp(values: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    # jnp.maximum would share the gradient between equal elements
    earlier, later = values
    return _first_maximum(earlier, later), jnp.where(earlier >= later, *tangents)


def average(x: Any, axes: Sequence[Axis], ceil_mode: bool, count_include_pad: bool) -> Any:
    """The average of each window of x [N, C, ...]; what lies beyond the padding never counts."""
    wide = widened(x)
    counts = _counts(axes, ceil_mode, count_include_pad).astype(wide.dtype)
    return (total(wide, axes, ceil_mode) / counts).astype(x.dtype)


def total(x: Any, axes: Sequence[Axis], ceil_mode: bool) -> Any:
    """The sum of each window of x [N, C, ...]."""
    if few(axes):
        (added,) = fold(lambda a, b: (a[0] + b[0],), (x,), (0,), axes, ceil_mode)
        return added
    dilations = (1, 1, *(axis.dilation for axis in axes))
    return lax.reduce_window(x, 0.0, lax.add, *reduction_arguments(axes, ceil_mode), window_dilation=dilations)


def _counts(axes: Sequence[Axis], ceil_mode: bool, count_include_pad: bool) -> np.ndarray:
    """How many elements each window averages."""
    counts = np.ones((), np.int64)
    for axis in axes:
        before, after = (axis.before, axis.after) if count_include_pad else (0, 0)
        positions = axis.positions(ceil_mode)
        inside = (positions >= -before) & (positions < axis.size + after)
        counts = np.multiply.outer(counts, inside.sum(axis=1))
    return counts


def convolve(x: Any, w: Any, axes: Sequence[Axis], group: int) -> Any:
    """Convolution of x [N, C, ...] with w [M, C / group, ...], laid out as the axes say."""

    def at_once(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            w,
            window_strides=[axis.stride for axis in axes],
            padding=[(axis.before, axis.after) for axis in axes],
            rhs_dilation=[axis.dilation for axis in axes],
            feature_group_count=group,
        )

    def by_element(x: Any, w: Any) -> Any:
        return _depthwise(x, w, axes)

    if group > 1 and w.shape[:2] == (group, 1) and math.prod(w.shape[2:]) <= _MOST_SLICES:
        # XLA's own convolution takes several times as long on a CPU
        return lax.platform_dependent(x, w, cpu=by_element, default=at_once)
    return at_once(x, w)


def _depthwise(x: Any, w: Any, axes: Sequence[Axis]) -> Any:
    """Convolution with a kernel for each channel, as a sum over the elements of the kernels."""
    padding = [(0, 0, 0), (0, 0, 0), *((axis.before, axis.after, 0) for axis in axes)]
    padded = lax.pad(widened(x), jnp.zeros((), wide_dtype(x.dtype)), padding)
    kernels = widened(w)
    channels = (-1, *(1,) * len(axes))
    terms = []
    for element in np.ndindex(*w.shape[2:]):
        part = padded
        for at, (axis, offset) in enumerate(zip(axes, element, strict=True), start=2):
            part = _every(part, at, offset * axis.dilation, axis.count(), axis.stride)
        terms.append(part * kernels[(slice(None), 0, *element)].reshape(channels))
    return reduce(jnp.add, terms).astype(x.dtype)
