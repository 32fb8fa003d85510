"""Kernel nodes of a lowered model: plans that parse, operands of the right types, packed values
with their own detector.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.nodes import is_pit_node, node_name
from pitc.ir.plan import PLAN_VERSION

LIVE_POINTS = "live_points_"  # symbols of packed axes have it in their names
COSTS = re.compile(r"(cost|shape)_\w+_v\d|(clocks|price_\w+)_sm_\d+")
FLAG, NUMBER, REAL, NUMBERS = r"[01]", r"\d+", r"-?\d+|-?0x[0-9a-f.]+p[+-]?\d+", r"\d+(,\d+)*"
WORD, WORDS, CODES = r"[\w.:-]+", r"[^,\s]+(,[^,\s]+)*", r"(c\d|l|0|r)(,(c\d|l|0|r))*"
_LIBRARY = {"kernel": WORD, "library": WORD}
_MOVE = {**_LIBRARY, "dims": CODES, "dtype": "int32|int8"}
_KERNEL = {**_LIBRARY, "dtype": "float32|float16|bfloat16"}
_PRODUCT = {**_KERNEL, "activation": WORD, "bias": FLAG, "k": NUMBER, "n": NUMBER, "residual": FLAG}
_ROWS = {**_PRODUCT, "gather": FLAG, "scatter": FLAG}
#: The fields of each plan, and how they are written (docs/plans.md).
FIELDS: Mapping[str, Mapping[str, str]] = {
    "detect": {"rank": NUMBER},
    "pack": _MOVE,
    "unpack": _MOVE,
    "gather_gemm": _ROWS,
    "contract": {**_ROWS, "input_relu": FLAG},
    "ffn": {**_ROWS, "inner": NUMBER, "inner_activation": WORD, "inner_bias": FLAG},
    "contract_right": {**_PRODUCT, "factor": "0|1|2", "stored": "kn|nk"},
    "attention": {
        **_KERNEL,
        **dict.fromkeys(("d", "dv", "heads", "q_head", "k_head", "v_head"), NUMBER),
        **{"bias": FLAG, "nan_to_zero": FLAG, "no_keys_to_zero": FLAG, "scale": REAL},
    },
    "choose_channels": {
        **{"budget": NUMBER, "channels": NUMBERS, "weights": NUMBERS},
        **{"nodes": WORDS, "places": r"(all|\d+)(,(all|\d+))*"},
    },
}
F32, I32 = ir.DataType.FLOAT, ir.DataType.INT32
OWN = ir.DataType.UNDEFINED  # what the plan computes with
DETECTED = {"rows": 0, "coords": 1, "offsets": 2}  # outputs of a detector
#: Operands of each plan: name, type (None: any that can be moved), and the fields that ask for it.
OPERANDS: Mapping[str, tuple[tuple[str, ir.DataType | None, tuple[str, ...]], ...]] = {
    "detect": (("live", None, ()),),
    "pack": (("x", None, ()), ("rows", I32, ()), ("coords", I32, ()), ("live", None, ())),
    "contract_right": (
        *(("a", OWN, ()), ("s", OWN, ()), ("factor", OWN, ("factor",))),
        *(("bias", F32, ("bias",)), ("residual", OWN, ("residual",))),
    ),
    "gather_gemm": (
        *(("a", OWN, ()), ("b", OWN, ()), ("bias", F32, ("bias",))),
        ("residual", OWN, ("residual",)),
        *(("rows", I32, ("gather", "scatter")), ("live", None, ("gather", "scatter"))),
    ),
    "ffn": (
        *(("a", OWN, ()), ("b1", OWN, ()), ("bias1", F32, ("inner_bias",))),
        *(("b2", OWN, ()), ("bias", F32, ("bias",)), ("residual", OWN, ("residual",))),
        *(("rows", I32, ("gather", "scatter")), ("live", None, ("gather", "scatter"))),
    ),
    "attention": (
        *(("q", OWN, ()), ("k", OWN, ()), ("v", OWN, ())),
        *(("q_offsets", I32, ()), ("k_offsets", I32, ()), ("bias", F32, ("bias",))),
        *(("q_coords", I32, ("bias",)), ("k_coords", I32, ("bias",))),
    ),
    "choose_channels": (("flags", F32, ()),),
}
SAME_OPERANDS = {"unpack": "pack", "contract": "gather_gemm"}
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
        lines = list(_wrong_fields(op, read, symbols))
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


def _wrong_fields(op: str, fields: Mapping[str, str], symbols: Collection[str]) -> Iterator[str]:
    wanted = FIELDS[op]
    found = {k: v for k, v in fields.items() if not COSTS.fullmatch(k)}
    if found.keys() != wanted.keys():
        yield f"plan {op} has the fields {sorted(found)}, not {sorted(wanted)}"
    for key, value in found.items():
        if key in wanted and not re.fullmatch(wanted[key], value):
            yield f"plan {op}: {key}={value}"
    if "kernel" in wanted and fields.get("kernel") not in symbols:
        yield f"nobody asked for the kernel {fields.get('kernel')}"


def _operands(node: ir.Node, op: str, fields: Mapping[str, str]) -> dict[str, ir.Value] | str:
    """Operands by name; a line of text where they are not those of the plan."""
    wanted = OPERANDS[SAME_OPERANDS.get(op, op)]
    names = [n for n, _, by in wanted if not by or any(fields.get(f, "0") != "0" for f in by)]
    given = [x for x in node.inputs if x is not None]
    if len(given) != len(names) or len(node.inputs) != len(names):
        return f"plan {op} has {len(node.inputs)} operands, not {names}"
    return dict(zip(names, given, strict=True))


def _wrong_operands(pit: PitNode) -> Iterator[str]:
    kinds = {n: kind for n, kind, _ in OPERANDS[SAME_OPERANDS.get(pit.op, pit.op)]}
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
