"""Rows are gathered in front of a dequantisation instead of behind it.

    SRead(DequantizeLinear(q))   ->   DequantizeLinear(SRead(q))

That is exact, as one scale and zero point are those of all elements. It moves a quarter of the
bytes, and ONNX Runtime sees what it has a kernel for: a product between a dequantisation and a
quantisation.
"""

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.passes.lower.packed import Packed, remove_idle
from pitc.passes.quirks.early_quantise import DEQUANTIZE, DOMAINS, is_one_number

BYTES = (np.int8, np.uint8)


def gather_bytes(
    packed: Packed, gathered: Mapping[ir.Value, tuple[str, Callable[[str], ir.Value]]]
) -> None:
    """Gather what is dequantised in front of that, where no product gathers it itself.

    Args:
        packed: The graph.
        gathered: Rows that a Pack gives: the name of the whole value, and what gathers the same
            rows of another one.
    """
    build = packed.build
    for old, (name, gather) in list(gathered.items()):
        inverse, made = dequantisation(packed.graph, build.value(name)), old.producer()
        if inverse is None or made is None or made.graph is None:
            continue
        quantised, *grid = inverse.inputs
        assert quantised is not None and quantised.name is not None
        if not build.has(quantised.name):
            continue
        rows = gather(quantised.name)
        attributes, stems = dict(inverse.attributes), [old.name or ""]
        (new,) = build.node(inverse.domain, inverse.op_type, [rows, *grid], attributes, stems)
        new.type, new.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new)
        remove_idle([made])


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
