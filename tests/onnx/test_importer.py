"""Import: every defect of a file is one line, and the file itself is never touched."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from pitc.errors import ModelError
from pitc.importer import load_model, load_source
from pitc.importer.proto import light
from pitc.ir.graph import Graph
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.guard_worlds import session

SHAPE = (64, 32)


def _proto() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.arange(64 * 32, dtype=np.float32).reshape(SHAPE), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 32])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model file with its weight in an external file."""
    path = tmp_path / "model.onnx"
    onnx.save_model(
        _proto(), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    return path


def _digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_external_weights_stay_in_their_file(model: Path) -> None:
    before = _digests(model.parent)
    found = load_model(model)
    tensor = found.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.numpy()[1, 0] == 32.0
    assert _digests(model.parent) == before


def test_a_relative_path_works_from_anywhere(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    found = load_model("model.onnx")
    monkeypatch.chdir("/")
    tensor = found.graph.initializers["w"].const_value
    assert tensor is not None and tensor.numpy()[0, 1] == 1.0


def test_a_model_in_memory_is_copied() -> None:
    proto = _proto()
    payload = proto.SerializeToString(deterministic=True)
    found = load_model(proto)
    found.graph.inputs[0].name = "other"
    assert proto.SerializeToString(deterministic=True) == payload


def _edit(path: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    proto = onnx.load(path, load_external_data=False)
    change(proto)
    path.write_bytes(proto.SerializeToString())


def _set_external(path: Path, key: str, value: str) -> None:
    def change(proto: onnx.ModelProto) -> None:
        for entry in proto.graph.initializer[0].external_data:
            if entry.key == key:
                entry.value = value

    _edit(path, change)


def _remove(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _hard_link(path: Path) -> None:
    os.link(path.parent / "weights.bin", path.parent / "again.bin")


def _symlink_out(path: Path) -> None:
    outside = path.parent.parent / "outside.bin"
    outside.write_bytes((path.parent / "weights.bin").read_bytes())
    (path.parent / "weights.bin").unlink()
    (path.parent / "weights.bin").symlink_to(outside)


def _bad_node(path: Path) -> None:
    def change(proto: onnx.ModelProto) -> None:
        proto.graph.node[1].op_type = "Rleu"
        proto.graph.node[1].name = "act"

    _edit(path, change)


DEFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing file": (_remove, "no such file"),
    "folder": (_folder, "is a folder"),
    "cut off": (_cut, "is not an ONNX model, or is cut off"),
    "not ONNX": (lambda p: p.write_text("hello, world\n"), "is not an ONNX model"),
    "empty": (lambda p: p.write_bytes(b""), "is not an ONNX model"),
    "unknown operator": (_bad_node, "No Op registered for Rleu"),
    "new IR version": (
        lambda p: _edit(p, lambda m: setattr(m, "ir_version", 99)),
        "has IR version 99, the newest supported one is",
    ),
    "unknown input": (
        lambda p: _edit(p, lambda m: m.graph.node[0].input.__setitem__(0, "nobody")),
        "nobody",
    ),
    "missing weights": (
        lambda p: (p.parent / "weights.bin").unlink(),
        "weight 'w': external data 'weights.bin' is missing",
    ),
    "short weights": (
        lambda p: os.truncate(p.parent / "weights.bin", 100),
        "which has 100: the file is cut off or not the model's own",
    ),
    "wrong length": (
        lambda p: _set_external(p, "length", "8"),
        "has 8 bytes of external data, expected 8192",
    ),
    "negative offset": (lambda p: _set_external(p, "offset", "-8"), "weight 'w' is at bytes -8"),
    "offset is text": (lambda p: _set_external(p, "offset", "x"), "is not a number"),
    "escape": (
        lambda p: _set_external(p, "location", "../outside.bin"),
        "external data '../outside.bin' is outside the model's folder",
    ),
    "absolute": (lambda p: _set_external(p, "location", "/etc/hostname"), "is outside"),
    "no location": (lambda p: _set_external(p, "location", ""), "is outside"),
    "symbolic link out": (_symlink_out, "is outside the model's folder"),
    "hard link": (_hard_link, "has several hard links"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_one_line_that_names_the_file(model: Path, defect: str) -> None:
    damage, text = DEFECTS[defect]
    damage(model)
    with pytest.raises(ModelError) as caught:
        load_model(model)
    assert text in str(caught.value)
    assert str(model) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_node_at_fault_is_named(model: Path) -> None:
    _bad_node(model)
    with pytest.raises(ModelError, match="node 'act'"):
        load_model(model)


def test_external_data_needs_a_path(model: Path) -> None:
    proto = onnx.load(model, load_external_data=False)
    with pytest.raises(ModelError, match="pass the path of the model file"):
        load_model(proto)


def test_a_single_flipped_byte_never_crashes(tmp_path: Path) -> None:
    """Every byte of a small file mutated: a model or a ModelError, nothing else."""
    proto = _proto()
    del proto.graph.initializer[:]
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, SHAPE))
    payload = proto.SerializeToString()
    path = tmp_path / "mutated.onnx"
    refused = 0
    for k in range(len(payload)):
        path.write_bytes(payload[:k] + bytes([payload[k] ^ 0x5A]) + payload[k + 1 :])
        try:
            load_model(path)
        except ModelError:
            refused += 1
    assert refused > len(payload) // 3


@pytest.mark.parametrize("imports", [["ai.onnx"], ["", "ai.onnx"]])
@pytest.mark.parametrize("domains", [["ai.onnx", "ai.onnx"], ["ai.onnx", ""]])
def test_the_standard_domain_has_a_long_name(
    imports: list[str], domains: list[str], model: Path
) -> None:
    proto = onnx.load(model, load_external_data=False)
    for node, domain in zip(proto.graph.node, domains, strict=True):
        node.domain = domain
    del proto.opset_import[:]
    proto.opset_import.extend(helper.make_opsetid(domain, 17) for domain in imports)
    onnx.save(proto, model)
    loaded = load_model(model)
    assert [n.domain for n in loaded.graph] == ["", ""]
    assert dict(loaded.opset_imports) == {"": 17}


def test_initializers_of_old_files_are_not_inputs() -> None:
    proto = _proto()
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, SHAPE))
    for version, names in ((3, ["x"]), (8, ["x", "w"])):
        proto.ir_version = version
        proto.opset_import[0].version = 8
        loaded = load_model(proto)
        assert [v.name for v in loaded.graph.inputs] == names
        assert loaded.ir_version == max(version, 4)
        onnx.checker.check_model(ir.to_proto(loaded))


@pytest.mark.parametrize("version", [3, 8])
def test_constants_that_bodies_list_are_not_handed_over(version: int) -> None:
    """ONNX Runtime hands over the other inputs."""
    loops = "r = Loop <body = b (int64 i, bool g, float[n] s, float k) => (bool o, float[n] p)"
    proto = onnx.parser.parse_model(f"""<ir_version: {version}, opset_import: ["": 11]>
        g (float[n] x, bool c, int64 n) => (float[n] y) {{
            {loops} <float k = {{2}}> {{ o = Identity (g) p = Mul (s, k) }}> (n, , x)
            y = If (c) <then_branch = t (float k) => (float[n] p) <float k = {{3}}>
                {{ p = Mul (r, k) }}, else_branch = e () => (float[n] q) {{ q = Neg (r) }}> }}""")
    lowered = run_passes(load_model(proto), LowerOptions()).model
    onnx.checker.check_model(ir.to_proto(lowered))
    for feed in ({"c": np.array(c), "n": np.array(n)} for c in (True, False) for n in (0, 3)):
        feed["x"] = np.array([1, -2], np.float32)
        want, got = (session(p).run(["y"], feed)[0] for p in (proto, ir.to_proto(lowered)))
        assert np.array_equal(np.asarray(want), np.asarray(got))


def test_sparse_weights_become_dense() -> None:
    proto = _proto()
    dense = np.zeros(SHAPE, np.float32)
    dense[1, 2], dense[63, 31] = 5, -1
    values = numpy_helper.from_array(np.array([5, -1], np.float32), "w")
    at = numpy_helper.from_array(np.array([[1, 2], [63, 31]], np.int64), "at")
    del proto.graph.initializer[:]
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, SHAPE))
    tensor = load_model(proto).graph.initializers["w"].const_value
    assert tensor is not None
    assert np.array_equal(tensor.numpy(), dense)


def test_the_digest_covers_weights_and_not_the_place(model: Path, tmp_path: Path) -> None:
    first = load_source(model)[1]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("model.onnx", "weights.bin"):
        (elsewhere / name).write_bytes((model.parent / name).read_bytes())
    assert load_source(elsewhere / "model.onnx")[1] == first
    with (elsewhere / "weights.bin").open("r+b") as f:
        f.write(b"\x01")
    assert load_source(elsewhere / "model.onnx")[1] != first
    assert load_source(_proto())[1] == load_source(_proto())[1]
    assert len(first) == 64


def test_what_is_read_once_is_the_same(model: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside.onnx"
    onnx.save(_proto(), inside)
    for source in (model, inside, _proto()):
        found, _ = load_source(source)
        expected = ir.to_proto(load_model(source)).SerializeToString(deterministic=True)
        assert ir.to_proto(found).SerializeToString(deterministic=True) == expected
    content = inside.read_bytes()
    assert load_source(inside)[1] == hashlib.sha256(content).hexdigest()


def test_the_checker_is_spared_large_weights_only() -> None:
    proto = _proto()
    proto.metadata_props.add(key="by", value="test")
    extra = {"small": np.zeros(8, np.float32), "texts": np.array(["text"] * 2000)}
    proto.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in extra.items())
    entries = helper.make_tensor("entries", TensorProto.FLOAT, [2000], [0.0] * 2000)
    both = numpy_helper.from_array(np.zeros(2000, np.float32), "both")
    both.float_data.append(1)
    proto.graph.initializer.extend([entries, both])
    found = light(proto)
    weight, *rest = found.graph.initializer
    assert weight == onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[0])
    assert rest == list(proto.graph.initializer)[1:]
    del found.graph.initializer[:], proto.graph.initializer[:]
    assert found == proto
    with pytest.raises(ModelError, match=r"TensorProto .tensor name: both. should contain one"):
        load_model(_with(both))


def _with(weight: onnx.TensorProto) -> onnx.ModelProto:
    proto = _proto()
    proto.graph.initializer.append(weight)
    return proto


def test_weights_over_two_gigabytes_are_mapped(model: Path) -> None:
    """A sparse file of 2.4 GB: nothing on the way may read or serialise it."""
    count = 600_000_000
    os.truncate(model.parent / "weights.bin", 4 * count)

    def grow(proto: onnx.ModelProto) -> None:
        tensor = proto.graph.initializer[0]
        tensor.dims[:] = [64, count // 64]
        for entry in tensor.external_data:
            if entry.key == "length":
                entry.value = str(4 * count)
        proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = count // 64

    _edit(model, grow)
    graph = Graph(load_model(model))
    assert graph.inferred_dim("h", 1).as_int() == count // 64
    assert graph.array("w") is not None
