"""Attention reads queries, keys and values where they are stored: heads of a joint projection by
the number of the first one, keys and values of a cache where nothing but a Pack gathers them.

    Attention(q', Pack(keys), Pack(values), ..)  ->  Attention(whole)(q', keys, values, .., live)
"""

from dataclasses import replace

import onnx_ir as ir

from pitc.ir.plans.ops import Attention, Detect, Pack
from pitc.passes.lower.heads import unsplit_heads
from pitc.passes.lower.packed import Packed, maker, operands_of, packed_plan
from pitc.passes.regions.matrix import dims_of

CACHE = ("c0", "r", "c1", "r")  # [batch, heads, positions, size]


def fuse_head_splits(packed: Packed) -> None:
    """Let attention read its operands where they are stored."""
    for node in packed.nodes():
        plan = packed_plan(node)
        if isinstance(plan, Attention):
            _read_in_place(packed, node, plan)


def _read_in_place(packed: Packed, node: ir.Node, plan: Attention) -> None:
    build, operands = packed.build, operands_of(node)
    operands["q"], q_head = unsplit_heads(build, operands["q"], plan.d)
    if plan.whole:
        packed.become(node, replace(plan, q_head=q_head), operands)
        return
    heads = plan.heads // (plan.group or 1)
    caches = {
        name: _cache(packed, operands[name], (heads, size))
        for name, size in (("k", plan.d), ("v", plan.dv))
    }
    keys, values = caches["k"], caches["v"]
    detector = maker(operands["k_offsets"], Detect)
    if keys is not None and values is not None and detector is not None:
        points = {"k_coords": detector.outputs[1], "live": operands_of(detector)["live"]}
        operands = points | operands | {"k": keys, "v": values}
        packed.become(node, replace(plan, q_head=q_head, whole=True), operands)
        return
    operands["k"], k_head = unsplit_heads(build, operands["k"], plan.d)
    operands["v"], v_head = unsplit_heads(build, operands["v"], plan.dv)
    packed.become(node, replace(plan, q_head=q_head, k_head=k_head, v_head=v_head), operands)


def _cache(packed: Packed, rows: ir.Value, sizes: tuple[int, int]) -> ir.Value | None:
    """A whole value that kernels for CPUs read where it is; None where it is none."""
    pack = maker(rows, Pack)
    plan = packed_plan(pack)
    if not packed.graph.target.reads_stored or pack is None or not isinstance(plan, Pack):
        return None
    value = operands_of(pack)["x"]
    dims = dims_of(packed.graph, value)
    is_cache = plan.dims == CACHE and dims is not None and (dims[1], dims[3]) == sizes
    return value if is_cache else None
