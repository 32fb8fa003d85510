"""Convolutions of which facts say that channels are zero, or that nobody reads them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from pitc.ir.constant import is_zero
from pitc.ir.expr import Combine, Shape, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import dim_index
from pitc.ir.nodes import attribute
from pitc.ir.region import Region
from pitc.passes.lower.channels.convolve import ChannelSkip, channel_axis
from pitc.passes.lower.channels.flags import can_find
from pitc.passes.regions.choose import Regions
from pitc.passes.regions.matrix import is_float32

MAX_STEPS = 4  # behind a convolution; those that ONNX Runtime makes one node of are fewer


@dataclass(frozen=True, slots=True)
class ChannelSearch:
    """Looks for convolutions whose channels may be left out.

    Args:
        graph: The analysed graph.
        regions: What runs packed.
        above: For each value the bits of what it is computed from.
    """

    graph: Graph
    regions: Regions
    above: Mapping[str, int]

    def known(self, node: ir.Node, beside: Graph) -> ChannelSkip | None:
        """What the facts say of a convolution; None where that is nothing about its channels.

        Args:
            node: The convolution; its result has a bit (`Graph.note_bit`).
            beside: The graph whose dead facts count: perhaps one with more outputs.
        """
        graph = self.graph
        if node not in self.regions.demand.nodes:
            return None
        x, weights = node.inputs[0], [w for w in node.inputs[1:] if w is not None]
        expr = graph[node.outputs[0].name or ""].expr
        if (
            x is None
            or expr is None
            or attribute(node, "group", 1) != 1
            or not is_float32(graph, weights[0])
        ):
            return None
        if not all(graph.is_constant(w.name or "") for w in weights):
            return None
        steps, zero = self._steps(node), tuple[Region, ...]()
        names = [step.outputs[0].name or "" for step in steps]
        result = graph[names[0]].bit
        if graph.finite(weights[0].name or "") and expr.reduced[0].as_int() is not None:
            zero = self._regions(x.name or "", _zeros(graph, x.name or ""), result)
        for unread in (False, True):
            for count in range(len(steps), 0, -1):
                name = names[count - 1]
                facts = beside[name].dead if unread else _zeros(graph, name)
                if not unread and not graph[name].sign_unseen:  # 0 is written where -0.0 was
                    continue
                idle = self._regions(name, facts, result)
                if idle and not graph[name].captured:
                    return ChannelSkip(tuple(steps[:count]), zero, idle, unread)
        if not zero or graph[names[-1]].captured:
            return None
        return ChannelSkip(tuple(steps), zero, (), False)

    def _regions(self, name: str, facts: Iterable[Region], result: int) -> tuple[Region, ...]:
        """Regions of a value that look at its channels, and at nothing else but images.

        Args:
            name: The value.
            facts: Regions of it.
            result: The bit of what the convolution gives: tests come before it.
        """
        return tuple(r for r in facts if self._is_of_channels(name, r, result))

    def _is_of_channels(self, name: str, r: Region, result: int) -> bool:
        sources = {t.src for t in r if t.src}
        looked = {d for t in r for d in t.dims() if d >= 0}
        if not sources or 1 not in looked or not looked <= {0, 1}:
            return False
        if any((self.above.get(x, 0) | self.graph[x].bit) & result for x in sources):
            return False
        seen = all(self._is_whole(x) and self.graph.visible(x, name) for x in sources)
        return seen and can_find(self.graph, r, name)

    def _is_whole(self, name: str) -> bool:
        """True for values that the compiled graph computes when it runs, unpacked."""
        if self.graph.is_constant(name):
            return False
        producer = self.graph[name].producer
        return name in self.graph.inputs or producer in self.regions.demand.nodes

    def _steps(self, node: ir.Node) -> list[ir.Node]:
        """The convolution and what may be done with it in one piece."""
        steps = [node]
        while len(steps) <= MAX_STEPS:
            value = steps[-1].outputs[0]
            known = self.graph[value.name or ""]
            if len(known.uses) != 1 or value.is_graph_output() or known.captured:
                break
            (step,) = known.uses
            if step not in self.regions.demand.nodes or not self._is_step(step, value):
                break
            steps.append(step)
        return steps

    def _is_step(self, node: ir.Node, value: ir.Value) -> bool:
        """A function of one element, or of several of its channel, and of numbers of its image
        and channel.
        """
        graph, expr = self.graph, self.graph[node.outputs[0].name or ""].expr
        if expr is None or len(node.outputs) != 1 or not is_float32(graph, node.outputs[0]):
            return False
        own = graph[value.name or ""].shape or ()
        same = expr.combine is Combine.MAP and expr.shape == own
        if not same and not _pools(expr, own):
            return False
        others = [x for x in node.inputs if x is not None and x is not value]
        if len(others) + 1 != sum(x is not None for x in node.inputs):
            return False
        names = [x.name or "" for x in others]
        if not all(graph.is_constant(x) or self._is_whole(x) for x in names):
            return False
        return all(channel_axis(graph, node, x, expr.shape) is not None for x in others)


def _pools(expr: TensorExpr, shape: Shape) -> bool:
    """True where each channel of an image is reduced by itself."""
    if expr.combine is not Combine.REDUCE or len(expr.shape) != len(shape):
        return False
    bare = tuple(dim_index(d, e) for d, e in enumerate(shape[:2]))
    alone = expr.shape[:2] == shape[:2] and len(expr.reads) == 1 and not expr.ordered & {0, 1}
    return alone and expr.reads[0].index[:2] == bare


def is_convolution(node: ir.Node) -> bool:
    """True for the operator whose channels may be left out."""
    return not node.domain and node.op_type == "Conv"


def _zeros(graph: Graph, name: str) -> list[Region]:
    return [f.region for f in graph[name].fills if is_zero(f.constant)]
