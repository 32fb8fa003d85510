"""Parts of the walk between two contractions, each alone, and brute force of what covers what."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.constant import NEG, ZN, Constant, FillFact, Range
from pitc.ir.index import ONE, ZERO, Digit, atom, dim_index, sym
from pitc.ir.region import SOME, Region, Test, position
from pitc.passes.audit.points import where
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.scores import (
    _is_zero,
    _known_at_pairs,
    _proof,
    covers,
    live_pairs,
    unexpanded,
    zero_at_dead_keys,
)
from tests.region_worlds import regions, shape_of, worlds
from tests.score_worlds import (
    DOMAIN,
    END,
    KEYS,
    MASKED,
    QUERIES,
    end_of,
    graph_of,
    scores_at,
    short,
    site_of,
    walked,
)

B, S = sym("b"), sym("s")
ROWS, X, Y = dim_index(0, B), dim_index(2, S), dim_index(3, S)
EVERY, ANY = atom(Digit(-1, ONE, S)), atom(Digit(SOME - 1, ONE, S))


def nz(name: str, *idx: object, yes: bool = True) -> Test:
    return Test(name, idx, "nz", yes)  # type: ignore[arg-type]


LIVE = nz("m", X)
LATE, EARLY = position(X - Y), position(Y - X - 1)


@pytest.mark.parametrize(
    ("facts", "place", "used"),
    [
        ([], [LIVE], None),
        ([[]], [LIVE], [0]),
        ([[LIVE]], [LIVE, nz("n", Y)], [0]),
        ([[nz("n", Y)], [LIVE]], [LIVE], [1]),
        ([[LIVE], []], [LIVE], [0]),
        ([[LIVE, nz("n", Y)]], [LIVE], None),
        # two cases: of a position, of a value, each beside what holds anyway
        ([[LATE], [EARLY]], [LIVE], [0, 1]),
        ([[LATE, LIVE], [EARLY, LIVE]], [LIVE], [0, 1]),
        ([[nz("n", Y)], [LIVE, LATE], [EARLY]], [LIVE], [1, 2]),
        ([[nz("n", Y)], [nz("n", Y, yes=False)]], [LIVE], [0, 1]),
        ([[LATE], [nz("n", Y)]], [LIVE], None),
        ([[LATE], [LATE]], [LIVE], None),
        # more than one test is left of a case
        ([[LATE, nz("n", Y)], [EARLY]], [LIVE], None),
        ([[LATE, nz("n", Y)], [EARLY, nz("n", Y)]], [LIVE], None),
        ([[LATE, nz("n", Y)], [EARLY, nz("n", Y, yes=False)]], [LIVE], None),
    ],
    ids=str,
)
def test_facts_that_cover_a_place(
    facts: list[list[Test]], place: list[Test], used: list[int] | None
) -> None:
    given_facts = [Region(tests) for tests in facts]
    found = _proof(given_facts, Region(place))
    assert found == (None if used is None else [given_facts[k] for k in used])


@settings(max_examples=150, deadline=None)
@given(st.lists(regions(), max_size=4), regions(quantified=True), st.integers(0, 99))
def test_a_proof_holds_wherever_it_is_used(facts: list[Region], place: Region, seed: int) -> None:
    proof = _proof(facts, place)
    if proof is None:
        assert not any(covers(fact, place) for fact in facts)
        return
    assert all(fact in facts for fact in proof) and 1 <= len(proof) <= 2
    assert covers(proof[0], place) == (len(proof) == 1)
    for sizes, values in worlds(seed):
        shape = shape_of(sizes)
        holds = np.any([where(fact, shape, sizes, values) for fact in proof], axis=0)
        assert not np.any(where(place, shape, sizes, values) & ~holds)


def test_what_counts_as_zero() -> None:
    zeros: list[Constant] = [ZN, 0, 0.0, -0.0, False]
    others: list[Constant] = [1, True, -1, 1e-30, NEG, Range(0, 0), Range(0, 1), None]
    assert [_is_zero(c) for c in zeros] == [True] * len(zeros)
    assert [_is_zero(c) for c in others] == [False] * len(others)


def domain(*tests: Test, extents: tuple[object, ...] = (B, S)) -> Domain:
    return Domain(extents, frozenset(tests))  # type: ignore[arg-type]


D0, D1 = dim_index(0, B), dim_index(1, S)
MIXED = nz("g", D0, EVERY, ANY)


def test_pairs_of_live_rows() -> None:
    """One region for each case of a query and of a key; none where a case cannot be said."""
    first, second = nz("m", D0, D1, yes=False), position(D1 - 2)
    found = live_pairs(domain(first), domain(first, second), QUERIES, KEYS)
    assert found is not None
    assert {str(r) for r in found} == {
        "m[d0, d2] != 0 and m[d0, d3] != 0",
        "-d3+1 >= 0 and m[d0, d2] != 0",
    }
    one = live_pairs(domain(first), domain(first), QUERIES, QUERIES)
    assert list(map(str, one or ())) == ["m[d0, d2] != 0"]
    assert live_pairs(domain(first), domain(MIXED), QUERIES, KEYS) is None
    assert live_pairs(domain(MIXED), domain(first), QUERIES, KEYS) is None
    never = nz("m", D0, D1)  # a pair that there is not is left out
    assert live_pairs(domain(first), domain(never), QUERIES, QUERIES) == []


def proofs_of(facts: list[FillFact], queries: Domain, keys: Domain) -> list[str] | None:
    graph = graph_of(f"{MASKED}  {END}")
    graph["p"].fills = facts
    site, scores = site_of(graph), scores_at("p")
    site.context.domain = queries
    found = zero_at_dead_keys(site.context, keys, scores)
    return None if found is None else list(map(short, found))


def test_zeros_at_dead_keys_of_live_queries() -> None:
    dead, live = (
        Region([nz("live", ROWS, ZERO, ZERO, Y, yes=False)]),
        nz("live", ROWS, ZERO, ZERO, X),
    )
    narrow = Region([*dead, live])
    for constant in (ZN, 0):
        assert proofs_of([FillFact(dead, constant)], DOMAIN, DOMAIN) == ["DEAD"]
    assert proofs_of([FillFact(narrow, ZN)], DOMAIN, DOMAIN) == [short(narrow)]
    for constant in (1, NEG, Range(0, 1)):
        assert proofs_of([FillFact(dead, constant)], DOMAIN, DOMAIN) is None
    assert proofs_of([], DOMAIN, DOMAIN) is None
    assert proofs_of([FillFact(dead, ZN)], domain(MIXED), DOMAIN) is None
    # two cases of live queries: each needs its own
    queries = domain(nz("x", D1, yes=False), nz("y", D1, yes=False))
    by_x, by_y = (Region([*dead, nz(name, X)]) for name in "xy")
    both = [FillFact(by_x, ZN), FillFact(by_y, ZN)]
    assert sorted(proofs_of(both, queries, DOMAIN) or ()) == sorted(map(short, (by_x, by_y)))
    assert proofs_of(both[:1], queries, DOMAIN) is None
    assert proofs_of(both[1:], queries, DOMAIN) is None
    # a case that there is not needs none
    keys = domain(*DOMAIN.dead, nz("z", D0, yes=False))
    queries = domain(nz("x", D1, yes=False), nz("z", D0, yes=False))
    alone = FillFact(Region([nz("x", X), *keys.at(KEYS)]), ZN)
    assert len(proofs_of([alone], queries, keys) or ()) == 1


def known(name: str, facts: list[FillFact], pairs: list[Region]) -> tuple[Constant, list[str]]:
    """What the condition of m is at some pairs."""
    graph, scores = graph_of(f"{MASKED}  {END}"), scores_at("m")
    expr = graph["m"].expr
    assert expr is not None
    if not graph.is_constant(name):
        graph[name].fills = facts
    scores.pairs, scores.rests_on = pairs, [Region([LIVE])]
    return _known_at_pairs(site_of(graph), scores, expr, 0, name), [str(r) for r in scores.rests_on]


def test_numbers_at_live_pairs() -> None:
    keys, other = Region([nz("k", Y)]), Region([nz("j", Y)])
    at_keys, at_other = FillFact(keys, 3), FillFact(other, 3)
    start = [str(LIVE)]
    assert known("live", [at_keys], [keys]) == (3, [*start, str(keys)])
    assert known("live", [at_keys], [Region([*keys, LIVE])]) == (3, [*start, str(keys)])
    assert known("live", [at_keys], [other]) == (None, start)
    assert known("live", [at_other, at_keys], [keys, other]) == (3, [*start, str(keys), str(other)])
    assert known("live", [at_keys], [keys, other]) == (None, start)
    assert known("live", [at_keys, FillFact(other, 4)], [keys, other]) == (None, start)
    assert known("live", [FillFact(keys, True)], [keys]) == (1, [*start, str(keys)])
    assert known("live", [FillFact(keys, ZN), at_keys], [keys]) == (3, [*start, str(keys)])
    assert known("live", [FillFact(Region([nz("k", Y + 9)]), 5), at_keys], [keys])[0] == 3
    assert known("live", [at_keys], []) == (None, start)
    assert known("two", [], [keys]) == (2, start)


def test_a_value_of_unknown_shape_or_reads_has_no_facts() -> None:
    graph = graph_of(f"{MASKED}  {END}")
    expr, scores = graph["m"].expr, scores_at("m")
    assert expr is not None
    site = site_of(graph)
    assert _known_at_pairs(site, scores, expr, 0, "live") == 1
    assert _known_at_pairs(site, scores, expr, 3, "live") is None
    graph["live"].shape = None
    assert _known_at_pairs(site, scores, expr, 0, "live") is None


def test_the_value_before_it_was_repeated() -> None:
    steps = """
        e = Expand (small, size)  f = Expand (e, size)  g2 = Expand (number, size)
        h = Expand (g2, size)  i = other.Expand (small, size)  t = Neg (small)
        j = Expand (flag, nothing)"""
    graph = graph_of(f"nothing = Shape (flag)  {steps}  {MASKED}  {END}")
    found = {name: unexpanded(graph, name) for name in ("e", "f", "g2", "h", "i", "t", "j", "bias")}
    assert found == {
        **{"e": "small", "f": "small", "g2": "g2", "h": "g2", "i": "i", "t": "t", "j": "flag"},
        "bias": "bias",
    }


@pytest.mark.parametrize("count", [6, 7, 8])
def test_the_scores_are_told_from_a_bias_by_the_contraction(count: int) -> None:
    """Seven steps back at most."""
    lines = ["c1 = Neg (bias)", "a0 = MatMul (bias, other)"]
    lines += [f"a{k + 1} = Neg (a{k})" for k in range(count)]
    graph = graph_of(f"{' '.join(lines)}  x = Add (c1, a{count})  m = Where (live, x, ninf)  {END}")
    _, found = walked(graph)
    assert found.name == (f"a{count}" if count < 8 else "c1")


def test_steps_that_are_not_described() -> None:
    for name in ("p", "m"):
        graph = graph_of(f"{MASKED}  {END}")
        graph[name].expr = None
        assert end_of(graph) == f"NO_LOWERING at {name}"


def test_coordinates_through_reshapes_of_unknown_shape() -> None:
    graph = graph_of(
        f"u = Unsqueeze (raw, top)  x = Squeeze (u, top)  m = Where (live, x, ninf) {END}"
    )
    graph["u"].shape = None
    assert end_of(graph) == "LAYOUT at x"
