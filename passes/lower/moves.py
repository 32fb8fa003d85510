"""SRead and SWrite become part of a contraction: it gathers its rows, and scatters its result.

    Contract(Pack(x, rows))      ->   Contract(gather)(x, rows)
    Unpack(Contract(x'), rows)   ->   Contract(scatter)(x', rows)

A Pack goes where contractions alone read it, an Unpack where nothing else reads the product;
neither where the matrix is computed when the model runs, or where coordinates do not come first,
in order.
"""

from dataclasses import replace

import onnx_ir as ir

from pitc.ir.plans.ops import Contract, Move, Pack, Unpack
from pitc.passes.lower.packed import Packed, operands_of, packed_plan
from pitc.passes.lower.rows import only_reader


def fuse_moves(packed: Packed) -> None:
    """Let contractions gather and scatter rows."""
    found = [(n, p) for n, p in packed.contractions() if p.right == "panels"]
    nodes = {node for node, _ in found}
    for node, plan in found:
        reader = only_reader(packed.graph, node.outputs[0])
        move = packed_plan(reader)
        if reader is not None and isinstance(move, Unpack) and _is_in_order(reader, move):
            given = operands_of(node) | _points(reader)
            packed.become(node, replace(plan, scatter=True), given, reader.outputs[0])
    for pack in packed.nodes():
        move, rows = packed_plan(pack), pack.outputs[0]
        if not isinstance(move, Pack) or not _is_in_order(pack, move):
            continue
        readers = [use.node for use in rows.uses()]
        if all(use.node in nodes and use.idx == 0 for use in rows.uses()):
            for node in dict.fromkeys(readers):
                _gather(packed, node, pack)


def _gather(packed: Packed, node: ir.Node, pack: ir.Node) -> None:
    """Let a contraction gather the rows that a Pack gathers for it."""
    plan, operands = packed_plan(node), operands_of(node)
    assert isinstance(plan, Contract)
    points = {} if plan.scatter else _points(pack)
    operands |= {"a": operands_of(pack)["x"]} | points
    packed.become(node, replace(plan, gather=True), operands)


def _points(move: ir.Node) -> dict[str, ir.Value]:
    """What says which rows are moved."""
    operands = operands_of(move)
    return {name: operands[name] for name in ("rows", "live")}


def _is_in_order(node: ir.Node, plan: Move) -> bool:
    """True where all coordinates come first, in order, and one dimension is left."""
    coords = operands_of(node)["coords"]
    rank = coords.shape[0] if coords.shape is not None else None
    return isinstance(rank, int) and plan.dims == (*(f"c{k}" for k in range(rank)), "r")
