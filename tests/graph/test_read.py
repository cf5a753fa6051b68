"""What a file says is what the model holds, and a broken file gives one clear error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnxtrain import dtypes
from onnxtrain.dtypes import ElementType
from onnxtrain.errors import ModelError, ModelWarning, UnsupportedError
from onnxtrain.graph.model import (
    AttributeReference,
    Graph,
    MapType,
    Model,
    OptionalType,
    SequenceType,
    SparseTensor,
    TensorType,
)
from onnxtrain.graph.read import read_model
from tests.graph.training_models import ALL_TRAINING_MODELS, TRAINING_DOMAIN, floats, linear_with_sgd, tensor

NUMBERS = [kind for kind in dtypes.ELEMENT_TYPES if kind.bits]


def model_of(*nodes: onnx.NodeProto, **graph: Any) -> onnx.ModelProto:
    """A model of some nodes that need not make sense together."""
    return helper.make_model(helper.make_graph(list(nodes), "g", [], [], **graph), ir_version=10)


def read_initializer(proto: TensorProto) -> np.ndarray:
    proto.name = "w"
    return read_model(model_of(initializer=[proto])).graph.initializers["w"]


def read_attribute(attribute: AttributeProto) -> object:
    node = onnx.NodeProto(op_type="Any", attribute=[attribute])
    return read_model(model_of(node)).graph.nodes[0].attributes[attribute.name]


def every_pattern(kind: ElementType) -> np.ndarray:
    """Every bit pattern of the narrow types, and of the wide ones random patterns, NaNs with a payload included."""
    if kind.name == "BOOL":
        return np.array([[True, False, True]])
    if kind.bits <= 16:
        patterns = np.arange(2**kind.bits, dtype=np.uint8 if kind.bits <= 8 else np.uint16)
        return patterns.view(kind.dtype)[1:].reshape(-1, 3 if kind.bits % 4 else 5)
    patterns = np.random.default_rng(0).integers(0, 256, 30 * kind.bits // 8, np.uint8)
    if kind.dtype.kind in "fc":
        patterns[:4] = [1, 0, 128, 127]  # a signalling NaN, as a float32
    return patterns.view(kind.dtype).reshape(5, 6)


def bits_of(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def typed_tensor(kind: ElementType, value: np.ndarray) -> TensorProto:
    """The value in its typed field; for floating-point types from the bits, as onnx's own way there changes NaNs."""
    proto = TensorProto(data_type=kind.code, dims=value.shape)
    if kind.name in ("FLOAT", "COMPLEX64"):
        payload = value.tobytes()
        proto.MergeFromString(bytes([0x22, 0x80 | len(payload) & 0x7F, len(payload) >> 7]) + payload)
    elif dtypes.is_float(kind.dtype) and kind.bits in (8, 16):
        proto.int32_data.extend(value.view(np.uint8 if kind.bits == 8 else np.uint16).reshape(-1).tolist())
    else:
        proto = helper.make_tensor("w", kind.code, value.shape, value)
    return proto


@pytest.mark.spec("M-04")
@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.name)
def test_raw_data_is_read_bit_for_bit(kind: ElementType) -> None:
    value = every_pattern(kind)
    found = read_initializer(numpy_helper.from_array(value))
    assert (found.dtype, found.shape, bits_of(found)) == (value.dtype, value.shape, bits_of(value))


@pytest.mark.spec("M-04")
@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.name)
def test_typed_fields_are_read_bit_for_bit(kind: ElementType) -> None:
    value = every_pattern(kind)
    proto = typed_tensor(kind, value)
    assert not proto.HasField("raw_data")
    found = read_initializer(proto)
    assert (found.dtype, found.shape, bits_of(found)) == (value.dtype, value.shape, bits_of(value))


@pytest.mark.spec("M-04")
@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (TensorProto(data_type=16, dims=[2], int32_data=[0x3F80, 0xC000]), np.array([1, -2], ml_dtypes.bfloat16)),
        (TensorProto(data_type=10, dims=[2], int32_data=[0x3C00, 0xC000]), np.array([1, -2], np.float16)),
        (TensorProto(data_type=3, dims=[2], int32_data=[-1, 127]), np.array([-1, 127], np.int8)),
        (TensorProto(data_type=22, dims=[3], int32_data=[0x2F, 0x07]), np.array([-1, 2, 7], ml_dtypes.int4)),
        (TensorProto(data_type=22, dims=[3], raw_data=b"\x2f\x07"), np.array([-1, 2, 7], ml_dtypes.int4)),
        (TensorProto(data_type=25, dims=[5], raw_data=b"\xe4\x02"), np.array([0, 1, 2, 3, 2], ml_dtypes.uint2)),
        (TensorProto(data_type=27, dims=[2], int32_data=[8, 40]), np.array([1, -1], ml_dtypes.float6_e2m3fn)),
        (TensorProto(data_type=27, dims=[2], raw_data=b"\x08\x0a"), np.array([1, -1], ml_dtypes.float6_e2m3fn)),
        (TensorProto(data_type=14, dims=[1], float_data=[1, 2]), np.array([1 + 2j], np.complex64)),
        (TensorProto(data_type=13, dims=[1], uint64_data=[2**64 - 1]), np.array([2**64 - 1], np.uint64)),
        (TensorProto(data_type=7, dims=[], int64_data=[-(2**63)]), np.array(-(2**63), np.int64)),
        (TensorProto(data_type=9, dims=[2], raw_data=b"\x02\x00"), np.array([True, False])),
        (TensorProto(data_type=1, dims=[0, 3]), np.zeros((0, 3), np.float32)),
    ],
    ids=lambda value: dtypes.from_code(value.data_type).name if isinstance(value, TensorProto) else "",
)
def test_encodings_mean_what_the_protobuf_reference_says(proto: TensorProto, expected: np.ndarray) -> None:
    found = read_initializer(proto)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.spec("M-04")
def test_strings_are_text_and_what_is_no_utf8_stays_bytes() -> None:
    found = read_initializer(TensorProto(data_type=8, dims=[1, 3], string_data=["né".encode(), b"", b"\xff"]))
    assert found.tolist() == [["né", "", b"\xff"]]


@pytest.mark.spec("M-04")
def test_a_segment_is_refused() -> None:
    proto = tensor("w", [1.0])
    proto.segment.end = 1
    with pytest.raises(UnsupportedError, match="'w' is stored in segments"):
        read_initializer(proto)


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (TensorProto(data_type=22, dims=[700_000_000], raw_data=b"\x00"), "needs 350000000 bytes .* has 1"),
        (TensorProto(data_type=1, dims=[2**62, 2**62], raw_data=b"\x00"), "has 1"),
        (TensorProto(data_type=1, dims=[2**40]), "needs 1099511627776 entries of float_data, but the file has 0"),
        (
            TensorProto(data_type=8, dims=[2], string_data=[b"one"]),
            "needs 2 entries of string_data, but the file has 1",
        ),
        (TensorProto(data_type=1, dims=[-1], raw_data=b""), "must not be negative"),
        (TensorProto(data_type=1, dims=[0, 2**62, 2**62]), "declares the shape"),
        (TensorProto(data_type=1, dims=[1] * 65, float_data=[1]), "declares the shape"),
        (TensorProto(data_type=12, dims=[1], uint64_data=[2**32]), "stores 4294967296, which does not fit"),
        (TensorProto(data_type=2, dims=[1], int32_data=[256]), "stores 256, which does not fit"),
        (TensorProto(data_type=8, dims=[1], raw_data=b"text"), "keeps strings in string_data"),
    ],
)
def test_a_tensor_whose_shape_and_data_disagree_is_refused_before_allocation(proto: TensorProto, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read_initializer(proto)
    assert "'w'" in str(caught.value)
    assert "an initializer of graph" in str(caught.value)


def test_an_unknown_element_type_is_named() -> None:
    with pytest.raises(UnsupportedError, match="'w': Element type 99 is unknown"):
        read_initializer(TensorProto(data_type=99, dims=[0]))


SPARSE = helper.make_sparse_tensor(tensor("s", [5.0, 7.0]), tensor("", [1, 5], np.int64), [2, 3])
SPARSE_BY_COORDINATES = helper.make_sparse_tensor(
    tensor("s", [5.0, 7.0]), tensor("", [[0, 1], [1, 2]], np.int64), [2, 3]
)


@pytest.mark.spec("T-18")
@pytest.mark.parametrize("sparse", [SPARSE, SPARSE_BY_COORDINATES], ids=["linear", "coordinates"])
def test_a_sparse_initializer_is_read_in_both_index_formats(sparse: onnx.SparseTensorProto) -> None:
    graph = read_model(model_of(sparse_initializer=[sparse])).graph
    assert graph.initializers["s"].tolist() == [[0, 5, 0], [0, 0, 7]]
    assert graph.sparse == {"s"}


@pytest.mark.spec("T-18")
@pytest.mark.parametrize(
    ("indices", "shape", "message"),
    [
        (np.array([1, 6]), [2, 3], "index outside its shape"),
        (np.array([-1, 0]), [2, 3], "index outside its shape"),
        (np.array([[0, 3], [0, 0]]), [2, 3], "index outside its shape"),
        (np.array([[0, 0, 0], [0, 0, 0]]), [2, 3], r"\[NNZ, 2\]"),
        (np.array([1]), [2, 3], "Needed are"),
        (np.array([1, 2], np.int32), [2, 3], "int32 indices"),
        (np.array([1, 2]), [2**40, 2**40], "shape"),
    ],
)
def test_a_broken_sparse_initializer_is_refused(indices: np.ndarray, shape: list[int], message: str) -> None:
    sparse = helper.make_sparse_tensor(tensor("s", [5.0, 7.0]), numpy_helper.from_array(indices), shape)
    with pytest.raises(ModelError, match=message):
        read_model(model_of(sparse_initializer=[sparse]))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (3, 3),
        ("text", "text"),
        (b"\xff", b"\xff"),
        ([1.0, 2.0], (1.0, 2.0)),
        ([1, 2], (1, 2)),
        (["a", "b"], ("a", "b")),
        (
            helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 2]),
            TensorType(np.dtype(np.float32), ("N", 2)),
        ),
    ],
    ids=str,
)
def test_an_attribute_arrives_as_the_python_value(value: object, expected: object) -> None:
    found = read_attribute(helper.make_attribute("a", value))
    assert found == expected
    assert type(found) is type(expected)


def test_attributes_hold_tensors_sparse_tensors_and_graphs() -> None:
    body = helper.make_graph([helper.make_node("Abs", ["outer"], ["y"])], "body", [], [floats("y")])
    single = read_attribute(helper.make_attribute("a", tensor("t", [1.0, 2.0])))
    assert isinstance(single, np.ndarray)
    assert single.tolist() == [1, 2]
    sparse = read_attribute(helper.make_attribute("a", SPARSE))
    assert isinstance(sparse, SparseTensor)
    assert (sparse.values.tolist(), sparse.indices.tolist(), sparse.shape) == ([5, 7], [1, 5], (2, 3))
    graphs = read_attribute(helper.make_attribute("a", [body, body]))
    assert isinstance(graphs, tuple)
    assert [graph.nodes[0].inputs for graph in graphs if isinstance(graph, Graph)] == [("outer",), ("outer",)]
    lists = [read_attribute(helper.make_attribute("a", [one, one])) for one in (tensor("t", [1.0]), SPARSE)]
    assert [len(found) for found in lists if isinstance(found, tuple)] == [2, 2]


def test_an_attribute_without_a_value_is_the_default_of_protobuf() -> None:
    """Writers of protobuf 3 leave out zeros."""
    assert read_attribute(AttributeProto(name="axis", type=AttributeProto.INT)) == 0


def test_an_attribute_without_a_type_is_refused() -> None:
    with pytest.raises(ModelError, match="attribute 'axis' of Any in graph says no type"):
        read_attribute(AttributeProto(name="axis", i=1))


def test_value_types_are_read_with_their_symbols() -> None:
    def typed(name: str, type_proto: onnx.TypeProto) -> onnx.ValueInfoProto:
        return helper.make_value_info(name, type_proto)

    plain = helper.make_tensor_type_proto(TensorProto.INT64, ["N", None, -1, 0])
    floating = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    proto = model_of()
    proto.graph.input.extend(
        [
            typed("tensor", plain),
            typed("sequence", helper.make_sequence_type_proto(floating)),
            typed("optional", helper.make_optional_type_proto(helper.make_sequence_type_proto(floating))),
            typed("map", helper.make_map_type_proto(TensorProto.STRING, floating)),
            typed("sparse", helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2])),
            onnx.ValueInfoProto(name="untyped"),
        ]
    )
    unknown = TensorType(np.dtype(np.float32), None)
    assert [value.type for value in read_model(proto).graph.inputs] == [
        TensorType(np.dtype(np.int64), ("N", None, None, 0)),
        SequenceType(unknown),
        OptionalType(SequenceType(unknown)),
        MapType(np.dtype(np.object_), unknown),
        TensorType(np.dtype(np.float32), (2,), sparse=True),
        None,
    ]


def function_model() -> onnx.ModelProto:
    """A function with an attribute reference, one that lacks its name, a default, and a subgraph that refers too."""
    then = helper.make_graph(
        [onnx.NodeProto(op_type="Constant", output=["c"], attribute=[reference("value_float", "scale")])],
        "then",
        [],
        [floats("c")],
    )
    function = onnx.FunctionProto(
        name="Scaled",
        domain="local",
        input=["x", "condition"],
        output=["y"],
        attribute=["scale", "alpha"],
        attribute_proto=[helper.make_attribute("beta", 0.25)],
        opset_import=[helper.make_opsetid("ai.onnx", 13)],
    )
    function.node.extend(
        [
            onnx.NodeProto(op_type="Elu", attribute=[AttributeProto(name="alpha", type=AttributeProto.FLOAT)]),
            onnx.NodeProto(op_type="Selu", attribute=[reference("gamma", "beta")]),
            helper.make_node("If", ["condition"], ["y"], then_branch=then, else_branch=then),
        ]
    )
    return helper.make_model(
        helper.make_graph([helper.make_node("Scaled", ["x", "b"], ["y"], domain="local", scale=2.0)], "g", [], []),
        functions=[function],
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("local", 1)],
        ir_version=10,
    )


def reference(name: str, referred: str) -> AttributeProto:
    return AttributeProto(name=name, ref_attr_name=referred, type=AttributeProto.FLOAT)


@pytest.mark.spec("M-02")
def test_a_function_is_read_with_its_own_opsets_references_and_defaults() -> None:
    function = read_model(function_model()).functions["local", "Scaled", ""]
    assert function.opset_imports == {"": 13}
    assert function.attributes == ("scale", "alpha")
    assert function.defaults == {"beta": 0.25}
    elu, selu, branch = function.nodes
    assert elu.attributes == {"alpha": AttributeReference("alpha")}
    assert selu.attributes == {"gamma": AttributeReference("beta")}
    assert branch.subgraphs[0].nodes[0].attributes == {"value_float": AttributeReference("scale")}


def test_two_functions_of_one_name_are_refused() -> None:
    proto = function_model()
    proto.functions.append(proto.functions[0])
    with pytest.raises(ModelError, match="two functions"):
        read_model(proto)
    proto.functions[1].overload = "other"
    assert len(read_model(proto).functions) == 2


@pytest.mark.spec("M-01")
def test_both_names_of_the_standard_domain_are_one() -> None:
    proto = model_of(helper.make_node("Abs", ["x"], ["y"], domain="ai.onnx"))
    proto.opset_import[0].CopyFrom(helper.make_opsetid("ai.onnx", 17))
    model = read_model(proto)
    assert model.opset_imports == {"": 17}
    assert model.graph.nodes[0].domain == ""
    proto.opset_import.append(helper.make_opsetid("", 18))
    with pytest.raises(ModelError, match=r"The model imports the domain ai\.onnx in two versions: 17 and 18"):
        read_model(proto)


@pytest.mark.spec("M-07")
def test_names_are_opaque_and_node_names_may_repeat_or_be_absent() -> None:
    odd = "samples:0/ü 'x'"
    nodes = [helper.make_node("Abs", [odd], [f"y{index}"], name=name) for index, name in enumerate(["a", "a", ""])]
    assert [node.inputs for node in read_model(model_of(*nodes)).graph.nodes] == [(odd,)] * 3


@pytest.mark.spec("T-20")
@pytest.mark.parametrize("domain", ["ai.onnx.preview", "ai.onnx.training"])
@pytest.mark.parametrize("op_type", ["Gradient", "Adam", "Adagrad", "Momentum"])
def test_a_mistaken_training_domain_is_read_as_the_right_one_with_a_warning(domain: str, op_type: str) -> None:
    inner = helper.make_graph([helper.make_node(op_type, [], ["y"], domain=domain)], "inner", [], [floats("y")])
    proto = model_of(helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner))
    with pytest.warns(ModelWarning) as caught:
        model = read_model(proto)
    assert model.graph.nodes[0].subgraphs[0].nodes[0].domain == TRAINING_DOMAIN
    assert model.opset_imports[TRAINING_DOMAIN] == 1
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    assert f"{op_type} stands in the domain '{domain}'" in messages[0]
    assert "Version 1 is assumed" in messages[1]
    assert caught[0].filename == __file__


def test_a_function_of_the_model_is_not_taken_for_a_training_operator() -> None:
    proto = model_of(helper.make_node("Adam", ["x"], ["y"], domain="ai.onnx.preview"))
    proto.functions.add(name="Adam", domain="ai.onnx.preview", input=["x"], output=["y"])
    assert read_model(proto).graph.nodes[0].domain == "ai.onnx.preview"


@pytest.mark.spec("T-19")
def test_training_info_below_ir_version_7_is_read_with_a_warning() -> None:
    proto = linear_with_sgd()
    proto.ir_version = 6
    with pytest.warns(ModelWarning, match="needs IR version 7 or later, but says 6"):
        model = read_model(proto)
    assert len(model.training_info) == 1


@pytest.mark.parametrize("version", range(3, onnx.IR_VERSION + 1))
def test_every_ir_version_from_3_on_is_read(version: int) -> None:
    proto = model_of()
    proto.ir_version = version
    assert read_model(proto).ir_version == version


@pytest.mark.parametrize(("version", "remedy"), [(2, "newer exporter"), (onnx.IR_VERSION + 1, "Update onnx")])
def test_an_unknown_ir_version_is_refused(version: int, remedy: str) -> None:
    proto = model_of()
    proto.ir_version = version
    with pytest.raises(UnsupportedError, match=remedy):
        read_model(proto)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no ir_version"),
        (b"\x08\x07", "it has no graph"),
        (b"no protobuf at all", "is not an ONNX model, or is damaged"),
        (linear_with_sgd().SerializeToString()[:-40], "is not an ONNX model, or is damaged"),
    ],
    ids=["empty", "headless", "text", "cut off"],
)
def test_a_file_that_is_no_model_gives_one_clear_error(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        read_model(path)
    assert str(path) in str(caught.value)


def test_a_name_that_is_no_utf8_is_refused() -> None:
    content = model_of(helper.make_node("Abs", ["x"], ["QQQ"])).SerializeToString()
    with pytest.raises(ModelError, match="no UTF-8"):
        read_model(onnx.ModelProto.FromString(content.replace(b"QQQ", b"Q\xffQ")))


@pytest.mark.parametrize("build", ALL_TRAINING_MODELS)
def test_a_given_proto_is_copied(build: Callable[[], onnx.ModelProto]) -> None:
    proto = build()
    before = proto.SerializeToString(deterministic=True)
    model = read_model(proto)
    assert proto.SerializeToString(deterministic=True) == before
    proto.graph.initializer[0].ClearField("raw_data")
    assert model.proto.SerializeToString(deterministic=True) == before


def test_all_three_kinds_of_graph_and_their_bindings_are_read() -> None:
    model = read_model(linear_with_sgd())
    (info,) = model.training_info
    assert [graph.name for graph in (model.graph, info.initialization, info.algorithm)] == [
        "linear",
        "start",
        "descend",
    ]
    assert (info.initialization_binding, info.update_binding) == ((("W", "W_random"),), (("W", "W_new"),))
    assert model.state_variables == ("W",)
    assert info.algorithm.initializers["learning_rate"] == np.float32(0.1)


def test_a_model_is_read_from_a_path_as_from_memory(tmp_path: Path) -> None:
    def contents(model: Model) -> tuple[object, ...]:
        return (model.graph.nodes, model.training_info[0].algorithm.nodes, model.opset_imports, model.ir_version)

    path = tmp_path / "model.onnx"
    path.write_bytes(linear_with_sgd().SerializeToString())
    model = read_model(str(path))
    assert model.directory == str(tmp_path)
    assert contents(model) == contents(read_model(linear_with_sgd()))


def test_real_models_are_read_without_a_warning(models_dir: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in sorted(models_dir.glob("*/model.onnx")):
            model, proto = read_model(path), onnx.load(path)
            assert len(model.graph.nodes) == len(proto.graph.node)
            for initializer in proto.graph.initializer:
                expected = numpy_helper.to_array(initializer)
                np.testing.assert_array_equal(model.graph.initializers[initializer.name], expected)
