"""Tensors beside the model: read wherever in the model they belong, and never from where they should not be."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxtrain.errors import ExternalDataError, ModelError
from onnxtrain.graph import external_data
from onnxtrain.graph.external_data import tensor_protos
from onnxtrain.graph.read import read_model
from tests.graph.training_models import floats, tensor, training_info, training_model

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def external(name: str = "W", **entries: str) -> TensorProto:
    """A float tensor [2, 3] whose data stands elsewhere."""
    proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        proto.external_data.add(key=key, value=value)
    return proto


def write_model(folder: Path, *initializers: TensorProto) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    graph = helper.make_graph([], "g", [], [], initializer=initializers)
    path.write_bytes(helper.make_model(graph, ir_version=10).SerializeToString())
    return path


def write_data(path: Path, padding: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(padding) + VALUES.tobytes())
    return path


def read_weight(path: Path | str) -> np.ndarray:
    return read_model(path).graph.initializers["W"]


SHA1 = hashlib.sha1(VALUES.tobytes()).hexdigest()


@pytest.mark.spec("M-06")
@pytest.mark.parametrize(
    ("entries", "padding"),
    [
        ({}, 0),
        ({"offset": "0", "length": "24"}, 0),
        ({"offset": "4096"}, 4096),
        ({"checksum": SHA1}, 0),
        ({"checksum": SHA1.upper()}, 0),
        ({"__class__": "os", "unknown": "ignored"}, 0),
    ],
    ids=str,
)
def test_location_offset_length_and_checksum_are_honoured(
    entries: dict[str, str], padding: int, tmp_path: Path
) -> None:
    write_data(tmp_path / "data" / "weights.bin", padding)
    path = write_model(tmp_path, external(location="data/weights.bin", **entries))
    np.testing.assert_array_equal(read_weight(path), VALUES)


@pytest.mark.spec("M-06")
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "-1"}, "offset '-1'"),
        ({"offset": "1"}, "covers the bytes 1 to 25 of a file that has 24"),
        ({"offset": "9" * 18}, "of a file that has 24"),
        ({"offset": "9" * 5000}, "must be a whole number"),
        ({"offset": "٣"}, "must be a whole number"),
        ({"length": "-24"}, "length '-24'"),
        ({"length": "0x18"}, "length '0x18'"),
        ({"length": "12"}, "needs 24 bytes, but its length is 12"),
        ({"length": "99999999999999"}, "needs 24 bytes, but its length is 99999999999999"),
        ({"checksum": "0" * 40}, "declares the SHA1 0000"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_range_or_checksum_that_does_not_fit_is_refused(
    entries: dict[str, str], message: str, tmp_path: Path
) -> None:
    write_data(tmp_path / "weights.bin")
    path = write_model(tmp_path, external(location="weights.bin", **entries))
    with pytest.raises(ExternalDataError, match=message) as caught:
        read_model(path)
    assert "External tensor 'W'" in str(caught.value)
    assert "an initializer of graph" in str(caught.value)


@pytest.mark.spec("M-06")
def test_a_shape_larger_than_the_file_is_refused_before_allocation(tmp_path: Path) -> None:
    write_data(tmp_path / "weights.bin")
    huge = external(location="weights.bin")
    huge.dims[0] = 2**50
    with pytest.raises(ExternalDataError, match="of a file that has 24"):
        read_model(write_model(tmp_path, huge))


@pytest.mark.spec("M-06")
@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "must be a path relative"),
        ("../secret", "outside the model's folder"),
        ("a/../../secret", "outside the model's folder"),
        ("../../../../../../etc/passwd", "outside the model's folder"),
        ("/etc/passwd", "must be a path relative"),
        ("C:\\secret", "must be a path relative"),
        ("\\\\server\\secret", "must be a path relative"),
        ("nul\0byte", "must be a path relative"),
        ("..", "outside the model's folder"),
        (".", "not a regular file"),
        ("pipe", "not a regular file"),
        ("missing", "cannot be read from"),
    ],
)
def test_a_location_outside_the_folder_or_without_a_file_is_refused(
    location: str, message: str, tmp_path: Path
) -> None:
    write_data(tmp_path / "secret")
    path = write_model(tmp_path / "model", external(location=location))
    (path.parent / "a").mkdir()
    os.mkfifo(path.parent / "pipe")
    with pytest.raises(ExternalDataError, match=message):
        read_model(path)


@pytest.mark.spec("M-06")
@pytest.mark.parametrize("location", ["link", "folder/secret"])
def test_a_link_that_leads_outside_is_refused(location: str, tmp_path: Path) -> None:
    write_data(tmp_path / "secrets" / "secret")
    path = write_model(tmp_path / "model", external(location=location))
    (path.parent / "link").symlink_to("../secrets/secret")
    (path.parent / "folder").symlink_to("../secrets")
    with pytest.raises(ExternalDataError, match="outside the model's folder"):
        read_model(path)


@pytest.mark.spec("M-06")
def test_a_hard_link_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", external(location="weights.bin"))
    (path.parent / "weights.bin").hardlink_to(write_data(tmp_path / "secret"))
    with pytest.raises(ExternalDataError, match="it is a hard link; copy the file instead"):
        read_model(path)


@pytest.mark.spec("M-06")
@pytest.mark.parametrize("swapped", ["sub", "sub/weights.bin"])
def test_a_link_put_in_place_after_the_check_is_not_followed(
    swapped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path / "secrets" / "weights.bin")
    path = write_model(tmp_path / "model", external(location="sub/weights.bin"))
    write_data(path.parent / "sub" / "weights.bin")
    open_below = external_data._open_below

    def swap_and_open(folder: Path, real: Path) -> int:
        victim = path.parent / swapped
        victim.rename(tmp_path / "moved")
        victim.symlink_to(tmp_path / "secrets" / swapped.removeprefix("sub").lstrip("/"))
        return open_below(folder, real)

    monkeypatch.setattr(external_data, "_open_below", swap_and_open)
    with pytest.raises(ExternalDataError, match="cannot be read from"):
        read_model(path)


@pytest.mark.spec("M-06")
def test_a_cache_of_links_into_one_folder_is_read(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    write_data(blobs / "1f2e")
    write_model(blobs, external(location="model.onnx_data")).rename(blobs / "9a8b")
    snapshot.mkdir(parents=True)
    (snapshot / "model.onnx").symlink_to("../../blobs/9a8b")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/1f2e")
    np.testing.assert_array_equal(read_weight(snapshot / "model.onnx"), VALUES)


@pytest.mark.spec("M-06")
def test_links_inside_the_folder_and_folders_that_are_links_are_read(tmp_path: Path) -> None:
    path = write_model(tmp_path / "real", external(location="sub/../link"))
    write_data(path.parent / "sub" / "weights.bin")
    (path.parent / "link").symlink_to("sub/weights.bin")
    (tmp_path / "alias").symlink_to("real")
    np.testing.assert_array_equal(read_weight(tmp_path / "alias" / "model.onnx"), VALUES)


def test_a_bare_file_name_finds_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path / "weights.bin")
    write_model(tmp_path, external(location="weights.bin"))
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(read_weight("model.onnx"), VALUES)


def test_a_model_in_memory_has_no_folder_to_look_in() -> None:
    graph = helper.make_graph([], "g", [], [], initializer=[external(location="weights.bin")])
    with pytest.raises(ExternalDataError, match=r"'weights\.bin', but the model was given in memory"):
        read_model(helper.make_model(graph, ir_version=10))


def test_strings_and_repeated_entries_are_refused(tmp_path: Path) -> None:
    strings = external(location="weights.bin")
    strings.data_type = TensorProto.STRING
    with pytest.raises(ModelError, match="holds strings"):
        read_model(write_model(tmp_path, strings))
    twice = external(location="weights.bin")
    twice.external_data.add(key="location", value="other.bin")
    with pytest.raises(ModelError, match="gives 'location' of its external data twice"):
        read_model(write_model(tmp_path, twice))


def model_with_tensors_everywhere(make: Callable[[str], TensorProto]) -> onnx.ModelProto:
    """A model with a tensor of `make` in every kind of place that can hold one."""

    def constant(name: str) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value=make(name))

    def sparse(name: str) -> onnx.SparseTensorProto:
        values = make(name)
        values.dims[:] = [6]
        return helper.make_sparse_tensor(values, tensor("", range(6), np.int64), [6])

    branch = helper.make_graph([constant("in_branch")], "branch", [], [floats("in_branch")], [make("branch_weight")])
    graph = helper.make_graph(
        [constant("in_graph"), helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
        "g",
        [],
        [],
        [make("weight")],
        sparse_initializer=[sparse("sparse_weight")],
    )
    parts = [
        helper.make_graph([constant(f"in_{part}")], part, [], [], [make(f"{part}_weight")])
        for part in ("algorithm", "initialization")
    ]
    function = onnx.FunctionProto(name="f", domain="local", output=["in_function"], node=[constant("in_function")])
    function.attribute_proto.append(helper.make_attribute("default", make("default")))
    sparse_constant = helper.make_node("Constant", [], ["z"], sparse_value=sparse("in_sparse_constant"))
    graph.node.append(sparse_constant)
    return training_model(graph, training_info(parts[0], {}, parts[1]), functions=[function])


PLACES = sorted({tensor.name for tensor in tensor_protos(model_with_tensors_everywhere(external)) if tensor.name})


@pytest.mark.spec("M-06")
def test_every_tensor_of_a_model_may_stand_outside(tmp_path: Path) -> None:
    write_data(tmp_path / "weights.bin")
    path = tmp_path / "model.onnx"
    outside = model_with_tensors_everywhere(lambda name: external(name, location="weights.bin"))
    inside = model_with_tensors_everywhere(lambda name: tensor(name, VALUES))
    path.write_bytes(outside.SerializeToString())
    model = read_model(path)
    assert model.proto.SerializeToString(deterministic=True) == inside.SerializeToString(deterministic=True)
    np.testing.assert_array_equal(model.training_info[0].algorithm.initializers["algorithm_weight"], VALUES)
    np.testing.assert_array_equal(model.functions["local", "f", ""].defaults["default"], VALUES)


@pytest.mark.spec("M-06")
@pytest.mark.parametrize("name", PLACES)
def test_a_location_is_checked_wherever_the_tensor_stands(name: str, tmp_path: Path) -> None:
    write_data(tmp_path / "weights.bin")
    path = tmp_path / "model.onnx"
    locations = {name: "../../../etc/passwd"}
    proto = model_with_tensors_everywhere(lambda one: external(one, location=locations.get(one, "weights.bin")))
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ExternalDataError, match=f"'{name}' has the location"):
        read_model(path)
