"""What all tests share: strict dtype promotion, 64-bit types on request, and where real models and data lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers already take every core: more threads in each only get in each other's way.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax


@pytest.fixture(autouse=True)
def strict_dtype_promotion() -> Iterator[None]:
    """ONNX has no implicit casts, so JAX may not make one either."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit types inside JAX, as a session has them during its own calls."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder with real models; the environment variable ONNXTRAIN_MODELS names it."""
    return _folder("ONNXTRAIN_MODELS", "a folder with real models")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data sets; the environment variable ONNXTRAIN_DATA names it."""
    return _folder("ONNXTRAIN_DATA", "a folder with real data sets")


def _folder(variable: str, meaning: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"set {variable} to {meaning}")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"{variable} is {value!r}, which is no folder")
    return folder.resolve()
