"""What reads values that are 0 in rows nobody asked for: places, divisors, conditions, texts."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.probes.build import D, Feed, Net, Probe, normal, rng_of
from tests.probes.deadness import DEADNESS

F, INT, B = np.float32, np.int64, np.bool_
LINES = 5  # of the tables that are looked up
Array = Any
Step = Callable[[Net, str], str]


def exit_of(g: Net, x: str) -> str:
    """Work [b, s, D] that may run packed, behind a node that may not."""
    return g.Einsum(g.mlp(x), equation="bsd->bsd")


def nothing(g: Net, h: str) -> str:
    """True where a row [.., D] holds zeros only."""
    return g.Not(g.cast(g.ReduceL1(h, [-1], keepdims=0), B))


def outside(g: Net, h: str, end: int = LINES) -> str:
    """A place that lies outside where the row holds zeros only."""
    return g.Mul(g.cast(nothing(g, h), INT), g.const(end, INT))


def table(g: Net, lines: int = LINES) -> str:
    """Rows to look up."""
    return g.const(np.arange(lines * 3.0).reshape(lines, 3))


# how a row comes to its reader: the mask goes the same way
WAYS: dict[str, Step] = {
    "as_is": lambda g, v: v,
    "tail": lambda g, v: g.Slice(v, [1], [1 << 30], [1]),
    "stepped": lambda g, v: g.Slice(v, [0], [1 << 30], [1], [2]),
    "reversed": lambda g, v: g.Slice(v, [-1], [-(1 << 30)], [1], [-1]),
    "first": lambda g, v: g.Slice(v, [0], [1], [1]),
    "turned": lambda g, v: g.Transpose(v, perm=[1, 0, 2]),
    "doubled": lambda g, v: g.Concat(v, v, axis=1),
    "stacked": lambda g, v: g.Concat(v, v, axis=0),
    "tiled": lambda g, v: g.Tile(v, [1, 2, 1]),
    "padded": lambda g, v: g.Pad(v, [0, 1, 0, 0, 0, 0], 1.0),
    "gathered": lambda g, v: g.Gather(v, [0, 0, -1], axis=1),
    "picked": lambda g, v: g.Gather(v, g.const(0, INT), axis=1),
    "unsqueezed": lambda g, v: g.Unsqueeze(v, [2]),
    "flat": lambda g, v: g.Flatten(v, axis=2),
    "split": lambda g, v: g.several("Split", 2, g.Concat(v, v, axis=1), axis=1, num_outputs=2)[1],
    "expanded": lambda g, v: g.Expand(g.Unsqueeze(v, [1]), [1, 2, 1, 1]),
    "elements": lambda g, v: g.GatherElements(v, g.const(np.zeros((2, 1, 1), INT), INT), axis=1),
    "nd": lambda g, v: g.GatherND(v, g.const([[0, 0], [1, 0]], INT)),
}

# readers that stop at a place outside, or at a divisor 0; r [.., D] are rows, result [..]
STOPS: dict[str, Step] = {
    "gather": lambda g, r: g.ReduceSum(g.Gather(table(g), outside(g, r)), [-1], keepdims=0),
    "gather_int32": lambda g, r: g.ReduceSum(
        g.Gather(table(g), g.cast(outside(g, r), np.int32)), [-1], keepdims=0
    ),
    "gather_minus": lambda g, r: g.ReduceSum(
        g.Gather(table(g), g.Neg(g.Mul(outside(g, r), g.const(3, INT)))), [-1], keepdims=0
    ),
    "gather_nd": lambda g, r: g.GatherND(g.const(np.arange(5.0)), g.Unsqueeze(outside(g, r), [-1])),
    "divide": lambda g, r: g.cast(g.Div(g.const(7, INT), g.cast(g.Not(nothing(g, r)), INT)), F),
    "remainder": lambda g, r: g.cast(g.Mod(g.const(7, INT), g.cast(g.Not(nothing(g, r)), INT)), F),
    "text": lambda g, r: g.cast(
        g.Where(nothing(g, r), g.const(np.asarray("no"), object), g.const(np.asarray("2"), object)),
        F,
    ),
    "element_of": lambda g, r: g.GatherElements(r, g.Unsqueeze(outside(g, r, 9999), [-1]), axis=-1),
    "one_hot": lambda g, r: g.ReduceSum(
        g.OneHot(outside(g, r), g.const(3, INT), g.const([1.0, 2.0])), [-1], keepdims=0
    ),
    "shift": lambda g, r: g.cast(
        g.BitShift(g.const(1, np.uint32), g.cast(outside(g, r, 40), np.uint32), direction="LEFT"), F
    ),
    "scatter": lambda g, r: g.ScatterElements(
        g.Mul(r, 0.5), g.Unsqueeze(outside(g, r, 9999), [-1]), g.Slice(r, [0], [1], [-1]), axis=-1
    ),
    "scatter_add": lambda g, r: g.ScatterElements(
        g.Mul(r, 0.5),
        g.Unsqueeze(outside(g, r, 9999), [-1]),
        g.Slice(r, [0], [1], [-1]),
        axis=-1,
        reduction="add",
    ),
    "reciprocal": lambda g, r: g.Reciprocal(g.ReduceL1(r, [-1], keepdims=0)),
    "exp_of_inverse": lambda g, r: g.Exp(g.Div(-1.0, g.ReduceL1(r, [-1], keepdims=0))),
    "log": lambda g, r: g.ReduceLogSum(g.Abs(r), [-1], keepdims=0),
    "unit": lambda g, r: g.ReduceSum(g.LpNormalization(r, axis=-1), [-1], keepdims=0),
}


def _masked(way: Step, stop: Step, select: bool, padding: bool, opset: int = 18) -> Probe:
    """The reader's result, wanted at live tokens only."""
    g = Net(opset)
    x, m = g.input("x", F, ("b", "s", D)), g.input("mask", INT, ("b", "s"))
    r = way(g, exit_of(g, x))
    y = stop(g, r)
    keep = way(g, g.cast(g.Unsqueeze(m, [2]), F))
    full = stop in (STOPS["element_of"], STOPS["scatter"], STOPS["scatter_add"])
    keep = keep if full else g.Squeeze(keep, [-1])
    g.out(g.Where(g.cast(keep, B), y, 0.0) if select else g.Mul(y, keep))
    return Probe(g.model(), rows_and_mask(), "mask" if padding else None)


def rows_and_mask() -> list[Feed]:
    """Tokens: many, one, none, and all of them."""
    feeds: list[Feed] = []
    for n, (b, s) in enumerate(((2, 6), (3, 1), (2, 5), (2, 4))):
        mask = (rng_of(n, 3).random((b, s)) < (0.5, 0.5, 0.0, 1.0)[n % 4]).astype(INT)
        feeds.append({"x": normal(b, s, D, seed=n), "mask": mask})
    return feeds


for _way_name in ("as_is", "reversed", "doubled", "padded", "split", "picked"):
    for _stop_name in ("gather", "divide", "text", "scatter", "one_hot"):
        for _select in (False, True):
            DEADNESS.add(
                f"readers.{_stop_name}.{_way_name}.{'where' if _select else 'mul'}",
                lambda a=WAYS[_way_name], b=STOPS[_stop_name], s=_select: _masked(a, b, s, False),
            )


def _two_domains(stop: Step) -> Probe:
    """An exit is packed by one mask; what is looked up with it, by another."""
    g = Net(18)
    x, z, w = (g.input(name, F, ("b", "s", D)) for name in "xzw")
    first, second = (g.input(name, INT, ("b", "s")) for name in ("mask", "mask2"))
    live, wanted = (g.cast(g.Unsqueeze(m, [2]), F) for m in (first, second))
    h = g.mlp(x)
    g.out(g.Mul(h, live))
    factor = g.Unsqueeze(stop(g, g.Einsum(h, equation="bsd->bsd")), [2])
    y = g.linear(g.Mul(g.mlp(z, 3), factor), seed=8)
    g.out(g.Mul(g.Mul(y, live), wanted))
    g.out(g.Mul(g.mlp(g.mlp(w, 5), 7), wanted))
    feeds: list[Feed] = []
    for n, (b, s) in enumerate(((2, 6), (3, 4), (2, 7))):
        rng = rng_of(n, 5)
        feed: Feed = {name: normal(b, s, D, seed=n + k) for k, name in enumerate("xzw")}
        masks = {name: (rng.random((b, s)) < 0.5).astype(INT) for name in ("mask", "mask2")}
        feeds.append(feed | masks)
    return Probe(g.model(), feeds)


for _stop_name in ("gather", "gather_nd", "divide", "remainder", "reciprocal"):
    DEADNESS.add(
        f"readers.{_stop_name}.two_domains", lambda stop=STOPS[_stop_name]: _two_domains(stop)
    )


def _flat_gemm() -> Probe:
    """Whole sequences are live or dead, and a product sees their tokens as rows of one matrix."""
    g = Net(18)
    x, m = g.input("x", F, ("b", "s", D)), g.input("mask", INT, ("b",))
    h = g.mlp(x)
    rows = g.Gemm(g.Reshape(h, [-1, D]), g.matrix(D, D), g.const(np.ones(D)), alpha=0.5, beta=2.0)
    y = g.Reshape(rows, g.Shape(h))
    g.out(g.Mul(y, g.cast(g.Unsqueeze(m, [1, 2]), F)))
    sizes = ((3, 4), (2, 1), (1, 5))
    feeds: list[Feed] = [{"x": normal(b, s, D, seed=b), "mask": np.arange(b) % 2} for b, s in sizes]
    return Probe(g.model(), feeds)


DEADNESS.add("readers.flat_gemm", _flat_gemm)
