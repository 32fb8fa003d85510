"""Every probe gives what ONNX Runtime gives of its source, and enough of them are lowered."""

from functools import lru_cache

import numpy as np
import pytest

import pitc
from tests.probes.all import MAKERS, TABLES
from tests.probes.check import BadProbe, Verdict, check, differences, source_runs
from tests.tile_prices import PRICES

COMPILED = 4  # drawn to be compiled for real
AT_ONCE = 40  # probes of a test, and those of a family of which some must have PIT nodes
LEAST_BITING = 0.15  # share of these


@lru_cache(None)
def verdict(name: str) -> Verdict:
    try:
        return check(MAKERS[name]())
    except BadProbe as error:
        return Verdict(f"ONNX Runtime does not run it: {error}")


def parts() -> dict[str, list[str]]:
    """The probes of each family in random order, some at a time."""
    found = {}
    for table in TABLES:
        names = list(map(str, np.random.default_rng(1).permutation(list(table.makers))))
        for k in range(0, len(names), AT_ONCE):
            found[f"{table.family}-{k // AT_ONCE}"] = names[k : k + AT_ONCE]
    return found


PARTS = parts()
#: Few mutants die by a probe alone: of each family the others wait for `make test-all`.
FIRST = [pytest.param(p, marks=() if p.endswith("-0") else pytest.mark.thorough) for p in PARTS]


@pytest.mark.parametrize("part", FIRST)
def test_probes(part: str) -> None:
    names = PARTS[part]
    assert {n: verdict(n).failure for n in names if verdict(n).failure} == {}
    if part.endswith("-0"):
        assert sum(verdict(n).pit > 0 for n in names) >= LEAST_BITING * len(names)


def test_every_probe_is_tested() -> None:
    assert sorted(n for names in PARTS.values() for n in names) == sorted(MAKERS)


@pytest.mark.parametrize("draw", range(COMPILED))
def test_compiled(draw: int) -> None:
    names = iter(np.random.default_rng([draw, 7]).permutation(list(MAKERS)))
    name = next(n for n in map(str, names) if verdict(n).pit and not verdict(n).excused)
    probe = MAKERS[name]()
    compiled = pitc.compile(probe.model, padding=probe.padding, tiles=PRICES)
    for feed, want in source_runs(probe):
        got = list(compiled.run(feed).values())
        assert not list(differences(probe, feed, want, got)), name
