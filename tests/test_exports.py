"""Real exports (models/export/fixtures): both exporters, eager and sdpa, every padding side.

The files are what torch and transformers wrote; only sizes and weights are small.
"""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from pitc.importer import load_model
from pitc.passes.audit import audit
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import Lowered, LowerOptions, analyse, run_passes
from tests.plan_reference import run_lowered

FIXTURES = sorted((Path(__file__).parent.parent / "models/export/fixtures").glob("*.onnx"))
TEXT = [f for f in FIXTURES if not f.stem.startswith(("vit", "resnet"))]
IMAGES = [f for f in FIXTURES if f not in TEXT]
PADDING = "attention_mask"
MAX_BYTES = 300_000
RTOL = 1e-5  # norm-wise, float32


def name(file: Path) -> str:
    return file.stem


def masks(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Each sequence keeps a token, but the last one of `holes`."""
    b, s = 3, 9
    lengths, at = rng.integers(1, s + 1, b), np.arange(s)
    holes = rng.random((b, s)) < 0.5
    holes[:, 0], holes[-1] = True, False
    left = at >= s - lengths[:, None]
    return {"right": at < lengths[:, None], "left": left, "holes": holes, "full": holes | True}


def inputs_of(file: Path, mask: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    feeds = {}
    for i in onnx.load(file).graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        if i.name == "pixel_values":
            feeds[i.name] = rng.normal(size=(3, 3, 16, 16)).astype(dtype)
        elif "mask" in i.name:
            feeds[i.name] = mask.astype(dtype)
        else:
            feeds[i.name] = rng.integers(2, 90, mask.shape).astype(dtype)
    return feeds


def lower(file: Path, padding: str | None) -> Lowered:
    return run_passes(load_model(file), LowerOptions(padding=padding))


def session(file: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(str(file), options, ["CPUExecutionProvider"])


def contractions(lowered: Lowered) -> list[str]:
    return [r.lowering for r in lowered.report.nodes if r.op_type in ("MatMul", "Gemm")]


def check(file: Path, padding: str | None) -> Lowered:
    """Lower a fixture and compare with ONNX Runtime under every kind of mask."""
    rng = np.random.default_rng(5)
    lowered, run = lower(file, padding), session(file)
    proto = ir.serde.serialize_model(lowered.model)
    for kind, mask in masks(rng).items():
        if kind == "holes" and (padding or not file.stem.startswith(("bert", "distilbert"))):
            mask[-1, 0] = True  # an empty sequence is undefined in some of these models
        feeds = inputs_of(file, mask, rng)
        want, got = run.run(None, feeds), run_lowered(proto, feeds)
        for x, y in zip(want, got, strict=True):
            x, y = np.asarray(x), np.asarray(y)
            assert x.shape == y.shape
            if padding and x.shape[:2] == mask.shape:
                np.testing.assert_array_equal(y[~mask], 0)
                x, y = x[mask], y[mask]
            assert np.isfinite(x).all()
            assert np.linalg.norm(x - y) <= RTOL * np.linalg.norm(x), kind
    return lowered


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", TEXT, ids=name)
def test_with_padding_every_token_contraction_runs_packed(file: Path) -> None:
    lowered = check(file, PADDING)
    ordinary = contractions(lowered).count("ordinary")
    assert ordinary == (2 if "classifier" in file.stem else 0)
    attention = [r for r in lowered.report.nodes if r.lowering == "attention"]
    assert len(attention) == 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", TEXT, ids=name)
def test_without_padding_nothing_changes(file: Path) -> None:
    lowered = check(file, None)
    if "classifier" in file.stem:  # only the first token is read: no flag is needed
        assert contractions(lowered).count("ordinary") == 2


@pytest.mark.parametrize("file", IMAGES, ids=name)
def test_models_without_padding_compile_to_themselves(file: Path) -> None:
    lowered = lower(file, None)
    assert not lowered.kernels
    rng = np.random.default_rng(0)
    feeds = inputs_of(file, np.ones((3, 9), bool), rng)
    proto = ir.serde.serialize_model(lowered.model)
    again = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(again.run(None, feeds)[0], session(file).run(None, feeds)[0])


@pytest.mark.parametrize("file", TEXT, ids=name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_facts_hold(file: Path) -> None:
    model = load_model(file)
    normalise(model)
    graph, given_up = analyse(model, PADDING)
    rng = np.random.default_rng(9)
    kinds = masks(rng)
    kinds["holes"][-1, 0] = True
    feeds = [inputs_of(file, kinds[k], rng) for k in ("left", "holes")]
    result = audit(graph, given_up, feeds, teeth=False)
    assert not result.failures
    assert result.fill_checks and result.dead_checks


def test_fixtures_are_small() -> None:
    assert len(FIXTURES) >= 32
    assert all(f.stat().st_size <= MAX_BYTES for f in FIXTURES)
