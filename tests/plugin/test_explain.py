"""`pitc explain` names the engine and tiles of each node, and what a run copies to the host."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import pitc
from models.bert import BertConfig, bert
from models.half import half
from pitc import api
from pitc.artifact.check import check_artifact
from pitc.artifact.manifest import MANIFEST, parse_manifest, report_from_dict, report_to_dict
from pitc.host.placement import pit_nodes
from pitc.ir.cuda_target import CUDA_ARCHS
from pitc.ir.engines import kernels_of, predicted_tile
from pitc.ir.plan import EP_NAME
from pitc.ir.plans.ops import Attention
from pitc.ir.report import NodeRecord, Report
from pitc.ir.target import target_of
from pitc.report.page import page

Run = Callable[..., tuple[int, str, str]]

MMA = tuple(f"mma{m}x128" for m in (128, 64, 32, 16))
SIMT = ("simt128x128", "simt32x128")
FIXTURES = Path(__file__).parents[2] / "models/export/fixtures"
ENCODER = BertConfig(layers=1, hidden=64, heads=1, ffn=128, vocab=50)


def relu_pair(rows: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """x @ a, ReLU, @ b."""
    rng = np.random.default_rng(0)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    weights = {"a": rng.standard_normal((256, 512)), "b": rng.standard_normal((512, 128))}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["h"], name="first"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
            helper.make_node("MatMul", ["r", "b"], ["y"], name="second"),
        ],
        "pair",
        [helper.make_tensor_value_info("x", dtype, [rows, 256])],
        [helper.make_tensor_value_info("y", dtype, [rows, 128])],
        [onnx.numpy_helper.from_array(w.astype(kind), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def encoder(mask: str = "int64") -> onnx.ModelProto:
    return bert(replace(ENCODER, mask_dtype=mask), np.random.default_rng(0))


def named(report: Report) -> dict[str, NodeRecord]:
    return {record.node: record for record in report.nodes}


def test_a_sparse_pair_on_both_kinds_of_machine() -> None:
    found = api.explain(relu_pair("rows"), "cpu:v3,cuda:sm_80")
    assert list(found) == ["cpu", "cuda"]
    for kind, report in found.items():
        assert (report.kind, report.target) == (kind, "cpu:v3,cuda:sm_80")
        records = named(report)
        assert [records[n].engine for n in ("first", "relu")] == ["", ""]
        assert records["first"].inside == records["relu"].inside == "second"
    cpu, cuda = (named(report)["second"] for report in found.values())
    assert cpu.kernel is not None and cuda.kernel is not None
    assert (cpu.engine, cpu.kernel.tiles) == ("cpu", ("v3:6x16",))
    assert cpu.kernel.micro_tiles[:2] == ("row 1x1", "tile8 8x1")
    assert (cuda.engine, cuda.kernel.tiles) == ("mma, simt", MMA + SIMT)
    assert cuda.kernel.micro_tiles == (
        "tile16 16x1",
        "tile32 32x1",
        "block32 1x32",
        "square32 32x32",
    )
    assert cpu.kernel.predicted == cuda.kernel.predicted == ()  # nobody knows how many rows
    assert cuda.runs.splitlines()[:2] == ["mma 128x128 64x128 32x128 16x128", "simt 128x128 32x128"]


def test_half_precision_has_tensor_cores_alone() -> None:
    (report,) = api.explain(relu_pair("rows", TensorProto.FLOAT16), "cuda").values()
    record = named(report)["second"]
    assert record.kernel is not None
    assert (record.engine, record.kernel.tiles) == ("mma", MMA)
    assert "block64 1x64" in record.kernel.micro_tiles
    (plain,) = api.explain(relu_pair("rows", TensorProto.FLOAT16), "cpu").values()
    assert named(plain)["second"].engine == "cpu"  # of float32, with conversions around


@pytest.mark.parametrize("rows", [17, 4096])
def test_a_tile_is_predicted_where_sizes_are_known(rows: int) -> None:
    (report,) = api.explain(relu_pair(rows), "cuda:sm_80,sm_90").values()
    kernel = named(report)["second"].kernel
    assert kernel is not None
    told = dict(text.split(" on ") for text in kernel.predicted)
    want: dict[str, str] = {}
    for arch in ("sm_80", "sm_90"):
        tile = predicted_tile("float32", CUDA_ARCHS[arch], rows, 512, 128).name
        want[tile] = f"{want[tile]} {arch}" if tile in want else arch
    assert told == want
    assert "predicted: " in named(report)["second"].runs


@pytest.mark.parametrize("rows", [0, 1])
def test_so_few_rows_in_every_run_are_no_node(rows: int) -> None:
    (report,) = api.explain(relu_pair(rows), "cuda:sm_80").values()
    assert named(report)["second"].kernel is None


def test_the_predicted_tile_is_the_one_of_least_clocks() -> None:
    arch = CUDA_ARCHS["sm_80"]
    assert predicted_tile("float16", arch, 1, 768, 3072).name == "mma16x128"
    assert predicted_tile("float16", arch, 4096, 768, 3072).name == "mma128x128"
    small = replace(arch, name="sm_80", processors=1)
    assert predicted_tile("float16", small, 16, 768, 128).name == "mma16x128"


def test_an_encoder_names_what_runs_where() -> None:
    (report,) = api.explain(half(encoder()), "cuda:sm_80", "attention_mask").values()
    products = [r for r in report.nodes if r.op_type == "MatMul" and r.kernel is not None]
    assert [r.kernel.operation for r in products if r.kernel].count("contract") == 6
    (attention,) = (r for r in report.nodes if r.lowering == "attention")
    assert attention.kernel is not None and attention.kernel.tiles == ("mma128x32",)
    norms = [r for r in report.nodes if r.op_type == "LayerNormalization"]
    assert {(r.lowering, r.engine) for r in norms} == {("packed", "onnxruntime")}
    names = named(report)
    taken = [r for r in report.nodes if r.lowering == "packed" and r.inside]
    assert taken and all(names[r.inside].kernel is not None and not r.engine for r in taken)
    assert {"Erf"} <= {r.op_type for r in taken}  # GELU is finished in its product
    moved = [r for r in report.nodes if r.lowering == "packed" and r.op_type == "Transpose"]
    assert {r.engine for r in moved} == {""}  # nothing is left of it
    assert "copies to host" in page([report])


def computed() -> onnx.ModelProto:
    """Rows whose mask is computed, with a node inside that is ONNX Runtime's."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
        model (float[b, s, 256] x, int64[b, s] ids) => (float[b, s, 256] y)
        <int64 none = {0}, int64[1] last = {-1}>
        {
            mask = Greater (ids, none)
            h = MatMul (x, a)
            n = LayerNormalization (h, scale)
            found = MatMul (n, c)
            live = Cast <to = 1> (mask)
            row = Unsqueeze (live, last)
            y = Mul (found, row)
        }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in (("a", (256, 1024)), ("scale", (1024,)), ("c", (1024, 256))):
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize("mask", ["bool", "int64", "float32", "computed"])
def test_a_mask_is_copied_where_it_is_computed(mask: str) -> None:
    given = mask != "computed"
    model, padding, copies = (
        (encoder(mask), "attention_mask", 0) if given else (computed(), None, 1)
    )
    cuda, cpu = api.explain(model, "cuda:sm_80,cpu", padding).values()
    assert (cuda.host_copies, [g.host_copies for g in cuda.regions]) == (copies, [copies])
    assert (cpu.host_copies, [g.host_copies for g in cpu.regions]) == (0, [0])


def test_copies_are_those_of_the_graph() -> None:
    """Detectors of the lowered graph read inputs where no copy is told of."""
    for model, padding in ((encoder("int64"), "attention_mask"), (computed(), None)):
        copies = int(padding is None)
        options = api.CompileOptions("cuda:sm_80", padding)
        imported, _ = api.import_model(model)
        lowered = api.lower(imported, options, prices=api.prices_of("cuda"), kind="cuda")
        detectors = [n for n in lowered.model.graph if _source(n) == EP_NAME]
        made = [n for n in detectors if n.inputs[0] is not None and n.inputs[0].producer()]
        assert (len(detectors), len(made)) == (1, copies)


def _source(node: ir.Node) -> str | None:
    source = node.attributes.get("source")
    return source.as_string() if source is not None else None


def test_all_levels_of_attention_on_cpus() -> None:
    flags: dict[str, Any] = {"bias": False, "nan_to_zero": False, "no_keys_to_zero": False}
    plan = Attention(d=64, dv=64, dtype="float32", heads=1, scale=1.0, **flags)
    found = kernels_of(plan, target_of("cpu"))
    assert found.record.tiles == ("v4:32x8", "v4:16x12", "v3:16x6")
    found = kernels_of(plan, target_of("cpu", ("v3",)))
    assert found.record.tiles == ("v3:16x6",)


def test_reports_survive_manifest_and_page() -> None:
    reports = list(api.explain(relu_pair(32), "cpu,cuda").values())
    for report in reports:
        back = report_from_dict(report_to_dict(report))
        assert (back.kind, back.nodes, back.host_copies) == (report.kind, report.nodes, 0)
    text = page(reports)
    assert "For cpu</h2>" in text and "For cuda</h2>" in text
    assert "mma 128x128 64x128 32x128 16x128<br>simt 128x128 32x128<br>micro-<wbr>tiles: " in text
    assert "predicted: " in text
    assert "For cuda</h2>" not in page(reports[1:])


def test_the_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "computed.onnx"
    onnx.save(computed(), path)
    monkeypatch.setenv("COLUMNS", "200")
    words = ("explain", path)
    code, out, err = run(*words, "--target", "cpu,cuda:sm_80")
    assert (code, err) == (0, "")
    assert out.index("for cpu") < out.index("for cuda") and "copies to host" in out
    assert "a run copies 1 mask from the GPU to the host, and waits each time" in out
    body = json.loads(run(*words, "--target", "cpu,cuda:sm_80", "--node", "MatMul", "--json")[1])
    assert (body["kind"], list(body["reports"])) == ("cpu", ["cpu", "cuda"])
    assert body["reports"]["cuda"]["host_copies"] == 1
    assert {n["op_type"] for n in body["reports"]["cuda"]["nodes"]} == {"MatMul"}
    monkeypatch.setenv("PITC_TARGET", "cuda:sm_80")
    body = json.loads(run(*words, "--json")[1])
    assert body["kind"] == "cuda" and "reports" not in body
    code, _, err = run(*words, "--target", "cuda:sm_81")
    assert (code, err.count("\n")) == (2, 1) and "sm_80, sm_86" in err


# ---- artifacts


@pytest.fixture(name="artifact", scope="module")
def _artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of both kinds, without kernels: nothing is found to skip."""
    path = tmp_path_factory.mktemp("both") / "a.pitc"
    node = helper.make_node("Neg", ["x"], ["y"], name="negated")
    ends = [helper.make_tensor_value_info(name, 1, ["n", 3]) for name in "xy"]
    graph = helper.make_graph([node], "plain", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    api.compile(made, "cuda,cpu", output=path)
    return path


def test_an_artifact_keeps_both_reports(run: Run, artifact: Path) -> None:
    assert list(pitc.load(artifact).reports) == ["cuda", "cpu"]
    assert pitc.load(artifact).report.kind == "cuda"
    code, out, err = run("explain", artifact)
    assert (code, err) == (0, "") and out.index("for cuda") < out.index("for cpu")
    code, _, err = run("explain", artifact, "--target", "cuda")
    assert code == 2 and "an artifact has its target already" in err
    assert pit_nodes(check_artifact(artifact)) == {"cuda": {}, "cpu": {}}


def test_an_artifact_without_reports(run: Run, artifact: Path) -> None:
    whole = (artifact / MANIFEST).read_bytes()
    text = replace(parse_manifest(whole), reports={}).text()
    try:
        (artifact / MANIFEST).write_text(text)
        code, _, err = run("explain", artifact)
    finally:
        (artifact / MANIFEST).write_bytes(whole)
    assert (code, err.count("\n")) == (5, 1) and "there is no report" in err


def custom() -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        m (float[b, 8] x) => (float[b, 8] y) {
            s = Shape (x) h = own.MyCustom (x) r = Reshape (h, s) y = Relu (r) }"""
    return onnx.parser.parse_model(text)


def test_patterns_find_operators_of_other_domains(run: Run, tmp_path: Path) -> None:
    onnx.save(custom(), tmp_path / "m.onnx")
    for pattern in ("My*", "own::*", "own::MyCustom", "h"):
        code, out, _ = run("explain", tmp_path / "m.onnx", "--node", pattern, "--json")
        assert code == 0
        assert [n["op_type"] for n in json.loads(out)["nodes"]] == ["own::MyCustom"], pattern


def test_names_that_are_like_a_pattern_are_offered(run: Run, tmp_path: Path) -> None:
    onnx.save(relu_pair(4), tmp_path / "m.onnx")
    for pattern, nearest in (("matmul", "MatMul"), ("*Rleu*", "Relu"), ("secnd", "second")):
        code, _, err = run("explain", tmp_path / "m.onnx", "--node", pattern)
        assert code == 2 and f"nearest names: {nearest}" in " ".join(err.split()), pattern
    code, _, err = run("explain", tmp_path / "m.onnx", "--node", "0000")
    assert code == 2 and "nearest" not in err


def test_a_summary_comes_first_and_plumbing_is_left_out(run: Run, tmp_path: Path) -> None:
    onnx.save(encoder(), tmp_path / "m.onnx")
    words = ("explain", tmp_path / "m.onnx", "--padding", "attention_mask")
    code, short, _ = run(*words)
    assert code == 0 and short.startswith("m.onnx on cpu, padding attention_mask: ")
    assert "100.0 % of the work" in short.splitlines()[1]
    assert "refusals that cost most:" not in short  # they take under 1 %
    shown = {line.split()[0] for line in short.splitlines() if line.strip()}
    report = api.explain(tmp_path / "m.onnx", padding="attention_mask")["cpu"]
    plumbing = [r.node for r in report.nodes if r.is_plumbing]
    assert len(plumbing) > 10 and not shown & set(plumbing)
    assert "are left out (--all shows them, --node PATTERN some)" in short
    whole = run(*words, "--all")[1]
    assert set(plumbing) <= {line.split()[0] for line in whole.splitlines() if line.strip()}
    assert "are left out" not in whole


def test_refused_nodes_alone(run: Run, tmp_path: Path) -> None:
    model = relu_pair("rows")
    weight = next(w for w in model.graph.initializer if w.name == "b")
    array = onnx.numpy_helper.to_array(weight).copy()
    array[3, 5] = np.inf
    weight.CopyFrom(onnx.numpy_helper.from_array(array, "b"))
    onnx.save(model, tmp_path / "m.onnx")
    code, out, _ = run("explain", tmp_path / "m.onnx", "--refused", "--json")
    body = json.loads(out)
    (node,) = body["nodes"]
    assert code == 0 and node["node"] == "second"
    assert (node["refusal"]["code"], node["refusal"]["value"]) == ("PIT003", "b")
    assert body["summary"]["all"]["nodes"] == 3  # of all nodes
    (cost,) = body["summary"]["costs"]
    assert (cost["code"], cost["value"], cost["work"]["nodes"]) == ("PIT003", "b", 1)
    text = run("explain", tmp_path / "m.onnx", "--refused")[1]
    assert "second" in text and "\nfirst" not in text


def test_a_contraction_says_why_it_is_no_attention_either() -> None:
    """Scores of dead pairs have no kernel alone, and are no attention: neither hides the other."""
    mixed = FIXTURES / "bert-eager-dynamo-dynamic.onnx"
    report = api.explain(mixed, padding="attention_mask", suggest=False)["cpu"]
    both = [r.refusal for r in report.nodes if r.refusal and r.refusal.also]
    assert both
    assert all(r.also is not None and r.also.code is not r.code for r in both)
    body = next(n["refusal"] for n in report.to_dict()["nodes"] if "also" in (n["refusal"] or ()))
    assert {"code", "reason", "value", "hint"} <= body["also"].keys()
    assert report_from_dict(report_to_dict(report)).nodes == report.nodes
