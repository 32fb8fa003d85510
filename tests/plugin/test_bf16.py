"""`--precision bf16`: products of rounded numbers, on every level, through the plug-in."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import pitc
from models.bert import BertConfig, bert
from pitc.check.tolerance import ROUNDED
from pitc.errors import UsageError
from pitc.host.machine import cpu_level, multiplies_pairs
from tests.plan_reference import parse
from tests.runtime_support import Array, quiet_options, use_built_provider

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

LEVELS = [
    *(["v4_bf16"] if multiplies_pairs() else []),
    *(level for level in ("v4", "v3") if level <= (cpu_level() or "")),
]
TEXT = """<ir_version: 9, opset_import: ["": 18]>
g (float[b, s, 96] x) => (float[b, s, 96] y) {
    h0 = MatMul (x, w1) h1 = Add (h0, b1) h = Relu (h1)
    z0 = MatMul (h, w2) z = Add (z0, x) y = MatMul (z, w3) }"""


def model() -> onnx.ModelProto:
    """A feed-forward block, whose second product skips zeros in float32, and a product behind it;
    one weight is 0, one denormal.
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


def test_all_products_round_their_operands(compiled: pitc.CompiledModel) -> None:
    found = onnx.load(compiled.path / "model.onnx", load_external_data=False).graph
    texts = [a.s.decode() for n in found.node for a in n.attribute if a.name == "ep_cache_context"]
    plans = [parse(text) for text in texts]
    products = [p for p in plans if p["op"] == "contract"]
    assert [(p["skips"], p.get("rounded")) for p in products] == [
        *(("0", "bfloat16"), ("1", None), ("0", "bfloat16"))
    ]
    assert not {"MatMul", "Gemm"} & {n.op_type for n in found.node}
    assert compiled.manifest.options.precision == "bf16"
    engines = [r.engine for r in compiled.report.nodes if r.op_type == "MatMul"]
    assert engines == ["avx512_bf16, cpu", "cpu", "avx512_bf16, cpu"]


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


def test_a_machine_without_the_units_says_so_once(
    compiled: pitc.CompiledModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pitc.compiled.multiplies_pairs", lambda: False)
    pitc.compiled._tell_without_pairs.cache_clear()
    for _ in range(2):
        compiled.session(quiet_options())
    said = [r.message for r in caplog.records if "AVX512-BF16" in r.message]
    assert said == ["this CPU has no AVX512-BF16: products of bf16 artifacts run in float32"]


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown precision 'fp8'"):
        pitc.compile(model(), precision="fp8")
    with pytest.raises(UsageError, match="precision bf16 is of CPUs"):
        pitc.compile(model(), target="cuda", precision="bf16")
