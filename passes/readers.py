"""Why a value is read whole: by which outputs of the graph, each of which alone needs all of it.

Every dead fact of a value comes from those of what its readers compute. So where it has none, there
is a reader that leaves nothing out; where that one's result has none either, the same is asked of
it, down to an output of the graph. One walk from the end finds all outputs that are reached so, and
each of them alone needs all of the value. Where none of these is read, something of it may be left
out, as far as each node passes on what its result leaves out.

    h -> LayerNorm -> tokens, given up where mask is 0    leaves padded rows out
    h -> Gather (.., ArgMax) -> emb                       reads any row: h is read whole by emb
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from pitc.ir.emptiness import where_left_out
from pitc.ir.expr import TensorExpr
from pitc.ir.graph import Graph, chosen
from pitc.ir.index import Poly, dim_index, substitute
from pitc.ir.nodes import first_output, node_name, output_names
from pitc.ir.report import NodeRecord, WholeReader
from pitc.ir.summary import ways_of
from pitc.ir.work import contracts

LEAST = 0.01  # of the model's work: less is not told
SHARED = 0.5  # of the work: an output that reads so much of it is told, too
MOST_VALUES = 256  # at which ways end: more are not told apart, so that it stays linear


@dataclass(frozen=True, slots=True)
class Readers:
    """Who reads values whole.

    Args:
        graph: The analysed graph.
        ends: Where ways end along which all of a value is read: outputs of the graph, or the last
            value that is read whole, where its readers' own results are read in part only.
        bits: For each value that is read whole, the ends that are reached, as bits.
    """

    graph: Graph
    ends: tuple[str, ...]
    bits: dict[str, int]

    def of(self, name: str) -> list[str]:
        """The ends of a value, outputs first; empty where something of it may be left out."""
        return chosen(self.ends, self.bits.get(name, 0))

    def is_output(self, end: str) -> bool:
        """True for an output of the graph of which no part is given up."""
        return self.graph[end].wanted_whole

    def way(self, name: str, end: str) -> list[ir.Node]:
        """The nodes on a shortest way from a value to one of its ends."""
        bit, level = 1 << self.ends.index(end), [name]
        made: dict[str, tuple[str, ir.Node] | None] = {name: None}
        while level and end not in made:
            after: list[str] = []
            for value in level:
                for node in self.graph[value].whole_readers:
                    new = (o for o in output_names(node) if self.bits.get(o, 0) & bit)
                    for out in new:
                        if out not in made:
                            made[out] = value, node
                            after.append(out)
            level = after
        nodes = []
        step = made.get(end)
        while step is not None:
            nodes.append(step[1])
            step = made[step[0]]
        return nodes[::-1]


def readers_of(graph: Graph) -> Readers:
    """Who reads the values of a graph whole; it takes a step for each operand.

    Args:
        graph: The graph after `dead_facts`.
    """
    outputs = dict.fromkeys(x for x in graph.outputs if graph[x].wanted_whole)
    ends = {name: k for k, name in enumerate(outputs)}
    most = len(ends) + MOST_VALUES
    bits: dict[str, int] = {}
    computed = [name for node in graph.nodes for name in output_names(node)]
    for name in (*reversed(computed), *graph.inputs):
        value = graph[name]
        if where_left_out(value.dead):
            continue
        found = 1 << ends[name] if name in ends else 0
        behind = [_behind(node, bits) for node in value.whole_readers]
        for each in behind:
            found |= each
        if (not found or not all(behind)) and (name in ends or len(ends) < most):
            found |= 1 << ends.setdefault(name, len(ends))
        bits[name] = found
    return Readers(graph, tuple(ends), bits)


def _behind(node: ir.Node, bits: dict[str, int]) -> int:
    """The ends of a node's results; none where these are read in part."""
    found = 0
    for name in output_names(node):
        found |= bits.get(name, 0)
    return found


def whole_reader(readers: Readers, records: Sequence[NodeRecord]) -> WholeReader | None:
    """Who reads most of the work that runs whole, as nothing was found to leave out of it.

    Args:
        readers: Who reads which value.
        records: What became of each node of the graph.

    Returns:
        Who it is; None where that is too little to be told.
    """
    nodes, total = readers.graph.nodes, sum(record.flops or 0 for record in records)
    alike: dict[int, list[int]] = {}  # nodes that the same ends read
    for i, way in enumerate(ways_of(records)):
        bits = readers.bits.get(first_output(nodes[i]), 0)
        if way == "dense" and bits:
            alike.setdefault(bits, []).append(i)
    work = {bits: sum(records[i].flops or 0 for i in places) for bits, places in alike.items()}
    (best, flops), *_ = _by_end(readers, work).most_common(1) or [("", 0)]
    if not total or flops < LEAST * total:
        return None
    bit = 1 << readers.ends.index(best)
    beside = _by_end(readers, {bits: n for bits, n in work.items() if bits & bit})
    others = [e for e, n in beside.most_common() if e != best and n >= SHARED * flops]
    places = sorted(i for bits, found in alike.items() if bits & bit for i in found)
    mine = [nodes[i] for i in places]
    last = _last_product(readers.graph, mine) or mine[-1]
    through = _through(readers, first_output(last), best)
    return WholeReader(
        outputs=(best, *filter(readers.is_output, others)) if readers.is_output(best) else (),
        value="" if readers.is_output(best) else best,
        node=node_name(through) if through is not None else "",
        op_type=through.op_type if through is not None else "",
        nodes=len(mine),
        flops=flops,
        share=round(flops / total, 6),
    )


def _by_end(readers: Readers, work: Mapping[int, int]) -> Counter[str]:
    """Operations that each end reads, of those that some ends read together."""
    found: Counter[str] = Counter()
    for bits, flops in work.items():
        found.update(dict.fromkeys(chosen(readers.ends, bits), flops))
    return found


def _last_product(graph: Graph, nodes: Iterable[ir.Node]) -> ir.Node | None:
    """The last sum of products among nodes in order."""
    found = None
    for node in nodes:
        expr = graph[first_output(node)].expr
        found = node if expr is not None and contracts(expr) else found
    return found


def _through(readers: Readers, name: str, end: str) -> ir.Node | None:
    """The node on the way to an end in which rows of a value stop being rows, a pooling or a choice
    of one of them; for a value at which ways end, what reads all of it. None where rows of the
    value are rows of the output, and where no single node reads all.
    """
    graph = readers.graph
    if not readers.is_output(end):
        return next(iter(graph[end].whole_readers), None)
    shape = graph[name].shape
    if shape is None:
        return None
    rows: list[Poly] = [dim_index(d, shape[d]) for d in _rows(graph, name)]
    for node in readers.way(name, end):
        expr, extents = graph[first_output(node)].expr, graph[name].shape
        read = None if expr is None else _index(node, expr, name)
        if expr is None or extents is None or read is None:
            return node
        kept = [substitute(p, read, extents) for p in rows]
        rank = len(expr.shape)
        if any(p is None or any(a.dim >= rank for a in p.digits()) for p in kept):
            return node
        rows, name = [p for p in kept if p is not None], first_output(node)
    return None


def _index(node: ir.Node, expr: TensorExpr, name: str) -> Sequence[Poly | None] | None:
    """Where a node reads a value first; None where that is not described."""
    places = {k for k, x in enumerate(node.inputs) if x is not None and x.name == name}
    return next((r.index for r in expr.reads if r.operand in places), None)


def _rows(graph: Graph, name: str) -> list[int]:
    """The dimensions of a value that are no features: of a product those that its left operand has,
    else all but the last one.
    """
    shape, expr = graph[name].shape or (), graph[name].expr
    if expr is None or not contracts(expr):
        return list(range(len(shape) - 1))
    left = {a.dim for p in expr.reads[0].index if p is not None for a in p.digits()}
    return [d for d in range(len(shape)) if d in left]
