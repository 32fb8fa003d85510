"""Artifacts: what is written, and what a load check says of it."""

import hashlib
import json
import os
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.artifact import check as check_module
from pitc.artifact.check import Check, Verdict, check_artifact
from pitc.artifact.folder import check_output, copy_folder
from pitc.artifact.manifest import (
    FALLBACK,
    FILES,
    KERNELS,
    MANIFEST,
    MODEL,
    WEIGHTS,
    Manifest,
    Options,
    Source,
    parse_manifest,
    report_from_dict,
    report_to_dict,
)
from pitc.artifact.weights import LINE_BYTES, PAGE_BYTES, PAGE_FROM_BYTES, WeightFile
from pitc.artifact.write import write_artifact
from pitc.errors import UsageError
from pitc.host import machine
from pitc.ir.plan import EP_NAME, PLAN_VERSION
from pitc.ir.refusal import Code, Refusal
from pitc.ir.report import NodeRecord, RegionRecord, Report
from pitc.options import Kind, parse_target
from tests.plan_text import Plan

RNG = np.random.default_rng(0)
LARGE = RNG.standard_normal((256, 128)).astype(np.float32)
MEDIUM = RNG.standard_normal((128, 4)).astype(np.float32)
BRANCH_BYTES = 100 * 4 * 4
SMALL = RNG.standard_normal(4).astype(np.float32)


def chain(*, kernels: bool = False) -> onnx.ModelProto:
    """Two equal large weights, a medium and a small one, and an `If` with weights of its own."""
    branch = [
        helper.make_graph(
            [
                helper.make_node("ReduceMax", [name], [f"{name}_max"], axes=[0]),
                helper.make_node("Add", ["y", f"{name}_max"], [f"{name}_out"]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, ["n", 4])],
            [numpy_helper.from_array(np.full((100, 4), value, np.float32), name)],
        )
        for name, value in (("one", 1.0), ("two", 2.0))
    ]
    nodes = [
        helper.make_node("Add", ["w0", "w1"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "m"], ["g"], "second"),
        helper.make_node("Add", ["g", "s"], ["y"]),
        helper.make_node("If", ["c"], ["z"], then_branch=branch[0], else_branch=branch[1]),
    ]
    if kernels:
        plan = Plan("detect", (("rank", 1),)).text()
        nodes.append(
            helper.make_node(
                "EPContext",
                ["live"],
                ["rows", "coords", "offsets"],
                domain="com.microsoft",
                source=EP_NAME,
                ep_cache_context=plan,
                main_context=1,
                embed_mode=1,
            )
        )
    weights = {"w0": LARGE, "w1": LARGE.copy(), "m": MEDIUM, "s": SMALL}
    graph = helper.make_graph(
        nodes,
        "chain",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 256]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


REPORT = Report(
    model="chain.onnx",
    padding="mask",
    nodes=[
        NodeRecord("first", "MatMul", ("o0",), ("mask == 0: 0",), (), "packed"),
        NodeRecord("second", "MatMul", refusal=Refusal(Code.NO_GAIN, "second", "1 < 2")),
    ],
    regions=[RegionRecord("region0", "mask", 3, 100, 8)],
    assumptions=["scores are bounded"],
    kernels=["pack_b4"],
    stages_ms={"facts": 1.5},
)


def write(
    folder: Path, *, kernels: bool = False, pit: bool = False, padding: str | None = None
) -> Manifest:
    folder.mkdir()
    targets = parse_target("cpu,cuda")
    if kernels:
        (folder / KERNELS).write_bytes(b"\x7fELF kernels")
    compiled: dict[Kind, ir.Model] = {
        kind: ir.from_proto(chain(kernels=kernels or pit)) for kind in targets.kinds
    }
    fallback = ir.from_proto(chain())
    with WeightFile(folder) as weights:
        with weights.externalising([*compiled.values(), fallback]):
            pass
        record = weights.record()
    return write_artifact(
        folder,
        compiled=compiled,
        fallback=fallback,
        weights=record,
        source=Source(name="chain.onnx", sha256=hashlib.sha256(b"chain").hexdigest()),
        options=Options(target="auto", padding=padding),
        targets=targets,
        symbols=("pack_b4",) if kernels else (),
        identity="1/test" if kernels else "",
        reports={"cpu": REPORT},
    )


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    write(tmp_path / "a.pitc", kernels=True)
    return tmp_path / "a.pitc"


def places(path: Path) -> dict[str, tuple[int, int]]:
    """Offset and length of every external tensor of a model file."""
    model = onnx.load(path, load_external_data=False)
    found = {}
    for tensor in model.graph.initializer:
        entries = {e.key: e.value for e in tensor.external_data}
        if entries:
            assert entries["location"] == WEIGHTS
            found[tensor.name] = int(entries["offset"]), int(entries["length"])
    return found


def test_each_tensor_lies_in_the_weights_file_once_and_aligned(tmp_path: Path) -> None:
    write(tmp_path / "a")
    found = places(tmp_path / "a" / MODEL)
    assert found == places(tmp_path / "a" / FALLBACK)
    assert set(found) == {"w0", "w1", "m"}
    assert found["w0"] == found["w1"]
    assert LARGE.nbytes >= PAGE_FROM_BYTES > MEDIUM.nbytes
    assert found["w0"][0] % PAGE_BYTES == 0
    assert found["m"][0] % LINE_BYTES == 0
    assert (
        tmp_path / "a" / WEIGHTS
    ).stat().st_size == LARGE.nbytes + MEDIUM.nbytes + 2 * BRANCH_BYTES


def test_both_graphs_compute_what_the_source_computes(tmp_path: Path) -> None:
    write(tmp_path / "a")
    x = RNG.standard_normal((3, 256)).astype(np.float32)
    source = onnxruntime.InferenceSession(
        chain().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for name in (MODEL, FALLBACK):
        session = onnxruntime.InferenceSession(
            tmp_path / "a" / name, providers=["CPUExecutionProvider"]
        )
        for condition in (True, False):
            feeds = {"x": x, "c": np.array(condition)}
            want = source.run(None, feeds)[0]
            np.testing.assert_array_equal(session.run(None, feeds)[0], want)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "int8", "uint8", "int64", "bool", "bfloat16", "int4"],
)
def test_tensors_of_every_type_keep_their_bytes(tmp_path: Path, dtype: str) -> None:
    kind = ir.DataType[{"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())]
    array = (np.arange(4099) % 7).astype(kind.numpy())
    value = ir.Value(name="w", const_value=ir.Tensor(array, dtype=kind, name="w"))
    graph = ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 21}, name="g")
    with WeightFile(tmp_path) as weights:
        weights.externalise(ir.Model(graph, ir_version=10))
        record = weights.record()
    assert isinstance(value.const_value, ir.ExternalTensor)
    np.testing.assert_array_equal(value.const_value.numpy(), array)
    assert value.const_value.tobytes() == ir.Tensor(array, dtype=kind).tobytes()
    data = (tmp_path / WEIGHTS).read_bytes()
    assert (record.bytes, record.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_small_and_foreign_tensors_move_into_the_model(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    model = chain()
    onnx.save(model, foreign / "m.onnx", save_as_external_data=True, size_threshold=0, location="w")
    loaded = ir.load(foreign / "m.onnx")
    folder = tmp_path / "new"
    folder.mkdir()
    with WeightFile(folder) as weights:
        weights.externalise(loaded)
    small = loaded.graph.initializers["s"].const_value
    assert isinstance(small, ir.Tensor)
    shutil.rmtree(foreign)
    np.testing.assert_array_equal(small.numpy(), SMALL)
    (folder / MODEL).write_bytes(ir.to_proto(loaded).SerializeToString())
    onnxruntime.InferenceSession(folder / MODEL, providers=["CPUExecutionProvider"])


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, kernels=True)
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "stages_ms" not in json.loads((tmp_path / "a" / MANIFEST).read_text())["reports"]["cpu"]


def test_reports_survive_the_manifest() -> None:
    back = report_from_dict(report_to_dict(REPORT))
    assert (back.nodes, back.regions, back.kernels) == (
        REPORT.nodes,
        REPORT.regions,
        REPORT.kernels,
    )
    assert (back.model, back.padding, back.stages_ms) == ("chain.onnx", "mask", {})
    with pytest.raises(ValueError, match="not of this version"):
        report_from_dict({"nodes": [{"colour": "red"}]})


def test_a_sound_artifact_is_supported(artifact: Path) -> None:
    found = check_artifact(artifact, level="v4")
    assert (found.verdict, found.problem, found.graph) == (Verdict.SUPPORTED, "", MODEL)
    assert parse_manifest((artifact / MANIFEST).read_bytes()) == found.manifest


def damage(found: Check) -> str:
    assert found.verdict is Verdict.DAMAGED, found
    assert found.expected and found.found and "pitc compile" in found.mend
    assert not found.runs
    assert found.error().exit_code == 5
    return found.problem


@pytest.mark.parametrize("name", FILES)
def test_every_changed_byte_is_found(artifact: Path, name: str) -> None:
    """A sample of the bytes of each file, each with a random new value."""
    path = artifact / name
    data = bytearray(path.read_bytes())
    rng = random.Random(7)
    known = range(len(data))
    step = max(1, len(data) // 300)
    for place in [*known[::step], len(data) - 1]:
        old = data[place]
        data[place] = old ^ rng.randrange(1, 256)
        path.write_bytes(data)
        found = check_artifact(artifact, level="v4")
        assert not found.runs, f"{name}[{place}]: {old} -> {data[place]}"
        data[place] = old
    path.write_bytes(data)
    assert check_artifact(artifact, level="v4").runs


def test_every_changed_byte_of_the_manifest_is_found(artifact: Path) -> None:
    """Nothing else has a checksum for it, so here it is really every byte."""
    data = bytearray((artifact / MANIFEST).read_bytes())
    rng = random.Random(7)
    for place, old in enumerate(bytes(data)):
        data[place] = old ^ rng.randrange(1, 256)
        with pytest.raises((ValueError, RecursionError)):
            parse_manifest(bytes(data))
        data[place] = old
    parse_manifest(bytes(data))


@pytest.mark.parametrize("name", FILES)
def test_missing_short_and_long_files_are_found(artifact: Path, name: str) -> None:
    data = (artifact / name).read_bytes()
    for change in (data[:-1], data + b" ", b""):
        (artifact / name).write_bytes(change)
        for hashes in (True, False):
            assert damage(check_artifact(artifact, hashes=hashes)) == name
    (artifact / name).unlink()
    assert damage(check_artifact(artifact)) == name
    (artifact / name).mkdir()
    assert damage(check_artifact(artifact)) == name


def test_files_of_others_are_no_damage(artifact: Path, tmp_path: Path) -> None:
    """A tokenizer beside the model; but to replace the folder would lose it."""
    (artifact / "tokenizer.json").write_text("{}")
    assert check_artifact(artifact).verdict is Verdict.SUPPORTED
    with pytest.raises(
        UsageError, match=r"'tokenizer.json' in it is not a file of pitc .move 'tokenizer.json' out"
    ):
        check_output(artifact, force=True)
    copy_folder(artifact, tmp_path / "copy.pitc")
    assert not (tmp_path / "copy.pitc" / "tokenizer.json").exists()
    assert check_artifact(tmp_path / "copy.pitc").verdict is Verdict.SUPPORTED


def test_a_file_of_an_artifact_that_the_manifest_lacks_is_damage(artifact: Path) -> None:
    listed = parse_manifest((artifact / MANIFEST).read_bytes()).files
    rewrite(artifact, files={name: x for name, x in listed.items() if name != KERNELS})
    assert damage(check_artifact(artifact)) == KERNELS


def test_a_folder_that_never_was_an_artifact_is_not_damaged(artifact: Path, tmp_path: Path) -> None:
    for name in ("empty", "photos"):
        (tmp_path / name).mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"")
    for name in ("empty", "photos"):
        with pytest.raises(UsageError, match=f"not an artifact: it holds no {MANIFEST}"):
            check_artifact(tmp_path / name)
    pretrained = tmp_path / "minilm"
    pretrained.mkdir()
    (pretrained / "config.json").write_text("{}")
    copy_folder(artifact, pretrained / "onnx")
    found = check_artifact(pretrained)
    assert (found.verdict, found.folder) == (Verdict.SUPPORTED, pretrained / "onnx")


@pytest.mark.parametrize("threads", [0, -1, "4", 1.0, True])
def test_what_is_no_number_of_threads_is_an_error(artifact: Path, threads: object) -> None:
    with pytest.raises(UsageError, match="expected a number of threads of 1 or more, got"):
        pitc.load(artifact, threads=threads)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FILES)
def test_links_are_refused(artifact: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (artifact / name).rename(outside)
    (artifact / name).symlink_to(outside)
    assert damage(check_artifact(artifact)) == name


def rewrite(folder: Path, **changes: object) -> None:
    """Change fields of the manifest and give it a right checksum."""
    old = parse_manifest((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(replace(old, **changes).text())  # type: ignore[arg-type]


def test_another_schema_is_unsupported(artifact: Path) -> None:
    rewrite(artifact, schema_version=1)
    found = check_artifact(artifact)
    assert (found.verdict, found.expected, found.found) == (
        Verdict.UNSUPPORTED,
        "schema 3 (pitc 0.1.0)",
        "schema 1",
    )
    (artifact / MANIFEST).write_text('{"schema_version": 99, "unknown": []}')
    assert check_artifact(artifact).verdict is Verdict.UNSUPPORTED


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"schema_version": true}', '{"a": NaN}', "\ud800", "[" * 10000],
)
def test_manifests_that_are_none(artifact: Path, text: str) -> None:
    (artifact / MANIFEST).write_bytes(text.encode("utf-8", "surrogatepass"))
    assert damage(check_artifact(artifact)) == MANIFEST


def test_files_of_the_manifest_must_be_known(artifact: Path) -> None:
    manifest = parse_manifest((artifact / MANIFEST).read_bytes())
    for name in ("../secret", "/etc/passwd", "other.bin"):
        rewrite(artifact, files=manifest.files | {name: manifest.files[MODEL]})
        assert damage(check_artifact(artifact)) == name
    rewrite(artifact, files={k: v for k, v in manifest.files.items() if k != FALLBACK})
    os.unlink(artifact / FALLBACK)
    assert damage(check_artifact(artifact)) == FALLBACK


@pytest.mark.parametrize(
    ("built", "level", "verdict", "graph"),
    [
        (["v4", "v3"], "v4", Verdict.SUPPORTED, MODEL),
        (["v4", "v3"], "v3", Verdict.SUPPORTED, MODEL),
        (["v4", "v3"], None, Verdict.SUPPORTED, FALLBACK),
        (["v4"], "v3", Verdict.RECOMPILE, FALLBACK),
        (["v3"], "v4", Verdict.RECOMPILE, MODEL),
        (["v3"], None, Verdict.SUPPORTED, FALLBACK),
    ],
)
def test_cpu_levels(
    artifact: Path, built: list[str], level: str | None, verdict: Verdict, graph: str
) -> None:
    manifest = parse_manifest((artifact / MANIFEST).read_bytes())
    assert manifest.kernels is not None
    rewrite(artifact, kernels=replace(manifest.kernels, levels=built))
    found = check_artifact(artifact, level=level)
    assert (found.verdict, found.graph, found.runs) == (verdict, graph, True)
    assert bool(found.mend) == (verdict is Verdict.RECOMPILE)


@pytest.mark.parametrize(
    ("best", "wanted", "found"),
    [
        ("v4_amx", "", ("v4_amx", "v4")),
        ("v4_amx", "v4_bf16", ("v4_bf16", "v4")),
        ("v4_bf16", "v4", ("v4", "v4")),
        ("v4_bf16", "v3", ("v3", "v3")),
        (None, "", (None, None)),
        ("neon", "neon", ("neon", "neon")),
        ("v4_bf16", "v4_amx", "expected PITC_CPU up to v4_bf16 on this CPU, got 'v4_amx'"),
        (None, "v3", "expected PITC_CPU up to baseline on this CPU, got 'v3'"),
        ("v4", "V3", "expected PITC_CPU v3, v4, v4_bf16, v4_amx, got 'V3'"),
        ("neon", "v3", "expected PITC_CPU neon, got 'v3'"),
    ],
)
def test_a_variable_limits_the_level(
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    best: str | None,
    wanted: str,
    found: tuple[str | None, str | None] | str,
) -> None:
    monkeypatch.setattr(machine, "machine_level", lambda: best)
    monkeypatch.setenv(machine.LEVEL_VARIABLE, wanted)
    if isinstance(found, str):
        with pytest.raises(UsageError, match=found):
            check_artifact(artifact)
        return
    levels = machine.kernel_level(), machine.cpu_level()
    assert levels == found
    usual = levels[1] in ("v4", "v3")
    assert check_artifact(artifact).graph == (MODEL if usual else FALLBACK)


@pytest.mark.parametrize("kernels", [True, False])
def test_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: bool) -> None:
    """The same for PIT nodes that need no kernel."""
    artifact = tmp_path / "a.pitc"
    write(artifact, kernels=kernels, pit=True)
    manifest = parse_manifest((artifact / MANIFEST).read_bytes())
    rewrite(artifact, versions=manifest.versions | {"pitc": "0.0.9"})
    found = check_artifact(artifact, level="v4")
    assert (found.verdict, found.found) == (Verdict.RECOMPILE, "pitc 0.0.9")
    rewrite(artifact, plan_version=PLAN_VERSION + 1)
    assert check_artifact(artifact).verdict is Verdict.UNSUPPORTED
    rewrite(artifact, plan_version=manifest.plan_version)
    monkeypatch.setattr(check_module, "runtime_version", lambda: "1.23.1")
    found = check_artifact(artifact, level="v4")
    assert found.verdict is Verdict.UNSUPPORTED
    assert "pip install" in found.mend


def test_the_version_of_onnxruntime_is_that_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of other names (onnxruntime-gpu) hold the same module."""
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(__version__="1.99"))
    assert machine.runtime_version() == "1.99"
    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.setattr(machine, "installed", lambda name: f"{name} 1.0")
    assert machine.runtime_version() == "onnxruntime 1.0"


def test_the_command_that_mends(tmp_path: Path) -> None:
    folder = tmp_path / "my model.pitc"
    write(folder, kernels=True, padding="mask")
    (folder / MODEL).unlink()
    mend = check_artifact(folder).mend
    assert mend == f"run: pitc compile chain.onnx -o '{folder}' --force --padding mask"


def test_what_is_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "nothing"):
        with pytest.raises(UsageError, match="not an artifact"):
            check_artifact(tmp_path / name)
