"""Softmax under a mask: where its result is exactly 0.

Minus infinity gives 0, or NaN in a row of nothing else: `ZN`, unless each row has a finite number,
as at its own position where a causal mask and one of padding are added up. A finite term gives 0
beside a term that is far above it. Both are known only by what is known of *all* that is added up
(`terms.py`): z is *hidden* where it is at most -5750, and *kept* where it is at least -5000, and
exp(-750) is 0 in every type. So where z is hidden, p is 0 if some key of the row is kept, and that
is a test like any other:

    z = score + mask    kept where mask[b, k] != 0, hidden where mask[b, k] == 0
    p == 0              where mask[b, k] == 0 and some j: mask[b, j] != 0

Several tests must hold of one key together, which a region cannot say. It follows from either of

* the key at the row's own position: all of them, looked at there;
* some key passes one of them, and all keys of the row pass the others;
* the row's own position passes the masks, and biases are small at all keys.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf, isfinite

from pitc.ir.constant import (
    BOUNDED,
    FINITE,
    ZN,
    Constant,
    FillFact,
    is_assumed,
    is_hidden,
    is_kept,
    range_of,
)
from pitc.ir.expr import Shape, TensorExpr
from pitc.ir.graph import NodeView
from pitc.ir.index import ONE, ZERO, dim_index, nonneg
from pitc.ir.region import (
    Region,
    Test,
    cost,
    for_all,
    for_some,
    prune,
    pull,
    region,
    resolve,
)
from pitc.passes.rules.build import inside

MAX_GUARDS = 4  # the simplest ways to say that a row keeps a key


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows of keys.

    Args:
        extents: Of all dimensions.
        axes: Dimensions of keys.
    """

    extents: Shape
    axes: tuple[int, ...]


def softmax_facts(view: NodeView, expr: TensorExpr, clean: Region | None) -> list[FillFact]:
    """Fill facts of a softmax from those of its input.

    Args:
        view: The node; its input has the output's shape.
        expr: The node's expression, with the normalised dimensions in `normal`.
        clean: Where the row has neither NaN nor +inf; None for nowhere.
    """
    graph, name = view.graph, view.name(0)
    if graph[name].shape != expr.shape:
        return []
    facts = graph[name].fills
    low = [f.region for f in facts if f.constant == -inf]
    out = [FillFact(r, ZN) for r in low]
    whole = finite_rows(view, expr) if low and clean is not None else None
    if whole is not None and clean is not None:
        view.assume(FINITE)
        found = (region(r | whole | clean) for r in low)
        out += [FillFact(r, 0) for r in found if r is not None]
    hidden = [f for f in facts if is_hidden(f.constant) and f.constant != -inf]
    if not hidden or clean is None:
        return out
    found = (region(f.region | g | clean) for f in hidden for g in spared_rows(view, expr))
    zeros = [FillFact(r, 0) for r in found if r is not None]
    kept = (f for f in facts if is_kept(f.constant))
    if zeros:
        view.assume(FINITE)  # a NaN in the row makes NaN of all of it
    if zeros and any(is_assumed(f.constant) for f in (*hidden, *kept)):
        view.assume(BOUNDED)
    return out + zeros


def spared_rows(
    view: NodeView, expr: TensorExpr, keeps: Callable[[Constant], bool] | None = None
) -> list[Region]:
    """Regions of rows that keep a key: some term of the row is known not to be far below 0.

    Args:
        view: The softmax.
        expr: Its expression.
        keeps: What is known of such a term; None: `is_kept`.
    """
    facts = view.graph[view.name(0)].fills
    is_near = keeps or is_kept
    lines = Lines(expr.shape, tuple(expr.normal))
    guards = (g for f in facts if is_near(f.constant) for g in keeping(f.region, lines))
    return sorted(prune(guards), key=cost)[:MAX_GUARDS]


def finite_rows(view: NodeView, expr: TensorExpr) -> Region | None:
    """Everywhere, where every row is known to have a term that is a finite number, hidden or not;
    else None. It does not rest on the terms themselves: with other finite ones, it has one, too.
    """
    own = view.graph[view.name(0)].bit
    rows = resolve(spared_rows(view, expr, _is_finite))
    return next((Region((), r.via & ~own) for r in rows if not r), None)


def _is_finite(c: Constant) -> bool:
    known = range_of(c)
    return known is not None and isfinite(known.lo) and isfinite(known.hi)


def keeping(kept: Region, lines: Lines) -> Iterator[Region]:
    """Regions of rows some key of which lies in a region, if there is a key.

    [mask[d0, d1] != 0], normalised over d1   ->   [some j: mask[d0, j] != 0]
    """
    along = [t for t in kept if t.dims() & set(lines.axes)]
    across = Region((t for t in kept if t not in along), kept.via)
    if not along:
        yield across
    for t in along:
        others = [u for u in along if u is not t]
        every = for_all(Region(others), lines.axes)
        spared = _some(t, lines.axes)
        if spared is not None and every is not None and all(u.pred != "pos" for u in others):
            found = region(across | every | Region((spared,)))
            if found is not None:
                yield found
    if along and all(t.pred == "pos" for t in along):
        yield from _at_an_end(kept, lines)
        yield from _at_a_bound(kept, lines)
    yield from _own_position(kept, lines)
    small = Region(t for t in along if t.pred == "small")
    every = for_all(small, lines.axes) if small else None
    if every is not None:
        own = Region((t for t in kept if t not in small), kept.via)
        guards = (region(r | every) for r in _own_position(own, lines))
        yield from (r for r in guards if r is not None)


def _some(t: Test, normal: Iterable[int]) -> Test | None:
    """The test "t for some key"; None where it has a bound dimension, or is one of positions."""
    return None if t.pred == "pos" or t.alls or t.somes else for_some(t, normal)


def _at_an_end(kept: Region, lines: Lines) -> Iterator[Region]:
    """The first or the last key lies in the region, in every row: a sink beside the keys."""
    if len(lines.axes) != 1 or not nonneg(lines.extents[lines.axes[0]] - 1):
        return
    (axis,) = lines.axes
    for place in (ZERO, lines.extents[axis] - 1):
        maps = [dim_index(d, e) for d, e in enumerate(lines.extents)]
        maps[axis] = place
        found = pull(kept, maps, lines.extents)
        if found is not None:
            yield found


def _at_a_bound(kept: Region, lines: Lines) -> Iterator[Region]:
    """The last key, or the first one, that a test of positions allows lies in the region.

    [q - k >= 0 and k < s] of s + 1 keys, a sink behind them   ->   [], by the key k = q
    """
    if len(lines.axes) != 1:
        return
    (axis,) = lines.axes
    own = dim_index(axis, lines.extents[axis])
    for t in kept:
        for place in (t.idx[0] + own, own - t.idx[0]) if t.pred == "pos" and t.dims() else ():
            if all(0 <= c.dim != axis for c in place.digits()):
                maps = [dim_index(d, e) for d, e in enumerate(lines.extents)]
                maps[axis] = place
                found = pull(kept, maps, lines.extents)
                there = (
                    None if found is None else region(found | inside(place, lines.extents[axis]))
                )
                if there is not None:
                    yield there


def _own_position(kept: Region, lines: Lines) -> Iterator[Region]:
    """The key at the row's own position lies in the region; there is one, as it exists as a row.

    Where there are more keys than rows, as behind a past, rows stand at the last places: row i of s
    at key p + i of p + s. Beside one key more, which may be a sink, they may stand at the first
    ones, too. Of any other row it would be a key as well.
    """
    if len(lines.axes) != 1:
        return
    (axis,) = lines.axes
    for w, extent in enumerate(lines.extents):
        before = lines.extents[axis] - extent
        if w == axis or not nonneg(before) or (before.terms and extent == ONE):
            continue
        for first in (before, ZERO) if before == ONE else (before,):
            maps = [dim_index(d, e) for d, e in enumerate(lines.extents)]
            maps[axis] = dim_index(w, extent) + first
            found = pull(kept, maps, lines.extents)
            if found is not None:
                yield found
