"""How a permutation of one value's index passes a node.

A permutation of some digit of a value's index is the same permutation of an iteration axis of each
node that computes or reads the value, hence of digits of that node's other operands and outputs.
Followed from node to node (`coordinates.py`), these are the values that share one packed axis.
Where an axis is looked at by position, or leaves the node's index map in pieces, the permutation
stops: there the data must be back in its own order.
"""

from collections.abc import Iterator

import onnx_ir as ir

from pitc.ir.expr import Combine, Read, Reducer, TensorExpr
from pitc.ir.graph import Graph, output_names
from pitc.ir.index import Digit, Poly, atom, digit
from pitc.ir.refusal import Code
from pitc.ir.region import Test
from pitc.passes.rules.record import operator_of


class Stop(Exception):
    """A node that the permutation does not pass."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def neighbours(graph: Graph, value: str) -> Iterator[ir.Node]:
    """The node that computes a value, and those that read elements of it."""
    producer = graph[value].producer
    if producer is not None:
        yield producer
    yield from (n for n in graph[value].uses if not operator_of(n).reads_no_element)


def across(
    graph: Graph, node: ir.Node, value: str, place: Digit, *, softmax: bool = False
) -> list[tuple[str, Digit]]:
    """Digits of a node's operands and outputs that go with a digit of one of them.

    Args:
        graph: The graph, its expressions known.
        node: The node.
        value: One of its operands or outputs.
        place: A digit of that value's index.
        softmax: Pass along the lines of a softmax, too: it permutes its results as its operand is
            permuted, though it cannot run on some of a line.

    Raises:
        Stop: The permutation does not pass the node.
    """
    reached: list[tuple[str, Digit]] = []
    inputs = [x.name if x is not None else None for x in node.inputs]
    for name in output_names(node):
        expr = graph[name].expr
        if expr is None:
            raise Stop(Code.NO_RULE, graph[name].unruled or f"'{name}' has no expression")
        axes = {place} if name == value else set()
        listed = name == value
        for read in expr.reads:
            if inputs[read.operand] == value:
                listed = True
                axes.add(_iterated(read, place, value))
        if value in inputs and not listed:
            raise Stop(Code.AXIS_NOT_PIT, f"how '{value}' is read is not described")
        along = _along_lines(expr) if softmax else {}
        axes |= {Digit(along[a.dim], a.stride, a.extent) for a in axes if a.dim in along}
        for axis in axes:
            if axis.dim not in along:
                _check(expr, axis)
            if axis.dim < len(expr.shape):
                reached.append((name, axis))
            for read in expr.reads:
                operand = inputs[read.operand]
                shape = graph[operand].shape if operand is not None else None
                if operand is None or shape is None:
                    raise Stop(Code.AXIS_NOT_PIT, f"the shape of operand {read.operand} is unknown")
                reached += [(operand, d) for d in _read_at(read, axis, shape, operand)]
    return reached


def _along_lines(expr: TensorExpr) -> dict[int, int]:
    """Of a softmax, the axis that a line is read along for the one that its results lie along, and
    the other way round.
    """
    if expr.combine is not Combine.SOFTMAX:
        return {}
    pairs = [(len(expr.shape) + k, d) for k, d in enumerate(expr.normal)]
    return dict(pairs) | {d: k for k, d in pairs}


def _iterated(read: Read, place: Digit, value: str) -> Digit:
    """The digit of the iteration space that a digit of an operand's index is."""
    p = read.index[place.dim]
    if p is None and read.computed:
        raise Stop(Code.AXIS_NOT_PIT, f"which places of '{value}' are read depends on data")
    found = None if p is None else digit(p, place.stride, place.extent)
    if found is None:
        raise Stop(Code.LAYOUT, f"'{value}' has no index expression for {place}")
    digits = list(found.digits())
    if len(digits) == 1 and found == atom(digits[0]) and digits[0].extent == place.extent:
        return digits[0]
    if len(digits) > 1 and all(
        digit(found, coef, d.extent) == atom(d)
        for ds, coef in found.by_digits().items()
        for d in ds
    ):
        raise Stop(Code.LAYOUT, f"'{value}' is read at {p}: the axis is split into parts")
    raise Stop(Code.AXIS_NOT_PIT, f"'{value}' is read at the derived index {p}")


def _check(expr: TensorExpr, axis: Digit) -> None:
    """Refuse an axis whose positions matter, or that is not reduced in any order."""
    name = expr.axes[axis.dim].name
    reduced = axis.dim >= len(expr.shape)
    if axis.dim in expr.ordered or (reduced and expr.reducer is Reducer.ORDERED):
        raise Stop(Code.ORDERED, f"the positions along {name} matter")
    if axis.dim in expr.normal or (reduced and not expr.reducer.commutes):
        raise Stop(Code.AXIS_NOT_PIT, f"{name} is normalised")
    for read in expr.reads:
        for test in read.within:
            if any(d.overlaps(axis) for d in _positions(test)):
                raise Stop(Code.AXIS_NOT_PIT, f"operand {read.operand} covers a range of {name}")


def _positions(test: Test) -> set[Digit]:
    """Digits that a test looks at as numbers (and not to find an element)."""
    by_position = {"pos": test.idx, "below": test.idx[-1:]}.get(test.pred, ())
    return {d for p in by_position for d in p.digits()}


def _read_at(read: Read, axis: Digit, shape: tuple[Poly, ...], operand: str) -> Iterator[Digit]:
    """Digits of an operand's index that are a digit of the iteration space."""
    used = False
    for j, p in enumerate(read.index):
        if p is None:
            continue
        for digits, coef in p.by_digits().items():
            mine = [d for d in digits if d.overlaps(axis)]
            if not mine:
                continue
            used = True
            inner = axis.stride.divide(mine[0].stride) if len(digits) == 1 else None
            stride = coef * inner if inner is not None else None
            if stride is None or digit(p, stride, axis.extent) != atom(axis):
                raise Stop(Code.AXIS_NOT_PIT, f"'{operand}' is read at the derived index {p}")
            if shape[j].divide(stride * axis.extent) is None:
                raise Stop(Code.LAYOUT, f"only {axis.extent} of {shape[j]} in '{operand}' are read")
            yield Digit(j, stride, axis.extent)
    if None in read.index and not read.computed and not used:
        raise Stop(Code.AXIS_NOT_PIT, f"which places of '{operand}' are read is not described")
