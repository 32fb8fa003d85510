"""When a difference is nobody's fault: rounding decides, or a named assumption is broken."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from pitc.ir.constant import BOUNDED, FINITE, Constant, Range
from pitc.ir.graph import Graph
from pitc.passes.audit.points import sizes_of, where
from pitc.passes.audit.runs import Runs
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import analyse
from tests.random_nodes import NodeFailed, run_nodes, run_whole, session_of

Array = Any
Feed = Mapping[str, Array]
BOUND = 1000  # of scores
TRIALS = 6
TOLERANCE = {"float32": 2e-4, "float64": 2e-4, "float16": 2e-2}  # of the largest number
# of finite numbers these give finite ones, unless the type ends
OVERFLOWING = {"Add", "Sub", "Sum", "Mul", "MatMul", "Gemm", "Einsum", "Conv", "Neg", "Cast"}
OVERFLOWING |= {"CumSum", "ReduceSum", "ReduceMean", "ReduceL1", "ReduceProd", "ReduceSumSquare"}
# operators whose results differ by rounding between two right programs, and by how much
ROUNDED = {"Add", "Sub", "Sum", "Mul", "Div", "MatMul", "Gemm", "Softmax", "Cast"}
ROUNDED |= {"ReduceSum", "ReduceMean"}
ROUNDING = {"float32": 2e-7, "float16": 1e-3}


def close(x: Array, y: Array) -> Array:
    """Elementwise: equal but for rounding."""
    if x.dtype.kind != "f":
        return x == y
    finite = np.where(np.isfinite(x), np.abs(x), 0)
    limit = TOLERANCE[str(x.dtype)] * max(float(finite.max(initial=0)), 1e-3)
    with np.errstate(all="ignore"):
        near = np.abs(x.astype(np.float64) - y) <= limit
    return near | (x == y) | (np.isnan(x) & np.isnan(y))


def broken(graph: Graph, feed: Feed) -> set[str]:
    """The assumptions that a feed of an analysed graph breaks."""
    values = Runs(graph).expose(feed)
    if values is None:
        return set()
    found = {FINITE} if any(_bad(x) for x in feed.values()) else set()
    for name in [n for n, x in graph.values.items() if x.score]:
        x = values.get(name)
        if x is not None and x.size and not np.all(np.abs(x) <= BOUND):
            found.add(BOUNDED)
    for node in graph.nodes:
        if node.op_type in OVERFLOWING:
            operands = [values[v.name] for v in node.inputs if v is not None and v.name in values]
            if _bad(values.get(node.outputs[0].name or "")) and not any(map(_bad, operands)):
                found.add(FINITE)
    return found


def broken_by(proto: onnx.ModelProto, padding: str | None, feed: Feed) -> set[str]:
    """The named assumptions of a model that a feed breaks."""
    model = ir.serde.deserialize_model(proto)
    normalise(model)
    graph, _ = analyse(model, padding)
    return broken(graph, feed) & set(graph.assumptions)


def _bad(x: Array | None) -> bool:
    return x is not None and x.dtype.kind == "f" and not bool(np.isfinite(x).all())


def is_rounded_half(graph: Graph, feed: Feed, text: str) -> bool:
    """A failed fill fact of float16, where the value is the number but for rounding: ONNX Runtime
    may compute it in float32 and round later.
    """
    for name in [n for n, x in graph.values.items() if x.dtype == np.float16]:
        for f in graph[name].fills:
            if text.endswith(f": fill {f.constant} of {name} where {f.region}"):
                values = Runs(graph).expose(feed) or {}
                sizes, _ = sizes_of(graph, values)
                x = values[name]
                return _is_about(x[where(f.region, x.shape, sizes, values)], f.constant)
    return False


def _is_about(x: Array, c: Constant) -> bool:
    low, high = (c.lo, c.hi) if isinstance(c, Range) else (c, c)
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low == high == 0:
        return False
    return bool(np.all(close(np.clip(x, low, high), x) & ~np.isnan(x)))


def unsteady(proto: onnx.ModelProto, feed: Feed, want: Sequence[Array]) -> list[Array]:
    """Elements that rounding decides: they move when inputs and constants move by 1e-6, or results
    inside by the least that their types can tell, or when ONNX Runtime runs node after node (it
    leaves out the rounding of float16 between nodes otherwise).
    """
    moved = [np.zeros(x.shape, bool) for x in want]
    twins = (*_jittered(proto, feed), *_rounded(proto, feed))
    runs = [run_whole(session_of(other), numbers) for other, numbers in twins]
    with suppress(NodeFailed):
        runs.append(run_nodes(proto, feed))
    for found in runs:
        if found is None:
            return [np.ones(x.shape, bool) for x in want]
        for flags, x, y in zip(moved, want, found, strict=True):
            if x.shape != y.shape:
                flags[...] = True
            else:
                flags |= ~close(x, y)
    return moved


def _jittered(proto: onnx.ModelProto, feed: Feed) -> Iterator[tuple[onnx.ModelProto, Feed]]:
    for trial in range(TRIALS):
        rng = np.random.default_rng(trial)
        other = onnx.ModelProto()
        other.CopyFrom(proto)
        for tensor in other.graph.initializer:
            x = onnx.numpy_helper.to_array(tensor)
            if x.dtype.kind == "f":
                tensor.CopyFrom(onnx.numpy_helper.from_array(_jitter(x, rng), tensor.name))
        yield other, {n: _jitter(x, rng) for n, x in feed.items()}


def _jitter(x: Array, rng: np.random.Generator) -> Array:
    if x.dtype.kind != "f" or not x.size:
        return x
    step = {2: 1e-3}.get(x.dtype.itemsize, 1e-6)
    with np.errstate(all="ignore"):
        return np.asarray(x * (1 + step * rng.uniform(-1, 1, x.shape)), x.dtype)


def _rounded(proto: onnx.ModelProto, feed: Feed) -> Iterator[tuple[onnx.ModelProto, Feed]]:
    """The model with its sums and products off by rounding."""
    names = [n.output[0] for n in proto.graph.node if n.op_type in ROUNDED and not n.domain]
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    found = run_whole(session_of(shown), feed) or []
    known = {n: x for n, x in zip(names, found, strict=False) if x.dtype.name in ROUNDING}
    for trial in range(TRIALS):
        rng = np.random.default_rng(trial)
        other = onnx.ModelProto()
        other.CopyFrom(proto)
        del other.graph.node[:]
        for node in proto.graph.node:
            other.graph.node.append(node)
            name = node.output[0]
            if name in known:
                other.graph.node[-1].output[0] = f"{name}:exact"
                other.graph.initializer.append(_factors(known[name], f"{name}:factor", rng))
                operands = [f"{name}:exact", f"{name}:factor"]
                other.graph.node.append(helper.make_node("Mul", operands, [name]))
        yield other, feed


def _factors(x: Array, name: str, rng: np.random.Generator) -> onnx.TensorProto:
    """Numbers close to 1, as many as a value has."""
    step = ROUNDING[x.dtype.name]
    return onnx.numpy_helper.from_array(
        (1 + rng.uniform(-step, step, x.shape)).astype(x.dtype), name
    )
