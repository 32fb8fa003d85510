"""Convolutions that leave out channels which are zero or unread in this run.

    y[n, f, p] = sum over m and the window of x[n, m, ..] * w[f, m, ..]

Channels (m) and filters (f) are PIT axes, places are not. A fill fact whose tests look at images
and channels only, a gate, says which channels of x are 0; a dead fact of that kind, which filters
nobody wants. Either choice holds for all images of a run. Live channels are gathered, and where
there are too many of them the convolution runs as it was (`convolve.py`), with others that choose
together with it (`channels/cost.py`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region
from pitc.passes.facts.dead import dead_facts
from pitc.passes.facts.total import reader_upset_by_zeros
from pitc.passes.lower.channels.convolve import ChannelSkip
from pitc.passes.lower.channels.cost import paying
from pitc.passes.lower.channels.search import ChannelSearch, is_convolution
from pitc.passes.regions.choose import Chosen, Regions

MIN_OPSET = 13


ChannelSkips = Chosen[ChannelSkip]
"""The convolutions that leave out channels, each with what it leaves out."""


def channel_skips(
    graph: Graph, regions: Regions, given_up: Mapping[str, Sequence[Region]]
) -> ChannelSkips:
    """Choose among the convolutions of a graph whose facts are known.

    Args:
        graph: The analysed graph.
        regions: What runs packed.
        given_up: Regions of graph outputs that the user does not want.
    """
    convolutions = [node for node in graph.nodes if is_convolution(node)]
    for node in convolutions:
        graph.note_bit(node.outputs[0].name or "")
    for name in regions.demand.exits if convolutions else ():
        graph.note_bit(name)
    search = ChannelSearch(graph, regions, graph.ancestors())
    found = {n: s for n in convolutions if (s := search.known(n, graph)) is not None}
    if not found:
        return ChannelSkips()
    # tests decide what is overwritten, so they must not depend on it: their sources count as read
    sources = {x for skip in found.values() for x in skip.sources()} | _packed_sources(regions)
    beside = graph.with_outputs(sorted(sources))
    dead_facts(beside, {x: r for x, r in given_up.items() if x not in sources})
    again = {node: search.known(node, beside) for node in found}
    exits = _bits(graph, regions.demand.exits)
    unread = {s.end.name or "" for s in again.values() if s and s.unread}
    written = _bits(graph, unread)

    def kept(r: Region) -> bool:
        names = {t.src for t in r if t.src}
        tested = _bits(graph, names)
        for name in names:
            tested |= search.above.get(name, 0)
        return names <= sources and not (r.via & (exits | written) or tested & exits)

    packed = _packed_proofs(regions)
    chosen: dict[ir.Node, ChannelSkip | Refusal] = {}
    for node, first in found.items():
        skip = again[node] or replace(first, zero=(), idle=())
        zero, idle = tuple(filter(kept, skip.zero)), tuple(filter(kept, skip.idle))
        if skip.unread and packed & _bits(graph, [skip.end.name or ""]):
            idle = ()
        if zero or idle:
            skip = replace(skip, zero=zero, idle=idle)
            chosen[node] = _sound(beside, regions, skip, {*unread, *regions.demand.exits})
            continue
        before = again[node] or first
        text = f"a value that {before} depends on would change"
        chosen[node] = Refusal(Code.JOINT, node_name(node), text, before.end.name or "")
    sound = [s for s in chosen.values() if not isinstance(s, Refusal)]
    return ChannelSkips.of(chosen | paying(graph, sound))


def _bits(graph: Graph, names: Iterable[str]) -> int:
    bits = 0
    for name in names:
        bits |= graph[name].bit
    return bits


def _packed_sources(regions: Regions) -> set[str]:
    """Values from which live points of packed forms are computed."""
    return {x for n in regions.demand.forms for d in regions.forms[n].domains for x in d.sources()}


def _packed_proofs(regions: Regions) -> int:
    """Values on whose fill facts packed forms rest."""
    via = 0
    for form in (regions.forms[n] for n in regions.demand.forms):
        proofs = [r for p in form.packings for r in (p.proof, p.zero) if r is not None]
        for r in (*form.rests_on, *proofs):
            via |= r.via
    return via


def _sound(
    graph: Graph, regions: Regions, skip: ChannelSkip, zeroed: Collection[str]
) -> ChannelSkip | Refusal:
    """The skip as far as it changes nothing that is read."""
    node = skip.steps[0]
    name = node_name(node)
    version = graph.opset
    if version < MIN_OPSET:
        text = f"operator set {version} is older than {MIN_OPSET}"
        return Refusal(Code.NO_LOWERING, name, text)
    unread = skip.unread and skip.idle
    running, end = regions.demand.nodes | regions.demand.forms, skip.end.name or ""

    def readers(name: str) -> list[ir.Node]:
        return [n for n in graph[name].uses if n in running]

    reader = reader_upset_by_zeros(graph, end, readers, zeroed) if unread else None
    if reader is not None and skip.zero:
        skip = replace(skip, idle=(), unread=False)
    elif reader is not None:
        text = f"{reader.op_type} reads '{end}' and may divide by 0 or read another place"
        return Refusal(Code.NOT_TOTAL, name, text, end)
    return skip
