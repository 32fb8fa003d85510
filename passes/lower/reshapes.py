"""A Reshape of a Reshape becomes one, among nodes that lowering made.

    Reshape(Reshape(x, [0, 1, 8]), [0, 8])   ->   Reshape(x, [0, 8])

Both have all elements of x. A size of 0 is the extent there of what is reshaped: that of x, where
the first shape has a 0 at that place, too.
"""

import onnx_ir as ir

from pitc.passes.lower.packed import Packed


def join_reshapes(packed: Packed) -> None:
    """Let the second one read what the first one reads. A first one that nobody reads stays."""
    made = [n for n in packed.graph.model.graph if _is_plain(n) and n in packed.build.made]
    for node in made:  # in order: what a node reads is joined already
        x = node.inputs[0]
        before = None if x is None else x.producer()
        if before is None or before not in made:
            continue
        first, second = _sizes(before), _sizes(node)
        if first is None or second is None:
            continue
        if all(first[i : i + 1] == [0] for i, size in enumerate(second) if size == 0):
            node.replace_input_with(0, before.inputs[0])


def _is_plain(node: ir.Node) -> bool:
    return node.op_type == "Reshape" and "allowzero" not in node.attributes


def _sizes(node: ir.Node) -> list[int] | None:
    """The shape, where it is numbers."""
    shape = node.inputs[1]
    if shape is None or shape.const_value is None:
        return None
    return [int(n) for n in shape.const_value.numpy()]
