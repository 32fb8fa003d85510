"""Forms that no other family has: guards of infinities, products without sums, and odd masks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.probes.build import HEADS, D, Feed, Net, Probe, Table, normal, rng_of, tensor
from tests.probes.masks import BF16, FP16, LEAST, attention, merge, outer, soft, split
from tests.probes.sizes import mask_of
from tests.probes.softmax import WAYS, B, S, before, hidden, low, positions, self_attention

FORMS = Table("forms")
Array = Any
F, INT = np.float32, np.int64
SIZES = ((3, 7), (1, 1), (2, 4), (2, 0), (0, 3))
MICROSOFT = "com.microsoft"
Make = Callable[[Net, str, str], str]


def c(g: Net, n: Any, dtype: Any = INT) -> str:
    """A constant of integers."""
    return g.const(n, dtype)


def numbers(g: Net, x: str) -> str:
    return g.cast(x, F)


def column(g: Net, m: str) -> str:
    """The mask as factors [b, s, 1]."""
    return numbers(g, g.Unsqueeze(m, [2]))


def truth(g: Net, m: str) -> str:
    return g.cast(outer(g, m), np.bool_)


def _masked(
    make: Make,
    padding: bool = False,
    zeros: bool = False,
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> Probe:
    """Whatever a function makes of tokens and their mask; `zeros` in the tokens too."""
    g = Net(20)
    x, m = g.input("x", F, ("b", "s", D)), g.input("mask", INT, ("b", "s"))
    g.out(make(g, x, m))
    feeds = []
    for n, (b, s) in enumerate(sizes):
        tokens = normal(b, s, D, seed=n)
        if zeros:
            tokens = np.where(rng_of(n, 9).random(tokens.shape) < 0.3, F(0), tokens)
        feeds.append({"x": tokens, "mask": mask_of(b, s, n)})
    model = g.model()
    if not padding:
        return Probe(model, feeds)
    return Probe(model, feeds, "mask", (model.graph.output[0].name,))


def guarded(g: Net, p: str) -> str:
    """0 for NaN, and for nothing else."""
    return g.Where(g.IsNaN(p), 0.0, p)


# a guard takes NaN away and leaves infinities, which 0 times is NaN
GUARDS: dict[str, Make] = {
    "reciprocal": lambda g, x, m: g.linear(
        g.Mul(guarded(g, g.Reciprocal(g.Relu(g.linear(x)))), column(g, m))
    ),
    "before_product": lambda g, x, m: g.Mul(
        g.linear(guarded(g, g.Reciprocal(g.Relu(g.linear(x))))), column(g, m)
    ),
    "quotient": lambda g, x, m: g.Mul(guarded(g, g.Div(g.mlp(x), g.Relu(x))), column(g, m)),
    "log": lambda g, x, m: g.Mul(guarded(g, g.Log(g.Relu(g.mlp(x)))), column(g, m)),
    "twice": lambda g, x, m: guarded(
        g, g.Mul(guarded(g, g.Div(g.mlp(x), g.Relu(x))), column(g, m))
    ),
    "bounded": lambda g, x, m: g.Mul(
        g.linear(guarded(g, g.Sigmoid(g.Reciprocal(g.Relu(g.linear(x)))))), column(g, m)
    ),
    "zero_by_zero": lambda g, x, m: g.linear(
        guarded(g, g.Div(g.Mul(g.mlp(x), column(g, m)), column(g, m)))
    ),
    "of_mean": lambda g, x, m: g.Mul(
        guarded(
            g,
            g.Div(g.ReduceSum(g.Mul(g.mlp(x), column(g, m)), [1]), g.ReduceSum(column(g, m), [1])),
        ),
        column(g, m),
    ),
}
for _name, _make in GUARDS.items():
    FORMS.add(f"guard.{_name}", lambda f=_make: _masked(f, zeros=True))


@FORMS.probe()
def sum_of_no_weights() -> Probe:
    """The weights of a softmax over nothing add up to 0, by which nothing can be divided."""
    g = Net(20)
    x, m = g.input("x", F, ("b", "s", D)), g.input("mask", INT, ("b", "s"))
    z = g.input("z", F, ("b", "k"))
    total = g.Unsqueeze(g.ReduceSum(g.Softmax(z, axis=1), [1]), [2])
    g.out(g.Mul(g.Div(g.mlp(x), total), column(g, m)))
    feeds: list[Feed] = [
        {"x": normal(3, 7, D, seed=k), "mask": mask_of(3, 7, k), "z": normal(3, k)}
        for k in (4, 0, 1)
    ]
    return Probe(g.model(), feeds)


def weights(g: Net, x: str, m: str) -> str:
    """Probabilities [b, q, k] of masked keys."""
    raw = g.Einsum(g.linear(x), g.mlp(x), equation="bqd,bkd->bqk")
    return soft(g, g.Add(raw, g.Squeeze(low(g, m), [1])))


PRODUCTS: dict[str, Make] = {
    "factor": lambda g, x, m: g.Einsum(g.mlp(x), numbers(g, m), equation="...d,...->...d"),
    "factor_first": lambda g, x, m: g.Einsum(numbers(g, m), g.mlp(x), equation="bs,bsd->bsd"),
    "outer": lambda g, x, m: g.Einsum(g.mlp(x), numbers(g, m), equation="bsd,bt->bstd"),
    "three": lambda g, x, m: g.Einsum(
        g.mlp(x), g.matrix(D, D, 4), numbers(g, m), equation="bsd,de,bs->bse"
    ),
    "keys": lambda g, x, m: g.Einsum(weights(g, x, m), g.mlp(x, 1), equation="bqk,bkd->bqd"),
    "keys_of_heads": lambda g, x, m: g.ReduceSum(
        g.Einsum(weights(g, x, m), g.mlp(x, 1), equation="bqk,bkd->bqkd"), [2], keepdims=0
    ),
    "keys_of_numbers": lambda g, x, m: g.Einsum(
        weights(g, x, m), numbers(g, m), equation="bqk,bk->bq"
    ),
    "linear_attention": lambda g, x, m: g.Einsum(
        g.Einsum(g.Mul(g.Relu(g.linear(x)), column(g, m)), g.mlp(x), equation="bkd,bke->bde"),
        g.linear(x, D, D, 3),
        equation="bde,bqd->bqe",
    ),
    "vector": lambda g, x, m: g.Mul(g.MatMul(g.mlp(x), g.weight("v", normal(D))), numbers(g, m)),
}
for _name, _make in PRODUCTS.items():
    # ONNX Runtime's Einsum ends the process where there are no sequences
    FORMS.add(f"product.{_name}", lambda f=_make: _masked(f, sizes=SIZES[:4]))
    FORMS.add(f"padded_product.{_name}", lambda f=_make: _masked(f, True, sizes=SIZES[:4]))


def sharing(g: Net, raw: str, m: str, x: str) -> str:
    """Two softmaxes of one sum, over other axes."""
    del x
    z = g.Add(raw, low(g, m))
    return g.Add(soft(g, z), g.Softmax(z, axis=2))


def by_hand(g: Net, z: str) -> str:
    """Softmax as exponents over their sum."""
    e = g.Exp(g.Sub(z, g.ReduceMax(z, [3], keepdims=1)))
    return g.Div(e, g.ReduceSum(e, [3], keepdims=1))


def keys(g: Net, x: str) -> str:
    return g.Unsqueeze(positions(g, x), [0])


def queries(g: Net, x: str) -> str:
    return g.Unsqueeze(positions(g, x), [1])


def kept(g: Net, keep: str, raw: str) -> str:
    return soft(g, g.Where(keep, raw, -1e4))


SCORES: dict[str, Callable[[Net, str, str, str], str]] = {
    "over_heads": lambda g, r, m, x: g.Softmax(g.Add(r, low(g, m)), axis=1),
    "over_queries": lambda g, r, m, x: g.Softmax(
        g.Add(r, g.Transpose(low(g, m), perm=[0, 1, 3, 2])), axis=2
    ),
    "over_batches": lambda g, r, m, x: g.Softmax(g.Add(r, low(g, m)), axis=0),
    "by_hand": lambda g, r, m, x: by_hand(g, g.Add(r, low(g, m))),
    "by_log_sum": lambda g, r, m, x: g.Exp(
        g.Sub(g.Add(r, low(g, m)), g.ReduceLogSumExp(g.Add(r, low(g, m)), [3], keepdims=1))
    ),
    "sharing": sharing,
    "of_weights": lambda g, r, m, x: soft(g, g.Mul(soft(g, g.Add(r, low(g, m))), 1e4)),
    "of_weights_turned": lambda g, r, m, x: soft(g, g.Mul(soft(g, g.Add(r, low(g, m))), -2e4)),
    "pow_0": lambda g, r, m, x: soft(g, g.Add(r, g.Mul(g.Pow(0.0, numbers(g, outer(g, m))), -1e4))),
    "bits": lambda g, r, m, x: kept(
        g, g.cast(g.BitwiseAnd(outer(g, m), g.cast(before(g, x), INT)), np.bool_), r
    ),
    "bits_of_2": lambda g, r, m, x: kept(
        g, g.cast(g.BitwiseAnd(outer(g, m), c(g, 2)), np.bool_), r
    ),
    "xor": lambda g, r, m, x: kept(g, g.Xor(truth(g, m), before(g, x)), r),
    "equal_bools": lambda g, r, m, x: kept(g, g.Equal(truth(g, m), before(g, x)), r),
    "or_self": lambda g, r, m, x: kept(g, g.Or(truth(g, m), g.Equal(keys(g, x), queries(g, x))), r),
    "not_self": lambda g, r, m, x: kept(
        g, g.And(truth(g, m), g.Not(g.Equal(keys(g, x), queries(g, x)))), r
    ),
    "every_third": lambda g, r, m, x: kept(
        g,
        g.And(truth(g, m), g.Equal(g.Mod(g.Sub(keys(g, x), queries(g, x)), c(g, 3)), c(g, 0))),
        r,
    ),
    "prefix": lambda g, r, m, x: kept(
        g,
        g.Or(
            before(g, x),
            g.Less(keys(g, x), g.Unsqueeze(g.ReduceSum(m, [1], keepdims=1), [1, 2])),
        ),
        r,
    ),
    "highest_mask": lambda g, r, m, x: soft(g, g.Add(r, g.Max(low(g, m), hidden(g, before(g, x))))),
    "lowest_mask": lambda g, r, m, x: soft(g, g.Add(r, g.Min(low(g, m), hidden(g, before(g, x))))),
    "crossed_choice": lambda g, r, m, x: soft(
        g,
        g.Where(before(g, x), g.Where(truth(g, m), -1e4, r), g.Where(truth(g, m), r, -1e4)),
    ),
    "two_depths": lambda g, r, m, x: soft(
        g, g.Where(truth(g, m), g.Where(before(g, x), r, -float("inf")), -1e4)
    ),
    "counted": lambda g, r, m, x: kept(g, g.Greater(outer(g, g.CumSum(m, c(g, 1))), c(g, 0)), r),
    "counted_hidden": lambda g, r, m, x: soft(
        g, g.Add(r, g.Mul(numbers(g, outer(g, g.CumSum(g.Sub(c(g, 1), m), c(g, 1)))), -1e4))
    ),
    "any_batch": lambda g, r, m, x: soft(g, g.Add(r, g.ReduceMax(low(g, m), [0], keepdims=1))),
    "by_head": lambda g, r, m, x: soft(
        g, g.Add(r, g.Mul(low(g, m), g.const([[[1.0]], [[0.5]], [[-1.0]], [[0.0]]])))
    ),
    "by_number": lambda g, r, m, x: soft(
        g, g.Add(r, g.Mul(low(g, m), g.Sigmoid(g.ReduceMean(x, keepdims=0))))
    ),
    "capped": lambda g, r, m, x: soft(g, g.Mul(g.Tanh(g.Div(g.Add(r, low(g, m)), 50.0)), 50.0)),
    "clipped_far": lambda g, r, m, x: soft(g, g.Clip(g.Add(r, low(g, m)), -6000.0, 5.0)),
    "least_twice": lambda g, r, m, x: soft(g, g.Add(g.Add(r, low(g, m, LEAST)), low(g, m, LEAST))),
    "only_with_keys": lambda g, r, m, x: soft(
        g,
        g.Where(
            g.Equal(g.ReduceSum(outer(g, m), [3], keepdims=1), c(g, 0)),
            g.Mul(r, 0.0),
            g.Add(r, low(g, m)),
        ),
    ),
    "half_overflows": lambda g, r, m, x: soft(
        g, g.Add(r, numbers(g, g.cast(low(g, m, -1e5), FP16)))
    ),
    "brain_least": lambda g, r, m, x: soft(
        g, g.Add(r, numbers(g, g.cast(low(g, m, -3.3e38), BF16)))
    ),
    "unsigned": lambda g, r, m, x: soft(
        g,
        g.Sub(
            r,
            numbers(
                g,
                g.Mul(
                    g.cast(g.Sub(g.cast(outer(g, m), np.uint8), c(g, 1, np.uint8)), np.int32),
                    c(g, 1000, np.int32),
                ),
            ),
        ),
    ),
    "sink": lambda g, r, m, x: g.Slice(
        soft(
            g,
            g.Concat(
                g.Expand(
                    g.const(np.full((1, 1, 1, 1), 2e4)),
                    g.Concat(g.Shape(r, start=0, end=3), [1], axis=0),
                ),
                g.Add(r, low(g, m)),
                axis=3,
            ),
        ),
        [1],
        [1 << 40],
        [3],
    ),
}
for _name, _score in SCORES.items():
    FORMS.add(f"score.{_name}", lambda s=_score: self_attention(s, opset=20))


def _two(
    score: Callable[[Net, str, str, str], str],
    dtype: Any,
    values: Sequence[float],
    shape: tuple[Any, ...],
) -> Probe:
    """Attention under `mask` and a second input of some type, values and shape."""
    g = Net(20)
    x, m = g.input("x", F, ("b", "s", D)), g.input("mask", INT, ("b", "s"))
    more = g.input("more", dtype, shape)
    g.out(attention(g, x, x, lambda g, raw: score(g, raw, m, more)))
    extents = [{"b": B, "s": S}.get(e, e) for e in shape]
    feeds = []
    for n, way in enumerate(WAYS):
        drawn = rng_of(n, 5).choice(values, extents)
        for k, second in enumerate((drawn, np.full(extents, values[-1]))):
            second = np.asarray(second).astype(dtype)
            x_ = normal(B, S, D, seed=n + 10 * k)
            feeds.append({"x": x_, "mask": way.astype(INT), "more": second})
    return Probe(g.model(), feeds)


TWO: dict[
    str, tuple[Callable[[Net, str, str, str], str], Any, Sequence[float], tuple[Any, ...]]
] = {
    "raised": (
        lambda g, r, m, a: soft(g, g.Sub(g.Add(r, low(g, m)), outer(g, a))),
        F,
        (0.0, -1e4, 1e4),
        ("b", "s"),
    ),
    "by_head": (
        lambda g, r, m, a: soft(g, g.Add(g.Add(r, g.Unsqueeze(a, [0, 2, 3])), low(g, m))),
        F,
        (0.0, -1e4, 1e6),
        (HEADS,),
    ),
    "by_pair": (
        lambda g, r, m, a: soft(g, g.Where(g.And(truth(g, m), g.Unsqueeze(a, [1])), r, -1e4)),
        np.bool_,
        (0, 1),
        ("b", "s", "s"),
    ),
    "scale": (
        lambda g, r, m, a: soft(g, g.Mul(g.Add(r, low(g, m)), a)),
        F,
        (0.0, 1.0, 0.01, -1.0),
        (),
    ),
    "filling": (lambda g, r, m, a: soft(g, g.Where(truth(g, m), r, a)), F, (0.0, 1e4, -1e4), ()),
    "switch": (
        lambda g, r, m, a: soft(g, g.Where(a, g.Add(r, low(g, m)), r)),
        np.bool_,
        (0, 1),
        (),
    ),
    "half_each": (
        lambda g, r, m, a: soft(g, g.Add(g.Add(r, g.Mul(low(g, m), 0.6)), outer(g, a))),
        F,
        (0.0, -4500.0, -5500.0, -6000.0),
        ("b", "s"),
    ),
    "looked_up": (
        lambda g, r, m, a: soft(g, g.Add(r, low(g, g.GatherElements(m, a, axis=1)))),
        INT,
        (0, 1, 6, -1, -7),
        ("b", "s"),
    ),
    "sum_of_ints": (
        lambda g, r, m, a: soft(g, g.Where(g.cast(outer(g, g.Add(a, m)), np.bool_), r, -1e4)),
        INT,
        (0, 1, 2, -1),
        ("b", "s"),
    ),
    "unsigned": (
        lambda g, r, m, a: soft(
            g,
            g.Where(g.cast(outer(g, g.Sub(a, g.cast(m, np.uint8))), np.bool_), r, -1e4),
        ),
        np.uint8,
        (0, 1, 2, 255),
        ("b", "s"),
    ),
}
for _name, _two_masks in TWO.items():
    FORMS.add(f"two.{_name}", lambda t=_two_masks: _two(*t))


def size(g: Net, x: str) -> str:
    return g.size(x, 1)


def far(g: Net, p: str, least: int = 2) -> str:
    return g.GreaterOrEqual(p, c(g, least))


def first(g: Net, p: str, x: str) -> str:
    """As many numbers as there are tokens."""
    return g.Slice(p, [0], g.Unsqueeze(size(g, x), [0]), [0])


PLACES: dict[str, Make] = {
    "slice_back": lambda g, x, m: far(
        g, g.Slice(positions(g, x), [(1 << 63) - 1], [-(1 << 63)], [0], [-1])
    ),
    "slice_but_last": lambda g, x, m: far(
        g, first(g, g.Concat([0], g.Slice(positions(g, x), [0], [-1], [0]), axis=0), x)
    ),
    "range_down": lambda g, x, m: far(g, g.Range(g.Sub(size(g, x), c(g, 1)), c(g, -1), c(g, -1))),
    "range_ends_early": lambda g, x, m: far(
        g,
        first(g, g.Range(c(g, 0), g.Sub(g.Mul(size(g, x), c(g, 3)), c(g, 2)), c(g, 3)), x),
        6,
    ),
    "range_below": lambda g, x, m: far(g, g.Range(g.Neg(size(g, x)), c(g, 0), c(g, 1)), -3),
    "reshape": lambda g, x, m: far(
        g,
        g.Reshape(
            g.Range(c(g, 0), g.Size(m), c(g, 1)), g.Concat([-1], g.Shape(m, start=1), axis=0)
        ),
        5,
    ),
    "size_crossed": lambda g, x, m: g.Less(
        positions(g, x), g.ReduceMin(g.Shape(x, start=-100, end=100), keepdims=0)
    ),
    "size_modulo": lambda g, x, m: g.Less(positions(g, x), g.Mod(size(g, x), c(g, -9))),
    "far_from_0": lambda g, x, m: g.Less(
        g.Add(positions(g, x), c(g, -(1 << 63))), g.Sub(c(g, (1 << 63) - 1), positions(g, x))
    ),
    "unsigned_wraps": lambda g, x, m: g.Less(
        g.cast(g.Sub(positions(g, x), c(g, 2)), np.uint8), c(g, 200, np.uint8)
    ),
    "same_float": lambda g, x, m: g.Equal(
        numbers(g, g.Add(positions(g, x), c(g, 1 << 24))), float(1 << 24)
    ),
    "half_overflows": lambda g, x, m: g.Less(
        g.cast(g.Mul(positions(g, x), c(g, 30000)), FP16), np.float16(1e4)
    ),
    "other_row": lambda g, x, m: g.cast(g.Mul(m, g.Gather(m, c(g, [-1]), axis=1)), np.bool_),
    "reversed": lambda g, x, m: g.cast(
        g.Gather(m, g.Sub(c(g, -1), positions(g, x)), axis=1), np.bool_
    ),
    "padded_edge": lambda g, x, m: g.cast(
        g.Pad(g.Pad(m, [0, 2, 0, 0], c(g, 1)), [0, 0, 0, -2]), np.bool_
    ),
    "nothing_added": lambda g, x, m: g.cast(
        g.Concat(
            m,
            g.ConstantOfShape(
                g.Concat(g.Shape(m, end=1), [0], axis=0), value=tensor(np.ones(1, INT))
            ),
            axis=1,
        ),
        np.bool_,
    ),
    "lengths_wrap": lambda g, x, m: g.Less(
        g.cast(positions(g, x), np.int8),
        g.cast(g.Mul(g.ReduceSum(m, [1], keepdims=1), c(g, 50)), np.int8),
    ),
}
for _name, _make in PLACES.items():
    FORMS.add(
        f"place.{_name}",
        lambda f=_make: _masked(
            lambda g, x, m: g.Mul(g.mlp(x), numbers(g, g.Unsqueeze(f(g, x, m), [-1])))
        ),
    )


def fused(g: Net, x: str, mask: str, **attributes: Any) -> str:
    projection = [g.matrix(D, 3 * D), g.weight("bias", normal(3 * D))]
    return g.op("Attention", x, *projection, mask, domain=MICROSOFT, num_heads=HEADS, **attributes)


def of_heads(g: Net, x: str, seed: int) -> str:
    return split(g, g.linear(x, D, D, seed))


FUSED: dict[str, Make] = {
    "raised": lambda g, x, m: fused(g, g.mlp(x), g.cast(m, np.int32), mask_filter_value=1e4),
    "shallow": lambda g, x, m: fused(g, g.mlp(x), g.cast(m, np.int32), mask_filter_value=-5.0),
    "turned": lambda g, x, m: fused(g, g.mlp(x), g.cast(m, np.int32), scale=-1.0),
    "causal": lambda g, x, m: fused(g, g.mlp(x), g.cast(m, np.int32), unidirectional=1),
    "scaled_scores": lambda g, x, m: merge(
        g,
        g.op(
            "FusedMatMul",
            soft(
                g,
                g.Add(
                    g.op(
                        "FusedMatMul",
                        of_heads(g, x, 0),
                        of_heads(g, x, 1),
                        domain=MICROSOFT,
                        transB=1,
                        alpha=-0.25,
                    ),
                    low(g, m),
                ),
            ),
            of_heads(g, x, 2),
            domain=MICROSOFT,
            alpha=3.0,
        ),
    ),
    "no_epsilon": lambda g, x, m: g.op(
        "SkipLayerNormalization",
        g.Mul(g.mlp(x), column(g, m)),
        g.Mul(x, column(g, m)),
        g.weight("gamma", normal(D)),
        domain=MICROSOFT,
        epsilon=0.0,
    ),
}
for _name, _make in FUSED.items():
    FORMS.add(
        f"fused.{_name}",
        lambda f=_make: _masked(lambda g, x, m: g.Mul(f(g, x, m), column(g, m))),
    )
