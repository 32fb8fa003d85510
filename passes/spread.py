"""Flags of tokens, shaped to broadcast to a value that has the tokens in its dimensions."""

import onnx_ir as ir

from pitc.ir.build import NodeBuilder
from pitc.ir.expr import Shape
from pitc.ir.index import ONE, Coords


def spread(
    build: NodeBuilder, flags: ir.Value, extents: Shape, shape: Shape, coords: Coords
) -> ir.Value | None:
    """Flags with dimensions of 1 where a value has others.

    flags [b, s], value [h, s, b, k]   ->   [1, s, b, 1]        value [k, b*s]   ->   [1, b*s]

    Args:
        build: Where nodes go.
        flags: They.
        extents: Of the flags.
        shape: Extents of the value.
        coords: The axes of the flags longer than 1, as digits of the value's dimensions.

    Returns:
        None where the axes are no whole dimensions of the value, nor one dimension together.
    """
    dims = [c.dim for c in coords]
    wide = [d for d, e in enumerate(extents) if e != ONE]
    if len(wide) != len(coords):
        return None
    if all(c.stride == ONE and c.extent == shape[c.dim] for c in coords):
        if len(wide) < len(extents):  # a mask of one row is one of its tokens
            if len(wide) != 1:
                return None
            flags = build.op("Reshape", [flags, build.ints(-1)])
        flags = build.transpose(flags, sorted(range(len(dims)), key=dims.__getitem__))
        kept = sorted(dims)
    elif len(coords) == len(extents) == 2 and dims[0] == dims[1] and _joined(shape, coords):
        flags, kept = build.op("Reshape", [flags, build.ints(-1)]), dims[:1]
    else:
        return None
    return build.unsqueeze(flags, *(d for d in range(len(shape)) if d not in kept))


def _joined(shape: Shape, coords: Coords) -> bool:
    """True where two axes are one dimension, row by row."""
    outer, inner = coords
    whole = outer.extent * inner.extent == shape[outer.dim]
    return whole and inner.stride == ONE and outer.stride == inner.extent
