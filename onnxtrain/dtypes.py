"""The one table of ONNX element types: code in the file, ONNX name, numpy dtype, bits an element."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from onnxtrain.errors import UnsupportedError


@dataclass(frozen=True)
class ElementType:
    """An ONNX element type.

    Attributes:
      code: the number that stands in `TensorProto.data_type`.
      name: ONNX's name for it.
      dtype: the numpy dtype that holds one element; strings are Python objects.
      bits: bits that one element takes in `raw_data`; 0 for strings.
    """

    code: int
    name: str
    dtype: np.dtype
    bits: int


_ROWS: tuple[tuple[int, str, object, int], ...] = (
    (1, "FLOAT", np.float32, 32),
    (2, "UINT8", np.uint8, 8),
    (3, "INT8", np.int8, 8),
    (4, "UINT16", np.uint16, 16),
    (5, "INT16", np.int16, 16),
    (6, "INT32", np.int32, 32),
    (7, "INT64", np.int64, 64),
    (8, "STRING", np.object_, 0),
    (9, "BOOL", np.bool_, 8),
    (10, "FLOAT16", np.float16, 16),
    (11, "DOUBLE", np.float64, 64),
    (12, "UINT32", np.uint32, 32),
    (13, "UINT64", np.uint64, 64),
    (14, "COMPLEX64", np.complex64, 64),
    (15, "COMPLEX128", np.complex128, 128),
    (16, "BFLOAT16", ml_dtypes.bfloat16, 16),
    (17, "FLOAT8E4M3FN", ml_dtypes.float8_e4m3fn, 8),
    (18, "FLOAT8E4M3FNUZ", ml_dtypes.float8_e4m3fnuz, 8),
    (19, "FLOAT8E5M2", ml_dtypes.float8_e5m2, 8),
    (20, "FLOAT8E5M2FNUZ", ml_dtypes.float8_e5m2fnuz, 8),
    (21, "UINT4", ml_dtypes.uint4, 4),
    (22, "INT4", ml_dtypes.int4, 4),
    (23, "FLOAT4E2M1", ml_dtypes.float4_e2m1fn, 4),
    (24, "FLOAT8E8M0", ml_dtypes.float8_e8m0fnu, 8),
    (25, "UINT2", ml_dtypes.uint2, 2),
    (26, "INT2", ml_dtypes.int2, 2),
    (27, "FLOAT6E2M3", ml_dtypes.float6_e2m3fn, 6),
    (28, "FLOAT6E3M2", ml_dtypes.float6_e3m2fn, 6),
)

ELEMENT_TYPES: tuple[ElementType, ...] = tuple(
    ElementType(code, name, np.dtype(dtype), bits) for code, name, dtype, bits in _ROWS
)
_BY_CODE = {row.code: row for row in ELEMENT_TYPES}
_BY_DTYPE = {row.dtype: row for row in ELEMENT_TYPES}

STRING = np.dtype(np.object_)


def from_code(code: int) -> ElementType:
    """The element type with this number in the file."""
    if code not in _BY_CODE:
        raise UnsupportedError(f"Element type {code} is unknown. Known are {sorted(_BY_CODE)}.")
    return _BY_CODE[code]


def from_dtype(dtype: np.dtype) -> ElementType:
    """The element type that a numpy dtype stands for; any dtype of text is STRING."""
    dtype = np.dtype(dtype)
    if dtype.kind in "USO":
        dtype = STRING
    if dtype not in _BY_DTYPE:
        raise UnsupportedError(f"ONNX has no element type for numpy's {dtype}.")
    return _BY_DTYPE[dtype]


def name_of(dtype: np.dtype) -> str:
    """The word for a dtype in messages: numpy's name, `string` for text."""
    return "string" if np.dtype(dtype).kind in "USO" else np.dtype(dtype).name


def is_float(dtype: np.dtype) -> bool:
    """Whether values of this dtype can be differentiated: any real floating-point type, small ones included."""
    dtype = np.dtype(dtype)
    return dtype.kind == "f" or (dtype in _BY_DTYPE and "FLOAT" in _BY_DTYPE[dtype].name)


def is_complex(dtype: np.dtype) -> bool:
    """Whether the dtype is complex."""
    return np.dtype(dtype).kind == "c"
