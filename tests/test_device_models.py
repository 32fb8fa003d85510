"""Whole models on a GPU that is not there: a sample of what `device_campaign.py` runs.

ONNX's backend node tests, real exports, models with branches, random graphs: compiled for GPUs,
run in stock ONNX Runtime by our provider and emulated kernels, compared with ONNX Runtime.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.device_campaign import summary
from tests.device_kernels import emulated_process
from tests.device_models import Model, Outcome, check, differences, run_case, total
from tests.device_nodes import alone, passed_through
from tests.device_support import Call
from tests.test_backend_nodes import cases

NODES = 70  # of about 2,000, drawn by a seed
SEED = 3


@pytest.fixture(name="gpu", scope="module")
def _gpu() -> Iterator[Call]:
    with emulated_process() as call:
        yield call


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


# ---- whole models, by source and name; nodes of one run, and what of it the CPU reads

WHOLE: dict[tuple[str, str], tuple[int, int]] = {
    ("exports", "bert-classifier-eager-traced half"): (18, 7),
    ("builders", "one head half"): (9, 4),
    ("builders", "opt ffn half"): (2, 1),
    ("fused", "layer Attention"): (6, 1),
    ("branches", "loop one trip padded"): (4, 4),
}


@pytest.mark.parametrize(("source", "name"), WHOLE)
def test_whole_models(gpu: Call, tmp_path: Path, source: str, name: str) -> None:
    outcome: Outcome = gpu(run_case, tmp_path / "m", source, name)
    nodes, copied = WHOLE[source, name]
    counts = outcome.counts
    assert outcome.failures == []
    assert counts["PIT nodes"] == nodes and counts["runs"] >= 5
    assert counts["node runs"] == nodes * counts["runs"]
    # values that nodes of the CPU read; nothing is copied back between a mask and its products
    assert counts["copies_down"] <= copied * counts["runs"] and counts["downloads"] == 0


def test_nodes_in_a_branch(gpu: Call, tmp_path: Path) -> None:
    outcome: Outcome = gpu(run_case, tmp_path / "m", "branches", "sizes_differ")
    assert outcome.failures == [] and outcome.counts["node runs"] > 0


GRAPHS = (0, 1)


@pytest.mark.parametrize("seed", GRAPHS)
def test_random_graphs(gpu: Call, tmp_path: Path, seed: int) -> None:
    outcome: Outcome = gpu(run_case, tmp_path / "m", "random", str(seed))
    assert outcome.failures == [] and outcome.counts["PIT nodes"] > 0


# ---- what would be found

Y = np.arange(12, dtype=np.float32).reshape(3, 2, 2) + 1


def _told(got: Any, model: Model, want: Any = Y) -> list[str]:
    return list(differences(model, ["y"], {0: [got]}, {0: [want]}))


def test_a_wrong_answer_is_seen() -> None:
    case = next(case for case in cases() if case.name == "test_add")
    model = alone(case)
    (want,) = case.data[0][1]
    assert _told(want, model, want) == []
    assert len(_told(want * np.float32(1.001), model, want)) == 2  # by ONNX Runtime, and by ONNX
    assert "expected float32[3, 4, 5]" in _told(want[:2], model, want)[0]


def test_a_case_that_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    line = {"source": "nodes", "name": "a", "counts": {"models": 1}, "failures": []}
    assert summary([line, line]) == 0
    assert '"models": 2' in capsys.readouterr().out
    assert summary([line, line | {"failures": ["y: off"]}]) == 1
    assert '"nodes a"' in capsys.readouterr().out
