"""What grouped attention with a cache consists of: several query heads read one head of keys.

    present = past, then new keys      y[q] = softmax of q @ k * scale over the keys that q sees

ONNX Runtime's kernel counts, per sequence, how many keys it has in the end (`seqlens_k` + 1). It
writes new keys behind the ones counted before, into a cache that may be longer than they are, and
may be the caller's own. Parts say that only where sizes do: without a past, where row q is at place
q; or where every sequence is as long as past and new rows together, so that keys are appended. What
the kernel leaves in rows behind a sequence's end is whatever was in its buffer; the parts give 0.
"""

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import NoRule
from pitc.ir.index import ONE
from pitc.passes.expand.attention import static_size
from pitc.passes.expand.body import Body
from pitc.passes.expand.grouped_sizes import (
    BIAS,
    COSINE,
    KEY,
    LENGTHS,
    PAST_KEY,
    PAST_VALUE,
    QUERY,
    SINE,
    SINK,
    UNREAD,
    VALUE,
    Sizes,
    sizes_of,
)
from pitc.passes.rules.registry import MICROSOFT

# attributes that change what is computed, and the one number of each that is said here
PLAIN = {
    "sliding_window_cache": 0,
    "kv_cache_bit_width": 0,
    "qk_output": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
}


@dataclass(frozen=True, slots=True)
class _Mask:
    """Which keys a query sees.

    Args:
        causal: None behind its own place.
        window: How many keys at most, up to its own; None: all.
    """

    causal: bool
    window: int | None


def grouped_attention(body: Body) -> list[ir.Value | None]:
    """`com.microsoft::GroupQueryAttention` whose keys are those of the past, then new ones."""
    body.only_outputs(0, 1, 2)
    body.without_inputs(*UNREAD)
    for name, plain in PLAIN.items():
        found = body.view.attr(name, plain)
        if (found.decode() if isinstance(found, bytes) else found) != plain:
            raise NoRule(f"{name} is {found}")
    sizes, mask = sizes_of(body), _mask(body)
    query, key, value = _rows(body, sizes)
    if _flag(body, "do_rotary"):
        query, key = (
            _rotated(body, x, n, sizes) for x, n in ((query, sizes.heads), (key, sizes.groups))
        )
    keys, values = (
        _appended(body, x, past, sizes) for x, past in ((key, PAST_KEY), (value, PAST_VALUE))
    )
    heads = _heads(body, query, sizes.heads, sizes)
    y = _attend(body, _wide(body, heads), _wide(body, keys), _wide(body, values), sizes, mask)
    if _dtype(body) == np.float16:
        y = body.op("Cast", y, to=ir.DataType.FLOAT16)
    return [y, keys, values]


def _dtype(body: Body) -> np.dtype:
    return body.view.dtype(QUERY)


def _wide(body: Body, x: ir.Value) -> ir.Value:
    """A value of the operands' type as float32, in which the kernel computes."""
    return x if _dtype(body) == np.float32 else body.op("Cast", x, to=ir.DataType.FLOAT)


def _flag(body: Body, name: str, default: int = 0) -> bool:
    found = body.view.attr(name, default)
    if found not in (0, 1):
        raise NoRule(f"{name} is {found}")
    return bool(found)


def _mask(body: Body) -> _Mask:
    causal, window = _flag(body, "causal", 1), int(body.view.attr("local_window_size", -1))
    if window != -1 and (window < 1 or not causal):
        raise NoRule(f"a window of {window} keys" + ("" if causal else " that is not causal"))
    return _Mask(causal, None if window == -1 else window)


def _rows(body: Body, sizes: Sizes) -> list[ir.Value]:
    """Rows of queries, keys and values."""
    if body.view.has(KEY):
        return [body.input(i) for i in (QUERY, KEY, VALUE)]
    widths = [n * sizes.head for n in (sizes.heads, sizes.groups, sizes.groups)]
    return list(body.split(body.input(QUERY), widths, axis=2))


def _rotated(body: Body, rows: ir.Value, heads: int, sizes: Sizes) -> ir.Value:
    """Rows turned by the angles of their places, which start behind the past."""
    cosine, sine = (body.input(i) for i in (COSINE, SINE))
    tables = body.view.shape(COSINE), body.view.shape(SINE)
    turned = 2 * static_size(tables[0][1]) if len(tables[0]) == 2 else 0
    if tables[0] != tables[1] or not 0 < turned <= sizes.head:
        raise NoRule(f"tables of angles of shapes {tables[0]}, {tables[1]}")
    place = body.share(("row places", sizes.batch, sizes.rows, sizes.past), lambda: _places(body))
    return body.op(
        "RotaryEmbedding",
        rows,
        place,
        cosine,
        sine,
        domain=MICROSOFT,
        interleaved=int(_flag(body, "rotary_interleaved")),
        num_heads=heads,
        rotary_embedding_dim=turned if turned < sizes.head else 0,
    )


def _places(body: Body) -> ir.Value:
    """Places of rows, `[batch, rows]`."""
    query, place = body.input(QUERY), _row_places(body)
    shape = body.op("Slice", body.op("Shape", query), body.ints(0), body.ints(2))
    return body.op("Expand", body.unsqueeze(place, 0), shape)


def _row_places(body: Body) -> ir.Value:
    """Places of new rows among the keys, `[rows]`."""
    rows = body.positions(QUERY, 1)
    return body.op("Add", rows, _extent(body, PAST_KEY, 2)) if _has_past(body) else rows


def _has_past(body: Body) -> bool:
    return body.view.has(PAST_KEY)


def _extent(body: Body, i: int, dim: int) -> ir.Value:
    """A size of an input, as a scalar."""
    number = body.view.shape(i)[dim].as_int()
    if number is not None:
        return body.constant(np.int64(number))
    return body.op("Gather", body.op("Shape", body.input(i)), body.constant(np.int64(dim)), axis=0)


def _key_places(body: Body) -> ir.Value:
    """Places of all keys, `[keys]`."""
    if not _has_past(body):
        return body.positions(QUERY, 1)
    size = body.op("Add", _extent(body, PAST_KEY, 2), _extent(body, QUERY, 1))
    return body.op("Range", body.constant(np.int64(0)), size, body.constant(np.int64(1)))


def _heads(body: Body, rows: ir.Value, heads: int, sizes: Sizes) -> ir.Value:
    """Rows as `[batch, heads, rows, size]`."""
    return body.transpose(body.reshape(rows, 0, 0, heads, sizes.head), (0, 2, 1, 3))


def _appended(body: Body, rows: ir.Value, past: int, sizes: Sizes) -> ir.Value:
    """Keys or values of the past, then new ones."""
    new = _heads(body, rows, sizes.groups, sizes)
    return body.op("Concat", body.input(past), new, axis=2) if _has_past(body) else new


def _repeated(body: Body, x: ir.Value, sizes: Sizes) -> ir.Value:
    """Each head of keys or values as often as query heads read it."""
    times = sizes.heads // sizes.groups
    if times == 1:
        return x
    wide = body.op("Expand", body.unsqueeze(x, 2), body.ints(1, 1, times, 1, 1))
    return body.reshape(wide, 0, sizes.heads, -1, sizes.head)


def _attend(
    body: Body, query: ir.Value, keys: ir.Value, values: ir.Value, sizes: Sizes, mask: _Mask
) -> ir.Value:
    view = body.view
    turned = body.transpose(_repeated(body, keys, sizes), (0, 1, 3, 2))
    z = body.op("MatMul", query, turned)
    z = body.op("Mul", z, body.number(float(view.attr("scale", 0.0)) or 1 / sqrt(sizes.head)))
    cap = float(view.attr("softcap", 0.0))
    if cap < 0:
        raise NoRule(f"softcap is {cap}")
    if cap > 0:
        limit = body.number(cap)
        z = body.op("Mul", body.op("Tanh", body.op("Div", z, limit)), limit)
    bias = _wide(body, body.input(BIAS)) if view.has(BIAS) else None
    if bias is not None:
        z = body.op("Add", z, bias)
    keep = _kept(body, sizes, mask)
    if keep is not None:
        z = body.op("Where", keep, z, body.number(-inf))
    p = _softmax(body, z, sizes)
    if bias is not None:
        p = body.op("Where", _nothing_left(body, bias, keep), body.number(0.0), p)
    y = body.op("MatMul", p, _repeated(body, values, sizes))
    rows = body.reshape(body.transpose(y, (0, 2, 1, 3)), 0, 0, sizes.heads * sizes.head)
    if sizes.full or not mask.causal:
        return rows
    inside = body.share(("rows inside", body.input(LENGTHS), sizes.rows), lambda: _inside(body))
    return body.op("Where", inside, rows, body.number(0.0))


def _softmax(body: Body, z: ir.Value, sizes: Sizes) -> ir.Value:
    """Softmax over the keys, and over one number more if there is a sink; that is left out."""
    sink = body.optional(SINK)
    if sink is not None and body.view.shape(SINK) != (ONE * sizes.heads,):
        raise NoRule(f"sinks of shape {body.view.shape(SINK)}")
    if sink is None and not _flag(body, "smooth_softmax"):
        return body.op("Softmax", z, axis=-1)
    one = body.number(0.0) if sink is None else body.unsqueeze(_wide(body, sink), 0, 2, 3)
    lines = body.op("Slice", body.op("Shape", z), body.ints(0), body.ints(3))
    column = body.op("Expand", one, body.op("Concat", lines, body.ints(1), axis=0))
    p = body.op("Softmax", body.op("Concat", z, column, axis=3), axis=-1)
    return body.op("Slice", p, body.ints(0), body.ints(-1), body.ints(3))


def _kept(body: Body, sizes: Sizes, mask: _Mask) -> ir.Value | None:
    """True where a query sees a key; broadcasts to the scores. None: it sees all."""
    if not mask.causal:
        if sizes.full:
            return None
        lengths = body.input(LENGTHS)
        return body.share(("keys inside", lengths, sizes.rows), lambda: _kept_keys(body))
    return body.share(("seen", sizes.rows, sizes.past, mask), lambda: _seen(body, mask))


def _seen(body: Body, mask: _Mask) -> ir.Value:
    query = body.unsqueeze(_row_places(body), 0, 1, 3)
    key = body.unsqueeze(_key_places(body), 0, 1, 2)
    keep = body.op("Not", body.op("Greater", key, query))
    if mask.window is None:
        return keep
    near = body.op("Less", body.op("Sub", query, key), body.constant(np.int64(mask.window)))
    return body.op("And", keep, near)


def _lengths(body: Body) -> ir.Value:
    """How many keys each sequence has, `[batch]`."""
    counts = body.op("Cast", body.input(LENGTHS), to=ir.DataType.INT64)
    return body.op("Add", counts, body.constant(np.int64(1)))


def _kept_keys(body: Body) -> ir.Value:
    return body.op("Less", _key_places(body), body.unsqueeze(_lengths(body), 1, 2, 3))


def _inside(body: Body) -> ir.Value:
    """True in rows before the end of their sequence, `[batch, rows, 1]`."""
    place = body.unsqueeze(body.positions(QUERY, 1), 0, 2)
    return body.op("Less", place, body.unsqueeze(_lengths(body), 1, 2))


def _nothing_left(body: Body, bias: ir.Value, keep: ir.Value | None) -> ir.Value:
    """True for queries to which minus infinity is added at all keys that they see."""
    low = body.number(-inf)
    seen = bias if keep is None else body.op("Where", keep, bias, low)
    return body.op("Equal", body.along("ReduceMax", seen, [-1], keepdims=1), low)
