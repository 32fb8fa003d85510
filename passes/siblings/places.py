"""Lists of places: those of each sibling, and those of all of them, one behind the other.

r_e = NonZero(m_e)      ->      (e, r) = NonZero(m [8, t])
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph, NoRule
from pitc.ir.index import Poly, dim_index
from pitc.passes.expand.body import Body
from pitc.passes.regions.looked_up import looked_up
from pitc.passes.regions.stored import origins


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Numbers that are a coordinate of the places in a list, `[n]` or `[n, columns]`.

    Args:
        nonzero: What makes the list.
        number: Which coordinate.
        columns: How often each stands side by side; None for `[n]`.
    """

    nonzero: ir.Node
    number: int
    columns: Poly | None


def coordinate_of(graph: Graph, value: ir.Value) -> Coordinate | None:
    """Which coordinate numbers are; None for other values."""
    name, known = value.name or "", graph[value.name or ""]
    shape = known.shape
    if shape is None or known.dtype is None or known.dtype.kind != "i":
        return None
    if len(shape) not in (1, 2):
        return None
    rows, columns = dim_index(0, shape[0]), shape[1] if len(shape) == 2 else None
    read = (rows,) if columns is None else (rows, dim_index(1, columns))
    for origin in origins(graph, name, read, scaled=False):
        node = graph[origin.name].producer
        if node is not None and node.op_identifier() == ("", "NonZero", ""):
            places = graph[origin.name].shape
            whole = places is not None and places[1] == shape[0] and origin.index[1] == rows
            coordinate = None if origin.index[0] is None else origin.index[0].as_int()
            if coordinate is not None and whole:  # and not the first ones of the list
                return Coordinate(node, coordinate, columns)
    return None


@dataclass(frozen=True, slots=True)
class RowsLookedUp:
    """Rows of a matrix at the places in a list.

    Args:
        table: The matrix.
        place: The coordinate that numbers its rows.
    """

    table: ir.Value
    place: Coordinate


def rows_looked_up(graph: Graph, value: ir.Value) -> RowsLookedUp | None:
    """What rows are looked up, through moves in front and behind; None for other values.

    x [t, k] -> Unsqueeze -> Gather by r, axis 1 -> Reshape [n, k]      ->      x at r
    """
    shape = graph[value.name or ""].shape
    if shape is None or len(shape) != 2:
        return None
    row, column = (dim_index(d, e) for d, e in enumerate(shape))

    def is_matrix(name: str) -> bool:
        extents = graph[name].shape
        return extents is not None and len(extents) == 2 and extents[1] == shape[1]

    found = looked_up(graph, value.name or "", (row, column), is_matrix)
    if found is None or (found.index, found.at) != ((None, column), (row,)):
        return None
    inputs = [x for n in found.nodes for x in n.inputs if x is not None]
    place = next(x for x in inputs if x.name == found.place)
    coordinate = coordinate_of(graph, place)
    if coordinate is None or coordinate.columns is not None:
        return None
    return RowsLookedUp(next(x for x in inputs if x.name == found.table), coordinate)


class PlacesOfAll:
    """The places of all siblings.

    Args:
        body: Where nodes go.
        flags: Where places are, with siblings in front.
        rank: Dimensions of the flags of one sibling.
        place: Of places that agree in this coordinate, each sibling has the last one only; None: it
            has all.
    """

    def __init__(self, body: Body, flags: ir.Value, rank: int, place: int | None = None) -> None:
        self.body, self.flags = body, flags
        chosen = flags if place is None or rank == 1 else self._last(rank, place)
        self._pairs = body.op("NonZero", chosen)

    def row(self, k: int) -> ir.Value:
        """A coordinate of the places; 0: the number of the sibling."""
        key = ("row", self._pairs.name, k)
        return self.body.once(
            key, lambda: self.body.op("Gather", self._pairs, self._int(k), axis=0)
        )

    def _int(self, k: int) -> ir.Value:
        return self.body.constant(np.asarray(k, np.int64))

    def _last(self, rank: int, place: int) -> ir.Value:
        """Flags without those that another one follows of the same place, in the order of a list.

        flags [j, t] 1 0 1 / 1 1 0, place t   ->   0 0 1 / 1 1 0
        """
        if rank != 2:
            raise NoRule("rows of lists of which it is not known which one is the last")
        body, axis = self.body, 2 - place
        flags = body.op("Cast", self.flags, to=ir.DataType.BOOL)
        numbers = body.op("Cast", flags, to=ir.DataType.INT32)
        last = body.op("ArgMax", numbers, axis=axis, keepdims=1, select_last_index=1)
        count = body.op("Gather", body.op("Shape", flags), self._int(axis), axis=0)
        number = body.op("Range", self._int(0), count, self._int(1))
        number = body.unsqueeze(number, 1) if place else number
        return body.op("And", flags, body.op("Equal", number, last))
