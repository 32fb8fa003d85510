"""Whole models on a GPU that is not there: a sample of what `device_campaign.py` runs.

ONNX's backend node tests, real exports, models with branches, random graphs: compiled for GPUs,
run in stock ONNX Runtime by our provider and emulated kernels, compared with ONNX Runtime.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from pitc.check.feeds import Case as Feeds
from pitc.ir.report import TokenPlace
from tests import device_models
from tests.device_campaign import summary
from tests.device_models import Model, Outcome, check, differences, run_case, total
from tests.device_nodes import alone, passed_through
from tests.device_support import Call
from tests.plugin.test_backend_nodes import Case, cases

NODES = 50  # of about 2,000, drawn by a seed
SEED = 7  # of those drawn, no one needs a kernel that other tests do not


def _sample(folder: Path) -> dict[str, Outcome]:
    """Node tests alone, and passed through PIT nodes."""
    rng, found = np.random.default_rng(SEED), {}
    for number in rng.choice(len(cases()), NODES, replace=False):
        case = cases()[number]
        models = {"alone": alone(case), "passed": passed_through(case)}
        for way, model in models.items():
            if model is not None:
                place = folder / f"{number}-{way}"
                found[f"{case.name} {way}"] = check(place, model)
    return found


@pytest.mark.thorough
def test_node_tests(gpu: Call, tmp_path: Path, record_property: Callable[..., None]) -> None:
    found: dict[str, Outcome] = gpu(_sample, tmp_path)
    assert {name: x.failures for name, x in found.items() if x.failures} == {}
    passed = total(x for name, x in found.items() if name.endswith(" passed"))
    ran = total(found.values())
    assert passed["models"] > NODES / 2 and ran["refused models"] < NODES / 5
    assert passed["models with PIT nodes"] > 0.6 * passed["models"]
    assert passed["node runs"] > 2 * passed["models with PIT nodes"]
    assert ran["downloads"] == ran["downloads in bodies"] == 0
    record_property("count", ("node tests around a GPU", passed["models"], passed["models"]))


# ---- whole models: PIT nodes of one run, and what of theirs the CPU reads

WHOLE: dict[tuple[str, str], tuple[int, int]] = {
    ("exports", "bert-classifier-eager-traced half"): (24, 22),
    ("exports", "gpt2-cache-sdpa-traced half"): (21, 15),
    ("builders", "one head half"): (11, 10),
    ("fused", "Attention"): (3, 3),
    ("branches", "loop one trip padded"): (4, 4),
}


MASKED = ("attention, causal", "layer, documents", "layer, pairs", "modern bert")


@pytest.mark.parametrize("name", MASKED)
def test_masks_of_pairs(gpu: Call, tmp_path: Path, name: str) -> None:
    """Nothing of the size queries x keys is copied, and nobody waits for lists."""
    outcome: Outcome = gpu(run_case, tmp_path / "m", "masks", name)
    counts = outcome.counts
    assert outcome.failures == [] and counts["op attention"] > 0
    assert counts["downloads"] == counts["downloads in bodies"] == 0


@pytest.mark.parametrize(("source", "name"), WHOLE)
def test_whole_models(gpu: Call, tmp_path: Path, source: str, name: str) -> None:
    """No copy to the host but of what the CPU reads, and no wait but for such a copy: `check`."""
    outcome: Outcome = gpu(run_case, tmp_path / "m", source, name)
    nodes, read = WHOLE[source, name]
    counts = outcome.counts
    assert outcome.failures == []
    assert (counts["PIT nodes"], counts["values for the host"]) == (nodes, read)
    assert counts["runs"] >= 5 and counts["node runs"] == nodes * counts["runs"]
    assert counts["downloads"] == counts["downloads in bodies"] == 0


def test_feed_forward_blocks(gpu: Call, tmp_path: Path) -> None:
    """What lives is found, listed and multiplied: nothing comes back but what the CPU reads."""
    outcome: Outcome = gpu(run_case, tmp_path / "m", "builders", "opt ffn half")
    counts = outcome.counts
    assert outcome.failures == []
    assert counts["op ffn"] == counts["values for the host"] == 2 and counts["launches"] > 20
    assert 0 < counts["copies_down"] <= 2 * counts["runs"]  # a batch of 0 has nothing to copy


def test_nodes_in_a_branch(gpu: Call, tmp_path: Path) -> None:
    outcome: Outcome = gpu(run_case, tmp_path / "m", "branches", "sizes_differ")
    assert outcome.failures == [] and outcome.counts["node runs"] > 0


GRAPHS = (4, 11, 16, 19, 22, 25)  # packed, and products alone


@pytest.mark.parametrize("seed", GRAPHS)
def test_random_graphs(gpu: Call, tmp_path: Path, seed: int) -> None:
    outcome: Outcome = gpu(run_case, tmp_path / "m", "random", str(seed))
    assert outcome.failures == [] and outcome.counts["PIT nodes"] > 0


# ---- what would be found

Y = np.arange(12, dtype=np.float32).reshape(3, 2, 2) + 1


def _told(got: Any, model: Model, want: Any = Y) -> list[str]:
    return list(differences(model, ["y"], {0: [got]}, {0: [want]}))


def test_a_wrong_answer_is_seen() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, Y.shape) for name in "xy"]
    proto = helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:]))
    model = alone(Case("neg", proto, [([-Y], [Y])], 1e-3, 1e-7))
    assert _told(Y, model) == []
    assert len(_told(Y * np.float32(1.01), model)) == 2  # not ONNX Runtime's, and not ONNX's
    assert "expected float32[3, 2, 2]" in _told(Y[:2], model)[0]
    padded = replace(model, padding="m", tokens={"y": TokenPlace("", 0, 1)}, data=None)
    live = np.array([[1, 0], [1, 1], [1, 1]])
    padded = replace(padded, feeds=[Feeds("data", {}, {"x": -Y, "m": live})])
    zeros = np.where(live[..., None], Y, np.float32(0))
    assert _told(zeros, padded) == [] and "padded token" in _told(zeros + 1, padded)[0]


def test_a_copy_to_the_host_is_seen(gpu: Call, tmp_path: Path) -> None:
    """As if nobody had a right to the values that the CPU reads."""
    outcome: Outcome = gpu(_read_by_nobody, tmp_path / "m")
    assert any("copies for 0 values" in text for text in outcome.failures)


def _read_by_nobody(folder: Path) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_models, "read_by_the_host", lambda graph: set())
        return run_case(folder, "builders", "one head half")


def test_a_case_that_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    line = {"source": "nodes", "name": "a", "counts": {"models": 1}, "failures": []}
    assert summary([line, line]) == 0
    assert '"models": 2' in capsys.readouterr().out
    assert summary([line, line | {"failures": ["y: off"]}]) == 1
    assert '"nodes a"' in capsys.readouterr().out
