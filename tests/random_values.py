"""What random graphs are made of: sources of numbers, values, inputs, and sample nodes that fit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models.graph import Dim, GraphBuilder
from pitc.passes.rules.record import OPERATORS, UNKNOWN, always
from pitc.passes.rules.registry import MICROSOFT
from tests.fact_feeds import Pattern, mask_pattern
from tests.rule_proof import Sample
from tests.rule_samples import SAMPLES

Array = Any
Levels = tuple[Sequence[float], Sequence[float]]  # of a mask: what keeps, and what hides
BATCH, SEQ, KEYS = 5, 7, 6  # sizes by which a growing graph tells its dimensions apart
LOW = -5e3  # masks' numbers: they may only reach a softmax, as scores are bounded elsewhere


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOW_READERS = _words(
    "Add Where Softmax Identity Transpose Reshape Unsqueeze Squeeze Slice Expand Concat"
)
GROWING = _words("Exp Sinh Cosh Pow ReduceProd CumProd ReduceLogSumExp Softplus Mish")
DIVISORS = frozenset({("Div", 1), ("Mod", 1)})
DATA_SHAPED = _words("NonZero Compress")
FREE_INTS = _words("Gather OneHot EmbedLayerNormalization Cast")
# operators that ONNX Runtime runs, and runs right, on tensors without elements
_ELEMENTWISE = (op for (domain, op), row in OPERATORS.items() if row.function and not domain)
ZERO_SAFE = frozenset(_ELEMENTWISE) | _words(
    "Concat Expand Flatten Identity LayerNormalization MatMul Slice Softmax Transpose Unsqueeze"
)
# STFT's own shape inference refuses operands of unknown shape; MoE of ONNX Runtime 1.31 gives zeros
# in one session and numbers in another
SKIPPED = _words("STFT MoE")


class Given:
    """Random numbers that `draw` decides, in the manner of numpy's generator.

    Args:
        draw: Gives an integer of 0..n; smaller is simpler.
    """

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def integers(self, low: int, high: int | None = None) -> int:
        low, high = (0, low) if high is None else (low, high)
        return low + int(self._draw(high - low - 1))

    def random(self) -> float:
        return (90 + int(self._draw(99))) % 100 / 100  # 0.9 chooses the simple way everywhere

    def normal(self, size: Any) -> Array:
        return np.random.default_rng(self._draw(999)).normal(size=size)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the graph with what it was for the first feed."""

    name: str
    array: Array
    low: bool = False
    loose: bool = False  # its shape depends on data


@dataclass(frozen=True, slots=True)
class Input:
    """How a graph input is drawn.

    Args:
        name: Its name; one with `mask` in it is a mask of 0 and 1.
        dtype: Type of its elements.
        dims: Its dimensions.
        limits: The range of its numbers; normally distributed without.
        levels: What a mask holds instead of 1 and 0.
    """

    name: str
    dtype: Any
    dims: tuple[Dim, ...]
    limits: tuple[float, float] | None = None
    levels: Levels | None = None

    def draw(self, sizes: Mapping[str, int], pattern: Pattern, rng: np.random.Generator) -> Array:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in self.dims)
        if "mask" in self.name:
            mask = mask_pattern(shape, pattern, rng)
            return (_leveled(mask, self.levels, rng) if self.levels else mask).astype(self.dtype)
        if self.dtype == np.bool_:
            return rng.random(shape) < 0.6
        if self.limits is None:
            return rng.normal(size=shape).astype(self.dtype)
        low, high = self.limits
        if self.dtype.kind in "iu":
            return rng.integers(int(low), int(high) + 1, shape).astype(self.dtype)
        return rng.uniform(low, high, shape).astype(self.dtype)


def _leveled(mask: Array, levels: Levels, rng: np.random.Generator) -> Array:
    """A mask of other numbers: those that keep where it is 1, those that hide where it is 0; and
    every fourth time anything anywhere.
    """
    kept, hidden = (_some(part, mask.shape, rng) for part in levels)
    if rng.random() < 0.25:
        return _some((*levels[0], *levels[1]), mask.shape, rng)
    return np.where(mask != 0, kept, hidden)


def _some(numbers: Sequence[float], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """One or two of the numbers at each place."""
    few = rng.choice(numbers, 1 + int(rng.integers(2)))
    return np.asarray(rng.choice(few, shape))


class Builder(GraphBuilder):
    """A graph builder that can take back its last nodes and knows nodes of several outputs."""

    def node(self, sample: Sample, inputs: Sequence[str]) -> None:
        names = [f"{sample.op.lower()}_{len(self._nodes)}_{k}" for k in range(sample.outputs)]
        made = helper.make_node(
            sample.op, inputs, names, names[0], domain=sample.domain, **sample.attributes
        )
        self._nodes.append(made)

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        return self._nodes

    def tensor(self, name: str) -> Array | None:
        tensor = self._weights.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def any_output(self, name: str, dtype: Any) -> None:
        """Make a value an output of which only the type is declared."""
        info = helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None)
        self._outputs.append(info)

    def model(self) -> onnx.ModelProto:
        used = set(names_read(self._nodes))
        weights = [t for name, t in self._weights.items() if name in used]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, weights)
        domains = sorted({n.domain for n in self._nodes} - {""})
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid(domain, 1) for domain in domains]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def names_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """What nodes read, and what their bodies mention."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from names_read(attribute.g.node)
                yield from (o.name for o in attribute.g.output)


@cache
def samples_by_operator(opset: int) -> list[list[Sample]]:
    """The samples that mean the same in an operator set, one list per operator."""
    found: dict[tuple[str, str], list[Sample]] = {}
    for s in SAMPLES:
        if s.op in SKIPPED or s.domain not in ("", MICROSOFT):
            continue
        if s.domain or _since(s.op, s.opset) == _since(s.op, opset) is not None:
            found.setdefault((s.domain, s.op), []).append(s)
    return list(found.values())


def _since(op: str, opset: int) -> int | None:
    try:
        return onnx.defs.get_schema(op, opset).since_version
    except onnx.defs.SchemaError:
        return None


def finite(x: Array | None) -> bool:
    return x is None or x.dtype.kind != "f" or bool(np.isfinite(x).all())


def is_low(x: Array) -> bool:
    return bool(x.dtype.kind == "f" and x.size and (x[~np.isnan(x)] <= LOW).any())


def bind(
    sample: tuple[int, ...], real: tuple[int, ...], bound: Mapping[int, int]
) -> dict[int, int] | None:
    """Extents of a sample as those of a value; None where they do not fit."""
    if len(sample) != len(real):
        return None
    found = dict(bound)
    for n, m in zip(sample, real, strict=True):
        if (m != 1) if n == 1 else (found.setdefault(n, m) != m):
            return None
    return found


def domain(sample: Sample, i: int, x: Array) -> tuple[float, float] | None:
    """The numbers that an operand may be; None for all."""
    if x.dtype.kind != "f" or not x.size:
        return None
    if (sample.op, i) in DIVISORS:
        return 0.5, 2.0
    if sample.op in GROWING:
        return (0.5, 2.0) if x.min() >= 0.5 else (-2.0, 2.0)
    if x.min() >= 0.5:
        return float(x.min()), float(x.max())
    row = OPERATORS.get((sample.domain, sample.op), UNKNOWN)
    partial = row.function and row.finite is not always and sample.op != "BitCast"
    return (-0.9, 0.9) if partial and np.abs(x).max() < 1 else None
