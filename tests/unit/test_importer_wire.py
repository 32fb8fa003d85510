"""What is read without its large weights is what is read with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pitc.errors import ModelError
from pitc.importer import load, load_source
from pitc.importer.wire import without_weights

Change = Callable[[onnx.ModelProto], object]
LARGE = 1 << 62


def model(*weights: TensorProto) -> onnx.ModelProto:
    """y = x + w0 + w1 .., each of them used."""
    names = ["x", *(w.name for w in weights)]
    steps = [f"h{i}" for i in range(len(weights))]
    nodes = [
        helper.make_node("Add", [before, name], [after])
        for before, name, after in zip(["x", *steps], names[1:], steps, strict=False)
    ]
    size = list(weights[0].dims)
    graph = helper.make_graph(
        nodes,
        "sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info(steps[-1], TensorProto.FLOAT, size)],
        list(weights),
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made.producer_name = "a test"
    return made


def weight(name: str, *dims: int, seed: int = 0) -> TensorProto:
    data = np.random.default_rng(seed).standard_normal(dims).astype(np.float32)
    return numpy_helper.from_array(data, name)


def read_both_ways(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of each way the error, or the model and its checksum."""
    found: list[Any] = []
    for smallest in (0, LARGE):
        monkeypatch.setattr(load, "SLIM_FROM_BYTES", smallest)
        try:
            imported, sha256, outside = load_source(path)
            proto = ir.to_proto(imported)
            found.append((proto.SerializeToString(deterministic=True), sha256, outside))
        except ModelError as error:
            found.append(str(error))
    return found


def test_large_weights_are_left_out() -> None:
    weights = [weight("a", 40, 50), weight("b", 1, 50), weight("c", 40, 50, seed=1)]
    whole = model(*weights)
    content = whole.SerializeToString()
    found = without_weights(content)
    assert found is not None
    slim, left_out = found
    assert {k: bytes(v) for k, v in left_out.items()} == {k: weights[k].raw_data for k in (0, 2)}
    assert len(slim) < 1500 < len(content)
    again = onnx.ModelProto.FromString(slim)
    assert again.graph.initializer[0].HasField("raw_data")
    for number, data in left_out.items():
        again.graph.initializer[number].raw_data = bytes(data)
    assert again == whole


def test_no_byte_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(weight("a", 400, 50)), path)
    imported, _, _ = load_source(path)
    value = imported.graph.initializers["a"].const_value
    assert value is not None
    array = value.numpy()
    assert not array.flags.owndata and not array.flags.writeable
    assert np.array_equal(array, numpy_helper.to_array(weight("a", 400, 50)))


def twice(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])


def in_a_body(proto: onnx.ModelProto, content: bytes = b"") -> None:
    """The same name inside, where the data is too short."""
    inner = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["out"])],
        "body",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [40, 50])],
        [TensorProto(name="a", data_type=1, dims=[40, 50], raw_data=content)],
    )
    condition = numpy_helper.from_array(np.array(True), "yes")
    proto.graph.initializer.append(condition)
    proto.graph.node.add().CopyFrom(
        helper.make_node("If", ["yes"], ["z"], then_branch=inner, else_branch=inner)
    )


def changed(**fields: Any) -> Change:
    """Another first initializer."""

    def change(proto: onnx.ModelProto) -> None:
        for name, value in fields.items():
            if name == "dims":
                proto.graph.initializer[0].dims[:] = value
            elif name.endswith("_data") and name != "raw_data":
                getattr(proto.graph.initializer[0], name).extend(value)
            else:
                setattr(proto.graph.initializer[0], name, value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        twice,
        in_a_body,
        lambda proto: in_a_body(proto, bytes(8000)),
        changed(raw_data=bytes(7996)),
        changed(raw_data=bytes(8004)),
        changed(dims=[40, -50]),
        changed(dims=[-40, -50]),
        changed(dims=[2000]),
        changed(dims=[0]),
        changed(dims=[1 << 40, 1 << 40]),
        changed(data_type=99),
        changed(data_type=TensorProto.STRING),
        changed(data_type=TensorProto.UNDEFINED),
        changed(data_type=TensorProto.INT4, dims=[80, 200]),
        changed(data_type=TensorProto.COMPLEX64, dims=[20, 50]),
        changed(data_type=TensorProto.DOUBLE, dims=[20, 50]),
        changed(data_type=TensorProto.BFLOAT16, dims=[80, 50]),
        changed(data_type=TensorProto.INT64, dims=[4, 250]),
        changed(float_data=[1.0]),
        changed(string_data=[b"x"]),
        changed(data_location=TensorProto.EXTERNAL),
        changed(name=""),
        changed(doc_string="told"),
        lambda proto: proto.graph.input.append(
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [40, 50])
        ),
        lambda proto: proto.graph.ClearField("name"),
        lambda proto: proto.ClearField("graph"),
        lambda proto: proto.ClearField("ir_version"),
    ],
)
def test_both_ways_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    proto = model(weight("a", 40, 50), weight("b", 1, 50), weight("c", 40, 50, seed=1))
    change(proto)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    first, second = read_both_ways(path, monkeypatch)
    assert first == second


def field(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    length = bytearray()
    left = len(content)
    while left >= 0x80:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([number << 3 | 2, *length, left]) + content


def in_parts(content: bytes) -> list[bytes]:
    """Models that say a thing in two parts, or in a way that no writer does."""
    proto = onnx.ModelProto.FromString(content)
    tensor = proto.graph.initializer[0].SerializeToString()
    bare = onnx.ModelProto.FromString(content)
    del bare.graph.initializer[:]
    head = bare.SerializeToString()
    graph = bare.graph.SerializeToString()
    rest = onnx.ModelProto.FromString(content)
    rest.ClearField("graph")
    top = rest.SerializeToString()
    other = field(9, bytes(8000))
    return [
        head + field(7, field(5, tensor)),  # a second part of the graph, which is merged
        top + field(7, graph + field(5, tensor + other)),  # the last data wins
        top + field(7, graph + field(5, other + tensor)),
        top + field(7, graph + field(5, tensor) + b"\xfa\x3f\x03abc"),  # an unknown field
        top + field(7, graph + field(5, tensor) + b"\xfb\x3f"),  # a group, open
        top + field(7, graph + field(5, tensor) + b"\x28\x01"),  # an initializer that is a number
        top + field(7, graph + b"\x28\x01" + field(5, tensor)),
        top + b"\x39\x12\x06abcdef",  # a graph that is eight bytes
        top + field(7, graph + field(5, tensor + b"\x48\x01")),  # data that is a number
        top + field(7, graph + field(5, tensor)) + b"\x38\x01",  # a graph that is a number
        top + field(7, graph + field(5, tensor)) + b"\x80" * 11,
        top + field(7, graph + field(5, tensor)) + b"\x00",
        top + field(7, graph + field(5, tensor)) + b"\x0d\x01",
        (top + field(7, graph + field(5, tensor)))[:-100],
        b"",
    ]


@pytest.mark.parametrize("number", range(15))
def test_models_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(in_parts(model(weight("a", 40, 50)).SerializeToString())[number])
    first, second = read_both_ways(path, monkeypatch)
    assert first == second
    if number < 4:
        assert not isinstance(first, str), first


@given(st.data())
def test_damaged_files_are_read_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(model(weight("a", 32, 32), weight("b", 32, 32, seed=1)).SerializeToString())
    skeleton = [i for i in range(len(content)) if i < 200 or i % 512 < 60 or i > len(content) - 200]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(skeleton))
        content[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path = tmp_path_factory.mktemp("damaged") / "model.onnx"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        first, second = read_both_ways(path, patch)
    assert first == second
