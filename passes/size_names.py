"""Sizes of inputs with a name each, that may be one: what exporters call the sizes of a cache.

    keys [b, h, s62, d], values [b, h, s84, d], ids [b, s], mask [s43, s53]
    read as mask[i, j], i < b, j < s62 + s   ->   values [b, h, s62, d], mask [b, s62 + s]

That they are one cannot be known: a longer mask is read in part, and sizes of 1 broadcast. It is
tried, and said if it helps.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir

from pitc.ir.expr import Combine, Read, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE, UNDECLARED, Poly, bare_dim
from pitc.ir.nodes import first_output

Names = dict[str, str]  # names of sizes, and what they may be


def one_names(graph: Graph, mask: str) -> Names:
    """Other names for sizes of inputs, with which they may be fewer.

    Args:
        graph: The analysed graph.
        mask: The padding mask.
    """
    found: Names = {}
    pasts = list(dict.fromkeys(_past_sizes(graph)))
    found |= dict.fromkeys(pasts[1:], pasts[0]) if pasts else {}
    for size, extent in _seen_sizes(graph, mask):
        own, parts = _symbol(size), [_symbol(part) for part in _summands(extent)]
        known = [found.get(part, part) for part in parts if part is not None]
        if own is not None and len(known) == len(parts) and own not in known:
            found.setdefault(own, " + ".join(known))
    return found


@contextmanager
def named(model: ir.Model, names: Mapping[str, str]) -> Iterator[list[str]]:
    """The model with other names for sizes of its inputs, for a while; gives the inputs that have
    others then, as text.
    """
    before = [(value, value.shape) for value in model.graph.inputs if value.shape is not None]
    texts = []
    for value, shape in before:
        dims = [d if isinstance(d, int) else names.get(d.value or "", d.value) for d in shape]
        if dims != [d if isinstance(d, int) else d.value for d in shape]:
            value.shape = ir.Shape(dims)
            texts.append(f"{value.name} [{', '.join(map(str, dims))}]")
    try:
        yield texts
    finally:
        for value, shape in before:
            value.shape = shape


def _past_sizes(graph: Graph) -> Iterator[str]:
    """Sizes of inputs to which something computed is appended, along that dimension."""
    for node in graph.nodes:
        view, expr = NodeView(graph, node), graph[first_output(node)].expr
        if expr is None or expr.combine is not Combine.MOVE:
            continue
        for read in (r for r in expr.reads if r.within and view.name(r.operand) in graph.inputs):
            pairs = zip(graph[view.name(read.operand)].shape or (), expr.shape, strict=False)
            yield from filter(None, (_symbol(e) for e, whole in pairs if e != whole))


def _seen_sizes(graph: Graph, mask: str) -> Iterator[tuple[Poly, Poly]]:
    """Sizes of a mask, and how many places there are read, one by one from the first."""
    todo = [mask]
    while todo:
        name = todo.pop()
        for node in graph[name].uses:
            view, expr = NodeView(graph, node), graph[first_output(node)].expr
            read = next(iter(expr.reads), None) if expr is not None else None
            if expr is None or read is None or view.name(read.operand) != name:
                continue
            if expr.combine is Combine.MAP and len(expr.reads) == 1:
                todo.append(view.out())
            shape = graph[name].shape or ()
            if expr.combine is not Combine.MOVE or len(read.index) != len(shape):
                continue
            yield from zip(shape, _read_extents(expr, read), strict=True)
            if len(expr.reads) == 1 and len(expr.shape) == len(shape):
                todo.append(view.out())


def _read_extents(expr: TensorExpr, read: Read) -> list[Poly]:
    """How many places are read along each dimension, where one axis runs along it; else what is
    made of it.
    """
    axes = [None if p is None else bare_dim(p) for p in read.index]
    places = [ONE] * len(axes) if len(expr.shape) != len(axes) else list(expr.shape)
    pairs = zip(axes, places, strict=True)
    return [place if axis is None else expr.extents[axis] for axis, place in pairs]


def _summands(p: Poly) -> list[Poly]:
    return [Poly({m: c}) for m, c in p.terms.items()]


def _symbol(p: Poly) -> str | None:
    """The declared name that a size is."""
    match list(p.terms.items()):
        case [((str() as name,), 1)] if not name.startswith(UNDECLARED):
            return name
    return None
