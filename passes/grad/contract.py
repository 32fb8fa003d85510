"""Writes a sum of products of two labelled factors as one MatMul between changes of shape.

    a[b, s, k] * g[b, s, n]  ->  [k, n]      MatMul(Transpose([b*s, k]), [b*s, n])
    g[b, s, n] * w[k, n]     ->  [b, s, k]   MatMul(g, Transpose(w))

A label is in both factors and the sum (*batch*), in one of them and the sum (*row* or *column*), in
both factors only (*summed*), or in one factor only: over that it is summed before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain

import onnx_ir as ir

from pitc.passes.grad.backward import Backward

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """A value with a label for each dimension.

    Args:
        value: The value.
        axes: The labels.
        sizes: For each label a value, and its dimension of that size.
    """

    value: ir.Value
    axes: Axes
    sizes: dict[int, tuple[ir.Value, int]]


def labelled(build: Backward, x: ir.Value, axes: Sequence[int | None], like: ir.Value) -> Factor:
    """A factor of a value; dimensions of extent 1, without a label, are dropped.

    Args:
        build: Takes the nodes.
        x: The value.
        axes: Its labels.
        like: A value of the same shape.
    """
    ones = [d for d, a in enumerate(axes) if a is None]
    sizes = {a: (like, d) for d, a in enumerate(axes) if a is not None}
    return Factor(build.along("Squeeze", x, ones) if ones else x, tuple(sizes), sizes)


def contracted(build: Backward, a: Factor, b: Factor | None, out: Axes) -> Factor:
    """The sum of products over all labels but some.

    Args:
        build: Takes the nodes.
        a: A factor.
        b: The other one; None: 1.
        out: The labels of the sum, in order. Each of them is in a factor.
    """
    if b is None:
        a = _summed(build, a, out)
        value = build.transpose(a.value, [a.axes.index(x) for x in out])
        return Factor(value, out, a.sizes)
    a, b = _summed(build, a, (*b.axes, *out)), _summed(build, b, (*a.axes, *out))
    sizes = {**a.sizes, **b.sizes}
    ways = [_Product(a, b, out), _Product(b, a, out)]
    way = min(ways, key=lambda way: not way.is_sorted)
    value = _matmul(build, way) if way.summed else _outer(build, way)
    return Factor(value, out, sizes)


def _summed(build: Backward, x: Factor, kept: Axes) -> Factor:
    """A factor summed over the labels that nothing else has."""
    gone = [d for d, a in enumerate(x.axes) if a not in kept]
    if not gone:
        return x
    axes = tuple(a for a in x.axes if a in kept)
    return Factor(build.reduced(x.value, gone, keep=False), axes, x.sizes)


class _Product:
    """Two factors, their labels sorted by what they are."""

    def __init__(self, left: Factor, right: Factor, out: Axes) -> None:
        self.left, self.right, self.out = left, right, out
        self.batch = tuple(x for x in out if x in left.axes and x in right.axes)
        self.rows = tuple(x for x in out if x in left.axes and x not in right.axes)
        self.columns = tuple(x for x in out if x in right.axes and x not in left.axes)
        self.summed = tuple(x for x in left.axes if x not in out)

    @property
    def is_sorted(self) -> bool:
        """True where the product's labels come in the order of the sum's."""
        return (*self.batch, *self.rows, *self.columns) == self.out


def _matmul(build: Backward, way: _Product) -> ir.Value:
    # rows may stay apart where the right factor is the same for all of them
    rows: list[Axes] = [way.rows]
    if not way.batch and way.rows:
        rows = [(x,) for x in way.rows]
    batch = [(x,) for x in way.batch]
    left = _arranged(build, way.left, [*batch, *rows, way.summed])
    right = _arranged(build, way.right, [*batch, way.summed, way.columns])
    result = build.op("MatMul", [left, right])
    groups = [*batch, *rows, way.columns]
    made = tuple(chain(*groups))
    if any(len(group) != 1 for group in groups):
        sizes = {**way.left.sizes, **way.right.sizes}
        result = build.reshape(result, _shape(build, sizes, [(x,) for x in made]))
    return build.transpose(result, [made.index(x) for x in way.out])


def _outer(build: Backward, way: _Product) -> ir.Value:
    """Without a sum: factors that broadcast against each other."""
    parts = []
    for factor in (way.left, way.right):
        order = [x for x in way.out if x in factor.axes]
        value = build.transpose(factor.value, [factor.axes.index(x) for x in order])
        gaps = [d for d, x in enumerate(way.out) if x not in factor.axes]
        parts.append(build.unsqueeze(value, *gaps))
    return build.op("Mul", parts)


def _arranged(build: Backward, x: Factor, groups: Sequence[Axes]) -> ir.Value:
    """A factor with one dimension for each group of labels, in order; 1 for an empty one.

    Labels that lie side by side are joined first: that moves nothing.
    """
    value, axes = x.value, list(x.axes)
    given = [group for group in groups if group]
    lying = sorted(given, key=lambda group: axes.index(group[0]))
    if list(chain(*lying)) != axes:
        value = build.transpose(value, [axes.index(a) for a in chain(*given)])
        lying = given
    if len(lying) < len(axes):
        value = build.reshape(value, _shape(build, x.sizes, lying))
    value = build.transpose(value, [lying.index(group) for group in given])
    return build.unsqueeze(value, *(k for k, group in enumerate(groups) if not group))


def _shape(
    build: Backward, sizes: dict[int, tuple[ir.Value, int]], groups: Sequence[Axes]
) -> ir.Value:
    """The shape with one dimension for each group of labels.

    Of sizes that are not known one may be what remains, where all others are numbers but 0.
    """
    parts: list[int | None] = [_number(build, sizes, group) for group in groups]
    unknown = [k for k, n in enumerate(parts) if n is None]
    if len(unknown) < 2 and 0 not in parts:
        return build.ints(*(-1 if n is None else n for n in parts))
    vectors = [
        _computed(build, sizes, group) if n is None else build.ints(n)
        for group, n in zip(groups, parts, strict=True)
    ]
    return build.joined(vectors)


def _number(build: Backward, sizes: dict[int, tuple[ir.Value, int]], group: Axes) -> int | None:
    number = 1
    for axis in group:
        value, d = sizes[axis]
        extents = build.extents(value)
        size = None if extents is None else extents[d].as_int()
        if size is None:
            return None
        number *= size
    return number


def _computed(build: Backward, sizes: dict[int, tuple[ir.Value, int]], group: Axes) -> ir.Value:
    vectors = [build.sizes(value, [d]) for value, d in (sizes[axis] for axis in group)]
    return reduce(partial(build.arithmetic, "Mul"), vectors)
