"""How probes are written down: a graph, its feeds, and what may excuse a difference.

`Net` builds graphs by operator name, with numbers where constants are meant:

    y = g.Add(g.Relu(x), 1.0)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models.graph import GraphBuilder, element_type

Array = Any
Feed = Mapping[str, Array]
D, WIDE, HEADS = 64, 256, 4  # products of 64 x 256: large enough to be lowered


@dataclass(frozen=True, slots=True)
class Probe:
    """A model that pitc must compile to the same function.

    Args:
        model: The model, built at first use.
        feeds: Inputs by name, one mapping for each run.
        padding: The mask given as `padding=`, if any.
        token_shaped: Outputs that may be 0 where that mask is; with `padding` only.
        assumes: Part of an assumption; if the report names such a one, differences are excused.
    """

    model: onnx.ModelProto
    feeds: Sequence[Feed]
    padding: str | None = None
    token_shaped: tuple[str, ...] = ()
    assumes: str = ""


Maker = Callable[[], Probe]


@dataclass(slots=True)
class Table:
    """The probes of one family, by name.

    Args:
        family: Its name, the first part of every probe's.
    """

    family: str
    makers: dict[str, Maker] = field(default_factory=dict)

    def add(self, name: str, maker: Maker) -> None:
        """Note one more probe."""
        full = f"{self.family}.{name}"
        if full in self.makers:
            raise ValueError(f"two probes are called {full}")
        self.makers[full] = maker

    def probe(self, name: str = "") -> Callable[[Maker], Maker]:
        """Note a function that makes a probe; its name is the function's without other."""

        def register(maker: Maker) -> Maker:
            self.add(name or maker.__name__, maker)
            return maker

        return register


class Net(GraphBuilder):
    """A graph whose nodes are made by methods called as their operators are.

    Args:
        opset: Version of the standard operator set; older than 13 is fine.
        name: Name of the graph.
    """

    def __init__(self, opset: int = 17, name: str = "probe") -> None:
        super().__init__(name, max(opset, 13))
        self.opset = opset
        self.outer: Net | None = None
        self.used = 0

    def __getattr__(self, op_type: str) -> Callable[..., str]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return lambda *inputs, **attributes: self.op(op_type, *inputs, **attributes)

    @property
    def root(self) -> "Net":
        """The main graph."""
        return self if self.outer is None else self.outer.root

    def value(self, x: Any) -> str:
        """An operand: a value's name, a number (float32), or integers (int64)."""
        if isinstance(x, str):
            return x
        if isinstance(x, np.ndarray | np.generic):
            return self.const(x, np.asarray(x).dtype)
        whole = isinstance(x, list | tuple) and all(isinstance(i, int) for i in x)
        return self.const(x, np.int64 if whole else np.float32)

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        """A constant of the main graph."""
        return super().const(value, dtype) if self.outer is None else self.root.const(value, dtype)

    def weight(self, name: str, array: Array) -> str:
        """A weight of the main graph."""
        return super().weight(name, array) if self.outer is None else self.root.weight(name, array)

    def op(self, op_type: str, *inputs: Any, domain: str = "", **attributes: Any) -> str:
        """Add a node; the name of its first output."""
        return self.several(op_type, 1, *inputs, domain=domain, **attributes)[0]

    def several(
        self, op_type: str, count: int, *inputs: Any, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with several outputs."""
        operands = [self.value(x) for x in inputs]
        root = self.root
        root.used += 1
        root._domains.add(domain)
        names = [f"{op_type.lower()}_{root.used}" + (f"_{k}" if k else "") for k in range(count)]
        node = helper.make_node(op_type, operands, names, names[0], domain=domain, **attributes)
        self._nodes.append(node)
        return names

    def cast(self, x: Any, dtype: Any) -> str:
        """A Cast; the type may be an ONNX number."""
        to = dtype if isinstance(dtype, int) else element_type(dtype)
        return self.op("Cast", x, to=to)

    def take(self, x: str, *places: int | slice) -> str:
        """A slice of leading dimensions, without steps."""
        for axis, p in enumerate(places):
            if p != slice(None):
                start, end = (p, p + 1) if isinstance(p, int) else (p.start or 0, p.stop)
                x = self.op("Slice", x, [start], [1 << 40 if end is None else end], [axis])
        return x

    def matrix(self, k: int, n: int, seed: int = 0, dtype: Any = np.float32) -> str:
        """A dense weight."""
        rng = np.random.default_rng(1000 * k + n + 7 * seed)
        w = rng.normal(0, k**-0.5, (k, n)).astype(dtype)
        return self.weight(f"w{k}x{n}_{seed}_{np.dtype(dtype).name}", w)

    def linear(self, x: str, k: int = D, n: int = D, seed: int = 0) -> str:
        """A dense layer without bias."""
        return self.op("MatMul", x, self.matrix(k, n, seed))

    def mlp(self, x: str, seed: int = 0) -> str:
        """Three dense layers, so wide that leaving out rows pays, behind a live operand too."""
        h = self.op("Tanh", self.linear(x, D, WIDE, seed))
        h = self.op("Tanh", self.linear(h, WIDE, WIDE, seed))
        return self.linear(h, WIDE, D, seed + 1)

    def body(
        self,
        make: Callable[..., Sequence[str]],
        inputs: Sequence[tuple[str, Any, Any]] = (),
        results: Sequence[Any] | None = None,
    ) -> onnx.GraphProto:
        """A body: `make` gets the builder and its inputs' names, and gives its results.

        Args:
            make: Builds the nodes.
            inputs: Name, type, shape of each input.
            results: Type of each result; None for float32.
        """
        inner = type(self)(self.opset, f"body_{self.root.used}")
        inner.outer = self
        for name, dtype, shape in inputs:
            inner.input(name, dtype, shape)
        found = make(inner, *(name for name, _, _ in inputs))
        own = {o for n in inner._nodes for o in n.output}
        found = [x if x in own else inner.op("Identity", x) for x in found]
        types = results or [np.float32] * len(found)
        infos = [
            helper.make_tensor_value_info(x, element_type(t), None)
            for x, t in zip(found, types, strict=True)
        ]
        return helper.make_graph(inner._nodes, inner.name, inner._inputs, infos)

    def out(
        self, *values: str, dtype: Any = np.float32, shape: Sequence[Any] | None = None
    ) -> None:
        """Make values graph outputs; without a shape, what shape inference finds is declared."""
        for x in values:
            if x in {i.name for i in self._inputs}:
                x = self.op("Identity", x)
            number = dtype if isinstance(dtype, int) else element_type(dtype)
            self._outputs.append(helper.make_tensor_value_info(x, number, shape))

    def model(self) -> onnx.ModelProto:
        """The finished model, checked by the ONNX checker."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._weights.values())
        )
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid(domain, 1) for domain in sorted(self._domains - {""})]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        _declare(model)
        onnx.checker.check_model(model)
        return model


def _declare(model: onnx.ModelProto) -> None:
    """Give the outputs the shapes that shape inference finds; unknown ranks are 3."""
    found = {o.name: o for o in onnx.shape_inference.infer_shapes(model).graph.output}
    for output in model.graph.output:
        if not output.type.tensor_type.HasField("shape"):
            output.CopyFrom(found[output.name])
        if not output.type.tensor_type.HasField("shape"):
            for _ in range(3):
                output.type.tensor_type.shape.dim.add()


def rng_of(*seed: int) -> np.random.Generator:
    """Random numbers of a probe."""
    return np.random.default_rng([*seed, 12])


def normal(*shape: int, seed: int = 0) -> Array:
    """Normal numbers."""
    return rng_of(seed, *shape).normal(size=shape).astype(np.float32)


def tensor(x: Array, name: str = "") -> onnx.TensorProto:
    """An attribute's tensor."""
    return numpy_helper.from_array(np.asarray(x), name)
