"""Data as named arrays: read from `.npz` files, compared with the inputs of a model, cut into batches."""

from __future__ import annotations

import difflib
import os
import secrets
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import jax
import numpy as np

from onnxtrain.dtypes import is_float, name_of
from onnxtrain.errors import InputError
from onnxtrain.graph.combine import DataInput, describe_type
from onnxtrain.graph.model import TensorType
from onnxtrain.inputs import check_inputs

if TYPE_CHECKING:
    from onnxtrain.session import TrainingSession

Arrays = Mapping[str, np.ndarray]

DEFAULT_BATCH_SIZE = 32


@dataclass(frozen=True)
class Dataset:
    """Arrays by input name, with one example in each row; an array of rank 0 is fed whole with every batch.

    Attributes:
      arrays: the arrays by the name of the input that they feed.
      size: how many examples there are.
    """

    arrays: Arrays
    size: int

    def take(self, rows: np.ndarray | slice) -> dict[str, np.ndarray]:
        """The examples that stand in these rows, ready to be fed."""
        return {name: array[rows] if array.ndim else array for name, array in self.arrays.items()}

    def batches(self, batch_size: int, order: np.ndarray | None = None) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """(number of examples, batch) in this order of rows, or as they stand; the last batch may be smaller."""
        total = self.size if order is None else len(order)
        for start in range(0, total, batch_size):
            stop = min(start + batch_size, total)
            yield stop - start, self.take(slice(start, stop) if order is None else order[start:stop])


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads every array of an `.npz` file.

    Raises:
      OSError: the file cannot be read.
      InputError: it is no `.npz` archive, or holds pickled Python objects, which are never loaded.
    """
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise InputError(
                f"{path} is no .npz archive. "
                "Write one with numpy.savez: one array for each input of the model, by the input's name."
            )
    with np.load(path, allow_pickle=False) as archive:
        return {name: _read_array(archive, name, path) for name in archive.files}


def _read_array(archive: Mapping[str, np.ndarray], name: str, path: str | os.PathLike[str]) -> np.ndarray:
    try:
        array = archive[name]
    except (ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"Array {name!r} of {path} cannot be read: {error}. "
            "Save plain numeric arrays, or text with a dtype such as '<U16', rather than Python objects."
        ) from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"Entry {name!r} of {path} is no array. Write the file with numpy.savez.")
    return array


def write_npz(path: str | os.PathLike[str], arrays: Arrays) -> None:
    """Writes arrays as an `.npz` file, whole or not at all.

    What numpy's file format has no type for is widened: small floats to float32, 4-bit and 2-bit integers to 8 bits.
    """
    temporary = Path(f"{os.fspath(path)}.{secrets.token_hex(4)}.tmp")
    try:
        with zipfile.ZipFile(temporary, "x") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, _storable(array), allow_pickle=False)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _storable(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "O":
        return array.astype(np.str_)
    if array.dtype.isbuiltin == 1 or array.dtype.kind in "SU":
        return array
    if is_float(array.dtype):
        return array.astype(np.float32)
    return array.astype(np.uint8 if name_of(array.dtype).startswith("u") else np.int8)


def inference_inputs(session: TrainingSession) -> tuple[DataInput, ...]:
    """The inputs that the inference graph is fed."""
    return tuple(cast(Mapping[str, DataInput], session.program.infer_inputs).values())


def training_inputs(session: TrainingSession) -> tuple[DataInput, ...]:
    """The inputs that a whole step is fed: those of the inference graph and of every algorithm.

    Raises:
      ModelError: the model has no training information.
    """
    return tuple(cast(Mapping[str, DataInput], session.program.step_inputs()).values())


def match_inputs(arrays: Arrays, inputs: Sequence[DataInput], *, source: str, spare: bool = False) -> Dataset:
    """The arrays that feed these inputs, as a data set.

    Args:
      arrays: one array for each input, by name.
      inputs: what is fed.
      source: what the arrays are called in messages, such as the file that they came from.
      spare: whether other arrays may be there once every input is fed, such as labels where nothing is learned.

    Raises:
      InputError: a required array is missing, one is not an input, or they differ in length.
    """
    _check_names(arrays, inputs, source, spare)
    wanted = [value.name for value in inputs if value.name in arrays]
    chosen = {name: np.asarray(arrays[name]) for name in wanted}
    return Dataset(chosen, _common_length(chosen, source))


def check_first_batch(session: TrainingSession, dataset: Dataset, batch_size: int) -> None:
    """Makes sure, before any work, that batches have the shapes and element types that a step takes.

    Raises:
      InputError: they do not.
    """
    with jax.enable_x64(True):  # as the session checks them: without, int32 would pass for int64
        check_inputs(session.program.step_inputs(), dataset.take(slice(0, batch_size)))


def _check_names(arrays: Arrays, inputs: Sequence[DataInput], source: str, spare: bool) -> None:
    unfed = [value for value in inputs if value.name not in arrays]
    missing = [value.name for value in unfed if value.required]
    unknown = [name for name in arrays if name not in {value.name for value in inputs}]
    if not missing and (not unknown or (spare and not unfed)):
        return
    options = [value.name for value in unfed]
    lines = [f"There is no array {name!r} in {source}.{_did_you_mean(name, unknown)}" for name in missing]
    lines += [f"The array {name!r} in {source} feeds no input.{_did_you_mean(name, options)}" for name in unknown]
    needed = ", ".join(f"{value.name!r}: {describe_type(value.type)}" for value in inputs)
    lines.append(f"The model is fed {needed or 'nothing'}; the arrays are {_describe(arrays)}.")
    lines.append("Name each array after its input: numpy.savez(path, **{input_name: array}).")
    raise InputError("\n".join(lines))


def _did_you_mean(name: str, others: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(others), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _common_length(arrays: Arrays, source: str) -> int:
    lengths = {name: len(array) for name, array in arrays.items() if array.ndim}
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"The arrays of {source} differ in length: {_describe(arrays)}.\n"
            "The first axis counts the examples, so it is equally long in all of them."
        )
    size = next(iter(lengths.values()), 0)
    if not size:
        raise InputError(f"There are no examples in {source}: {_describe(arrays)}. The first axis counts the examples.")
    return size


def _describe(arrays: Arrays) -> str:
    described = (f"{name!r}: {name_of(array.dtype)}{list(array.shape)}" for name, array in arrays.items())
    return ", ".join(described) or "none"


def fixed_batch_size(inputs: Iterable[DataInput]) -> int | None:
    """The number of examples that the file fixes for every batch, or None where it leaves them open."""
    sizes = {value.type.shape[0] for value in inputs if isinstance(value.type, TensorType) and value.type.shape}
    fixed = [size for size in sizes if isinstance(size, int)]
    return fixed[0] if len(fixed) == 1 else None


def choose_batch_size(requested: int | None, inputs: Iterable[DataInput]) -> int:
    """The batch size asked for, or the one that the file fixes, or the default.

    Raises:
      InputError: the file fixes another one than was asked for.
    """
    fixed = fixed_batch_size(inputs)
    if requested is not None and requested < 1:
        raise InputError(f"The batch size is {requested}. It counts examples: give 1 or more.")
    if requested is not None and fixed is not None and requested != fixed:
        raise InputError(
            f"The batch size is {requested}, but the model's inputs fix {fixed} examples a batch.\n"
            f"Use {fixed}, or free the batch in the inference model: onnxtrain prepare MODEL -o OUT --free-batch."
        )
    return requested or fixed or DEFAULT_BATCH_SIZE


def whole_batches(size: int, batch_size: int, inputs: Iterable[DataInput]) -> int:
    """How many of the examples are used: all, or those that fill whole batches where the file fixes their size.

    Raises:
      InputError: not even one batch can be filled.
    """
    left_out = size % batch_size if fixed_batch_size(inputs) else 0
    if left_out == size:
        raise InputError(
            f"There are {size} examples, but the model's inputs fix {batch_size} a batch. Give at least {batch_size}, "
            "or free the batch in the inference model: onnxtrain prepare MODEL -o OUT --free-batch."
        )
    if left_out:
        warnings.warn(
            f"The model's inputs fix {batch_size} examples a batch, so {left_out} of the {size} examples are left out. "
            "Free the batch to use them all: onnxtrain prepare MODEL -o OUT --free-batch.",
            stacklevel=3,
        )
    return size - left_out
