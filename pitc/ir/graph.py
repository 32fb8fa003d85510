"""The graph store: an `onnx_ir` model with, for each value name, what is known about it.

Names of values are unique. Everything is keyed by name, so that the graph may be edited after the
analysis.
"""

import copy
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir import target as targets
from pitc.ir.branch import GROUP, groups, path_of, within
from pitc.ir.expr import Shape
from pitc.ir.index import UNDECLARED, ZERO, Digit, Poly, dim_index, poly, sym
from pitc.ir.inference import Dim, Inferred, infer, numpy_type, symbol_text
from pitc.ir.lists import Lists
from pitc.ir.nodes import (
    Array,
    captures,
    constant_of,
    node_name,
    opset_of,
    output_names,
    poly_array,
)
from pitc.ir.quirks import COUNTED_OTHERWISE
from pitc.ir.value import Value, Values
from pitc.ir.view import NodeView, NoRule

__all__ = ["Array", "Graph", "NoRule", "NodeView", "Rest", "node_name", "output_names"]

SMALL = 64  # integer constants up to this many elements are kept as symbolic values
SIZES = (ir.DataType.INT32, ir.DataType.INT64)  # types of what may be a shape
CHUNK = 1 << 22  # elements of a weight looked at in one go
#: By node, operand or output, and digit of it: what goes with that, nothing past a stop.
Steps = dict[tuple[ir.Node, str, Digit], dict[str, list[Digit]]]


@dataclass(frozen=True, slots=True)
class Rest:
    """A size that remains of a Reshape.

    Args:
        place: Its dimension.
        size: What it is where no size is 0.
        broadcasts: Where some are 0, it broadcasts with `size` to that, or the model fails.
    """

    place: int
    size: Poly
    broadcasts: bool


class Graph:
    """Nodes in topological order, and tables of what is known of every value.

    Args:
        model: The model. Its main graph is analysed, with the branches of If nodes opened into it
            (`pitc.ir.branch`); bodies of loops are opaque, but what they capture is listed.
        target: What it is lowered for; None: CPUs.
        types: What `infer` gives of the model, where that is known.

    Attributes:
        nodes: Nodes in topological order, without Constant nodes (their values are constants here).
        inputs: Names of the graph inputs. An initializer that a caller may override is an input.
        outputs: Names of the graph outputs.
        parameters: The inputs that have a default: weights that a caller may override.
        values: What is known of each value, by name.
        noted: Values that have a bit for provenance, in the order of the bits (`note_bit`).
        joins: Dimensions of operands that broadcast in a way that is not known, and the nodes.
        clamps: Sizes that are the smaller one of two.
        parts: Sizes that are not known, and others that they are never larger than.
        copies: Sizes that are the first one of two, or the second where the first is 0.
        rests: Reshapes of which the size that remains may be another one where sizes that they ask
            for are 0.
        demands: Sizes of which nodes refuse 0, and the nodes.
        counts: Sizes that count places of something, and how many places it has.
        lists: Lists of places, with what is known from behind.
        reached: Sizes of which the first is never larger than the second, or the model fails.
        carried: For each loop the shapes that its condition and its carried values keep; None where
            that is not sure.
        bodies: Bodies of loops as graphs of their own, with fill facts.
        tell: Looks into the bodies of a node for shapes of its results, by their places; None where
            nobody wants those.
        assumptions: Named assumptions, and the nodes that need them.
        many_parts: Bools of pairs that are made of many parts.
        steps: How digits pass nodes, found so far (`passes/exprs/coordinates.py`): as they do, and
            along the lines of softmaxes, too. What changes an expression forgets it.
        only_01: The input that facts take for 0 or 1 because the user says so, a padding mask of
            numbers; None where there is none.
    """

    def __init__(
        self,
        model: ir.Model,
        target: targets.Target | None = None,
        types: Mapping[str, Inferred] | None = None,
    ) -> None:
        self.model, self.target = model, target or targets.CPU
        self.nodes: list[ir.Node] = []
        self.values = Values()
        self.noted: list[str] = []
        self.joins: list[tuple[ir.Node, frozenset[Poly]]] = []
        self.clamps: dict[Poly, tuple[Poly, Poly]] = {}
        self.parts: dict[Poly, Poly] = {}
        self.copies: dict[Poly, tuple[Poly, Poly]] = {}
        self.rests: dict[ir.Node, Rest] = {}
        self.demands: list[tuple[ir.Node, Poly]] = []
        self.counts: dict[Poly, Poly] = {}
        self.lists = Lists()
        self.reached: set[tuple[Poly, Poly]] = set()
        self.carried: dict[ir.Node, list[Shape | None]] = {}
        self.bodies: dict[ir.Node, Graph] = {}
        self.tell: Callable[[Graph, ir.Node], Mapping[int, Shape]] | None = None
        self.assumptions: dict[str, list[str]] = {}
        self.only_01: frozenset[str] = frozenset()
        self.many_parts: set[str] = set()
        self._tensors: dict[str, ir.TensorProtocol] = {}
        self._arrays: dict[str, Array] = {}
        self._exceptional: dict[str, frozenset[str]] = {}
        self._lists: dict[str, str] | None = None
        self._splats: dict[str, float | int | None] = {}
        self._inferred = infer(model) if types is None else types
        self.steps: dict[bool, Steps] = {False: {}, True: {}}
        self._count = 0
        self._above: tuple[int, dict[str, int]] = 0, {}

        overridable = {v.name or "" for v in model.graph.inputs if v.is_initializer()}
        self.parameters = frozenset(overridable)
        self.inputs = [v.name or "" for v in model.graph.inputs]
        self.outputs = [v.name or "" for v in model.graph.outputs]
        for name, value in model.graph.initializers.items():
            if value.const_value is not None and name not in overridable:
                self._tensors[name] = value.const_value
        for node in model.graph:
            tensor = constant_of(node)
            if node.op_type == "Constant" and node.domain == "" and tensor is not None:
                self._tensors[node.outputs[0].name or ""] = tensor
            else:
                self.nodes.append(node)
        self._choices = groups(self.nodes)
        self._wire()
        for name, inferred in self._inferred.items():
            self.values[name].dtype = inferred.numpy_dtype
        self._declare()
        for k, name in enumerate(self._computed_names()):
            self.values[name].order = k

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return opset_of(self.model)

    def _wire(self) -> None:
        for node in self.nodes:
            path = path_of(node, self._choices)
            if path is None:  # added to the flat graph: it is where its operands are
                found = (self.values[x.name or ""].branch for x in node.inputs if x is not None)
                path = max(found, key=len, default=())
            for output in output_names(node):
                self.values[output].producer, self.values[output].branch = node, path
            for name in dict.fromkeys(x.name or "" for x in node.inputs if x is not None):
                self.values[name].uses.append(node)
            for name in dict.fromkeys(captures(node)):
                value = self.values[name]
                value.captured = True
                if not any(u is node for u in value.uses):
                    value.uses.append(node)

    def _declare(self) -> None:
        """Shapes, types and small values of inputs and constants."""
        plain = {d.value for v in self.model.graph.inputs for d in _symbols(v) if d.value}
        if self._choices:  # a branch that reads no past gets a mask without one
            plain = set()
        for declared in self.model.graph.inputs:
            name = declared.name or ""
            value = self.values[name]
            if declared.dtype is not None and value.dtype is None:
                value.dtype = np.dtype(declared.dtype.numpy())
            if declared.shape is not None and isinstance(declared.type, ir.TensorType):
                text = symbol_text(name)
                dims = [
                    _declared(d, f"{text}.shape[{k}]", plain) for k, d in enumerate(declared.shape)
                ]
                value.shape = tuple(dims)
        for name, tensor in self._tensors.items():
            value = self.values[name]
            value.shape = tuple(poly(int(d)) for d in tensor.shape)  # type: ignore[arg-type]
            value.dtype = numpy_type(tensor.dtype)
            if value.dtype is not None and value.dtype.kind in "iu" and tensor.size <= SMALL:
                value.ints = poly_array(self._load(name))

    def _computed_names(self) -> Iterator[str]:
        yield from self.inputs
        for node in self.nodes:
            yield from output_names(node)

    def _load(self, name: str) -> Array:
        if name not in self._arrays:
            self._arrays[name] = np.asarray(self._tensors[name].numpy())
        return self._arrays[name]

    def __getitem__(self, name: str) -> Value:
        """What is known of the value of that name."""
        return self.values[name]

    def dtype(self, name: str) -> np.dtype:
        """The element type of a value that has a known one.

        Raises:
            KeyError: It is unknown.
        """
        dtype = self.values[name].dtype
        if dtype is None:
            raise KeyError(name)
        return dtype

    def with_outputs(self, more: Iterable[str]) -> "Graph":
        """The same graph with more outputs, without what is known from behind: dead and slack."""
        twin = copy.copy(self)
        twin.outputs, twin.noted = [*self.outputs, *more], list(self.noted)
        twin.values = Values({name: value.from_before() for name, value in self.values.items()})
        return twin

    def has(self, name: str) -> bool:
        """True for inputs, constants and outputs of nodes."""
        return self.values[name].order >= 0 or name in self._tensors

    def is_constant(self, name: str) -> bool:
        """True for an initializer or Constant that no caller can override."""
        return name in self._tensors

    def constants(self) -> Iterator[str]:
        """Names of all constants."""
        return iter(self._tensors)

    def array(self, name: str) -> Array | None:
        """The value of a constant, else None. Big weights are mapped, not read."""
        return self._load(name) if name in self._tensors else None

    def splat(self, name: str) -> float | int | None:
        """The one value that every element of a non-empty numeric constant has, else None."""
        if name not in self._splats:
            x = self.array(name)
            found = None
            if x is not None and x.size and x.dtype.kind in "biuf":
                first = x.reshape(-1)[0]
                # a few elements decide for nearly every weight
                if (x.reshape(-1)[:: max(1, x.size // 64)] == first).all() and (x == first).all():
                    found = first.item()
            self._splats[name] = found
        return self._splats[name]

    def finite(self, name: str) -> bool:
        """False when the value is a constant that holds Inf or NaN, so that 0 * x is not 0."""
        return not self.exceptional(name)

    def exceptional(self, name: str) -> frozenset[str]:
        """Which of `nan`, `+inf`, `-inf` a constant holds; none for other values."""
        if name not in self._exceptional:
            x = self.array(name)
            found: set[str] = set()
            if x is not None and x.dtype.kind not in "biuSUO":
                flat = x.reshape(-1)
                for k in range(0, flat.size, CHUNK):
                    found |= _exceptions(flat[k : k + CHUNK])
            self._exceptional[name] = frozenset(found)
        return self._exceptional[name]

    def list_of_size(self, symbol: str) -> str | None:
        """The result of the NonZero that is so long; None where there is none."""
        if self._lists is None:
            self._lists = {}
            for node in self.nodes:
                name = node.outputs[0].name or ""
                shape = self[name].shape if node.op_identifier() == ("", "NonZero", "") else None
                size = next(iter(shape[1].symbols()), None) if shape and len(shape) == 2 else None
                if size is not None and shape is not None and shape[1] == sym(size):
                    self._lists[size] = name
        return self._lists.get(symbol)

    def fresh(self) -> Poly:
        """A new size symbol. The size may be 0."""
        self._count += 1
        return sym(f"{UNDECLARED}{self._count}")

    def inferred_shape(self, name: str) -> Shape | None:
        """The shape by ONNX's inference, fresh symbols for sizes without a number; None without a
        rank.
        """
        stated = self._stated(name)
        return None if stated is None else tuple(map(self._size, stated))

    def inferred_dim(self, name: str, dim: int) -> Poly:
        """One size by ONNX's inference, else a fresh symbol."""
        stated = self._stated(name) or ()
        return self._size(stated[dim]) if 0 <= dim < len(stated) else self.fresh()

    def _size(self, d: Dim) -> Poly:
        # that two sizes have one name is not true of a Reshape to a size that turns out as 0
        return poly(d) if isinstance(d, int) else self.fresh()

    def _stated(self, name: str) -> tuple[Dim, ...] | None:
        """Sizes by ONNX's inference, without numbers where it takes an operand for another than it
        is: of some windows it counts another number of places than ONNX Runtime.
        """
        inferred, node = self._inferred.get(name), self.values[name].producer
        if inferred is None or inferred.dims is None:
            return None
        operands = [x.name or "" for x in node.inputs if x is not None] if node is not None else []
        taken = node is None or node.op_type not in COUNTED_OTHERWISE
        taken = taken and all(map(self._as_stated, operands))
        return inferred.dims if taken else (None,) * len(inferred.dims)

    def _as_stated(self, name: str) -> bool:
        """True where inference knows what is known here. It takes elements of a shape for numbers,
        too.
        """
        inferred = self._inferred.get(name)
        if self.is_constant(name) or inferred is None or inferred.dims is None:
            return True
        if inferred.dtype in SIZES and not inferred.dims[1:]:
            return False
        return self.is_as_inferred(name)

    def is_as_inferred(self, name: str) -> bool:
        """True where every size that ONNX's inference has a number for is that number here."""
        inferred, shape = self._inferred.get(name), self.values[name].shape
        if self.is_constant(name) or inferred is None or inferred.dims is None:
            return True
        numbers = [(k, d) for k, d in enumerate(inferred.dims) if isinstance(d, int)]
        return shape is not None and all(shape[k : k + 1] == (poly(d),) for k, d in numbers)

    def index_of(self, name: str) -> tuple[Poly, ...]:
        """The value's own index, one expression per dimension.

        Raises:
            KeyError: Its shape is unknown.
        """
        shape = self.values[name].shape
        if shape is None:
            raise KeyError(name)
        return tuple(dim_index(d, e) for d, e in enumerate(shape))

    def ints(self, name: str) -> Array | None:
        """A small integer tensor as an object array of polynomials, else None."""
        value = self.values[name]
        if value.ints is not None or value.affine is None or value.shape != ():
            return value.ints
        out = np.empty((), object)
        out[()] = value.affine
        return out

    def assume(self, text: str, node: ir.Node) -> None:
        """Note a named assumption that a fact at the node rests on."""
        at = self.assumptions.setdefault(text, [])
        name = node_name(node)
        if name not in at:
            at.append(name)

    def note_bit(self, name: str) -> int:
        """The bit of an input or a node's output, made when it is asked for first.

        Most values of a graph have no facts; bits for all would take space with its square.
        """
        value = self.values[name]
        if not value.bit:
            value.bit = 1 << len(self.noted)
            self.noted.append(name)
        return value.bit

    def descendants(self) -> dict[str, int]:
        """For each value the bits (`Value.bit`) of all values computed from it."""
        below: dict[str, int] = {}
        for node in reversed(self.nodes):
            down = 0
            for name in self._made_with(node):
                down |= below.get(name, 0) | self.values[name].bit
            if not down:
                continue
            for x in node.inputs:
                if x is not None:
                    below[x.name or ""] = below.get(x.name or "", 0) | down
            for name in captures(node):
                below[name] = below.get(name, 0) | down
        return below

    def ancestors(self) -> Mapping[str, int]:
        """For each value the bits (`Value.bit`) of all values it is computed from."""
        count, above = self._above
        if count != len(self.noted):
            above = {}
            for node in self.nodes:
                up = 0
                for name in self._made_from(node):
                    up |= above.get(name, 0) | self.values[name].bit
                if up:
                    above.update(dict.fromkeys(output_names(node), up))
            self._above = len(self.noted), above
        return above

    def sources_of(self, names: Iterable[str], known: Container[str] = ()) -> set[str]:
        """The values, and all that they are computed from; without what is known already, and
        what that is computed from.
        """
        found = {name for name in names if name not in known}
        todo = list(found)
        while todo:
            node = self.values[todo.pop()].producer
            more = () if node is None else self._made_from(node)
            new = {x for x in more if self.values[x].order >= 0 and x not in known} - found
            found |= new
            todo += new
        return found

    def _made_from(self, node: ir.Node) -> Iterator[str]:
        """What the node reads; for a choice all that its whole If reads, which runs as one node."""
        for choice in self._choices.get(node.metadata_props.get(GROUP, ""), [node]):
            yield from (x.name or "" for x in choice.inputs if x is not None)
        yield from captures(node)

    def _made_with(self, node: ir.Node) -> list[str]:
        """The node's outputs; for a choice those of its whole If, which runs as one node."""
        nodes = self._choices.get(node.metadata_props.get(GROUP, ""), [node])
        return [name for n in nodes for name in output_names(n)]

    def visible(self, name: str, at: str) -> bool:
        """True when the value exists wherever another one does: it is not of a branch that may not
        run.
        """
        return within(self.values[at].branch, self.values[name].branch)

    def names_of(self, via: int) -> list[str]:
        """The values of a provenance bit set, in graph order."""
        return chosen(self.noted, via)


def chosen(names: Sequence[str], bits: int) -> list[str]:
    """The names whose bits are set."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(names[lowest.bit_length() - 1])
        bits ^= lowest
    return found


def _exceptions(x: Array) -> set[str]:
    """Which of `nan`, `+inf`, `-inf` occur."""
    finite = np.isfinite(x) if x.dtype.kind in "fc" else np.isfinite(x.astype(np.float32))
    if finite.all():
        return set()
    rest = x[~finite].astype(np.complex64 if x.dtype.kind == "c" else np.float64)
    out = {"nan"} if np.isnan(rest).any() else set()
    out |= {"+inf"} if (rest.real == np.inf).any() else set()
    return out | ({"-inf"} if (rest.real == -np.inf).any() else set())


def _symbols(value: ir.Value) -> Iterator[ir.SymbolicDim]:
    """The dimensions of a value that have a name or none."""
    dims = value.shape if value.shape is not None else ()
    yield from (d for d in dims if isinstance(d, ir.SymbolicDim))


def _declared(d: int | ir.SymbolicDim, name: str, known: Collection[str]) -> Poly:
    """A declared size; negative numbers, which old exporters write, mean an unnamed one.

    A sum of names that inputs have as sizes is one, as exporters write it of a cache:
    `past_sequence_length + sequence_length`. As of sizes of one name, a caller who gives others is
    told so by ONNX Runtime or by the nodes that read them.

    Args:
        d: The size.
        name: That of a size without a name.
        known: Names that inputs have.
    """
    if isinstance(d, int):
        return poly(d) if d >= 0 else sym(name)
    if not d.value:
        return sym(name)
    parts = [part.strip() for part in d.value.split("+")]
    if len(parts) > 1 and all(part in known for part in parts):
        return sum((sym(symbol_text(part)) for part in parts), ZERO)
    return sym(symbol_text(d.value))
