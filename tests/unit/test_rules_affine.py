"""Affine functions of positions through operators, and comparisons of them, at small numbers."""

from collections.abc import Callable
from itertools import permutations, product

import pytest

from pitc.ir.index import Poly, dim_index, poly, sym
from pitc.passes.rules import affine
from pitc.passes.rules.affine import Order
from pitc.passes.rules.record import OPERATORS

s, t = sym("s"), sym("t")
D, E, THREE = dim_index(0, s), dim_index(1, t), dim_index(2, poly(3))
POLYS = [poly(-1), poly(0), poly(2), s, s - 1, -s, D, D + 1, D * 2 - 1, -D, THREE, 4 - THREE, D + E]


def points(*ps: Poly) -> list[tuple[int, ...]]:
    """Values of polynomials at all indices, for several sizes."""
    return [
        tuple(p.evaluate({"s": m, "t": n}, {0: i, 1: j, 2: k}) for p in ps)
        for m, n in product((1, 2, 5), (1, 4))
        for i, j, k in product(range(m), range(n), range(3))
    ]


# --- comparisons ---

HOLDS: dict[str, Callable[[int, int], bool]] = {
    "Equal": lambda x, y: x == y,
    "Less": lambda x, y: x < y,
    "LessOrEqual": lambda x, y: x <= y,
    "Greater": lambda x, y: x > y,
    "GreaterOrEqual": lambda x, y: x >= y,
}
PAIRS = list(product(range(-3, 4), repeat=2))


def order_of(op: str) -> Order:
    found = OPERATORS["", op].order
    assert found is not None
    return found


def test_every_comparison_is_tested() -> None:
    assert {op for (_, op), row in OPERATORS.items() if row.order is not None} == set(HOLDS)


@pytest.mark.parametrize("op", HOLDS)
def test_a_comparison_is_that_some_numbers_are_not_negative(op: str) -> None:
    order, holds = order_of(op), HOLDS[op]
    for x, y in PAIRS:
        slack = [p.as_int() for p in order.nonnegative(poly(x - y))]
        assert all(n is not None and n >= 0 for n in slack) == holds(x, y)
        back = [p.as_int() for p in order.turned().nonnegative(poly(y - x))]
        assert all(n is not None and n >= 0 for n in back) == holds(x, y)
    assert len(order.nonnegative(D)) == (2 if op == "Equal" else 1)


@pytest.mark.parametrize("op", HOLDS)
def test_a_comparison_with_a_length(op: str) -> None:
    found = order_of(op).below()
    assert (found is None) == (op == "Equal")
    for place, length in PAIRS if found is not None else ():
        assert found is not None
        more, yes = found
        assert HOLDS[op](place, length) == ((place + more < length) == yes)


# --- results ---

RESULTS: list[tuple[affine.Affine, Callable[[int, int], int]]] = [
    (affine.same, lambda x, _: x),
    (affine.total, lambda x, y: x + y),
    (affine.difference, lambda x, y: x - y),
    (affine.negative, lambda x, _: -x),
    (affine.product, lambda x, y: x * y),
    (affine.largest, max),
    (affine.smallest, min),
]


@pytest.mark.parametrize(("rule", "computed"), RESULTS)
def test_results_are_those_of_the_numbers(
    rule: affine.Affine, computed: Callable[[int, int], int]
) -> None:
    for x, y in product(POLYS, repeat=2):
        found = rule([x, y])
        if found is not None:
            assert all(z == computed(n, m) for n, m, z in points(x, y, found)), (x, y)


@pytest.mark.parametrize("rule", [rule for rule, _ in RESULTS[:4]])
def test_sums_are_always_known(rule: affine.Affine) -> None:
    assert all(rule([x, y]) is not None for x, y in product(POLYS, repeat=2))


def test_a_product_has_one_factor_that_moves() -> None:
    for x, y in product(POLYS, repeat=2):
        assert (affine.product([x, y]) is None) == bool(x.digits() and y.digits())


@pytest.mark.parametrize(("rule", "computed"), RESULTS[-2:])
def test_the_extreme_one_is_known_where_it_always_is(
    rule: affine.Affine, computed: Callable[[int, int], int]
) -> None:
    for x, y in product([poly(n) for n in range(-2, 6)] + [THREE, THREE - 2, 4 - THREE], repeat=2):
        both = points(x, y)
        always = [k for k in (0, 1) if all(p[k] == computed(*p) for p in both)]
        assert rule([x, y]) == ((x, y)[always[0]] if always else None), (x, y)
    assert rule([D, D + 1]) == (D + 1 if computed is max else D)
    assert rule([D, s]) == (s if computed is max else D)
    assert rule([D, s - 2]) is None


@pytest.mark.parametrize("rule", [affine.largest, affine.smallest])
def test_the_extreme_one_of_other_than_two(rule: affine.Affine) -> None:
    assert rule([D]) == D
    assert rule([]) is None
    xs = [D, D + 1, D - 1]
    for three in permutations(xs):
        assert rule(list(three)) == xs[1 if rule is affine.largest else 2]
    assert rule([D, D + 1, E]) is None
