"""When leaving out channels pays: the work that is saved against the bytes that are gathered.

Convolutions one behind the other choose together where what the next one need not read is what the
one before leaves out. There is one look then, no layout is broken and no channel is gathered or put
back between them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.nodes import node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.work import EXAMPLE_SIZE
from pitc.passes.regions.channels import ChannelSkip, is_plain

LONGEST = 8  # convolutions that choose together: either all of them leave out channels, or none

Row = Sequence[ChannelSkip]
Paying = dict[ir.Node, ChannelSkip | Refusal]


def paying(graph: Graph, skips: Iterable[ChannelSkip]) -> Paying:
    """The skips, each with what its live channels may take, or why it never pays.

    Args:
        graph: The analysed graph.
        skips: Convolutions whose channels may be left out, in the order of the graph.
    """
    rows: dict[ir.Value, Row] = {}
    for skip in skips:
        before = rows.get(skip.image, ())
        if before and _is_link(graph, before[-1], skip):
            del rows[skip.image]
            rows[skip.end] = [*before, replace(skip, joined=True)]
        else:
            rows[skip.end] = [skip]
    found: Paying = {}
    for row in rows.values():
        found |= _longest(graph, row)
    return found


def _is_link(graph: Graph, before: ChannelSkip, skip: ChannelSkip) -> bool:
    """True where nobody else reads what is between, and zeros of it are known by the same tests."""
    x = skip.image
    name = x.name or ""
    if len(graph[name].uses) > 1 or x.is_graph_output() or graph[name].captured:
        return False
    return bool(skip.zero) and not before.unread and set(before.idle) == set(skip.zero)


def _longest(graph: Graph, row: Row) -> Paying:
    """The longest part of a row that pays, and what of the rest does."""
    found: Paying = {}
    for count in range(min(len(row), LONGEST), 0, -1):
        for start in range(len(row) - count + 1):
            end = start + count
            part = [replace(row[start], joined=False), *row[start + 1 : end]]
            priced = _priced(graph, part)
            if not isinstance(priced, Refusal):
                found |= {skip.steps[0]: skip for skip in priced}
                return _longest(graph, row[:start]) | found | _longest(graph, row[end:])
            if count == 1:
                found[part[0].steps[0]] = priced
    return found


def _priced(graph: Graph, row: Row) -> Row | Refusal:
    """Skips that choose together, or why they never pay."""
    name, target = node_name(row[0].steps[0]), graph.target
    sizes, prices = [_sizes(graph, skip) for skip in row], target.channels
    first, last, work = row[0], row[-1], sum(each.work for each in sizes)
    image, result = sizes[0].image, sizes[-1].result
    turned = (not first.zero and not first.image.is_graph_input()) * image
    turned += (not last.idle) * result
    look = prices.look if all(each.plain for each in sizes) else prices.look_up
    lost = look + prices.link * len(row) + prices.hold * result + prices.turn * turned
    if lost > prices.loss * work:
        text = f"finding live channels takes over {prices.loss:.0%} of its work"
        return Refusal(Code.NO_GAIN, name, text)
    moved = bool(first.zero) * image + bool(last.idle) * result
    moved += sum(each.filters for each in sizes)
    steps = prices.start * len(row) + target.flops_per_byte * 4 * moved
    share = prices.speed * (1 - steps / work)
    if share < prices.least:
        text = f"it would pay only below {max(share, 0):.0%} live channels"
        return Refusal(Code.NO_GAIN, name, text)
    return [
        replace(s, weight=e.work // (s.channels * s.filters), budget=int(share * e.work))
        for s, e in zip(row, sizes, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Elements of what a convolution reads and its last step gives, and the operations that it
    takes; all for one image where the batch is not known. And: all tests are plain ones.
    """

    image: int
    filters: int
    result: int
    work: int
    plain: bool


def _sizes(graph: Graph, skip: ChannelSkip) -> _Sizes:
    expr = graph[skip.steps[0].outputs[0].name or ""].expr
    image, result = (graph[x.name or ""].shape for x in (skip.image, skip.end))
    assert expr is not None and image is not None and result is not None

    def size(extents: Shape) -> int:
        unknown = (1 if e == expr.shape[0] else EXAMPLE_SIZE for e in extents)
        sizes = ((e.as_int(), n) for e, n in zip(extents, unknown, strict=True))
        return prod(n if e is None else e for e, n in sizes)

    filters, work = (expr.shape[1], *expr.reduced), 2 * size((*expr.shape, *expr.reduced))
    plain = is_plain(graph, skip.zero, image) and is_plain(graph, skip.idle, result)
    return _Sizes(size(image), size(filters), size(result), work, plain)
