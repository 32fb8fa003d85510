"""`padding=`: which outputs it may touch, and where; masks and outputs of every type and shape."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from tests.probes.build import HEADS, D, Feed, Net, Probe, Table, normal, rng_of, tensor
from tests.probes.masks import attention, outer, soft
from tests.probes.softmax import low

PADDING = Table("padding")
Array = Any
Shape = tuple[Any, ...]
TYPES = (np.int64, np.int32, np.int8, np.uint8, np.bool_, np.float32, np.float16, np.float64)


def masks_for(b: int, s: int, dtype: Any, values: Sequence[float] = (0, 1)) -> list[Array]:
    """Right, left, scattered, nothing left, all kept."""
    lengths = np.arange(b)[:, None] * 3 % max(s, 1) + 1
    right = np.arange(s)[None, :] < lengths
    ways = [
        right,
        right[:, ::-1],
        rng_of(b, s).random((b, s)) < 0.5,
        np.zeros((b, s)),
        np.ones((b, s)),
    ]
    return [np.where(w, values[-1], values[0]).astype(dtype) for w in ways]


def _probe(
    make: Callable[[Net, str, str], Sequence[tuple[str, Any, bool]]],
    x_shape: Shape = ("b", "s", D),
    mask_shape: Shape = ("b", "s"),
    sizes: Sequence[tuple[int, int]] = ((3, 7), (1, 1), (2, 5)),
    dtype: Any = np.int64,
    opset: int = 17,
    values: Sequence[float] = (0, 1),
    time_first: bool = False,
    shapes: Sequence[Shape | None] = (),
) -> Probe:
    """A model compiled with `padding="mask"`.

    Args:
        make: Gives outputs: value, type, and whether it may be 0 where the mask is.
        x_shape: Declared shape of x.
        mask_shape: Declared shape of the mask.
        sizes: Of batch and sequence.
        dtype: Type of the mask.
        opset: Version of the operator set.
        values: What the mask holds.
        time_first: x is [s, b, D].
        shapes: Declared shapes of the outputs, where they are.
    """
    g = Net(opset)
    x, m = g.input("x", np.float32, x_shape), g.input("mask", dtype, mask_shape)
    shaped = []
    outputs = make(g, x, m)
    for k, (value, kind, tokens) in enumerate(outputs):
        g.out(value, dtype=kind, shape=shapes[k] if k < len(shapes) else None)
        shaped += [g._outputs[-1].name] if tokens else []
    feeds: list[Feed] = []
    for b, s in sizes:
        lead = (s, b) if time_first else (b, s)
        for n, mask in enumerate(masks_for(b, s, dtype, values)):
            feeds.append({"x": normal(*lead, *x_shape[2:], seed=n), "mask": mask})
    return Probe(g.model(), feeds, "mask", tuple(shaped))


F, INT = np.float32, np.int64
Make = Callable[[Net, str, str], Sequence[tuple[str, Any, bool]]]


def seen(g: Net, x: str, m: str) -> str:
    """A layer of attention under the mask."""
    return attention(g, x, x, lambda g, raw: soft(g, g.Add(raw, low(g, m))))


def gate(g: Net, m: str) -> str:
    """The mask as numbers [b, s, 1]."""
    return g.cast(g.Unsqueeze(m, [2]), F)


def mean(g: Net, h: str, m: str) -> str:
    """Masked mean over tokens."""
    return g.Div(
        g.ReduceSum(g.Mul(h, gate(g, m)), [1], keepdims=0),
        g.Clip(g.ReduceSum(gate(g, m), [1], keepdims=0), 1e-9),
    )


def strings(g: Net, places: str) -> str:
    """Labels by number."""
    words = np.array([f"label{k}" for k in range(D)], object)
    labels = onnx.numpy_helper.from_array(words, "labels")
    g._weights["labels"] = labels
    return g.Gather("labels", places)


S = onnx.TensorProto.STRING
MAKES: dict[str, Make] = {
    "mlp": lambda g, x, m: [(g.mlp(x), F, True)],
    "relu": lambda g, x, m: [(g.Relu(x), F, True)],
    "attention": lambda g, x, m: [(seen(g, x, m), F, True)],
    "two_layers": lambda g, x, m: [(seen(g, g.Add(x, seen(g, x, m)), m), F, True)],
    "hidden_states": lambda g, x, m: (lambda h: [(h, F, True), (seen(g, h, m), F, True)])(
        seen(g, x, m)
    ),
    "first_token": lambda g, x, m: [(g.Gather(seen(g, x, m), g.const(0, INT), axis=1), F, False)],
    "mean": lambda g, x, m: [(mean(g, seen(g, x, m), m), F, False)],
    "plain_mean": lambda g, x, m: [(g.ReduceMean(g.mlp(x), axes=[1], keepdims=0), F, False)],
    "plain_max": lambda g, x, m: [(g.ReduceMax(g.mlp(x), axes=[1], keepdims=0), F, False)],
    "both": lambda g, x, m: (
        lambda h: [(h, F, True), (g.ReduceMean(h, axes=[1], keepdims=0), F, False)]
    )(seen(g, x, m)),
    "argmax": lambda g, x, m: [(g.ArgMax(g.mlp(x), axis=2, keepdims=0), INT, True)],
    "strings": lambda g, x, m: [(strings(g, g.ArgMax(g.mlp(x), axis=2, keepdims=0)), S, True)],
    "strings_and_logits": lambda g, x, m: (
        lambda h: [(h, F, True), (strings(g, g.ArgMax(h, axis=2, keepdims=0)), S, True)]
    )(g.mlp(x)),
    "bools": lambda g, x, m: [(g.Less(g.mlp(x), 0.0), np.bool_, True)],
    "half": lambda g, x, m: [(g.cast(g.mlp(x), np.float16), np.float16, True)],
    "double": lambda g, x, m: [(g.cast(g.mlp(x), np.float64), np.float64, True)],
    "int32": lambda g, x, m: [(g.cast(g.mlp(x), np.int32), np.int32, True)],
    "int8": lambda g, x, m: [(g.cast(g.Tanh(g.mlp(x)), np.int8), np.int8, True)],
    "uint8": lambda g, x, m: [(g.cast(g.Abs(g.mlp(x)), np.uint8), np.uint8, True)],
    "uint64": lambda g, x, m: [(g.cast(g.Abs(g.mlp(x)), np.uint64), np.uint64, True)],
    "quantised": lambda g, x, m: [
        (g.QuantizeLinear(g.mlp(x), g.const(0.1), g.const(3, np.int8)), np.int8, True)
    ],
    "mask_itself": lambda g, x, m: [(g.mlp(x), F, True), (g.Identity(m), INT, True)],
    "mask_turned": lambda g, x, m: [(g.mlp(x), F, True), (g.Sub(g.const(1, INT), m), INT, True)],
    "positions": lambda g, x, m: [(g.mlp(x), F, True), (g.CumSum(m, g.const(1, INT)), INT, True)],
    "lengths": lambda g, x, m: [(g.mlp(x), F, True), (g.ReduceSum(m, [1], keepdims=0), INT, False)],
    "sizes": lambda g, x, m: (lambda h: [(h, F, True), (g.Shape(h), INT, False)])(g.mlp(x)),
    "turned": lambda g, x, m: [(g.Transpose(g.mlp(x), perm=[1, 0, 2]), F, False)],
    "turned_back": lambda g, x, m: [
        (g.Transpose(g.Relu(g.Transpose(g.mlp(x), perm=[1, 0, 2])), perm=[1, 0, 2]), F, True)
    ],
    "columns_first": lambda g, x, m: [(g.Transpose(g.mlp(x), perm=[0, 2, 1]), F, False)],
    "scores": lambda g, x, m: [
        (g.MatMul(g.mlp(x), g.Transpose(g.mlp(x, 3), perm=[0, 2, 1])), F, True)
    ],
    "scores_turned": lambda g, x, m: [
        (g.MatMul(g.mlp(x), g.Transpose(g.mlp(x, 3), perm=[0, 2, 1])), F, True),
        (g.mlp(x, 5), F, True),
    ],
    "probabilities": lambda g, x, m: [
        (
            g.Softmax(
                g.Add(g.MatMul(x, g.Transpose(x, perm=[0, 2, 1])), g.Squeeze(low(g, m), [1])),
                axis=-1,
            ),
            F,
            True,
        ),
        (g.mlp(x), F, True),
    ],
    "flat": lambda g, x, m: [(g.Reshape(g.mlp(x), [-1, D]), F, False)],
    "rows": lambda g, x, m: [(g.Reshape(g.mlp(x), [0, -1]), F, False)],
    "heads": lambda g, x, m: [(g.Reshape(g.mlp(x), [0, 0, HEADS, D // HEADS]), F, True)],
    "heads_first": lambda g, x, m: [
        (g.Transpose(g.Reshape(g.mlp(x), [0, 0, HEADS, D // HEADS]), perm=[0, 2, 1, 3]), F, False)
    ],
    "repeated": lambda g, x, m: [(g.Concat(g.mlp(x), g.mlp(x, 3), axis=1), F, False)],
    "doubled": lambda g, x, m: [(g.Concat(g.mlp(x), g.mlp(x, 3), axis=2), F, True)],
    "shifted": lambda g, x, m: [
        (g.Pad(g.Slice(g.mlp(x), [1], [1 << 40], [1]), [0, 0, 0, 0, 1, 0]), F, True)
    ],
    "reversed": lambda g, x, m: [(g.Slice(g.mlp(x), [-1], [-(1 << 40)], [1], [-1]), F, True)],
    "cumulative": lambda g, x, m: [(g.CumSum(g.mlp(x), g.const(1, INT)), F, True)],
    "without_first": lambda g, x, m: [(g.Slice(g.mlp(x), [1], [1 << 40], [1]), F, False)],
    "neighbours": lambda g, x, m: [
        (
            g.Conv(
                g.Transpose(g.mlp(x), perm=[0, 2, 1]),
                g.weight("taps", normal(D, D, 3)),
                pads=[1, 1],
            ),
            F,
            False,
        )
    ],
    "one_column": lambda g, x, m: [(g.MatMul(g.mlp(x), g.matrix(D, 1)), F, True)],
    "squeezed": lambda g, x, m: [(g.Squeeze(g.MatMul(g.mlp(x), g.matrix(D, 1)), [2]), F, True)],
    "span": lambda g, x, m: (
        lambda h: [(g.Squeeze(y, [2]), F, True) for y in g.several("Split", 2, h, axis=2)]
    )(g.MatMul(g.mlp(x), g.matrix(D, 2))),
    "sorted": lambda g, x, m: [(g.several("TopK", 2, g.mlp(x), [5], axis=2)[0], F, True)],
    "softmax": lambda g, x, m: [(g.Softmax(g.mlp(x), axis=-1), F, True)],
    "softmax_tokens": lambda g, x, m: [(g.Softmax(g.mlp(x), axis=1), F, True)],
    "over_norm": lambda g, x, m: [(g.Div(g.mlp(x), g.ReduceL2(g.mlp(x), axes=[2])), F, True)],
    "reciprocal": lambda g, x, m: [
        (g.Reciprocal(g.Add(g.mlp(x), 20.0)), F, True),  # far from the pole: rounding stays small
        (g.ReduceMean(g.Reciprocal(g.Add(g.mlp(x), 20.0)), axes=[1], keepdims=0), F, False),
    ],
    "input_too": lambda g, x, m: [(g.mlp(x), F, True), (g.Identity(x), F, True)],
    "same_twice": lambda g, x, m: (lambda h: [(h, F, True), (g.Identity(h), F, True)])(g.mlp(x)),
    "mask_used_twice": lambda g, x, m: [(g.Mul(seen(g, x, m), gate(g, m)), F, True)],
    "mask_turned_use": lambda g, x, m: [
        (g.Mul(g.mlp(x), g.Sub(1.0, gate(g, m))), F, True),
        (g.ReduceSum(g.Mul(g.mlp(x), g.Sub(1.0, gate(g, m))), [1], keepdims=0), F, False),
    ],
    "branch": lambda g, x, m: (
        lambda h: [
            (
                g.If(
                    g.Less(g.ReduceSum(m, keepdims=0), g.const(9, INT)),
                    then_branch=g.body(lambda b: [b.Relu(h)]),
                    else_branch=g.body(lambda b: [b.Neg(h)]),
                ),
                F,
                True,
            )
        ]
    )(g.mlp(x)),
    "constant": lambda g, x, m: [
        (g.mlp(x), F, True),
        (g.Mul(g.const(np.ones((3, 7, 2))), g.ReduceMax(x, keepdims=0)), F, False),
    ],
    "other_sequence": lambda g, x, m: [
        (g.mlp(x), F, True),
        (g.Mul(g.ConstantOfShape(g.Shape(x), value=tensor(np.ones(1, np.float32))), 2.0), F, True),
    ],
    "batch_square": lambda g, x, m: (
        lambda h: [
            (h, F, True),
            (
                g.MatMul(
                    g.ReduceMean(h, axes=[1], keepdims=0),
                    g.Transpose(g.ReduceMean(h, axes=[1], keepdims=0)),
                ),
                F,
                False,
            ),
        ]
    )(g.mlp(x)),
}
for _name, _make in MAKES.items():
    PADDING.add(f"plain.{_name}", lambda f=_make: _probe(f))
    PADDING.add(
        f"batch1.{_name}",
        lambda f=_make: _probe(f, (1, "s", D), (1, "s"), ((1, 7), (1, 1), (1, 4))),
    )


def _fixed(make: Make) -> Probe:
    """All sizes are numbers, and several of them are equal by chance."""

    def known(g: Net, x: str, m: str) -> Sequence[tuple[str, Any, bool]]:
        return make(g, x, m)

    return _probe(known, (3, 7, D), (3, 7), ((3, 7),))


for _name in (
    "mlp",
    "attention",
    "first_token",
    "mean",
    "strings",
    "both",
    "constant",
    "turned",
    "heads",
    "rows",
    "batch_square",
):
    PADDING.add(f"fixed.{_name}", lambda f=MAKES[_name]: _fixed(f))


CHANCE: dict[str, tuple[Make, Shape, Shape, tuple[int, int], bool]] = {
    "pooled": (
        lambda g, x, m: [(g.ReduceMean(g.mlp(x), axes=[1], keepdims=0), F, False)],
        (2, D, D),
        (2, D),
        (2, D),
        False,
    ),
    "pooled_masked": (
        lambda g, x, m: [(mean(g, seen(g, x, m), m), F, False)],
        (2, D, D),
        (2, D),
        (2, D),
        False,
    ),
    "first": (
        lambda g, x, m: [(g.Gather(seen(g, x, m), g.const(0, INT), axis=1), F, False)],
        (2, D, D),
        (2, D),
        (2, D),
        False,
    ),
    "logits": (
        lambda g, x, m: [(g.MatMul(mean(g, g.mlp(x), m), g.matrix(D, 5)), F, False)],
        (2, 5, D),
        (2, 5),
        (2, 5),
        False,
    ),
    "pooled_and_tokens": (
        lambda g, x, m: (lambda h: [(h, F, True), (mean(g, h, m), F, False)])(seen(g, x, m)),
        (2, D, D),
        (2, D),
        (2, D),
        False,
    ),
    "time_first": (lambda g, x, m: [(g.mlp(x), F, False)], (5, 5, D), (5, 5), (5, 5), True),
    "time_first_turned": (
        lambda g, x, m: [
            (g.mlp(g.Transpose(x, perm=[1, 0, 2])), F, True),
            (g.Tanh(g.mlp(x, 3)), F, False),
        ],
        (5, 5, D),
        (5, 5),
        (5, 5),
        True,
    ),
    "queries": (
        lambda g, x, m: [
            (
                attention(
                    g,
                    g.weight("queries", normal(4, 7, D)),
                    x,
                    lambda g, raw: soft(g, g.Add(raw, low(g, m))),
                ),
                F,
                False,
            )
        ],
        (4, 7, D),
        (4, 7),
        (4, 7),
        False,
    ),
    "turned": (
        lambda g, x, m: [(g.Transpose(g.mlp(x), perm=[1, 0, 2]), F, False)],
        (5, 5, D),
        (5, 5),
        (5, 5),
        False,
    ),
    "columns": (
        lambda g, x, m: [(g.Transpose(g.mlp(x), perm=[0, 2, 1]), F, False)],
        (3, D, D),
        (3, D),
        (3, D),
        False,
    ),
    "weights": (
        lambda g, x, m: [
            (g.mlp(x), F, True),
            (g.Mul(g.weight("w", normal(3, 7, 4)), g.ReduceMean(x, keepdims=0)), F, False),
        ],
        (3, 7, D),
        (3, 7),
        (3, 7),
        False,
    ),
    "lookup": (
        lambda g, x, m: [
            (g.mlp(x), F, True),
            (
                g.Gather(
                    g.weight("t", normal(9, 7)),
                    g.Clip(g.ReduceSum(m, [1], keepdims=0), g.const(0, INT), g.const(8, INT)),
                ),
                F,
                False,
            ),
        ],
        (3, 7, D),
        (3, 7),
        (3, 7),
        False,
    ),
    "scores_of_classes": (
        lambda g, x, m: [
            (g.Transpose(g.MatMul(g.mlp(x), g.matrix(D, 7)), perm=[0, 2, 1]), F, False)
        ],
        (3, 7, D),
        (3, 7),
        (3, 7),
        False,
    ),
}
for _name, (_make, _x, _m, _size, _time) in CHANCE.items():
    PADDING.add(
        f"chance.{_name}",
        lambda f=_make, x=_x, m=_m, n=_size, t=_time: _probe(f, x, m, (n,), time_first=t),
    )


def typed(g: Net, x: str, m: str) -> Sequence[tuple[str, Any, bool]]:
    """Attention and a mean under a mask of any type."""
    n = g.cast(m, F)
    h = attention(g, x, x, lambda g, raw: soft(g, g.Add(raw, g.Mul(g.Sub(1.0, outer(g, n)), -1e4))))
    return [(h, F, True), (g.ReduceSum(g.Mul(h, g.Unsqueeze(n, [2])), [1], keepdims=0), F, False)]


for _t in TYPES:
    PADDING.add(f"mask_type.{np.dtype(_t).name}", lambda t=_t: _probe(typed, dtype=t))
    PADDING.add(
        f"mask_type_batch1.{np.dtype(_t).name}",
        lambda t=_t: _probe(typed, (1, "s", D), (1, "s"), ((1, 6), (1, 1)), dtype=t),
    )
SYMBOLS: dict[str, tuple[Shape, Shape, Sequence[tuple[int, int]]]] = {
    "empty": (("b", "s", D), ("b", "s"), ((0, 3), (2, 0), (0, 0))),
    "static_sequence": (("b", 7, D), ("b", 7), ((3, 7), (1, 7))),
    "static_one": (("b", 1, D), ("b", 1), ((3, 1), (1, 1))),
    "both_one": ((1, 1, D), (1, 1), ((1, 1),)),
    "other_symbols": (("b", "s", D), ("n", "t"), ((3, 7), (1, 1))),
    "one_symbol": (("b", "s", D), ("b", "t"), ((3, 7), (1, 1))),
    "equal_symbols": (("n", "n", D), ("n", "n"), ((3, 3), (1, 1))),
}
for _name, (_x, _m, _sizes) in SYMBOLS.items():
    for _key in ("mlp", "attention", "mean", "both"):
        PADDING.add(
            f"symbols.{_name}_{_key}",
            lambda f=MAKES[_key], x=_x, m=_m, s=_sizes: _probe(f, x, m, s),
        )
