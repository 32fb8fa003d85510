"""Where values are finite by construction.

`0 * x` is 0 and `x - inf` is -inf only for finite x. Run-time inputs are taken to be finite; what
is not comes from the graph itself: constants with Inf or NaN, divisions, roots and logarithms of
what may be 0 or negative (a distance, in relative position biases), extremes of nothing, operators
of which nothing is known, and the softmax of a row of only -inf. Two regions per value follow it:
`finite_if`, where it is finite, and `clean_if`, where it is neither NaN nor +inf (so -inf, as masks
have it, is allowed). None means: nowhere for sure.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pitc.ir.constant import NEG, FillFact, is_nonzero, is_zero
from pitc.ir.expr import Combine, Read, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import Poly
from pitc.ir.nodes import bodies
from pitc.ir.region import (
    EVERYWHERE,
    MAX_TESTS,
    Region,
    Test,
    covered,
    for_all,
    inside,
    position,
    pull,
    region,
)
from pitc.passes.facts.blind_rows import note_row_guard
from pitc.passes.facts.sizes import has_place, size_bounds
from pitc.passes.facts.softmax import finite_rows, spared_rows
from pitc.passes.facts.total import filled, is_total
from pitc.passes.rules.laws import truth_of
from pitc.passes.rules.record import operator_of

Guard = Region | None
Table = Callable[[str], Guard]


def finite_if(graph: Graph, name: str) -> Guard:
    """Where the value is finite; None when that is not known anywhere."""
    return graph[name].finite_if


def clean_if(graph: Graph, name: str) -> Guard:
    """Where the value is neither NaN nor +inf; None when that is not known anywhere."""
    return graph[name].clean_if


def note_sources(graph: Graph) -> None:
    """Guards of constants, and of inputs that are additive masks and may hold -inf."""
    for name in graph.constants():
        if graph[name].uses:
            found = graph.exceptional(name)
            _note(
                graph, name, None if found else EVERYWHERE, None if found - {"-inf"} else EVERYWHERE
            )
    for name in graph.inputs:
        _note(graph, name, EVERYWHERE, EVERYWHERE)
        if any(f.constant == NEG for f in graph[name].fills):
            _note(graph, name, Region({Test(name, graph.index_of(name), "neg", False)}), EVERYWHERE)


def note_outputs(view: NodeView, output: int, expr: TensorExpr | None) -> None:
    """Guards of one output of a node, from those of its operands."""
    graph, name = view.graph, view.out(output)
    dtype = graph[name].dtype
    if dtype is not None and dtype.kind in "biu":
        _note(graph, name, EVERYWHERE, EVERYWHERE)
        return
    if next(bodies(view.node), None):
        guard = _of_body(view, output)
        _note(graph, name, guard, guard)
        return
    guards = note_nan_guard(view)
    names = [view.name(i) for i in range(view.n_inputs) if view.has(i)]
    if not is_total(graph, view.node, names):
        guard = of_sizes(graph, name)
        guard = _of_quotient(view, expr) if guard is None else guard
        _note(graph, name, guard, guard)
        return
    if expr is None:
        guard = EVERYWHERE if all_finite(graph, names) else None
        _note(graph, name, guard, guard)
        return
    free = _no_infinity(view, expr, names)
    softmax = note_row_guard(view)
    if softmax is not None and (rows := graph[softmax.out()].expr) is not None:
        guard = row_clean(softmax, rows)
        _note(graph, name, guard, guard, free)
    elif guards and graph[view.name(2)].no_infinity:
        _note(graph, name, EVERYWHERE, EVERYWHERE)
    elif expr.combine is Combine.SOFTMAX:
        guard = _softmax(view, expr)
        _note(graph, name, guard, guard, free)
    else:
        finite = both(filled(expr), _all_reads(view, expr, lambda x: finite_if(graph, x)))
        keeps = expr.combine is Combine.MOVE or operator_of(view).keeps_clean
        clean = _all_reads(view, expr, lambda x: clean_if(graph, x)) if keeps else finite
        _note(graph, name, finite, clean, free)


def of_sizes(graph: Graph, name: str) -> Guard:
    """Where a number that is computed of sizes is finite: where these are not 0."""
    dtype, found = graph[name].dtype, size_bounds(graph, name)
    if found is None or dtype is None or found.hi > np.finfo(dtype).max:
        return None
    return region(position(n - 1) for n in found.sizes)


def _of_quotient(view: NodeView, expr: TensorExpr | None) -> Guard:
    """Where the divisor of a quotient is known not to be 0, by a fact."""
    divisor = [r for r in expr.reads if operator_of(view).power(r.operand) < 0] if expr else []
    if expr is None or len(divisor) != 1:
        return None
    (read,) = divisor
    name = view.name(read.operand)
    zeros = [list(f.region) for f in view.graph[name].fills if is_zero(f.constant)]
    facts = [f.region for f in view.graph[name].fills if is_nonzero(f.constant)]
    facts.sort(key=lambda r: not covered([list(r), *zeros], MAX_TESTS))  # beside which it is 0
    found = (guard_at(view.graph, name, read, r, expr.shape) for r in facts)
    known = next((r for r in found if r is not None), None)
    return both(known, _all_reads(view, expr, lambda x: finite_if(view.graph, x)))


def _no_infinity(view: NodeView, expr: TensorExpr, names: Iterable[str]) -> bool:
    """True where results of a total operator are finite or NaN: weights of a softmax, values of a
    bounded function, and what is made of such. A NaN guard makes those finite, but no others.
    """
    row = operator_of(view).function
    if expr.combine is Combine.SOFTMAX or (row is not None and row.image is not None):
        return True
    each = expr.combine in (Combine.MAP, Combine.MOVE)
    return each and all(view.graph[x].no_infinity for x in names)


def _of_body(view: NodeView, output: int) -> Guard:
    """Everywhere for a result of a loop whose body makes finite values of finite ones."""
    inner = view.graph.bodies.get(view.node)
    if inner is None or finite_if(inner, inner.outputs[1 + output]) != EVERYWHERE:
        return None
    return EVERYWHERE


def all_finite(graph: Graph, names: Iterable[str]) -> bool:
    """True where all of the values are known to be finite numbers, or no floats."""
    types = ((name, graph[name].dtype) for name in names)
    return all(
        t is not None and (t.kind in "biu" or finite_if(graph, name) == EVERYWHERE)
        for name, t in types
    )


def _note(graph: Graph, name: str, finite: Guard, clean: Guard, free: bool = False) -> None:
    graph[name].finite_if, graph[name].clean_if = finite, clean
    graph[name].no_infinity = free or finite == EVERYWHERE


def guard_at(
    graph: Graph, name: str, read: Read, guard: Guard, extents: Sequence[Poly] = ()
) -> Guard:
    """A guard of an operand in the iteration space, of these extents: where it has a point, none
    of them is 0.
    """
    # an empty region and one that cannot be said are both "nowhere"
    found = None if guard is None else pull(guard, read.index, graph[name].shape)
    if found is None:
        return None
    return region(at_a_place(found, extents))


def at_a_place(where: Region, extents: Sequence[Poly]) -> Region:
    """A region without tests of sizes that are not 0 where a value of these extents has a place."""
    return Region((t for t in where if not _is_size_of(t, extents)), where.via)


def _is_size_of(t: Test, extents: Sequence[Poly]) -> bool:
    """The test that a size is not 0, which one of the extents says."""
    return t.pred == "pos" and not t.idx[0].digits() and has_place(t.idx[0] + 1, extents)


def both(a: Guard, b: Guard) -> Guard:
    """Where two guards hold."""
    return None if a is None or b is None else region(a | b)


def _all_reads(view: NodeView, expr: TensorExpr, table: Table) -> Guard:
    """Where every element that a point reads, over all its reduced axes, is covered."""
    axes = range(len(expr.shape), len(expr.extents))
    out: Guard = EVERYWHERE
    described = {r.operand for r in expr.reads}
    for i in range(view.n_inputs):
        if view.has(i) and i not in described and table(view.name(i)) != EVERYWHERE:
            return None
    for read in expr.reads:
        name = view.name(read.operand)
        at = guard_at(view.graph, name, read, table(name), expr.shape)
        if at is not None and operator_of(view).chooses:
            at = _where_taken(view, expr, read, at)
        out = both(out, None if at is None else for_all(at, axes))
    return out


def _where_taken(view: NodeView, expr: TensorExpr, read: Read, guard: Region) -> Region:
    """The guard of an operand of a Where, without tests that it fails only where it is not taken.

    Where(mask == 0, 0, x), with x finite where mask != 0, is finite everywhere.
    """
    condition = next((r for r in expr.reads if r.operand == 0), None)
    if read.operand == 0 or condition is None:
        return guard
    name = view.name(0)
    found = (
        pull(f.region, condition.index, view.graph[name].shape)
        for f in view.graph[name].fills
        if truth_of(f.constant) is (read.operand == 2)
    )
    others = [r for r in found if r is not None]
    for test in guard:
        fails = test.negate()
        if fails is None:
            continue
        for other in others:
            if inside(Region({fails}, other.via), other):
                rest = guard.without(test)
                guard = Region(rest, rest.via | other.via)
                break
    return guard


def _softmax(view: NodeView, expr: TensorExpr) -> Guard:
    """A softmax is NaN in a row with NaN or +inf, and in a row of only -inf."""
    name = view.name(0)
    if finite_if(view.graph, name) == EVERYWHERE:
        low = [f for f in view.graph[name].fills if f.constant == float("-inf")]
        if not low:
            return EVERYWHERE
    clean = row_clean(view, expr)
    whole = finite_rows(view, expr)
    spared = [whole] if whole is not None else spared_rows(view, expr)
    if spared:
        possible = [r for r in spared if not _is_refuted(view.graph, r)]
        # whoever reads a row knows more of single queries and keys than of pairs
        return both(clean, min(possible or spared, key=_widest))
    finite = finite_if(view.graph, name)
    return None if finite is None else for_all(finite, expr.normal)


def _widest(r: Region) -> int:
    """How many coordinates a test of a region looks at, at most."""
    return max((len(t.dims()) for t in r), default=0)


def _is_refuted(graph: Graph, r: Region) -> bool:
    """True where a test of a region contradicts what its other tests say of the same value: the
    region is empty, and of no use as a guard.
    """
    for t in r:
        if t.pred == "nz" and not (t.alls or t.somes):
            value = graph[t.src]
            found = (pull(f.region, t.idx, value.shape) for f in value.fills if _denies(f, t))
            if any(known is not None and inside(r, Region(known.tests)) for known in found):
                return True
    return False


def _denies(fact: FillFact, t: Test) -> bool:
    return truth_of(fact.constant) is (not t.yes)


def row_clean(view: NodeView, expr: TensorExpr) -> Guard:
    """Where the whole row of a softmax's input is without NaN and +inf."""
    guard = clean_if(view.graph, view.name(0))
    return None if guard is None else for_all(guard, expr.normal)


def note_nan_guard(view: NodeView) -> bool:
    """Note a node that is Where(IsNaN(p), 0, p) and its flag; False for others."""
    graph = view.graph
    if not operator_of(view).chooses:
        return False
    flag, guarded = view.name(0), view.name(2)
    test = graph[flag].producer
    if test is None or not operator_of(test).finds_nan or NodeView(graph, test).name(0) != guarded:
        return False
    if not any(not f.region and is_zero(f.constant) for f in graph[view.name(1)].fills):
        return False
    graph[view.out()].guard_flag = flag
    return True
