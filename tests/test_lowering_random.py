"""Random graphs, lowered whether it pays or not: the answers are ONNX Runtime's."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.passes import regions
from pitc.passes.lower import gemm
from pitc.passes.pipeline import LowerOptions, analyse, run_passes
from tests.fact_feeds import random_feeds
from tests.fact_random import RandomGraph
from tests.plan_reference import run_lowered

MASK = "mask"
STEPS = 24
BATCHES, GRAPHS = 8, 5
TOLERANCE = 2e-4  # of the largest number; sums of random graphs cancel


@pytest.fixture(autouse=True)
def lower_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "FLOPS_PER_BYTE", 0)
    monkeypatch.setattr(gemm, "MIN_EXTENT", 1)


def compare(seed: int, padding: str | None, steps: int = STEPS) -> int:
    """Packed nodes of one random graph, whose outputs are checked."""
    proto, _ = RandomGraph(seed, steps).model()
    lowered = run_passes(ir.serde.deserialize_model(proto), LowerOptions(padding=padding))
    graph, given_up = analyse(ir.serde.deserialize_model(proto), padding)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    model = ir.serde.serialize_model(lowered.model)
    for feeds in random_feeds(graph, MASK, patterns=("right", "left", "holes"), seed=seed):
        live = feeds[MASK] != 0
        outputs = zip(
            session.get_outputs(), session.run(None, feeds), run_lowered(model, feeds), strict=True
        )
        for output, x, y in outputs:
            want, got = np.asarray(x), np.asarray(y)
            if output.name in given_up:
                np.testing.assert_array_equal(got[~live], 0)
                want, got = want[live], got[live]
            np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
            want, got = (np.where(np.isfinite(v), v, 0) for v in (want, got))
            scale = max(float(np.abs(want).max(initial=0)), 1e-3)
            assert np.abs(got - want).max(initial=0) <= TOLERANCE * scale, (seed, output.name)
    return sum(r.lowering != "ordinary" for r in lowered.report.nodes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_graphs_keep_their_answers(batch: int) -> None:
    seeds = range(batch * GRAPHS, (batch + 1) * GRAPHS)
    packed = [compare(s, padding) for s in seeds for padding in (None, MASK)]
    assert sum(packed) > 0


# a mask looked up one place beyond its end, at points that no reader asks for
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("seed", "padding"), [(15, MASK), (53, None), (59, MASK)])
def test_graphs_that_once_failed(seed: int, padding: str | None) -> None:
    assert compare(seed, padding) > 0
