"""Sizes of grouped attention, and whether they say where its keys are.

Without a past, row q stands at place q. Behind one, new keys are appended only where every sequence
is known to have as many keys as past and new rows together. `seqlens_k` says so when the model
runs, and `total_sequence_length` how long the cache is: what sizes say of them is found here.
"""

from dataclasses import dataclass

from pitc.ir.expr import Combine
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, ZERO, Poly, poly
from pitc.passes.expand.attention import head_size, static_size
from pitc.passes.expand.body import Body
from pitc.passes.rules.record import operator_of

QUERY, KEY, VALUE, PAST_KEY, PAST_VALUE, LENGTHS, TOTAL, COSINE, SINE = range(9)
BIAS, SINK = 10, 11
MAX_STEPS = 8  # from an operand back to the sizes that it is computed from
UNREAD = (9, *range(12, 17))  # positions, scales of a cache of 8 bits, norms, lengths of queries


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known of the operands' sizes.

    Args:
        batch: Sequences.
        rows: New rows of each.
        past: Keys of the cache; 0 without one.
        heads: Heads of queries.
        groups: Heads of keys and values.
        head: Numbers of a row of a head.
        full: Every sequence is known to be as long as past and new rows together.
    """

    batch: Poly
    rows: Poly
    past: Poly
    heads: int
    groups: int
    head: int
    full: bool


def sizes_of(body: Body) -> Sizes:
    """Sizes of the operands.

    Raises:
        NoRule: They do not say where keys are, or that rows fit together.
    """
    view = body.view
    heads, groups = (int(view.attr(name, 0)) for name in ("num_heads", "kv_num_heads"))
    x = view.shape(QUERY)
    if len(x) != 3 or groups < 1 or heads % groups:
        raise NoRule(f"rows of rank {len(x)} in {heads} heads over {groups}")
    packed = not view.has(KEY)
    if view.has(VALUE) == packed:
        raise NoRule("one of keys and values is absent")
    head = head_size(static_size(x[2]), heads + 2 * groups if packed else heads)
    rows = () if packed else (view.shape(KEY), view.shape(VALUE))
    if any(shape != (x[0], x[1], ONE * (groups * head)) for shape in rows):
        raise NoRule(f"keys and values of shapes {rows} for queries of {x}")
    if view.shape(LENGTHS) != x[:1]:
        raise NoRule(f"lengths of shape {view.shape(LENGTHS)}")
    past = ZERO
    if view.has(PAST_KEY) or view.has(PAST_VALUE):
        caches = view.shape(PAST_KEY), view.shape(PAST_VALUE)
        past = caches[0][2]
        if any(shape != (x[0], poly(groups), past, poly(head)) for shape in caches):
            raise NoRule(f"caches of shapes {caches[0]}, {caches[1]}")
    total, length = past + x[1], _known(body, TOTAL)
    full = _known(body, LENGTHS) == total - 1
    if past != ZERO and length != total:
        said = "not known before it runs" if length is None else str(length)
        raise NoRule(
            f"total_sequence_length is {said}, the cache has {past} rows and {x[1]} are new: it "
            "may be longer than what is in it, and written in place; where it is not, call the "
            f"size of the mask that it is read from '{total}'"
        )
    if past != ZERO and not full:
        raise NoRule(
            f"seqlens_k is not known to be {total} - 1 for all sequences: behind shorter ones, "
            "new keys stand between those of the past"
        )
    return Sizes(x[0], x[1], past, heads, groups, head, full)


def _known(body: Body, i: int) -> Poly | None:
    """The one number that all elements of an operand are, as far as sizes and constants say.

    What is seen through a conversion to int32 may have wrapped around. It is negative then, of
    which the operator makes an error.
    """
    graph, name = body.view.graph, body.view.name(i)
    for _ in range(MAX_STEPS):
        affine, whole = graph[name].affine, graph.ints(name)
        found = set() if whole is None else set(whole.flat)
        if affine is not None and not affine.digits():
            found = {affine}
        if (constant := graph.splat(name)) is not None:
            found = {poly(int(constant))}
        if found:
            return found.pop() if len(found) == 1 else None
        node, expr = graph[name].producer, graph[name].expr
        if node is None or expr is None or len(expr.reads) != 1 or graph.dtype(name).kind != "i":
            return None
        if expr.combine is not Combine.MOVE and not operator_of(node).converts:
            return None
        name = NodeView(graph, node).name(expr.reads[0].operand)
    return None
