"""What may stand for a term of a softmax that is hidden: numbers up to a limit.

    z = x + mask    p == 0 where z <= -5750, so where mask <= -1e4 any x up to 4250 would do
    x = 50 * t      so any t up to 84 would do; t = tanh(r) is at most 1 for all r, so r is dead

A value has *slack* where any number up to a limit would do, one far below 0: what is hidden stays
hidden. It has *room* where any number up to a limit would do that keeps what is known of the value,
and the limit is above 0. From neither it follows that the value is dead, for which any number up
to 1000 would do. But what its operator bounds stays within its room, whatever the operand is.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import inf, prod
from typing import NamedTuple

from pitc.ir.constant import (
    FINITE,
    MASKED,
    SCORE,
    SMALL,
    is_hidden,
    is_kept,
    is_zero,
)
from pitc.ir.expr import Combine, Read, Reducer, TensorExpr
from pitc.ir.graph import NodeView
from pitc.ir.region import Region, all_hold, inside, intersection, meet, prune, resolve
from pitc.ir.value import Slack
from pitc.passes.facts.carry import carry
from pitc.passes.facts.fill import (
    MAX_COMBINATIONS,
    UNKNOWN,
    by_constant,
    facts_at,
    known_at,
    term_guard,
)
from pitc.passes.facts.finite import finite_if, guard_at
from pitc.passes.facts.signs import Known, sign_of
from pitc.passes.rules.constants import evaluate_constants
from pitc.passes.rules.record import operator_of
from pitc.passes.rules.signs import Sign

LOWEST_LIMIT = MASKED + 2 * SMALL  # a mask plus a score stays below it
ROUNDING = 0.99  # a product is no larger than its factors say, rounded
NONE: Slack = ([], inf)


class Loose(NamedTuple):
    """What may stand for a value, or for an operand at its reads.

    Args:
        dead: Where nobody reads it.
        slack: Where any number up to a limit would do.
        room: Where any up to a limit would do that keeps what is known of it.
        signed: Where any would do that has the sign that is known of it.
    """

    dead: list[Region]
    slack: Slack
    room: Slack
    signed: Sequence[Region] = ()

    def also(self, idle: Sequence[Region]) -> "Loose":
        """The same, where some regions are not read either."""
        (slack, most), (room, limit) = self.slack, self.room
        return Loose(
            resolve([*self.dead, *idle]),
            (resolve([*slack, *idle]), most),
            (resolve([*room, *idle]), limit),
            resolve([*self.signed, *idle]),
        )


def agreed(found: Iterable[Slack]) -> Slack:
    """What holds for all uses: the lowest limit counts."""
    uses = list(found)
    return meet(r for r, _ in uses), min((limit for _, limit in uses), default=inf)


def operand_of(view: NodeView, expr: TensorExpr, k: int) -> tuple[str, Read]:
    """The value that a read is of, and the read."""
    return view.name(expr.reads[k].operand), expr.reads[k]


def masking(view: NodeView, expr: TensorExpr, j: int, limit: float) -> list[Region]:
    """Where a sum stays up to a limit, whatever bounded score stands for operand j."""
    guard = term_guard(view, expr.reads[j])
    if guard is None:
        return []
    low = []
    for f in facts_at(view.graph, *operand_of(view, expr, 1 - j)):
        constants = (SCORE, f.constant) if j == 0 else (f.constant, SCORE)
        if is_hidden(evaluate_constants(view.op, constants, node=view), limit):
            low.append(f.region | guard)
    return low


def lifted(view: NodeView, expr: TensorExpr, j: int, most: float) -> list[Region]:
    """Where a sum is at most some number above operand j."""
    found = []
    for f in facts_at(view.graph, *operand_of(view, expr, 1 - j)):
        # operand 1 is added too, or it is not asked for
        if is_hidden(evaluate_constants(view.op, (0, f.constant), node=view), most):
            found.append(f.region)
    return prune(found)


def never_largest(view: NodeView, expr: TensorExpr, read: Read) -> list[Region]:
    """Where an element is hidden, in a line of which the largest one is kept: any other hidden
    number would do.
    """
    rows = [f.region for f in view.graph[view.out()].fills if is_kept(f.constant)]
    low = [f.region for f in known_at(view, read) if is_hidden(f.constant)]
    return carry(view, expr, read, intersection(rows, low))


def slack_of_sum(
    view: NodeView, expr: TensorExpr, j: int, slack: Slack, idle: Sequence[Region]
) -> Slack:
    """Slack of operand j of a sum of two that has some.

    Args:
        view: The node.
        expr: Its expression.
        j: The number of the read.
        slack: Of the result.
        idle: Where the operand is not read, in the iteration space.
    """
    lower = slack[1] - SMALL
    small = intersection(slack[0], lifted(view, expr, j, SMALL))
    return carry(view, expr, expr.reads[j], resolve([*small, *idle])), lower


def room_of(
    view: NodeView, expr: TensorExpr, j: int, above: Loose, idle: Sequence[Region]
) -> Slack:
    """Room of an operand.

    Args:
        view: The node.
        expr: Its expression.
        j: The number of the read.
        above: What may stand for the result.
        idle: Where the operand is not read, in the iteration space.
    """
    operator, read = operator_of(view), expr.reads[j]
    regions, limit = above.room
    if expr.combine is not Combine.MOVE and not (operator.chooses and read.operand > 0):
        factor = _factor(view, expr, j)
        if operator.weight(j) > 0 and len(expr.reads) == 2:
            found = list(_in_sum(view, expr, j, above))
            regions = [r for some, _ in found for r in some]
            limit = min((least for _, least in found), default=inf)
        elif factor is not None:
            limit *= ROUNDING / factor
        else:
            regions, limit = [], inf
    return carry(view, expr, read, resolve([*regions, *idle])), limit


def signed_of(
    view: NodeView, expr: TensorExpr, j: int, above: Sequence[Region], idle: Sequence[Region]
) -> list[Region]:
    """Where operand j may be any number with the sign that is known of it.

    y = 0 / r, r = sqrt(m + 1e-6), m = mean of x * x   ->   r: any positive number; m: any that is
    not negative; of x no sign is known: any number, so it is dead

    Args:
        view: The node.
        expr: Its expression.
        j: The number of the read.
        above: Where the result may be any number with its sign.
        idle: Where the operand is not read, in the iteration space.
    """
    graph, read, operator = view.graph, expr.reads[j], operator_of(view)
    name, regions = view.name(read.operand), list[Region]()
    divides = expr.combine is Combine.MAP and operator.power(read.operand) < 0
    if divides and Known(view).sign(read.operand) is Sign.POSITIVE:
        others = (operand_of(view, expr, k) for k in range(len(expr.reads)) if k != j)
        facts = (f for other in others for f in facts_at(graph, *other))
        regions += [f.region for f in facts if is_zero(f.constant)]
    if above and _gives_sign(view, expr, name):
        regions += above
    guard = guard_at(graph, name, read, finite_if(graph, name), expr.shape) if regions else None
    found = [] if guard is None else all_hold([regions, [guard]])
    if found:
        view.assume(FINITE)
    return carry(view, expr, read, resolve([*found, *idle])) if found or above else []


def _gives_sign(view: NodeView, expr: TensorExpr, name: str) -> bool:
    """True where the result's sign is known by that of an operand, whatever numbers it holds."""
    operator = operator_of(view)
    if expr.combine is Combine.REDUCE:  # a positive element in each line is no matter of signs
        least = min(sign_of(view.graph, name), Sign.NONNEGATIVE)
        return expr.reducer is Reducer.SQUARE or sign_of(view.graph, view.out()) is least
    return expr.combine is Combine.MOVE or (expr.combine is Combine.MAP and not operator.chooses)


def _in_sum(view: NodeView, expr: TensorExpr, j: int, above: Loose) -> Iterator[Slack]:
    """Beside a mask there is room below what is hidden; beside little, less than for the sum."""
    for (regions, limit), most in ((above.slack, MASKED), (above.room, SMALL)):
        found = intersection(regions, lifted(view, expr, j, most)) if regions else []
        if found and limit >= most:
            yield found, limit - most


def _factor(view: NodeView, expr: TensorExpr, j: int) -> float | None:
    """By which positive number operand j is multiplied, if that is all."""
    operator = operator_of(view)
    if not operator.powers or len(expr.reads) != 2 or operator.power(j) != 1:
        return None
    c = view.graph.splat(operand_of(view, expr, 1 - j)[0])
    return None if c is None or not 0 < c < inf else float(c) ** operator.power(1 - j)


def within_room(view: NodeView, expr: TensorExpr, j: int, above: Loose) -> list[Region]:
    """Where the operator keeps its result within the room that this has, whatever finite number
    operand j is; in the iteration space. Where the result is dead, that says it already.
    """
    regions, limit = above.room
    regions = [r for r in regions if not any(inside(r, k) for k in above.dead)]
    guard = term_guard(view, expr.reads[j]) if regions else None
    if guard is None or expr.combine is not Combine.MAP:
        return []
    lists = [facts_at(view.graph, *operand_of(view, expr, k)) for k in range(len(expr.reads))]
    lists[j] = [UNKNOWN]
    if prod(map(len, lists)) > MAX_COMBINATIONS:
        return []
    groups, found = [by_constant(facts) for facts in lists], list[Region]()
    for constants in product(*groups):
        if is_hidden(evaluate_constants(view.op, constants, node=view), limit):
            where = (g[c] for g, c in zip(groups, constants, strict=True))
            found += all_hold([regions, [guard], *where])
    if found:
        view.assume(FINITE)
    return prune(found)
