"""Siblings as one: each of their nodes once, for all of them.

    y_e = relu(x @ w_e)        e = 0..7      ->   y [8, t, n] = relu(x @ w [8, k, n])
    r_e = NonZero(m_e)         x[r_e] @ w_e  ->   (e, r) = NonZero(m [8, t])     x[r] @ w[e]

Values that all siblings read stay as they are. Constants that differ are put side by side. What is
computed of these has the siblings in front; or, behind a list of places, the rows of all lists, one
behind the other, in the order of the siblings.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import BRANCH
from pitc.ir.graph import Graph, NoRule
from pitc.ir.index import ONE, ZERO, dim_index
from pitc.ir.nodes import PARTS
from pitc.passes.expand.body import Body
from pitc.passes.regions.stored import origins
from pitc.passes.rules.record import operator_of


class Lead(Enum):
    """What stands in front of a value of all siblings."""

    NOTHING = "nothing"  # they have the same one
    EACH = "each"  # a dimension of siblings
    ROWS = "rows"  # rows of all lists, where one sibling has those of its list


@dataclass(frozen=True, slots=True)
class Joined:
    """A value of all siblings.

    Args:
        value: The value.
        lead: What stands in front.
        rank: Dimensions of the value of one sibling.
    """

    value: ir.Value
    lead: Lead
    rank: int


ELEMENTWISE = "elementwise"
MOST_STEPS = 200  # of a sibling, one behind the other

Values = tuple[ir.Value | None, ...]
"""One value of each sibling."""


@dataclass(slots=True)
class Joiner:
    """Makes the nodes of all siblings.

    Args:
        graph: The derived graph.
        body: Where new nodes go.
        count: How many siblings there are.
        rules: How nodes of an operator are joined; `ELEMENTWISE`: those that compute element by
            element.
        products: Products of rows by matrices that differ.
        varying: Where siblings are trips of a loop, of which one stands for all: the values that
            differ from trip to trip.
    """

    graph: Graph
    body: Body
    count: int
    rules: "Mapping[str, Rule]"
    products: list[ir.Node] = field(default_factory=list)
    varying: set[ir.Value] | None = None
    _known: dict[tuple[int, ...], Joined] = field(default_factory=dict)
    _depth: int = 0
    _places: tuple[Joined, ir.Value] | None = None  # the flags, and NonZero of them

    def join(self, values: Values) -> Joined:
        """The value of all siblings.

        Raises:
            NoRule: They are not alike, or no rule says how they are joined.
        """
        first = values[0]
        if first is None or None in values:
            raise NoRule("an operand is left out")
        key = tuple(map(id, values))
        if key not in self._known:
            same = all(v is first for v in values) and first not in (self.varying or ())
            self._depth += 1
            if self._depth > MOST_STEPS:
                raise NoRule("siblings of many steps")
            self._known[key] = self._same(first) if same else self._join(values)
            self._depth -= 1
        return self._known[key]

    def give(self, value: ir.Value, joined: Joined) -> None:
        """Say what a value of one trip is in all of them."""
        self._known[id(value),] = joined

    def _same(self, value: ir.Value) -> Joined:
        return Joined(value, Lead.NOTHING, self.rank(value))

    def _join(self, values: Values) -> Joined:
        if all(v is not None and v.is_initializer() and not v.is_graph_input() for v in values):
            return self._constants(values)
        if (rows := self._rows_of_lists(values)) is not None:
            return rows
        nodes = [None if v is None else v.producer() for v in values]
        first = nodes[0]
        if first is None or any(n is None or not _alike(n, first) for n in nodes):
            raise NoRule("they are made in different ways")
        if any(n is not None and BRANCH in n.metadata_props for n in nodes):
            raise NoRule("they run under a condition")
        places = {0 if v is None else v.index() for v in values}
        if len(places) != 1:
            raise NoRule("they are different outputs")
        operands = [self.join(given) for given in zip(*(n.inputs for n in nodes if n), strict=True)]
        (place,) = places
        outputs = self._node(first, operands)
        for k, made in enumerate(outputs):
            self._known[tuple(id(n.outputs[k]) for n in nodes if n is not None)] = made
        return outputs[place or 0]

    def _constants(self, values: Values) -> Joined:
        tensors = [v.const_value for v in values if v is not None]
        arrays = [t.numpy() for t in tensors if t is not None]
        if len(arrays) != len(values) or len({(x.shape, x.dtype) for x in arrays}) != 1:
            raise NoRule("constants of different sizes or types")
        names = tuple(v.name or "" for v in values if v is not None)
        table = self.body.named(self.body.unique(f"{names[0]}.siblings"), np.stack(arrays))
        table.meta[PARTS] = names
        return Joined(table, Lead.EACH, arrays[0].ndim)

    def rank(self, value: ir.Value) -> int:
        """How many dimensions a value of one sibling has.

        Raises:
            NoRule: That is not known.
        """
        shape = self.graph[value.name or ""].shape
        if shape is None:
            raise NoRule("a shape is not known")
        return len(shape)

    def is_one(self, value: ir.Value, dim: int) -> bool:
        """True where that dimension of a value of one sibling has an extent of 1."""
        shape = self.graph[value.name or ""].shape
        return shape is not None and shape[dim] == ONE

    def _rows_of_lists(self, values: Values) -> Joined | None:
        """Coordinates of places in lists; None where the values are none."""
        found = [None if v is None else _coordinate(self.graph, v) for v in values]
        if found[0] is None:
            return None
        kinds = {(c, column) for x in found if x is not None for _, c, column in [x]}
        if None in found or len(kinds) != 1:
            raise NoRule("different coordinates of places")
        ((coordinate, column),) = kinds
        pairs = self._pairs(tuple(x[0].inputs[0] for x in found if x is not None))
        made = self._row(pairs, coordinate + 1)
        return Joined(self.body.unsqueeze(made, 1) if column else made, Lead.ROWS, 1 + column)

    def _row(self, pairs: ir.Value, k: int) -> ir.Value:
        number = self.body.constant(np.asarray(k, np.int64))
        key = ("row", pairs.name, k)
        return self.body.once(key, lambda: self.body.op("Gather", pairs, number, axis=0))

    def _pairs(self, flags: Values) -> ir.Value:
        given = self.join(flags)
        if given.lead is not Lead.EACH:
            raise NoRule("lists of places that are the same, or of places in lists")
        if self._places is None:
            self._places = given, self.body.op("NonZero", given.value)
        if self._places[0] is not given:
            raise NoRule("several lists of places")
        return self._places[1]

    @property
    def sibling_of_row(self) -> ir.Value:
        """The number of the sibling that each row of the lists is of."""
        assert self._places is not None
        return self._row(self._places[1], 0)

    def row_of_each(self, given: Joined) -> ir.Value:
        """For each row of the lists, what its sibling has."""
        return self.body.op("Gather", given.value, self.sibling_of_row, axis=0)

    def _node(self, node: ir.Node, operands: Sequence[Joined]) -> list[Joined]:
        plain = operator_of(node).function is not None
        rule = self.rules.get(ELEMENTWISE if plain else node.op_type if not node.domain else "")
        if rule is None:  # it may even be random
            raise NoRule(f"no rule joins nodes of {node.op_type}")
        leads = {x.lead for x in operands} - {Lead.NOTHING}
        if not leads:
            return [self._same(v) for v in node.outputs]
        lead = Lead.ROWS if Lead.ROWS in leads else Lead.EACH
        values = rule(self, node, operands, lead)
        ranks = [self.rank(v) for v in node.outputs]
        return [Joined(v, lead, rank) for v, rank in zip(values, ranks, strict=True)]

    def make(self, node: ir.Node, inputs: Sequence[ir.Value], **changed: Any) -> list[ir.Value]:
        """A node like one of a sibling, with other operands and perhaps other attributes."""
        attributes: dict[str, Any] = {**node.attributes, **changed}
        count, kind = len(node.outputs), node.op_type
        made = list(self.body.parts(count, kind, *inputs, domain=node.domain, **attributes))
        return [self.named(made[0], node), *made[1:]]

    def named(self, made: ir.Value, node: ir.Node) -> ir.Value:
        """A value whose node is called like one of a sibling, and how many others it stands for."""
        producer = made.producer()
        if node.name and producer is not None:
            producer.name = self.body.names.node(f"{node.name} and {self.count - 1} more")
        return made


def _alike(node: ir.Node, other: ir.Node) -> bool:
    same = node.op_identifier() == other.op_identifier()
    sizes = len(node.inputs) == len(other.inputs) and len(node.outputs) == len(other.outputs)
    return same and sizes and _attributes(node) == _attributes(other)


def _attributes(node: ir.Node) -> list[bytes]:
    found = sorted(node.attributes.values(), key=lambda a: a.name)
    return [ir.serde.serialize_attribute(a).SerializeToString() for a in found]


Rule = Callable[[Joiner, ir.Node, Sequence[Joined], Lead], list[ir.Value]]
"""Makes the outputs of nodes of all siblings, of one of them and their operands."""


def _coordinate(graph: Graph, value: ir.Value) -> tuple[ir.Node, int, bool] | None:
    """Of numbers that are a coordinate of the places in a list: the NonZero that makes the list,
    which coordinate, and whether they are a column, `[n, 1]`; None for other values.
    """
    name, known = value.name or "", graph[value.name or ""]
    shape = known.shape
    if shape is None or known.dtype is None or known.dtype.kind != "i":
        return None
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != ONE):
        return None
    rows = dim_index(0, shape[0])
    for origin in origins(graph, name, (rows, ZERO)[: len(shape)], scaled=False):
        node = graph[origin.name].producer
        if node is not None and node.op_identifier() == ("", "NonZero", ""):
            places = graph[origin.name].shape
            whole = places is not None and places[1] == shape[0] and origin.index[1] == rows
            coordinate = None if origin.index[0] is None else origin.index[0].as_int()
            if coordinate is not None and whole:  # and not the first ones of the list
                return node, coordinate, len(shape) == 2
    return None
