"""Kernel nodes of a lowered model: plans that parse, operands of the right types, packed values
with their own detector.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.nodes import is_pit_node, node_name
from pitc.ir.plan import PLAN_VERSION
from pitc.passes.audit.plan_fields import FIELDS, OWN, kinds_of, wrong_fields
from pitc.passes.audit.region_plans import wrong_region

LIVE_POINTS = "live_points_"  # symbols of packed axes have it in their names
DETECTED = {"rows": 0, "coords": 1, "offsets": 2}  # outputs of a detector
#: Operands that are packed, and the operand that says by which detector.
PACKED = {
    "unpack": {"x": "rows"},
    "attention": {"q": "q_offsets", "k": "k_offsets", "v": "k_offsets"},
}
OUTPUTS = {"detect": 3}


@dataclass(frozen=True, slots=True)
class PitNode:
    """A kernel node, read.

    Args:
        node: The node.
        op: Its operation.
        fields: Its plan's other fields.
        operands: Operands by name.
    """

    node: ir.Node
    op: str
    fields: Mapping[str, str]
    operands: Mapping[str, ir.Value]


def wrong_plans(model: ir.Model, symbols: Collection[str]) -> Iterator[str]:
    """Violations of the kernel nodes of a lowered model, bodies included.

    Args:
        model: The model.
        symbols: Kernels that were asked for.
    """
    detectors: dict[str, str] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        label = node_name(node)
        if not is_pit_node(node):
            yield from _mixed(node)
            continue
        text = node.attributes["ep_cache_context"].as_string()
        read = _parsed(text)
        if isinstance(read, str):
            yield f"{label}: {read}"
            continue
        op = read.pop("op")
        if op == "region":
            yield from (f"{label}: {line}" for line in wrong_region(node, read, symbols))
            continue
        lines = list(wrong_fields(op, read, symbols))
        if lines:
            yield from (f"{label}: {line}" for line in lines)
            continue
        found = _operands(node, op, read)
        if isinstance(found, str):
            yield f"{label}: {found}"
            continue
        pit = PitNode(node, op, read, found)
        yield from (f"{label}: {line}" for line in _wrong_operands(pit))
        yield from (f"{label}: {line}" for line in _wrong_outputs(pit))
        if op == "detect":
            first = detectors.setdefault(_symbol(node.outputs[0]), label)
            if first != label:
                yield f"{label}: its live points are called like those of {first}"


def _parsed(text: str) -> dict[str, str] | str:
    """The fields of a plan; a line of text where it is none."""
    first, *lines = text.split("\n")
    if (
        first != f"pitc-plan {PLAN_VERSION}"
        or lines[-1:] != [""]
        or lines[:-1] != sorted(lines[:-1])
    ):
        return f"{text!r} is no plan"
    pairs = [line.split("=", 1) for line in lines[:-1]]
    if any(len(pair) != 2 for pair in pairs) or len({pair[0] for pair in pairs}) < len(pairs):
        return f"{text!r} has fields without a value, or twice"
    fields = {key: value for key, value in pairs}
    return fields if fields.get("op") in FIELDS else f"the operation {fields.get('op')} is unknown"


def _operands(node: ir.Node, op: str, fields: Mapping[str, str]) -> dict[str, ir.Value] | str:
    """Operands by name; a line of text where they are not those of the plan."""
    names = list(kinds_of(op, fields))
    given = [x for x in node.inputs if x is not None]
    if len(given) != len(names) or len(node.inputs) != len(names):
        return f"plan {op} has {len(node.inputs)} operands, not {names}"
    return dict(zip(names, given, strict=True))


def _wrong_operands(pit: PitNode) -> Iterator[str]:
    kinds = kinds_of(pit.op, pit.fields)
    sources: dict[str, ir.Node] = {}
    for name, x in pit.operands.items():
        kind, known = kinds[name], x.dtype
        if kind == OWN:
            kind = ir.DataType.from_numpy(np.dtype(pit.fields["dtype"]))
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
    for name, by in PACKED.get(pit.op, {}).items():
        symbol = _symbol(pit.operands[name])
        if by in sources and LIVE_POINTS in symbol and symbol != _symbol(sources[by].outputs[0]):
            yield f"operand {name}, {pit.operands[name].name}, is packed over {symbol}"


def _is_detector(node: ir.Node) -> bool:
    plan = node.attributes.get("ep_cache_context")
    return is_pit_node(node) and plan is not None and "\nop=detect\n" in plan.as_string()


def _symbol(value: ir.Value) -> str:
    """The name of a value's first dimension."""
    first = value.shape[0] if value.shape is not None and len(value.shape) else None
    return (first.value or "") if isinstance(first, ir.SymbolicDim) else ""


def _wrong_outputs(pit: PitNode) -> Iterator[str]:
    node = pit.node
    if len(node.outputs) != OUTPUTS.get(pit.op, 1):
        yield f"plan {pit.op} has {len(node.outputs)} outputs"
    for output in node.outputs:
        # a graph output, now or before it was given up, says of its shape what the source said
        told = output.shape is not None or pit.op == "unpack" or output.is_graph_output()
        if output.dtype is None or not told:
            yield f"{output.name} has no type or no shape"
    dims = pit.fields.get("dims", "").split(",")
    if pit.op == "detect":
        live = pit.operands["live"]
        if live.shape is not None and len(live.shape) != int(pit.fields["rank"]):
            yield f"{live.name} of shape {live.shape} is looked at in rank {pit.fields['rank']}"
        if LIVE_POINTS not in _symbol(node.outputs[0]):
            yield "its live points have no name"
    if pit.op == "pack":
        x, out = pit.operands["x"], node.outputs[0]
        if x.shape is not None and len(x.shape) != len(dims):
            yield f"{x.name} of shape {x.shape} is gathered by {dims}"
        rows = pit.operands["rows"].producer()
        if rows is not None and _symbol(out) != _symbol(rows.outputs[0]):
            yield f"{out.name} is packed over {_symbol(out)}"
        if out.shape is not None and len(out.shape) != 1 + dims.count("r"):
            yield f"{out.name} has shape {out.shape}, with {dims.count('r')} dimensions that stay"
    whole = node.outputs[0]
    known = None if whole.is_graph_output() else whole.shape  # there the source said it
    if pit.op == "unpack" and known is not None and len(known) != len(dims):
        yield f"{whole.name} of shape {whole.shape} is scattered by {dims}"


def _mixed(node: ir.Node) -> Iterator[str]:
    """An ordinary node works on rows of one domain only."""
    values = [x for x in (*node.inputs, *node.outputs) if x is not None]
    found = {s for x in values if LIVE_POINTS in (s := _symbol(x))}
    if len(found) > 1:
        yield f"{node_name(node)} mixes packed values over {sorted(found)}"
