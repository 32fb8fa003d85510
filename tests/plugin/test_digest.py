"""Digests: of two different things they differ, wherever bytes were moved between parts."""

import ast
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import pitc
from pitc.codegen.build.cache import Cache
from pitc.importer.load import load_source
from pitc.ir.digest import (
    Digest,
    file_sha256,
    joint_sha256,
    named_sha256,
    of_files,
    sha256,
)

ROOT = Path(__file__).parents[2]
SIZE = 64


def test_one_file_has_its_plain_digest(tmp_path: Path) -> None:
    """What `sha256sum` prints."""
    path, content = tmp_path / "a", b"content" * 300_000
    path.write_bytes(content)
    pieces = Digest()
    for start in range(0, len(content), 1 << 18):
        pieces.update(memoryview(content)[start : start + (1 << 18)])
    plain = hashlib.sha256(content).hexdigest()
    assert {sha256(content), file_sha256(path), pieces.hexdigest()} == {plain}
    assert of_files([plain]) == plain and sha256("ä") == sha256("ä".encode())


@pytest.mark.parametrize(
    "other", [("a", "bcd"), ("abc", "d"), ("abcd",), ("abcd", ""), ("", "abcd"), ("ab", "cd", "")]
)
def test_parts_are_told_apart(other: tuple[str, ...], tmp_path: Path) -> None:
    def written(parts: tuple[str, ...]) -> list[str]:
        paths = [tmp_path / str(place) for place in range(len(parts))]
        for path, part in zip(paths, parts, strict=True):
            path.write_text(part)
        return [file_sha256(path) for path in paths]

    parts = "ab", "cd"
    assert joint_sha256(parts) != joint_sha256(other)
    assert joint_sha256(parts) == joint_sha256([p.encode() for p in parts])
    assert of_files(written(parts)) != of_files(written(other))


def test_a_length_is_no_part() -> None:
    assert joint_sha256(["1\na"]) != joint_sha256(["", "a"]) != joint_sha256(["0\n1\na"])


def test_named_parts_come_in_any_order() -> None:
    assert named_sha256([("a", "2"), ("b", "1")]) == named_sha256([("b", b"1"), ("a", b"2")])
    assert named_sha256([("a", "2"), ("b", "1")]) == joint_sha256(["a", "2", "b", "1"])
    assert named_sha256([("a", "1"), ("b", "2")]) != named_sha256([("a", "1b"), ("", "2")])


def test_an_entry_of_one_key_is_none_of_another(tmp_path: Path) -> None:
    """Where bytes move from key to content."""
    cache, key = Cache(tmp_path), "ab" * 32
    cache.put(key, b"content")
    entry = (tmp_path / key).read_bytes()
    head = entry.removesuffix(b"content")
    (tmp_path / key[:-1]).write_bytes(head + key[-1:].encode() + b"content")
    assert cache.get(key) == b"content" and cache.get(key[:-1]) is None


# Models with several weight files


def saved(folder: Path) -> Path:
    """y = relu(x w1) w2, each weight at the start of a file of its own."""

    def outside(name: str, file: str) -> onnx.TensorProto:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[SIZE, SIZE])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", "0"), ("length", str(SIZE * SIZE * 4))):
            tensor.external_data.add(key=key, value=value)
        return tensor

    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "w2"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", SIZE])],
        [outside("w1", "a.bin"), outside("w2", "b.bin")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_moved_from_file_to_file_are_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PITC_CACHE_DIR", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((SIZE, SIZE)).astype(np.float32).tobytes() for _ in "ab")
    more = np.full(16, 9, np.float32).tobytes()
    path, x = saved(tmp_path), rng.standard_normal((3, SIZE)).astype(np.float32)
    found = []
    for place, contents in enumerate(((first + more, second), (first, more + second))):
        for name, content in zip(("a.bin", "b.bin"), contents, strict=True):
            (tmp_path / name).write_bytes(content)
        made = pitc.compile(path, output=tmp_path / f"{place}.pitc")
        want = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        np.testing.assert_allclose(
            made.run({"x": x})["y"], np.asarray(want[0]), rtol=1e-4, atol=1e-4
        )
        assert load_source(path)[1] == made.manifest.source.sha256
        found.append(load_source(path)[1])
    assert found[0] != found[1]
    shutil.copy(tmp_path / "a.bin", tmp_path / "b.bin")
    assert load_source(path)[1] not in found


# Who hashes


def sources() -> Iterator[tuple[str, ast.Module]]:
    for room in ("pitc", "passes", "codegen", "runtime", "models", "benchmarks", "tools", "tests"):
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text("utf-8")
            if "hashlib" in text:
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def several_parts(tree: ast.Module) -> bool:
    """A digest that sees more than one piece: by `update`, of a sum, or of what is joined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "update":
                return True
            if ast.unparse(node.func).startswith("hashlib."):
                parts = [n for a in node.args for n in ast.walk(a)]
                joins = [n for n in parts if isinstance(n, ast.Attribute) and n.attr == "join"]
                if joins or any(isinstance(n, ast.BinOp) for n in parts):
                    return True
    return False


def test_nobody_else_hashes_several_parts() -> None:
    found = {name: several_parts(tree) for name, tree in sources()}
    here = {
        "tests/plugin/test_digest.py",
        "tests/kernels/test_build_cache.py",
    }  # the latter writes an old entry
    assert {name for name, several in found.items() if several} - here == {"pitc/ir/digest.py"}
    shipped = ("pitc/", "passes/", "codegen/", "runtime/")
    assert [name for name in found if name.startswith(shipped)] == ["pitc/ir/digest.py"]


@pytest.mark.parametrize(
    "text",
    [
        "d = hashlib.sha256(a)\nd.update(b)",
        "hashlib.sha256(a + b)",
        "hashlib.sha256(b''.join(parts))",
        "hashlib.md5('\\n'.join(parts).encode())",
    ],
)
def test_what_is_several_parts(text: str) -> None:
    assert several_parts(ast.parse(text))
    assert not several_parts(ast.parse("hashlib.sha256(a.read_bytes()).hexdigest()"))
