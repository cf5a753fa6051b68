"""What is written is what was read, with other values, and a file is replaced as a whole or not at all."""

from __future__ import annotations

import itertools
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import dtypes
from onnxtrain.dtypes import ElementType
from onnxtrain.errors import ExternalDataError, ModelError, ModelWarning, StateError
from onnxtrain.graph import external_data
from onnxtrain.graph.model import Model
from onnxtrain.graph.read import read_model
from onnxtrain.graph.write import inference_only, save_proto, with_values
from tests.graph.test_external_data import model_with_tensors_everywhere
from tests.graph.test_read import NUMBERS, every_pattern, function_model, model_of, typed_tensor
from tests.graph.training_models import (
    ALL_TRAINING_MODELS,
    TRAINING_DOMAIN,
    floats,
    linear_with_sgd,
    mlp_with_momentum,
    tensor,
    training_info,
    training_model,
    training_node,
)

SMALL = 6000  # bytes that only the model without its tensors fits into


def serialized(proto: onnx.ModelProto) -> bytes:
    return proto.SerializeToString(deterministic=True)


def values_of(model: Model) -> dict[str, np.ndarray]:
    """Every stored value that writing can change."""
    values: dict[str, np.ndarray] = {}
    for graph in (model.graph, *(info.algorithm for info in model.training_info)):
        values.update(graph.initializers)
    return values


@pytest.mark.spec("M-08")
@pytest.mark.parametrize("build", ALL_TRAINING_MODELS)
def test_writing_the_values_that_were_read_changes_nothing(build: Callable[[], onnx.ModelProto]) -> None:
    model = read_model(build())
    assert serialized(with_values(model, values_of(model), {})) == serialized(build())


@pytest.mark.spec("M-08")
def test_writing_the_values_that_were_read_changes_nothing_in_real_models(models_dir: Path) -> None:
    for path in sorted(models_dir.glob("*/model.onnx")):
        model = read_model(path)
        written = with_values(model, values_of(model), {})
        assert serialized(written) == serialized(onnx.load(path)), path.parent.name


@pytest.mark.spec("M-04", "M-08")
@pytest.mark.parametrize(
    "encode", [typed_tensor, lambda _, value: numpy_helper.from_array(value)], ids=["typed", "raw"]
)
@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.name)
def test_a_new_value_keeps_element_type_encoding_and_bits(
    kind: ElementType, encode: Callable[[ElementType, np.ndarray], TensorProto]
) -> None:
    value = every_pattern(kind)
    old, new = (model_of(initializer=[named(encode(kind, one))]) for one in (np.zeros_like(value), value))
    assert serialized(with_values(read_model(old), {"w": value}, {})) == serialized(new)


def named(proto: TensorProto) -> TensorProto:
    proto.name = "w"
    return proto


@pytest.mark.spec("M-04", "M-08")
def test_strings_are_written_as_they_were_read() -> None:
    proto = model_of(initializer=[TensorProto(name="w", data_type=8, dims=[2], string_data=["é".encode(), b"\xff"])])
    model = read_model(proto)
    assert serialized(with_values(model, {"w": model.graph.initializers["w"]}, {})) == serialized(proto)
    written = with_values(model, {"w": np.array(["a", "b"])}, {})
    assert list(written.graph.initializer[0].string_data) == [b"a", b"b"]


@pytest.mark.spec("M-08")
def test_only_the_named_initializers_change() -> None:
    proto = annotated_model()
    model = read_model(proto)
    weight = np.full((3, 2), 7, np.float32)
    rate = np.array(0.5, np.float32)
    written = with_values(model, {"W": weight, "learning_rate": rate}, {"onnxtrain.step": "3", "author": "b"})

    expected = annotated_model()
    expected.graph.initializer[0].raw_data = weight.tobytes()
    expected.training_info[0].algorithm.initializer[0].raw_data = rate.tobytes()
    expected.metadata_props[0].value = "b"
    expected.metadata_props.add(key="onnxtrain.step", value="3")
    assert serialized(written) == serialized(expected)
    assert serialized(model.proto) == serialized(proto), "the model itself must not change"


def annotated_model() -> onnx.ModelProto:
    """A training model that uses the fields that onnxtrain has no use for."""
    proto = linear_with_sgd()
    proto.producer_name, proto.doc_string, proto.model_version = "someone", "what it is", 12
    proto.metadata_props.add(key="author", value="a")
    proto.configuration.add(name="two devices", num_devices=2)
    proto.graph.node[0].device_configurations.add(configuration_id="two devices")
    proto.graph.initializer[0].doc_string = "the weights"
    proto.graph.initializer[0].metadata_props.add(key="k", value="v")
    proto.graph.value_info.append(floats("W_unused", 2))
    annotation = proto.graph.quantization_annotation.add(tensor_name="W")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    proto.functions.extend(function_model().functions)
    proto.graph.initializer.append(tensor("shape", [1, 2], np.int64))
    return proto


@pytest.mark.spec("T-15", "M-08")
def test_a_variable_that_two_algorithms_share_is_written_in_both() -> None:
    graph = helper.make_graph([], "g", [], [])
    infos = [training_info(helper.make_graph([], "a", [], [], [tensor("m", [1.0])]), {}) for _ in range(2)]
    written = with_values(read_model(training_model(graph, *infos)), {"m": np.array([2], np.float32)}, {})
    stored = [info.algorithm.initializer[0] for info in written.training_info]
    assert [numpy_helper.to_array(one).tolist() for one in stored] == [[2], [2]]


@pytest.mark.spec("T-14", "M-08")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("W", np.zeros((3, 2)), "stored as FLOAT of shape .* new value is DOUBLE"),
        ("W", np.zeros((2, 3), np.float32), r"shape \[3, 2\], but .* shape \[2, 3\]"),
        ("learning_rate", np.zeros(1, np.float32), r"shape \[\], but .* shape \[1\]"),
        ("V", np.zeros(1, np.float32), "has the name 'V'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, value: np.ndarray, message: str) -> None:
    model = read_model(linear_with_sgd())
    with pytest.raises(StateError, match=message):
        with_values(model, {name: value}, {})
    if name != "learning_rate":  # an inference model has no such initializer
        with pytest.raises(StateError, match=message):
            inference_only(model, {name: value})


@pytest.mark.spec("T-18")
def test_a_sparse_state_variable_becomes_dense_and_says_so() -> None:
    values = tensor("s", [5.0])
    values.doc_string = "sparse weights"
    proto = model_of(sparse_initializer=[helper.make_sparse_tensor(values, tensor("", [1], np.int64), [3])])
    model = read_model(proto)
    assert serialized(with_values(model, {}, {})) == serialized(proto)
    with pytest.warns(ModelWarning, match="sparse initializer 's' of graph 'g'") as caught:
        written = with_values(model, {"s": np.array([1, 2, 3], np.float32)}, {})
    assert caught[0].filename == __file__
    (dense,) = written.graph.initializer
    assert (dense.name, dense.doc_string, len(written.graph.sparse_initializer)) == ("s", "sparse weights", 0)
    assert numpy_helper.to_array(dense).tolist() == [1, 2, 3]


@pytest.mark.spec("T-19")
@pytest.mark.parametrize(("version", "expected"), [(6, 7), (9, 9)])
def test_a_training_model_is_written_with_ir_version_7_at_least(version: int, expected: int) -> None:
    proto = linear_with_sgd()
    proto.ir_version = version
    if version < 7:
        with pytest.warns(ModelWarning):
            model = read_model(proto)
    else:
        model = read_model(proto)
    assert with_values(model, {}, {}).ir_version == expected
    assert inference_only(model, {}).ir_version == version


@pytest.mark.spec("M-08")
def test_an_inference_model_has_new_values_and_no_training_information() -> None:
    proto = annotated_model()
    proto.metadata_props.add(key="onnxtrain.step", value="3")
    weight = np.full((3, 2), 7, np.float32)
    written = inference_only(read_model(proto), {"W": weight, "learning_rate": np.array(0.5, np.float32)})

    expected = annotated_model()
    del expected.training_info[:]
    del expected.opset_import[1]
    expected.graph.initializer[0].raw_data = weight.tobytes()
    assert serialized(written) == serialized(expected)


def test_functions_that_only_training_calls_are_left_out_of_an_inference_model() -> None:
    def function(name: str, *calls: str) -> onnx.FunctionProto:
        nodes = [helper.make_node(call, ["x"], ["y"], domain="local") for call in calls]
        opsets = [helper.make_opsetid("local", 1)]
        return helper.make_function("local", name, ["x"], ["y"], nodes, opsets)

    def call(name: str) -> onnx.NodeProto:
        return helper.make_node(name, ["x"], ["y"], domain="local")

    proto = training_model(
        helper.make_graph([call("Shared")], "g", [], []),
        training_info(helper.make_graph([call("Shared"), call("Training")], "a", [], []), {}),
        functions=[function("Inner"), function("Training", "Inner"), function("Shared"), function("Unused")],
    )
    written = inference_only(read_model(proto), {})
    assert [one.name for one in written.functions] == ["Shared", "Unused"]


def test_the_training_domain_stays_imported_where_inference_uses_it() -> None:
    gradient = training_node("Gradient", ["x"], ["dx"], xs=["x"], y="y")
    proto = training_model(helper.make_graph([gradient], "g", [], []))
    imports = [entry.domain for entry in inference_only(read_model(proto), {}).opset_import]
    assert TRAINING_DOMAIN in imports


@pytest.mark.parametrize("limit", [2**31 - 1, SMALL], ids=["inline", "external"])
def test_a_saved_model_is_read_back_as_it_was(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = mlp_with_momentum(hidden=200)
    before = serialized(proto)
    monkeypatch.chdir(tmp_path)
    save_proto(proto, "model.onnx", limit=limit)
    assert serialized(proto) == before, "the given model must not change"
    assert serialized(read_model("model.onnx").proto) == before
    assert len(os.listdir(tmp_path)) == (1 if limit > SMALL else 2)


def test_large_tensors_of_every_place_move_out_of_a_model_that_is_too_large(tmp_path: Path) -> None:
    value = np.arange(6 * 100, dtype=np.float32).reshape(6, 100)

    def make(name: str) -> TensorProto:
        proto = tensor(name, value)
        if len(name) % 2:
            proto = typed_tensor(dtypes.from_dtype(value.dtype), value)
            proto.name = name
        return proto

    proto = model_with_tensors_everywhere(make)
    for one in external_data.tensor_protos(proto):  # the sparse tensors
        if list(one.dims) == [6] and one.data_type == TensorProto.FLOAT:
            one.dims[:] = [600]
    for holder in (proto.graph.sparse_initializer[0], proto.graph.node[-1].attribute[0].sparse_tensor):
        holder.dims[:] = [600]
        holder.indices.CopyFrom(tensor("", range(600), np.int64))
    save_proto(proto, tmp_path / "model.onnx", limit=20_000)

    written = onnx.ModelProto.FromString((tmp_path / "model.onnx").read_bytes())
    outside = [one for one in external_data.tensor_protos(written) if one.data_location == TensorProto.EXTERNAL]
    assert {one.name for one in external_data.tensor_protos(proto)} == {one.name for one in outside}
    entries = [{entry.key: entry.value for entry in one.external_data} for one in outside]
    assert len({entry["location"] for entry in entries}) == 1
    assert all(int(entry["offset"]) % 4096 == 0 for entry in entries)
    model = read_model(tmp_path / "model.onnx")
    np.testing.assert_array_equal(model.training_info[0].algorithm.initializers["algorithm_weight"], value)
    np.testing.assert_array_equal(model.graph.initializers["sparse_weight"], value.reshape(-1))
    np.testing.assert_array_equal(model.functions["local", "f", ""].defaults["default"], value)


def test_a_model_with_external_data_survives_being_saved_onto_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = mlp_with_momentum(hidden=200)
    for round_ in range(3):
        proto = with_values(read_model(proto), {"W1": np.full((4, 200), round_, np.float32)}, {})
        save_proto(proto, path, limit=SMALL)
        reread = read_model(path)
        save_proto(reread.proto, path, limit=SMALL)
        assert serialized(read_model(path).proto) == serialized(proto)
        assert len(os.listdir(tmp_path)) == 2, "data of a replaced model is removed"
    save_proto(proto, path)
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_data_that_another_program_wrote_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        mlp_with_momentum(hidden=200), path, save_as_external_data=True, location="model.onnx.data", size_threshold=0
    )
    proto = read_model(path).proto
    save_proto(proto, path, limit=SMALL)
    assert (tmp_path / "model.onnx.data").exists()
    assert serialized(read_model(path).proto) == serialized(mlp_with_momentum(hidden=200))


def test_a_model_that_is_too_large_even_without_its_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="protobuf takes no more than 100 bytes"):
        save_proto(linear_with_sgd(), tmp_path / "model.onnx", limit=100)
    assert os.listdir(tmp_path) == []


@pytest.mark.spec("M-06")
def test_a_model_whose_external_data_was_not_loaded_is_not_written(tmp_path: Path) -> None:
    proto = model_with_tensors_everywhere(
        lambda name: TensorProto(name=name, data_type=1, dims=[6], data_location=TensorProto.EXTERNAL)
    )
    with pytest.raises(ExternalDataError, match="was not loaded"):
        save_proto(proto, tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", [0o640, 0o444])
def test_permissions_of_the_replaced_file_are_kept(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    path.chmod(mode)
    save_proto(linear_with_sgd(), path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    (tmp_path / "plain").write_bytes(b"")
    save_proto(linear_with_sgd(), tmp_path / "new.onnx")
    assert (tmp_path / "new.onnx").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "blob"
    target.write_bytes(b"kept")
    (tmp_path / "model.onnx").symlink_to(target)
    save_proto(linear_with_sgd(), tmp_path / "model.onnx")
    assert target.read_bytes() == b"kept"
    assert not (tmp_path / "model.onnx").is_symlink()


@pytest.mark.parametrize("limit", [2**31 - 1, SMALL], ids=["inline", "external"])
def test_a_save_that_fails_anywhere_leaves_the_older_one(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    save_proto(mlp_with_momentum(hidden=200, seed=1), path, limit=limit)
    files = set(os.listdir(tmp_path))
    failures = 0
    for after in itertools.count():
        with monkeypatch.context() as patch:
            steps = failing_after(after)
            for name in ("fsync", "chmod", "replace"):
                patch.setattr(os, name, stepped(steps, getattr(os, name)))
            try:
                save_proto(mlp_with_momentum(hidden=200, seed=2), path, limit=limit)
                break
            except OSError:
                failures += 1
        saved = serialized(read_model(path).proto)
        if saved != serialized(mlp_with_momentum(hidden=200, seed=2)):  # unless it failed after the replacement
            assert saved == serialized(mlp_with_momentum(hidden=200, seed=1))
            assert set(os.listdir(tmp_path)) == files
    assert failures == (4 if limit > SMALL else 6)
    assert serialized(read_model(path).proto) == serialized(mlp_with_momentum(hidden=200, seed=2))


def failing_after(count: int) -> Iterator[None]:
    for _ in range(count):
        yield
    raise OSError("the disk is full")


def stepped(steps: Iterator[None], function: Callable[..., object]) -> Callable[..., object]:
    def call(*arguments: object, **options: object) -> object:
        next(steps, None)
        return function(*arguments, **options)

    return call


SAVING_FOREVER = """
import itertools, sys
import numpy as np
from onnx import helper, numpy_helper
from onnxtrain.graph.write import save_proto

for number in itertools.count():
    weights = [numpy_helper.from_array(np.full(400_000, number, np.float32), name) for name in "ab"]
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=weights), ir_version=10)
    save_proto(model, sys.argv[1], limit=int(sys.argv[2]))
    print(number, flush=True)
"""


@pytest.mark.parametrize("limit", [2**31 - 1, SMALL], ids=["inline", "external"])
def test_a_process_killed_while_saving_leaves_the_last_save_whole(limit: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    chance = random.Random(limit)
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVING_FOREVER, str(path), str(limit)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(chance.uniform(0, 0.1))
        child.kill()
        reported = [int(line) for line in child.communicate()[0].split()]
        model = read_model(path)
        (number,) = {float(value) for weight in model.graph.initializers.values() for value in np.unique(weight)}
        assert number >= max(reported, default=0)
