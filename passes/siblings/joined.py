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
from pitc.ir.expr import Combine
from pitc.ir.graph import Array, Graph, NoRule
from pitc.ir.index import ONE, dim_index
from pitc.ir.nodes import PARTS, input_names
from pitc.passes.expand.body import Body
from pitc.passes.rules.record import operator_of
from pitc.passes.siblings.places import (
    Coordinate,
    PlacesOfAll,
    coordinate_of,
    rows_looked_up,
)


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
FEW = 64
"""Elements of constants that are compared: exporters write the same one for each sibling."""

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
        last_stands: Of rows of one list that name the same place, only the last one counts.
    """

    graph: Graph
    body: Body
    count: int
    rules: "Mapping[str, Rule]"
    products: list[ir.Node] = field(default_factory=list)
    varying: set[ir.Value] | None = None
    last_stands: bool = False
    _known: dict[tuple[int, ...], Joined] = field(default_factory=dict)
    _depth: int = 0
    _list: PlacesOfAll | None = None
    _tables: dict[ir.Value, tuple[ir.Value, ir.Value]] = field(default_factory=dict)

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
        if (number := self._number(values)) is not None:
            return number
        rows = self._rows_of_lists(values) or self._rows_looked_up(values)
        if rows is not None:
            return rows
        nodes = [None if v is None else v.producer() for v in values]
        if None not in nodes and all(_keeps_all(self.graph, n) for n in nodes if n is not None):
            return self.join(tuple(n.inputs[0] for n in nodes if n is not None))
        first = nodes[0]
        if first is not None and len(values) > 1 and set(nodes) == {first}:
            return self._parts(values)
        if first is None or any(n is None or not _alike(n, first) for n in nodes):
            raise NoRule("they are made in different ways")
        if any(n is not None and BRANCH in n.metadata_props for n in nodes):
            raise NoRule("they run under a condition")
        places = {0 if v is None else v.index() for v in values}
        if len(places) != 1:
            raise NoRule("they are different outputs")
        absent = (None,) * len(values)
        given = zip(*(n.inputs for n in nodes if n), strict=True)
        operands = [None if x == absent else self.join(x) for x in given]
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
        if arrays[0].size <= FEW and len({x.tobytes() for x in arrays}) == 1:
            return Joined(self.body.constant(arrays[0]), Lead.NOTHING, arrays[0].ndim)
        names = tuple(v.name or "" for v in values if v is not None)
        table = self.body.named(self.body.unique(f"{names[0]}.siblings"), np.stack(arrays))
        table.meta[PARTS] = names
        return Joined(table, Lead.EACH, arrays[0].ndim)

    def _number(self, values: Values) -> Joined | None:
        """Small integers that all siblings compute, of sizes: a constant; None for others."""
        found = [self.graph.ints(v.name or "") for v in values if v is not None]
        dtypes = {self.graph[v.name or ""].dtype for v in values if v is not None}
        numbers = [_numbers(x) for x in found]
        first = numbers[0]
        if first is None or len(dtypes) != 1 or self.varying is not None:
            return None
        if any(x is None or not np.array_equal(x, first) for x in numbers):
            return None
        (dtype,) = dtypes
        constant = self.body.constant(first.astype(dtype or np.int64))
        return Joined(constant, Lead.NOTHING, first.ndim)

    def _parts(self, values: Values) -> Joined:
        """Outputs of one node, side by side."""
        parts = [v for v in values if v is not None]
        shapes = {self.graph[v.name or ""].shape for v in parts}
        dtype = self.graph[parts[0].name or ""].dtype
        if len(shapes) != 1 or dtype is None or dtype.kind != "i":
            raise NoRule("outputs of one node that are no numbers of siblings")
        rank = self.rank(parts[0])
        rows = [self.body.unsqueeze(v, 0) for v in parts]
        return Joined(self.body.op("Concat", *rows, axis=0), Lead.EACH, rank)

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
        found = [None if v is None else coordinate_of(self.graph, v) for v in values]
        if found[0] is None or found[0].columns not in (None, ONE):
            return None
        kinds = {(x.number, x.columns) for x in found if x is not None}
        if None in found or len(kinds) != 1:
            raise NoRule("different coordinates of places")
        ((number, columns),) = kinds
        made = self._listed(found, number)
        if columns is None:
            return Joined(made, Lead.ROWS, 1)
        return Joined(self.body.unsqueeze(made, 1), Lead.ROWS, 2)

    def place_rows(self, values: Values) -> ir.Value:
        """The places to which rows of all lists are added, `[n, 1]`.

        Raises:
            NoRule: They are no coordinate of the places in lists, the same one for each row.
        """
        found = [None if v is None else coordinate_of(self.graph, v) for v in values]
        numbers = {x.number for x in found if x is not None and x.columns is not None}
        if None in found or len(numbers) != 1:
            raise NoRule("not rows at places of lists")
        return self.body.unsqueeze(self._listed(found, *numbers), 1)

    def _rows_looked_up(self, values: Values) -> Joined | None:
        """Rows of one matrix, which siblings share, at the places in lists, through moves in front
        and behind; None where the values are none.
        """
        found = [None if v is None else rows_looked_up(self.graph, v) for v in values]
        if found[0] is None or None in found:
            return None
        if len({(x.table, x.place.number) for x in found if x is not None}) != 1:
            return None
        table, place = found[0].table, found[0].place
        if table in (self.varying or ()):
            return None
        rows = self._listed([x.place for x in found if x is not None], place.number)
        return Joined(self.body.op("Gather", table, rows, axis=0), Lead.ROWS, 2)

    def _listed(self, found: Sequence[Coordinate | None], number: int) -> ir.Value:
        """A coordinate of the places in all lists."""
        given = self.join(tuple(x.nonzero.inputs[0] for x in found if x is not None))
        if given.lead is not Lead.EACH:
            raise NoRule("lists of places that are the same, or of places in lists")
        if self._list is None:
            place = number if self.last_stands else None
            self._list = PlacesOfAll(self.body, given.value, given.rank, place)
        if self._list.flags is not given.value:
            raise NoRule("several lists of places")
        return self._list.row(1 + number)

    @property
    def sibling_of_row(self) -> ir.Value:
        """The number of the sibling that each row of the lists is of."""
        assert self._list is not None
        return self._list.row(0)

    def looks_up(self, made: ir.Value, table: ir.Value, index: ir.Value) -> None:
        """Note that each sibling has one slice of a table, by its first dimension."""
        self._tables[made] = table, index

    def table_of(self, value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
        """The table and the index of each sibling, where a value was noted so."""
        return self._tables.get(value)

    def row_of_each(self, given: Joined) -> ir.Value:
        """For each row of the lists, what its sibling has: out of a table without a copy of it."""
        if (found := self.table_of(given.value)) is not None:
            table, index = found
            places = self.body.op("Gather", index, self.sibling_of_row, axis=0)
            return self.body.op("Gather", table, places, axis=0)
        return self.body.op("Gather", given.value, self.sibling_of_row, axis=0)

    def _node(self, node: ir.Node, given: Sequence[Joined | None]) -> list[Joined]:
        plain = operator_of(node).function is not None
        rule = self.rules.get(ELEMENTWISE if plain else node.op_type if not node.domain else "")
        operands = [x for x in given if x is not None]
        leads = {x.lead for x in operands} - {Lead.NOTHING}
        expr = self.graph[node.outputs[0].name or ""].expr
        moves = expr is not None and expr.combine is Combine.MOVE
        if rule is None and (leads or not moves):  # it may even be random
            raise NoRule(f"no rule joins nodes of {node.op_type}")
        if not leads or rule is None:
            return [self._same(v) for v in node.outputs]
        if not plain and len(operands) < len(given):
            raise NoRule("an operand is left out")
        lead = Lead.ROWS if Lead.ROWS in leads else Lead.EACH
        values = rule(self, node, operands, lead)
        ranks = [self.rank(v) for v in node.outputs]
        return [Joined(v, lead, rank) for v, rank in zip(values, ranks, strict=True)]

    def make(self, node: ir.Node, inputs: Sequence[ir.Value], **changed: Any) -> list[ir.Value]:
        """A node like one of a sibling, with other operands and perhaps other attributes."""
        attributes: dict[str, Any] = {**node.attributes, **changed}
        count, kind = len(node.outputs), node.op_type
        rest = iter(inputs)
        given = [None if x is None else next(rest) for x in node.inputs]
        made = list(self.body.parts(count, kind, *given, domain=node.domain, **attributes))
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


def _keeps_all(graph: Graph, node: ir.Node) -> bool:
    """True for a node that gives its first operand as it is: a Reshape or Expand to its shape."""
    value = graph[node.outputs[0].name or ""]
    expr, shape = value.expr, value.shape
    if expr is None or expr.combine is not Combine.MOVE or shape is None or not node.inputs:
        return False
    name = input_names(node)[0]
    whole = tuple(dim_index(d, e) for d, e in enumerate(shape))
    reads = [r for r in expr.moving_reads if r.operand == 0]
    same = graph[name].shape == shape and graph[name].dtype == value.dtype
    return same and len(reads) == 1 and reads[0].index == whole and not reads[0].within


def _numbers(found: Array | None) -> Array | None:
    """Integers that are known; None where some are not."""
    if found is None:
        return None
    known = [p.as_int() for p in found.reshape(-1)]
    return None if None in known else np.array(known, np.int64).reshape(found.shape)
