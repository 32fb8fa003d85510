"""Attention reads its heads where a joint projection has put them.

    q, k, v = Split(rows)   [t, 3 * heads * size] -> 3 x [t, heads * size]

The kernel takes rows `[t, .., size]` and the number of the first head, so the parts need not be
copied out.
"""

from itertools import takewhile

import onnx_ir as ir

from pitc.ir.nodes import attribute
from pitc.passes.lower.builder import Builder


def unsplit_heads(build: Builder, rows: ir.Value, size: int) -> tuple[ir.Value, int]:
    """The value that packed heads are a part of.

    Args:
        build: Adds nodes.
        rows: float32 `[t, heads, size]` or `[t, heads * size]`.
        size: Length of one head.

    Returns:
        float32 `[t, .., size]` and the number of the first head in it; `rows` and 0 where they are
        no part of anything, or heads do not begin at its multiples of `size`.
    """
    part, producer = rows, rows.producer()
    if producer is not None and producer.op_type == "Reshape" and not producer.domain:
        source = producer.inputs[0]
        part, producer = source or part, None if source is None else source.producer()
    if producer is None or producer.op_type != "Split" or producer.domain:
        return rows, 0
    whole = producer.inputs[0]
    if whole is None or attribute(producer, "axis") != 1:
        return rows, 0
    before = [_width(x) for x in takewhile(lambda x: x is not part, producer.outputs)]
    width, first = _width(whole), sum(n or 0 for n in before)
    if width is None or None in before or width % size or first % size:
        return rows, 0
    return build.reshape(whole, [0, width // size, size]), first // size


def _width(rows: ir.Value) -> int | None:
    """Length of `[t, length]` rows."""
    dims = rows.shape.dims if rows.shape is not None else ()
    return dims[1] if len(dims) == 2 and isinstance(dims[1], int) else None
