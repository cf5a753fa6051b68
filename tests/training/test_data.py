"""Data as named arrays: reading, matching with inputs, cutting into batches, writing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from onnxtrain.errors import InputError
from onnxtrain.graph.combine import DataInput
from onnxtrain.graph.model import TensorType
from onnxtrain.training.data import (
    Dataset,
    choose_batch_size,
    fixed_batch_size,
    match_inputs,
    read_npz,
    write_npz,
)

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)


def an_input(name: str, *shape: int | str | None, dtype: np.dtype = FLOAT, required: bool = True) -> DataInput:
    return DataInput(name, TensorType(dtype, shape), required)


IMAGES = an_input("images", "N", 3)
LABELS = an_input("labels", "N", dtype=INT)


def test_arrays_come_back_from_a_file_as_they_were_written(tmp_path: Path) -> None:
    arrays = {"x": np.arange(6.0).reshape(3, 2), "file": np.array([1, 2, 3]), "words": np.array(["a", "bc", ""])}
    write_npz(tmp_path / "data.npz", arrays)
    read = read_npz(tmp_path / "data.npz")
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (ml_dtypes.bfloat16, np.float32),
        (ml_dtypes.float8_e4m3fn, np.float32),
        (ml_dtypes.int4, np.int8),
        (ml_dtypes.uint4, np.uint8),
        (np.float16, np.float16),
        (np.bool_, np.bool_),
    ],
)
def test_types_that_numpy_files_do_not_know_are_widened_without_loss(tmp_path: Path, dtype: type, stored: type) -> None:
    array = np.array([0, 1, 3]).astype(dtype)
    write_npz(tmp_path / "data.npz", {"x": array})
    read = read_npz(tmp_path / "data.npz")["x"]
    assert read.dtype == stored
    np.testing.assert_array_equal(read, array.astype(stored))


def test_text_without_a_width_is_written_as_text(tmp_path: Path) -> None:
    write_npz(tmp_path / "data.npz", {"words": np.array(["a", "bcd"], dtype=object)})
    assert read_npz(tmp_path / "data.npz")["words"].tolist() == ["a", "bcd"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_npz(tmp_path / "data.npz", {"x": np.ones(2)})
    no_tensor = np.zeros(2, dtype=[("a", np.int32), ("b", np.float32)])
    with pytest.raises(TypeError):
        write_npz(tmp_path / "data.npz", {"x": np.zeros(2), "y": no_tensor})
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]
    np.testing.assert_array_equal(read_npz(tmp_path / "data.npz")["x"], np.ones(2))


def test_a_file_that_is_no_archive_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"not an archive")
    with pytest.raises(InputError, match=r"data\.npz is no \.npz archive"):
        read_npz(tmp_path / "data.npz")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "data.npz")


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match=r"Array 'x' of .* cannot be read"):
        read_npz(tmp_path / "data.npz")


def test_an_entry_that_is_no_array_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(InputError, match="is no array"):
        read_npz(tmp_path / "data.npz")


def test_arrays_are_matched_with_inputs_by_name() -> None:
    data = {"labels": np.zeros(5, np.int64), "images": np.zeros((5, 3), np.float32)}
    dataset = match_inputs(data, [IMAGES, LABELS], source="digits.npz")
    assert (list(dataset.arrays), dataset.size) == (["images", "labels"], 5)


def test_a_missing_and_an_unknown_name_are_reported_together_with_the_closest_ones() -> None:
    data = {"image": np.zeros((5, 3), np.float32), "labels": np.zeros(5, np.int64)}
    with pytest.raises(InputError) as caught:
        match_inputs(data, [IMAGES, LABELS], source="digits.npz")
    message = str(caught.value)
    assert "There is no array 'images' in digits.npz. Did you mean 'image'?" in message
    assert "The array 'image' in digits.npz feeds no input. Did you mean 'images'?" in message
    assert "'images': float32[N, 3], 'labels': int64[N]" in message
    assert "'image': float32[5, 3]" in message


def test_an_input_with_a_default_may_be_absent() -> None:
    dataset = match_inputs(
        {"images": np.zeros((5, 3))}, [IMAGES, an_input("scale", 1, required=False)], source="the data"
    )
    assert list(dataset.arrays) == ["images"]


def test_spare_arrays_are_left_aside_where_they_may_be_there() -> None:
    data = {"images": np.zeros((5, 3)), "labels": np.zeros(7)}
    assert match_inputs(data, [IMAGES], source="the data", spare=True).size == 5
    with pytest.raises(InputError, match="The array 'labels' in the data feeds no input"):
        match_inputs(data, [IMAGES], source="the data")


def test_a_spare_array_may_be_a_misspelt_input_as_long_as_one_is_not_fed() -> None:
    scale = an_input("scale", 1, required=False)
    with pytest.raises(InputError, match=r"The array 'scales' in the data feeds no input\. Did you mean 'scale'\?"):
        match_inputs({"images": np.zeros((5, 3)), "scales": np.ones(1)}, [IMAGES, scale], source="the data", spare=True)


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match=r"differ in length: 'images': float64\[5, 3\], 'labels': float64\[6\]"):
        match_inputs({"images": np.zeros((5, 3)), "labels": np.zeros(6)}, [IMAGES, LABELS], source="the data")


@pytest.mark.parametrize("shape", [(0, 3), ()])
def test_data_without_examples_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="There are no examples in the data"):
        match_inputs({"images": np.zeros(shape)}, [IMAGES], source="the data")


def test_batches_hold_every_example_once_in_the_order_given() -> None:
    dataset = Dataset({"x": np.arange(10), "rate": np.array(0.5)}, 10)
    order = np.random.default_rng(0).permutation(10)
    batches = list(dataset.batches(4, order))
    assert [count for count, _ in batches] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([batch["x"] for _, batch in batches]), order)
    assert all(batch["rate"] == 0.5 for _, batch in batches)


def test_without_an_order_batches_are_views_of_the_rows_as_they_stand() -> None:
    x = np.arange(5)
    batches = [batch["x"] for _, batch in Dataset({"x": x}, 5).batches(2)]
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert all(np.shares_memory(batch, x) for batch in batches)


@pytest.mark.parametrize(
    ("inputs", "fixed"),
    [
        ([IMAGES, LABELS], None),
        ([an_input("x", 4, 3), LABELS], 4),
        ([an_input("x", 4, 3), an_input("y", 4)], 4),
        ([an_input("x", None, 3), an_input("rate")], None),
    ],
)
def test_the_file_may_fix_the_batch_size(inputs: list[DataInput], fixed: int | None) -> None:
    assert fixed_batch_size(inputs) == fixed


@pytest.mark.parametrize(
    ("requested", "inputs", "chosen"),
    [
        (None, [IMAGES], 32),
        (8, [IMAGES], 8),
        (None, [an_input("x", 4, 3)], 4),
        (4, [an_input("x", 4, 3)], 4),
    ],
)
def test_the_batch_size_is_the_one_asked_for_or_fixed_or_the_default(
    requested: int | None, inputs: list[DataInput], chosen: int
) -> None:
    assert choose_batch_size(requested, inputs) == chosen


def test_another_batch_size_than_the_fixed_one_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"batch size is 8, but the model's inputs fix 4(.|\n)*--free-batch"):
        choose_batch_size(8, [an_input("x", 4, 3)])


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="The batch size is 0"):
        choose_batch_size(0, [IMAGES])
