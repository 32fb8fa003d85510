"""Packed forms of single nodes, one rule per kind of expression.

Every rule answers the same question: if the output is wanted at live coordinates only, with those
gathered into dimension 0, which ordinary node computes it from operands that are packed the same
way, whole, or gathered?

1. elementwise:   out[t, r] = f(x[t, r], w[r])
2. contraction:   out[t, r, n] = sum_k x[t, r, k] * w[k, n], and others (`contraction.py`)
3. normaliser:    out[t, r] = norm over r of x[t, r]
4. reduction:     out[t, r] = reduce_k x[t, r, k]
5. movement:      out[t, r] = x[t, map(r)]
6. look-up:       out[t, r] = table[index[t], r]
7. items:         out[t, r] = node(x[t, ..])[r], the node as it is on fewer images
8. same node:     out[t, r] = node(x[t, ..], w)[r], the node as it is on rows (`same_node.py`)
9. extremes:      out[t, r] = f(x[t, r], the extremes of x and 0)  (`extremes.py`)
"""

import numpy as np

from pitc.ir.build import takes_list
from pitc.ir.constant import is_nonzero, is_zero
from pitc.ir.expr import Shape
from pitc.ir.graph import NodeView
from pitc.ir.index import ONE, Poly, bare_dim, poly
from pitc.ir.nodes import attribute
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, covers
from pitc.passes.regions.form import (
    ConstantOperand,
    Form,
    GatheredOperand,
    Operand,
    PackCandidate,
    PackedOperand,
    Packing,
    WholeOperand,
    broadcast_operand,
    single,
    static_shape,
)
from pitc.passes.regions.layout import (
    aligned_rest,
    coordinate_codes,
    read_along,
    uses_coordinates,
    wide,
)
from pitc.passes.regions.routing import packed_alike
from pitc.passes.rules.record import PackRule, operator_of
from pitc.passes.rules.registry import MICROSOFT


def elementwise(site: PackCandidate) -> Form | Refusal:
    """1. Every operand broadcast along the packed axis.

    Where a condition is the same at all live rows, the result is what it chooses.
    """
    chosen = _chosen(site) if operator_of(site.node).chooses else None
    if chosen is not None:
        return chosen
    outputs = single(site)
    if isinstance(outputs, Refusal):
        return outputs
    per_tensor = operator_of(site.node).packs is PackRule.PER_TENSOR
    read = {r.operand for r in site.expr.reads}
    operands: list[Operand | None] = []
    for k, value in enumerate(site.node.inputs):
        if value is None:
            operands.append(None)
            continue
        shape = site.context.graph[site.input(k)].shape
        if k and per_tensor and shape not in ((), (ONE,)):
            return site.refuse(Code.NO_LOWERING, "the scale differs along an axis")
        if k not in read:
            operands.append(WholeOperand(site.input(k)))
            continue
        operand = broadcast_operand(site, k)
        if isinstance(operand, Refusal):
            return operand
        operands.append(operand)
    if not any(isinstance(o, PackedOperand | GatheredOperand) for o in operands):
        return site.refuse(Code.LAYOUT, "no operand depends on the packed axis")
    if site.node.domain == MICROSOFT and not all(
        o == WholeOperand(site.input(k)) for k, o in enumerate(operands) if k
    ):
        return site.refuse(Code.LAYOUT, "the bias of a fused operator must stay a row")
    return Form(outputs, tuple(operands), site.node.op_type)


def choice(site: PackCandidate) -> Form | Refusal:
    """1. Elementwise, but nothing broadcasts: each branch must give one row per live point."""
    form = elementwise(site)
    if isinstance(form, Form) and not all(
        isinstance(o, PackedOperand | GatheredOperand) and o.shape is None
        for o in form.operands[1:]
    ):
        return site.refuse(Code.LAYOUT, "a branch does not give one row per live point")
    return form


def _chosen(site: PackCandidate) -> Form | None:
    """The value that is chosen in every live row, as fill facts of the condition tell."""
    graph, domain, found = site.context.graph, site.context.domain, site.aligned(0)
    cases = None if found is None else domain.live_cases(found[0].coords)
    if found is None or not cases:
        return None
    facts = graph[site.input(0)].fills
    for k, holds in ((1, is_nonzero), (2, is_zero)):
        known = [f.region for f in facts if holds(f.constant)]
        proofs = [next((r for r in known if covers(r, Region((c,)))), None) for c in cases]
        chosen, sure = site.aligned(k), tuple(p for p in proofs if p is not None)
        if chosen is None or len(sure) < len(proofs):
            continue
        dims = [site.space.rest_dim(i) for i in range(len(site.out.layout.rest))]
        packing, index = chosen
        rest = packing.layout.rest_shape
        if rest == site.out.layout.rest_shape and read_along(index, rest, dims):
            operand = packing.operand()
            return Form((site.out,), (operand,), "Identity", rests_on=sure)
    return None


def per_channel(site: PackCandidate) -> Form | Refusal:
    """1. Elementwise with one number per channel: the channels stay dimension 1."""
    outputs, a = single(site), site.aligned(0)
    if isinstance(outputs, Refusal):
        return outputs
    if a is None or a[0].coords != site.out.coords or site.out.layout.rest_axis(1) != 1:
        return site.refuse(
            Code.LAYOUT, "the channels are not the first dimension that stays", site.input(0)
        )
    operand = a[0].operand()
    numbers = (WholeOperand(site.input(k)) for k in range(1, len(site.node.inputs)))
    return Form(outputs, (operand, *numbers), site.node.op_type)


def normaliser(site: PackCandidate) -> Form | Refusal:
    """3. The normalised dimensions stay, at the end of the packed value or (Softmax) alone."""
    outputs, a = packed_alike(site), site.aligned(0)
    if isinstance(outputs, Refusal):
        return outputs
    if a is None:
        return site.refuse(
            Code.AXIS_NOT_PIT, "rows are not read at the same packed row", site.input(0)
        )
    axes = [site.out.layout.rest_axis(d) for d in site.expr.normal]
    last = 1 + len(site.out.layout.rest)
    whole = [x for x in axes if x is not None]
    if len(whole) != len(axes) or not axes:
        return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is normalised over")
    if len(axes) > 1 and whole != list(range(last - len(axes), last)):
        return site.refuse(Code.LAYOUT, "the normalised dimensions are not the last ones")
    if not all(site.invariant(k) for k, v in enumerate(site.node.inputs) if k and v is not None):
        return site.refuse(Code.LAYOUT, "scale or bias depends on the packed axis")
    operands: list[Operand | None] = [a[0].operand()]
    for k in range(1, len(site.node.inputs)):
        # a scale may have as many dimensions as the value had, more than its packed form has
        operand = broadcast_operand(site, k) if site.node.inputs[k] is not None else None
        if isinstance(operand, Refusal):
            return operand
        operands.append(operand)
    return Form(outputs, tuple(operands), site.node.op_type, {"axis": whole[0]})


def reduction(site: PackCandidate) -> Form | Refusal:
    """4. The reduced dimensions stay in the operand."""
    if operator_of(site.node).packs is not PackRule.REDUCTION:  # pooling has no axes of its own
        return site.refuse(Code.NO_LOWERING, f"{site.node.op_type} has no packed form")
    a = site.aligned(0)
    if a is None:
        return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is reduced over", site.input(0))
    packing, shape = a[0], site.context.shape(site.input(0))
    named = NodeView(site.context.graph, site.node).int_list(1, "axes") or range(len(shape))
    places = {d % len(shape): packing.layout.rest_axis(d % len(shape)) for d in named}
    if any(at is None and shape[d] != ONE for d, at in places.items()):
        return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is reduced over", site.input(0))
    axes = sorted(at for at in places.values() if at is not None)
    if not axes or not site.gives(_reduced(site, packing.layout.rest_shape, axes)):
        return site.refuse(Code.LAYOUT, "a dimension of extent 1 in front is reduced")
    operand = packing.operand()
    op = site.node.op_type
    if takes_list(op, site.context.graph.opset):
        return Form((site.out,), (operand, ConstantOperand(np.asarray(axes, np.int64))), op)
    return Form((site.out,), (operand,), op, {"axes": axes})


def _reduced(site: PackCandidate, extents: Shape, axes: list[int]) -> Shape:
    """What is left of the dimensions behind the packed one."""
    if attribute(site.node, "keepdims", 1):
        return tuple(ONE if 1 + j in axes else e for j, e in enumerate(extents))
    return tuple(e for j, e in enumerate(extents) if 1 + j not in axes)


def movement(site: PackCandidate) -> Form | Refusal:
    """5. The packed axis stays where it is; the rest moves as it did."""
    read = site.expr.reads[0] if len(site.expr.reads) == 1 else None
    if read is None or read.operand or read.within or read.computed:
        return site.refuse(Code.NO_LOWERING, f"{site.node.op_type} has no packed form")
    a, packs = site.aligned(0), operator_of(site.node).packs
    if a is None:
        return _spread(site)
    packing, index = a
    if packs is PackRule.RESHAPED:
        return _reshaped(site, packing)
    if packs is PackRule.REPEATED:
        return _repeated(site)
    target = site.out.layout.rest_shape
    order = [bare_dim(p) for p, e in zip(index, packing.layout.rest_shape, strict=True) if e != ONE]
    places = [d for d in order if d is not None]
    if len(places) != len(order) or len(order) != len(wide(site.out.layout.rest)):
        return site.refuse(Code.LAYOUT, f"the operand is read at {index}", site.input(0))
    if places == sorted(places) and (
        packs is PackRule.TRANSPOSED or packing.layout.rest_shape == target
    ):
        return _reshaped(site, packing)
    if packs is not PackRule.TRANSPOSED or len(index) != len(target):
        return site.refuse(Code.NO_LOWERING, f"{site.node.op_type} has no packed form")
    perm = _permuted(site, packing, index)
    return Form((site.out,), (packing.operand(),), "Transpose", {"perm": perm})


def _permuted(site: PackCandidate, packing: Packing, index: list[Poly]) -> list[int]:
    """`perm` of the packed value; dimensions of extent 1 are alike, so they stay in order."""
    extents = packing.layout.rest_shape
    where = {
        bare_dim(p): j for j, (p, e) in enumerate(zip(index, extents, strict=True)) if e != ONE
    }
    ones = iter([j for j, e in enumerate(extents) if e == ONE])
    return [0] + [
        1 + (next(ones) if e == ONE else where[site.space.rest_dim(i)])
        for i, e in enumerate(site.out.layout.rest_shape)
    ]


def _reshaped(site: PackCandidate, packing: Packing) -> Form | Refusal:
    """Reshapes keep the row-major order of the digits, so also of those that stay."""
    target = site.out.layout.rest_shape
    if packing.layout.rest_shape == target:
        return Form((site.out,), (packing.operand(),), "Identity")
    static = static_shape(target)
    if static is None:
        return site.refuse(Code.DYNAMIC_DIM, f"the packed value must be reshaped to {list(target)}")
    return Form((site.out,), (packing.operand(static),), "Identity")


def _repeated(site: PackCandidate) -> Form | Refusal:
    """Dimensions of extent 1 that stay are repeated: keys for heads that share them, a token for
    each of its experts.
    """
    target = site.out.layout.rest_shape
    operand = broadcast_operand(site, 0)
    if isinstance(operand, Refusal):
        return operand
    static = static_shape(target)
    if static is None:
        return site.refuse(Code.DYNAMIC_DIM, f"a packed value must be repeated to {list(target)}")
    shape = ConstantOperand(np.asarray([1, *static], np.int64))
    return Form((site.out,), (operand, shape), "Expand")


def _spread(site: PackCandidate) -> Form | Refusal:
    """An operand that depends on some coordinates only (Expand of one row for the whole batch):
    gathered per packed row.
    """
    name, domain = site.input(0), site.context.domain
    (index,), shape = site.reads(0), site.context.shape(name)
    codes = coordinate_codes(index, shape, domain)
    if codes is None or not any(c not in "r0" for c in codes[0]):
        return site.refuse(Code.AXIS_NOT_PIT, f"the operand is read at {index}", site.input(0))
    dims = [k for k, e in enumerate(site.out.layout.rest_shape) if e != ONE]
    if [bare_dim(p) for p in codes[1]] != [site.space.rest_dim(k) for k in dims]:
        return site.refuse(Code.LAYOUT, f"the operand is read at {index}", site.input(0))
    operand = broadcast_operand(site, 0)
    return operand if isinstance(operand, Refusal) else Form((site.out,), (operand,), "Identity")


def along_axis(site: PackCandidate) -> Form | Refusal:
    """5. Slice, Split, Concat: the axis they work on is one that stays."""
    axes = _axes(site)
    if isinstance(axes, Refusal):
        return axes
    outputs = packed_alike(site)
    if isinstance(outputs, Refusal):
        return outputs
    data = range(len(site.node.inputs)) if site.node.op_type == "Concat" else [0]
    operands: list[Operand | None] = []
    for k in range(len(site.node.inputs)):
        if k not in data:
            operands.append(WholeOperand(site.input(k)) if site.node.inputs[k] else None)
            continue
        same = [p for p in site.context.packings(site.input(k)) if p.coords == site.out.coords]
        if not same or len(same[0].layout.rest) != len(site.out.layout.rest):
            return site.refuse(
                Code.AXIS_NOT_PIT, f"operand '{site.input(k)}' is not packed alike", site.input(k)
            )
        operands.append(same[0].operand())
    if site.node.op_type == "Slice":
        if len(operands) < 3:
            return Form(outputs, tuple(operands), "Slice", {"axes": axes})
        operands += [None] * (4 - len(operands))
        operands[3] = ConstantOperand(np.asarray(axes, np.int64))
        return Form(outputs, tuple(operands), "Slice")
    return Form(outputs, tuple(operands), site.node.op_type, {"axis": axes[0]})


def _axes(site: PackCandidate) -> list[int] | Refusal:
    """Packed numbers of the axes that Slice, Split or Concat works on."""
    rank, node = len(site.expr.shape), site.node
    named: list[int] | None = [attribute(node, "axis", 0)]
    if node.op_type == "Slice":
        named = NodeView(site.context.graph, node).int_list(3, "axes")
    if named is None:
        return site.refuse(Code.LAYOUT, "every axis is sliced, the packed one too")
    axes = [site.out.layout.rest_axis(axis % rank) for axis in named]
    found = [x for x in axes if x is not None]
    if len(found) != len(axes):
        return site.refuse(Code.AXIS_NOT_PIT, f"{node.op_type} computes along the packed axis")
    return found


def look_up(site: PackCandidate) -> Form | Refusal:
    """6. Gather: packed indices into a whole table, or whole indices along an axis that stays."""
    data, index, domain = site.input(0), site.input(1), site.context.domain
    axis = attribute(site.node, "axis", 0) % len(site.context.shape(data))
    (read,) = site.reads(0)
    elsewhere: list[Poly | None] = [poly(0) if d == axis else p for d, p in enumerate(read)]
    found = site.aligned(1)
    if found is not None and not uses_coordinates(elsewhere, domain.rank):
        rows = (*found[0].layout.rest_shape, *site.context.shape(data)[1:])
        if axis != 0 or not site.gives(rows):
            return site.refuse(
                Code.LAYOUT, "the looked-up axis is not the first of the table", data
            )
        operand = found[0].operand()
        return Form((site.out,), (WholeOperand(data), operand), "Gather", {"axis": 0})
    for packing in site.context.packings(data):
        moved = packing.layout.rest_axis(axis)
        kept = aligned_rest(elsewhere, packing.coords, packing.layout, domain)
        if moved is not None and kept is not None and site.invariant(1):
            rest = packing.layout.rest_shape
            if not site.gives((*rest[: moved - 1], *site.context.shape(index), *rest[moved:])):
                return site.refuse(
                    Code.LAYOUT, "a dimension of extent 1 in front is looked up", data
                )
            operand = packing.operand()
            return Form((site.out,), (operand, WholeOperand(index)), "Gather", {"axis": moved})
    return site.refuse(Code.AXIS_NOT_PIT, "the packed axis is looked up by position", data)
