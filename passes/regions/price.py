"""What a packed form saves and what it moves: does a region pay?

    saved operations per row * rows dead at most  >=  flops_per_byte * moved bytes per row * rows

A product of [rows, 384] by [384, 1536] saves 1.2 million operations a row and moves 7,680 bytes.

And does it repay the tests that say which rows live? Regions of one domain repay them together.

    saved operations per row * rows dead at most
        >=  flops_per_byte * tested_price * bytes of the tests
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import onnx_ir as ir

from pitc.ir.expr import Shape, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import Poly
from pitc.ir.nodes import first_output
from pitc.ir.plans.ops import Attention
from pitc.ir.plans.whole import AddRows, Grouped, OuterProducts
from pitc.ir.work import EXAMPLE_SIZE, contracts
from pitc.passes.regions.demand import Demand, packed_by
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import (
    Form,
    GatheredOperand,
    PackedOperand,
    Saves,
)
from pitc.passes.regions.layout import layout_of
from pitc.passes.regions.live_tests import bytes_touched, input_mask, tests_cost_more

Forms = Mapping[ir.Node, Form]
DENSE_SHARE = 8  # of attention's operations, what its scores take in memory is one of so many parts
KEYS_PER_QUERY = 64  # that are turned, where keys are a cache


@dataclass(frozen=True, slots=True)
class Priced:
    """One connected region and what it is worth.

    Args:
        members: Its nodes in graph order.
        domain: What its rows are.
        flops: Operations that one dead row saves.
        moved: Bytes per row that enter and leave it.
        price: Operations that must be saved for every byte.
        start: Bytes that could be moved in the time it takes to start.
    """

    members: list[ir.Node]
    domain: Domain
    flops: int
    moved: int
    price: int
    start: int

    @property
    def pays(self) -> bool:
        """The saved work repays the moved data."""
        rows = estimated_size(self.domain.extents)
        saved = self.domain.most_dead * self.flops * rows
        return bool(self.flops) and saved >= self.price * (self.moved * rows + self.start)


def priced_regions(graph: Graph, forms: Forms, demand: Demand) -> Iterator[Priced]:
    """The connected regions of what runs packed, in graph order, with their prices."""
    target = graph.target
    for members in _connected(graph, demand):
        flops = sum(_row_flops(graph, forms[n]) for n in members)
        copied = 2 * sum(_copied_flops(graph, forms[n]) for n in members) > flops
        domains = [d for n in members for d in forms[n].ranges]
        yield Priced(
            members,
            next((d for d in domains if not d.lives_everywhere), domains[0]),
            flops,
            _moved_bytes(graph, forms, demand, members),
            target.flops_per_byte * (target.copied_price if copied else 1),
            target.copied_start_bytes * copied,
        )


def costly_tests(graph: Graph, forms: Forms, demand: Demand) -> dict[Domain, str]:
    """Domains for which finding out what lives costs more than it saves, and why.

    What can be left out has to repay the bytes that the tests read and make at every size class:
    tests of pairs grow with the square of a length, products with a row mostly do not.
    """
    why = dict[Domain, str]()
    used: dict[Domain, list[Form]] = {}
    for form in (forms[n] for n in graph.nodes if n in demand.forms):
        for domain in form.domains:
            used.setdefault(domain, []).append(form)
    for domain, forms_of in used.items():
        if domain.lives_everywhere:
            continue
        saved = partial(_saved_by_all, graph, forms_of, domain)
        sums = all(isinstance(form.plan, OuterProducts) for form in forms_of)
        in_place = sums and bool(input_mask(graph, domain))
        found = tests_cost_more(graph, bytes_touched(graph, domain), saved, in_place=in_place)
        why |= {domain: found} if found else {}
    return why


def _saved_by_all(graph: Graph, forms: Iterable[Form], domain: Domain, size: int) -> int:
    return sum(_saved_flops(graph, form, domain, size) for form in forms)


def _saved_flops(graph: Graph, form: Form, domain: Domain, size: int) -> int:
    """Operations that a form leaves out where a whole domain is dead: of attention all of them,
    when its keys are.
    """
    if domain in form.ranges:
        rows = domain.most_dead * estimated_size(domain.extents, size)
        return int(_row_flops(graph, form, size) * rows)
    out = form.packings[0]
    rows = estimated_size(out.domain.extents, size)
    return rows * _flops_of_row(graph, form, size) if form.saves is Saves.PAIRS else 0


def pair_flops(expr: TensorExpr, size: int) -> int:
    """Operations of both products of attention, of which this is the second, at unknown sizes."""
    return 4 * _products(expr, enumerate(expr.shape), size)


def nodes_downstream_of_contraction(graph: Graph, forms: Forms, demand: Demand) -> set[ir.Node]:
    """Packed nodes that are contractions, or computed from one in packed form."""
    return _reached([n for n in demand.forms if _row_flops(graph, forms[n])], demand.readers)


def nodes_upstream_of_contraction(graph: Graph, forms: Forms, demand: Demand) -> set[ir.Node]:
    """Packed nodes that are contractions or sums of live rows, or from which one is computed in
    packed form.
    """
    leading = (
        n
        for n in demand.forms
        if forms[n].plan is not None or forms[n].terms is not None or contraction_flops(graph, n)
    )
    return _reached(leading, demand.makers)


def _reached(starts: Iterable[ir.Node], *links: Mapping[ir.Node, list[ir.Node]]) -> set[ir.Node]:
    """Nodes that links lead to from some, these among them."""
    todo, found = list(starts), set[ir.Node]()
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            for link in links:
                todo += link.get(node, ())
    return found


def _connected(graph: Graph, demand: Demand) -> Iterator[list[ir.Node]]:
    """Nodes that hand packed values to one another, in graph order."""
    order = {n: k for k, n in enumerate(graph.nodes) if n in demand.forms}
    seen = set[ir.Node]()
    for node in order:
        if node not in seen:
            members = _reached([node], demand.makers, demand.readers)
            seen |= members
            yield sorted(members, key=order.__getitem__)


def contraction_flops(graph: Graph, node: ir.Node) -> int:
    """How many products a node sums up; 0 where it is no contraction."""
    expr = graph[first_output(node)].expr
    return 0 if expr is None else _products(expr, enumerate(expr.shape))


def _products(
    expr: TensorExpr, points: Iterable[tuple[int, Poly]], size: int = EXAMPLE_SIZE
) -> int:
    """How many products a contraction sums up, 0 for other operators.

    Args:
        expr: The expression.
        points: Output dimensions, or digits of them, and their extents. A transposed convolution
            goes along the places of its operand: those of its output, which are ordered, are free.
        size: Estimate of an unknown extent.
    """
    if not contracts(expr):
        return 0
    extents = (*(e for d, e in points if d not in expr.ordered), *expr.reduced)
    return estimated_size(extents, size)


def estimated_size(extents: Shape, size: int = EXAMPLE_SIZE) -> int:
    """A product of extents, each size symbol of which is estimated."""
    return prod(int(e.evaluate(dict.fromkeys(e.symbols(), size), {})) for e in extents)


def _row_flops(graph: Graph, form: Form, size: int = EXAMPLE_SIZE) -> int:
    """Multiply-adds, counted twice, that one dead row saves.

    Attention from all rows saves none of them where no pair is hidden, as what a dead key saves
    grows with the number of rows, which may be one. But no score is written to memory, and none is
    read: that counts as a part of them (`DENSE_SHARE`). A grouped product copies no matrix, which
    counts as bytes that are moved.
    """
    out = form.packings[0]
    if form.saves is Saves.TERMS:
        rows = isinstance(form.plan, AddRows) and form.plan.sized
        points = out.layout.rest_shape if rows else graph[out.name].shape or ()
        return 2 * estimated_size(points, size)
    flops = _flops_of_row(graph, form, size)
    if not out.domain.lives_everywhere:
        return flops
    if isinstance(form.plan, Grouped):
        return flops + graph.target.flops_per_byte * _copied_bytes(graph, form, size)
    if not isinstance(form.plan, Attention):
        return 0
    if form.plan.hides:
        return flops
    return flops // DENSE_SHARE if graph.target.hides_pairs == "lists" else 0


def _copied_bytes(graph: Graph, form: Form, size: int) -> int:
    """Bytes of the matrices that the nodes which a grouped product absorbs copy for a row."""
    copies = [graph[first_output(n)].shape or () for n in form.absorbs]
    largest = max(estimated_size(shape, size) for shape in copies)
    return 2 * 4 * largest // estimated_size(form.packings[0].domain.extents, size)


def _flops_of_row(graph: Graph, form: Form, size: int) -> int:
    """Operations that computing one row takes."""
    out = form.packings[0]
    expr, points = graph[out.name].expr, ((d.dim, d.extent) for d in out.layout.rest)
    return (
        0
        if expr is None
        else (4 if form.saves is Saves.PAIRS else 2) * _products(expr, points, size)
    )


def _copied_flops(graph: Graph, form: Form) -> int:
    """Those of them that ONNX Runtime does: products of rows are lowered to kernels of our own."""
    rows = form.plan is not None or (
        form.op_type in ("MatMul", "Gemm") and not form.materialises_operands
    )
    return 0 if rows else _row_flops(graph, form)


def _moved_bytes(graph: Graph, forms: Forms, demand: Demand, members: Collection[ir.Node]) -> int:
    """Bytes per row that enter and leave a region; rows in their own order need no copy.

    Where nothing but pairs is left out, these rows must lie so, or they are turned. Keys of other
    extents than the queries may be many times as many: a cache.
    """
    entering, price = dict[str, int](), graph.target.apart_price
    only_pairs = all(d.lives_everywhere for n in members for d in forms[n].domains)
    attends = [n for n in members if isinstance(forms[n].plan, Attention)]
    queries = {forms[n].packings[0].domain.extents for n in attends or members}
    for node in members:
        for operand in forms[node].operands:
            if isinstance(operand, GatheredOperand) or (
                isinstance(operand, PackedOperand)
                and packed_by(forms, graph, operand) is None
                and not (
                    operand.domain.lives_everywhere
                    and (not only_pairs or _in_order(graph, operand))
                )
            ):
                row = _row_bytes(graph, operand.name, _row(graph, operand))
                if operand.domain.lives_everywhere and operand.domain.extents not in queries:
                    row *= KEYS_PER_QUERY
                entering[operand.name] = row * (price if _lies_apart(graph, operand) else 1)
    leaving = sum(
        _row_bytes(graph, packing.name, packing.layout.rest_shape)
        for node in members
        for packing in forms[node].packings
        if packing.name in demand.exits and not packing.domain.lives_everywhere
    )
    return sum(entering.values()) + leaving


def _row(graph: Graph, operand: PackedOperand | GatheredOperand) -> Shape:
    """Extents of one row of a value that is gathered."""
    shape = graph[operand.name].shape or ()
    if isinstance(operand, GatheredOperand):
        return tuple(e for e, c in zip(shape, operand.codes, strict=True) if c == "r")
    layout = layout_of(shape, operand.coords)
    return shape if layout is None else layout.rest_shape


def _in_order(graph: Graph, operand: PackedOperand) -> bool:
    """True where all rows lie as they are read."""
    layout = layout_of(graph[operand.name].shape or (), operand.coords)
    return layout is not None and layout.in_order


def _lies_apart(graph: Graph, operand: PackedOperand | GatheredOperand) -> bool:
    """True where the elements of a row do not lie side by side: its last dimension is another's."""
    if isinstance(operand, GatheredOperand):
        return operand.codes[-1] != "r" and "r" in operand.codes
    rank = len(graph[operand.name].shape or ())
    return operand.domain.rank < rank and any(c.dim == rank - 1 for c in operand.coords)


def _row_bytes(graph: Graph, name: str, row: Shape) -> int:
    dtype = graph[name].dtype
    return (4 if dtype is None else dtype.itemsize) * estimated_size(row)
