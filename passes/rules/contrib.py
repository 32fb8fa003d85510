"""Fused transformer operators of ONNX Runtime: an output row reads the same row of its operands.

Attention  y[b, q] reads x[b, q], and x[b, k] of every key k that the mask keeps
MoE        y[row] reads x[row] and the row of the router, which picks the weights, as does that of
           MoEGroupRouter
"""

from math import prod

from pitc.ir.constant import BOUNDED, MASKED
from pitc.ir.expr import Combine, Read, Reducer, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, Poly, digit, dim_index, poly
from pitc.ir.region import Region, Test, for_some
from pitc.passes.rules import conditions
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import aligned, bare, line_index, positional
from pitc.passes.rules.record import Items, Operator, always
from pitc.passes.rules.registry import MICROSOFT, rule


def _row(operand: int, shape: Shape, line: int) -> Read:
    """A row of an operand: its leading dimensions are the output's, the last one is read whole."""
    return Read(operand, (*bare(shape[:-1]), dim_index(line, shape[-1])))


@rule("Attention", domain=MICROSOFT, assumes=(Assumes.FITTING_SIZES,))
def attention(view: NodeView) -> list[TensorExpr]:
    """Packed query, key and value projections, and softmax over the keys.

    Only the plain form: three-dimensional input, no past, no relative bias. The mask is `[batch]`
    (lengths) or `[batch, keys]`.
    """
    x = view.shape(0)
    if len(x) != 3 or any(view.has(i) for i in range(4, view.n_inputs)) or view.n_outputs > 1:
        raise NoRule("past, bias or present operands")
    if view.attr("past_present_share_buffer", 0) or view.attr("do_rotary", 0):
        raise NoRule("rotary or shared buffers")
    hidden = _value_width(view)
    out = (x[0], x[1], hidden)
    batch, key = dim_index(0, x[0]), dim_index(4, x[1])
    absent: tuple[Region, ...] = ()
    mask: tuple[Read, ...] = ()
    if view.has(3):
        absent, mask = _mask(view, batch, key, x[1])
    reads = (
        _row(0, x, 3),
        Read(0, (batch, key, dim_index(3, x[2])), absent=absent),
        *mask,
    )
    return [
        TensorExpr(
            out,
            reads,
            (x[2], x[1]),
            Combine.OPAQUE,
            Reducer.NORMALISE,
            ordered=frozenset({1, 2}),
        )
    ]


def _value_width(view: NodeView) -> Poly:
    sizes = view.attr("qkv_hidden_sizes")
    if sizes:
        return ONE * int(sizes[2])
    width = view.shape(1)[1].divide(ONE * 3)
    if width is None:
        raise NoRule(f"weights of shape {view.shape(1)} are not three projections")
    return width


def _mask(
    view: NodeView, batch: Poly, key: Poly, keys: Poly
) -> tuple[tuple[Region, ...], tuple[Read, ...]]:
    """Keys whose rows have no influence, by rows of the operand, and the read of the mask itself.

    They are those behind a sequence's length, where it has a key: of a sequence that keeps none,
    all keys have the same mask, so their scores count. Keys with flags of their own are kept where
    they are above 0; no test says so.
    """
    shape, own = view.shape(3), dim_index(1, keys)
    if shape == (view.shape(0)[0], keys):
        return (), (Read(3, (batch, key)),)
    if shape != view.shape(0)[:1]:
        raise NoRule(f"mask of shape {shape}")
    read, kept = Read(3, (batch,)), Test(view.name(3), (batch, own), "below", True)
    left_out = kept.negate()
    if left_out is None or float(view.attr("mask_filter_value", MASKED)) > MASKED:
        return (), (read,)
    view.assume(BOUNDED)
    return (Region((left_out, for_some(kept, [1]))),), (read,)


@rule(
    "MultiHeadAttention",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(items=Items.ANY),
)
def multi_head_attention(view: NodeView) -> list[TensorExpr]:
    """Separate query, key and value rows; query rows are independent of each other."""
    if any(view.has(i) for i in range(6, view.n_inputs)) or view.n_outputs > 1:
        raise NoRule("past or present operands")
    if not (view.has(1) and view.has(2)):
        raise NoRule("packed query, key and value")
    q, k, v = (view.shape(i) for i in range(3))
    if not len(q) == len(k) == len(v) == 3:
        raise NoRule("query, key and value are not rows")
    out = (q[0], q[1], v[2])
    keys = dim_index(4, k[1])
    reads = [
        _row(0, q, 3),
        Read(1, (dim_index(0, q[0]), keys, dim_index(5, k[2]))),
        Read(2, (dim_index(0, q[0]), keys, dim_index(6, v[2]))),
    ]
    if view.has(3):
        reads.append(Read(3, (dim_index(7, view.shape(3)[0]),)))
    if view.has(4):
        mask = view.shape(4)
        if len(mask) == 2 and mask == (q[0], k[1]):
            reads.append(Read(4, (dim_index(0, q[0]), keys)))
        else:
            raise NoRule(f"key padding mask of shape {mask}")
    if view.has(5):
        reads.append(Read(5, _score_index(view.shape(5), q, k)))
    bias = (view.shape(3)[0],) if view.has(3) else ()
    ordered = {2} | ({1} if view.attr("unidirectional", 0) else set())
    return [
        TensorExpr(
            out,
            tuple(reads),
            (q[2], k[1], k[2], v[2], *bias),
            Combine.OPAQUE,
            Reducer.NORMALISE,
            ordered=frozenset(ordered),
        )
    ]


def _score_index(shape: Shape, q: Shape, k: Shape) -> tuple[Poly | None, ...]:
    """Index of a bias `[batch or 1, heads or 1, queries, keys]`; its head is not described."""
    if len(shape) != 4:
        raise NoRule(f"attention bias of shape {shape}")
    head = dim_index(8, shape[1]) * 0 if shape[1] == ONE else None
    places = (
        aligned(0, shape[0], q[0]),
        head,
        aligned(1, shape[2], q[1]),
        aligned(4, shape[3], k[1]),
    )
    return places


@rule(
    "EmbedLayerNormalization",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES, Assumes.INSIDE),
    has=Operator(finite=conditions.norm),
)
def embed_layer_norm(view: NodeView) -> list[TensorExpr]:
    """Sum of word, position and segment embeddings, normalised; output 1 is the mask's row sums."""
    ids, width = view.shape(0), view.shape(2)[1]
    row = bare(ids)
    out = (*ids, width)
    line = dim_index(3, width)
    reads = [Read(0, row), Read(2, (None, line), computed=True)]
    if view.has(8):
        spread = tuple(aligned(d, e, ids[d]) for d, e in enumerate(view.shape(8)))
        reads += [Read(8, spread), Read(3, (None, line), computed=True)]
    else:
        reads.append(Read(3, (dim_index(1, ids[1]), line)))
    if view.has(4) and view.has(1):
        reads += [Read(1, row), Read(4, (None, line), computed=True)]
    elif view.has(4):
        reads.append(Read(4, (poly(0), line)))
    affine = [Read(i, (dim_index(2, width),)) for i in (5, 6)]
    kind = Combine.NORMALISE, Reducer.NORMALISE
    normal = TensorExpr(out, (*reads, *affine), (width,), *kind, normal=(2,))
    outputs = [normal]
    if view.n_outputs > 1:
        if view.has(7):
            lengths = Read(7, line_index(ids, [1], [0, None], 1))
            count = TensorExpr(ids[:1], (lengths,), ids[1:2], Combine.OPAQUE, Reducer.SUM)
        else:
            count = TensorExpr(ids[:1], combine=Combine.MAP)  # the same number everywhere
        outputs.append(count)
    if view.n_outputs > 2:
        points = tuple(
            Read(
                r.operand,
                tuple(dim_index(2, width) if p == line else p for p in r.index),
                r.computed,
            )
            for r in reads
        )
        outputs.append(TensorExpr(out, points, combine=Combine.OPAQUE))
    return outputs


@rule(
    "MoE",
    "QMoE",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=always, items=Items.ANY),
)
def mixture_of_experts(view: NodeView) -> list[TensorExpr]:
    """Every row goes through the experts that its router row picks.

    The weights are left out, which counts as live: every row may read every expert.
    """
    x, router = view.shape(0), view.shape(1)
    rank = len(x)
    rows = x[:-1]
    linear = dim_index(0, rows[0]) if rank == 2 else None
    if rank == 3:
        linear = dim_index(0, rows[0]) * rows[1] + dim_index(1, rows[1])
    if linear is None or len(router) != 2:
        raise NoRule(f"rows of rank {rank} and a router of rank {len(router)}")
    reads = (_row(0, x, rank), Read(1, (linear, dim_index(rank + 1, router[1]))))
    return [positional(x, reads, (x[-1], router[1]), [rank - 1])]


@rule(
    "MoEGroupRouter",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=always, items=Items.ANY),
)
def group_router(view: NodeView) -> list[TensorExpr]:
    """Scores of a row decide, group by group, which experts of the row keep theirs."""
    logits = view.shape(0)
    if view.has(2) or len(logits) not in (2, 3):
        raise NoRule("rows that are multiplied inside" if view.has(2) else "rows of another rank")
    *lead, experts = logits
    out: Shape = (prod(lead, start=ONE), experts)
    token = dim_index(0, out[0])
    index = [digit(token, prod(lead[d + 1 :], start=ONE), e) for d, e in enumerate(lead)]
    line = dim_index(2, experts)
    reads = (Read(0, (*index, line)), Read(1, (line,)))
    return [positional(out, reads, (experts,), [1])] * view.n_outputs
