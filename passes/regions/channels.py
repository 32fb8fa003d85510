"""Convolutions that leave out channels which are zero or unread in this run.

    y[n, f, p] = sum over m and the window of x[n, m, ..] * w[f, m, ..]

Channels (m) and filters (f) are PIT axes, places are not. A fill fact whose tests look at images
and channels only, a gate, says which channels of x are 0; a dead fact of that kind, which filters
nobody wants. Either choice holds for all images of a run. Live channels are gathered, and where
there are too many of them the convolution runs as it was, with others that choose together with it
(`channel_price.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import onnx_ir as ir

from pitc.ir.expr import Combine, Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, ZERO, dim_index
from pitc.ir.nodes import attribute, first_output
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, Test, describe
from pitc.ir.since import Since
from pitc.passes.facts.dead import dead_facts
from pitc.passes.facts.total import reader_upset_by_zeros
from pitc.passes.regions.demand import Demand
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import (
    Form,
    FormContext,
    PackCandidate,
    Skip,
    zero_facts,
    zero_regions,
)
from pitc.passes.regions.legal import overwritten_bits
from pitc.passes.regions.live_tests import can_compute
from pitc.passes.regions.matrix import is_float32

CHANNELS = 1  # the dimension of images and results
MAX_STEPS = 4  # behind a convolution; those that ONNX Runtime makes one node of are fewer


@dataclass(frozen=True, slots=True)
class ChannelSkip(Skip):
    """A convolution that runs on its live channels. The steps behind it each are the only reader of
    the one before, and treat every channel by itself.

    Args:
        zero: Regions of the image, over images and channels, in which it is 0.
        idle: The same of the last step, where it is 0, or where nobody reads it.
        unread: The idle regions are of the latter kind.
        channels: How many the image has.
        filters: How many it has itself.
        weight: What a channel of a filter takes, in operations.
        budget: What all live ones may take, so that leaving out the others pays.
        joined: The image is what the skip before gives; they choose together, once.
    """

    lowering = "channels"
    zero: tuple[Region, ...]
    idle: tuple[Region, ...]
    unread: bool
    channels: int
    filters: int
    weight: int = 0
    budget: int = 0
    joined: bool = False

    @property
    def image(self) -> ir.Value:
        """What the convolution reads."""
        (x, *_) = self.steps[0].inputs
        assert x is not None
        return x

    @property
    def end(self) -> ir.Value:
        """What the last step gives."""
        return self.steps[-1].outputs[0]

    @property
    def sources(self) -> set[str]:
        """Names of the values that the tests look at."""
        return {x for r in (*self.zero, *self.idle) for x in r.sources if x}

    def __str__(self) -> str:
        end = f"'{self.end.name}' is {'unread' if self.unread else '0'}"
        said = (("operand 0 is 0", self.zero), (end, self.idle))
        return "; ".join(f"{x} where {' or '.join(map(describe, rs))}" for x, rs in said if rs)


def is_convolution(node: ir.Node) -> bool:
    """True for the operator whose channels may be left out."""
    return not node.domain and node.op_type == "Conv"


def live_channels(site: PackCandidate) -> ChannelSkip | Refusal:
    """What the facts say of a convolution's channels."""
    graph = site.context.graph
    if not _can_choose(site):
        return site.refuse(Code.NO_FACT, "it leaves out no channels")
    steps, image, weight = _steps(site), site.input(0), site.input(1)
    filters, channels = (e.as_int() or 0 for e in site.context.shape(weight)[:2])
    is_sum = graph.finite(weight) and site.expr.reduced[0].as_int() is not None
    zero = _of_channels(site, image, zero_facts(graph, image) if is_sum else ())
    for unread in (False, True):
        for count in range(len(steps), 0, -1):
            end = first_output(steps[count - 1])
            facts = graph[end].dead if unread else zero_regions(graph, end)
            idle = _of_channels(site, end, facts)
            if idle:
                return ChannelSkip(tuple(steps[:count]), zero, idle, unread, channels, filters)
    if not zero:
        return site.refuse(Code.NO_FACT, "nothing is known of its channels")
    return ChannelSkip(tuple(steps), zero, (), False, channels, filters)


def _can_choose(site: PackCandidate) -> bool:
    """True for a convolution of float32 by constants that runs as it was, without groups."""
    graph, node = site.context.graph, site.node
    if not is_convolution(node) or attribute(node, "group", 1) != 1:
        return False
    _, weight, *bias = (x for x in node.inputs if x is not None)
    constant = all(graph.is_constant(x.name or "") for x in (weight, *bias))
    runs = graph.target.skips_channels and node in site.context.whole
    return runs and constant and is_float32(graph, weight)


def _of_channels(site: PackCandidate, name: str, facts: Iterable[Region]) -> tuple[Region, ...]:
    """Regions of a value that look at its channels, at nothing else but images, and at nothing that
    is computed from what the convolution gives.
    """
    graph, result = site.context.graph, site.context.graph[site.out.name].bit
    shape, above = graph[name].shape or (), graph.ancestors()
    if len(shape) < 3 or shape[CHANNELS].as_int() is None:
        return ()

    def is_seen(x: str) -> bool:
        later = (above.get(x, 0) | graph[x].bit) & result
        return not later and _is_whole(site.context, x) and graph.visible(x, name)

    def is_found(r: Region) -> bool:
        behind_images = {d for t in r for d in t.dims() if d > 0}
        if not r.sources - {""} or behind_images != {CHANNELS}:
            return False
        if not all(map(is_seen, r.sources - {""})):
            return False
        return is_plain(graph, [r], shape) or can_compute(graph, Domain(shape[:2], frozenset(r)))

    return tuple(filter(is_found, facts))


def _is_whole(context: FormContext, name: str) -> bool:
    """True for values that the compiled graph computes when it runs, unpacked."""
    graph = context.graph
    if graph.is_constant(name):
        return False
    return name in graph.inputs or graph[name].producer in context.whole


def is_plain(graph: Graph, regions: Iterable[Region], shape: Shape) -> bool:
    """True for tests for zeros of values that have images and channels as their dimensions."""
    return all(_is_plain(graph, t, shape) for r in regions for t in r)


def _is_plain(graph: Graph, t: Test, shape: Shape) -> bool:
    own = graph[t.src].shape
    if t.pred != "nz" or own is None:
        return False
    bare = [(dim_index(d, e), e) for d, e in enumerate(shape[:2]) if e != ONE]
    places = [(p, e) for p, e in zip(t.idx, own, strict=True) if (p, e) != (ZERO, ONE)]
    return all(p in bare for p in places) and len(set(places)) == len(places)


def _steps(site: PackCandidate) -> list[ir.Node]:
    """The convolution and what may be done with it in one piece."""
    steps = [site.node]
    while len(steps) <= MAX_STEPS:
        value = steps[-1].outputs[0]
        known = site.context.graph[value.name or ""]
        if len(known.uses) != 1 or value.is_graph_output() or known.captured:
            break
        (step,) = known.uses
        if step not in site.context.whole or not _is_step(site.context, step, value):
            break
        steps.append(step)
    return steps


def _is_step(context: FormContext, node: ir.Node, value: ir.Value) -> bool:
    """A function of one element, or of several of its channel, and of numbers of its image and
    channel.
    """
    graph, expr = context.graph, context.graph[first_output(node)].expr
    if expr is None or len(node.outputs) != 1 or not is_float32(graph, node.outputs[0]):
        return False
    if expr.combine not in (Combine.MAP, Combine.REDUCE) or CHANNELS in expr.ordered:
        return False
    own = graph[value.name or ""].shape or ()
    read = [r.index[:2] for r in expr.reads if node.inputs[r.operand] is value]
    alone = len(expr.shape) == len(own) and expr.shape[:2] == own[:2]
    if not alone or read != [tuple(dim_index(d, e) for d, e in enumerate(own[:2]))]:
        return False
    others = [x for x in node.inputs if x is not None and x is not value]
    seen = all(graph.is_constant(x.name or "") or _is_whole(context, x.name or "") for x in others)
    return seen and all(channel_axis(graph, node, x) is not None for x in others)


def channel_axis(graph: Graph, node: ir.Node, operand: ir.Value) -> int | None:
    """The dimension of a step's other operand that goes along channels.

    Args:
        graph: The analysed graph.
        node: The step.
        operand: The operand.

    Returns:
        -1 where it is the same for all channels; None where it tells places apart.
    """
    expr = graph[first_output(node)].expr
    reads = [] if expr is None else [r for r in expr.reads if node.inputs[r.operand] is operand]
    if expr is None or not reads:  # numbers that are no elements of it
        own = graph[operand.name or ""].shape
        return -1 if own is not None and all(e == ONE for e in own) else None
    images, channels = (dim_index(d, e) for d, e in enumerate(expr.shape[:2]))
    read, *more = reads
    if more or not {ZERO, images, channels}.issuperset(read.index):
        return None
    return read.index.index(channels) if channels != ZERO and channels in read.index else -1


def sound_channels(
    found: Sequence[tuple[PackCandidate, ChannelSkip]],
    forms: Mapping[ir.Node, Form],
    demand: Demand,
    given_up: Mapping[str, Sequence[Region]],
) -> dict[ir.Node, ChannelSkip | Refusal]:
    """The skips as far as they change nothing that is read, beside packed forms and each other.

    Tests decide what is overwritten, so they must not depend on it: their sources count as read.

    Args:
        found: What is known of convolutions, in the order of the graph.
        forms: What runs packed.
        demand: What the graph outputs need then.
        given_up: Regions of graph outputs that the user does not want.
    """
    graph, packed = found[0][0].context.graph, [forms[n] for n in demand.forms]
    tested = {x for form in packed for d in form.domains for x in d.sources()}
    tested.update(x for _, skip in found for x in skip.sources)
    beside = graph.with_outputs(sorted(tested))
    dead_facts(beside, {x: r for x, r in given_up.items() if x not in tested})
    context = replace(found[0][0].context, graph=beside)
    again = [live_channels(replace(site, context=context)) for site, _ in found]
    unread = {x.end.name or "" for x in again if isinstance(x, ChannelSkip) and x.unread}
    exits, above, rests = overwritten_bits(graph, demand.exits), graph.ancestors(), 0
    written = exits | overwritten_bits(graph, unread)
    for form in packed:
        proofs = (r for p in form.packings for r in (p.proof, p.zero) if r is not None)
        rests = reduce(or_, (r.via for r in (*form.rests_on, *proofs)), rests)

    def kept(r: Region) -> bool:
        read = r.sources - {""}
        moved = any(above.get(x, 0) & exits for x in read)
        return read <= tested and not (moved or r.via & written)

    def readers(name: str) -> list[ir.Node]:
        return [n for n in graph[name].uses if n in demand.nodes or n in demand.forms]

    chosen = dict[ir.Node, ChannelSkip | Refusal]()
    for (site, first), second in zip(found, again, strict=True):
        skip = second if isinstance(second, ChannelSkip) else first
        facts = (skip.zero, skip.idle) if skip is second else ((), ())
        zero, idle = (tuple(filter(kept, rs)) for rs in facts)
        end, upset = skip.end.name or "", None
        if skip.unread and rests & graph[end].bit:
            idle = ()
        if idle:
            upset = reader_upset_by_zeros(beside, end, readers, {*unread, *demand.exits})
            idle = () if upset is not None and zero else idle
        if not (zero or idle):
            text = f"a value that {skip} depends on would change"
            chosen[site.node] = site.refuse(Code.JOINT, text, end)
        elif graph.opset < Since.LISTS:
            text = f"operator set {graph.opset} is older than {Since.LISTS}"
            chosen[site.node] = site.refuse(Code.NO_LOWERING, text)
        elif upset is not None and not zero:
            text = f"{upset.op_type} reads '{end}' and may divide by 0 or read another place"
            chosen[site.node] = site.refuse(Code.NOT_TOTAL, text, end)
        else:
            chosen[site.node] = replace(skip, zero=zero, idle=idle)
    return chosen
