"""Operators on packed rows: operands of more dimensions than those, shared and overridable ones."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tests.probes.build import D, Feed, Net, Probe, Table, normal, rng_of
from tests.probes.masks import merge, split
from tests.probes.sizes import mask_of

ROWS = Table("rows")
F, INT = np.float32, np.int64
SIZES = ((2, 5), (1, 1), (2, 4), (1, 6), (4, 4))
V = rng_of(3).normal(size=D).astype(F)
Array = Any
Step = Callable[[Net, str], str]


def masked(step: Step, padding: bool = False, opset: int = 17) -> Probe:
    """Rows [b, s, D] that are computed, changed by a step, and counted where the mask is 1."""
    g = Net(opset)
    x, m = g.input("x", F, ("b", "s", D)), g.input("mask", INT, ("b", "s"))
    y = g.linear(step(g, g.mlp(x)))
    g.out(y if padding else g.Mul(y, g.cast(g.Unsqueeze(m, [2]), F)))
    feeds: list[Feed] = [
        {"x": normal(b, s, D, seed=n), "mask": mask_of(b, s, n)} for n, (b, s) in enumerate(SIZES)
    ]
    model = g.model()
    if not padding:
        return Probe(model, feeds)
    return Probe(model, feeds, "mask", (model.graph.output[0].name,))


def _norm(*shape: int, parts: Sequence[int] = (D,)) -> Step:
    """A norm over the last dimensions, its scale and shift of the given shape."""
    split, axis = [0, 0, *parts], 2

    def step(g: Net, h: str) -> str:
        scale = g.const(V[: int(np.prod(shape))].reshape(shape))
        out = g.LayerNormalization(g.Reshape(h, split), scale, scale, axis=axis)
        return g.Reshape(out, [0, 0, D])

    return step


STEPS: dict[str, Step] = {
    "norm": _norm(D),
    "norm_2d": _norm(1, D),
    "norm_3d": _norm(1, 1, D),
    "norm_of_parts": _norm(4, 16, parts=(4, 16)),
    "norm_of_parts_4d": _norm(1, 1, 4, 16, parts=(4, 16)),
    "slope_3d": lambda g, h: g.PRelu(h, g.const(V.reshape(1, 1, D))),
    "choice_3d": lambda g, h: g.Where(g.Greater(h, 0.0), h, g.const(V.reshape(1, 1, D))),
    "largest_3d": lambda g, h: g.Max(h, g.const(V.reshape(1, 1, D)), 0.0),
    "matrix_3d": lambda g, h: g.MatMul(h, g.const(rng_of(4).normal(size=(1, D, D)) / 8)),
}
for _name, _step in STEPS.items():
    ROWS.add(_name, lambda f=_step: masked(f))
    ROWS.add(f"padded.{_name}", lambda f=_step: masked(f, padding=True))
# what makes rows of a value that others read too: its rows are gathered, not computed packed
WAYS: dict[str, Step] = {
    "tiled": lambda g, x: g.MatMul(g.Tile(x, [1, 1, 2]), g.matrix(2 * D, D, 9)),
    "tiled_inner": lambda g, x: g.Slice(g.Tanh(g.Tile(x, [1, 1, 3])), [32], [96], [2]),
    "tiled_parts": lambda g, x: g.MatMul(
        g.Reshape(g.Tile(g.Reshape(x, [0, 0, 4, 16]), [1, 1, 2, 1]), [0, 0, 2 * D]),
        g.matrix(2 * D, D, 9),
    ),
    "repeated": lambda g, x: g.MatMul(
        g.Reshape(g.Expand(g.Unsqueeze(x, [2]), [1, 1, 2, 1]), [0, 0, 2 * D]),
        g.matrix(2 * D, D, 9),
    ),
    "resized": lambda g, x: g.MatMul(
        g.Resize(x, "", g.const([1.0, 1.0, 2.0])), g.matrix(2 * D, D, 9)
    ),
    "doubled": lambda g, x: g.MatMul(g.Concat(x, x, axis=2), g.matrix(2 * D, D, 9)),
}


def shared(step: Step) -> Probe:
    """Masked rows of what a step makes of a value that is also read whole."""
    g = Net(17)
    x, m = g.input("x", F, ("b", "s", D)), g.input("mask", INT, ("b", "s"))
    t = g.Tanh(x)
    g.out(g.Mul(g.mlp(step(g, t)), g.cast(g.Unsqueeze(m, [2]), F)), g.ReduceSum(t))
    feeds = ({"x": normal(b, s, D, seed=b), "mask": mask_of(b, s, b)} for b, s in SIZES)
    return Probe(g.model(), list(feeds))


for _name, _step in WAYS.items():
    ROWS.add(f"shared.{_name}", lambda f=_step: shared(f))
ROWS.add(
    "root_norm_3d", lambda: masked(lambda g, h: g.RMSNormalization(h, V.reshape(1, 1, D)), opset=23)
)


@ROWS.probe()
def overridden() -> Probe:
    """Weights that a caller may give: they are no constants, whatever the file holds."""
    probe = masked(lambda g, h: h)
    weights = [t for t in probe.model.graph.initializer if len(t.dims) == 2]
    given = {}
    for t in weights:
        info = helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        probe.model.graph.input.append(info)
        given[t.name] = -numpy_helper.to_array(t) / 2
    return replace(probe, feeds=[*probe.feeds, *({**feed, **given} for feed in probe.feeds)])


def old_opset(kind: str, opset: int) -> Probe:
    """Live rows that are computed with the operators of an old set."""
    g = Net(opset)
    x = g.input("x", F, (1 if kind == "length" else "b", "s", D))
    if kind == "first":
        g.out(g.Gather(g.mlp(x), g.const(0, INT), axis=1))
        return Probe(g.model(), [{"x": normal(2, 3, D)}])
    if kind == "length":  # of a batch of one: no dimension is left to look along
        length = g.input("length", INT, (1,))
        flag = g.Reshape(g.Greater(length, g.const(0, INT)), g.const([1, 1, 1], INT))
        g.out(g.Where(flag, g.mlp(x), 0.0))
        return Probe(g.model(), [{"x": normal(1, 4, D), "length": np.array([n])} for n in (0, 3)])
    memory = g.mlp(g.input("memory", F, ("b", "k", D)))
    bias = g.input("bias", F, ("b", 1, 1, "k"))
    q, k, v = (split(g, g.linear(s, D, D, 30 + n)) for n, s in enumerate((x, memory, memory)))
    scores = g.Add(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), bias)
    g.out(merge(g, g.MatMul(g.Softmax(scores, axis=3), v)))
    rest = {"x": normal(2, 3, D), "memory": normal(2, 4, D)}
    numbers = (-1e4, -np.nextafter(F(1e4), F(0)), -1.5e4, -np.inf)
    kept = np.array([[1, 0, 1, 1], [0, 1, 0, 1]])
    hidden = [np.where(kept, 0, n).astype(F)[:, None, None] for n in numbers]
    return Probe(g.model(), [{**rest, "bias": b} for b in hidden])


for _kind, _opset in product(("first", "length", "bias"), (9, 10, 11, 12, 17)):
    ROWS.add(f"opset.{_opset}.{_kind}", lambda k=_kind, o=_opset: old_opset(k, o))
