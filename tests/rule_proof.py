"""The proof of a rule: one-node models, derived expressions, and ONNX Runtime as the judge.

For one node, `failures` checks that
(a) the expression's shapes are the real ones,
(b) along every claimed PIT axis, to permute the operands permutes the output (spatial axis), or
    keeps it (reduced axis),
(c) along every other axis some permutation does not, unless `EXCEPTIONS` has a reason,
(d) to overwrite what an output point does not read leaves the point as it is, and to overwrite
    `absent` elements moves nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper, numpy_helper

from pitc.ir.branch import DOMAIN, choice_function
from pitc.ir.expr import Axis, Read, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, Poly, atom
from pitc.ir.region import Region, Test
from pitc.passes.exprs.derive import derive

Array = Any
OPSET = 21
RTOL, ATOL = 2e-5, 2e-6  # float32 sums in another order
RTOL_HALF, ATOL_HALF = 1e-2, 2e-3  # float16 ones
COUNTER_EXAMPLES = 6  # permutations tried before an axis counts as invariant
POINTS = 3  # output points whose reads are checked

# (operator, axis) that are not claimed although no permutation changes the result
EXCEPTIONS = frozenset(
    {
        # softmax over keys is invariant, but normalised lines are not PIT by the grammar
        ("MultiHeadAttention", "r1"),
        ("Attention", "r1"),
        # without a mask queries and keys, rows of one operand, may be permuted together
        ("Attention", "o1"),
    }
)


@dataclass(frozen=True)
class Const:
    """An operand that the compiler sees as a constant."""

    value: Array


@dataclass(frozen=True, eq=False)
class Sample:
    """One node with operands.

    Args:
        op: Operator type.
        operands: Arrays, `Const`s, or None for an absent input.
        attributes: Attributes of the node.
        domain: Operator domain.
        opset: Version of the standard operator set.
        outputs: Number of outputs.
        symbolic: The node has a rule when its run-time operands' extents are symbols, too.
    """

    op: str
    operands: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    opset: int = OPSET
    outputs: int = 1
    symbolic: bool = True

    @property
    def title(self) -> str:
        """The node as text, for test ids."""
        shapes = ",".join(
            "-" if o is None else str(list(array_of(o).shape)).replace(" ", "")
            for o in self.operands
        )
        attributes = ",".join(f"{k}={_short(v)}" for k, v in self.attributes.items())
        return f"{self.op}({shapes}){{{attributes}}}@{self.opset}"


def _short(value: Any) -> str:
    text = str(value).replace(" ", "")
    return text if len(text) < 24 else text[:21] + "..."


def array_of(operand: Any) -> Array:
    """The array of an operand, constant or not."""
    return operand.value if isinstance(operand, Const) else operand


def node_model(sample: Sample, constant: Sequence[int], symbolic: bool) -> onnx.ModelProto:
    """A one-node model whose operands in `constant` are initializers, the others graph inputs."""
    names = ["" if o is None else f"x{i}" for i, o in enumerate(sample.operands)]
    inputs, initializers = [], []
    for i, operand in enumerate(sample.operands):
        if operand is None:
            continue
        x = array_of(operand)
        if i in constant:
            initializers.append(numpy_helper.from_array(x, names[i]))
            continue
        dims = [f"n{n}" if symbolic and n > 1 else n for n in x.shape]
        dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
        inputs.append(helper.make_tensor_value_info(names[i], dtype, dims))
    outputs = [f"y{k}" for k in range(sample.outputs)]
    node = helper.make_node(
        sample.op, names, outputs, name="node", domain=sample.domain, **sample.attributes
    )
    infos = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "sample", inputs, infos, initializers)
    opsets = [helper.make_opsetid("", sample.opset)]
    opsets += [helper.make_opsetid(sample.domain, 1)] if sample.domain else []
    functions = [ir.to_proto(choice_function(sample.opset))] if sample.domain == DOMAIN else []
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def analysed(sample: Sample, symbolic: bool = False) -> Graph:
    """The graph of the sample, with expressions derived."""
    constant = [i for i, o in enumerate(sample.operands) if isinstance(o, Const)]
    graph = Graph(ir.serde.deserialize_model(node_model(sample, constant, symbolic)))
    derive(graph)
    return graph


@cache
def _session(sample: Sample, constant: tuple[int, ...]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    model = node_model(sample, constant, symbolic=False).SerializeToString()
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Proof:
    """One sample: its expressions, and runs with changed operands.

    Args:
        sample: The node.
        symbolic: Derive the expressions for symbolic extents.
    """

    def __init__(self, sample: Sample, symbolic: bool = False) -> None:
        self.sample = sample
        self.graph = analysed(sample, symbolic)
        self.exprs = [self.graph[f"y{k}"].expr for k in range(sample.outputs)]
        self.values = {i: array_of(o) for i, o in enumerate(sample.operands) if o is not None}
        read = {r.operand for e in self.exprs if e is not None for r in e.reads}
        self.constant = tuple(
            i for i, o in enumerate(sample.operands) if isinstance(o, Const) and i not in read
        )
        self.result = self.run({})

    def run(self, changed: dict[int, Array]) -> list[Array]:
        """Outputs with some operands replaced."""
        values = self.values | changed
        feed = {f"x{i}": x for i, x in values.items() if i not in self.constant}
        return _session(self.sample, self.constant).run(None, feed)  # type: ignore[no-any-return]

    def sizes(self, k: int) -> dict[str, int]:
        """Sizes of all symbols in the expression of output k."""
        expr = self.exprs[k]
        assert expr is not None
        known = {f"n{n}": n for x in self.values.values() for n in x.shape}
        for extent, n in zip(expr.shape, self.result[k].shape, strict=True):
            for name in extent.symbols() - set(known):
                if extent == Poly({(name,): 1}):
                    known[name] = n
        return known

    def failures(self, seed: int, tight: bool = True) -> list[str]:
        """What does not hold, as text; empty when everything holds.

        Args:
            seed: Of the permutations and of the noise.
            tight: Ask for a counter-example along every axis that is not claimed, too.
        """
        rng = np.random.default_rng(seed)
        out = []
        for k, expr in enumerate(self.exprs):
            if expr is None:
                why = self.graph[f"y{k}"].unruled
                out.append(f"y{k} has no expression: {why}")
                continue
            out += [f"y{k}: {text}" for text in self._shape(k, expr)]
            if not out:
                out += [f"y{k}: {text}" for text in self._axes(k, expr, rng, tight)]
                out += [f"y{k}: {text}" for text in self._reads(k, expr, rng)]
        return out

    def _shape(self, k: int, expr: TensorExpr) -> list[str]:
        if len(expr.shape) != self.result[k].ndim:
            return [f"rank {len(expr.shape)} is {self.result[k].ndim}"]
        sizes = self.sizes(k)
        shape = tuple(int(p.evaluate(sizes, {})) for p in expr.shape)
        return [] if shape == self.result[k].shape else [f"shape {shape} is {self.result[k].shape}"]

    def _axes(self, k: int, expr: TensorExpr, rng: np.random.Generator, tight: bool) -> list[str]:
        sizes, out = self.sizes(k), []
        claimed = {axis.name for axis in expr.pit_axes()}
        for a, axis in enumerate(expr.axes):
            n = int(axis.extent.evaluate(sizes, {}))
            if n < 2:
                continue
            places = bare_places(expr, a, axis)
            if axis.name in claimed:
                order = rng.permutation(n)
                if not self._permutes(k, a, axis, places, order):
                    out.append(f"{axis.name} is not PIT: {order} gives another result")
                continue
            if (
                not tight
                or (self.sample.op, axis.name) in EXCEPTIONS
                or not (axis.spatial or places)
            ):
                continue  # a reduced axis that no operand has bare cannot be permuted at all
            orders = [rng.permutation(n) for _ in range(COUNTER_EXAMPLES)]
            orders.append(np.roll(np.arange(n), 1))
            if all(self._permutes(k, a, axis, places, order) for order in orders):
                out.append(f"{axis.name} looks PIT but is not claimed")
        return out

    def _permutes(
        self, k: int, a: int, axis: Axis, places: set[tuple[int, int]], order: Array
    ) -> bool:
        """Does the operands' permutation along their places permute (or keep) the output?"""
        changed: dict[int, Array] = {}
        for i, j in sorted(places):
            x = changed.get(i, self.values[i])
            if x.shape[j] < len(order):
                return False
            # an operand that is longer than the axis keeps its further elements
            where = np.concatenate([order, np.arange(len(order), x.shape[j])]).astype(np.int64)
            changed[i] = np.take(x, where, axis=j)
        try:
            got = self.run(changed)[k]
        except Exception:
            return False
        expected = self.result[k]
        return same(got, np.take(expected, order, axis=a) if axis.spatial else expected)

    def _reads(self, k: int, expr: TensorExpr, rng: np.random.Generator) -> list[str]:
        sizes, out = self.sizes(k), []
        y = self.result[k]
        if not expr.reads or not y.size:
            return out
        for _ in range(POINTS):
            point = tuple(int(rng.integers(n)) for n in y.shape)
            try:
                marks = self._marks(expr, point, sizes)
            except IndexError as error:
                return [f"a read of point {point} is out of range: {error}"]
            changed = {
                i: np.where(mark, self.values[i], noise(self.values[i], rng))
                for i, mark in marks.items()
            }
            if not same(self.run(changed)[k][point], y[point]):
                out.append(f"point {point} changes with elements that it does not read")
        changed = {}
        for i in {r.operand for r in expr.reads}:
            x = self.values[i]
            mark, index = np.ones(x.shape, bool), grid(x.shape)
            for read in expr.reads:
                if read.operand == i:  # what one of several reads does not read is no more absent
                    held = [self._holds(region, sizes, index) for region in read.absent]
                    mark &= reduce(np.logical_or, held, np.False_)
            if mark.any():
                changed[i] = np.where(mark, noise(x, rng), x)
        if changed and not same(self.run(changed)[k], y):
            out.append("an absent element moves the output")
        return out

    def _marks(
        self, expr: TensorExpr, point: tuple[int, ...], sizes: dict[str, int]
    ) -> dict[int, Array]:
        """For each operand, which elements one output point reads."""
        marks: dict[int, Array] = {}
        reduced = [int(e.evaluate(sizes, {})) for e in expr.reduced]
        index: dict[int, Any] = {d: np.full(reduced, v) for d, v in enumerate(point)}
        for d, axis in grid(reduced).items():
            index[len(point) + d] = np.broadcast_to(axis, reduced)
        for read in expr.reads:
            x = self.values[read.operand]
            mark = marks.setdefault(read.operand, np.zeros(x.shape, bool))
            ok = np.broadcast_to(self._holds(read.within, sizes, index), reduced)
            self._mark(mark, read, sizes, index, ok)
        return marks

    def _mark(
        self, mark: Array, read: Read, sizes: dict[str, int], index: dict[int, Any], ok: Array
    ) -> None:
        columns: list[Array | slice] = []
        for j, p in enumerate(read.index):
            if p is None:
                columns.append(slice(None))
                continue
            at = np.broadcast_to(np.asarray(p.evaluate(sizes, index)), ok.shape)[ok]
            if at.size and (at.min() < 0 or at.max() >= mark.shape[j]):
                raise IndexError(f"operand {read.operand}, dimension {j}: {p}")
            columns.append(at.reshape(-1))
        if ok.any():
            mark[tuple(columns)] = True

    def _holds(self, region: Region, sizes: dict[str, int], index: dict[int, Any]) -> Array:
        ok: Array = np.True_
        for test in region:
            ok = ok & self._test(test, sizes, index)
        return ok

    def _test(self, test: Test, sizes: dict[str, int], index: dict[int, Any]) -> Array:
        """With "for some" over the bound dimensions, and "for all" around it."""
        some, every = (self._bound(test, dims, sizes) for dims in (test.somes, test.alls))
        found: Array = np.True_
        for outer in every:
            inner: Array = np.False_
            for places in some:
                inner = inner | self._at(test, sizes, index | outer | places)
            found = found & inner
        return found

    def _bound(
        self, test: Test, dims: Iterable[int], sizes: dict[str, int]
    ) -> list[dict[int, Any]]:
        """All places along some dimensions that a test binds."""
        digits = [a for p in test.idx for a in p.digits()]
        extents = {
            d: max(int((a.stride * a.extent).evaluate(sizes, {})) for a in digits if a.dim == d)
            for d in dims
        }
        every = product(*map(range, extents.values()))
        return [{d: np.array(n) for d, n in zip(extents, e, strict=True)} for e in every]

    def _at(self, test: Test, sizes: dict[str, int], index: dict[int, Any]) -> Array:
        at = [np.asarray(p.evaluate(sizes, index)) for p in test.idx]
        if test.pred == "pos":
            return at[0] >= 0
        x = self.values[int(test.src[1:])]
        if test.pred == "below":
            return (at[-1] < x[tuple(at[:-1])]) == test.yes
        return ((x[tuple(at)] != 0) if test.pred == "nz" else (x[tuple(at)] <= -1e4)) == test.yes


def grid(shape: Sequence[int]) -> dict[int, Array]:
    """Open index arrays of a shape, by dimension."""
    return dict(enumerate(np.ogrid[tuple(slice(0, n) for n in shape)])) if len(shape) else {}


def bare_places(expr: TensorExpr, a: int, axis: Axis) -> set[tuple[int, int]]:
    """The (operand, dimension) pairs that axis a indexes bare."""
    if axis.extent == ONE:
        return set()
    bare = atom(Digit(a, ONE, axis.extent))
    return {(r.operand, j) for r in expr.reads for j, p in enumerate(r.index) if p == bare}


def noise(x: Array, rng: np.random.Generator) -> Array:
    """Other values of the same type; integers stay among those that occur (valid indices)."""
    if x.dtype.kind == "f":
        return rng.normal(size=x.shape).astype(x.dtype)
    if x.dtype.kind == "b":
        return rng.random(x.shape) < 0.5
    return rng.choice(x.reshape(-1), x.shape) if x.size else x


def same(a: Array, b: Array) -> bool:
    """Equal up to the order of float sums."""
    if a.shape != b.shape:
        return False
    if np.array_equal(a, b):  # mostly they are, and this is quick
        return True
    if a.dtype.kind != "f":
        return False
    rtol, atol = (RTOL_HALF, ATOL_HALF) if a.dtype == np.float16 else (RTOL, ATOL)
    return bool(np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True))
