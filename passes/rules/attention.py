"""Attention and rotary embeddings of the standard operator set.

    Attention        y[b, h, q] reads q[b, h, q], and k[b, h', j], v[b, h', j] of every key j
    RotaryEmbedding  y[b, s]    reads x[b, s] and the table rows of its position

Heads are a dimension of their own, [batch, heads, rows, width], or lie in the row,
[batch, rows, heads * width].
"""

from pitc.ir.expr import Combine, Read, Reducer, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, Poly, digit, dim_index, poly
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import Index, aligned, bare, positional
from pitc.passes.rules.record import Items, Operator, always
from pitc.passes.rules.registry import MICROSOFT, rule


def _is_used(view: NodeView, places: tuple[int, ...]) -> bool:
    return any(view.has(i) for i in places)


@rule("Attention", assumes=(Assumes.FITTING_SIZES,))
def attention(view: NodeView) -> list[TensorExpr]:
    """Softmax over the keys; heads may share keys and values (grouped queries).

    Without past keys, and with the result alone as output.
    """
    if _is_used(view, (4, 5, 6)) or any(view.out(k) for k in range(1, view.n_outputs)):
        raise NoRule("past, length or present operands")
    q, k, v = (view.shape(i) for i in range(3))
    if not len(q) == len(k) == len(v) or len(q) not in (3, 4):
        raise NoRule(f"query, key and value of ranks {len(q)}, {len(k)}, {len(v)}")
    by_position = any(
        int(view.attr(name, none)) != none
        for name, none in (("is_causal", 0), ("left_window_size", -1), ("right_window_size", -1))
    )
    rows = len(q) - 2
    heads = q[1:rows]
    width = v[-1] if heads else _packed_width(view, v[-1])
    out = (*q[:-1], width)
    first = len(out)
    reduced = (q[-1], k[rows], k[-1], v[-1])
    query_line, key, key_line, value_line = bare(reduced, first)
    lead = bare(q[:1])
    shared = _key_heads(q, k) if heads else ()
    reads = [
        Read(0, (*bare(q[:-1]), query_line)),
        Read(1, (*lead, *shared, key, key_line)),
        Read(2, (*lead, *shared, key, value_line)),
    ]
    if view.has(3):
        reads.append(Read(3, _mask_index(view.shape(3), out, k[rows], bool(heads))))
    ordered = {first - 1, *({rows} if by_position else ())}
    kind = Combine.OPAQUE, Reducer.NORMALISE
    return [TensorExpr(out, tuple(reads), reduced, *kind, ordered=frozenset(ordered))]


def _packed_width(view: NodeView, values: Poly) -> Poly:
    """Length of an output row: one value of the key heads' width per query head."""
    heads, shared = int(view.attr("q_num_heads", 0)), int(view.attr("kv_num_heads", 0))
    each = values.divide(poly(shared)) if shared > 0 else None
    if each is None or heads <= 0:
        raise NoRule(f"value rows of length {values} in {shared} heads")
    return each * heads


def _key_heads(q: Shape, k: Shape) -> tuple[Poly | None]:
    """Which key head a query head reads."""
    head = dim_index(1, q[1])
    if q[1] == k[1]:
        return (head,)
    size = q[1].divide(k[1])
    return (None if size is None else digit(head, size, k[1]),)


def _mask_index(mask: Shape, out: Shape, keys: Poly, heads: bool) -> Index:
    """Index of a mask that broadcasts to `[batch, heads, queries, keys]`."""
    if len(mask) > 4:
        raise NoRule(f"attention mask of shape {mask}")
    sizes: list[tuple[int, Poly] | None] = [
        (0, out[0]),
        (1, out[1]) if heads else None,  # heads that lie in the row are no axis
        (len(out) - 2, out[-2]),
        (len(out) + 1, keys),
    ]
    places: list[Poly | None] = []
    for e, size in zip(mask, sizes[4 - len(mask) :], strict=True):
        place = (poly(0) if e == ONE else None) if size is None else aligned(size[0], e, size[1])
        places.append(place)
    return tuple(places)


@rule(
    "RotaryEmbedding",
    assumes=(Assumes.FITTING_SIZES, Assumes.INSIDE),
    has=Operator(finite=always, items=Items.ANY),
)
def rotary(view: NodeView) -> list[TensorExpr]:
    """Rotation of pairs of a row by angles of its position: x, cos, sin, positions."""
    return [_rotated(view, 3 if view.has(3) else None, (1, 2))]


@rule(
    "RotaryEmbedding",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES, Assumes.INSIDE),
    has=Operator(finite=always, items=Items.ANY),
)
def fused_rotary(view: NodeView) -> list[TensorExpr]:
    """The same with operands in another order: x, positions, cos, sin."""
    return [_rotated(view, 1, (2, 3))]


def _rotated(view: NodeView, positions: int | None, tables: tuple[int, int]) -> TensorExpr:
    x = view.shape(0)
    if len(x) not in (3, 4):
        raise NoRule(f"rank {len(x)}")
    first, row = len(x), len(x) - 2
    reduced = [x[-1]]
    reads = [Read(0, (*bare(x[:-1]), dim_index(first, x[-1])))]
    ordered = {first - 1}
    places = (dim_index(0, x[0]), dim_index(row, x[row]))
    if positions is not None:
        own = view.shape(positions)
        if len(own) == 2 and own == (x[0], x[row]):
            reads.append(Read(positions, places))
        elif len(own) == 1 and own == (ONE,):  # one offset: the place of the row counts
            reads.append(Read(positions, (poly(0),)))
            ordered.add(row)
        else:
            raise NoRule(f"positions of shape {own}")
    for i in tables:
        table = view.shape(i)
        line = dim_index(first + len(reduced), table[-1])
        reduced.append(table[-1])
        if positions is None:
            if table[:-1] != (x[0], x[row]):
                raise NoRule(f"a table of shape {table} without positions")
            reads.append(Read(i, (*places, line)))
        elif row in ordered:
            reads.append(Read(i, (dim_index(first + len(reduced), table[0]), line)))
            reduced.append(table[0])
        else:
            reads.append(Read(i, (None, line), computed=True))
    return positional(x, reads, tuple(reduced), ordered)
