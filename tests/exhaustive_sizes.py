"""Index maps and axes of a node on all small sizes of its symbols.

A node's expression is derived once, for symbols, and proven as `tests.rule_proof` proves it for
every assignment of 0..4 (and, for samples, of the sample's own sizes) to the symbols that ONNX
Runtime accepts; then derived again with some of the sizes as numbers, 1 among them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import onnxruntime.capi.onnxruntime_pybind11_state as ort_errors
from onnx import helper, numpy_helper

from pitc.ir.expr import Combine, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import Poly
from pitc.passes.exprs.derive import derive
from tests.rule_proof import Const, Proof, Sample, array_of, grid, node_model

Array = Any
SIZES = range(5)
RuntimeException = (ort_errors.RuntimeException, ort_errors.InvalidArgument, ort_errors.Fail)
Sizes = Mapping[str, int]
# least sizes for which ONNX Runtime gives a defined result, where that is not 0, and what it does
LEAST = {
    "Einsum": (1, "divides by 0"),
    "STFT": (1, "divides by 0"),
    "MultiHeadAttention": (2, "divides by the size of a head"),
    "RotaryEmbedding": (1, "reads beyond its tables"),
    "RoiAlign": (1, "reads beyond its image"),
    "MatMulInteger": (1, "leaves a sum of no terms unwritten"),
    "QLinearMatMul": (1, "leaves a sum of no terms unwritten"),
    "ConvInteger": (1, "leaves a sum of no terms unwritten"),
    "QLinearConv": (1, "leaves a sum of no terms unwritten"),
}
EVEN = {"RotaryEmbedding"}  # of an odd row ONNX Runtime leaves the last element unwritten
COUNTED = {"Concat"}  # places of an empty operand that does not fit are counted, and not written


@dataclass
class Outcome:
    """What was tried on one node.

    Args:
        wrong: What does not hold, with the sizes, as text.
        proven: Assignments that ONNX Runtime accepts.
        refused: Assignments that it does not.
        left_out: Assignments that were not tried.
    """

    wrong: list[str] = field(default_factory=list)
    proven: int = 0
    refused: int = 0
    left_out: int = 0


class SizedNode:
    """A one-node model whose inputs have symbolic sizes.

    Args:
        model: The model.
        given: Operands that stand for those of the model: their numbers are drawn from them.
    """

    def __init__(self, model: onnx.ModelProto, given: Mapping[str, Array] | None = None) -> None:
        self.model = model
        self.given = dict(given or {})
        self.constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.node = model.graph.node[0]
        self.inputs = {
            v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in model.graph.input
        }
        self.types = {
            v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
            for v in model.graph.input
        }
        self.symbols: dict[str, tuple[int, ...]] = {}
        least, self.own = LEAST.get(self.node.op_type, (0,))[0], dict[str, int]()
        for name, shape in self.inputs.items():
            for k, d in enumerate(shape):
                if isinstance(d, str):
                    self.own[d] = self.given[name].shape[k] if name in self.given else SIZES[-1]
                    self.symbols[d] = tuple(sorted({*SIZES[least:], self.own[d]}))
        row = self.inputs["x0"][-1] if self.inputs.get("x0") else None
        if self.node.op_type in EVEN and isinstance(row, str):
            self.symbols[row] = tuple(n for n in self.symbols[row] if n % 2 == 0)

    @cached_property
    def session(self) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        return ort.InferenceSession(
            self._exposed().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def _exposed(self) -> onnx.ModelProto:
        """The model with constants that expressions read as inputs, so that they may be changed."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        kept = [t for t in model.graph.initializer if t.name not in self.free]
        for t in model.graph.initializer:
            if t.name in self.free:
                info = helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
                model.graph.input.append(info)
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
        return model

    @cached_property
    def free(self) -> set[str]:
        """Constants that an expression reads by an index map."""
        names, known = list(self.node.input), self.graph({}).values.values()
        read = {r.operand for x in known if x.expr is not None for r in x.expr.reads}
        return {name for i, name in enumerate(names) if i in read and name in self.constants}

    @property
    def fixed(self) -> set[str]:
        """Constants that stay so."""
        return self.constants.keys() - self.free

    def graph(self, static: Sizes) -> Graph:
        """The model's graph, derived with some sizes as numbers."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for value in model.graph.input:
            for d in value.type.tensor_type.shape.dim:
                if d.dim_param in static:
                    d.dim_value = static[d.dim_param]
        graph = Graph(ir.serde.deserialize_model(model))
        derive(graph)
        return graph

    def assignments(self, most: int) -> tuple[list[dict[str, int]], int]:
        """All sizes of the symbols, or a spread of them; and how many were left out."""
        sizes = list(self.symbols.values())
        count = prod(map(len, sizes))
        if count <= most:
            every = list(product(*sizes))
        else:
            equal = [(n,) * len(sizes) for n in SIZES if all(n in found for found in sizes)]
            first = dict.fromkeys([*equal, tuple(self.own.values())])
            rng = np.random.default_rng(count)
            while len(first) < most:
                first[tuple(int(rng.choice(found)) for found in sizes)] = None
            every = list(first)
        return [dict(zip(self.symbols, e, strict=True)) for e in every], count - len(every)

    def operands(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
        """Operands of some sizes: first of any numbers, then of places that are always there."""
        for limit in (None, 1):
            out = {}
            for name, dims in self.inputs.items():
                shape = [sizes.get(d, d) if isinstance(d, str) else d for d in dims]
                out[name] = self._draw(name, shape, limit, rng)
            yield out

    def _draw(self, name: str, shape: list[Any], limit: int | None, rng: Any) -> Array:
        dtype, given = self.types[name], self.given.get(name)
        if dtype.kind == "b":
            return np.asarray(rng.random(shape) < 0.5)
        if dtype.kind == "f":
            low = 0.5 if given is not None and given.size and given.min() > 0 else -2.0
            return np.asarray(rng.uniform(low, 2.0, shape), dtype)
        if limit is not None:
            return np.asarray(rng.integers(0, limit, shape), dtype)
        if given is not None and given.size:
            return np.asarray(rng.choice(given.reshape(-1), shape), dtype)
        return np.asarray(rng.integers(0, 4, shape), dtype)


class SizedProof(Proof):
    """The proof of a node with operands of one assignment of sizes.

    Args:
        node: The node.
        graph: Its derived graph; sizes that are numbers there have these values.
        operands: The operands.
        sizes: The assignment.

    Raises:
        Exception: ONNX Runtime refuses the operands.
    """

    def __init__(self, node: SizedNode, graph: Graph, operands: dict[str, Array], sizes: Sizes):
        names = list(node.node.input)
        self.node, self.graph, self.given = node, graph, sizes
        self.outputs = list(node.node.output)
        self.exprs = [graph[name].expr for name in self.outputs]
        every = node.constants | operands
        self.values = {i: every[name] for i, name in enumerate(names) if name}
        self.sample = Sample(
            node.node.op_type, tuple(self.values.get(i) for i in range(len(names)))
        )
        self.fixed = [i for i, name in enumerate(names) if name and name in node.fixed]
        self.result = self.run({})

    def run(self, changed: dict[int, Array]) -> list[Array]:
        """Outputs with some operands replaced."""
        values = self.values | changed
        feed = {f"x{i}": x for i, x in values.items() if i not in self.fixed}
        return self.node.session.run(None, feed)  # type: ignore[no-any-return]

    def sizes(self, k: int) -> dict[str, int]:
        """Sizes of all symbols in the expression of output k."""
        known = dict(self.given)
        expr = self.exprs[k]
        assert expr is not None
        for extent, n in zip(expr.shape, self.result[k].shape, strict=True):
            for name in extent.symbols() - set(known):
                if extent == Poly({(name,): 1}):
                    known[name] = n
        return known

    def _marks(
        self, expr: TensorExpr, point: tuple[int, ...], sizes: dict[str, int]
    ) -> dict[int, Array]:
        """What a point reads beside the terms of a sum, it also reads where the sum has none."""
        marks = super()._marks(expr, point, sizes)
        rank, index = len(expr.shape), {d: np.array(v) for d, v in enumerate(point)}
        for read in expr.reads:
            places = [*read.index, *(p for t in read.within for p in t.idx)]
            if not any(p and any(d.dim >= rank for d in p.digits()) for p in places):
                ok = self._holds(read.within, sizes, index)
                self._mark(marks[read.operand], read, sizes, index, np.asarray(ok))
        return marks

    def moved(self, k: int, expr: TensorExpr) -> list[str]:
        """What a MOVE says of every element, where its places do not depend on data."""
        sizes, y = self.sizes(k), self.result[k]
        reads = [r for r in expr.reads if None not in r.index and (r.operand == 0 or r.within)]
        if not y.size or len(reads) < len(expr.reads):
            return []
        index, covered = grid(y.shape), np.zeros(y.shape, int)
        for read in reads:
            x = self.values[read.operand]
            ok = np.broadcast_to(self._holds(read.within, sizes, index), y.shape)
            covered += ok
            at = [
                np.broadcast_to(np.asarray(p.evaluate(sizes, index)), y.shape)[ok]
                for p in read.index
                if p is not None
            ]
            if any(
                a.size and (a.min() < 0 or a.max() >= n) for a, n in zip(at, x.shape, strict=True)
            ):
                return [f"operand {read.operand} is read outside of {x.shape}"]
            if not np.array_equal(x[tuple(at)] if at else np.broadcast_to(x, y.shape)[ok], y[ok]):
                return [f"operand {read.operand} is not at its index"]
        return [] if (covered == 1).all() else ["a point is read never or twice"]

    def wrong(self, seed: int) -> list[str]:
        """What does not hold, as text."""
        expr, given = self.exprs[0], sum(x.size for x in self.values.values())
        if self.sample.op in COUNTED and expr is not None and self.result[0].size > given:
            return self._shape(0, expr)
        found = self.failures(seed, tight=False)
        if not found:
            for k, expr in enumerate(self.exprs):
                if expr is not None and expr.combine is Combine.MOVE:
                    found += self.moved(k, expr)
        return found


# operators whose result ONNX Runtime leaves unwritten where the axis that they sum over is empty
UNWRITTEN = {"MatMulIntegerToFloat", "QGemm", "DynamicQuantizeMatMul"}


def _unwritten(node: SizedNode, sizes: dict[str, int]) -> bool:
    if node.node.op_type not in UNWRITTEN:
        return False
    graph = node.graph(sizes)
    exprs = [graph[name].expr for name in node.node.output]
    return any(e is not None and 0 in [n.as_int() for n in e.reduced] for e in exprs)


def prove(node: SizedNode, most: int, static: int = 0, first: bool = False) -> Outcome:
    """Prove a node on the sizes of its symbols.

    Args:
        node: The node.
        most: How many assignments are tried at most.
        static: How many of them are derived again with sizes as numbers.
        first: Stop where something is wrong.
    """
    out, rng = Outcome(), np.random.default_rng(1)
    symbolic = node.graph({})
    assignments, out.left_out = node.assignments(most)
    repeat = set(rng.permutation(len(assignments))[:static].tolist())
    for number, sizes in enumerate(assignments):
        if _unwritten(node, sizes):
            continue
        graphs = [symbolic]
        if number in repeat:
            graphs += [node.graph(sizes), node.graph(dict(list(sizes.items())[number % 2 :: 2]))]
        accepted = False
        for graph in graphs:
            for operands in node.operands(sizes, rng):
                try:
                    wrong = SizedProof(node, graph, operands, sizes).wrong(number)
                except RuntimeException:  # sizes that do not go together, or places out of range
                    continue
                accepted = True
                out.wrong += [f"{sizes}: {text}" for text in wrong]
                break
        out.proven += accepted
        out.refused += not accepted
        if first and out.wrong:
            break
    return out


def sized_sample(sample: Sample) -> SizedNode:
    """A sample with its extents as symbols."""
    constant = [i for i, o in enumerate(sample.operands) if isinstance(o, Const)]
    given = {f"x{i}": array_of(o) for i, o in enumerate(sample.operands) if o is not None}
    return SizedNode(node_model(sample, constant, symbolic=True), given)
