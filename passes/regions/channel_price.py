"""When leaving out channels pays: the work that is saved against the bytes that are gathered.

Convolutions one behind the other choose together where what the next one need not read is what the
one before leaves out. There is one look then, no layout is broken and no channel is gathered or put
back between them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

import onnx_ir as ir

from pitc.ir.expr import Shape, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.nodes import node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.work import EXAMPLE_SIZE
from pitc.passes.regions.channels import ChannelSkip, channels_and_filters, is_plain

LONGEST = 8  # convolutions that choose together: either all of them leave out channels, or none

Paying = dict[ir.Node, ChannelSkip | Refusal]


def paying(graph: Graph, skips: Iterable[ChannelSkip]) -> Paying:
    """The skips, each with what its live channels may take, or why it never pays.

    Args:
        graph: The analysed graph.
        skips: Convolutions whose channels may be left out, in the order of the graph.
    """
    found: Paying = {}
    for chain in _chains(graph, skips):
        found |= _longest(graph, chain)
    return found


def _chains(graph: Graph, skips: Iterable[ChannelSkip]) -> list[list[ChannelSkip]]:
    """The skips, those together that may choose together."""
    chains: dict[ir.Value, list[ChannelSkip]] = {}
    for skip in skips:
        before = chains.get(skip.image, [])
        joins = before and _is_link(graph, before[-1], skip)
        if joins:
            del chains[skip.image]
        chains[skip.end] = [*before, replace(skip, joined=True)] if joins else [skip]
    return list(chains.values())


def _is_link(graph: Graph, before: ChannelSkip, skip: ChannelSkip) -> bool:
    """True where nobody else reads what is between, and zeros of it are known by the same tests."""
    x = skip.image
    name = x.name or ""
    if len(graph[name].uses) > 1 or x.is_graph_output() or graph[name].captured:
        return False
    return bool(skip.zero) and not before.unread and set(before.idle) == set(skip.zero)


def _longest(graph: Graph, chain: Sequence[ChannelSkip]) -> Paying:
    """The longest part of a chain that pays, and what of the rest does."""
    found: Paying = {}
    for count in range(min(len(chain), LONGEST), 0, -1):
        for start in range(len(chain) - count + 1):
            part, end = list(chain[start : start + count]), start + count
            part[0] = replace(part[0], joined=False)
            priced = _priced(graph, part)
            if not isinstance(priced, Refusal):
                found |= {skip.steps[0]: skip for skip in priced}
                return _longest(graph, chain[:start]) | found | _longest(graph, chain[end:])
            if count == 1:
                found[part[0].steps[0]] = priced
    return found


def _priced(graph: Graph, chain: Sequence[ChannelSkip]) -> list[ChannelSkip] | Refusal:
    """Skips that choose together, or why they never pay."""
    name = node_name(chain[0].steps[0])
    works = [2 * _size(e, (*e.shape, *e.reduced)) for e in (_expr(graph, s) for s in chain)]
    work = sum(works)
    target = graph.target
    prices = target.channels
    if _lost(graph, chain) > prices.loss * work:
        text = f"finding live channels takes over {prices.loss:.0%} of its work"
        return Refusal(Code.NO_GAIN, name, text)
    steps = prices.start * len(chain) + target.flops_per_byte * _moved(graph, chain)
    share = prices.speed * (1 - steps / work)
    if share < prices.least:
        text = f"it would pay only below {max(share, 0):.0%} live channels"
        return Refusal(Code.NO_GAIN, name, text)
    pairs = [prod(channels_and_filters(graph, skip)) for skip in chain]
    return [
        replace(skip, weight=own // n, budget=int(share * own))
        for skip, own, n in zip(chain, works, pairs, strict=True)
    ]


def _lost(graph: Graph, chain: Sequence[ChannelSkip]) -> int:
    """What a choice takes, in operations, when all channels live."""
    first, last = chain[0], chain[-1]
    x, expr, shape = first.image, _expr(graph, first), _image(graph, first)
    image, result = _size(expr, shape), _size(expr, _result(graph, last))
    turned = bool(not first.zero and not x.is_graph_input()) * image + (not last.idle) * result
    plain = is_plain(graph, first.zero, shape)
    plain &= all(is_plain(graph, skip.idle, _result(graph, skip)) for skip in chain)
    prices = graph.target.channels
    look = (prices.look if plain else prices.look_up) + prices.link * len(chain)
    return look + prices.hold * result + prices.turn * turned


def _moved(graph: Graph, chain: Sequence[ChannelSkip]) -> int:
    """Bytes that are gathered, or put back, when a choice falls on few channels."""
    first, last = chain[0], chain[-1]
    moved = bool(first.zero) * _size(_expr(graph, first), _image(graph, first))
    moved += bool(last.idle) * _size(_expr(graph, last), _result(graph, last))
    filters = ((e, (e.shape[1], *e.reduced)) for e in (_expr(graph, skip) for skip in chain))
    return 4 * (moved + sum(_size(e, extents) for e, extents in filters))


def _expr(graph: Graph, skip: ChannelSkip) -> TensorExpr:
    expr = graph[skip.steps[0].outputs[0].name or ""].expr
    assert expr is not None
    return expr


def _image(graph: Graph, skip: ChannelSkip) -> Shape:
    return graph[skip.image.name or ""].shape or ()


def _result(graph: Graph, skip: ChannelSkip) -> Shape:
    return graph[skip.end.name or ""].shape or ()


def _size(expr: TensorExpr, extents: Shape) -> int:
    """Elements, for one image where the batch is not known."""
    unknown = (1 if e == expr.shape[0] else EXAMPLE_SIZE for e in extents)
    sizes = ((e.as_int(), n) for e, n in zip(extents, unknown, strict=True))
    return prod(n if e is None else e for e, n in sizes)
