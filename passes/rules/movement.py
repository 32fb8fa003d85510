"""Movement: every output point is one operand element, found by an index map.

Transpose  y[o] = x[o permuted]            Reshape  y[o] = x[digits of the row-major place of o]
Slice      y[o] = x[o * step + start]      Concat   y[o] = x_i[o - offset_i] within x_i's range
"""

from collections.abc import Sequence
from itertools import zip_longest

from pitc.ir.constant import FILLED
from pitc.ir.expr import Combine, Read, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, ZERO, Poly, digit, dim_index, nonneg, poly, reshape_map, total_of
from pitc.ir.poly import LARGEST_SIZE, UNDECLARED
from pitc.ir.region import union
from pitc.ir.since import Since
from pitc.passes.rules import values
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import (
    aligned,
    bare,
    broadcast_index,
    broadcast_shape,
    dimension,
    dimensions,
    inside,
    joint_extent,
    move,
    one_axis,
    static,
)
from pitc.passes.rules.record import Adjoint, Items, Operator, PackRule, Zeros, always
from pitc.passes.rules.registry import rule
from pitc.passes.rules.remains import remaining

LARGEST = ((1 << 31) - 1, (1 << 63) - 1)  # ends that ONNX Runtime takes for "to the end"
FAR = (1 << LARGEST_SIZE) - 1  # no extent is longer: slice ends from there on mean "to the end"


@rule(
    "Identity",
    assumes=(),
    has=Operator(finite=always, value=values.same, packs=PackRule.RESHAPED, items=Items.ANY),
)
def identity(view: NodeView) -> list[TensorExpr]:
    """The operand itself."""
    return [move(view.shape(0), bare(view.shape(0)))]


def _training(view: NodeView) -> bool:
    """Its training form sets elements to 0; the other one only moves them."""
    del view
    return True


@rule(
    "Dropout",
    assumes=(Assumes.INFERENCE,),
    has=Operator(zeros=Zeros(_training, scattered=True), items=Items.ANY, adjoint=Adjoint.DROPPED),
)
def dropout(view: NodeView) -> list[TensorExpr]:
    """Inference form: the operand itself, and a mask of ones."""
    training = view.has(2) and (
        view.array(2) is None or bool(view.graph.splat(view.name(2)) is not False)
    )
    if training or (view.opset < Since.INFERENCE and not view.attr("is_test", 0)):
        raise NoRule("training form")
    shape = view.shape(0)
    return [move(shape, bare(shape)), TensorExpr(shape, combine=Combine.MAP)]


@rule(
    "Transpose",
    assumes=(),
    has=Operator(finite=always, value=values.transpose, packs=PackRule.TRANSPOSED, items=Items.ANY),
)
def transpose(view: NodeView) -> list[TensorExpr]:
    """Dimensions in another order."""
    shape = view.shape(0)
    perm = [int(p) for p in view.attr("perm") or reversed(range(len(shape)))]
    if sorted(perm) != list(range(len(shape))):
        raise NoRule(f"perm {perm} does not fit rank {len(shape)}")
    index = tuple(dim_index(perm.index(d), e) for d, e in enumerate(shape))
    return [move(tuple(shape[p] for p in perm), index)]


def _reshaped(view: NodeView, out: Sequence[Poly]) -> list[TensorExpr]:
    shape = view.shape(0)
    return [move(tuple(out), reshape_map(out, shape))]


@rule(
    "Reshape",
    assumes=(Assumes.FITTING_SIZES, Assumes.KNOWN_ARGUMENTS, Assumes.FILLED_SIZES),
    has=Operator(finite=always, value=values.same, packs=PackRule.RESHAPED),
)
def reshape(view: NodeView) -> list[TensorExpr]:
    """The same elements in row-major order; 0 copies an extent, -1 is what remains."""
    shape = view.shape(0)
    target = view.sizes(1, "shape") or []
    copies = not view.attr("allowzero", 0)
    if copies:
        if any(d == ZERO and k >= len(shape) for k, d in enumerate(target)):
            raise NoRule(f"0 in {target} has no extent to copy")
        target = _with_copies(view, target, shape)
    rest = poly(-1)
    if rest in target:
        known = [d for d in target if d != rest]
        left = total_of(shape).divide(total_of(known))
        if left is not None and not copies:
            left = remaining(view, target.index(rest), known, left)
        left = view.fresh() if left is None else left
        target = [left if d == rest else d for d in target]
    return _reshaped(view, target)


def _with_copies(view: NodeView, target: Sequence[Poly], shape: Shape) -> list[Poly]:
    """Extents that a Reshape asks for, where 0 copies the operand's own.

    A size that may be 0 is the extent where the copy is 0 then, too. It also is where as many
    elements are asked for as there are, and no other extent is 0 then: the operand has none, and a
    copy that is not 0 makes some of it.

    (b, s, 768) to (b*s, 768)      s = 0: the copy b has b*768 elements; refused, or b is 0
    (b*s, 768) to (b, s, 768)      s = 0: the copy 768 is refused, unless b is 0: assumed
    (b, 12, s, s) to (12*b, s, s)  s = 0: (12*b, 12, 0); a new size
    (12*b, s, s) to (b, 12, s, s)  s = 0: nothing to copy, refused
    """
    owns = shape[: len(target)]
    asked = [own if own and t == ZERO else t for t, own in zip_longest(target, owns)]
    whole = total_of(asked) == total_of(shape)
    out = list(asked)
    for k, (size, own) in enumerate(zip_longest(asked, owns)):
        if size == poly(-1) or nonneg(size - 1) or (own and _zero_with(view, own, size)):
            continue
        others = [t for j, t in enumerate(asked) if j != k and not nonneg(t - 1)]
        others = [t for t in others if not own or not _zero_with(view, own, t)]  # there own is 0
        if not own or not whole or not all(_independent(size, t) for t in others):
            out[k] = view.copied(size, own)
        elif others:
            view.assume(FILLED)
    return out


def _zero_with(view: NodeView, own: Poly, size: Poly) -> bool:
    """True where an extent is 0 whenever the size is."""
    own = view.graph.parts.get(own, own)
    factor = size.divide(own)
    return own.divide(size) is not None or (factor is not None and nonneg(factor - 1))


def _independent(x: Poly, y: Poly) -> bool:
    """True for products of sizes that are declared, of which no two are the same."""
    factors = [a for size in (x, y) for m in size.terms for a in m]
    declared = all(isinstance(a, str) and not a.startswith(UNDECLARED) for a in factors)
    return declared and len(x.terms) == len(y.terms) == 1 and not x.symbols() & y.symbols()


@rule(
    "Flatten",
    assumes=(),
    has=Operator(finite=always, value=values.same, packs=PackRule.RESHAPED, items=Items.ANY),
)
def flatten(view: NodeView) -> list[TensorExpr]:
    """All dimensions before the axis as one, the others as one."""
    shape = view.shape(0)
    axis = int(view.attr("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return _reshaped(view, [total_of(shape[:axis]), total_of(shape[axis:])])


@rule(
    "Squeeze",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, value=values.same, packs=PackRule.RESHAPED, items=Items.ANY),
)
def squeeze(view: NodeView) -> list[TensorExpr]:
    """Dimensions of extent 1 dropped."""
    shape = view.shape(0)
    given = view.int_list(1, "axes")
    if not given:  # ONNX Runtime takes no axes for all that have one place
        if any(e.as_int() is None for e in shape):
            raise NoRule(f"which extents of {shape} are 1 is not known")
        axes = [d for d, e in enumerate(shape) if e == ONE]
    else:
        axes = dimensions(given, len(shape))
    keep = [d for d in range(len(shape)) if d not in axes]
    places = {d: k for k, d in enumerate(keep)}
    # a dropped dimension has extent 1, whatever symbol its extent has
    index = tuple(dim_index(places[d], e) if d in places else ZERO for d, e in enumerate(shape))
    return [move(tuple(shape[d] for d in keep), index)]


@rule(
    "Unsqueeze",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, value=values.same, packs=PackRule.RESHAPED, items=Items.ANY),
)
def unsqueeze(view: NodeView) -> list[TensorExpr]:
    """New dimensions of extent 1."""
    shape = view.shape(0)
    given = view.int_list(1, "axes") or []
    axes = dimensions(given, len(shape) + len(given))
    keep = [d for d in range(len(shape) + len(given)) if d not in axes]
    out = [ONE] * (len(shape) + len(given))
    for d, e in zip(keep, shape, strict=True):
        out[d] = e
    return [move(tuple(out), tuple(dim_index(d, e) for d, e in zip(keep, shape, strict=True)))]


@rule(
    "Expand",
    assumes=(Assumes.FITTING_SIZES, Assumes.KNOWN_ARGUMENTS),
    has=Operator(finite=always, value=values.expand, packs=PackRule.REPEATED, items=Items.ANY),
)
def expand(view: NodeView) -> list[TensorExpr]:
    """Broadcast to a shape."""
    shape = view.shape(0)
    out = broadcast_shape([shape, tuple(view.ints(1).reshape(-1))], view.joined)
    return [move(out, broadcast_index(shape, out))]


@rule(
    "Tile",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, packs=PackRule.REPEATED, items=Items.ANY),
)
def tile(view: NodeView) -> list[TensorExpr]:
    """Repetition: y[o] = x[o mod extent]."""
    shape = view.shape(0)
    repeats = view.ints(1).reshape(-1)
    if len(repeats) != len(shape):
        raise NoRule(f"{len(repeats)} repeats for rank {len(shape)}")
    out = tuple(e * r for e, r in zip(shape, repeats, strict=True))
    index = [
        dim_index(d, e) if o == e else digit(dim_index(d, o), ONE, e)
        for d, (e, o) in enumerate(zip(shape, out, strict=True))
    ]
    return [move(out, tuple(index))]


@rule(
    "Slice",
    assumes=(Assumes.KNOWN_ARGUMENTS, Assumes.REACHED),
    has=Operator(finite=always, value=values.piece, packs=PackRule.ALONG_AXIS, items=Items.ANY),
)
def slice_(view: NodeView) -> list[TensorExpr]:
    """A range of each of some dimensions, forwards or backwards."""
    shape = view.shape(0)
    starts, ends = view.sizes(1, "starts") or [], view.sizes(2, "ends") or []
    given = view.int_list(3, "axes")
    axes = list(range(len(starts))) if given is None else given
    steps = view.int_list(4) or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise NoRule("starts, ends, axes and steps differ in length")
    places = [dimension(a, len(shape)) for a in axes]
    if len(set(places)) < len(places):
        raise NoRule(f"an axis occurs twice in {places}")
    out, index = list(shape), list[Poly | None](bare(shape))
    for start, end, d, step in zip(starts, ends, places, steps, strict=True):
        first, extent = _range(view, shape[d], start, end, step)
        out[d] = extent
        index[d] = None if first is None else dim_index(d, extent) * step + first
    return [move(tuple(out), tuple(index))]


def _range(
    view: NodeView, size: Poly, start: Poly, end: Poly, step: int
) -> tuple[Poly | None, Poly]:
    """First index and extent of a slice; the first index is None where it depends on a clamp."""
    lo, hi, n = start.as_int(), end.as_int(), size.as_int()
    if step == 0:
        raise NoRule("step 0")
    if n is not None and lo is not None and hi is not None:
        found = _places(n, lo, hi, step)
        return poly(found.start), poly(len(found))
    if step < 0:
        whole = lo is not None and (lo == -1 or lo >= FAR) and hi is not None and hi < -FAR
        if not whole:
            return None, view.part(size)
        return size - 1, size if step == -1 else view.part(size)
    first: Poly | None = _from_end(start, size)
    if (lo is not None and lo <= -FAR) or nonneg(ZERO - start - size):
        first = ZERO  # x[-n:] of n places is all of x, of none too
    elif not nonneg(first):
        first = None
    last = size if hi is not None and hi >= FAR else _from_end(end, size)
    if nonneg(last - size):
        last = size
    elif not nonneg(size - last):
        # rows of a table up to a size that the graph computes, or the first one of any number
        if first != ZERO or (n is None and last != ONE) or not nonneg(last):
            return first, view.part(size)
        last = view.clamped(last, size)
    if step != 1 or first is None or not nonneg(last - first):
        return first, view.part(size)
    return first, last - first


def _places(n: int, start: int, end: int, step: int) -> range:
    """The places that a slice of n takes; backwards, a start below the first place is the first,
    and the largest end means past the first, too.
    """
    end = -n - 1 if step < 0 and end in LARGEST else end
    lo, hi = (b + n if b < 0 else b for b in (start, end))
    if step > 0:
        return range(min(max(lo, 0), n), min(max(hi, 0), n), step)
    return range(min(max(lo, 0), n - 1), min(max(hi, -1), n - 1), step)


def _from_end(bound: Poly, size: Poly) -> Poly:
    """A slice bound, counted from the start: the last n of n places begin at the first one, and so
    they do where n is 0.
    """
    if nonneg(-bound - size):
        return ZERO
    n = bound.as_int()
    return size + bound if n is not None and n < 0 else bound


@rule(
    "Concat",
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=always, value=values.concat, packs=PackRule.ALONG_AXIS, items=Items.ANY),
)
def concat(view: NodeView) -> list[TensorExpr]:
    """Operands one after the other along an axis."""
    operands = [i for i in range(view.n_inputs) if view.has(i)]
    shapes = [view.shape(i) for i in operands]
    rank = len(shapes[0])
    if any(len(s) != rank for s in shapes):
        raise NoRule("operands differ in rank")
    axis = dimension(int(view.attr("axis", 1)), rank)
    total = sum((s[axis] for s in shapes), ZERO)
    out = tuple(total if d == axis else _beside(view, shapes, d) for d in range(rank))
    reads, offset = [], ZERO
    for i, shape in zip(operands, shapes, strict=True):
        if shape[axis] == ZERO:
            continue
        index = [aligned(d, e, out[d]) for d, e in enumerate(shape)]
        if total != ONE:
            index[axis] = dim_index(axis, total) - offset
        tests = inside(dim_index(axis, total) - offset, shape[axis])
        reads.append(Read(i, tuple(index), within=tests))
        offset = offset + shape[axis]
    return [TensorExpr(out, tuple(reads), combine=Combine.MOVE)]


def _beside(view: NodeView, shapes: Sequence[Shape], d: int) -> Poly:
    """An extent of joined operands: that of those with elements, which ONNX Runtime compares; what
    the others have it does not look at.
    """
    full = [s[d] for s in shapes if all(nonneg(e - 1) for e in s)]
    if full:
        return joint_extent(full)
    return shapes[0][d] if len({s[d] for s in shapes}) == 1 else view.fresh()


@rule(
    "Split",
    assumes=(Assumes.FITTING_SIZES, Assumes.KNOWN_ARGUMENTS),
    has=Operator(finite=always, packs=PackRule.ALONG_AXIS, items=Items.ANY),
)
def split(view: NodeView) -> list[TensorExpr]:
    """Consecutive parts along an axis."""
    shape = view.shape(0)
    axis = one_axis(view, len(shape), 0)
    exprs, offset = [], ZERO
    for part in _parts(view, shape[axis]):
        out = tuple(part if d == axis else e for d, e in enumerate(shape))
        index = [dim_index(d, e) + (offset if d == axis else 0) for d, e in enumerate(out)]
        exprs.append(move(out, tuple(index)))
        offset = offset + part
    return exprs


def _parts(view: NodeView, size: Poly) -> list[Poly]:
    given = view.sizes(1, "split")
    if given is not None:
        return given
    count = view.n_outputs
    equal = size.divide(poly(count))
    if equal is not None:
        return [equal] * count
    n = size.as_int()
    if n is None or view.attr("num_outputs") is None:
        raise NoRule(f"{size} is not divisible by {count}")
    chunk = -(-n // count)
    return [poly(min(chunk, max(n - k * chunk, 0))) for k in range(count)]


def _padding(view: NodeView) -> float | int | None:
    """The number that stands around the operand."""
    if view.attr("mode", "constant") != "constant":
        return None
    if view.has(2):
        found = view.graph.splat(view.name(2))
        return None if found != found else found
    return float(view.attr("value", 0.0))


@rule(
    "Pad",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(
        finite=always,
        keeps_clean=True,
        elsewhere=_padding,
        items=Items.ANY,
        adjoint=Adjoint.MOVED,
    ),
)
def pad(view: NodeView) -> list[TensorExpr]:
    """New elements around the operand: a constant that is no operand element, or copies."""
    shape = view.shape(0)
    amounts = view.sizes(1, "pads") or view.sizes(None, "paddings")
    axes = view.int_list(3)
    places = list(range(len(shape))) if axes is None else [dimension(a, len(shape)) for a in axes]
    if amounts is None or len(amounts) != 2 * len(places):
        raise NoRule(f"{amounts} pads for {len(places)} dimensions")
    if len(set(places)) < len(places):
        raise NoRule(f"an axis occurs twice in {places}")
    mode = view.attr("mode", "constant")
    out, index, tests = list(shape), list[Poly | None](bare(shape)), []
    for k, d in enumerate(places):
        before, after = amounts[k], amounts[k + len(places)]
        if before == after == ZERO:
            continue
        out[d] = shape[d] + before + after
        at = dim_index(d, out[d]) - before
        tests.append(inside(at, shape[d]))
        index[d] = at
    if mode == "constant":
        read = Read(0, tuple(index), within=union(tests))
        return [TensorExpr(tuple(out), (read,), combine=Combine.OPAQUE)]
    # also where it grows before and shrinks after by as much, a copy stands at another place;
    # ONNX Runtime does not wrap what has no elements, so that fewer items may be none
    whole = mode != "wrap" or all(nonneg(e - 1) for e in shape)
    same = [whole and p == own for p, own in zip(index, bare(shape), strict=True)]
    copies = tuple(p if kept else None for p, kept in zip(index, same, strict=True))
    return [TensorExpr(tuple(out), (Read(0, copies),), combine=Combine.OPAQUE)]


@rule(
    "CenterCropPad",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, items=Items.ANY, adjoint=Adjoint.MOVED),
)
def center_crop_pad(view: NodeView) -> list[TensorExpr]:
    """The middle of each line, or the line in the middle of zeros."""
    shape = view.shape(0)
    axes = [dimension(a, len(shape)) for a in view.attr("axes") or range(len(shape))]
    sizes = view.int_list(1) or []
    if len(sizes) != len(axes):
        raise NoRule(f"{len(sizes)} sizes for {len(axes)} dimensions")
    out, index, tests = list(shape), list[Poly](bare(shape)), []
    for d, size, n in zip(
        axes, sizes, static((shape[d] for d in axes), "the operand"), strict=True
    ):
        out[d] = poly(size)
        before = (size - n) // 2 if size > n else -((n - size) // 2)
        index[d] = dim_index(d, out[d]) - before
        tests.append(inside(index[d], shape[d]))
    read = Read(0, tuple(index), within=union(tests))
    return [TensorExpr(tuple(out), (read,), combine=Combine.OPAQUE)]


@rule("DepthToSpace", assumes=(Assumes.FITTING_SIZES,), has=Operator(items=Items.ANY))
def depth_to_space(view: NodeView) -> list[TensorExpr]:
    """Blocks of channels become blocks of places."""
    shape, block = view.shape(0), poly(int(view.attr("blocksize", 1)))
    depth = shape[1].divide(block * block)
    if depth is None or len(shape) != 4:
        raise NoRule(f"{shape} in blocks of {block}")
    out = (shape[0], depth, shape[2] * block, shape[3] * block)
    parts = []
    for d in (2, 3):
        at = dim_index(d, out[d])
        parts.append((digit(at, block, shape[d]), digit(at, ONE, block)))
    (h, i), (w, j) = parts
    if h is None or i is None or w is None or j is None:
        raise NoRule("the blocks are not index expressions")
    channel = dim_index(1, depth)
    if view.attr("mode", "DCR") == "DCR":
        channel = (i * block + j) * depth + channel
    else:
        channel = (channel * block + i) * block + j
    return [move(out, (dim_index(0, shape[0]), channel, h, w))]


@rule("SpaceToDepth", assumes=(Assumes.FITTING_SIZES,), has=Operator(items=Items.ANY))
def space_to_depth(view: NodeView) -> list[TensorExpr]:
    """Blocks of places become blocks of channels."""
    shape, block = view.shape(0), poly(int(view.attr("blocksize", 1)))
    sides = [e.divide(block) for e in shape[2:]]
    if len(sides) != 2 or sides[0] is None or sides[1] is None:
        raise NoRule(f"{shape} in blocks of {block}")
    out = (shape[0], shape[1] * block * block, sides[0], sides[1])
    at = dim_index(1, out[1])
    channel = digit(at, ONE, shape[1])
    i, j = digit(at, block * shape[1], block), digit(at, shape[1], block)
    if channel is None or i is None or j is None:
        raise NoRule("the blocks are not index expressions")
    h, w = dim_index(2, out[2]) * block + i, dim_index(3, out[3]) * block + j
    return [move(out, (dim_index(0, shape[0]), channel, h, w))]
