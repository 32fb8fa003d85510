"""Real exports (models/export/fixtures): both exporters, eager and sdpa, every padding side.

The files are what torch and transformers wrote; only sizes and weights are small. Decoders with a
cache of keys and values are tested in test_cached_exports.py, windows with global tokens in
test_window_exports.py.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from pitc.check.reference import reference_session
from pitc.importer import load_model
from pitc.ir import target as targets
from pitc.ir.refusal import Code
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import Lowered, analyse
from tests.fact_check import probed
from tests.lower_support import plans
from tests.lowered_exports import lowered_export, masks_of, what_packs
from tests.plan_reference import evaluator, run_lowered

FOLDER = Path(__file__).parents[2] / "models/export/fixtures"
FILES = sorted(FOLDER.glob("*.onnx"))
CACHED = [f for f in FILES if {"past", "cache", "merged"} & {*f.stem.split("-")}]
FIXTURES = [f for f in FILES if f not in CACHED]
QUANTISED = [f for f in FIXTURES if f.stem.endswith(("-static", "-dynamic", "-int4"))]
MAX_BYTES = 300_000
RTOL = 1e-5  # norm-wise, float32
BATCH, SEQUENCE, TARGET = 3, 9, 6
CONTRACTIONS = ("MatMul", "Gemm", "MatMulInteger", "com.microsoft::MatMulNBits")


def name(file: Path) -> str:
    return file.stem


def family(file: Path) -> str:
    """The model, without attention and exporter."""
    return file.stem.rsplit("-", 2)[0]


def of(*families: str) -> list[Path]:
    return [f for f in FIXTURES if family(f) in families and f not in QUANTISED]


IMAGES = of("vit", "resnet", "swin")
POOLED = of("bert-classifier", "bert-mean", "bert-lengths")  # they read live tokens only
SEQ2SEQ = of("t5", "bart")
EXPERTS = of("switch", "mixtral", "experts-loop")
WINDOWS = of("longformer", "led")  # tested in test_window_exports.py
NO_TOKENS = IMAGES + POOLED + SEQ2SEQ + EXPERTS + WINDOWS + QUANTISED
TOKENS = [f for f in FIXTURES if f not in NO_TOKENS]
TYPED = of("bert-bool", "bert-float", "bert-int32")  # differ from others in the mask only
WITH_EMPTY = ("bert", "distilbert", "bart")  # defined where a sequence has no token


def padding_of(file: Path) -> str:
    return "decoder_attention_mask" if file in SEQ2SEQ else "attention_mask"


def masks(rng: np.random.Generator, s: int = SEQUENCE) -> dict[str, np.ndarray]:
    """Each sequence keeps a token, but the last one of `holes`, and those of `empty`."""
    lengths, at = rng.integers(1, s + 1, BATCH), np.arange(s)
    holes = rng.random((BATCH, s)) < 0.5
    holes[:, 0], holes[-1] = True, False
    found = {"right": at < lengths[:, None], "left": at >= s - lengths[:, None], "holes": holes}
    return found | {"full": holes | True, "empty": holes & False}


def inputs_of(
    file: Path, kind: str, rng: np.random.Generator, keep: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Random inputs; the masks named in `keep` leave every sequence its first token."""
    feeds = {}
    for i in onnx.load(file).graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        mask = masks(rng, TARGET if i.name.startswith("decoder") else SEQUENCE)[kind]
        if i.name == "pixel_values":
            x = rng.normal(size=(BATCH, 3, 16, 16))
        elif i.name == "lengths":
            x = mask.sum(1)
        elif "mask" in i.name:
            mask[-1, 0] |= i.name in keep
            x = mask
        elif i.name == "token_type_ids":
            x = rng.integers(0, 2, mask.shape)
        else:
            x = rng.integers(2, 90, mask.shape) % (64 if "position" in i.name else 100)
        feeds[i.name] = x.astype(dtype)
    return feeds


def session(file: Path, *, fused: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(file), options, ["CPUExecutionProvider"])


def contractions(lowered: Lowered) -> Counter[str]:
    return Counter(r.lowering for r in lowered.report.nodes if r.op_type in CONTRACTIONS)


def refusals(lowered: Lowered) -> Counter[Code]:
    """Why contractions run as they were."""
    nodes = (r for r in lowered.report.nodes if r.op_type in CONTRACTIONS)
    return Counter(r.refusal.code for r in nodes if r.refusal is not None)


def check(
    file: Path, padding: str | None, rtol: float = RTOL, run: ort.InferenceSession | None = None
) -> Lowered:
    """Lower a fixture and compare with ONNX Runtime under every kind of mask."""
    rng = np.random.default_rng(5)
    lowered, (reference, _) = lowered_export(file, padding), reference_session(file, padding)
    proto = evaluator(ir.serde.serialize_model(lowered.model))
    keep = () if padding is None else (padding,)
    if not file.stem.startswith(WITH_EMPTY):
        keep = masks_of(file)
    for kind in ("right", "left", "holes", "full"):
        feeds = inputs_of(file, kind, rng, keep)
        want, got = (run or reference).run(None, feeds), run_lowered(proto, feeds)
        mask = None if padding is None else feeds[padding].astype(bool)
        for x, y in zip(want, got, strict=True):
            x, y = np.asarray(x), np.asarray(y)
            assert x.shape == y.shape
            if mask is not None and x.shape[:2] == mask.shape:
                np.testing.assert_array_equal(y[~mask], 0)
                x, y = x[mask], y[mask]
            assert np.isfinite(x).all()
            assert np.linalg.norm(x - y) <= rtol * np.linalg.norm(x), kind
    if padding is not None:
        (y,) = run_lowered(proto, inputs_of(file, "empty", rng))
        assert y.shape[0] == BATCH
        assert file in POOLED or not np.any(y)
    return lowered


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", TOKENS + SEQ2SEQ + of("bert-classifier"), ids=name)
def test_with_padding_every_token_contraction_runs_packed(file: Path) -> None:
    lowered = check(file, padding_of(file))
    # two layers; before a decoder layer two more: it attends to itself, and to the encoder with
    # queries packed by one mask and keys by another one
    assert contractions(lowered)["attention"] == (4 if file in SEQ2SEQ else 2)
    # a head on the first token; products so small that no row is worth leaving out
    few = {"deepseek-v3": 17}
    assert contractions(lowered)["ordinary"] == few.get(family(file), 2 * (file in POOLED))
    assert refusals(lowered)[Code.LAYOUT] == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", [f for f in TOKENS + SEQ2SEQ if f not in TYPED], ids=name)
def test_without_padding_nothing_changes(file: Path) -> None:
    check(file, None)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", POOLED, ids=name)
def test_a_head_that_reads_live_tokens_needs_no_flag(file: Path) -> None:
    lowered = check(file, None)
    assert contractions(lowered)["attention"] == 2
    assert contractions(lowered)["ordinary"] == (2 if "classifier" in file.stem else 0)


@pytest.mark.parametrize("file", of("resnet"), ids=name)
def test_models_without_padding_compile_to_themselves(file: Path) -> None:
    lowered = lowered_export(file, None)
    assert not lowered.kernels
    feeds = inputs_of(file, "full", np.random.default_rng(0))
    proto = ir.serde.serialize_model(lowered.model)
    again = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(again.run(None, feeds)[0], session(file).run(None, feeds)[0])


@pytest.mark.parametrize("file", of("vit", "swin"), ids=name)
def test_attention_to_all_keys_runs_as_one_node(file: Path) -> None:
    """No score is written to memory, and nothing is skipped; windows may hide keys by -100."""
    lowered, run = lowered_export(file, None), session(file)
    assert contractions(lowered)["attention"] == (3 if file in of("swin") else 2)
    assert all(p["pairs"] == "0" for p in plans(lowered) if p["op"] == "attention")
    proto = evaluator(ir.serde.serialize_model(lowered.model))
    feeds = inputs_of(file, "full", np.random.default_rng(0))
    for x, y in zip(run.run(None, feeds), run_lowered(proto, feeds), strict=True):
        want = np.asarray(x)
        assert np.linalg.norm(want - y) <= RTOL * np.linalg.norm(want)


@pytest.mark.parametrize("file", [f for f in FIXTURES if f not in of("vit", "resnet")], ids=name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_facts_hold(file: Path) -> None:
    model = load_model(file)
    normalise(model)
    padding = padding_of(file) if masks_of(file) else None
    graph, given_up = analyse(model, padding)
    rng = np.random.default_rng(9)
    kinds = ("holes",) if file.stem.endswith("traced") else ("left", "holes")  # traced: many nodes
    feeds = [inputs_of(file, k, rng, masks_of(file)) for k in kinds]
    result = probed(onnx.load(file), graph, given_up, padding, feeds, every=16)
    assert not result.failures
    assert result.fill_checks
    # scores of these random weights reach 42,086, and what rests on their bound is not looked at
    assert result.dead_checks or file in IMAGES or file in of("switch")
    assert not result.assumed or file in of("switch")


def routed(file: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs that reach just the experts which the export met, and the result; others stop it."""
    run = session(file)
    for seed in range(20):
        feeds = inputs_of(file, "holes", np.random.default_rng(seed), masks_of(file))
        try:
            return feeds, np.asarray(run.run(None, feeds)[0])
        except (Fail, InvalidArgument):
            continue
    raise AssertionError("no seed reaches the experts of the export")


ATTENDS = {"experts-loop": 2, "mixtral": 2, "switch": 1}  # attention over live keys or pairs


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", EXPERTS, ids=name)
def test_loops_over_experts(file: Path) -> None:
    """An expert's rows are a list (NonZero) of live tokens: its products run as they are (from four
    experts on grouped), and all around them is packed. Mixtral's export has baked in which experts
    were hit, and Switch counts padded tokens for its capacity: keys and values of padding are dead
    all the same, where they are worth a gathered row, and so are pairs that the mask hides.
    """
    lowered = lowered_export(file, "attention_mask")
    attends = next(n for stem, n in ATTENDS.items() if file.stem.startswith(stem))
    made = {"attention": attends, "folded": attends, "packed": 2 * attends}
    made["packed"] += 9 * file.stem.startswith("experts-loop")
    made["grouped"] = 2 * file.stem.startswith("switch-eager")
    assert contractions(lowered) - Counter(made) == Counter(ordinary=refusals(lowered).total())
    assert refusals(lowered).total() >= 6
    feeds, want = routed(file)
    mask = feeds["attention_mask"].astype(bool)
    got = np.asarray(run_lowered(ir.serde.serialize_model(lowered.model), feeds)[0])
    np.testing.assert_allclose(got[mask], want[mask], 1e-4, 1e-5 * np.abs(want[mask]).max())
    np.testing.assert_array_equal(got[~mask], 0)


OF_LAYERS = {"attention": 2, "folded": 2, "packed": 12}
FLIPS = 2e-3  # a sum in another order may fall on the other side of a step of 8 bits


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", QUANTISED, ids=name)
def test_quantised_graphs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of 4 bits, and integers with scales of live tokens, are products of rows like others.
    Zeros pass a pair of QuantizeLinear and DequantizeLinear, so padding reaches the first layer;
    attention computes those within it.
    """
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))
    # fused products of 8 bits overflow on CPUs without VNNI: 0.5 % off what the model says
    plain = session(file, fused=False) if "static" in file.stem else None
    lowered = check(file, "attention_mask", FLIPS if "dynamic" in file.stem else RTOL, plain)
    assert contractions(lowered) == OF_LAYERS
    scaled = [n for n in lowered.report.notes if "dynamic scales" in n]
    assert len(scaled) == ("dynamic" in file.stem)
    check(file, None, run=plain)


def test_fixtures_are_small() -> None:
    assert len(FIXTURES) >= 64 and len(CACHED) >= 14
    assert all(f.stat().st_size <= MAX_BYTES for f in FILES)


def test_every_export_packs_what_it_packed(golden: Callable[[str, str], None]) -> None:
    """A sounder rule must not lose it unnoticed, nor a bolder one gain it. Exports with a cache
    have such a list, too, where their tests lower them.
    """
    files = sorted([*FIXTURES, *FOLDER.parent.glob("fused/*.onnx")])
    golden("coverage.txt", what_packs(files))
