"""Where boxes and lines of a drawing lie: a graph in levels, from the top down.

Levels are longest paths from the inputs; a node that reads nothing lies just above its reader.
Boxes of a level are ordered by the middle of their neighbours, then moved as near to it as their
width allows. A line over several levels goes through a place of its own in each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

BOX_WIDTH, BOX_HEIGHT = 164, 30
GAP, STEP = 16, 54  # between boxes of a level, from level to level
LANE = 14  # of a line that passes a level
MARGIN = 12
LONGEST = 12  # levels that a line may pass
SWEEPS = 6

#: A box, or (maker, level) where a line passes.
Item = int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """A drawing, in pixels.

    Args:
        places: Left and top of each box.
        lines: Each from the bottom of a box to the top of another, through points between.
        long: Lines that are not drawn: they pass too many levels.
        width: Of all of it.
        height: Of all of it.
    """

    places: Mapping[int, tuple[int, int]]
    lines: tuple[tuple[tuple[int, int], ...], ...]
    long: tuple[tuple[int, int], ...]
    width: int
    height: int


def layout_of(graph: "nx.DiGraph[int]") -> Layout:
    """Lay out an acyclic graph."""
    levels = levels_of(graph)
    long = tuple((u, v) for u, v in graph.edges if levels[v] - levels[u] > LONGEST)
    drawn: nx.DiGraph[Item] = nx.DiGraph()
    drawn.add_nodes_from(graph)
    paths: list[tuple[Item, ...]] = []
    for u, v in graph.edges:
        if levels[v] - levels[u] <= LONGEST:
            path = (u, *((u, level) for level in range(levels[u] + 1, levels[v])), v)
            paths.append(path)
            drawn.add_edges_from(pairwise(path))
    rows: list[list[Item]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for item in drawn:
        rows[item[1] if isinstance(item, tuple) else levels[item]].append(item)
    _order(rows, drawn)
    middles = _middles(rows, drawn)
    left = min((middles[x] - _width(x) / 2 for x in middles), default=0) - MARGIN
    right = max((middles[x] + _width(x) / 2 for x in middles), default=0) + MARGIN
    at = {x: round(middle - left) for x, middle in middles.items()}
    tops = {x: MARGIN + STEP * level for level, row in enumerate(rows) for x in row}
    return Layout(
        places={x: (at[x] - BOX_WIDTH // 2, tops[x]) for x in graph},
        lines=tuple(_line(path, at, tops) for path in paths),
        long=long,
        width=round(right - left),
        height=2 * MARGIN + STEP * max(len(rows) - 1, 0) + BOX_HEIGHT,
    )


def levels_of(graph: "nx.DiGraph[int]") -> dict[int, int]:
    """The level of each box: below all that it reads.

    a -> b -> d, c -> d    ->    a: 0, b: 1, c: 1, d: 2
    """
    rows = enumerate(nx.topological_generations(graph))
    levels = {node: level for level, row in rows for node in row}
    for node in reversed(levels):
        readers = [levels[x] for x in graph.successors(node)]
        if readers and not graph.in_degree(node):
            levels[node] = min(readers) - 1
    return levels


def _line(
    path: Sequence[Item], at: Mapping[Item, int], tops: Mapping[Item, int]
) -> tuple[tuple[int, int], ...]:
    first, *passed, last = path
    between = [(at[x], tops[x] + BOX_HEIGHT // 2) for x in passed]
    return ((at[first], tops[first] + BOX_HEIGHT), *between, (at[last], tops[last]))


def _width(item: Item) -> int:
    return LANE if isinstance(item, tuple) else BOX_WIDTH


def _order(rows: Sequence[list[Item]], graph: "nx.DiGraph[Item]") -> None:
    """Sort each level by the middle of its neighbours in the level above, then below, in turns."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row, near in pairwise(rows if down else rows[::-1]):
            rank = {x: i for i, x in enumerate(row)}
            key = {}
            for i, x in enumerate(near):
                others = graph.predecessors(x) if down else graph.successors(x)
                found = [rank[y] for y in others if y in rank]
                own = i * len(row) / max(len(near), 1)
                key[x] = sum(found) / len(found) if found else own
            near.sort(key=key.__getitem__)


def _middles(rows: Sequence[Sequence[Item]], graph: "nx.DiGraph[Item]") -> dict[Item, float]:
    """The middle of each item, as near to those of its neighbours as its level allows."""
    found: dict[Item, float] = {}
    for row in rows:
        found |= dict(zip(row, _apart(row, [0.0] * len(row)), strict=True))
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            wanted = []
            for x in row:
                near = [found[y] for y in (graph.predecessors(x) if down else graph.successors(x))]
                wanted.append(sum(near) / len(near) if near else found[x])
            found |= dict(zip(row, _apart(row, wanted), strict=True))
    return found


def _apart(row: Sequence[Item], wanted: Sequence[float]) -> list[float]:
    """Middles nearest to those that are wanted (least squares) at which nothing overlaps.

    Two boxes that both want 0    ->    -90, 90
    """
    offsets, end = [], 0.0
    for x in row:
        offsets.append(end + _width(x) / 2)
        end += _width(x) + GAP
    runs: list[tuple[float, int]] = []  # mean of what a run of touching items wants, and how many
    for want, offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while runs and runs[-1][0] >= mean:
            other, n = runs.pop()
            mean, count = (mean * count + other * n) / (count + n), count + n
        runs.append((mean, count))
    starts = [mean for mean, count in runs for _ in range(count)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]
