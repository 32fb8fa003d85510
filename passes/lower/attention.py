"""The layouts in which attention nodes read queries, keys and values."""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.plans.ops import Attention
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.heads import unsplit_heads

CACHE = ("c0", "r", "c1", "r")  # [batch, heads, positions, size]


def lay_out(
    build: Builder,
    graph: Graph,
    plan: Attention,
    inputs: list[ir.Value],
    gathered_from: Mapping[ir.Value, tuple[str, tuple[str, ...]]],
) -> Attention:
    """Let an attention node read its operands as they lie: heads of a wider buffer by their number,
    keys and values of a cache where nothing but a gather would pack them.

    Args:
        build: Where nodes go.
        graph: The analysed graph.
        plan: Of the node.
        inputs: Packed q, k and v, and what follows; q, k and v are replaced.
        gathered_from: Values that rows were only gathered from, and how they lie there.

    Returns:
        The plan, which says how they lie.
    """
    caches = [
        _cache(graph, gathered_from.get(x), (plan.heads, size))
        for x, size in zip(inputs[1:3], (plan.d, plan.dv), strict=True)
    ]
    inputs[0], q_head = unsplit_heads(build, inputs[0], plan.d)
    if None not in caches:
        inputs[1:3] = [build.value(name) for name in caches if name is not None]
        return replace(plan, q_head=q_head, whole=True)
    inputs[1], k_head = unsplit_heads(build, inputs[1], plan.d)
    inputs[2], v_head = unsplit_heads(build, inputs[2], plan.dv)
    return replace(plan, q_head=q_head, k_head=k_head, v_head=v_head)


def _cache(
    graph: Graph, gathered: tuple[str, tuple[str, ...]] | None, sizes: tuple[int, int]
) -> str | None:
    """A whole value that kernels for CPUs read where it lies; None where it is none."""
    if graph.target.kind != "cpu" or gathered is None or gathered[1] != CACHE:
        return None
    shape = graph[gathered[0]].shape
    assert shape is not None  # its dimensions have codes
    return gathered[0] if (shape[1].as_int(), shape[3].as_int()) == sizes else None
