"""Every probe gives what ONNX Runtime gives of its source, and enough of them are lowered."""

from functools import lru_cache

import numpy as np
import pytest

import pitc
from tests.probes.all import MAKERS, TABLES
from tests.probes.build import Table
from tests.probes.check import Verdict, check, differences, source_runs
from tests.tile_prices import PRICES

COMPILED = 4  # drawn to be compiled for real
LEAST_BITING = 0.15  # share of a family's probes that must have PIT nodes


@lru_cache(None)
def verdict(name: str) -> Verdict:
    return check(MAKERS[name]())


@pytest.mark.parametrize("name", MAKERS)
def test_probe(name: str) -> None:
    assert not verdict(name).failure


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.family)
def test_enough_is_lowered(table: Table) -> None:
    names = np.random.default_rng(1).permutation(list(table.makers))[:40]
    assert sum(verdict(str(n)).pit > 0 for n in names) >= LEAST_BITING * len(names)


@pytest.mark.parametrize("draw", range(COMPILED))
def test_compiled(draw: int) -> None:
    names = iter(np.random.default_rng([draw, 7]).permutation(list(MAKERS)))
    name = next(n for n in map(str, names) if verdict(n).pit and not verdict(n).excused)
    probe = MAKERS[name]()
    compiled = pitc.compile(probe.model, padding=probe.padding, tiles=PRICES)
    for feed, want in source_runs(probe):
        got = list(compiled.run(feed).values())
        assert not list(differences(probe, feed, want, got)), name
