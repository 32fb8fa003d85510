"""Sizes that are 0 or 1, and what is computed from sizes."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from tests.probes.build import HEADS, D, Feed, Net, Probe, Table, normal, rng_of, tensor
from tests.probes.masks import HEAD, attention, merge, outer, soft, split
from tests.probes.softmax import before, low, positions

SIZES = Table("sizes")
EXTENTS = (0, 1, 2, 3, 5, 7)
Array = Any


def mask_of(b: int, s: int, seed: int = 0) -> Array:
    """A mask with holes."""
    return (rng_of(seed, b, s).random((b, s)) < 0.6).astype(np.int64)


def packed(g: Net, x: str, mask: str) -> str:
    """Work that is wanted for live tokens only."""
    return g.Mul(g.mlp(x), g.cast(g.Unsqueeze(mask, [2]), np.float32))


def number(g: Net, n: int) -> str:
    """An int64 scalar."""
    return g.const(n, np.int64)


Condition = Callable[[Net, str], str]


def _branched(condition: Condition, sided: bool) -> Probe:
    """A branch on the size of `past`, [p, 4], beside or around packed work."""
    g = Net(17)
    x, mask = g.input("x", np.float32, ("b", "s", D)), g.input("mask", np.int64, ("b", "s"))
    past = g.input("past", np.float32, ("p", 4))
    y = packed(g, x, mask)
    holds = condition(g, past)
    if sided:
        one, other = g.body(lambda b: [b.Mul(y, 2.0)]), g.body(lambda b: [b.Add(x, 1.0)])
        g.out(g.If(holds, then_branch=one, else_branch=other))
    else:
        g.out(g.Where(holds, y, g.mlp(x, 7)))
    feeds = [
        {"x": normal(2, 5, D, seed=p), "mask": mask_of(2, 5, p), "past": normal(p, 4)}
        for p in EXTENTS
    ]
    return Probe(g.model(), feeds)


def rows(g: Net, x: str) -> str:
    """Extent of dimension 0, a scalar."""
    return g.size(x, 0)


def count(g: Net, x: str) -> str:
    """The number of elements."""
    return g.Size(x)


def to(g: Net, start: Any, end: Any, step: int = 1) -> str:
    """How many numbers a Range has."""
    ends = (number(g, e) if isinstance(e, int) else e for e in (start, end))
    return count(g, g.Range(*ends, number(g, step)))


def same(g: Net, a: str, b: Any) -> str:
    """Equality of two sizes."""
    return g.Equal(a, number(g, b) if isinstance(b, int) else b)


def part(g: Net, x: str, start: int, end: int, step: int = 1) -> str:
    """Rows of a slice along dimension 0."""
    return rows(g, g.Slice(x, [start], [end], [0], [step]))


def flat(g: Net, n: str) -> str:
    """A scalar as a vector."""
    return g.Unsqueeze(n, [0])


CONDITIONS: dict[str, Condition] = {
    "greater_0": lambda g, x: g.Greater(rows(g, x), number(g, 0)),
    "at_least_1": lambda g, x: g.GreaterOrEqual(rows(g, x), number(g, 1)),
    "is_0": lambda g, x: same(g, rows(g, x), 0),
    "not_0": lambda g, x: g.Not(same(g, rows(g, x), 0)),
    "less_1": lambda g, x: g.Less(rows(g, x), number(g, 1)),
    "is_1": lambda g, x: same(g, rows(g, x), 1),
    "truth": lambda g, x: g.cast(rows(g, x), np.bool_),
    "size_truth": lambda g, x: g.cast(count(g, x), np.bool_),
    "size_greater": lambda g, x: g.Greater(count(g, x), number(g, 3)),
    "size_less": lambda g, x: g.Less(number(g, 0), count(g, x)),
    "float_size": lambda g, x: g.Greater(g.cast(rows(g, x), np.float32), 0.0),
    "range_from_5": lambda g, x: same(g, g.Add(to(g, 5, rows(g, x)), number(g, 5)), rows(g, x)),
    "range_from_1": lambda g, x: same(g, g.Add(to(g, 1, rows(g, x)), number(g, 1)), rows(g, x)),
    "range_to_5": lambda g, x: same(g, g.Add(to(g, rows(g, x), 5), rows(g, x)), 5),
    "range_down": lambda g, x: same(g, to(g, rows(g, x), 0, -1), rows(g, x)),
    "range_down_5": lambda g, x: same(g, g.Add(to(g, 5, rows(g, x), -1), rows(g, x)), 5),
    "range_by_2": lambda g, x: same(g, g.Mul(to(g, 0, rows(g, x), 2), number(g, 2)), rows(g, x)),
    "range_negative": lambda g, x: same(g, g.Sub(to(g, -3, rows(g, x)), number(g, 3)), rows(g, x)),
    "range_past_end": lambda g, x: same(g, to(g, rows(g, x), g.Sub(rows(g, x), number(g, 2))), -2),
    "range_double": lambda g, x: g.Greater(
        to(g, 2, g.Mul(rows(g, x), number(g, 2))), number(g, -1)
    ),
    "range_empty": lambda g, x: g.Less(to(g, 2, rows(g, x)), number(g, 0)),
    "slice_from_2": lambda g, x: same(g, g.Add(part(g, x, 2, 1 << 40), number(g, 2)), rows(g, x)),
    "slice_to_3": lambda g, x: same(g, part(g, x, 0, 3), 3),
    "slice_inner": lambda g, x: same(g, g.Add(part(g, x, 1, -1), number(g, 2)), rows(g, x)),
    "slice_last_3": lambda g, x: same(g, part(g, x, -3, 1 << 40), 3),
    "slice_but_3": lambda g, x: same(g, g.Add(part(g, x, 0, -3), number(g, 3)), rows(g, x)),
    "slice_by_2": lambda g, x: same(g, g.Mul(part(g, x, 0, 1 << 40, 2), number(g, 2)), rows(g, x)),
    "slice_reversed": lambda g, x: same(g, part(g, x, -1, -(1 << 40), -1), rows(g, x)),
    "slice_reversed_2": lambda g, x: same(
        g, g.Add(part(g, x, -2, -(1 << 40), -1), number(g, 1)), rows(g, x)
    ),
    "slice_one": lambda g, x: same(g, part(g, x, 0, 1), 1),
    "slice_last": lambda g, x: same(g, part(g, x, -1, 1 << 40), 1),
    "slice_computed": lambda g, x: same(
        g,
        g.Add(
            rows(g, g.Slice(x, flat(g, g.Sub(rows(g, x), number(g, 2))), [99], [0])), number(g, 0)
        ),
        2,
    ),
    "slice_to_size": lambda g, x: same(
        g, rows(g, g.Slice(g.const(np.zeros(3)), [0], flat(g, rows(g, x)), [0])), rows(g, x)
    ),
    "split": lambda g, x: same(
        g, rows(g, g.several("Split", 2, g.Concat(x, x, axis=0), axis=0)[0]), rows(g, x)
    ),
    "shape_part": lambda g, x: g.Greater(
        g.ReduceProd(g.Shape(x, start=0, end=1), keepdims=0), number(g, 0)
    ),
    "shape_beyond": lambda g, x: same(g, count(g, g.Shape(x, start=1, end=9)), 8),
    "shape_crossed": lambda g, x: same(g, count(g, g.Shape(x, start=2, end=1)), -1),
    "shape_prod": lambda g, x: g.Greater(g.ReduceProd(g.Shape(x), keepdims=0), number(g, 3)),
    "expand_over": lambda g, x: same(
        g, rows(g, g.Expand(g.const([1.0]), flat(g, rows(g, x)))), rows(g, x)
    ),
    "expand_one": lambda g, x: g.Greater(
        rows(g, g.Expand(g.const([1.0]), flat(g, rows(g, x)))), number(g, 0)
    ),
    "expand_less": lambda g, x: same(g, rows(g, g.Expand(x, [1, 4])), rows(g, x)),
    "pad": lambda g, x: g.Greater(rows(g, g.Pad(x, [1, 0, 0, 0])), number(g, 1)),
    "pad_back": lambda g, x: same(
        g,
        g.Add(
            rows(g, g.Pad(g.Concat(x, g.const(np.zeros((2, 4))), axis=0), [-2, 0, 0, 0])),
            number(g, 0),
        ),
        rows(g, x),
    ),
    "tile": lambda g, x: g.Greater(
        rows(g, g.Tile(g.const([1.0, 2.0]), flat(g, rows(g, x)))), number(g, 1)
    ),
    "constant_of_shape": lambda g, x: g.Greater(
        rows(g, g.ConstantOfShape(flat(g, rows(g, x)), value=tensor(np.ones(1, np.float32)))),
        number(g, 0),
    ),
    "concat": lambda g, x: g.Greater(rows(g, g.Concat(x, x, axis=0)), rows(g, x)),
    "concat_one": lambda g, x: g.Greater(
        rows(g, g.Concat(x, g.const(np.zeros((1, 4))), axis=0)), number(g, 1)
    ),
    "max_1": lambda g, x: same(g, g.Max(rows(g, x), number(g, 1)), rows(g, x)),
    "min_1": lambda g, x: same(g, g.Min(rows(g, x), number(g, 1)), 1),
    "max_0": lambda g, x: same(
        g, g.Max(g.Sub(rows(g, x), number(g, 2)), number(g, 0)), g.Sub(rows(g, x), number(g, 2))
    ),
    "double_more": lambda g, x: g.Greater(g.Mul(rows(g, x), number(g, 2)), rows(g, x)),
    "square_more": lambda g, x: g.GreaterOrEqual(g.Mul(rows(g, x), rows(g, x)), number(g, 1)),
    "square_self": lambda g, x: same(g, g.Mul(rows(g, x), rows(g, x)), rows(g, x)),
    "less_one_more": lambda g, x: g.GreaterOrEqual(g.Sub(rows(g, x), number(g, 1)), number(g, 0)),
    "half": lambda g, x: same(g, g.Mul(g.Div(rows(g, x), number(g, 2)), number(g, 2)), rows(g, x)),
    "half_double": lambda g, x: same(
        g, g.Div(g.Mul(rows(g, x), number(g, 2)), number(g, 2)), rows(g, x)
    ),
    "divided_by_self": lambda g, x: same(
        g, g.Div(g.Add(rows(g, x), number(g, 1)), g.Add(rows(g, x), number(g, 1))), 1
    ),
    "minus_div": lambda g, x: same(g, g.Div(g.Sub(rows(g, x), number(g, 3)), number(g, 2)), -1),
    "mod": lambda g, x: same(g, g.Mod(rows(g, x), number(g, 2)), 0),
    "mod_minus": lambda g, x: same(g, g.Mod(g.Sub(rows(g, x), number(g, 3)), number(g, 2)), 1),
    "reshape": lambda g, x: g.Greater(rows(g, g.Reshape(x, [-1])), number(g, 3)),
    "reshape_0": lambda g, x: g.Greater(rows(g, g.Reshape(x, [0, 2, 2])), number(g, 0)),
    "reshape_2": lambda g, x: g.Greater(rows(g, g.Reshape(x, [-1, 2])), number(g, 1)),
    "one_hot": lambda g, x: g.Greater(
        g.size(g.OneHot(g.const([0], np.int64), flat(g, rows(g, x)), g.const([0.0, 1.0])), 1),
        number(g, 0),
    ),
    "top_k": lambda g, x: same(
        g,
        rows(
            g,
            g.several(
                "TopK", 2, g.ReduceSum(x, [1], keepdims=0), flat(g, g.Min(rows(g, x), number(g, 2)))
            )[0],
        ),
        2,
    ),
    "non_zero": lambda g, x: g.Greater(g.size(g.NonZero(x), 1), number(g, 0)),
    "transposed": lambda g, x: g.Greater(g.size(g.Transpose(x), 1), number(g, 0)),
    "where": lambda g, x: g.Greater(
        g.Where(g.Greater(rows(g, x), number(g, 0)), rows(g, x), number(g, -1)), number(g, 0)
    ),
    "gathered": lambda g, x: g.Greater(
        rows(g, g.Gather(x, g.Range(number(g, 0), rows(g, x), number(g, 1)))), number(g, 0)
    ),
    "squeezed_length": lambda g, x: same(g, g.Squeeze(g.Slice(g.Shape(x), [0], [1])), 1),
    "sequence": lambda g, x: g.Greater(
        g.SequenceLength(
            g.SplitToSequence(g.Concat(x, g.const(np.zeros((1, 4))), axis=0), number(g, 1), axis=0)
        ),
        number(g, 1),
    ),
    "broadcast": lambda g, x: g.Greater(rows(g, g.Add(g.ReduceSum(x, [0]), x)), number(g, 0)),
    "wrapped_32": lambda g, x: g.Greater(
        g.Mul(g.cast(rows(g, x), np.int32), g.const(1 << 30, np.int32)), g.const(-1, np.int32)
    ),
    "narrow_8": lambda g, x: g.Greater(
        g.cast(g.Mul(rows(g, x), number(g, 100)), np.int8), g.const(-1, np.int8)
    ),
    "unsigned": lambda g, x: g.Greater(
        g.Sub(g.cast(rows(g, x), np.uint64), g.const(2, np.uint64)), g.const(2, np.uint64)
    ),
}
for _name, _condition in CONDITIONS.items():
    SIZES.add(f"if.{_name}", lambda c=_condition: _branched(c, True))
for _name in list(CONDITIONS)[::4]:
    SIZES.add(f"where.{_name}", lambda c=CONDITIONS[_name]: _branched(c, False))


def _shapes() -> Iterator[tuple[int, int]]:
    yield from product((0, 1, 3), (0, 1, 5))


def _tokens(make: Callable[[Net, str, str], str], **rest: Any) -> Probe:
    """A function of x [b, s, D] and its mask, on all sizes."""
    g = Net(rest.pop("opset", 17))
    x, mask = g.input("x", np.float32, ("b", "s", D)), g.input("mask", np.int64, ("b", "s"))
    g.out(make(g, x, mask), **rest)
    feeds: list[Feed] = [
        {"x": normal(b, s, D, seed=s), "mask": mask_of(b, s, n)}
        for b, s in _shapes()
        for n in range(2)
    ]
    return Probe(g.model(), feeds)


def gate(g: Net, m: str) -> str:
    """The mask as numbers, [b, s, 1]."""
    return g.cast(g.Unsqueeze(m, [2]), np.float32)


def again(g: Net, x: str, memory: str, m: str) -> str:
    """Attention to a memory under a mask."""
    return attention(g, x, memory, lambda g, raw: soft(g, g.Add(raw, low(g, m))))


def filled(g: Net, x: str, m: str, value: float) -> str:
    """A number where the mask is 0."""
    return g.Where(g.cast(g.Unsqueeze(m, [2]), np.bool_), x, value)


def looped(g: Net, x: str, m: str) -> str:
    """As many trips as there are tokens."""
    y = packed(g, x, m)

    def make(b: Net, i: str, going: str, state: str) -> list[str]:
        del i
        return [b.Identity(going), b.Add(state, y)]

    inputs = [("i", np.int64, ()), ("going", np.bool_, ()), ("state", np.float32, ("b", "s", D))]
    body = g.body(make, inputs, [np.bool_, np.float32])
    return g.Loop(g.size(x, 1), g.const(True, np.bool_), x, body=body)


TOKENS: dict[str, Callable[[Net, str, str], str]] = {
    "packed": packed,
    "sum": lambda g, x, m: g.ReduceSum(packed(g, x, m), [1], keepdims=0),
    "mean": lambda g, x, m: g.ReduceMean(packed(g, x, m), axes=[1]),
    "max": lambda g, x, m: g.ReduceMax(packed(g, x, m), axes=[1]),
    "max_filled": lambda g, x, m: g.ReduceMax(filled(g, g.mlp(x), m, -1e4), axes=[1]),
    "min_filled": lambda g, x, m: g.ReduceMin(filled(g, g.mlp(x), m, 1e4), axes=[1]),
    "prod": lambda g, x, m: g.ReduceProd(packed(g, x, m), axes=[1]),
    "l2": lambda g, x, m: g.ReduceL2(packed(g, x, m), axes=[1]),
    "lse": lambda g, x, m: g.ReduceLogSumExp(filled(g, g.mlp(x), m, -1e4), axes=[1]),
    "any_of_mask": lambda g, x, m: g.Mul(
        g.mlp(x), g.cast(g.Unsqueeze(g.ReduceMax(m, axes=[1], keepdims=1), [2]), np.float32)
    ),
    "all_of_mask": lambda g, x, m: g.Mul(
        g.mlp(x), g.cast(g.Unsqueeze(g.ReduceMin(m, axes=[1], keepdims=1), [2]), np.float32)
    ),
    "none_of_mask": lambda g, x, m: g.Mul(
        g.mlp(x),
        g.cast(g.Not(g.cast(g.Unsqueeze(g.ReduceSum(m, [1]), [2]), np.bool_)), np.float32),
    ),
    "mean_of_mask": lambda g, x, m: g.Mul(g.mlp(x), g.ReduceMean(gate(g, m), axes=[1])),
    "prod_of_mask": lambda g, x, m: g.Mul(g.mlp(x), g.ReduceProd(gate(g, m), axes=[1])),
    "sum_of_empty": lambda g, x, m: g.Mul(
        packed(g, x, m), g.ReduceProd(g.Slice(gate(g, m), [1], [99], [1]), axes=[1])
    ),
    "last_token": lambda g, x, m: g.Slice(packed(g, x, m), [-1], [99], [1]),
    "first_token": lambda g, x, m: g.Slice(again(g, x, x, m), [0], [1], [1]),
    "shifted": lambda g, x, m: g.Mul(
        g.mlp(x),
        g.Unsqueeze(g.cast(g.Pad(g.Slice(m, [1], [99], [1]), [0, 0, 0, 1]), np.float32), [2]),
    ),
    "padded_front": lambda g, x, m: g.Slice(
        g.Pad(packed(g, x, m), [0, 1, 0, 0, 0, 0]), [0], [-1], [1]
    ),
    "pad_mask": lambda g, x, m: g.Mul(
        g.Pad(g.mlp(x), [0, 2, 0, 0, 0, 0]),
        g.Unsqueeze(g.Pad(g.cast(m, np.float32), [0, 2, 0, 0]), [2]),
    ),
    "attention": lambda g, x, m: again(g, x, x, m),
    "attention_to_first": lambda g, x, m: again(g, g.Slice(x, [0], [1], [1]), x, m),
    "attention_where": lambda g, x, m: attention(
        g, x, x, lambda g, raw: soft(g, g.Where(g.cast(outer(g, m), np.bool_), raw, -1e9))
    ),
    "causal": lambda g, x, m: attention(
        g,
        x,
        x,
        lambda g, raw: soft(g, g.Add(g.Add(raw, g.Where(before(g, x), 0.0, -1e4)), low(g, m))),
    ),
    "flattened": lambda g, x, m: g.Reshape(
        g.Mul(g.mlp(g.Reshape(x, [-1, D])), g.cast(g.Reshape(m, [-1, 1]), np.float32)), g.Shape(x)
    ),
    "heads": lambda g, x, m: merge(g, split(g, packed(g, x, m))),
    "reshape_keep": lambda g, x, m: g.Reshape(packed(g, x, m), [0, 0, HEADS, HEAD]),
    "reshape_join": lambda g, x, m: g.Reshape(packed(g, x, m), [0, -1, HEAD]),
    "loop_per_token": looped,
    "compress": lambda g, x, m: g.Compress(
        g.Reshape(packed(g, x, m), [-1, D]), g.cast(g.Reshape(m, [-1]), np.bool_), axis=0
    ),
    "gather_live": lambda g, x, m: g.GatherND(g.mlp(x), g.Transpose(g.NonZero(m))),
    "scatter_live": lambda g, x, m: g.ScatterND(
        g.Mul(x, 0.0), g.Transpose(g.NonZero(m)), g.GatherND(g.mlp(x), g.Transpose(g.NonZero(m)))
    ),
    "softmax_tokens": lambda g, x, m: g.Softmax(
        g.Add(g.mlp(x), g.Mul(g.Sub(1.0, gate(g, m)), -1e4)), axis=1
    ),
    "length_mask": lambda g, x, m: g.Mul(
        g.mlp(x),
        g.cast(
            g.Unsqueeze(g.Less(g.Unsqueeze(positions(g, x), [0]), g.ReduceSum(m, [1])), [2]),
            np.float32,
        ),
    ),
    "position_at_least_1": lambda g, x, m: g.Mul(
        packed(g, x, m),
        g.cast(g.Unsqueeze(g.Less(positions(g, x), number(g, 1)), [1]), np.float32),
    ),
    "from_the_end": lambda g, x, m: g.Mul(
        packed(g, x, m),
        g.cast(
            g.Unsqueeze(g.Less(positions(g, x), g.Sub(g.size(x, 1), number(g, 2))), [1]), np.float32
        ),
    ),
    "over_size": lambda g, x, m: g.Div(packed(g, x, m), g.cast(g.size(x, 1), np.float32)),
    "argmax": lambda g, x, m: g.cast(g.ArgMax(packed(g, x, m), axis=2), np.float32),
    "layer_norm": lambda g, x, m: g.LayerNormalization(
        packed(g, x, m), g.const(np.ones(D)), g.const(np.zeros(D)), axis=-1
    ),
    "expand_row": lambda g, x, m: g.Mul(
        g.mlp(g.Expand(g.Slice(x, [0], [1], [0]), g.Shape(x))), gate(g, m)
    ),
}
for _name, _make in TOKENS.items():
    SIZES.add(f"tokens.{_name}", lambda f=_make: _tokens(f))


def _cached(causal: str, low_value: float, keep: str) -> Probe:
    """One layer of a decoder with cached keys: past_length may be 0."""
    g = Net(17)
    x = g.input("x", np.float32, ("b", "s", D))
    past_k = g.input("past_k", np.float32, ("b", HEADS, "p", HEAD))
    past_v = g.input("past_v", np.float32, ("b", HEADS, "p", HEAD))
    mask = g.input("mask", np.int64, ("b", "t"))
    h = g.mlp(x)
    q, k, v = (split(g, g.linear(h, D, D, n)) for n in range(3))
    k, v = g.Concat(past_k, k, axis=2), g.Concat(past_v, v, axis=2)
    z = g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2]))
    total, past = g.size(k, 2), g.size(past_k, 2)
    if causal:
        at = g.Range(past, total, number(g, 1))
        if causal == "added":
            at = g.Add(g.Range(number(g, 0), g.size(x, 1), number(g, 1)), past)
        keys = g.Range(number(g, 0), total, number(g, 1))
        seen = g.LessOrEqual(g.Unsqueeze(keys, [0]), g.Unsqueeze(at, [1]))
        z = (
            g.Where(seen, z, low_value)
            if causal == "where"
            else g.Add(z, g.Where(seen, 0.0, low_value))
        )
    z = g.Add(z, g.Mul(g.Sub(1.0, g.cast(outer(g, mask), np.float32)), low_value))
    y = merge(g, g.MatMul(soft(g, z), v))
    if keep == "if":
        one, other = g.body(lambda b: [b.Neg(y)]), g.body(lambda b: [b.Abs(y)])
        y = g.If(g.Greater(past, number(g, 0)), then_branch=one, else_branch=other)
    if keep == "last":
        y = g.Slice(y, [-1], [99], [1])
    g.out(y)
    feeds = []
    for n, (p, s) in enumerate(product((0, 1, 4), (1, 3))):
        cache = {"past_k": normal(2, HEADS, p, HEAD), "past_v": normal(2, HEADS, p, HEAD, seed=1)}
        feeds.append({"x": normal(2, s, D, seed=n), "mask": mask_of(2, p + s, n), **cache})
    return Probe(g.model(), feeds)


for _causal, _low, _keep in product(
    ("", "range", "added", "where"), (-1e4, -3.4e38), ("", "if", "last")
):
    SIZES.add(
        f"cached.{_causal or 'none'}_{_low:g}_{_keep or 'all'}",
        lambda c=_causal, v=_low, k=_keep: _cached(c, v, k),
    )
