"""Softmax under a mask: where its result is exactly 0.

Minus infinity gives 0, or NaN in a row of nothing else: `ZN`, without a guard. A finite very
negative score gives 0 only in a row that keeps a key; a row with all keys masked is uniform. So the
fact carries a guard, as tests:

* one mask only: some key of the row is not masked;
* several masks (causal and padding): none of them masks the key at the row's own position.
"""

from math import inf

from pitc.ir.constant import ZN, FillFact, is_number, very_negative
from pitc.ir.expr import TensorExpr
from pitc.ir.graph import NodeView
from pitc.ir.index import Poly, dim_index, substitute
from pitc.ir.region import EVERYWHERE, Region, Test, for_some, prune, region

BOUNDED = (
    "scores and additive terms that are not masks are small against the mask value: "
    "a masked score's softmax is exactly 0"
)


def softmax_facts(view: NodeView, expr: TensorExpr, clean: Region | None) -> list[FillFact]:
    """Fill facts of a softmax from those of its input.

    Args:
        view: The node; its input has the output's shape.
        expr: The node's expression, with the normalised dimensions in `normal`.
        clean: Where the row has neither NaN nor +inf; None for nowhere.
    """
    graph, name = view.graph, view.name(0)
    if graph.shapes.get(name) != expr.shape:
        return []
    out, finite = [], []
    for f in graph.fills.get(name, ()):
        if is_number(f.constant) and f.constant == -inf:
            out.append(FillFact(f.region, ZN))
        elif very_negative(f.constant):
            finite.append(f.region)
    guards = spared_rows(view, expr) if finite and clean is not None else []
    for guard in guards:
        for r in finite:
            found = region(r | guard | (clean or EVERYWHERE))
            if found is not None:
                out.append(FillFact(found, 0))
    if guards:
        view.assume(BOUNDED)
    return out


def spared_rows(view: NodeView, expr: TensorExpr) -> list[Region]:
    """Regions of rows that keep a key: where some score is not masked."""
    if view.name(0) in view.graph.lossy:  # a mask may be missing
        return []
    facts = view.graph.fills.get(view.name(0), ())
    # a guard says where masks fail; it rests on no fact
    masked = prune(Region(f.region) for f in facts if very_negative(f.constant))
    return [*_some_key(expr, masked), *_own_position(expr, masked)] if masked else []


def _some_key(expr: TensorExpr, masked: list[Region]) -> list[Region]:
    """One mask: a key of the row at which one of its tests fails."""
    if len(masked) != 1:
        return []
    out = []
    for t in masked[0]:
        spared = t.negate()
        if spared is None or t.pred == "pos" or not (spared.dims() & set(expr.normal)):
            continue
        out.append(Region({for_some(spared, expr.normal)}))
    return out


def _own_position(expr: TensorExpr, masked: list[Region]) -> list[Region]:
    """The key at the row's own position fails one test of every mask."""
    if len(expr.normal) != 1:
        return []
    (axis,) = expr.normal
    out = []
    for w, extent in enumerate(expr.shape):
        if w == axis or extent != expr.shape[axis]:
            continue
        maps = [dim_index(d, e) for d, e in enumerate(expr.shape)]
        maps[axis] = dim_index(w, extent)
        spared: set[Test] = set()
        for r in masked:
            test = _failing_test(r, maps, expr)
            if test is None:
                break
            spared |= test
        else:
            guard = region(Region(spared))
            if guard is not None:
                out.append(guard)
    return out


def _failing_test(r: Region, maps: list[Poly], expr: TensorExpr) -> set[Test] | None:
    """Tests that make the mask fail there: one, or none when it cannot hold; None if unknown."""
    tests = []
    for t in r:
        idx = [substitute(p, maps, expr.shape) for p in t.idx]
        if any(p is None for p in idx):
            return None
        tests.append(Test(t.src, tuple(p for p in idx if p is not None), t.pred, t.yes))
    there = region(tests)
    if there is None:
        return set()
    options = [n for n in (t.negate() for t in there) if n is not None]
    return {min(options, key=lambda t: t.text)} if options else None
