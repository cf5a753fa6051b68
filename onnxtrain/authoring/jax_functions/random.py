"""Random numbers, by the default generator of JAX: keys are written as their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_prng_impl

from onnxtrain.authoring.jax_functions.writer import Equation, TensorType, Writer, count_of, has_operator, rule
from onnxtrain.errors import UnsupportedError

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)  # Threefry's constant (Salmon et al., Parallel Random Numbers, 2011)
_FLOAT_BITS, _MANTISSA_BITS, _BIAS = 32, 23, 127


@rule("random_wrap", "random_unwrap")
def key_words(writer: Writer, equation: Equation, words: str) -> str:
    """A key and its words are one."""
    return words


@rule("random_seed")
def key_of_seed(writer: Writer, equation: Equation, seed: str) -> str:
    """The words of a key made from a number."""
    return _for_each(writer, equation, lambda number: threefry_prng_impl.seed(number), 0, seed)


@rule("random_fold_in")
def folded_key(writer: Writer, equation: Equation, words: str, number: str) -> str:
    """The words of a key that a number was mixed into."""
    return _for_each(writer, equation, threefry_prng_impl.fold_in, 1, words, number)


@rule("random_split")
def split_keys(writer: Writer, equation: Equation, words: str) -> str:
    """The words of new keys."""
    shape = equation.params["shape"]
    return _for_each(writer, equation, lambda key: threefry_prng_impl.split(key, shape), 1, words)


@rule("random_bits")
def random_bits(writer: Writer, equation: Equation, words: str) -> str:
    """Random integers without a sign."""
    width, shape = equation.params["bit_width"], equation.params["shape"]
    return _for_each(writer, equation, lambda key: threefry_prng_impl.random_bits(key, width, shape), 1, words)


def _for_each(writer: Writer, equation: Equation, function: Callable[..., Any], word_axes: int, *inputs: str) -> str:
    """Writes a function of one key for a tensor of them."""
    for _ in range(len(equation.inputs[0].shape) - word_axes):
        function = jax.vmap(function)
    return writer.trace(function, equation.inputs, *inputs)[0]


@rule("iota_2x32_shape")
def counter_words(writer: Writer, equation: Equation) -> tuple[str, str]:
    """The places of a tensor as numbers of 64 bits, in two words; tensors of 2**32 elements are none of ONNX's."""
    shape, dtype = equation.params["shape"], equation.outputs[0].dtype
    low = writer.reshape(writer.cast(writer.iota(count_of(shape)), dtype), shape)
    return writer.expand(writer.constant(0, dtype), shape), low


@rule("threefry2x32")
def threefry(writer: Writer, equation: Equation, *words: str) -> list[str]:
    """Twenty rounds of sums, rotations and exclusive ors."""
    return writer.trace(_threefry, equation.inputs, *words)


def _threefry(first_key: Any, second_key: Any, left: Any, right: Any) -> tuple[Any, Any]:
    keys = (first_key, second_key, first_key ^ second_key ^ _PARITY)
    left, right = left + keys[0], right + keys[1]
    for group in range(1, 6):
        for rotation in _ROTATIONS[(group - 1) % 2]:
            left = left + right
            right = (right << np.uint32(rotation)) | (right >> np.uint32(_FLOAT_BITS - rotation))
            right = left ^ right
        left = left + keys[group % 3]
        right = right + keys[(group + 1) % 3] + np.uint32(group)
    return left, right


@rule("bitcast_convert_type")
def reinterpreted(writer: Writer, equation: Equation, value: str) -> str:
    """BitCast; before there was one, the bits of a normal float32 are put together by arithmetic."""
    given, wanted = equation.inputs[0].dtype, equation.output.dtype
    if given.itemsize == wanted.itemsize and has_operator("BitCast", writer.builder.opset):
        return writer.op("BitCast", value, to=TensorType(wanted, ()).element_type)
    if (given, wanted) != (np.uint32, np.float32):
        raise UnsupportedError(
            f"The bits of {given} are not read as {wanted} before opset 26, which has the operator BitCast. "
            "Convert the model first (onnx.version_converter)."
        )
    return writer.trace(_float_of_bits, equation.inputs, value)[0]


def _float_of_bits(bits: Any) -> Any:
    sign = 1 - 2 * (bits >> np.uint32(_FLOAT_BITS - 1)).astype(jnp.float32)
    exponent = ((bits >> np.uint32(_MANTISSA_BITS)) & np.uint32(0xFF)).astype(jnp.float32) - _BIAS
    mantissa = (bits & np.uint32(2**_MANTISSA_BITS - 1)).astype(jnp.float32)
    return sign * (1 + mantissa * 2.0**-_MANTISSA_BITS) * jnp.exp2(exponent)
