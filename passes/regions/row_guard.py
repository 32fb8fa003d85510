"""A condition on rows of attention's weights, behind the softmax: rows where it holds are 0.

    z = score + mask            mask is -inf at hidden pairs, 0 at the others
    p = softmax(z)              NaN in a row of hidden pairs alone
    c = (max over k of mask == -inf)
    w = Where(c, 0, p)

Such a row sees no pair, and the kernel can make it 0 by itself, if c holds in all rows that see
none, and in no other. Both follow from what is known of the mask, pair by pair: of a line of -inf
the maximum is -inf, and a line with a 0 in it has at least 0. So c is not computed, nor the mask.

Where that does not follow, pairs of rows in which c holds are hidden as others are, by c itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pitc.ir.constant import BOUNDED, TOP, Constant, Range, is_assumed, is_number, is_zero, range_of
from pitc.ir.expr import Combine, Reducer, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import Digit, Maps, Poly, dim_index, substitute
from pitc.ir.nodes import first_output, input_names
from pitc.ir.region import Region, Test, covers, pull, region
from pitc.passes.rules.constants import evaluate_constants
from pitc.passes.rules.record import operator_of

LONGEST = 8  # steps from the mask to the condition


@dataclass(frozen=True, slots=True)
class RowGuard:
    """Where rows of weights are replaced by 0.

    Args:
        name: A bool.
        index: Its dimensions, as indices over those of the weights.
        when: The truth value at which rows are 0.
    """

    name: str
    index: tuple[Poly, ...]
    when: bool

    @property
    def rows(self) -> Region | None:
        """Where rows are 0, over the dimensions of the weights."""
        return region([Test(self.name, self.index, "nz", self.when)])


def row_guard(graph: Graph, expr: TensorExpr, names: Sequence[str], key: int) -> RowGuard | None:
    """The guard that a Where is, and that its weights follow; None where it is none.

    Args:
        graph: The analysed graph.
        expr: Of the Where.
        names: Its operands.
        key: The dimension of keys of its result.
    """
    reads = [r for r in expr.reads if r.operand == 0]
    zeros = [k for k in (1, 2) if _is_zero(graph, names[k])]
    if len(reads) != 1 or len(zeros) != 1 or graph.splat(names[0]) is not None:
        return None
    index = [p for p in reads[0].index if p is not None]
    if len(index) != len(reads[0].index) or any(d.dim == key for p in index for d in p.digits()):
        return None
    return RowGuard(names[0], tuple(index), zeros == [1])


def guarded(graph: Graph, name: str, key: int) -> str | None:
    """The weights that a guard follows, in the shape of its result; None where a value is none.

    Args:
        graph: The analysed graph.
        name: The value.
        key: Its dimension of keys.
    """
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None or node.domain or not operator_of(node).chooses:
        return None
    names = input_names(node)
    guard = row_guard(graph, expr, names, key)
    kept = None if guard is None else names[2 if guard.when else 1]
    return kept if kept is not None and graph[kept].shape == graph[name].shape else None


def _is_zero(graph: Graph, name: str) -> bool:
    return any(not f.region and is_zero(f.constant) for f in graph[name].fills)


def settled(guard: RowGuard, rows: "Rows") -> bool:
    """True where a guard holds in every row that sees none of some keys, and in no other."""
    row = rows.of(guard.name, guard.index)
    known = is_number(row.blind) and is_number(row.seeing)
    return known and bool(row.blind) == guard.when and bool(row.seeing) != guard.when


@dataclass(frozen=True, slots=True)
class Row:
    """What a value of a row of pairs is, where the row sees none of some keys, and where it sees
    one.
    """

    blind: Constant
    seeing: Constant


UNKNOWN = Row(TOP, TOP)


@dataclass(slots=True)
class Rows:
    """Evaluates values of rows.

    Args:
        graph: The analysed graph.
        hidden: Regions of the weights which together hold every hidden pair.
        seen: And every other one.
        key: The dimension of keys, whole.
        rests_on: Facts that were used.
    """

    graph: Graph
    hidden: Sequence[Region]
    seen: Sequence[Region]
    key: Digit
    rests_on: list[Region]

    def of(self, name: str, maps: Maps, steps: int = LONGEST) -> Row:
        """What is known of a value.

        Args:
            name: Its name.
            maps: For each of its dimensions an index over those of the weights.
            steps: How many producers are followed.
        """
        number, node = self.graph.splat(name), self.graph[name].producer
        expr = self.graph[name].expr
        if number is not None:
            return Row(number, number)
        if node is None or expr is None or not steps or first_output(node) != name:
            return UNKNOWN
        view = NodeView(self.graph, node)
        if expr.combine is Combine.REDUCE:
            return self._extreme(view, expr, maps)
        if expr.combine not in (Combine.MAP, Combine.MOVE):
            return UNKNOWN
        reads = expr.reads if expr.combine is Combine.MAP else expr.moving_reads
        found: list[Row] = []
        for read in reads:
            at = [None if p is None else substitute(p, maps, expr.shape) for p in read.index]
            if read.within or None in at:
                return UNKNOWN
            found.append(self.of(view.name(read.operand), at, steps - 1))
        if expr.combine is Combine.MOVE:
            return found[0] if len(found) == 1 else UNKNOWN
        return Row(
            self._computed(view, [row.blind for row in found]),
            self._computed(view, [row.seeing for row in found]),
        )

    def _computed(self, view: NodeView, constants: list[Constant]) -> Constant:
        """What an elementwise step gives: of numbers, or of what lies between two."""
        if not all(is_number(c) or isinstance(c, Range) for c in constants):
            return TOP
        if any(map(is_assumed, constants)):
            self.graph.assume(BOUNDED, view.node)
        return evaluate_constants(view.op, tuple(constants), node=view)

    def _extreme(self, view: NodeView, expr: TensorExpr, maps: Maps) -> Row:
        """The least or the largest of a row, which has a pair."""
        if expr.reducer not in (Reducer.MAX, Reducer.MIN) or expr.reduced != (self.key.extent,):
            return UNKNOWN
        (read,) = expr.reads
        over = [*maps, dim_index(self.key.dim, self.key.extent)]
        name = view.name(read.operand)
        index = [None if p is None else substitute(p, over, expr.extents) for p in read.index]
        found = [
            (where, r)
            for f in self.graph[name].fills
            if (where := pull(f.region, index, self.graph[name].shape)) is not None
            if (r := range_of(f.constant)) is not None
        ]
        hidden, seen = self._known(found, self.hidden), self._known(found, self.seen)
        if hidden is None or seen is None:
            return UNKNOWN
        both, largest = _around([hidden, seen]), expr.reducer is Reducer.MAX
        lo, hi = (seen.lo, both.hi) if largest else (both.lo, seen.hi)
        return Row(_constant(hidden), _constant(Range(lo, hi, both.assumed)))

    def _known(
        self, facts: Sequence[tuple[Region, Range]], pairs: Sequence[Region]
    ) -> Range | None:
        """What is known of every pair of some regions."""
        found = list[Range]()
        for pair in pairs:
            fits = [(where, r) for where, r in facts if covers(where, pair)]
            if not fits:
                return None
            where, known = min(fits, key=lambda fit: fit[1].lo != fit[1].hi)
            self.rests_on.append(where)
            found.append(known)
        return _around(found) if found else None


def _around(ranges: Sequence[Range]) -> Range:
    """The range that holds others."""
    assumed = any(r.assumed for r in ranges)
    return Range(min(r.lo for r in ranges), max(r.hi for r in ranges), assumed)


def _constant(known: Range) -> Constant:
    return known.lo if known.lo == known.hi else known
