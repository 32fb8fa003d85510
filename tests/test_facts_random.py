"""Random graphs: whatever is proven of them holds in ONNX Runtime."""

import pytest

from pitc.passes.audit import audit
from tests.fact_check import analysed
from tests.fact_feeds import random_feeds
from tests.fact_random import RandomGraph

BATCHES = 8
GRAPHS = 5
STEPS = 14


def audit_random(seed: int, steps: int = STEPS) -> tuple[list[str], int]:
    """Failures of one random graph, and how many values had a dead element."""
    proto, rows = RandomGraph(seed, steps).model()
    graph, given_up = analysed(proto, "mask", rows if seed % 2 else [])
    feeds = random_feeds(graph, "mask", patterns=("right", "holes"), seed=seed)
    result = audit(graph, given_up, feeds, seed=seed, teeth=False)
    return result.failures, result.dead_checks


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_fact_of_random_graphs_holds(batch: int) -> None:
    proven = 0
    for seed in range(batch * GRAPHS, (batch + 1) * GRAPHS):
        failures, dead = audit_random(seed)
        assert failures == [], f"seed {seed}"
        proven += dead
    assert proven > 0
