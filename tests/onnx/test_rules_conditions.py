"""Conditions on operands: where results are finite, and where they are squares."""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import product
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from pitc.ir.constant import Number
from pitc.ir.graph import NodeView
from pitc.passes.facts.total import is_total
from pitc.passes.rules import conditions
from pitc.passes.rules.signs import Sign
from tests.rule_proof import Const, Proof, Sample, analysed

X = np.ones((2, 3), np.float32)


@dataclass
class Given:
    """Operands of which this is known."""

    view: NodeView
    changed: Collection[str] = ()
    signs: dict[int, Sign] = field(default_factory=dict)
    numbers: dict[int, Number] = field(default_factory=dict)
    without_zero: Collection[int] = ()

    def sign(self, i: int) -> Sign:
        return self.signs.get(i, Sign.ANY)

    def number(self, i: int) -> Number | None:
        return self.numbers.get(i)

    def has_no_zero(self, i: int) -> bool:
        return i in self.without_zero

    def is_not_positive(self, i: int) -> bool:
        number = self.numbers.get(i)
        return number is not None and number <= 0


def view_of(op: str, *operands: Any, **attributes: Any) -> NodeView:
    graph = analysed(Sample(op, operands, attributes))
    return NodeView(graph, graph.nodes[0])


# float attributes of elementwise operators, and numbers that break some functions of them
ATTRIBUTES = {
    **dict.fromkeys(("LeakyRelu", "ThresholdedRelu", "Elu", "Celu"), ("alpha",)),
    "Shrink": ("bias", "lambd"),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}
EXTREMES = (0.0, -1.0, 1.0, 1e-45, -1e-45, 1e-30, inf, -inf, nan)


@pytest.mark.parametrize("op", ATTRIBUTES)
def test_attributes_that_make_infinities_are_seen(op: str) -> None:
    x = np.array([0, -0.0, 1e-30, -1e-30, 0.5, -0.5, 3, -3, 1000, -1000], np.float32)
    told = 0
    for values in product(EXTREMES, repeat=len(ATTRIBUTES[op])):
        proof = Proof(Sample(op, (x,), dict(zip(ATTRIBUTES[op], values, strict=True))))
        if is_total(proof.graph, proof.graph.nodes[0], ["x0"]):
            assert np.isfinite(proof.result[0]).all(), values
            told += 1
    assert told


DIV, POW = view_of("Div", X, X), view_of("Pow", X, X)
FINITE = {
    Sign.ANY: np.array([-2, -0.5, -0.0, 0, 0.5, 2]),
    Sign.NONNEGATIVE: np.array([-0.0, 0, 0.5, 2]),
    Sign.POSITIVE: np.array([0.5, 2]),
}


def test_a_divisor_is_positive_or_stays_what_it_is() -> None:
    for sign, other in product(Sign, repeat=2):
        for changed, stays in ((["x1"], False), (["x0", "x1"], False), (["x0"], True), ([], True)):
            given = Given(DIV, changed, {0: other, 1: sign})
            assert conditions.divisor(given) is (stays or sign is Sign.POSITIVE)
    assert conditions.divisor(Given(DIV, ["x1"], without_zero=[1]))
    assert not conditions.divisor(Given(DIV, ["x1"], without_zero=[0]))


@pytest.mark.parametrize("sign", Sign)
def test_roots_and_poles(sign: Sign) -> None:
    x = FINITE[sign]
    given = Given(POW, (), {0: sign})
    with np.errstate(all="ignore"):
        assert conditions.root(given) is bool(np.isfinite(np.sqrt(x)).all())
        assert conditions.pole(given) is bool(np.isfinite(1 / x).all())
        assert conditions.pole(given) is bool(np.isfinite(np.log(x)).all())
    assert not conditions.root(Given(POW, (), {1: sign}))
    assert not conditions.pole(Given(POW, (), {1: sign}))


EXPONENTS = (0, 1, 2, 3, -0.0, 0.5, 1.0, 1.5, 2.0, -0.5, -1, -1.0, -2, -1.5, inf, -inf, nan)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_a_power_is_finite_where_all_of_them_are(exponent: Number) -> None:
    for sign, x in FINITE.items():
        with np.errstate(all="ignore"):
            finite = bool(np.isfinite(np.power(x, np.float64(exponent))).all())
        assert conditions.power(Given(POW, (), {0: sign}, {1: exponent})) is finite, sign
        assert not conditions.power(Given(POW, (), {0: sign}))


def test_squares() -> None:
    for exponent, square in ((0, True), (2, True), (-2.0, True), (4.0, True)):
        assert conditions.even(Given(POW, numbers={1: exponent})) is square
    for exponent in (1, 3.0, -1, 0.5, 2.5, inf, nan):
        assert not conditions.even(Given(POW, numbers={1: exponent}))
    assert not conditions.even(Given(POW))
    assert not conditions.even(Given(POW, numbers={0: 2}))
    x = np.ones(2, np.float32)
    assert not conditions.same_factor(Given(view_of("Mul", x, x)))
    twice = view_of("Mul", x, x)
    twice.node.replace_input_with(1, twice.node.inputs[0])
    assert conditions.same_factor(Given(twice))


def norm(variance: Any, **attributes: Any) -> NodeView:
    """A BatchNormalization."""
    line = np.ones(3, np.float32)
    return view_of("BatchNormalization", X, line, line, line, variance, **attributes)


@pytest.mark.parametrize(
    ("variance", "epsilon", "finite"),
    [
        ([1, 0.5, 2], None, True),
        ([1, 0, 2], None, True),  # beside the default of 1e-5
        ([1, -9e-6, 2], None, True),
        ([1, -1.1e-5, 2], None, False),
        ([1, 0, 2], 0.0, False),
        ([1, -1, 2], None, False),
        ([1, -0.5, 2], 0.5, False),
        ([1, -0.5, 2], 0.75, True),
        ([1, nan, 2], None, False),
    ],
)
def test_a_scaling_divides_by_roots_of_positive_numbers(
    variance: list[float], epsilon: float | None, finite: bool
) -> None:
    more = {} if epsilon is None else {"epsilon": epsilon}
    view = norm(Const(np.array(variance, np.float32)), **more)
    assert conditions.scaling(Given(view, ["x0"])) is finite


def test_a_scaling_by_a_variance_that_is_computed() -> None:
    view = norm(np.ones(3, np.float32))
    assert conditions.scaling(Given(view, ["x0", "x1", "x2", "x3"]))
    assert not conditions.scaling(Given(view, ["x4"]))


@pytest.mark.parametrize(
    ("condition", "attributes", "finite"),
    [
        (conditions.norm, {}, True),
        (conditions.norm, {"epsilon": 1e-12}, True),
        (conditions.norm, {"epsilon": 0.0}, False),
        (conditions.norm, {"epsilon": -1e-5}, False),
        (conditions.local_norm, {}, True),
        (conditions.local_norm, {"bias": 0.0}, False),
        (conditions.local_norm, {"bias": 1e-9, "alpha": 0.0}, True),
        (conditions.local_norm, {"alpha": -1e-9}, False),
        (conditions.local_norm, {"bias": -1.0, "alpha": -1.0}, False),
    ],
)
def test_norms_divide_by_more_than_0(condition: Any, attributes: Any, finite: bool) -> None:
    line = np.ones(3, np.float32)
    view = view_of("LayerNormalization", X, line, line, **attributes)
    assert condition(Given(view)) is finite
