"""Fourier transforms, window functions and the mel scale."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.registry import Array, DType, Float, Int, op
from onnxtrain.lowering.static import widened


@op("DFT")
def dft(input: Array, dft_length: Int | None = None, axis: Int = -2, *, inverse: bool, onesided: bool) -> Array:
    """A one-sided inverse transform gives a real signal, of an even length unless dft_length says otherwise."""
    along = axis % input.ndim
    if along == input.ndim - 1:
        raise OperatorError("The last axis holds real and imaginary parts and cannot be transformed.")
    if not inverse:
        return _spectrum(widened(input), dft_length, along, onesided).astype(input.dtype)
    signal = _as_complex(widened(input))
    if onesided:
        length = dft_length or 2 * (input.shape[along] - 1)
        return jnp.fft.irfft(signal, length, along)[..., None].astype(input.dtype)
    return _as_pairs(jnp.fft.ifft(signal, dft_length, along)).astype(input.dtype)


def _spectrum(signal: Array, length: int | None, axis: int, onesided: bool) -> Array:
    """The transform of a signal whose last axis holds real parts, or real and imaginary ones, in pairs."""
    points: int = signal.shape[axis] if length is None else length
    if signal.shape[-1] == 2:
        spectrum = jnp.fft.fft(_as_complex(signal), points, axis)
        return _as_pairs(_part(spectrum, axis, 0, points // 2 + 1) if onesided else spectrum)
    half = jnp.fft.rfft(signal[..., 0], points, axis)
    if onesided:
        return _as_pairs(half)
    mirrored = jnp.flip(_part(half, axis, 1, (points + 1) // 2), axis).conj()
    return _as_pairs(jnp.concatenate([half, mirrored], axis))


def _part(x: Array, axis: int, start: int, stop: int) -> Array:
    return lax.slice_in_dim(x, start, stop, axis=axis)


def _as_complex(x: Array) -> Array:
    real = x[..., 0]
    return lax.complex(real, x[..., 1] if x.shape[-1] == 2 else jnp.zeros_like(real))


def _as_pairs(x: Array) -> Array:
    return jnp.stack([x.real, x.imag], -1)


@op("STFT")
def stft(
    signal: Array,
    frame_step: Int,
    window: Array | None = None,
    frame_length: Int | None = None,
    *,
    onesided: bool,
) -> Array:
    total = signal.shape[1]
    length = frame_length or (total if window is None else window.shape[0])
    starts = np.arange(0, total - length + 1, frame_step)
    frames = widened(signal)[:, starts[:, None] + np.arange(length)]
    if window is not None:
        frames = frames * widened(window)[:, None]
    return _spectrum(frames, length, 2, onesided).astype(signal.dtype)


@op("HannWindow")
def hann_window(size: Int, *, output_datatype: DType, periodic: bool) -> np.ndarray:
    return _cosines(size, (0.5, -0.5), periodic).astype(output_datatype)


@op("HammingWindow")
def hamming_window(size: Int, *, output_datatype: DType, periodic: bool) -> np.ndarray:
    return _cosines(size, (25 / 46, -21 / 46), periodic).astype(output_datatype)


@op("BlackmanWindow")
def blackman_window(size: Int, *, output_datatype: DType, periodic: bool) -> np.ndarray:
    return _cosines(size, (0.42, -0.5, 0.08), periodic).astype(output_datatype)


def _cosines(size: int, shares: tuple[float, ...], periodic: bool) -> np.ndarray:
    """A sum of cosines: the first of no period over the window, the second of one, and so on."""
    turns = 2 * np.pi * np.arange(size) / max(size if periodic else size - 1, 1)
    return sum((share * np.cos(number * turns) for number, share in enumerate(shares)), np.zeros(size))


@op("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Int,
    dft_length: Int,
    sample_rate: Int,
    lower_edge_hertz: Float,
    upper_edge_hertz: Float,
    *,
    output_datatype: DType,
) -> np.ndarray:
    """The edges of the bands lie a step apart on the mel scale; the highest lies one step below the upper edge."""
    low, high = (2595 * np.log10(1 + edge / 700) for edge in (lower_edge_hertz, upper_edge_hertz))
    mels = low + np.arange(num_mel_bins + 2) * (high - low) / (num_mel_bins + 2)
    hertz = 700 * np.expm1(mels / 2595 * np.log(10))
    edges = ((dft_length + 1) * hertz // sample_rate).astype(np.int64)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    bins = np.arange(dft_length // 2 + 1)[:, None]
    rising = np.where(centre > left, (bins - left) / np.maximum(centre - left, 1), 1)
    falling = (right - bins) / np.maximum(right - centre, 1)
    weights = np.where((bins >= left) & (bins <= centre), rising, 0)
    return np.where((bins >= centre) & (bins < right), falling, weights).astype(output_datatype)
