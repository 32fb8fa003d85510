"""Random graphs of masks, token rows, attention and pooling, for auditing whatever is proven."""

from collections.abc import Callable

import numpy as np
import onnx

from models.graph import GraphBuilder

BS = ("batch", "seq")
WIDTH = 4
FILLS = (-1e4, -1e9, float(np.finfo(np.float32).min), -np.inf, -np.inf, -np.inf)
SHAPES = {"bool": BS, "mask": BS, "rows": (*BS, WIDTH), "pooled": ("batch", WIDTH)}
SHAPES["scores"] = SHAPES["weights"] = ("batch", "seq", "seq")


class RandomGraph:
    """A growing graph whose values are kept by kind (`SHAPES`).

    Very negative values only ever reach a softmax: elsewhere they would break the one assumption
    that facts rest on, bounded scores.

    Args:
        seed: Decides everything.
        steps: Nodes to add, about.
    """

    def __init__(self, seed: int, steps: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.g = GraphBuilder("random", 20)
        mask = self.g.input("mask", np.int64, BS)
        self.values: dict[str, list[str]] = {
            "bool": [self.g.op("Cast", mask, to=9)],
            "mask": [self.g.op("Cast", mask, to=1), self.g.input("extra_mask", np.float32, BS)],
            "rows": [self.g.input("x", np.float32, SHAPES["rows"])],
            "scores": [],
            "weights": [],
            "pooled": [],
        }
        self.values["rows"].append(self.matmul())
        makers = [(kind, make) for kind, group in MAKERS.items() for make in group]
        for _ in range(steps):
            kind, make = makers[int(self.rng.integers(len(makers)))]
            made = make(self)
            if made is not None:
                self.values[kind].append(made)

    def any(self, kind: str) -> str:
        """A value of the kind, newer ones more often."""
        known = self.values[kind]
        return known[-1 - int(self.rng.integers(min(len(known), 4)))]

    def maybe(self, kind: str) -> str | None:
        """A value of the kind, if there is one."""
        return self.any(kind) if self.values[kind] else None

    def matmul(self) -> str:
        """Rows times a new weight."""
        weight = self.weight()
        return self.g.op("MatMul", self.any("rows"), weight)

    def weight(self) -> str:
        """A new matrix."""
        weight = self.rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) * np.float32(0.5)
        return self.g.weight(f"w{len(self.g._nodes)}", weight)

    def wide(self, name: str) -> str:
        """[batch, seq] -> [batch, seq, 1]."""
        return self.g.op("Unsqueeze", name, self.g.ints(-1))

    def model(self) -> tuple[onnx.ModelProto, list[str]]:
        """The model, with one or two outputs, and those that have rows."""
        kinds = [k for k in ("rows", "pooled", "mask", "weights") if self.values[k]]
        picked: dict[str, str] = {}
        for _ in range(int(self.rng.integers(1, 3))):
            kind = kinds[int(self.rng.integers(len(kinds)))]
            picked[self.any(kind)] = kind
        rows = []
        for k, (value, kind) in enumerate(picked.items()):
            out = self.g.op("Identity", value)
            self.g.output(out, f"out{k}", np.float32, SHAPES[kind])
            rows += [f"out{k}"] * (kind in ("rows", "mask"))
        return self.g.model(), rows


Maker = Callable[[RandomGraph], str | None]


def _unary(kind: str, *ops: str) -> Maker:
    def make(r: RandomGraph) -> str | None:
        value = r.maybe(kind)
        return value and r.g.op(ops[int(r.rng.integers(len(ops)))], value)

    return make


def _binary(kind: str, *ops: str) -> Maker:
    def make(r: RandomGraph) -> str | None:
        if not r.values[kind]:
            return None
        return r.g.op(ops[int(r.rng.integers(len(ops)))], r.any(kind), r.any(kind))

    return make


def _norm(r: RandomGraph) -> str:
    scale = r.g.const(np.ones(WIDTH))
    return r.g.op("LayerNormalization", r.any("rows"), scale, axis=-1)


def _where_rows(r: RandomGraph) -> str:
    other = r.any("rows") if r.rng.random() < 0.5 else r.g.const(0.0)
    return r.g.op("Where", r.wide(r.any("bool")), r.any("rows"), other)


def _heads(r: RandomGraph) -> str:
    g = r.g
    split = g.op("Reshape", r.any("rows"), g.ints(0, 0, 2, 2))
    turned = g.op("Transpose", split, perm=[0, 2, 1, 3])
    middle = g.op("Tanh", turned)
    back = g.op("Transpose", middle, perm=[0, 2, 1, 3])
    return g.op("Reshape", back, g.ints(0, 0, WIDTH))


def attend(r: RandomGraph) -> str | None:
    weights = r.maybe("weights")
    return weights and r.g.op("MatMul", weights, r.any("rows"))


def _flat(r: RandomGraph) -> str:
    g, x = r.g, r.any("rows")
    flat = g.op("Relu", g.op("Reshape", x, g.ints(-1, WIDTH)))
    return g.op("Reshape", flat, g.op("Shape", x))


def _shift(r: RandomGraph) -> str:
    """The rows one place later: Slice and Concat along the sequence."""
    g, x = r.g, r.any("rows")
    first = g.op("Slice", x, g.ints(0), g.ints(1), g.ints(1))
    rest = g.op("Slice", x, g.ints(0), g.ints(-1), g.ints(1))
    return g.op("Concat", first, rest, axis=1)


def _spread(r: RandomGraph) -> str | None:
    pooled = r.maybe("pooled")
    return pooled and r.g.op("Add", r.any("rows"), r.g.op("Unsqueeze", pooled, r.g.ints(1)))


def scores(r: RandomGraph) -> str:
    k = r.g.op("Transpose", r.any("rows"), perm=[0, 2, 1])
    return r.g.op("MatMul", r.any("rows"), k)


def _causal(r: RandomGraph) -> str:
    g = r.g
    n = g.size("mask", 1)
    count = g.op("Range", g.const(0, np.int64), n, g.const(1, np.int64))
    return g.op(
        "LessOrEqual", g.op("Unsqueeze", count, g.ints(0)), g.op("Unsqueeze", count, g.ints(1))
    )


def softmax(r: RandomGraph) -> str | None:
    g, scores = r.g, r.maybe("scores")
    if scores is None:
        return None
    fill = g.const(FILLS[int(r.rng.integers(len(FILLS)))])
    keep = g.op("Unsqueeze", r.any("bool"), g.ints(1))
    if r.rng.random() < 0.3:
        keep = g.op("And", keep, _causal(r))
    if r.rng.random() < 0.5:
        masked = g.op("Add", scores, g.op("Where", keep, g.const(0.0), fill))
    else:
        masked = g.op("Where", keep, scores, fill)
    p = g.op("Softmax", masked, axis=-1)
    return g.op("Where", g.op("IsNaN", p), g.const(0.0), p) if r.rng.random() < 0.5 else p


def _pool(r: RandomGraph) -> str:
    g = r.g
    op = ("ReduceSum", "ReduceMax", "ReduceMean")[r.rng.integers(3)]
    return g.op(op, r.any("rows"), g.ints(1), keepdims=0)


def _class_row(r: RandomGraph) -> str:
    return r.g.op("Gather", r.any("rows"), r.g.const(0, np.int64), axis=1)


MAKERS: dict[str, list[Maker]] = {
    "bool": [
        _unary("bool", "Not"),
        _binary("bool", "And", "Or"),
        lambda r: r.g.op("Greater", r.any("mask"), r.g.const(0.0)),
    ],
    "mask": [
        lambda r: r.g.op("Cast", r.any("bool"), to=1),
        lambda r: r.g.op("Sub", r.g.const(1.0), r.any("mask")),
        lambda r: r.g.op("Where", r.any("bool"), r.any("mask"), r.g.const(0.0)),
        lambda r: r.g.op("ReduceSum", r.g.op("Tanh", r.any("rows")), r.g.ints(-1), keepdims=0),
        _binary("mask", "Mul"),
        _unary("mask", "Tanh", "Relu"),
    ],
    "rows": [
        _norm,
        _where_rows,
        _heads,
        attend,
        attend,
        _flat,
        _shift,
        _spread,
        _unary("rows", "Tanh", "Relu", "Gelu", "Sigmoid", "Neg"),
        _binary("rows", "Add", "Mul", "Sub", "Max"),
        lambda r: r.g.op("Mul", r.any("rows"), r.wide(r.any("mask"))),
        lambda r: r.g.op("Mul", r.any("rows"), r.wide(r.any("mask"))),
        lambda r: r.matmul(),
        lambda r: r.matmul(),
    ],
    "scores": [scores, scores],
    "weights": [softmax, softmax, softmax],
    "pooled": [_pool, _class_row],
}
