"""Mutants of tables: columns of the operators' records, and the index maps of all rules."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pitc.ir.expr import Read, Reducer, TensorExpr
from pitc.ir.graph import NodeView
from pitc.ir.index import poly
from pitc.ir.region import EVERYWHERE
from pitc.passes.rules.record import OPERATORS, Elementwise, Key, always, never, trust_all

COLUMNS, INDEX_MAPS = "passes.rules.record", "passes.rules"
ALL = "all operators"  # a check that goes through all of them
Mark = tuple[str, int | str]
FLAGS = ("keeps_clean", "selects", "finds_nan", "chooses", "converts", "reads_no_element")
TAKEN = ("law", "sign", "affine", "order", "value", "magnitude")  # of another operator that has one


@dataclass(frozen=True, slots=True)
class Entry:
    """A wrong entry of a table.

    Args:
        key: Names the mutant for good.
        module: What it counts for.
        operator: Checks that name it look first.
        mark: What a check notes that can tell the difference.
        put: Puts it in force.
    """

    key: str
    module: str
    operator: str
    mark: Mark
    put: Callable[[], None]


def entries() -> Iterator[Entry]:
    """All mutants of tables."""
    for operator in OPERATORS:
        for kind, changed in _columns(operator):
            key = f"{COLUMNS}:{'::'.join(operator)} | {kind}"
            mark = (COLUMNS, "::".join(operator))
            yield Entry(key, COLUMNS, operator[1], mark, lambda o=operator, c=changed: _row(o, c))
    for operator, row in OPERATORS.items():
        for kind, damage in DAMAGES.items():
            if row.rule is not None:
                key = f"{INDEX_MAPS}:{'::'.join(operator)} | {kind}"
                put = partial(_rule, operator, damage)
                yield Entry(key, INDEX_MAPS, operator[1], (INDEX_MAPS, key), put)


def _row(operator: Key, changed: dict[str, Any]) -> None:
    OPERATORS[operator] = replace(OPERATORS[operator], **changed)


def _columns(operator: Key) -> Iterator[tuple[str, dict[str, Any]]]:
    row = OPERATORS[operator]
    yield "finite", {"finite": never if row.finite is always else always}
    if row.square is not always:
        yield "square", {"square": always}
    yield from ((flag, {flag: not getattr(row, flag)}) for flag in FLAGS)
    for column in ("weights", "powers"):
        numbers = getattr(row, column)
        yield column, {column: tuple(-n for n in numbers) if numbers else (1,)}
    for column in TAKEN:
        if getattr(row, column) is not None:
            others = [k for k, r in OPERATORS.items() if getattr(r, column) is not None]
            neighbour = getattr(OPERATORS[others[others.index(operator) - 1]], column)
            yield column, {column: neighbour if neighbour != getattr(row, column) else None}
    if row.function is not None:
        for kind, changed in _function(operator, row.function):
            yield kind, {"function": replace(row.function, **changed)}


def _function(operator: Key, row: Elementwise) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "monotone", {"monotone": not row.monotone}
    yield "boolean", {"boolean": not row.boolean}
    if row.trusted is not trust_all:
        yield "trusted", {"trusted": trust_all}
    if row.image is not None:
        yield "image, lower end", {"image": (row.image[0] * 0.5 + 0.1, row.image[1])}
        yield "image, upper end", {"image": (row.image[0], row.image[1] * 0.5)}
    if row.parameters is not None:
        yield "parameters", {"parameters": None}
    if row.operands is not None:
        yield "operands", {"operands": None}
    functions = {k: r.function for k, r in OPERATORS.items() if r.function is not None}
    others = [k for k, function in functions.items() if function.operands == row.operands]
    neighbour = functions[others[others.index(operator) - 1]].evaluate
    if neighbour is not None and row.evaluate is not None:
        yield "evaluate", {"evaluate": neighbour}


def _rule(operator: Key, damage: Callable[[TensorExpr], TensorExpr]) -> None:
    right = OPERATORS[operator].rule
    assert right is not None

    def wrong(view: NodeView) -> Sequence[TensorExpr | None]:
        return [e and damage(e) for e in right(view)]

    OPERATORS[operator] = replace(OPERATORS[operator], rule=wrong)


def _first(expr: TensorExpr, change: Callable[[Read], Read]) -> TensorExpr:
    """The first read with a dimension is changed."""
    k = next((k for k, r in enumerate(expr.reads) if r.index), None)
    if k is None:
        return expr
    reads = (*expr.reads[:k], change(expr.reads[k]), *expr.reads[k + 1 :])
    return replace(expr, reads=reads)


def _further(read: Read) -> Read:
    last = read.index[-1]
    return replace(read, index=(*read.index[:-1], last + 1 if last is not None else poly(0)))


def _all_reads(expr: TensorExpr, **changed: Any) -> TensorExpr:
    return replace(expr, reads=tuple(replace(r, **changed) for r in expr.reads))


OTHER = {
    Reducer.SUM: Reducer.MAX,
    Reducer.MAX: Reducer.SUM,
    Reducer.MIN: Reducer.MEAN,
    Reducer.POOLED: Reducer.MAX,
    Reducer.MEAN: Reducer.SUM,
    Reducer.PROD: Reducer.SUM,
    Reducer.SQUARE: Reducer.SUM,
    Reducer.NORMALISE: Reducer.SUM,
    Reducer.ORDERED: Reducer.SUM,
}

DAMAGES: dict[str, Callable[[TensorExpr], TensorExpr]] = {
    "axes turned": lambda e: _first(e, lambda r: replace(r, index=r.index[::-1])),
    "one further": lambda e: _first(e, _further),
    "no within": lambda e: _all_reads(e, within=EVERYWHERE),
    "all absent": lambda e: _all_reads(e, absent=(EVERYWHERE,)),
    "known place": lambda e: replace(
        e,
        reads=tuple(
            replace(r, index=tuple(poly(0) if p is None else p for p in r.index)) for r in e.reads
        ),
    ),
    "without first read": lambda e: replace(e, reads=e.reads[1:]),
    "without last read": lambda e: replace(e, reads=e.reads[:-1]),
    "not ordered": lambda e: replace(e, ordered=frozenset()),
    "not normal": lambda e: replace(e, normal=()),
    "other reducer": lambda e: replace(e, reducer=OTHER.get(e.reducer, e.reducer)),
    "shape turned": lambda e: replace(e, shape=e.shape[::-1]),
}
