"""`TensorProto` to numpy array and back, bit for bit, in every element type and both encodings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from onnxtrain import dtypes
from onnxtrain.dtypes import ElementType
from onnxtrain.errors import ModelError, UnsupportedError

if TYPE_CHECKING:
    import onnx

# The typed field of each element type, and the dtype of its entries; the types that are not named use int32_data.
_TYPED_FIELDS: dict[str, tuple[str, type[np.generic]]] = {
    "FLOAT": ("float_data", np.float32),
    "COMPLEX64": ("float_data", np.float32),
    "DOUBLE": ("double_data", np.float64),
    "COMPLEX128": ("double_data", np.float64),
    "INT64": ("int64_data", np.int64),
    "UINT32": ("uint64_data", np.uint64),
    "UINT64": ("uint64_data", np.uint64),
}


def element_type(tensor: onnx.TensorProto) -> ElementType:
    """The element type of a tensor; the error of an unknown one names the tensor."""
    try:
        return dtypes.from_code(tensor.data_type)
    except UnsupportedError as error:
        raise UnsupportedError(f"Tensor {tensor.name!r}: {error}") from None


def shape_of(tensor: onnx.TensorProto) -> tuple[int, ...]:
    """The shape that a tensor declares."""
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise ModelError(f"Tensor {tensor.name!r} declares the shape {list(shape)}. Sizes must not be negative.")
    return shape


def byte_count(tensor: onnx.TensorProto) -> int:
    """How many bytes the elements take as `raw_data`, from the declared type and shape alone."""
    return _packed_size(math.prod(shape_of(tensor)), element_type(tensor).bits)


def to_array(tensor: onnx.TensorProto) -> np.ndarray:
    """The value that a tensor holds in the file; external data must have been loaded before.

    Strings become an object array of `str`; an element that is no UTF-8 stays `bytes`.

    Raises:
      ModelError: the declared shape and the stored data do not agree, or a stored element does not fit the type.
      UnsupportedError: an unknown element type, or a tensor stored in segments.
    """
    kind, shape = element_type(tensor), shape_of(tensor)
    if tensor.HasField("segment"):
        raise UnsupportedError(f"Tensor {tensor.name!r} is stored in segments. Save the model with whole tensors.")
    if kind.name == "STRING":
        return _strings(tensor, shape)
    return (_from_raw if tensor.raw_data else _from_typed)(tensor, kind, shape)


def _strings(tensor: onnx.TensorProto, shape: tuple[int, ...]) -> np.ndarray:
    if tensor.raw_data:
        raise ModelError(f"Tensor {tensor.name!r} holds strings in raw_data. ONNX keeps strings in string_data.")
    _check_count(tensor, "string_data", len(tensor.string_data), math.prod(shape))
    flat = np.empty(len(tensor.string_data), dtypes.STRING)
    flat[:] = [decoded(element) for element in tensor.string_data]
    return flat.reshape(shape)


def decoded(text: bytes) -> str | bytes:
    """Text of the file as `str`, or as it stands when it is no UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def _from_raw(tensor: onnx.TensorProto, kind: ElementType, shape: tuple[int, ...]) -> np.ndarray:
    raw, count = tensor.raw_data, math.prod(shape)
    _check_count(tensor, "raw_data bytes", len(raw), _packed_size(count, kind.bits))
    if kind.bits < 8:
        return _unpacked(np.frombuffer(raw, np.uint8), count, kind.bits).view(kind.dtype).reshape(shape)
    if kind.name == "BOOL":
        return (np.frombuffer(raw, np.uint8) != 0).reshape(shape)
    return np.frombuffer(raw, kind.dtype).reshape(shape)


def _from_typed(tensor: onnx.TensorProto, kind: ElementType, shape: tuple[int, ...]) -> np.ndarray:
    field, entry = _TYPED_FIELDS.get(kind.name, ("int32_data", np.int32))
    stored, count = getattr(tensor, field), math.prod(shape)
    _check_count(tensor, f"{field} entries", len(stored), _entry_count(kind, count))
    entries = np.array(stored, entry)
    if kind.name == "BOOL":
        return (entries != 0).reshape(shape)
    if field == "int32_data" and kind.name != "INT32":
        return _from_int32(tensor, kind, entries, count).reshape(shape)
    if kind.name == "UINT32":
        _check_range(tensor, entries, 0, 2**32 - 1)
        return entries.astype(np.uint32).reshape(shape)
    return entries.view(kind.dtype).reshape(shape)


def _from_int32(tensor: onnx.TensorProto, kind: ElementType, entries: np.ndarray, count: int) -> np.ndarray:
    """Elements narrower than 32 bits: each entry holds the bits of one, or of as many as fill a byte evenly."""
    bits = _entry_bits(kind)
    _check_range(tensor, entries, -(2 ** (bits - 1)), 2**bits - 1)
    narrow = entries.astype(np.uint16 if bits == 16 else np.uint8)
    if kind.bits < bits:
        narrow = _unpacked(narrow, count, kind.bits)
    return narrow.view(kind.dtype)


def _entry_bits(kind: ElementType) -> int:
    """Bits that one entry of int32_data carries: a full byte of 2-bit and 4-bit elements, else one element."""
    return 8 if kind.bits in (2, 4) else kind.bits


def _entry_count(kind: ElementType, count: int) -> int:
    if kind.name in ("COMPLEX64", "COMPLEX128"):
        return 2 * count
    return _packed_size(count, kind.bits) if kind.bits in (2, 4) else count


def _packed_size(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def _unpacked(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    """One byte for each element of a little-endian stream of `bits` wide elements."""
    stream = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(stream, axis=1, bitorder="little").reshape(count)


def _check_count(tensor: onnx.TensorProto, unit: str, found: int, needed: int) -> None:
    """Holds before anything is allocated that a file with a huge declared shape could blow up."""
    if found != needed:
        raise ModelError(
            f"Tensor {tensor.name!r} of shape {list(tensor.dims)} and type {element_type(tensor).name} needs "
            f"{needed} {unit}, but the file has {found}."
        )


def _check_range(tensor: onnx.TensorProto, entries: np.ndarray, low: int, high: int) -> None:
    outside = entries[(entries < low) | (entries > high)]
    if outside.size:
        raise ModelError(
            f"Tensor {tensor.name!r} of type {element_type(tensor).name} stores {outside[0]}, which does not fit it."
        )
