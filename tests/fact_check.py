"""What fact tests share: analyse a small model, audit it, and look at what was proven."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from models.graph import GraphBuilder
from pitc.check.feeds import input_specs
from pitc.check.probes import probes
from pitc.ir.constant import Constant
from pitc.ir.graph import Array, Graph
from pitc.ir.region import Region, Test, describe
from pitc.passes.audit.engine import AuditResult, audit, tests_of
from pitc.passes.facts.dead import dead_facts
from pitc.passes.facts.fill import fill_facts
from pitc.passes.normalise import normalise
from tests.fact_feeds import PATTERNS, Pattern, random_feeds


def mask_is_zero(graph: Graph, mask: str) -> Region:
    """`mask[d0, d1, ..] == 0`."""
    return Region({Test(mask, graph.index_of(mask), "nz", False)})


def analysed(
    proto: onnx.ModelProto, mask: str | None = None, opt_in: Sequence[str] = ()
) -> tuple[Graph, dict[str, list[Region]]]:
    """Normalise a model and compute its facts.

    Args:
        proto: The model.
        mask: The padding mask.
        opt_in: Outputs that are given up where the mask is 0.
    """
    model = ir.from_proto(proto)
    normalise(model)
    graph = Graph(model)
    fill_facts(graph, [mask] if mask else [])
    given_up = {name: [mask_is_zero(graph, mask)] for name in opt_in if mask is not None}
    dead_facts(graph, given_up)
    return graph, given_up


def proven(
    proto: onnx.ModelProto,
    mask: str | None = None,
    opt_in: Sequence[str] = (),
    patterns: tuple[Pattern, ...] = PATTERNS,
    sizes: Mapping[str, int] | None = None,
    top_index: int = 4,
) -> Graph:
    """Analyse and audit; every fact must hold, of the model as it was too."""
    graph, given_up = analysed(proto, mask, opt_in)
    found = random_feeds(graph, mask, patterns=patterns, sizes=sizes, top_index=top_index)
    result = probed(proto, graph, given_up, mask, found)
    assert result.failures == []
    assert result.faults == 0
    assert result.feeds
    return graph


def probed(
    proto: onnx.ModelProto,
    graph: Graph,
    given_up: Mapping[str, Sequence[Region]],
    mask: str | None = None,
    feeds: Iterable[Mapping[str, Array]] = (),
    every: int = 1,
) -> AuditResult:
    """Audit beside the model as it was, on feeds and on every n-th probe: which, the model says."""
    source = ir.from_proto(proto)
    tried = list(probes(input_specs(source), tests_of(graph), padding=mask))
    more = (case.feeds for case in tried[len(graph.nodes) % every :: every])
    return audit(graph, given_up, feeds, source=source, probes=more, teeth=False)


def checked(graph: Graph, given_up: Mapping[str, Sequence[Region]], mask: str) -> AuditResult:
    """Audit with every mask pattern."""
    return audit(graph, given_up, random_feeds(graph, mask, top_index=4))


def built(make: Callable[[GraphBuilder], None], opset: int = 20) -> onnx.ModelProto:
    """The model that a function builds."""
    g = GraphBuilder("test", opset)
    make(g)
    return g.model()


def fills(graph: Graph, name: str) -> set[tuple[str, Constant]]:
    """Fill facts of a value as (text, constant)."""
    return {(describe(f.region), f.constant) for f in graph[name].fills}


def dead(graph: Graph, name: str) -> set[str]:
    """Dead facts of a value as text."""
    return {describe(r) for r in graph[name].dead}


def only(graph: Graph, op_type: str, place: int = 0) -> str:
    """Output of the n-th node of a type."""
    return [n.outputs[0].name or "" for n in graph.nodes if n.op_type == op_type][place]


def rows(rng: np.random.Generator, *shape: int) -> Array:
    """Random float32 weights."""
    return rng.normal(size=shape).astype(np.float32)
