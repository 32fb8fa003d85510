"""When leaving out channels pays: the work that is saved against the bytes that are gathered."""

from dataclasses import replace
from math import prod

from pitc.ir.expr import Shape, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.nodes import node_name
from pitc.ir.refusal import Code, Refusal
from pitc.passes.lower.convolve import ChannelSkip, is_plain
from pitc.passes.regions.choose import FLOPS_PER_BYTE, SYMBOL_ESTIMATE

# what things take, in the operations that ONNX Runtime does in that time
LOOK = 2_000_000  # which channels live, and the choice
LOOK_UP = 10_000_000  # the same from a test that is looked up point by point
START = 6_000_000  # many small steps around a convolution of live channels
HOLD = 24  # per element of the result, which a choice has in memory of its own
TURN = 16  # per element that a choice takes out of the layout of the next convolution
LOSS = 0.02  # of the work: what may be lost when every channel lives
SPEED = 0.75  # of a convolution whose filters are not constant, to one whose filters are
LEAST = 0.25  # share of live products that has to pay, at least


def paying(graph: Graph, skip: ChannelSkip) -> ChannelSkip | Refusal:
    """The skip with the most live channels at which it pays, or why it never does.

    Args:
        graph: The analysed graph.
        skip: A convolution whose channels may be left out.
    """
    node = skip.steps[0]
    name, expr = node_name(node), graph.exprs[node.outputs[0].name or ""]
    assert expr is not None
    work = 2 * _size(expr, (*expr.shape, *expr.reduced))
    lost, moved = _costs(graph, skip, expr)
    if lost > LOSS * work:
        text = f"to look for live channels takes over {LOSS:.0%} of its work"
        return Refusal(Code.NO_GAIN, name, text)
    share = SPEED * (1 - (START + FLOPS_PER_BYTE * moved) / work)
    if share < LEAST:
        text = f"it would pay below {max(share, 0):.0%} live channels only"
        return Refusal(Code.NO_GAIN, name, text)
    filters, channels = (e.as_int() or 1 for e in (expr.shape[1], expr.reduced[0]))
    pairs = (channels if skip.zero else 1) * (filters if skip.idle else 1)
    return replace(skip, most=int(share * pairs))


def _costs(graph: Graph, skip: ChannelSkip, expr: TensorExpr) -> tuple[int, int]:
    """What a choice takes in operations, and bytes that are gathered when it falls on few."""
    x = skip.steps[0].inputs[0]
    assert x is not None
    shape = graph.shapes.get(x.name or "") or ()
    image, result = _size(expr, shape), _size(expr, expr.shape)
    turned = bool(not skip.zero and not x.is_graph_input()) * image + (not skip.idle) * result
    plain = is_plain(graph, skip.zero, shape) and is_plain(graph, skip.idle, expr.shape)
    moved = bool(skip.zero) * image + bool(skip.idle) * result
    filters = _size(expr, (expr.shape[1], *expr.reduced))
    lost = (LOOK if plain else LOOK_UP) + HOLD * result + TURN * turned
    return lost, 4 * (moved + filters)


def _size(expr: TensorExpr, extents: Shape) -> int:
    """Elements, for one image where the batch is not known."""
    unknown = (1 if e == expr.shape[0] else SYMBOL_ESTIMATE for e in extents)
    sizes = ((e.as_int(), n) for e, n in zip(extents, unknown, strict=True))
    return prod(n if e is None else e for e, n in sizes)
