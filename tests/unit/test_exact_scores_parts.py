"""Parts of the walk between two contractions, each alone, and brute force of what covers what."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.constant import NEG, ZN, Constant, FillFact, Range
from pitc.ir.index import ONE, ZERO, Digit, Poly, atom, dim_index, poly, sym
from pitc.ir.region import SOME, Region, Test, position
from pitc.passes.audit.points import where
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.score_steps import elementwise, reshape, unexpanded
from pitc.passes.regions.score_walk import _at_softmax
from pitc.passes.regions.scores import (
    _proof,
    covers,
    known_at_pairs,
    live_pairs,
    rest_on_zeros,
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

B, S, T = sym("b"), sym("s"), sym("t")
TWO, THREE, FOUR = poly(2), poly(3), poly(4)
ROWS, X, Y = dim_index(0, B), dim_index(2, S), dim_index(3, S)
EVERY, ANY = atom(Digit(-1, ONE, S)), atom(Digit(SOME - 1, ONE, S))


def nz(name: str, *idx: object, yes: bool = True) -> Test:
    return Test(name, idx, "nz", yes)  # type: ignore[arg-type]


LIVE, LIVE_KEY = nz("m", X), nz("m", Y, yes=False)
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
        ([[LATE, LIVE], [EARLY, LIVE]], [LIVE, nz("n", Y)], [0, 1]),
        ([[nz("m", X), LIVE_KEY], [nz("m", EVERY, yes=False)]], [nz("n", Y)], None),
        ([[nz("m", X, yes=False), LIVE_KEY], [nz("m", ANY)]], [nz("n", Y)], [0, 1]),
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
    dead = Region([nz("live", ROWS, ZERO, ZERO, Y, yes=False)])
    zeros: list[Constant] = [0, 0.0, -0.0, False]
    others: list[Constant] = [1, True, -1, 1e-30, NEG, Range(0, 0), Range(0, 1), None]
    for constants, found in ((zeros, (["DEAD"], True)), ([ZN], (["DEAD"], False))):
        for constant in constants:
            assert proofs_of([FillFact(dead, constant)], DOMAIN, DOMAIN) == found
    for constant in others:
        assert proofs_of([FillFact(dead, constant)], DOMAIN, DOMAIN) == ([], None)
    # zeros are taken where there are some, though the first fact says less
    both = [FillFact(dead, ZN), FillFact(dead, 0)]
    assert proofs_of(both, DOMAIN, DOMAIN) == (["DEAD"], True)


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


def proofs_of(
    facts: list[FillFact], queries: Domain, keys: Domain
) -> tuple[list[str], bool | None]:
    """Facts that are rested on, and whether they say 0 and not NaN."""
    graph = graph_of(f"{MASKED}  {END}")
    graph["p"].fills = facts
    site, scores = site_of(graph), scores_at("p")
    site.context.domain = queries
    found = rest_on_zeros(site.context, keys, scores)
    return list(map(short, scores.rests_on)), found


def test_zeros_at_dead_keys_of_live_queries() -> None:
    dead, live = (
        Region([nz("live", ROWS, ZERO, ZERO, Y, yes=False)]),
        nz("live", ROWS, ZERO, ZERO, X),
    )
    narrow = Region([*dead, live])
    assert proofs_of([FillFact(narrow, ZN)], DOMAIN, DOMAIN) == ([short(narrow)], False)
    assert proofs_of([], DOMAIN, DOMAIN) == ([], None)
    assert proofs_of([FillFact(dead, ZN)], domain(MIXED), DOMAIN) == ([], None)
    # two cases of live queries: each needs its own
    queries = domain(nz("x", D1, yes=False), nz("y", D1, yes=False))
    by_x, by_y = (Region([*dead, nz(name, X)]) for name in "xy")
    both = [FillFact(by_x, ZN), FillFact(by_y, ZN)]
    assert sorted(proofs_of(both, queries, DOMAIN)[0]) == sorted(map(short, (by_x, by_y)))
    assert proofs_of(both[:1], queries, DOMAIN) == ([], None)
    assert proofs_of(both[1:], queries, DOMAIN) == ([], None)
    # 0 in one case only: in the other NaN
    half = [FillFact(by_x, 0), FillFact(by_y, ZN)]
    assert proofs_of(half, queries, DOMAIN)[1] is False
    # a case that there is not needs none
    keys = domain(*DOMAIN.dead, nz("z", D0, yes=False))
    queries = domain(nz("x", D1, yes=False), nz("z", D0, yes=False))
    alone = FillFact(Region([nz("x", X), *keys.at(KEYS)]), ZN)
    assert len(proofs_of([alone], queries, keys)[0]) == 1


def known(name: str, facts: list[FillFact], pairs: list[Region]) -> tuple[Constant, list[str]]:
    """What the condition of m is at some pairs."""
    graph, scores = graph_of(f"{MASKED}  {END}"), scores_at("m")
    expr = graph["m"].expr
    assert expr is not None
    if not graph.is_constant(name):
        graph[name].fills = facts
    scores.pairs, scores.rests_on = pairs, [Region([LIVE])]
    return known_at_pairs(site_of(graph), scores, expr, 0, name), [str(r) for r in scores.rests_on]


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
    nowhere = FillFact(Region([position(poly(-1))]), 5)
    assert known("live", [nowhere, at_keys], [keys]) == (3, [*start, str(keys)])
    assert known("live", [at_keys], []) == (None, start)
    assert known("two", [], [keys]) == (2, start)


def test_a_value_of_unknown_shape_or_reads_has_no_facts() -> None:
    graph = graph_of(f"{MASKED}  {END}")
    expr, scores = graph["m"].expr, scores_at("m")
    assert expr is not None
    site = site_of(graph)
    assert known_at_pairs(site, scores, expr, 0, "live") == 1
    assert known_at_pairs(site, scores, expr, 3, "live") is None
    graph["live"].shape = None
    assert known_at_pairs(site, scores, expr, 0, "live") is None


def test_the_value_before_it_was_repeated() -> None:
    steps = """
        e = Expand (small, size)  f = Expand (e, size)  g2 = Expand (number, size)
        h = Expand (g2, size)  i = other.Expand (small, size)  t = Neg (small)
        j = Expand (flag, nothing)"""
    graph = graph_of(f"nothing = Shape (flag)  {steps}  {MASKED}  {END}")
    graph["i"].shape = graph["e"].shape  # of an operator of that name that is another one
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
    graph = graph_of(f"c = Neg (bias)  x = Add (c, raw)  m = Where (live, x, ninf)  {END}")
    graph["c"].expr = None
    assert end_of(graph) == "raw | p m x | 1 | c | | DEAD, LIVE"


def follow(body: str, *coords: Digit, pairs: list[Region]) -> tuple[str, list[str]]:
    """Coordinates of `p` as those of what it is reshaped from, and its pairs."""
    graph, scores = graph_of(f"p = Identity (bias)  {body}"), scores_at("x")
    node, expr = graph["x"].producer, graph["x"].expr
    assert node is not None and expr is not None
    scores.query_coords, scores.key_coords, scores.pairs = coords[:1], coords[1:], pairs
    refusal = reshape(site_of(graph), scores, node, expr)
    if refusal is not None:
        assert scores.name == "x" and scores.pairs == pairs and scores.query_coords == coords[:1]
        return refusal.code.name, []
    places = (*scores.query_coords, *scores.key_coords)
    return " ".join([scores.name, *map(str, places)]), list(map(str, scores.pairs))


@pytest.mark.parametrize(
    ("target", "coords", "pairs", "found"),
    [
        # 4 = 2 * 2 rows of v: [b, 3, s, 4]
        ("0, 0, 0, 2, 2", (Digit(0, ONE, B), Digit(2, ONE, S)), 2, "v d0 d2"),
        ("0, 0, 0, 2, 2", (Digit(2, ONE, S), Digit(4, ONE, TWO)), 4, "v d2 d3"),
        ("0, 0, 0, 2, 2", (Digit(3, ONE, TWO), Digit(2, ONE, S)), 4, "v (d3//2%2) d2"),
        ("0, 3, -1", (Digit(0, ONE, B), Digit(2, FOUR, S)), 2, "v d0 d2"),
        ("0, 3, -1", (Digit(2, FOUR, S), Digit(2, ONE, FOUR)), 2, "v d2 d3"),
        # two digits at once, or parts of one
        ("0, 3, -1", (Digit(0, ONE, B), Digit(2, ONE, S * 4)), 2, "LAYOUT"),
        ("0, 3, -1", (Digit(2, ONE, S * 4), Digit(0, ONE, B)), 2, "LAYOUT"),
        ("0, 3, -1", (Digit(2, ONE, S), Digit(0, ONE, B)), 2, "LAYOUT"),
        ("0, 3, -1", (Digit(0, ONE, B), Digit(7, ONE, B)), 2, "LAYOUT"),
    ],
    ids=str,
)
def test_coordinates_through_reshapes(
    target: str, coords: tuple[Digit, ...], pairs: int, found: str
) -> None:
    steps = f"t = Constant <value_ints = [{target}]> ()  x = Reshape (v, t)"
    shape = (B, THREE, S, TWO, TWO) if pairs == 4 or "2, 2" in target else (B, THREE, S * 4)
    seen = Region([nz("m", dim_index(0, shape[0])), nz("n", dim_index(2, shape[2]))])
    end, regions_ = follow(steps, *coords, pairs=[seen])
    assert end == found
    if found != "LAYOUT":
        whole = "m[d0] != 0 and n[d2] != 0"
        assert regions_ == [whole if "2, 2" in target else "m[d0] != 0 and n[4*d2+d3] != 0"]
        none = Region([position(dim_index(0, B) - B)])  # a pair that there is not
        assert follow(steps, *coords, pairs=[seen, none])[0] == "LAYOUT"


def test_a_reshape_of_a_value_of_unknown_shape() -> None:
    graph = graph_of(
        f"u = Unsqueeze (raw, top)  x = Squeeze (u, top)  m = Where (live, x, ninf) {END}"
    )
    graph["u"].shape = None
    assert end_of(graph) == "LAYOUT at x"


KEPT = Region([nz("r", X)])  # tests of queries only: whole rows


KEY = Region([nz("q", Y)])


@pytest.mark.parametrize(
    ("low", "value", "facts", "pair", "stays"),
    [
        (False, "ninf", [(KEPT, 0)], KEPT, True),
        (True, "ninf", [(KEPT, 1)], KEPT, True),
        (False, "ninf", [(KEY, 0), (KEPT, 0)], KEPT, True),
        # kept, not replaced; elsewhere; by a finite number; parts of a row
        (False, "ninf", [(KEPT, 1)], KEPT, False),
        (True, "ninf", [(KEPT, 0)], KEPT, False),
        (False, "ninf", [(Region([nz("q", X)]), 0)], KEPT, False),
        (False, "low", [(KEPT, 0)], KEPT, False),
        (True, "low", [(KEPT, 1)], KEPT, False),
        (False, "ninf", [(KEPT, 0)], KEPT | KEY, False),
        (False, "ninf", [(KEY, 0)], KEY, False),
        (False, "ninf", [], KEPT, False),
    ],
    ids=str,
)
def test_whole_rows_that_are_replaced_may_be_anything_before(
    low: bool, value: str, facts: list[tuple[Region, int]], pair: Region, stays: bool
) -> None:
    """-inf makes such a row NaN; a second pair keeps the condition from being known at all."""
    step = f"x = Where (keep, {value if low else 'c'}, {'c' if low else value})"
    graph = graph_of(f"c = Log (raw)  {step}  m = Where (live, x, ninf)  {END}")
    other = Region([nz("w", X)])
    graph["keep"].fills = [FillFact(r, n) for r, n in facts]
    graph["c"].clean_if = other
    node, expr, scores = graph["x"].producer, graph["x"].expr, scores_at("x")
    assert node is not None and expr is not None
    scores.softmaxed, scores.pairs = True, [pair, other]
    stop = elementwise(site_of(graph), scores, node, expr)
    assert (stop is None) == stays
    if stays:
        assert scores.rests_on == [KEPT, other]
        assert [(t.name, t.low, t.low_when) for t in scores.bias] == [("keep", -inf, low)]
        assert scores.name == "c"


NO_ZERO, EITHER, EMPTY = (
    "the softmax is not zero at dead keys",
    "a row without live keys may be zero or NaN",
    "a row is NaN without live keys, zero without any",
)
NUMBERS = {"zero": 0.0, "zero or NaN": ZN, "other": 1.0}


@pytest.mark.parametrize(
    ("fact", "behind", "chosen", "guarded", "keys", "reason"),
    [
        ("other", True, False, False, S, NO_ZERO),
        ("zero", False, False, False, T, None),
        ("zero", False, True, False, T, None),
        ("zero", True, False, True, T, None),
        ("zero or NaN", True, False, False, T, None),
        ("zero or NaN", True, True, True, T, None),
        ("zero or NaN", False, True, False, S, EITHER),
        ("zero or NaN", False, False, False, S, None),  # no keys: no queries either
        ("zero or NaN", False, False, True, S, None),
        ("zero or NaN", False, False, False, T, EMPTY),
        ("zero or NaN", False, False, False, ONE, None),
        ("zero or NaN", False, False, False, T + 1, None),
    ],
)
def test_rows_without_live_keys(
    fact: str, behind: bool, chosen: bool, guarded: bool, keys: Poly, reason: str | None
) -> None:
    """The probabilities are 0 at dead keys, or NaN too, and behind the softmax perhaps made 0."""
    graph = graph_of(f"{MASKED} {END}")
    scores = scores_at("p")
    scores.key_coords = (QUERIES[0], Digit(3, ONE, keys))
    dead = DOMAIN.at(scores.key_coords)
    graph["p"].fills = [FillFact(dead, NUMBERS[fact])]
    scores.zero, scores.chosen, scores.nan_to_zero = behind, chosen, guarded
    refusal = _at_softmax(site_of(graph), DOMAIN, scores)
    assert (refusal.reason if refusal else None) == reason
    at_zero = fact == "zero" or (behind and reason is None)
    assert scores.no_keys_to_zero is (reason is None and at_zero and not guarded)
