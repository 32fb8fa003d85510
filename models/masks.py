"""How exporters write an attention mask: one row of `MASKS` per dialect.

A dialect prepares the mask [batch, sequence] once per graph and applies it to the scores
[batch, heads, query, key] in every layer. `fill` and `additive` say what a masked score becomes,
which is all that a reference needs to know.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from models.graph import GraphBuilder, element_type

FLOAT_MIN = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class MaskInput:
    """The mask as it enters the graph.

    Args:
        name: Value of shape [batch, sequence]; 0 or False marks padding.
        dtype: Its element type.
    """

    name: str
    dtype: np.dtype[np.generic]

    def cast(self, g: GraphBuilder, dtype: npt.DTypeLike) -> str:
        """The mask in another element type; no node when it is that type already."""
        if self.dtype == np.dtype(dtype):
            return self.name
        return g.op("Cast", self.name, to=element_type(dtype))


Prepare = Callable[[GraphBuilder, MaskInput], str]
Apply = Callable[[GraphBuilder, str, str], str]


@dataclass(frozen=True, slots=True)
class MaskDialect:
    """One way to write the mask.

    Args:
        prepare: (graph, mask) -> the value that every layer uses.
        apply: (graph, scores, prepared) -> masked scores.
        fill: The number that masks a score.
        additive: The number is added to the score; otherwise it replaces the score.
        nan_guard: After the softmax NaN becomes 0.
    """

    prepare: Prepare
    apply: Apply
    fill: float
    additive: bool
    nan_guard: bool = False


def _add(g: GraphBuilder, scores: str, prepared: str) -> str:
    return g.op("Add", scores, prepared)


def _broadcast(g: GraphBuilder, mask: str) -> str:
    """[batch, sequence] -> [batch, 1, 1, sequence], one dimension at a time as when traced."""
    return g.op("Unsqueeze", g.op("Unsqueeze", mask, g.ints(1)), g.ints(2))


def _one_minus(fill: float) -> Prepare:
    """(1 - m) * fill."""

    def prepare(g: GraphBuilder, mask: MaskInput) -> str:
        wide = MaskInput(_broadcast(g, mask.name), mask.dtype).cast(g, np.float32)
        return g.op("Mul", g.op("Sub", g.const(1.0), wide), g.const(fill))

    return prepare


def _traced_expand(g: GraphBuilder, value: str, shape: str) -> str:
    """Expand as a tracing exporter writes it: sizes of -1 are replaced by 1 first."""
    one = numpy_helper.from_array(np.ones(1, np.int64))
    ones = g.op("ConstantOfShape", g.op("Shape", shape), value=one)
    absent = g.op("Equal", shape, g.op("Mul", ones, g.const(-1, np.int64)))
    return g.op("Expand", value, g.op("Where", absent, ones, shape))


def _inverted_fill(g: GraphBuilder, mask: MaskInput) -> str:
    """The mask as [batch, 1, query, key], inverted, its ones replaced by the smallest float."""
    batch, length = g.size(mask.name, 0), g.size(mask.name, 1)
    shape = g.dims(batch, 1, length, length)
    wide = _traced_expand(g, _broadcast(g, mask.name), shape)
    inverted = g.op("Sub", g.const(1.0), MaskInput(wide, mask.dtype).cast(g, np.float32))
    return g.op(
        "Where", g.op("Cast", inverted, to=element_type(np.bool_)), g.const(FLOAT_MIN), inverted
    )


def _is_padding(g: GraphBuilder, mask: MaskInput) -> str:
    """`m == 0` as [batch, 1, 1, key]."""
    batch, length = g.size(mask.name, 0), g.size(mask.name, 1)
    if mask.dtype == np.bool_:
        absent = g.op("Not", mask.name)
    else:
        absent = g.op("Equal", mask.name, g.const(0, mask.dtype))
    return g.op("Reshape", absent, g.dims(batch, 1, 1, length))


def _fill_scores(fill: float) -> Apply:
    """The padding flags expanded to the scores' shape, scores replaced."""

    def apply(g: GraphBuilder, scores: str, padding: str) -> str:
        wide = g.op("Expand", padding, g.op("Shape", scores))
        return g.op("Where", wide, g.const(fill), scores)

    return apply


def _keep_bool(g: GraphBuilder, mask: MaskInput) -> str:
    return _broadcast(g, mask.cast(g, np.bool_))


def _keep_scores(g: GraphBuilder, scores: str, keep: str) -> str:
    return g.op("Where", keep, scores, g.const(-1e9))


def _keep_float(g: GraphBuilder, mask: MaskInput) -> str:
    return _broadcast(g, mask.cast(g, np.float32))


def _mul_sub(g: GraphBuilder, scores: str, keep: str) -> str:
    """S * m - 1e12 * (1 - m)."""
    off = g.op("Mul", g.op("Sub", g.const(1.0), keep), g.const(1e12))
    return g.op("Sub", g.op("Mul", scores, keep), off)


def _additive(g: GraphBuilder, keep: str, fill: float) -> str:
    return g.op("Where", keep, g.const(0.0), g.const(fill))


def _sdpa(g: GraphBuilder, mask: MaskInput) -> str:
    """Where(m, 0, -inf) on the mask expanded to [batch, 1, query, key]."""
    batch, length = g.size(mask.name, 0), g.size(mask.name, 1)
    wide = g.op("Expand", _keep_bool(g, mask), g.dims(batch, 1, length, length))
    return _additive(g, wide, -np.inf)


def _positions(g: GraphBuilder, size: str, axes: tuple[int, ...]) -> str:
    counted = g.op("Range", g.const(0, np.int64), size, g.const(1, np.int64))
    return g.op("Unsqueeze", counted, g.ints(*axes))


def _gathered(full: bool) -> Prepare:
    """The mask looked up by GatherND at (batch, key) pairs, And-ed with a test of the position."""

    def prepare(g: GraphBuilder, mask: MaskInput) -> str:
        batch, length = g.size(mask.name, 0), g.size(mask.name, 1)
        rows = _positions(g, batch, (1, 2, 3))
        keys = _positions(g, length, (0, 1, 2))
        shape = g.dims(batch, 1, length if full else 1, length)
        pair = [g.op("Unsqueeze", g.op("Expand", x, shape), g.ints(-1)) for x in (rows, keys)]
        found = g.op("GatherND", mask.cast(g, np.bool_), g.op("Concat", *pair, axis=-1))
        legal = g.op("GreaterOrEqual", keys, g.const(0, np.int64))
        return _additive(g, g.op("And", legal, found), FLOAT_MIN)

    return prepare


def _flattened(fill: float) -> Prepare:
    """The mask flattened and looked up at row * length + key: a traced `mask[rows, keys]`."""

    def prepare(g: GraphBuilder, mask: MaskInput) -> str:
        batch, length = g.size(mask.name, 0), g.size(mask.name, 1)
        rows = _positions(g, batch, (1, 2, 3))
        keys = _positions(g, length, (0, 1, 2))
        index = g.op("Add", keys, g.op("Mul", rows, length))
        flat = g.op("Flatten", mask.cast(g, np.bool_), axis=2)
        found = g.op("Gather", flat, index, axis=0)
        keep = g.op("Reshape", found, g.op("Shape", index))
        wide = _traced_expand(g, keep, g.dims(batch, 1, length, length))
        return _additive(g, wide, fill)

    return prepare


MASKS: dict[str, MaskDialect] = {
    "one_minus_1e4": MaskDialect(_one_minus(-1e4), _add, -1e4, True),
    "one_minus_min": MaskDialect(_one_minus(FLOAT_MIN), _add, FLOAT_MIN, True),
    "inverted_fill": MaskDialect(_inverted_fill, _add, FLOAT_MIN, True),
    "fill_min": MaskDialect(_is_padding, _fill_scores(FLOAT_MIN), FLOAT_MIN, False),
    "fill_inf": MaskDialect(_is_padding, _fill_scores(-np.inf), -np.inf, False),
    "keep_1e9": MaskDialect(_keep_bool, _keep_scores, -1e9, False),
    "mul_sub": MaskDialect(_keep_float, _mul_sub, -1e12, False),
    "sdpa": MaskDialect(_sdpa, _add, -np.inf, True, nan_guard=True),
    "dynamo": MaskDialect(_gathered(full=True), _add, FLOAT_MIN, True),
    "dynamo_sdpa": MaskDialect(_gathered(full=False), _add, FLOAT_MIN, True, nan_guard=True),
    "torchscript": MaskDialect(_flattened(FLOAT_MIN), _add, FLOAT_MIN, True),
    "torchscript_sdpa": MaskDialect(_flattened(-np.inf), _add, -np.inf, True, nan_guard=True),
}
