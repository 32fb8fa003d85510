"""Operands of contractions that may hold zeros when the model runs.

    y[.., m, n] = sum over k of x[.., m, k] * w[.., k, n]

A term with x = 0 is 0 and may be left out, if w is finite. Whether an operand has zeros is seen in
its own elements when the model runs; a fill fact "x is 0 where this run-time value is 0" says only
where looking pays. It has to test along k, and along a dimension that is the operand's own: a mask
over whole rows, or over the keys of a batch, is what packed regions are for.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import is_zero
from pitc.ir.expr import Combine, Read, TensorExpr, is_contraction
from pitc.ir.graph import CHUNK, Graph, NodeView
from pitc.ir.index import dim_index
from pitc.ir.nodes import Array, node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, Test, describe
from pitc.passes.regions.choose import Chosen
from pitc.passes.regions.contraction import Kind, axis_kinds, factor_reads


@dataclass(frozen=True, slots=True)
class SparseOperand:
    """An operand of a contraction with zeros that are known only when the model runs.

    Args:
        operand: Which input of the node.
        name: The value.
        sources: The run-time values whose zeros they are.
        where: The fill facts that say so, as text in the coordinates of the operand.
        chain: The values on whose facts this rests, from the sources to the operand.
        kinds: What each axis of the contraction is to it; the micro-tile lies along k.
        others: The inputs that it is multiplied by.
        weights: Constants among those, all finite; empty where one is computed when the model runs:
            then what is packed of it has to be checked for Inf and NaN.
    """

    operand: int
    name: str
    sources: tuple[str, ...]
    where: tuple[str, ...]
    chain: tuple[str, ...]
    kinds: Mapping[str, Kind]
    others: tuple[int, ...]
    weights: tuple[str, ...]

    def __str__(self) -> str:
        return f"operand {self.operand} is 0 where {' or '.join(self.where)}"


def sparse_operands(graph: Graph) -> Chosen[tuple[SparseOperand, ...]]:
    """The operands of each contraction that may hold zeros when the model runs; refusals where
    nothing may be skipped though there are some.

    Args:
        graph: The graph after `fill_facts`.
    """
    known: dict[ir.Node, tuple[SparseOperand, ...] | Refusal] = {}
    for node in graph.nodes:
        view = NodeView(graph, node)
        expr = graph[view.out()].expr
        if expr is None or not is_contraction(expr):
            continue
        each = [r for read in factor_reads(expr) if (r := _operand(view, expr, read)) is not None]
        found = tuple(r for r in each if isinstance(r, SparseOperand))
        if each:
            known[node] = found or next(r for r in each if isinstance(r, Refusal))
    return Chosen.of(known)


def _operand(view: NodeView, expr: TensorExpr, read: Read) -> SparseOperand | Refusal | None:
    """What one factor is; None where nothing says that it holds zeros."""
    graph, name = view.graph, view.name(read.operand)
    facts = [f.region for f in graph[name].fills if is_zero(f.constant)]
    facts = [r for r in facts if _looks_at_zeros(graph, r)]
    if not facts:
        return None
    others = [r for r in factor_reads(expr) if r is not read]
    kinds = axis_kinds(expr, read, others)
    if Kind.K not in kinds.values():
        text = f"'{name}' may hold zeros, but no axis that is summed over can be permuted"
        return Refusal(Code.AXIS_NOT_PIT, node_name(view.node), text, name)
    dims = _dim_kinds(expr, read, kinds)
    facts = [r for r in facts if _tells_elements_apart(r, dims)]
    if not facts:
        return None
    weights = _weights(view, others)
    for weight in weights:
        if graph.exceptional(weight):
            return _not_finite(graph, view, weight)
    facts = _first(graph, facts)
    via = 0
    for r in facts:
        via |= r.via
    return SparseOperand(
        operand=read.operand,
        name=name,
        sources=tuple(_sources(facts)),
        where=tuple(dict.fromkeys(map(describe, facts))),
        chain=tuple(graph.names_of(via)),
        kinds={expr.axes[a].name: kind for a, kind in kinds.items()},
        others=tuple(r.operand for r in others),
        weights=weights,
    )


def _looks_at_zeros(graph: Graph, r: Region) -> bool:
    """True for "where this run-time value is 0", with tests of positions besides."""
    return any(t.src for t in r) and all(_is_zero_test(graph, t) for t in r)


def _is_zero_test(graph: Graph, t: Test) -> bool:
    if t.alls or t.somes or not t.src:
        return not (t.alls or t.somes)
    dtype = graph[t.src].dtype
    truth = dtype is not None and dtype.kind == "b"  # a bool may as well say where to write 0
    return t.pred == "nz" and (not t.yes or truth) and not graph.is_constant(t.src)


def _sources(facts: Iterable[Region]) -> dict[str, None]:
    return dict.fromkeys(t.src for r in facts for t in r if t.src)


def _first(graph: Graph, facts: list[Region]) -> list[Region]:
    """The facts without those about values that are computed from other sources: where the zeros
    come from.
    """
    sources = _sources(facts)
    if len(sources) < 2:
        return facts
    above, bits = graph.ancestors(), 0
    for x in sources:
        bits |= graph[x].bit
    return [r for r in facts if not any(above.get(x, 0) & bits for x in _sources([r]))] or facts


def _dim_kinds(expr: TensorExpr, read: Read, kinds: Mapping[int, Kind]) -> dict[int, Kind | None]:
    """What each dimension of the operand is, those of extent 1 left out; None where it is no axis
    that may be permuted.
    """
    by_index = {dim_index(a, expr.extents[a]): kind for a, kind in kinds.items()}
    places = ((d, p) for d, p in enumerate(read.index) if p is None or p.digits())
    return {d: None if p is None else by_index.get(p) for d, p in places}


def _tells_elements_apart(r: Region, kinds: Mapping[int, Kind | None]) -> bool:
    """True where the tests tell elements of the operand apart: along k, and along what else it does
    not share with the other operands.
    """
    tested = {kinds[d] for t in r if t.src for d in t.dims() if d in kinds}
    own = {kind for kind in kinds.values() if kind in (Kind.M, None)}
    return Kind.K in tested and (not own or bool(tested & own))


def _weights(view: NodeView, others: Iterable[Read]) -> tuple[str, ...]:
    """The constants that the other operands are moved parts of; none where one is computed."""
    found: dict[str, None] = {}
    for read in others:
        for name in _constants(view.graph, view.name(read.operand)):
            if name is None:
                return ()
            found.setdefault(name)
    return tuple(found)


def _constants(graph: Graph, name: str) -> Iterator[str | None]:
    """The constants that a value is moved together from; None among them for anything else."""
    todo = [name]
    while todo:
        x = todo.pop()
        expr, producer = graph[x].expr, graph[x].producer
        if graph.is_constant(x):
            yield x
        elif expr is None or producer is None or expr.combine is not Combine.MOVE:
            yield None
        else:
            view = NodeView(graph, producer)
            todo += [view.name(r.operand) for r in expr.moving_reads] or [""]


def _not_finite(graph: Graph, view: NodeView, weight: str) -> Refusal:
    x = graph.array(weight)
    assert x is not None
    index, value = _first_exception(x)
    text = f"'{weight}' holds {value} at {list(index)}; a product of 0 with it is NaN"
    return Refusal(Code.NON_FINITE_WEIGHT, node_name(view.node), text, weight)


def _first_exception(x: Array) -> tuple[tuple[int, ...], str]:
    """Where the first Inf or NaN of an array stands, and which it is."""
    flat = x.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        bad = ~np.isfinite(part if part.dtype.kind in "fc" else part.astype(np.float32))
        if bad.any():
            at = start + int(bad.argmax())
            return tuple(int(i) for i in np.unravel_index(at, x.shape)), str(flat[at])
    raise ValueError("every element is finite")
