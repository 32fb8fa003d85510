"""Operators that give finite results for all finite operands (overflow aside)."""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine, Reducer, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.region import EVERYWHERE, Region, position, truth
from pitc.passes.facts.signs import finite_at
from pitc.passes.rules.elementwise import ELEMENTWISE
from pitc.passes.rules.registry import MICROSOFT

# of operators without a formula, those that give finite numbers for any finite ones
FINITE = frozenset(
    {"ArgMax", "ArgMin", "CenterCropPad", "Col2Im", "Compress", "ConvInteger", "ConvTranspose"}
    | {"CumProd", "CumSum", "DFT", "Det", "DynamicQuantizeLinear", "EyeLike", "GridSample"}
    | {"OneHot", "Pad", "QLinearConv", "Range", "Resize", "ReverseSequence", "RotaryEmbedding"}
    | {"STFT", "TensorScatter", "TopK", "Trilu", "Upsample"}
)
# these make nothing, whatever the shapes are
MOVES = frozenset(
    {"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Tile", "Transpose", "Unsqueeze"}
)
FINITE_FUSED = frozenset({"MatMulNBits", "MoE", "QMoE", "RotaryEmbedding"})
# these divide by a root of a variance (or mean of squares) plus epsilon
NORMS = frozenset(
    {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"}
    | {"SimplifiedLayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"}
    | {"SkipSimplifiedLayerNormalization"}
)
SUMS = (Reducer.SUM, Reducer.SQUARE, Reducer.PROD)  # of nothing, others are infinite or NaN


def is_total(graph: Graph, node: ir.Node, changed: Collection[str]) -> bool:
    """True where a node's results are finite when the changed operands hold any finite numbers, 0
    included, and the others what they hold.

    Args:
        graph: The derived graph.
        node: A node without bodies.
        changed: Names of operands.
    """
    expr = graph.exprs.get(node.outputs[0].name or "")
    if expr is None:  # of unknown shape
        row = ELEMENTWISE.get((node.domain, node.op_type))
        return row.total if row is not None else not node.domain and node.op_type in MOVES
    match expr.combine:
        case Combine.MAP:
            divisor = node.inputs[1] if len(node.inputs) > 1 else None
            if node.op_type == "Div" and divisor is not None and divisor.name not in changed:
                return True
            if (node.domain, node.op_type) == ("", "BatchNormalization"):
                return _is_scaling(graph, node, changed)
            row = ELEMENTWISE.get((node.domain, node.op_type))
            if row is None:  # no function of what it reads: a constant, a mask of ones
                return not expr.reads
            return row.total or (not node.domain and finite_at(graph, node))
        case Combine.NORMALISE:
            return node.op_type in ("LogSoftmax", "Hardmax") or (
                node.op_type in NORMS and _float(node, "epsilon", 1e-5) > 0
            )
        case Combine.OPAQUE:
            if node.op_type == "LRN":
                return _float(node, "bias", 1.0) > 0 and _float(node, "alpha", 1e-4) >= 0
            if node.domain == MICROSOFT:
                return node.op_type in FINITE_FUSED
            return not node.domain and node.op_type in FINITE
    return True


def filled(expr: TensorExpr) -> Region:
    """Where a reduction has something to reduce, if it must: a test of sizes."""
    if expr.combine is not Combine.REDUCE or expr.reducer in SUMS:
        return EVERYWHERE
    tests = (position(e - 1) for e in expr.reduced)
    return Region(t for t in tests if truth(t) is not True)


def _is_scaling(graph: Graph, node: ir.Node, changed: Collection[str]) -> bool:
    """True for a normalisation by numbers that are as they were, or constants it can divide by."""
    names = [x.name or "" for x in node.inputs[1:] if x is not None]
    variance = graph.array(names[-1])
    if variance is None:
        return names[-1] not in changed
    return bool((variance + np.float32(_float(node, "epsilon", 1e-5)) > 0).all())


def _float(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()
