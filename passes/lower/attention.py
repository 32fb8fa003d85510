"""The layouts in which attention nodes read queries, keys and values."""

from collections.abc import Mapping

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.plan import Field
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.heads import unsplit_heads

CACHE = ("c0", "r", "c1", "r")  # [batch, heads, positions, size]


def lay_out(
    build: Builder,
    graph: Graph,
    fields: dict[str, Field],
    inputs: list[ir.Value],
    gathered_from: Mapping[ir.Value, tuple[str, tuple[str, ...]]],
) -> bool:
    """Let an attention node read its operands as they lie: heads of a wider buffer by their number,
    keys and values of a cache where nothing but a gather would pack them.

    Args:
        build: Where nodes go.
        graph: The analysed graph.
        fields: Of the node's plan; completed.
        inputs: Packed q, k and v, and what follows; q, k and v are replaced.
        gathered_from: Values that rows were only gathered from, and how they lie there.

    Returns:
        True where keys and values are whole.
    """
    sizes = {name: int(str(fields[name])) for name in ("heads", "d", "dv")}
    caches = [
        _cache(graph, gathered_from.get(x), (sizes["heads"], sizes[size]))
        for x, size in zip(inputs[1:3], ("d", "dv"), strict=True)
    ]
    whole = None not in caches
    if whole:
        fields["whole"] = 1
        inputs[1:3] = [build.value(name) for name in caches if name is not None]
    for k, (side, size) in enumerate((("q", "d"), ("k", "d"), ("v", "dv"))):
        if not (whole and k):
            inputs[k], fields[f"{side}_head"] = unsplit_heads(build, inputs[k], sizes[size])
    return whole


def _cache(
    graph: Graph, gathered: tuple[str, tuple[str, ...]] | None, sizes: tuple[int, int]
) -> str | None:
    """A whole value that kernels for CPUs read where it lies; None where it is none."""
    if graph.target.kind != "cpu" or gathered is None or gathered[1] != CACHE:
        return None
    shape = graph[gathered[0]].shape
    assert shape is not None  # its dimensions have codes
    return gathered[0] if (shape[1].as_int(), shape[3].as_int()) == sizes else None
