"""The table of packed forms: which rows a candidate meets, and which of their reasons is told."""

from dataclasses import replace
from itertools import chain, combinations, product

import pytest

from pitc.ir.expr import Combine
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions.candidates import FEW_LIVE, OTHERS, SKIPS, Tried
from pitc.passes.regions.contraction import Kind
from pitc.passes.regions.forms import (
    BY_EXPRESSION,
    FORMS,
    both_told,
    kinds_of,
    unless_no_fact,
    unless_not_lowered,
)
from pitc.passes.rules.record import PackRule

OUTPUT = (Kind.M, Kind.N, Kind.E)
AXES = [frozenset(c) for n in range(4) for c in combinations(OUTPUT, n)]
ATTENTION = ["softmax over live keys", "gradient of softmax over live keys"]
ITEMS, TERMS, GROUPED = "fewer_items", "sum of live terms", "grouped product"
SCALED = "sum of scaled rows"


def names(
    packs: PackRule | None, combine: Combine, axes: frozenset[Kind], tried: Tried
) -> list[str]:
    return [kind.rule for kind in kinds_of(packs, combine, axes, tried)]


def test_every_row_is_met() -> None:
    asked = product((None, *PackRule), Combine, AXES, Tried)
    assert set(chain.from_iterable(kinds_of(*key) for key in asked)) == set(FORMS)
    assert {way.tried for way in (*FEW_LIVE, *OTHERS, SKIPS)} == set(Tried)


@pytest.mark.parametrize("axes", AXES)
def test_a_contraction_has_one_row_for_its_axes(axes: frozenset[Kind]) -> None:
    sampled = ["sampled sum of outer products", "sampled product"]
    first = sampled if axes == {Kind.M, Kind.N} else ["contraction"]
    for combine, last in ((Combine.PRODUCT, ATTENTION), (Combine.BIASED_PRODUCT, [])):
        found = kinds_of(PackRule.CONTRACTION, combine, axes, Tried.DEAD)
        in_front = [GROUPED] * (combine is Combine.PRODUCT)  # where a matrix is looked up
        assert [kind.rule for kind in found] == [*in_front, *first, ITEMS, *last]
        assert found[len(in_front)].axes == axes


def test_what_a_node_is_tried_with() -> None:
    none, gemm = frozenset[Kind](), PackRule.CONTRACTION
    assert names(None, Combine.PRODUCT, none, Tried.DEAD) == [GROUPED, ITEMS, *ATTENTION]
    assert names(gemm, Combine.PRODUCT, none, Tried.WANTED) == [GROUPED, "contraction", ITEMS]
    assert names(gemm, Combine.PRODUCT, none, Tried.LOOKED_UP) == [GROUPED]
    assert names(None, Combine.MAP, none, Tried.DEAD) == ["elementwise", ITEMS]
    assert names(PackRule.PER_TENSOR, Combine.MAP, none, Tried.WANTED) == ["elementwise", ITEMS]
    assert names(PackRule.NORMALISER, Combine.MAP, none, Tried.DEAD) == ["normaliser", ITEMS]
    assert names(PackRule.REDUCTION, Combine.REDUCE, none, Tried.DEAD) == ["reduction", ITEMS]
    for packs in (PackRule.RESHAPED, PackRule.REPEATED, PackRule.TRANSPOSED):
        assert names(packs, Combine.MOVE, none, Tried.MOVED) == ["movement", ITEMS]
    assert names(PackRule.ROWS, Combine.MAP, none, Tried.DEAD) == ["same_node", ITEMS]
    assert names(PackRule.CHOICE, Combine.MOVE, none, Tried.DEAD) == ["choice"]
    assert names(gemm, Combine.PRODUCT, none, Tried.TERMS) == [TERMS, SCALED]
    assert names(None, Combine.PRODUCT, none, Tried.TERMS) == [SCALED]
    for packs, combine in product((None, gemm), (Combine.PRODUCT, Combine.BIASED_PRODUCT)):
        assert names(packs, combine, none, Tried.ZEROS) == [
            *("few terms", "live channels", "sparse operand")
        ]
    for axes in AXES:  # all rows in their own order are read by attention, and moved
        assert names(gemm, Combine.PRODUCT, axes, Tried.QUERIES) == ATTENTION[:1]


ONE = frozenset(PackRule) - {PackRule.CONTRACTION, PackRule.ROWS} - set(BY_EXPRESSION)


@pytest.mark.parametrize("packs", sorted(ONE, key=list(PackRule).index))
def test_an_operator_that_packs_in_a_way_of_its_own_has_a_row(packs: PackRule) -> None:
    assert names(packs, Combine.MAP, frozenset(), Tried.DEAD)[0] == packs.name.lower()


def refused(code: Code) -> Refusal:
    return Refusal(code, "node", code.name)


@pytest.mark.parametrize(
    ("contraction", "attention", "front"),
    [
        (Code.LAYOUT, Code.AXIS_NOT_PIT, None),
        (Code.AXIS_NOT_PIT, Code.AXIS_NOT_PIT, None),
        (Code.LAYOUT, Code.NO_FACT, "contraction"),
        (Code.AXIS_NOT_PIT, Code.NO_FACT, "attention"),
        (Code.NO_KERNEL, Code.NO_FACT, "attention"),
        (Code.NO_KERNEL, Code.LAYOUT, "contraction"),
    ],
)
def test_the_reason_in_front_looked_at_more(
    contraction: Code, attention: Code, front: str | None
) -> None:
    first, second = refused(contraction), refused(attention)
    if front is None:
        assert both_told(first, second) == first
    elif front == "contraction":
        assert both_told(first, second) == replace(first, also=second)
    else:
        assert both_told(first, second) == replace(second, also=first)


def test_items_tell_of_what_nothing_else_lowers() -> None:
    items = refused(Code.AXIS_NOT_PIT)
    assert unless_not_lowered(refused(Code.NO_LOWERING), items) == items
    assert unless_not_lowered(refused(Code.LAYOUT), items) == refused(Code.LAYOUT)


def test_operands_tell_of_a_convolution_of_whose_channels_nothing_is_known() -> None:
    operand = refused(Code.NO_LOWERING)
    assert unless_no_fact(refused(Code.NO_FACT), operand) == operand
    assert unless_no_fact(refused(Code.JOINT), operand) == refused(Code.JOINT)
