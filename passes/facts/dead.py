"""Backward: dead facts. A region of a value says: no graph output depends on the value there.

An element of an operand is dead for one use when, at every iteration point that reads it, the
output is dead, or the read does not happen, or the other operands make the result independent of
it. A value is dead where all its uses are. Facts are individual: each holds when that value alone
is overwritten (with values up to 1000 that are in the domain of their readers).

`slack` is a weaker fact: any number up to a limit would do (the input of a softmax where its result
is 0). Together with the mask it makes the raw score dead:

    z = s + mask     slack up to -5750 where p == 0; s + mask stays below it, whatever score s is
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from math import inf, prod

import onnx_ir as ir

from pitc.ir.constant import (
    FINITE,
    HIDDEN,
    MASKED,
    SMALL,
    Constant,
    annihilates,
    is_hidden,
    is_nonzero,
    is_zero,
)
from pitc.ir.emptiness import where_left_out
from pitc.ir.expr import PRODUCTS, Combine, Read, Reducer, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import rename
from pitc.ir.nodes import captures, output_names
from pitc.ir.region import (
    EVERYWHERE,
    Region,
    Test,
    all_hold,
    intersection,
    meet,
    prune,
    pull,
    region,
    resolve,
)
from pitc.ir.value import Slack
from pitc.passes.facts.carry import carry
from pitc.passes.facts.fill import (
    MAX_COMBINATIONS,
    UNKNOWN,
    by_constant,
    facts_at,
    term_guard,
    weaker_than,
)
from pitc.passes.facts.finite import finite_if
from pitc.passes.facts.idle_rows import idle_by_lists, idle_rows
from pitc.passes.facts.limits import (
    LOWEST_LIMIT,
    NONE,
    Loose,
    agreed,
    masking,
    never_largest,
    operand_of,
    room_of,
    signed_of,
    slack_of_sum,
    within_room,
)
from pitc.passes.facts.lists import find_lists
from pitc.passes.facts.signs import sign_of
from pitc.passes.facts.zero_signs import signed_zeros
from pitc.passes.rules.constants import ignores
from pitc.passes.rules.record import PackRule, operator_of
from pitc.passes.rules.signs import Sign

Uses = dict[str, list[list[Region]]]  # per value, for each use the regions in which it is idle
ANY = 1 << 10  # dimensions from there on are no others'


def dead_facts(graph: Graph, given_up: Mapping[str, Sequence[Region]] | None = None) -> None:
    """Fill in what is known from behind of every value of a graph whose fill facts are known:
    `dead`, `slack`, `dead_rows`, `wanted_whole` and `whole_readers`.

    Args:
        graph: The graph after `fill_facts`.
        given_up: Regions of graph outputs that the user does not want (padding tokens).
    """
    uses: dict[str, list[Loose]] = {}
    for name in graph.outputs:
        regions = list((given_up or {}).get(name, ()))
        uses.setdefault(name, []).append(Loose(regions, (regions, inf), (regions, inf)))
        graph[name].wanted_whole = not where_left_out(regions)
    below = graph.descendants()
    seen = signed_zeros(graph)
    graph.lists = find_lists(graph)
    rows: Uses = {}
    for name, value in graph.values.items():
        value.sign_unseen, value.whole_readers = name not in seen, []
    for node in reversed(graph.nodes):
        view = NodeView(graph, node)
        for name in output_names(node):
            _note(graph, name, uses.get(name, ()), below)
            if name in graph.lists.rows:
                graph[name].dead_rows = legal(graph, name, meet(rows.get(name, ())), below)
        for place in range(view.n_inputs):
            if view.has(place):
                name = view.name(place)
                found = _operand(view, place)
                if name in graph.lists.rows:
                    rows.setdefault(name, []).append(idle_rows(view, place))
                elif more := idle_by_lists(view, place):
                    found = found.also(more)
                if not where_left_out(found.dead) and graph[name].whole_readers[-1:] != [node]:
                    graph[name].whole_readers.append(node)
                uses.setdefault(name, []).append(found)
        for name in dict.fromkeys(captures(node)):  # what a body does with a value is not known
            uses.setdefault(name, []).append(Loose([], NONE, NONE))
            graph[name].whole_readers.append(node)
    for name in graph.inputs:
        graph[name].dead, _ = _dead(graph, name, uses.get(name, ()), below)


def _note(graph: Graph, name: str, uses: Sequence[Loose], below: Mapping[str, int]) -> None:
    """Note what may stand for a value, as all uses say."""
    value = graph[name]
    value.dead, value.signed = _dead(graph, name, uses, below)
    slack, room = agreed(x.slack for x in uses), agreed(x.room for x in uses)
    value.slack = legal(graph, name, slack[0], below, rests=False), slack[1]
    value.room = legal(graph, name, room[0], below, rests=False), room[1]


def _dead(
    graph: Graph, name: str, uses: Sequence[Loose], below: Mapping[str, int]
) -> tuple[list[Region], list[Region]]:
    """Where no use needs a value, and where any number with its sign would do."""
    dead, dtype = legal(graph, name, meet(x.dead for x in uses), below), graph[name].dtype
    if not any(x.signed for x in uses) or dtype is None or dtype.kind != "f":
        return dead, []
    found = legal(graph, name, meet(resolve([*x.dead, *x.signed]) for x in uses), below)
    return (prune([*dead, *found]) if sign_of(graph, name) is Sign.ANY else dead), found


def legal(
    graph: Graph,
    name: str,
    regions: Sequence[Region],
    below: Mapping[str, int],
    rests: bool = True,
) -> list[Region]:
    """The regions that do not justify themselves.

    A dead region of a value may neither test what is computed from it nor rest on its own fill
    facts: overwriting the value would change them. Facts of what is computed from positions, and
    from other numbers that are followed, rest on those without saying so. Nor may it test a value
    of a branch that need not run where the value is computed.

    Args:
        graph: The graph.
        name: The value.
        regions: Regions of it.
        below: For each value the bits of what is computed from it.
        rests: Look at provenance too; a slack value keeps its fill facts.
    """
    value = graph[name]
    own, changed = value.bit, value.bit | below.get(name, 0)
    followed = (value.affine, value.ints, value.vectors, value.live_places_of)
    resting = own if all(x is None for x in followed) else changed
    return [
        r
        for r in regions
        if not (rests and r.via & resting)
        and not _never(graph, r)
        and all(graph.visible(s, name) and not _changes(graph, s, name, changed) for s in r.sources)
    ]


def _never(graph: Graph, r: Region) -> bool:
    """Whether a test is seen to contradict the others, at one of its places or wherever it holds: a
    bias that is made of a mask is not small where that is 0. Such a region is of no use.
    """
    free = sorted({d for t in r for d in t.dims() if d >= 0})
    for t in r:
        other = [f.region for f in graph[t.src].fills if _contradicts(t, f.constant)]
        some = {d: ANY - d for d in t.somes}  # whichever it is
        for d in free if t.alls and other else [0]:
            index = [rename(p, dict.fromkeys(t.alls, d) | some) for p in t.idx]
            found = (pull(x, index, graph[t.src].shape) for x in other)
            if any(x is not None and all(any(u.implies(v) for u in r) for v in x) for x in found):
                return True
    return False


def _contradicts(t: Test, c: Constant) -> bool:
    """Whether a test does not hold of a number."""
    if t.pred == "small":
        return t.yes and is_hidden(c, MASKED)
    return t.pred == "nz" and (is_zero(c) if t.yes else is_nonzero(c))


def _changes(graph: Graph, source: str, name: str, changed: int) -> bool:
    """Whether a tested value is another one or is computed from it, as far as is known."""
    bit = graph[source].bit
    return bool(changed & bit) if bit else graph[source].order >= graph[name].order


def _operand(view: NodeView, place: int) -> Loose:
    """What may stand for one operand, for all outputs of the node."""
    if operator_of(view).reads_no_element:
        return Loose([EVERYWHERE], ([EVERYWHERE], inf), ([EVERYWHERE], inf))
    found: list[Loose] = []
    for k in range(view.n_outputs):
        expr = view.graph[view.out(k)].expr
        reads = [] if expr is None else _reads(view, k, expr, place)
        if view.out(k) and not reads:  # a use that is not described is live
            return Loose([], NONE, NONE)
        found += reads
    return Loose(
        meet(x.dead for x in found),
        agreed(x.slack for x in found),
        agreed(x.room for x in found),
        meet(resolve([*x.dead, *x.signed]) for x in found) if any(x.signed for x in found) else (),
    )


def _reads(view: NodeView, output: int, expr: TensorExpr, place: int) -> list[Loose]:
    """What may stand for each read of one operand place."""
    found = [j for j, r in enumerate(expr.reads) if r.operand == place]
    return [_read(view, output, expr, j) for j in found]


def _read(view: NodeView, output: int, expr: TensorExpr, j: int) -> Loose:
    """What may stand for operand j at one read of it."""
    graph, read, operator = view.graph, expr.reads[j], operator_of(view)
    if read.sizing:
        return Loose([], NONE, NONE)
    value = graph[view.out(output)]
    unread = [Region({n}) for t in read.within if (n := t.negate()) is not None]
    own_dead = [] if _chooses_infinity(view, read) else value.dead
    above = Loose(own_dead, value.slack, value.room)
    idle = unread + _annihilated(view, output, expr, j) + within_room(view, expr, j, above)
    dead = carry(view, expr, read, resolve([*own_dead, *idle]))
    slack: Slack = resolve(dead), inf
    if expr.combine is Combine.SOFTMAX:
        zeros = [f.region for f in value.fills if is_zero(f.constant)]
        slack = resolve([*dead, *zeros]), HIDDEN
    elif expr.combine is Combine.REDUCE and expr.reducer is Reducer.MAX:
        slack = resolve([*dead, *never_largest(view, expr, read)]), HIDDEN
    elif expr.combine is Combine.MOVE:
        slack = carry(view, expr, read, value.slack[0]), value.slack[1]
    elif operator.chooses and read.operand > 0 and value.slack[0]:
        slack = carry(view, expr, read, resolve([*value.slack[0], *idle])), value.slack[1]
    elif _is_sum_of_two(view, expr):
        hidden = intersection(value.slack[0], masking(view, expr, j, value.slack[1]))
        dead = dead + carry(view, expr, read, hidden)
        lower = value.slack[1] - SMALL
        if lower < LOWEST_LIMIT or operator.weight(j) < 0:
            slack = resolve(dead), inf
        else:
            slack = slack_of_sum(view, expr, j, value.slack, [*own_dead, *idle])
    room = room_of(view, expr, j, above, [*own_dead, *idle])
    signed = signed_of(view, expr, j, value.signed, [*own_dead, *idle])
    return Loose(prune(dead), slack, room, signed)


def _chooses_infinity(view: NodeView, read: Read) -> bool:
    """True for the condition of a Where or an If between values that may be infinite.

    A dead value must stay finite, and another condition could make a whole row -inf, hence NaN. The
    flag of a NaN guard is exempt: it follows the guarded value by itself. So does the condition of
    a guard on rows, which is never written with other numbers. And nothing becomes infinite of a
    value that is only compared, or ordered: which is the largest is a place.
    """
    out = view.graph[view.out()]
    if _is_only_compared(view.graph, view.out()):
        return False
    if not operator_of(view).chooses or read.operand != 0 or out.guard_flag or out.guarded_softmax:
        return False
    return any(finite_if(view.graph, view.name(i)) != EVERYWHERE for i in (1, 2))


def _is_only_compared(graph: Graph, name: str) -> bool:
    """True where all that is computed from a value, and read, are bools, or places of the largest
    ones: these are the same kind of numbers whatever is infinite. An integer that is converted from
    infinity is none that a model expects.
    """

    def is_told(node: ir.Node, made: ir.Value) -> bool:
        dtype = graph[made.name or ""].dtype
        kinds = "bi" if operator_of(node).packs is PackRule.BEST_PLACES else "b"
        return dtype is not None and dtype.kind in kinds

    read = (
        (node, made)
        for node in graph[name].uses
        for made in node.outputs
        if made.uses() or made.name in graph.outputs
    )
    return name not in graph.outputs and all(is_told(*pair) for pair in read)


def _is_sum_of_two(view: NodeView, expr: TensorExpr) -> bool:
    additive = bool(operator_of(view).weights)
    return additive and len(expr.reads) == 2 and not _repeated(view, expr)


def _annihilated(view: NodeView, output: int, expr: TensorExpr, j: int) -> list[Region]:
    """Iteration points at which the result does not depend on operand j, by the others' facts."""
    graph, mine = view.graph, view.name(expr.reads[j].operand)
    others = [k for k, r in enumerate(expr.reads) if k != j and view.name(r.operand) != mine]
    factors = others
    if expr.combine is Combine.BIASED_PRODUCT:
        factors = [k for k in others if expr.reads[k].operand < 2]
        if expr.reads[j].operand >= 2:
            return []
    # what does not matter when finite must be finite as it is
    selects = operator_of(view).selects
    guard = EVERYWHERE if selects else term_guard(view, expr.reads[j])
    if guard is None:
        return []
    # 0 * x is 0 or -0.0: where the sign is seen, so is x, and what chooses between 0 and -0.0
    unseen = graph[view.out(output)].sign_unseen
    not_taken = selects and not (operator_of(view).chooses and expr.reads[j].operand == 0)
    if not (unseen or not_taken or expr.reduced):
        return []
    if expr.combine in PRODUCTS:
        facts = (f for k in factors for f in facts_at(graph, *operand_of(view, expr, k)))
        zeros = (region(f.region | guard) for f in facts if annihilates(f.constant))
        found = prune(r for r in zeros if r is not None)
        if found:
            view.assume(FINITE)
        return found
    if expr.combine is not Combine.MAP:
        return []
    lists = [
        facts_at(graph, *operand_of(view, expr, k)) if k in others else [UNKNOWN]
        for k in range(len(expr.reads))
    ]
    if prod(map(len, lists)) > MAX_COMBINATIONS:
        return []
    groups = [by_constant(facts) for facts in lists]
    enough = [cs for cs in product(*groups) if ignores(view.op, j, cs, view)]
    out = []
    for constants in enough:
        if not any(weaker in enough for weaker in weaker_than(constants)):
            out += all_hold([[guard], *(g[k] for g, k in zip(groups, constants, strict=True))])
    if out and not selects:
        view.assume(FINITE)
    return prune(out)


def _repeated(view: NodeView, expr: TensorExpr) -> set[str]:
    """Values that the node reads at several places."""
    counts = Counter(view.name(r.operand) for r in expr.reads)
    return {name for name, count in counts.items() if count > 1}
