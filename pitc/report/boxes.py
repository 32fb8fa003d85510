"""Which boxes a drawing of a model has: nodes without shape plumbing, runs of like nodes as one.

A model of few nodes has a box for each. In a larger one chains of nodes that run alike are joined,
as are like nodes side by side, in runs that grow until the drawing fits.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from pitc.ir.report import NodeRecord
from pitc.report.layout import levels_of

MOST_BOXES, MOST_BESIDE = 220, 12
#: Nodes of one box, in the order in which they are tried.
RUNS = (1, 3, 6, 12, 24, 48, 1_000_000)
#: Beyond this, boxes are left out from the end.
LIMIT = 1500
FOLDED = "folded"


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of a drawing.

    Args:
        nodes: Places of the nodes of each box, in the report.
        graph: Who feeds whom, boxes by place in `nodes`.
        hidden: Nodes of shape plumbing, which have no box.
        left_out: Nodes beyond the limit.
    """

    nodes: tuple[tuple[int, ...], ...]
    graph: "nx.DiGraph[int]"
    hidden: int
    left_out: int


def boxes_of(records: Sequence[NodeRecord], kinds: Sequence[str]) -> Boxes:
    """The boxes of a model.

    Args:
        records: Its nodes.
        kinds: How each runs; only like nodes share a box, but folded ones join any.
    """
    shown = [i for i, record in enumerate(records) if not record.is_plumbing]
    shown = shown or list(range(len(records)))
    graph = _links(records, frozenset(shown))
    runs: dict[int, tuple[int, ...]] = {i: (i,) for i in shown}
    for most in RUNS:
        graph, runs = _joined(graph, runs, kinds, most)
        if len(runs) <= MOST_BOXES and _beside(graph) <= MOST_BESIDE:
            break
    order = list(nx.lexicographical_topological_sort(graph))
    kept = order[:LIMIT]
    names = {node: i for i, node in enumerate(kept)}
    return Boxes(
        nodes=tuple(runs[node] for node in kept),
        graph=nx.relabel_nodes(graph.subgraph(kept), names),
        hidden=len(records) - len(shown),
        left_out=sum(len(runs[node]) for node in order[LIMIT:]),
    )


def _links(records: Sequence[NodeRecord], shown: frozenset[int]) -> "nx.DiGraph[int]":
    """Who feeds whom among the shown nodes. What leads through hidden ones only counts where
    nothing else leads there: sizes go everywhere.
    """
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(sorted(shown))
    through: dict[int, set[int]] = {}  # of a hidden node: the shown ones in front of it
    indirect: list[tuple[int, int]] = []
    for i, record in enumerate(records):
        makers = [i - back for back in record.reads if 0 < back <= i]
        far = {x for m in makers if m not in shown for x in through[m]}
        if i in shown:
            graph.add_edges_from((m, i) for m in makers if m in shown)
            indirect += [(x, i) for x in far]
        else:
            through[i] = far | {m for m in makers if m in shown}
    direct = set(graph.edges)
    graph.add_edges_from(indirect)
    below = dict.fromkeys(graph, 0)  # bits of all that is reached
    for node in reversed(list(graph)):
        for x in graph.successors(node):
            below[node] |= below[x] | 1 << x
    for u, v in indirect:
        others = (x for x in graph.successors(u) if x != v)
        if (u, v) not in direct and any(below[x] >> v & 1 for x in others):
            graph.remove_edge(u, v)
    return graph


def _joined(
    graph: "nx.DiGraph[int]", runs: Mapping[int, tuple[int, ...]], kinds: Sequence[str], most: int
) -> "tuple[nx.DiGraph[int], dict[int, tuple[int, ...]]]":
    """Boxes of at most so many nodes, joined until nothing more fits."""
    graph, joined = graph.copy(), dict(runs)
    kind = {box: kind_of(nodes, kinds) for box, nodes in joined.items()}
    before = None
    while most > 1 and before != len(joined):
        before = len(joined)
        for u in list(nx.topological_sort(graph)):
            for v in _like(graph, u):
                alike = kind[u] == kind[v] or FOLDED in (kind[u], kind[v])
                if u not in joined or not alike or len(joined[u]) + len(joined[v]) > most:
                    continue
                graph.add_edges_from((u, x) for x in list(graph.successors(v)))
                graph.add_edges_from((x, u) for x in list(graph.predecessors(v)) if x != u)
                graph.remove_node(v)
                joined[u] = tuple(sorted(joined[u] + joined.pop(v)))
                kind[u] = kind_of(joined[u], kinds)
    return graph, joined


def _like(graph: "nx.DiGraph[int]", u: int) -> Iterator[int]:
    """Boxes that may become one with `u` without a cycle: its only reader that reads nothing else,
    and those beside it that read the same, or are read by the same.
    """
    if u not in graph:
        return
    after = list(graph.successors(u))
    if len(after) == 1 and graph.in_degree(after[0]) == 1:
        yield after[0]
    near = {v for x in list(graph.predecessors(u))[:1] for v in graph.successors(x)}
    near |= {v for x in list(graph.successors(u))[:1] for v in graph.predecessors(x)}
    for v in sorted(near):
        if v <= u or v not in graph:
            continue
        reads, readers = set(graph.predecessors(u)), set(graph.successors(u))  # they grow
        same = reads and set(graph.predecessors(v)) == reads
        if same or (readers and set(graph.successors(v)) == readers):
            yield v


def _beside(graph: "nx.DiGraph[int]") -> int:
    """Boxes of the widest level."""
    return max(Counter(levels_of(graph).values()).values(), default=0)


def kind_of(nodes: Sequence[int], kinds: Sequence[str]) -> str:
    """How the nodes of a box run."""
    return next((kinds[i] for i in nodes if kinds[i] != FOLDED), FOLDED)


def label_of(nodes: Sequence[int], records: Sequence[NodeRecord]) -> str:
    """The operators of a box in few words.

    MatMul, Add    ->    MatMul, Add
    MatMul, MatMul, MatMul    ->    3 x MatMul
    Mul, Sub, Div, Exp    ->    Mul, Sub, 2 more
    """
    counts = Counter(records[i].op_type.rpartition("::")[2] for i in nodes)
    names = [name if n == 1 else f"{n} × {name}" for name, n in counts.items()]
    shown: list[str] = []
    for name in names:
        if shown and len(", ".join([*shown, name])) > 20:
            break
        shown.append(name)
    rest = sum(n for _, n in list(counts.items())[len(shown) :])
    return ", ".join([*shown, *[f"{rest} more"] * (rest > 0)])
