"""`--precision bf16`: products of rounded numbers, on every level, through the plug-in."""

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import pitc
from models.bert import BertConfig, bert
from models.routed import RoutedConfig, routed
from pitc.check.tolerance import ROUNDED
from pitc.errors import UsageError
from pitc.host.machine import bfloat16_unit, cpu_level, lacking, runs_level
from pitc.ir.summary import summary_text
from pitc.report.page import page
from tests.plan_reference import parse
from tests.plugin.test_cli import Run
from tests.runtime_support import ROOT, Array, quiet_options, use_built_provider

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

LEVELS = [
    *(level for level in ("v4_amx", "v4_bf16") if runs_level(level)),
    *(level for level in ("v4", "v3") if level <= (cpu_level() or "")),
]
TEXT = """<ir_version: 9, opset_import: ["": 18]>
g (float[b, s, 96] x) => (float[b, s, 96] y) {
    h0 = MatMul (x, w1) h1 = Add (h0, b1) h = Relu (h1)
    z0 = MatMul (h, w2) z = Add (z0, x) y = MatMul (z, w3) }"""


def model() -> onnx.ModelProto:
    """A feed-forward block, whose second product skips zeros, and a product behind it; one weight
    is 0, one denormal.
    """
    proto = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in {"w1": (96, 200), "b1": (200,), "w2": (200, 96), "w3": (96, 96)}.items():
        x = (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
        x.flat[:2] = 0, 1e-40
        proto.graph.initializer.append(numpy_helper.from_array(x, name))
    return proto


def plain(proto: onnx.ModelProto, x: Array) -> Array:
    session = ort.InferenceSession(
        proto.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": x})[0])


def at_level(compiled: pitc.CompiledModel, level: str, threads: int = 1) -> ort.InferenceSession:
    options = quiet_options()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("ep.pitexecutionprovider.cpu_level", level)
    return compiled.session(options)


def error(found: Array, wanted: Array) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.fixture(name="compiled", scope="module")
def _compiled() -> pitc.CompiledModel:
    return pitc.compile(model(), precision="bf16", suggest=False)


def products_of(compiled: pitc.CompiledModel) -> list[dict[str, str]]:
    """The plans of its products."""
    found = onnx.load(compiled.path / "model.onnx", load_external_data=False).graph
    texts = [a.s.decode() for n in found.node for a in n.attribute if a.name == "ep_cache_context"]
    return [p for p in map(parse, texts) if p["op"] == "contract"]


def test_all_products_round_their_operands(compiled: pitc.CompiledModel) -> None:
    found = onnx.load(compiled.path / "model.onnx", load_external_data=False).graph
    products = products_of(compiled)
    assert [(p["skips"], p["rounded"], p.get("stored")) for p in products] == [
        *(("0", "bfloat16", "result"), ("1", "bfloat16", "a"), ("0", "bfloat16", None))
    ]
    assert not {"MatMul", "Gemm"} & {n.op_type for n in found.node}
    assert compiled.manifest.options.precision == "bf16"
    engines = [r.engine for r in compiled.report.nodes if r.op_type == "MatMul"]
    assert engines == ["amx, avx512_bf16, cpu"] * 3


def test_reports_name_the_precision(run: Run, tmp_path: Path) -> None:
    """That of each kind of machine."""
    path, out = tmp_path / "m.onnx", tmp_path / "m.pitc"
    onnx.save(model(), path)
    found = pitc.api.explain(path, "cpu,cuda", precision="bf16", suggest=False)
    assert {kind: report.precision for kind, report in found.items()} == {
        "cpu": "bf16",
        "cuda": "float32",
    }
    assert "padding none, precision bf16: " in summary_text(found["cpu"])
    assert "precision" not in summary_text(found["cuda"])
    pages = {kind: page([report]) for kind, report in found.items()}
    assert ">bf16</dd>" in pages["cpu"] and ">bf16</dd>" not in pages["cuda"]
    pitc.compile(path, precision="bf16", suggest=False, output=out)
    assert pitc.load(out).report.precision == "bf16"
    assert "padding none, precision bf16" in run("inspect", out)[1]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (2, 0), (1, 7), (3, 65)])
def test_answers_of_every_level(
    compiled: pitc.CompiledModel, shape: tuple[int, int], level: str
) -> None:
    x = np.random.default_rng(1).normal(size=(*shape, 96)).astype(np.float32)
    wanted = plain(model(), x)
    found = np.asarray(at_level(compiled, level).run(None, {"x": x})[0])
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    assert not x.size or 1e-5 < error(found, wanted) < 6e-3
    (again,) = at_level(compiled, level, threads=4).run(None, {"x": x})
    np.testing.assert_array_equal(found, again)


VARIANTS = ("dense", "row", "tile8", "block16", "block64")


def with_variant(compiled: pitc.CompiledModel, level: str, variant: str) -> ort.InferenceSession:
    options = quiet_options()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("ep.pitexecutionprovider.cpu_level", level)
    options.add_session_config_entry("ep.pitexecutionprovider.variant", variant)
    return compiled.session(options)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [0, 1, 5, 70])
def test_every_variant_has_the_same_bits(
    compiled: pitc.CompiledModel, level: str, rows: int
) -> None:
    """Zeros of words are skipped, or not. A matrix unit, which skips nothing, sums otherwise."""
    if level == "v4_amx":
        pytest.skip("has no lists")
    x = np.random.default_rng(rows).normal(size=(1, rows, 96)).astype(np.float32)
    answers = [
        np.asarray(with_variant(compiled, level, v).run(None, {"x": x})[0]) for v in VARIANTS
    ]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


ODD = """<ir_version: 9, opset_import: ["": 18]>
g (float[b, 257] x) => (float[b, 64] y) { r = Relu (x) y = MatMul (r, w) }"""


@pytest.mark.parametrize("level", LEVELS)
def test_rows_that_no_product_stores_are_made_words(level: str) -> None:
    """The ReLU of an input, of an odd extent: what is below 0 is none, NaN stays in its row."""
    proto = onnx.parser.parse_model(ODD)
    rng = np.random.default_rng(4)
    w = (rng.normal(size=(257, 64)) / 16).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    compiled = pitc.compile(proto, precision="bf16", suggest=False)
    (product,) = products_of(compiled)
    assert (product["skips"], product["input_relu"], product.get("stored")) == ("1", "1", None)
    for rows in (0, 1, 6, 40):
        x = rng.normal(size=(rows, 257)).astype(np.float32)
        wanted = plain(proto, x)
        for variant in VARIANTS:
            found = np.asarray(with_variant(compiled, level, variant).run(None, {"x": x})[0])
            assert found.shape == wanted.shape
            assert not rows or error(found, wanted) < 6e-3
    x[3, 256], x[4, 0] = np.nan, -np.nan
    found = np.asarray(with_variant(compiled, level, "row").run(None, {"x": x})[0])
    assert np.isnan(found[[3, 4]]).all() and np.isfinite(np.delete(found, [3, 4], 0)).all()


def test_a_weight_that_would_be_infinite_is_not_rounded() -> None:
    """Its product stays float32; the others round."""
    proto = model()
    w3 = next(t for t in proto.graph.initializer if t.name == "w3")
    x = numpy_helper.to_array(w3).copy()
    x[5, 7] = float.fromhex("0x1.ffp127")  # the least of them
    w3.CopyFrom(numpy_helper.from_array(x, "w3"))
    compiled = pitc.compile(proto, precision="bf16", suggest=False)
    assert [p.get("rounded") for p in products_of(compiled)] == ["bfloat16", "bfloat16", None]


@pytest.mark.parametrize("level", LEVELS)
def test_odd_numbers_stay_in_their_rows(compiled: pitc.CompiledModel, level: str) -> None:
    """NaN and infinity, and what is rounded to it, as the model has them."""
    x = np.random.default_rng(2).normal(size=(1, 6, 96)).astype(np.float32)
    x[0, 1, 3], x[0, 2, 95], x[0, 3, 0] = np.nan, -np.inf, 3.4e38
    found = np.asarray(at_level(compiled, level).run(None, {"x": x})[0])
    wanted = plain(model(), x)
    assert np.isfinite(found[0, [0, 4, 5]]).all() and np.isfinite(wanted[0, [0, 4, 5]]).all()
    assert error(found[0, [0, 4, 5]], wanted[0, [0, 4, 5]]) < 6e-3
    for row in (1, 2, 3):
        assert not np.isfinite(found[0, row]).all()


def test_padding_and_the_artifact(tmp_path: Path) -> None:
    """Rows of an encoder are packed as in float32; the files grow by half of its weights."""
    config = BertConfig(layers=2, hidden=128, heads=4, ffn=256, vocab=50, head="none")
    proto = bert(config, np.random.default_rng(3))
    sizes = {}
    for precision in ("float32", "bf16"):
        made = pitc.compile(
            proto, padding="attention_mask", precision=precision, suggest=False,
            output=tmp_path / precision,
        )  # fmt: skip
        sizes[precision] = sum(f.stat().st_size for f in made.path.glob("weights*.bin"))
    assert sizes["float32"] < sizes["bf16"] <= 1.5 * sizes["float32"]
    result = pitc.verify(tmp_path / "bf16")
    assert result.ok
    whys = {output.why for output in result.comparison.outputs}
    assert whys == {f"{ROUNDED} arithmetic"}


def test_experts() -> None:
    """Each rounds, on the tokens that are sent to it; some of them skip zeros of a ReLU."""
    config = RoutedConfig(hidden=64, ffn=256)
    proto = routed(config, np.random.default_rng(0))
    compiled = pitc.compile(proto, precision="bf16", suggest=False)
    products = products_of(compiled)
    assert len(products) >= 2 * config.experts
    assert {p.get("rounded") for p in products} == {"bfloat16"}
    assert any(p["gather"] == "1" for p in products)
    rng = np.random.default_rng(5)
    for shape in ((1, 1), (2, 30)):
        x = rng.normal(size=(*shape, 64)).astype(np.float32) * np.float32(0.1)
        experts = rng.integers(0, config.experts, shape)
        np.put_along_axis(x, experts[..., None], 3, -1)  # no rounding sends it elsewhere
        wanted = plain(proto, x)
        for level in LEVELS:
            found = np.asarray(at_level(compiled, level).run(None, {"x": x})[0])
            assert error(found, wanted) < 9e-3


NAMED = """<ir_version: 9, opset_import: ["": 18]>
g (float[t, 1, 1, 97] x, int64[t, 2] ids) => (float[t, 2, 1, 64] y) {
    m = Gather (w, ids) y = MatMul (x, m) }"""


def named_matrices() -> tuple[onnx.ModelProto, Array]:
    """Matrices that an index names, of an odd extent."""
    w = (np.random.default_rng(6).normal(size=(5, 97, 64)) / 10).astype(np.float32)
    proto = onnx.parser.parse_model(NAMED)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return proto, w


def grouped_of(compiled: pitc.CompiledModel) -> list[str | None]:
    found = onnx.load(compiled.path / "model.onnx", load_external_data=False).graph
    texts = [a.s.decode() for n in found.node for a in n.attribute if a.name == "ep_cache_context"]
    return [p.get("rounded") for p in map(parse, texts) if p["op"] == "grouped"]


@pytest.mark.parametrize("level", LEVELS)
def test_matrices_that_an_index_names(level: str) -> None:
    proto, w = named_matrices()
    compiled = pitc.compile(proto, precision="bf16", suggest=False)
    assert grouped_of(compiled) == ["bfloat16"]
    rng = np.random.default_rng(7)
    for t in (0, 1, 40):
        x = rng.normal(size=(t, 1, 1, 97)).astype(np.float32)
        ids = rng.integers(-5, 5, (t, 2))
        for threads in (1, 4):
            session = at_level(compiled, level, threads)
            found = np.asarray(session.run(None, {"x": x, "ids": ids})[0])
            assert found.shape == (t, 2, 1, 64)
            assert not t or 1e-5 < error(found, x @ w[ids]) < 6e-3


def test_named_matrices_that_would_be_infinite_are_not_rounded() -> None:
    proto, w = named_matrices()
    w[3, 2, 1] = float.fromhex("0x1.ffp127")
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    compiled = pitc.compile(proto, precision="bf16", suggest=False)
    assert grouped_of(compiled) == [None]
    feeds = {"x": np.ones((1, 1, 1, 97), np.float32), "ids": np.array([[3, 0]])}
    assert np.isfinite(compiled.run(feeds)["y"]).all()


def test_a_machine_without_the_units_says_so_once(
    compiled: pitc.CompiledModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pitc.host.machine.machine_level", lambda: "v4")
    pitc.compiled._tell_lacking.cache_clear()
    compiled.session(quiet_options())  # in whose log the plug-in would say so
    assert not caplog.records
    for _ in range(2):
        compiled.session()
    said = [r.message for r in caplog.records if "AVX512-BF16" in r.message]
    assert said == ["this CPU shows no AVX512-BF16: products of bfloat16 are computed in float32"]


@pytest.mark.parametrize(
    ("best", "good", "forced", "part", "used"),
    [
        ("v3", False, "", "shows no AVX512-BF16", None),
        ("v4_bf16", False, "", "AVX512-BF16 is slower than float32", None),
        ("v4_bf16", False, "v4_bf16", None, "AVX512-BF16"),
        ("v4_bf16", True, "", None, "AVX512-BF16"),
        ("v4_amx", False, "", "gives no tile registers", None),
        ("v4_amx", True, "", None, "AMX"),
        ("v4_amx", False, "v4_amx", None, None),
        ("v4_amx", False, "v4", None, None),
        ("v4", False, "v4", None, None),
    ],
)
def test_what_a_machine_lacks(
    monkeypatch: pytest.MonkeyPatch,
    best: str,
    good: bool,
    forced: str,
    part: str | None,
    used: str | None,
) -> None:
    """In the words of the plug-in; who asked for a level is told nothing."""
    monkeypatch.setattr("pitc.host.machine.machine_level", lambda: best)
    for name in ("_has_tiles", "_has_fast_pairs"):
        monkeypatch.setattr(f"pitc.host.machine.{name}", lambda: good)
    monkeypatch.setenv("PITC_CPU", forced)
    assert bfloat16_unit() == used
    text = lacking()
    assert (text is None) == (part is None)
    if text is not None and part is not None:
        source = (ROOT / "runtime" / "ep" / "provider" / "ep.cc").read_text("utf-8")
        assert part in text and text in "".join(re.split(r'"\s+"', source))


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown precision 'fp8'"):
        pitc.compile(model(), precision="fp8")
    with pytest.raises(UsageError, match="precision bf16 is of CPUs"):
        pitc.compile(model(), target="cuda", precision="bf16")
