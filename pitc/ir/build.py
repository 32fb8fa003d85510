"""New nodes and constants of a graph: names that nothing has, and one copy of what is equal.

Whoever adds nodes to a graph does it through a `NodeMaker`, and says how they are called and where
they go. What differs between operator sets stands here once.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from pitc.ir.nodes import Array, bodies, is_if, opset_of
from pitc.ir.since import Since


@dataclass(slots=True)
class Names:
    """Names that a graph uses; a new one is taken as it is made.

    Args:
        values: Of values.
        nodes: Of nodes.
    """

    values: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)

    def value(self, name: str) -> str:
        """The name, with a number when a value has it already."""
        return _free(name, 2, self.values)

    def node(self, name: str) -> str:
        """The same for a node."""
        return _free(name, 2, self.nodes)

    def unique(self, name: str, first: int = 2) -> str:
        """The same for a name that neither value nor node has; the numbers begin with `first`."""
        return _free(name, first, self.values, self.nodes)

    def rename(self, nodes: Iterable[ir.Node]) -> None:
        """Give nodes that come from another graph, and their outputs, names of this one."""
        for node in nodes:
            node.name = self.node(node.name) if node.name else None
            for value in node.outputs:
                value.name = self.value(value.name) if value.name else value.name


def _free(name: str, k: int, taken: set[str], others: Collection[str] = ()) -> str:
    free = name
    while free in taken or free in others:
        free, k = f"{name}.{k}", k + 1
    taken.add(free)
    return free


def names_of(graph: ir.Graph, branches: bool = True) -> Names:
    """Names in a graph and in the bodies inside it.

    Args:
        graph: The main graph.
        branches: Those in branches of its If nodes too, which need not differ from each other.
    """
    names, todo = Names(), [(graph, True, not branches)]
    while todo:
        here, counts, opens = todo.pop()
        if counts:
            outer = (*here.inputs, *here.initializers.values())
            names.values.update(x.name for x in outer if x.name)
        for node in here:
            if counts:
                names.values.update(o.name for o in node.outputs if o.name)
                names.nodes.update([node.name] if node.name else [])
            branch = opens and is_if(node)  # what a loop holds stays there
            todo += [(body, not branch, branch) for body in bodies(node)]
    return names


def takes_list(op_type: str, opset: int) -> bool:
    """True for an operator whose list of numbers is an input, no attribute as in older sets."""
    late = op_type.startswith("Reduce") and op_type != "ReduceSum"
    return opset >= (Since.REDUCED_LISTS if late else Since.LISTS)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let a value stand for another one: its readers, name, type and shape."""
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    name, old.name = old.name, None
    new.name = name


class NodeMaker:
    """Adds nodes and constants to a graph.

    Args:
        graph: The graph.
        names: Its names, where they are known already.
        before: The node that new ones come before; None: they go to the end.

    Attributes:
        names: Names in use.
        opset: The version of the standard operators.
    """

    CONSTANT = "const"

    def __init__(
        self, graph: ir.Graph, names: Names | None = None, before: ir.Node | None = None
    ) -> None:
        self._main, self._before = graph, before
        self.names = names_of(graph) if names is None else names
        self.opset = opset_of(graph)
        self._known: dict[Hashable, ir.Value] = {}

    def unique(self, stem: str) -> str:
        """A name that nothing in the graph has, from what a value is made of."""
        return self.names.unique(stem)

    def insert(self, node: ir.Node) -> None:
        """Put a new node into the graph."""
        if self._before is None:
            self._main.append(node)
        else:
            self._main.insert_before(self._before, node)

    def register(self, constant: ir.Value) -> None:
        """Put a new constant into the graph."""
        self._main.register_initializer(constant)

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: Sequence[str | None],
        name: str | None = None,
        domain: str = "",
    ) -> tuple[ir.Value, ...]:
        """Add a node with outputs of the given names; one without a name is left out."""
        values = [ir.Value(name=each) for each in outputs]
        node = ir.node(op_type, list(inputs), attributes, domain=domain, outputs=values, name=name)
        self.insert(node)
        return tuple(values)

    def initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        """A constant with the name, type and shape of a tensor."""
        value = ir.val(tensor.name, const_value=tensor)
        self.register(value)
        return value

    def named(self, name: str, numbers: npt.ArrayLike) -> ir.Value:
        """A constant of that name."""
        return self.initializer(ir.tensor(np.asarray(numbers), name=name))

    def constant(self, array: npt.ArrayLike) -> ir.Value:
        """A small constant; equal ones are made once."""
        x: Array = np.asarray(array)
        key = ("constant", x.dtype.str, x.shape, x.tobytes())
        return self.once(key, lambda: self.named(self.unique(self.CONSTANT), x))

    def once(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """A value that is made once, by what it is."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def listed(
        self, op_type: str, numbers: Sequence[int], name: str = "axes"
    ) -> tuple[list[ir.Value], dict[str, Any]]:
        """A list of numbers as the operator takes it: an input or, in older operator sets, an
        attribute.
        """
        if takes_list(op_type, self.opset):
            return [self.constant(np.asarray(numbers, np.int64))], {}
        return [], {name: list(numbers)}

    def apply(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
    ) -> ir.Value:
        """A node with one output, called by what it does."""
        return self.add(op_type, inputs, attributes, [self.unique(op_type.lower())])[0]

    def ints(self, *numbers: int) -> ir.Value:
        """An int64 vector."""
        return self.constant(np.asarray(numbers, np.int64))

    def transpose(self, x: ir.Value, order: Sequence[int]) -> ir.Value:
        """Dimensions in another order, if that changes anything."""
        if list(order) == sorted(order):
            return x
        return self.apply("Transpose", [x], {"perm": list(order)})

    def along(self, op_type: str, x: ir.Value, axes: Sequence[int], **attributes: Any) -> ir.Value:
        """An operator that takes a list of axes."""
        inputs, named = self.listed(op_type, axes)
        return self.apply(op_type, [x, *inputs], named | attributes)

    def unsqueeze(self, x: ir.Value, *axes: int) -> ir.Value:
        """Insert dimensions of extent 1."""
        return self.along("Unsqueeze", x, axes) if axes else x


def _is_in_a_graph(value: ir.Value) -> bool:
    """False for a constant, or the result of a node, that was removed."""
    node = value.producer()
    return value.is_initializer() if node is None else node.graph is not None


class NodeBuilder(NodeMaker):
    """Adds nodes that are called by what they do.

    Args:
        graph: The graph.
        prefix: Of all new names.
    """

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        super().__init__(graph)
        self.prefix = prefix

    def unique(self, stem: str) -> str:
        """A name that nothing in the graph has, from what a value is made of."""
        prefix = f"{self.prefix}."
        return self.names.unique(prefix + stem.removeprefix(prefix), 1)

    def once(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """A value that is made once, by what it is; and once more where it was removed since."""
        if key in self._known and not _is_in_a_graph(self._known[key]):
            del self._known[key]
        return super().once(key, make)

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """An ordinary node with one output; equal pure nodes are made once."""
        key = (domain, op_type, *inputs, repr(sorted(attributes.items())))
        stems = [op_type.lower()]
        return self.once(key, lambda: self.node(domain, op_type, inputs, attributes, stems)[0])

    def total(self, parts: Sequence[ir.Value]) -> ir.Value:
        """The sum of values, from the first to the last."""
        return reduce(lambda whole, part: self.op("Add", [whole, part]), parts)

    def apply(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
    ) -> ir.Value:
        """An ordinary node with one output; equal pure nodes are made once."""
        return self.op(op_type, inputs, **attributes)

    def node(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        stems: Sequence[str],
        name: str | None = None,
    ) -> tuple[ir.Value, ...]:
        """A node with the given outputs; those without a stem are left out."""
        outputs = [stem and self.unique(stem) for stem in stems]
        name = name or self.unique(f"{stems[0]}.node")
        return self.add(op_type, inputs, attributes, outputs, name, domain)
