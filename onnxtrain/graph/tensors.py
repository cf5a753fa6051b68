"""`TensorProto` to numpy array and back, bit for bit, in every element type and both encodings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from onnxtrain import dtypes
from onnxtrain.dtypes import ElementType
from onnxtrain.errors import ModelError, StateError, UnsupportedError

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
    "STRING": ("string_data", np.object_),
}
DATA_FIELDS = ("raw_data", "int32_data", *sorted({field for field, _ in _TYPED_FIELDS.values()}))
_FLOAT_DATA_TAG = b"\x22"  # field 4, length-delimited


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
    flat = _elements(tensor, kind)
    try:
        return flat.reshape(shape)
    except ValueError as error:  # more dimensions than numpy has, or an empty tensor with a huge one
        raise ModelError(f"Tensor {tensor.name!r} declares the shape {list(shape)}: {error}.") from error


def _elements(tensor: onnx.TensorProto, kind: ElementType) -> np.ndarray:
    if kind.name == "STRING":
        return _strings(tensor)
    raw = tensor.raw_data
    return _from_raw(tensor, raw, kind) if raw else _from_typed(tensor, kind)


def _strings(tensor: onnx.TensorProto) -> np.ndarray:
    if tensor.raw_data:
        raise ModelError(f"Tensor {tensor.name!r} holds strings in raw_data. ONNX keeps strings in string_data.")
    _check_count(tensor, "entries of string_data", len(tensor.string_data), math.prod(tensor.dims))
    flat = np.empty(len(tensor.string_data), dtypes.STRING)
    flat[:] = [decoded(element) for element in tensor.string_data]
    return flat


def decoded(text: bytes) -> str | bytes:
    """Text of the file as `str`, or as it stands when it is no UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def _from_raw(tensor: onnx.TensorProto, raw: bytes, kind: ElementType) -> np.ndarray:
    count = math.prod(tensor.dims)
    _check_count(tensor, "bytes of raw_data", len(raw), _packed_size(count, kind.bits))
    if kind.bits < 8:
        return _unpacked(np.frombuffer(raw, np.uint8), count, kind.bits).view(kind.dtype)
    if kind.name == "BOOL":
        return np.frombuffer(raw, np.uint8) != 0
    return np.frombuffer(raw, kind.dtype)


def _from_typed(tensor: onnx.TensorProto, kind: ElementType) -> np.ndarray:
    field, entry = _typed_field(kind)
    stored, count = getattr(tensor, field), math.prod(tensor.dims)
    _check_count(tensor, f"entries of {field}", len(stored), _entry_count(kind, count))
    entries = np.array(stored, entry)
    if kind.name == "BOOL":
        return entries != 0
    if kind.name == "UINT32":
        _check_range(tensor, entries, 0, 2**32 - 1)
        return entries.astype(np.uint32)
    if entry is np.int32 and kind.bits < 32:
        return _from_int32(tensor, kind, entries, count)
    return entries.view(kind.dtype)


def _from_int32(tensor: onnx.TensorProto, kind: ElementType, entries: np.ndarray, count: int) -> np.ndarray:
    """Elements narrower than 32 bits: an entry holds the bits of one, or a byte of those that fill it evenly."""
    bits = 8 if _shares_byte(kind) else kind.bits
    _check_range(tensor, entries, -(2 ** (bits - 1)), 2**bits - 1)
    narrow = entries.astype(np.uint16 if bits == 16 else np.uint8)
    return (_unpacked(narrow, count, kind.bits) if _shares_byte(kind) else narrow).view(kind.dtype)


def store(tensor: onnx.TensorProto, value: np.ndarray) -> None:
    """Replaces the elements of a tensor; name, shape, element type and encoding (raw or typed) stay as they are.

    Raises:
      StateError: the value differs from the tensor in shape or element type.
    """
    kind = element_type(tensor)
    found = dtypes.from_dtype(value.dtype)
    if found != kind or value.shape != shape_of(tensor):
        raise StateError(
            f"{tensor.name!r} is stored as {kind.name} of shape {list(tensor.dims)}, but the new value is "
            f"{found.name} of shape {list(value.shape)}. Give a value of the stored type and shape."
        )
    field, _ = _typed_field(kind)
    if not value.size:
        return
    if kind.name == "STRING":
        tensor.string_data[:] = [text if isinstance(text, bytes) else text.encode() for text in value.flat]
    elif tensor.raw_data or not getattr(tensor, field):
        tensor.raw_data = raw_bytes(value)
    elif field == "float_data":
        _store_floats(tensor, value)
    else:
        getattr(tensor, field)[:] = _entries(value, kind).tolist()


def raw_bytes(value: np.ndarray) -> bytes:
    """The elements as they stand in `raw_data`; not for strings."""
    kind = dtypes.from_dtype(value.dtype)
    return _packed(value, kind.bits) if kind.bits < 8 else value.tobytes()


def _entries(value: np.ndarray, kind: ElementType) -> np.ndarray:
    """The elements as they stand in the typed field, which for signed integers keeps the sign."""
    _, entry = _typed_field(kind)
    flat = np.ascontiguousarray(value).reshape(-1)
    if entry is not np.int32:
        return flat.view(np.float64) if kind.name == "COMPLEX128" else flat
    if _shares_byte(kind):
        return np.frombuffer(_packed(flat, kind.bits), np.uint8)
    return flat if kind.name.startswith("INT") else flat.view(np.uint16 if kind.bits == 16 else np.uint8)


def _store_floats(tensor: onnx.TensorProto, value: np.ndarray) -> None:
    """Merges the field from its encoding: on the way through Python's floats, NaNs would lose their exact bits."""
    payload = value.tobytes()
    tensor.ClearField("float_data")
    tensor.MergeFromString(_FLOAT_DATA_TAG + _varint(len(payload)) + payload)


def _varint(number: int) -> bytes:
    """A number in protobuf's encoding: seven bits a byte, the lowest first, the high bit set on all but the last."""
    groups = [number & 0x7F]
    while number := number >> 7:
        groups[-1] |= 0x80
        groups.append(number & 0x7F)
    return bytes(groups)


def _typed_field(kind: ElementType) -> tuple[str, type[np.generic]]:
    return _TYPED_FIELDS.get(kind.name, ("int32_data", np.int32))


def _shares_byte(kind: ElementType) -> bool:
    """Whether an entry of int32_data holds several elements; 6-bit ones stand alone, for they fill no byte evenly."""
    return kind.bits in (2, 4)


def _entry_count(kind: ElementType, count: int) -> int:
    if dtypes.is_complex(kind.dtype):
        return 2 * count
    return _packed_size(count, kind.bits) if _shares_byte(kind) else count


def _packed_size(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def _unpacked(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    """One byte for each element of a stream of elements `bits` wide, the lowest bits first."""
    stream = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(stream, axis=1, bitorder="little").reshape(count)


def _packed(value: np.ndarray, bits: int) -> bytes:
    elements = np.ascontiguousarray(value).view(np.uint8).reshape(-1, 1)
    stream = np.unpackbits(elements, axis=1, count=bits, bitorder="little")
    return np.packbits(stream, bitorder="little").tobytes()


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
