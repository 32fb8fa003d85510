"""Rows are gathered in front of a dequantisation instead of behind it.

    SRead(DequantizeLinear(q))   ->   DequantizeLinear(SRead(q))

That is exact, as one scale and zero point are those of all elements. It moves a quarter of the
bytes, and ONNX Runtime sees what it has a kernel for: a product between a dequantisation and a
quantisation.
"""

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.passes.lower.early_quantise import DEQUANTIZE, DOMAINS, is_one_number

BYTES = (np.int8, np.uint8)


def dequantisation(graph: Graph, value: ir.Value) -> ir.Node | None:
    """The node that gives a value, if it dequantises bytes by one number; else None."""
    node = value.producer()
    if node is None or node.op_type != DEQUANTIZE or node.domain not in DOMAINS:
        return None
    quantised, *numbers = node.inputs
    known = None if quantised is None else graph.values.get(quantised.name or "")
    if known is None or known.dtype not in BYTES:
        return None
    return node if all(x is None or is_one_number(x, graph) for x in numbers) else None
