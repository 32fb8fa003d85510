"""Lists of places: what NonZero finds, the rows gathered by it, and where they are written back.

    places = NonZero(P)      rows = x[places]      y = f(rows)      z = base; z[places] += y

An entry more or less in the list is a row more or less of all that follows, as long as each row is
made of its own entry only: it shows in z at the entry's place, and nowhere else. So P does not
matter where z does not. To say so, values with a row per entry are looked at as if there were one
for every place of P: their dense form has the dimensions of P in the place of the list's.

    rows[o, j] = x[places[o], j]     dense     rows[t, j] = x[t, j]

A list about which anything else is asked (how many entries, at what position one is, all of them
at once) is not followed.
"""

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from pitc.ir.expr import Combine, Read, Shape, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import Poly, dim_index, poly, rename, substitute, within
from pitc.ir.lists import Lists, Rows, Sink
from pitc.ir.nodes import captures
from pitc.ir.region import EVERYWHERE, Region, pull
from pitc.passes.exprs.affine import in_type
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.record import PackRule, operator_of

Index = tuple[Poly | None, ...]


def find_lists(graph: Graph) -> Lists:
    """Follow the lists of a graph.

    Args:
        graph: The graph with its forward facts.
    """
    return _Finder(graph).find()


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.lists = Lists()
        self.sizes: dict[str, str] = {}  # values computed from how many entries a list has
        self.lost: set[str] = set()

    def find(self) -> Lists:
        for node in self.graph.nodes:
            self._visit(node)
        for name in self.graph.outputs:
            self.lost |= self._of([name])
        found = self.lists
        kept = found.sinks.keys() - self.lost
        rows = {name: r for name, r in found.rows.items() if r.places in kept}
        dense = {name: e for name, e in found.dense.items() if name in rows}
        return Lists(rows, dense, {p: s for p, s in found.sinks.items() if p in kept})

    def _of(self, names: Iterable[str]) -> set[str]:
        """The lists that values are made with."""
        rows = {self.lists.rows[x].places for x in names if x in self.lists.rows}
        return rows | {self.sizes[x] for x in names if x in self.sizes}

    def _visit(self, node: ir.Node) -> None:
        view = NodeView(self.graph, node)
        names = [x.name or "" for x in node.inputs if x is not None]
        lists = self._of(names)
        inside = self._of(captures(node))
        if inside or len(lists) > 1:
            self.lost |= inside | lists
        elif lists:
            (places,) = lists
            outputs = [(k, view.out(k)) for k in range(view.n_outputs) if view.out(k)]
            if not all(self._follow(view, k, name, places) for k, name in outputs):
                self.lost.add(places)
        if operator_of(node).live_places:
            self._start(view)

    def _start(self, view: NodeView) -> None:
        shape, expr = self.graph[view.name(0)].shape, self.graph[view.out()].expr
        if not shape or expr is None:
            return
        dense = (expr.shape[0], *shape)
        self.lists.rows[view.out()] = Rows(view.out(), 1, dense)
        self.lists.sinks[view.out()] = []

    def _follow(self, view: NodeView, k: int, name: str, places: str) -> bool:
        """Whether an output of a node is one of those that are understood."""
        value, expr = self.graph[name], self.graph[name].expr
        if value.branch:
            return False
        rows = [r for x in view_names(view) if (r := self.lists.rows.get(x)) is not None]
        sized = self.graph.ints(name) is not None
        if sized and (operator_of(view).reads_no_element or not rows):
            self.sizes[name] = places
            return True
        if expr is None or operator_of(view).reads_no_element:
            return False
        if any(view.name(r.operand) in self.sizes for r in expr.reads):
            return False
        if expr.combine is Combine.SCATTER:
            return k == 0 and self._ends(view, expr, places)
        # a number that the expression does not show
        asks = any(x in self.sizes for x in view_names(view))
        if asks and expr.combine is not Combine.MOVE and expr.reads:
            return False
        return self._is_rows(view, name, expr, places)

    def _is_rows(self, view: NodeView, name: str, expr: TensorExpr, places: str) -> bool:
        """Note a value with a row per entry, each made of its own entry only."""
        (count,) = self._count(places).symbols()
        axes = [d for d, e in enumerate(expr.shape) if count in e.symbols()]
        if len(axes) != 1 or expr.shape[axes[0]] != self._count(places):
            return False
        (axis,) = axes
        if f"o{axis}" not in (a.name for a in expr.pit_axes()):
            return False
        whole = dim_index(axis, expr.shape[axis])
        own = self.graph[self._mask(places)].shape or ()
        shift = {d: d + len(own) - 1 for d in range(axis + 1, len(expr.extents))}
        moved = [dim_index(shift.get(d, d), e) for d, e in enumerate(expr.extents)]
        reads: list[Read] = []
        for read in expr.reads:
            rows = self.lists.rows.get(view.name(read.operand))
            looked_at = [*read.index, *(p for t in read.within for p in t.idx)]
            if any(p is not None and count in p.symbols() for p in looked_at):
                return False
            index = [None if p is None else rename(p, shift) for p in read.index]
            if rows is not None:
                if read.index[rows.axis] != whole:
                    return False
                coords = (dim_index(axis + c, e) for c, e in enumerate(own))
                index[rows.axis : rows.axis + 1] = coords
            tests = pull(read.within, moved)
            if tests is None:
                return False
            reads.append(Read(read.operand, tuple(index), read.computed, tests))
        shape = (*expr.shape[:axis], *own, *expr.shape[axis + 1 :])
        self.lists.rows[name] = Rows(places, axis, shape)
        dense = TensorExpr(shape, tuple(reads), expr.reduced, expr.combine, expr.reducer)
        found = self._looked_up(view, dense)
        if found is None:
            return False
        self.lists.dense[name] = found
        return True

    def _looked_up(self, view: NodeView, dense: TensorExpr) -> TensorExpr | None:
        """The expression with the places of entries where it looks them up; None where it may look
        elsewhere.
        """
        if Assumes.INSIDE not in (operator_of(view).assumes or ()):
            return dense
        if dense.combine is not Combine.MOVE or len(dense.reads) > 2:
            return None
        if len(dense.reads) < 2:
            return dense
        data, index = dense.reads
        name, shape = view.name(1), self._shape(view.name(data.operand))
        if name not in self.lists.rows:
            return dense
        unknown = [d for d, p in enumerate(data.index) if p is None]
        lead: Index = index.index
        vectors = operator_of(view).packs is PackRule.LOOK_UP_VECTORS
        first = int(view.attr("batch_dims", 0)) if vectors else 0
        found = list(data.index)
        for d in unknown:
            at = (*lead[:-1], poly(d - first)) if vectors else lead
            place = self.place(name, at)
            if place is None or not within(place, shape[d]):
                return None
            found[d] = place
        read = Read(data.operand, tuple(found), within=data.within)
        return TensorExpr(dense.shape, (read,), (), Combine.MOVE)

    def _ends(self, view: NodeView, expr: TensorExpr, places: str) -> bool:
        """Note a scatter of rows to the places of their entries."""
        index, updates = (self.lists.rows.get(view.name(i)) for i in (1, 2))
        if index is None or updates is None:
            return False
        if self.graph[view.name(2)].finite_if != EVERYWHERE and not self._is_exact(view.name(2)):
            return False
        own = self.graph[self._mask(places)].shape or ()
        at: list[Poly | None] = []
        if len(expr.reduced) == 1:  # an index per element
            (axis,) = expr.ordered
            if not index.axis == updates.axis == axis or index.shape != updates.shape:
                return False
            whole = tuple(dim_index(d, e) for d, e in enumerate(updates.shape))
            at = [*whole[:axis], self.place(view.name(1), whole), *whole[axis + len(own) :]]
        else:  # an index vector per row
            depth = len(expr.ordered)
            coords = tuple(dim_index(d, e) for d, e in enumerate(own))
            if index.axis or updates.axis or len(index.shape) != len(own) + 1:
                return False
            at = [self.place(view.name(1), (*coords, poly(c))) for c in range(depth)]
            rest = enumerate(expr.shape[depth:], len(own))
            at += [dim_index(d, e) for d, e in rest]
        known = [p for p in at if p is not None]
        if len(known) != len(expr.shape):
            return False
        if not all(within(p, e) for p, e in zip(known, expr.shape, strict=True)):
            return False
        sink = Sink(view.name(2), view.out(), tuple(known))
        self.lists.sinks[places].append(sink)
        return True

    def place(self, name: str, index: Index) -> Poly | None:
        """The number that the dense form of a value holds somewhere, as places of the list."""
        rows, value = self.lists.rows.get(name), self.graph[name]
        if rows is None:
            known = value.affine
            return None if known is None else substitute(known, index, value.shape)
        node, dense = value.producer, self.lists.dense.get(name)
        if name == rows.places:
            component = None if index[0] is None else index[0].as_int()
            return None if component is None else index[1 + component]
        if node is None or dense is None or not dense.reads:
            return None
        view = NodeView(self.graph, node)
        if dense.combine is Combine.MOVE:
            read = next((r for r in dense.reads if _holds(r.within, index)), None)
            return None if read is None else self._at(view, read, index, dense)
        rule = operator_of(view).affine
        parts = [self._at(view, r, index, dense) for r in dense.reads] if rule else []
        known_parts = [p for p in parts if p is not None]
        if rule is None or len(known_parts) != len(dense.reads):
            return None
        result = rule(known_parts)
        dtype = value.dtype
        fits = result is not None and dtype is not None and dtype.kind in "iu"
        return result if fits and dtype and result and in_type(result, dtype) else None

    def _at(self, view: NodeView, read: Read, index: Index, dense: TensorExpr) -> Poly | None:
        whole = (*index, *(None for _ in dense.reduced))
        found = [None if p is None else substitute(p, whole, dense.extents) for p in read.index]
        return self.place(view.name(read.operand), tuple(found))

    def _is_exact(self, name: str) -> bool:
        dtype = self.graph[name].dtype
        return dtype is not None and dtype.kind in "biu"

    def _shape(self, name: str) -> Shape:
        rows = self.lists.rows.get(name)
        return rows.shape if rows is not None else self.graph[name].shape or ()

    def _count(self, places: str) -> Poly:
        shape = self.graph[places].shape
        assert shape is not None
        return shape[1]

    def _mask(self, places: str) -> str:
        node = self.graph[places].producer
        assert node is not None
        return NodeView(self.graph, node).name(0)


def view_names(view: NodeView) -> list[str]:
    """The operands of a node."""
    return [view.name(i) for i in range(view.n_inputs) if view.has(i)]


def _holds(tests: Region, index: Sequence[Poly | None]) -> bool:
    """True where a place is known to pass all tests."""
    found = pull(tests, index)
    return found is not None and not found.tests
