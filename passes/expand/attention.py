"""What fused attention consists of.

    s = q @ transpose(k) * scale + mask + bias      y = softmax(s) @ v

Queries, keys and values are rows `[batch, sequence, heads * size]`. A mask is a number per sequence
(how many keys are read), one per key, or one per pair; what it leaves out gets a very negative
score. That is added, so a row of only such keys is the softmax of its raw scores.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.graph import NoRule
from pitc.ir.index import ONE, Poly
from pitc.passes.expand.body import Body

MASKED_SCORE = -10000.0
BEHIND_SCORE = float(np.finfo(np.float32).min)  # of a key behind its query


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one operand: the value, and the size of one head."""

    value: ir.Value
    size: int


def fused_attention(body: Body) -> list[ir.Value | None]:
    """`com.microsoft::Attention`: one projection gives queries, keys and values."""
    view = body.view
    body.only_outputs(0)
    body.without_inputs(4, 6)
    for name in ("do_rotary", "past_present_share_buffer"):
        if view.attr(name, 0):
            raise NoRule(f"{name} is set")
    heads, x = int(view.attr("num_heads", 0)), view.shape(0)
    if len(x) != 3 or view.rank(1) != 2:
        raise NoRule(f"rows of rank {len(x)}, a projection of rank {view.rank(1)}")
    widths = [int(n) for n in view.attr("qkv_hidden_sizes") or ()]
    if not widths:
        widths = [static_size(view.shape(1)[-1]) // 3] * 3
    if sum(widths) != static_size(view.shape(1)[-1]):
        raise NoRule(f"a projection of shape {view.shape(1)} to rows of {widths}")
    rows = body.op("MatMul", body.input(0), body.input(1))
    if view.has(2):
        rows = body.op("Add", rows, body.input(2))
    parts = body.split(rows, widths, axis=2)
    q, k, v = (Rows(p, head_size(n, heads)) for p, n in zip(parts, widths, strict=True))
    terms = _terms(body, keys=0, mask=3, bias=5)
    return [_attend(body, heads, q, k, v, terms)]


def multi_head_attention(body: Body) -> list[ir.Value | None]:
    """`com.microsoft::MultiHeadAttention` of separate rows; one bias vector for all three."""
    view = body.view
    body.only_outputs(0)
    body.without_inputs(*range(6, view.n_inputs))
    heads, shapes = int(view.attr("num_heads", 0)), [view.shape(i) for i in range(3)]
    if any(len(s) != 3 for s in shapes):
        raise NoRule("query, key and value are not all rows")
    widths = [static_size(s[-1]) for s in shapes]
    values = [body.input(i) for i in range(3)]
    if view.has(3):
        biases = _bias_parts(body, widths)
        values = [body.op("Add", x, b) for x, b in zip(values, biases, strict=True)]
    q, k, v = (Rows(x, head_size(n, heads)) for x, n in zip(values, widths, strict=True))
    terms = _terms(body, keys=1, mask=4, bias=5)
    return [_attend(body, heads, q, k, v, terms)]


def static_size(extent: Poly) -> int:
    """A size as a number.

    Raises:
        NoRule: It is none.
    """
    n = extent.as_int()
    if n is None:
        raise NoRule(f"the size {extent} is not a number")
    return n


def head_size(width: int, heads: int) -> int:
    """The size of one head of rows that hold all of them.

    Raises:
        NoRule: They do not divide the row.
    """
    if heads < 1 or width < 1 or width % heads:
        raise NoRule(f"rows of {width} in {heads} heads")
    return width // heads


def _bias_parts(body: Body, widths: list[int]) -> list[ir.Value]:
    """The bias of queries, of keys and of values; new constants where it is one."""
    whole = body.view.array(3)
    if body.view.shape(3) != (ONE * sum(widths),):
        raise NoRule(f"a bias of shape {body.view.shape(3)}")
    if whole is None:
        return list(body.split(body.input(3), widths, axis=0))
    ends = [sum(widths[: k + 1]) for k in range(3)]
    return [body.constant(whole[end - n : end]) for end, n in zip(ends, widths, strict=True)]


def _attend(body: Body, heads: int, q: Rows, k: Rows, v: Rows, terms: list[ir.Value]) -> ir.Value:
    """Softmax over the keys for every head, and the heads side by side again."""
    if q.size != k.size:
        raise NoRule(f"queries of {q.size} and keys of {k.size}")
    split = [body.reshape(x.value, 0, 0, heads, x.size) for x in (q, k, v)]
    query, value = (body.transpose(split[i], (0, 2, 1, 3)) for i in (0, 2))
    scores = body.op("MatMul", query, body.transpose(split[1], (0, 2, 3, 1)))
    scale = float(body.view.attr("scale", 0.0)) or 1 / sqrt(q.size)
    scores = body.op("Mul", scores, body.number(scale))
    for term in terms:
        scores = body.op("Add", scores, term)
    out = body.op("MatMul", body.op("Softmax", scores, axis=-1), value)
    return body.reshape(body.transpose(out, (0, 2, 1, 3)), 0, 0, heads * v.size)


def _terms(body: Body, keys: int, mask: int, bias: int) -> list[ir.Value]:
    """What is added to the scores `[batch, heads, queries, keys]`; each broadcasts to them.

    Args:
        body: The expansion; input 0 holds the queries.
        keys: The input that holds the keys.
        mask: Number of the mask input.
        bias: Number of the input that is added as it is.
    """
    view, terms = body.view, []
    low = float(view.attr("mask_filter_value", MASKED_SCORE))
    batch, length, _ = view.shape(0)
    sizes = batch, length, view.shape(keys)[1]
    if view.has(bias):  # the first, as in ONNX Runtime: beside a large term the order matters
        if len(view.shape(bias)) != 4:
            raise NoRule(f"a bias of shape {view.shape(bias)}")
        terms.append(body.input(bias))
    if view.has(mask):
        value, shape = body.input(mask), view.shape(mask)
        terms.append(
            body.share(
                ("mask", value, sizes, low),
                lambda: _lowered(body, _kept_keys(body, value, shape, sizes, keys), low),
            )
        )
    if view.attr("unidirectional", 0):
        if sizes[1] != sizes[2]:
            raise NoRule("queries and keys differ in number, and keys have an order")
        terms.append(
            body.share(
                ("causal", sizes[1:]),
                lambda: _lowered(body, _kept_pairs(body, keys), BEHIND_SCORE),
            )
        )
    return terms


def _lowered(body: Body, keep: ir.Value, low: float) -> ir.Value:
    """0 where a key is kept, else the very negative score."""
    return body.op("Where", keep, body.number(0.0), body.number(low))


def _kept_keys(
    body: Body, mask: ir.Value, shape: Shape, sizes: tuple[Poly, Poly, Poly], keys: int
) -> ir.Value:
    """True where a key is read, `[batch, 1, 1 or queries, keys]`."""
    batch, queries, length = sizes
    if shape == (batch,):
        counts = body.op("Cast", mask, to=ir.DataType.INT64)
        return body.op("Less", body.positions(keys, 1), body.unsqueeze(counts, 1, 2, 3))
    places = {(batch, length): (1, 2), (batch, queries, length): (1,)}.get(shape)
    if places is None:
        raise NoRule(f"a mask of shape {shape}")
    zero = body.constant(np.zeros((), body.view.graph[mask.name or ""].dtype))
    return body.unsqueeze(body.op("Greater", mask, zero), *places)


def _kept_pairs(body: Body, keys: int) -> ir.Value:
    """True where a key is not behind its query, `[1, 1, queries, keys]`."""
    query = body.unsqueeze(body.positions(0, 1), 0, 1, 3)
    key = body.unsqueeze(body.positions(keys, 1), 0, 1, 2)
    return body.op("Not", body.op("Greater", key, query))
