"""Packed forms of what routes tokens to experts: the best places of each row, and rows of tables
looked up by index vectors.

1. best places:   out[t, j] = the j-th largest of x[t, :], and where it stands
2. look-up:       out[t, r] = table[index[t, :], r]
"""

from collections.abc import Sequence

from pitc.ir.index import Poly, bare_dim, poly
from pitc.ir.nodes import attribute
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions.form import Form, PackCandidate, Packing, WholeOperand
from pitc.passes.regions.layout import uses_coordinates


def packed_alike(site: PackCandidate) -> tuple[Packing | None, ...] | Refusal:
    """The outputs of a node that are read, all packed at the coordinates of the first."""
    graph, outputs = site.context.graph, []
    for value in site.node.outputs:
        same = [p for p in site.context.packings(value.name or "") if p.coords == site.out.coords]
        alike = [p for p in same if len(p.layout.rest) == len(site.out.layout.rest)]
        if not alike and (value.uses() or value.name in graph.outputs):
            return site.refuse(
                Code.NO_FACT,
                f"output '{value.name}' is not dead at the same rows",
                value.name or "",
            )
        outputs.append(alike[0] if alike else None)
    return tuple(outputs)


def best_places(site: PackCandidate) -> Form | Refusal:
    """1. TopK, ArgMax, ArgMin: the axis that is searched stays."""
    outputs, a = packed_alike(site), site.aligned(0)
    if isinstance(outputs, Refusal):
        return outputs
    if a is None:
        return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is searched", site.input(0))
    packing, index = a
    axes = [1 + j for j, p in enumerate(index) if _reduced(site, p)]
    if len(axes) != 1:
        return site.refuse(Code.LAYOUT, f"the operand is read at {index}", site.input(0))
    keeps = site.node.op_type == "TopK" or bool(attribute(site.node, "keepdims", 1))
    if len(site.out.layout.rest) != len(index) - (not keeps):
        return site.refuse(Code.LAYOUT, "a dimension of extent 1 in front is searched")
    operand = packing.operand()
    counts = tuple(WholeOperand(site.input(k)) for k in range(1, len(site.node.inputs)))
    return Form(outputs, (operand, *counts), site.node.op_type, {"axis": axes[0]})


def _reduced(site: PackCandidate, p: Poly) -> bool:
    at = bare_dim(p)
    return at is not None and at >= site.space.reduced_dim(0)


def look_up_vectors(site: PackCandidate) -> Form | Refusal:
    """2. GatherND: packed index vectors into a whole table."""
    found, data = site.aligned(1), site.reads(0)
    if found is None or len(data) != 1 or attribute(site.node, "batch_dims", 0):
        return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is looked up by position")
    packing, _ = found
    depth = site.context.shape(packing.name)[-1].as_int()
    last = packing.layout.rest_axis(len(packing.layout.factors) - 1)
    if depth is None or last is None:
        return site.refuse(Code.LAYOUT, "the index vectors are packed themselves")
    if uses_coordinates(_beyond(data[0], depth), site.context.domain.rank):
        return site.refuse(Code.AXIS_NOT_PIT, "the table depends on the packed axis")
    table = site.context.shape(site.input(0))
    if not site.gives((*packing.layout.rest_shape[:-1], *table[depth:])):
        return site.refuse(Code.LAYOUT, "the index vectors are not packed like the output")
    operand = packing.operand()
    return Form((site.out,), (WholeOperand(site.input(0)), operand), "GatherND")


def _beyond(index: Sequence[Poly | None], depth: int) -> list[Poly | None]:
    """How the dimensions that no index vector addresses are read."""
    return [poly(0) if d < depth else p for d, p in enumerate(index)]
