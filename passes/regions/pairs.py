"""Hidden pairs: which keys a query of attention does not see, as formulas (`sight.py`).

A fact of the softmax's result is a region, a few tests that all hold. A region that looks at
anything but queries and keys (a head, a block of positions that no node computes) hides nothing
here: its pairs are computed, and that is exact, too.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pitc.ir.constant import is_zero
from pitc.ir.graph import Graph
from pitc.ir.index import ZERO
from pitc.ir.plans.program import PROGRAM, TESTS, Tests
from pitc.ir.region import Region, Test, pull, region
from pitc.passes.regions.live_tests import bytes_touched, tests_cost_more
from pitc.passes.regions.sight import (
    Compared,
    Condition,
    Dead,
    Formula,
    Leaf,
    Positions,
    Sight,
    leaves,
    negation,
    one_of,
    sources,
)

MOST_CASES = 16  # of live pairs, that facts are looked up for


def hidden_pairs(
    sight: Sight,
    name: str,
    regions: Iterable[Region],
    dead_keys: Region | None,
    flops: Callable[[int], int],
) -> list[tuple[Region, Condition]]:
    """Regions in which a softmax's result is 0, or NaN with the rest of its row, as formulas.

    Args:
        sight: The pairs.
        name: The result.
        regions: Where it is so.
        dead_keys: Where keys are dead: pairs of these are left out before. None: nowhere.
        flops: Operations of all pairs, by what unknown sizes are: they have to repay the tests.

    Returns:
        At most as many as a plan takes.
    """
    graph = sight.graph
    found: list[tuple[Region, Condition]] = []
    for where in sorted(regions, key=lambda where: (len(where), -_last(graph, where))):
        known = [h for _, h in found]
        covering = (*([] if dead_keys is None else [dead_keys]), *(w for w, _ in found))
        if any(lies_in(graph, where, other) for other in covering):
            continue
        hidden = sight.hidden(where)
        if hidden is None or hidden in known or not fits_plan([*known, hidden]):
            continue
        if not all(graph.visible(source, name) for source in sources(hidden)):
            continue
        in_blocks = block_sizes([*known, hidden]) is not None
        dead = (leaf for leaf in leaves(hidden) if isinstance(leaf, Dead))
        flags = (leaf.blocks.domain if in_blocks and leaf.blocks else leaf.domain for leaf in dead)
        touched = sum((bytes_touched(graph, domain) for domain in flags), ZERO)
        if not tests_cost_more(graph, touched, flops):
            found.append((where, hidden))
    return found


def _last(graph: Graph, where: Region) -> int:
    """The place of the last value that a region looks at: it is made of the ones before."""
    return max((graph[t.src].order for t in where), default=0)


def lies_in(graph: Graph, where: Region, other: Region) -> bool:
    """True where a region is part of another one: by its tests, or as a value that the other one
    looks at is known to be 0 there.

    x[q] != 0 and x[k] == 0   lies in   same[q, k] == 0, where same = Equal (x[q], x[k])
    """

    def implied(tests: Iterable[Test]) -> bool:
        return all(any(u.implies(t) for u in where) for t in tests)

    def known(test: Test) -> bool:
        if test.pred != "nz" or test.yes:
            return False
        value = graph[test.src]
        zeros = (f.region for f in value.fills if is_zero(f.constant))
        at = (pull(r, test.idx, value.shape) for r in zeros)
        return any(r is not None and implied(r) for r in at)

    return all(implied([test]) or known(test) for test in other)


def kind_of(leaf: Leaf) -> str:
    """Of a leaf, the field of a plan that counts such leaves."""
    match leaf:
        case Positions():
            return "positions"
        case Compared():
            return "tables"
        case Dead(kind, _, _):
            return kind


KINDS = ("positions", "tables", "keys", "queries", "pairs")


def numbered_leaves(hidden: Sequence[Condition]) -> dict[str, list[Leaf]]:
    """The leaves of each kind, in the order in which a plan numbers them."""
    found: dict[str, list[Leaf]] = {kind: [] for kind in KINDS}
    for leaf in dict.fromkeys(leaf for each in hidden for leaf in leaves(each)):
        found[kind_of(leaf)].append(leaf)
    return found


def block_sizes(hidden: Sequence[Condition]) -> tuple[int, int] | None:
    """How many queries and keys the blocks have that all flags of pairs are of; None where some are
    of single pairs, or they lie in several grids.
    """
    dead = [leaf.blocks for leaf in numbered_leaves(hidden)["pairs"] if isinstance(leaf, Dead)]
    blocks = [b for b in dead if b is not None]
    grids = {(b.queries, b.keys, b.domain.extents[-2:]) for b in blocks}
    if len(blocks) < len(dead) or len(grids) != 1:
        return None
    return blocks[0].queries, blocks[0].keys


def tests_of(hidden: Sequence[Condition]) -> Tests:
    """How many leaves of each kind there are, and what tables compare by."""
    found = numbered_leaves(hidden)
    compared = [leaf for leaf in found["tables"] if isinstance(leaf, Compared)]
    orders = sum(_order(leaf) << 2 * k for k, leaf in enumerate(compared))
    return Tests(**{kind: len(of_kind) for kind, of_kind in found.items()}, orders=orders)


def program_fields(hidden: Sequence[Condition]) -> dict[str, Any]:
    """The fields of a plan whose kernel evaluates which pairs are seen."""
    tests = tests_of(hidden)
    return {
        "program": program(hidden),
        "positions": tests.positions,
        "tables": tests.tables,
        "orders": tests.orders,
        "key_tests": tests.keys,
        "query_tests": tests.queries,
        "pair_tests": tests.pairs,
    }


def _order(leaf: Compared) -> int:
    """What a plan says of a comparison."""
    return 0 if leaf.order.less is None else 1 + leaf.order.equal


def program(hidden: Sequence[Condition]) -> tuple[int, ...]:
    """Which pairs are seen, as steps on a stack (`PROGRAM`): a leaf is put there, parts are joined.

    hidden where leaf 0, or where leaf 1 and leaf 2   ->   leaf 0, leaf 1, leaf 2, and, or, not
    """
    by_kind = numbered_leaves(hidden).values()
    numbers = {leaf: k for k, leaf in enumerate(leaf for found in by_kind for leaf in found)}

    def steps(condition: Condition) -> list[int]:
        if not isinstance(condition, Formula):
            return [PROGRAM.first_leaf + numbers[condition]]
        parts = [steps(part) for part in condition.parts]
        if condition.op == "not":
            return [*parts[0], PROGRAM.negate]
        join = PROGRAM.both if condition.op == "and" else PROGRAM.either
        return [*parts[0], *(step for part in parts[1:] for step in (*part, join))]

    return tuple(steps(negation(one_of(hidden))))


def fits_plan(hidden: Sequence[Condition]) -> bool:
    """True where a plan takes so many leaves and steps."""
    few = all(len(found) <= TESTS.most for found in numbered_leaves(hidden).values())
    return few and max(PROGRAM.depths(program(hidden))) <= PROGRAM.deepest


def seen_pairs(pairs: Sequence[Region], hidden: Sequence[Region]) -> list[Region]:
    """Regions that together hold every pair of some regions that none of others hides.

    {}, hidden where k > q   ->   k <= q
    """
    left = list(pairs)
    for fact in hidden:
        cases = [t.negate() for t in fact]
        split = [region(Region((*p, c))) for p in left for c in cases if c is not None]
        if None not in cases and len(split) <= MOST_CASES:
            left = [p for p in split if p is not None]
    return left
