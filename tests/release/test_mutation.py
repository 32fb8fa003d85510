"""Wrong twins: the generators make them, and a drawn sample is noticed by the tests that should."""

import json
import mmap
import os
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from pitc.ir.constant import TOP
from pitc.ir.expr import Read
from pitc.passes.rules import laws
from pitc.passes.rules.record import OPERATORS
from tests.mutation.__main__ import drawn
from tests.mutation.campaign import MEMORY, TooSlow, forked, limited, received
from tests.mutation.lists import explained, killers
from tests.mutation.patching import put_in_force
from tests.mutation.source import changes
from tests.mutation.tables import DAMAGES, entries
from tests.mutation.targets import MODULES

SAMPLE, SEED = 40, 1
RULES = sum(row.rule is not None for row in OPERATORS.values())
FRESH = 0.8  # share of the noted mutants that must still be there

# wrong twins that once lived
ONCE = (
    "passes.facts.fill:_reduced | left only | r | filled(expr)",
    "passes.facts.dead:_changes | operator | changed & bit",
)


@pytest.fixture(scope="module")
def keys() -> set[str]:
    found = [c.key for m, skipped in MODULES.items() for c in changes(m, frozenset(skipped))]
    found += [e.key for e in entries()]
    assert len(found) == len(set(found))
    return set(found)


def test_mutants_are_many(keys: set[str]) -> None:
    assert len(keys) > 5000
    assert sum(k.startswith("passes.rules:") for k in keys) == len(DAMAGES) * RULES


def test_the_lists_are_about_mutants_that_exist(keys: set[str]) -> None:
    noted = killers()
    assert sum(k in keys for k in noted) >= FRESH * len(noted)
    assert set(explained()) <= keys
    assert not set(explained()) & set(noted)


def test_a_mutant_that_drops_a_generator_is_put_in_force() -> None:
    """It has less code: what stands behind a guard that never holds is not compiled."""
    key = "passes.rules.laws:total | drop guard | if any((r.hi == inf for r in known)): return TOP"
    change = next(c for c in changes("pitc.passes.rules.laws") if c.key == key)

    def mutant() -> object:
        put_in_force(change)
        return laws.total((inf, -inf, TOP))

    pid, pipe = forked(mutant)
    found = received(pipe)
    os.waitpid(pid, 0)
    assert (found, laws.total((inf, -inf, TOP))) == (-inf, TOP)


def test_another_default_of_a_field_is_put_in_force() -> None:
    key = "ir.expr:Read | flip | False"
    change = next(c for c in changes("pitc.ir.expr") if c.key == key)

    def mutant() -> object:
        put_in_force(change)
        return Read(0, ()), Read(1, (None,), computed=False)

    pid, pipe = forked(mutant)
    found = received(pipe)
    os.waitpid(pid, 0)
    assert found == (Read(0, (), computed=True), Read(1, (None,)))


def test_a_child_has_memory_beside_what_its_parent_has_mapped() -> None:
    """A worker of all tests maps many GB; a child that ends for it would be a killed mutant."""
    with mmap.mmap(-1, MEMORY, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ):
        children = [forked(lambda n=n: len(bytearray(n))) for n in (1 << 26, MEMORY + (1 << 26))]
        found = [received(pipe) for _, pipe in children]
        for pid, _ in children:
            os.waitpid(pid, 0)
    assert found == [1 << 26, None]


def test_what_does_not_end_is_interrupted_more_than_once() -> None:
    def forever() -> None:
        while True:
            sum(range(1000))

    with pytest.raises(TooSlow), limited(0.05):
        try:
            forever()
        except TooSlow:
            forever()
    with limited(0.05):
        pass
    sum(range(10**7))


@pytest.mark.parametrize("key", ONCE)
def test_twins_that_once_lived_have_killers(key: str) -> None:
    assert key in killers()


def test_a_sample_stays_where_others_come_or_go() -> None:
    found = list(changes("pitc.passes.rules.laws"))
    sample, gone = drawn(found, 40, SEED), {c.key for c in found[::5]}
    again = drawn([c for c in found if c.key not in gone], 40, SEED)
    assert len(sample) == len(again) == 40 and sample != drawn(found, 40, SEED + 1)
    assert {c.key for c in sample} - gone < {c.key for c in again}


def test_a_sample_is_killed(tmp_path: Path) -> None:
    """Each by the check that killed it in the whole campaign."""
    out = tmp_path / "sample.jsonl"
    arguments = ["--replay", "--sample", str(SAMPLE), "--seed", str(SEED), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", *arguments], capture_output=True, text=True
    )
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert len(lines) == SAMPLE, done.stdout + done.stderr
    assert [v["key"] for v in lines if v["outcome"] != "killed"] == []
