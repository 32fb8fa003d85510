"""Coordinates of a domain, propagated from value to value along PIT axes.

A dead fact may not name every coordinate ("only position 0 is read" does not mention the batch).
The neighbours do: a permutation of a PIT axis of one value is a permutation of the matching axis of
the next one, through every index map. So coordinates start at the values whose facts name them all,
and travel along the tensor expressions in both directions.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from pitc.ir.graph import Graph, Steps
from pitc.ir.index import Coords, Digit
from pitc.passes.exprs.axes import Stop, across, neighbours

MAX_PER_VALUE = 4  # scores carry queries and keys; more than a few are of no use

Found = dict[str, list[Coords]]


class Paths:
    """Where coordinates lead, each way followed once: domains of the same coordinates share it.

    Args:
        graph: The graph, its expressions known.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ways: list[Found] = []
        self._of: dict[tuple[str, Coords], int] = {}

    def reached(self, starts: Mapping[str, Sequence[Coords]]) -> Found:
        """Values that are reached from some starts, or from others that lead to these."""
        pairs = [(name, coords) for name, known in starts.items() for coords in known]
        ways = []
        for name, coords in pairs:
            if (name, coords) not in self._of:
                found, k = follow(self._graph, {name: [coords]}), len(self._ways)
                self._ways.append(found)
                for value, places in found.items():
                    for place in places:
                        self._of.setdefault((value, place), k)
            ways.append(self._of[name, coords])
        kept = [self._ways[k] for k in dict.fromkeys(ways)]
        if len(kept) == 1:
            return kept[0]
        joint: Found = {}
        for way in kept:
            for name, places in way.items():
                joint.setdefault(name, []).extend(places)
        return {name: list(dict.fromkeys(c))[:MAX_PER_VALUE] for name, c in joint.items()}


def follow(graph: Graph, starts: Mapping[str, list[Coords]], *, softmax: bool = False) -> Found:
    """All values that coordinates reach along PIT axes, and as which of their digits.

    Args:
        graph: The graph, its expressions known.
        starts: Coordinates of some values.
        softmax: Along the lines of softmaxes, too (`across`).

    Returns:
        Per value, lists of coordinates: digits of its dimensions.
    """
    found: Found = {}
    steps = graph.steps[softmax]
    todo: list[str] = []
    passed: set[tuple[str, Coords]] = set()  # a value is there once for each of its coordinates

    def add(name: str, coords: Coords) -> None:
        known = found.setdefault(name, [])
        if coords not in known and len(known) < MAX_PER_VALUE:
            known.append(coords)
            todo.append(name)

    for name, known in starts.items():
        for coords in known:
            add(name, coords)
    while todo:
        name = todo.pop()
        for mine in list(found[name]):
            if (name, mine) in passed:
                continue
            passed.add((name, mine))
            for neighbour, coords in _carried(graph, name, mine, softmax, steps):
                if not graph.is_constant(neighbour):
                    add(neighbour, coords)
    return found


def _carried(
    graph: Graph, name: str, coords: Coords, softmax: bool, steps: Steps
) -> Iterator[tuple[str, Coords]]:
    """The coordinates as digits of the values that share a node with this one."""
    for node in neighbours(graph, name):
        places: list[dict[str, list[Digit]]] = []
        for c in coords:
            step = node, name, c
            if step not in steps:
                try:
                    steps[step] = _by_name(across(graph, node, name, c, softmax=softmax))
                except Stop:
                    steps[step] = {}
            if not steps[step]:
                break
            places.append(steps[step])
        if len(places) < len(coords):
            continue
        for target in dict.fromkeys(n for found in places for n in found):
            for moved in product(*(found.get(target, ()) for found in places)):
                if len(set(moved)) == len(moved):
                    yield target, moved


def _by_name(found: list[tuple[str, Digit]]) -> dict[str, list[Digit]]:
    out: dict[str, list[Digit]] = {}
    for name, place in found:
        if place not in out.setdefault(name, []):
            out[name].append(place)
    return out
