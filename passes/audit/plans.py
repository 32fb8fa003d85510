"""Kernel nodes of a lowered model: plans that parse, operands of the right types, packed values
with their own detector.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import onnx_ir as ir

from pitc.ir.nodes import is_pit_node, node_name, plan_of
from pitc.ir.plans.base import Plan, WrongPlanError
from pitc.ir.plans.ops import Detect, Pack, Region, Unpack
from pitc.passes.audit.region_plans import type_of_operand, wrong_kernel, wrong_region

LIVE_POINTS = "live_points_"  # symbols of packed axes have it in their names
DETECTED = {"rows": 0, "coords": 1, "offsets": 2}  # outputs of a detector


@dataclass(frozen=True, slots=True)
class PitNode:
    """A kernel node, read.

    Args:
        node: The node.
        plan: Its plan.
        operands: Operands by name.
    """

    node: ir.Node
    plan: Plan
    operands: Mapping[str, ir.Value]


def wrong_plans(model: ir.Model, symbols: Collection[str] | None = None) -> Iterator[str]:
    """Violations of the packed nodes of a model, bodies included.

    Args:
        model: The model.
        symbols: Kernels that were asked for; None: packed nodes do not name any yet.
    """
    detectors: dict[str, str] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if not is_pit_node(node):
            if len(found := _packed_over(node)) > 1:
                yield f"{node_name(node)} mixes packed values over {sorted(found)}"
            continue
        label, plan = node_name(node), _plan(node)
        if isinstance(plan, str):
            yield f"{label}: {plan}"
            continue
        if isinstance(plan, Region):
            yield from (f"{label}: {line}" for line in wrong_region(node, plan, symbols))
            continue
        operands = _operands(node, plan)
        if isinstance(operands, str):
            yield f"{label}: {operands}"
            continue
        pit = PitNode(node, plan, operands)
        yield from (f"{label}: {line}" for line in wrong_kernel(plan, symbols))
        yield from (f"{label}: {line}" for line in _wrong_operands(pit))
        yield from (f"{label}: {line}" for line in _wrong_outputs(pit))
        if isinstance(plan, Detect):
            first = detectors.setdefault(_symbol(node.outputs[0]), label)
            if first != label:
                yield f"{label}: its live points are called like those of {first}"


def _plan(node: ir.Node) -> Plan | str:
    """The plan of a node; a line of text where it has none."""
    try:
        return plan_of(node)
    except WrongPlanError as why:
        return str(why)


def _operands(node: ir.Node, plan: Plan) -> dict[str, ir.Value] | str:
    """Operands by name; a line of text where they are not those of the plan."""
    names = list(plan.operands)
    given = [x for x in node.inputs if x is not None]
    if len(given) != len(names) or len(node.inputs) != len(names):
        return f"plan {plan.op} has {len(node.inputs)} operands, not {names}"
    return dict(zip(names, given, strict=True))


def _wrong_operands(pit: PitNode) -> Iterator[str]:
    sources: dict[str, ir.Node] = {}
    for name, x in pit.operands.items():
        kind, known = type_of_operand(pit.plan, name), x.dtype
        if kind is not None and known is not None and known != kind:
            yield f"operand {name}, {x.name}, has type {known}"
        what = name.rpartition("_")[2]
        if what in DETECTED:
            producer = x.producer()
            if producer is None or not _is_detector(producer) or x.index() != DETECTED[what]:
                yield f"operand {name}, {x.name}, comes from no detector"
            else:
                sources[name] = producer
    rows = sources.get("rows")
    if rows is not None:
        if "coords" in sources and sources["coords"] is not rows:
            yield "rows and coordinates are those of two detectors"
        if pit.operands["live"] is not rows.inputs[0]:
            yield f"{pit.operands['live'].name} is not what its detector has read"
    for name, operand in pit.plan.operands.items():
        by, symbol = operand.packed_by, _symbol(pit.operands[name])
        if by in sources and LIVE_POINTS in symbol and symbol != _symbol(sources[by].outputs[0]):
            yield f"operand {name}, {pit.operands[name].name}, is packed over {symbol}"


def _is_detector(node: ir.Node) -> bool:
    return is_pit_node(node) and isinstance(_plan(node), Detect)


def _symbol(value: ir.Value) -> str:
    """The name of a value's first dimension."""
    shape = value.shape
    first = shape[0] if shape is not None and len(shape) else 0
    # a test for `SymbolicDim`, which is a protocol's, takes ten times as long
    return "" if isinstance(first, int) else first.value or ""


def _wrong_outputs(pit: PitNode) -> Iterator[str]:
    node, plan = pit.node, pit.plan
    if len(node.outputs) != plan.output_count:
        yield f"plan {plan.op} has {len(node.outputs)} outputs"
    for output in node.outputs:
        # a graph output, now or before it was given up, says of its shape what the source said
        told = output.shape is not None or isinstance(plan, Unpack) or output.is_graph_output()
        if output.dtype is None or not told:
            yield f"{output.name} has no type or no shape"
    if isinstance(plan, Detect):
        live = pit.operands["live"]
        if live.shape is not None and len(live.shape) != plan.rank:
            yield f"{live.name} of shape {live.shape} is looked at in rank {plan.rank}"
        if LIVE_POINTS not in _symbol(node.outputs[0]):
            yield "its live points have no name"
    if isinstance(plan, Pack):
        x, out, dims = pit.operands["x"], node.outputs[0], plan.dims
        if x.shape is not None and len(x.shape) != len(dims):
            yield f"{x.name} of shape {x.shape} is gathered by {dims}"
        rows = pit.operands["rows"].producer()
        if rows is not None and _symbol(out) != _symbol(rows.outputs[0]):
            yield f"{out.name} is packed over {_symbol(out)}"
        if out.shape is not None and len(out.shape) != 1 + dims.count("r"):
            yield f"{out.name} has shape {out.shape}, with {dims.count('r')} dimensions that stay"
    whole = node.outputs[0]
    known = None if whole.is_graph_output() else whole.shape  # there the source said it
    if isinstance(plan, Unpack) and known is not None and len(known) != len(plan.dims):
        yield f"{whole.name} of shape {whole.shape} is scattered by {plan.dims}"


def _packed_over(node: ir.Node) -> set[str]:
    """The domains whose rows an ordinary node works on: one at most."""
    values = chain(filter(None, node.inputs), node.outputs)
    return {s for s in map(_symbol, values) if LIVE_POINTS in s}
