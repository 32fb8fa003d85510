"""Adds nodes and constants to a graph, with unique names and one copy of equal small values."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from pitc.ir.build import NodeBuilder
from pitc.ir.graph import Graph
from pitc.ir.index import Poly
from pitc.ir.metadata import RULE, SOURCE, VALUE
from pitc.ir.nodes import PACKED, PLAN, Array
from pitc.ir.plans.base import Plan
from pitc.ir.since import Since
from pitc.ir.sizes import dimension_of_size
from pitc.ir.widened import lazy
from pitc.passes.regions.matrix import Dims, dims_of

MOVERS = ("detect", "pack", "unpack", "region")  # they are not of one node


def declared(dims: Dims) -> ir.Shape:
    """Dimensions as a value declares them: without a name where a size is none, such as b*s."""
    plain = (d if isinstance(d, int) or (d and d.isidentifier()) else None for d in dims)
    return ir.Shape(list(plain))


def lead_of(graph: Graph, value: ir.Value) -> Dims | None:
    """The dimensions of a value's rows: all but the last."""
    dims = dims_of(graph, value)
    return None if dims is None else dims[:-1]


class Builder(NodeBuilder):
    """Appends nodes to the main graph of an analysed model; the order is mended afterwards by a
    topological sort.

    Args:
        graph: The analysed graph.
        prefix: Prefix of all new names.

    Attributes:
        made: All nodes that were appended.
    """

    def __init__(self, graph: Graph, prefix: str = "pitc") -> None:
        super().__init__(graph.model.graph, prefix)
        self._graph = graph
        main = graph.model.graph
        self._values: dict[str, ir.Value] = {v.name or "": v for v in main.inputs}
        self._values |= dict(main.initializers)
        for node in main:
            self._values |= {o.name: o for o in node.outputs if o.name}
        self.made: set[ir.Node] = set()

    def insert(self, node: ir.Node) -> None:
        """Append a new node."""
        super().insert(node)
        self.made.add(node)

    def has(self, name: str) -> bool:
        """Whether the graph has a value of that name; a body reads others from outside."""
        return name in self._values

    def value(self, name: str) -> ir.Value:
        """The value of that name as it is wanted whole."""
        return self._values[name]

    def rebind(self, name: str, value: ir.Value) -> None:
        """From now on the whole value of that name is another one (an SWrite's result)."""
        self._values[name] = value

    def symbol(self, stem: str) -> str:
        """A name for a size: bodies are rewritten by themselves, and sizes in them are others."""
        return f"{self.prefix}_{stem}".replace(".", "_")

    def label(self, of: str, how: str) -> str:
        """A name that nothing in the graph has, for a node that tells what it does of another one.

        >>> build.label("/layer.0/MatMul", "packed contract")
        '/layer.0/MatMul [packed contract]'
        """
        return self.names.unique(f"{of} [{how}]", 1)

    def kernel(
        self,
        plan: Plan,
        inputs: Sequence[ir.Value],
        outputs: Sequence[tuple[str, ir.DataType, Dims | None]],
        of: str,
        how: str = "",
    ) -> tuple[ir.Value, ...]:
        """Append a packed node (`packed.py`).

        Args:
            plan: What it does.
            inputs: Its operands.
            outputs: Stems of their names, types, and their shapes (`docs/plans.md`).
            of: The node of the source graph that it computes, or the value that it moves.
            how: What it does of that, for people; empty: the plan's operation.
        """
        name = self.label(of, how or plan.op)
        kind, stems = type(plan).__name__, [stem for stem, *_ in outputs]
        made = self.node(PACKED, kind, inputs, {}, stems, name)
        node = made[0].producer()
        assert node is not None
        node.meta[PLAN] = plan
        node.metadata_props.update({VALUE if plan.op in MOVERS else SOURCE: of, RULE: plan.op})
        for value, (_, dtype, shape) in zip(made, outputs, strict=True):
            value.type = ir.TensorType(dtype)
            value.shape = None if shape is None else declared(shape)
        return made

    def lazy_constant(
        self,
        stem: str,
        make: Callable[[], Array],
        shape: Sequence[int],
        dtype: ir.DataType = ir.DataType.FLOAT,
        *,
        halves: bool = False,
    ) -> ir.Value:
        """An initializer that is computed when it is written.

        Args:
            stem: Of its name.
            make: Gives the numbers.
            shape: Its dimensions.
            dtype: Its type.
            halves: The numbers are float16's, of a float32 constant.
        """
        dims = ir.Shape(list(shape))
        return self.initializer(lazy(make, dtype, dims, self.unique(stem), halves=halves))

    def concat(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Join int64 vectors."""
        if not parts:
            return self.constant(np.zeros(0, np.int64))
        return parts[0] if len(parts) == 1 else self.op("Concat", parts, axis=0)

    def dimension(self, name: str, d: int) -> ir.Value:
        """One size of a value as int64 [1]."""
        shape = self.op("Shape", [self.value(name)])
        return self.op("Gather", [shape, self.constant(np.asarray([d], np.int64))], axis=0)

    def scalar(self, x: ir.Value) -> ir.Value:
        """A one-element vector as a scalar."""
        return self.op("Reshape", [x, self.constant(np.zeros(0, np.int64))])

    def reshape(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Reshape; 0 keeps the dimension at that place."""
        out = self.op("Reshape", [x, self.constant(np.asarray(shape, np.int64))])
        if x.type is not None:
            out.type = x.type
        if x.shape is not None:
            kept = [x.shape[d] if n == 0 else n for d, n in enumerate(shape)]
            out.shape = ir.Shape([None if n == -1 else n for n in kept])
        return out

    def reshape_to(self, x: ir.Value, sizes: Sequence[ir.Value]) -> ir.Value:
        """Reshape to run-time sizes, of which any may be 0 where the operator set can say so."""
        if self.opset < Since.ZERO_SIZES:
            return self.op("Reshape", [x, self.concat(sizes)])
        return self.op("Reshape", [x, self.concat(sizes)], allowzero=1)

    def squeeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Drop dimensions of extent 1, if any."""
        return self.along("Squeeze", x, axes) if axes else x

    def reduce(self, op_type: str, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Reduce over axes and drop them."""
        return self.along(op_type, x, axes, keepdims=0)

    def size(self, extent: Poly) -> ir.Value:
        """A run-time size as int64 [1], from numbers and dimensions of values.

        Raises:
            ValueError: No value is known to have a dimension of a size that occurs in it (see
                `sizes_known`).
        """
        total: ir.Value | None = None
        for monomial, factor in extent.terms.items():
            term = self.constant(np.asarray([factor], np.int64))
            for symbol in monomial:
                place = dimension_of_size(self._graph, symbol) if isinstance(symbol, str) else None
                if place is None:
                    raise ValueError(f"no value has a dimension of size {symbol}")
                size = self.dimension(*place)
                term = size if len(monomial) == factor == 1 else self.op("Mul", [term, size])
            total = term if total is None else self.op("Add", [total, term])
        return self.constant(np.zeros(1, np.int64)) if total is None else total

    def sizes(self, extents: Iterable[Poly]) -> list[ir.Value]:
        """Run-time sizes, each as `size` gives it."""
        return [self.size(e) for e in extents]

    def coordinate(self, size: ir.Value, place: int, rank: int) -> ir.Value:
        """0..size-1 along dimension `place` of a grid of the given rank."""
        zero, one = (self.constant(np.asarray(n, np.int64)) for n in (0, 1))
        line = self.op("Range", [zero, self.scalar(size), one])
        return self.reshape(line, [1 if d != place else -1 for d in range(rank)])
