"""Products one of whose operands holds zeros: weights and activations that are not finite."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.probes.build import WIDE, D, Feed, Net, Probe, Table, normal, rng_of

SPARSE = Table("sparse")
F = np.float32
Array = Any
INF, NAN = float("inf"), float("nan")


def spoiled(x: Array, value: float, share: float = 0.02, seed: int = 0) -> Array:
    """Some elements replaced."""
    return np.where(rng_of(seed, x.size).random(x.shape) < share, F(value), x).astype(F)


def zeroed(x: Array, share: float = 0.8, seed: int = 0) -> Array:
    """Most elements 0."""
    return spoiled(x, 0.0, share, seed)


NUMBERS = {
    "inf": INF,
    "minus_inf": -INF,
    "nan": NAN,
    "huge": 1e30,
    "tiny": 1e-42,
    "minus_zero": -0.0,
}


def _relu(
    weight: Array, x_value: float | None, shape: Sequence[Any] = ("b", "s"), function: str = "Relu"
) -> Probe:
    """MatMul -> function -> MatMul with a weight."""
    g = Net(17)
    x = g.input("x", F, (*shape, D))
    w = g.weight("w", weight)
    h = g.linear(x, D, weight.shape[0])
    h = g.Clip(h, 0.0, 6.0) if function == "Clip" else g.op(function, h)
    g.out(g.MatMul(h, w))
    feeds: list[Feed] = []
    for n, lead in enumerate(((2, 7), (1, 1), (0, 3), (2, 0), (5, 64))):
        v = normal(*lead[: len(shape)], D, seed=n)
        feeds.append({"x": v if x_value is None else spoiled(v, x_value, 0.01, n)})
    return Probe(g.model(), feeds)


WEIGHT = normal(WIDE, D) * F(0.1)
for _name, _value in NUMBERS.items():
    for _function in ("Relu", "Clip"):
        SPARSE.add(
            f"relu_weight.{_name}_{_function.lower()}",
            lambda v=_value, f=_function: _relu(spoiled(WEIGHT, v), None, function=f),
        )
    SPARSE.add(f"relu_input.{_name}", lambda v=_value: _relu(WEIGHT, v))
    SPARSE.add(
        f"relu_column.{_name}",
        lambda v=_value: _relu(np.where(np.arange(D) == 3, F(v), WEIGHT).astype(F), None),
    )
    SPARSE.add(
        f"relu_row.{_name}",
        lambda v=_value: _relu(np.where(np.arange(WIDE)[:, None] == 3, F(v), WEIGHT).astype(F), v),
    )
SPARSE.add("relu.plain", lambda: _relu(WEIGHT, None))
SPARSE.add("relu.rows_only", lambda: _relu(WEIGHT, None, ("t",)))
SPARSE.add("relu.abs", lambda: _relu(WEIGHT, None, function="Abs"))
SPARSE.add("relu.floor", lambda: _relu(WEIGHT, None, function="Floor"))

Make = Callable[[Net, str, str], str]


def _masked(
    make: Make,
    w: Array,
    mask: Array,
    x_value: float | None = None,
    constant: bool = False,
    assumes: str = "",
) -> Probe:
    """A weight with a mask that is an input: make(g, weight [k, n], mask) is the right operand."""
    g = Net(17)
    x = g.input("x", F, ("b", "s", w.shape[0]))
    m = g.weight("m", mask) if constant else g.input("m", mask.dtype, mask.shape)
    g.out(g.MatMul(x, make(g, g.weight("w", w), m)))
    feeds: list[Feed] = []
    for n, (b, s) in enumerate(((2, 7), (1, 1), (0, 3), (4, 16))):
        v = normal(b, s, w.shape[0], seed=n)
        v = v if x_value is None else spoiled(v, x_value, 0.02, n)
        feeds.append(
            {"x": v} if constant else {"x": v, "m": mask if n != 1 else np.zeros_like(mask)}
        )
    return Probe(g.model(), feeds, assumes=assumes)


SQUARE = normal(WIDE, WIDE) * F(0.1)
MASK = (rng_of(5).random((WIDE, WIDE)) < 0.1).astype(F)
RIGHT: dict[str, tuple[Make, Any]] = {
    "mul": (lambda g, w, m: g.Mul(w, m), F),
    "mul_turned": (lambda g, w, m: g.Transpose(g.Mul(w, m)), F),
    "where": (lambda g, w, m: g.Where(g.cast(m, np.bool_), w, 0.0), F),
    "where_bool": (lambda g, w, m: g.Where(m, w, 0.0), np.bool_),
    "where_small": (lambda g, w, m: g.Where(m, w, 1e-30), np.bool_),
    "where_minus_zero": (lambda g, w, m: g.Where(m, w, -0.0), np.bool_),
    "where_turned": (lambda g, w, m: g.Where(m, 0.0, w), np.bool_),
    "cast": (lambda g, w, m: g.Mul(w, g.cast(m, F)), np.uint8),
    "half": (lambda g, w, m: g.Mul(w, g.cast(m, F)), np.float16),
    "relu": (lambda g, w, m: g.Relu(g.Sub(m, 0.5)), F),
    "threshold": (lambda g, w, m: g.Mul(w, g.cast(g.Less(0.5, m), F)), F),
    "div": (lambda g, w, m: g.Div(w, m), F),
    "div_of": (lambda g, w, m: g.Div(m, g.Add(g.Abs(w), 1.0)), F),
    "mul_twice": (lambda g, w, m: g.Mul(g.Mul(w, m), m), F),
    "square": (lambda g, w, m: g.Mul(m, m), F),
    "one_plus": (lambda g, w, m: g.Add(g.Mul(w, m), 1.0), F),
    "minus": (lambda g, w, m: g.Sub(w, g.Mul(w, m)), F),
    "one_minus": (lambda g, w, m: g.Mul(w, g.Sub(1.0, m)), F),
    "columns": (lambda g, w, m: g.Mul(w, g.Slice(m, [0], [1], [0])), F),
    "rows": (lambda g, w, m: g.Mul(w, g.Slice(m, [0], [1], [1])), F),
    "normed": (
        lambda g, w, m: (lambda z: g.Div(z, g.Add(g.ReduceSum(g.Abs(z), [0]), 1e-6)))(g.Mul(w, m)),
        F,
    ),
    "normed_zero": (
        lambda g, w, m: (lambda z: g.Div(z, g.ReduceSum(g.Abs(z), [0])))(g.Mul(w, m)),
        F,
    ),
}
for _name, (_make, _dtype) in RIGHT.items():
    SPARSE.add(f"right.{_name}", lambda f=_make, t=_dtype: _masked(f, SQUARE, MASK.astype(t)))
    SPARSE.add(
        f"right_constant.{_name}",
        lambda f=_make, t=_dtype: _masked(f, SQUARE, MASK.astype(t), constant=True),
    )
for _name, _value in NUMBERS.items():
    for _key in ("mul", "where_bool"):
        _make, _dtype = RIGHT[_key]
        SPARSE.add(
            f"right_weight.{_name}_{_key}",
            lambda f=_make, t=_dtype, v=_value: _masked(f, spoiled(SQUARE, v), MASK.astype(t)),
        )
        SPARSE.add(
            f"right_input.{_name}_{_key}",
            lambda f=_make, t=_dtype, v=_value: _masked(
                f, SQUARE, MASK.astype(t), v, assumes="finite"
            ),
        )
    SPARSE.add(
        f"right_mask.{_name}",
        lambda v=_value: _masked(RIGHT["mul"][0], SQUARE, spoiled(MASK, v, 0.001)),
    )
    SPARSE.add(
        f"constant_weight.{_name}",
        lambda v=_value: _masked(lambda g, w, m: w, spoiled(zeroed(SQUARE), v, 0.001), MASK),
    )
    SPARSE.add(
        f"constant_weight_input.{_name}",
        lambda v=_value: _masked(lambda g, w, m: w, zeroed(SQUARE), MASK, v, assumes="finite"),
    )


def _gate(value: float, where: str) -> Probe:
    """Padding by a factor, with a number that is not finite somewhere."""
    g = Net(17)
    x, m = g.input("x", F, ("b", "s", D)), g.input("mask", F, ("b", "s", 1))
    w = normal(D, WIDE) * F(0.1)
    h = g.MatMul(x, g.weight("first", spoiled(w, value, 0.001) if where == "first" else w))
    if where == "bias":
        h = g.Add(h, g.weight("bias", np.where(np.arange(WIDE) == 7, F(value), F(0.5))))
    h = g.Relu(h) if where == "relu" else g.Tanh(h)
    y = g.MatMul(
        h,
        g.weight(
            "second", spoiled(WEIGHT, value, 0.001) if where in ("second", "relu") else WEIGHT
        ),
    )
    if where == "added":
        y = g.Add(y, g.weight("late", np.where(np.arange(D) == 7, F(value), F(0.5))))
    g.out(g.Mul(y, m))
    feeds: list[Feed] = []
    for n in range(3):
        v = normal(2, 9, D, seed=n)
        mask = (rng_of(n).random((2, 9, 1)) < 0.5).astype(F)
        if where == "mask":
            mask = spoiled(mask, value, 0.2, n)
        feeds.append({"x": spoiled(v, value, 0.01, n) if where == "input" else v, "mask": mask})
    return Probe(g.model(), feeds, assumes="finite" if where in ("input", "mask") else "")


for _name, _value in NUMBERS.items():
    for _where in ("first", "second", "relu", "bias", "added", "input", "mask"):
        SPARSE.add(f"gate_{_where}.{_name}", lambda v=_value, w=_where: _gate(v, w))


def _convolution(kind: str) -> Probe:
    """Channels that a gate switches off."""
    g = Net(17)
    channels, depth = 256, 256
    x = g.input("x", F, ("n", channels, 14, 14))
    m = g.input("gate", F, ("n", channels, 1, 1))
    w = normal(depth, channels, 3, 3) * F(0.05)
    if kind in NUMBERS:
        w = spoiled(w, NUMBERS[kind], 0.001)
    w2 = normal(depth, depth, 3, 3, seed=1) * F(0.05)
    h = g.Mul(x, g.Relu(m)) if kind != "leaky" else g.Mul(x, g.LeakyRelu(m))
    if kind == "shifted":
        h = g.Add(h, 1.0)
    y = g.Conv(h, g.weight("w", w), g.weight("b", normal(depth)), pads=[1, 1, 1, 1])
    if kind == "relu_clip":
        y = g.Clip(y, 0.5, 3.0)
    y = g.Relu(y)
    if kind == "gated_after":
        y = g.Mul(y, g.Relu(m))
    if kind == "pooled":
        y = g.MaxPool(y, kernel_shape=[2, 2], strides=[2, 2])
    if kind == "images":
        y = g.Mul(y, g.cast(g.Less(0.0, g.ReduceMax(m, axes=[1])), F))
    y = g.Conv(y, g.weight("w2", w2), pads=[1, 1, 1, 1])
    g.out(y)
    feeds: list[Feed] = []
    for n, images in enumerate((2, 0)):
        gates = normal(images, channels, 1, 1, seed=n) - F(1)
        if kind == "closed":
            gates = -np.abs(gates)
        feeds.append({"x": normal(images, channels, 14, 14, seed=n), "gate": gates})
    return Probe(g.model(), feeds)


for _kind in (
    "plain",
    "inf",
    "nan",
    "minus_inf",
    "huge",
    "leaky",
    "shifted",
    "relu_clip",
    "gated_after",
    "pooled",
    "images",
    "closed",
):
    SPARSE.add(f"convolution.{_kind}", lambda k=_kind: _convolution(k))
