"""Programs of pairs in plans: which keys a query sees, as steps on a stack of truth values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pitc.ir.plans.kinds import Listed, Whole
from pitc.ir.seen import BOTH, EITHER, KEYS, NEGATE, PAIRS, POSITIONS, QUERIES, TABLES

TESTS = Whole(0, 8)
MOST_BLOCK = 1 << 24  # queries, or keys, of a block of pairs
ORDERS = Whole(0, (1 << 2 * TESTS.most) - 1)


@dataclass(frozen=True, slots=True)
class Program:
    """Steps on a stack of truth values: `both` and `either` join the two on top, `negate` turns the
    one on top, and `first_leaf + n` puts test n there.
    """

    both: int = 0
    either: int = 1
    negate: int = 2
    first_leaf: int = 3
    deepest: int = 16

    def depths(self, steps: Sequence[int]) -> Iterator[int]:
        """How high the stack is behind each step.

        Raises:
            ValueError: Too little lies there to be joined.
        """
        depth = 0
        for step in steps:
            taken = {self.both: 2, self.either: 2, self.negate: 1}.get(step, 0)
            if depth < taken:
                raise ValueError(f"step {step} needs {taken} truth values, there are {depth}")
            depth += 1 - taken
            yield depth


PROGRAM = Program()


@dataclass(frozen=True, slots=True)
class Steps(Listed):
    """Steps of a program, which leave one truth value."""

    @property
    def told(self) -> str:
        """What a value is."""
        return f"{Listed.told.__get__(self)}, that leave one truth value"

    def _parse(self, text: str) -> tuple[Any, ...] | None:
        steps = Listed._parse(self, text)
        if steps is None or None in steps:
            return steps
        try:
            depths = list(PROGRAM.depths(steps))
        except ValueError:
            return None
        return steps if depths[-1] == 1 and max(depths) <= PROGRAM.deepest else None


PROGRAMS = Steps(Whole(0, PROGRAM.first_leaf + 5 * TESTS.most - 1))


@dataclass(frozen=True, slots=True)
class Tests:
    """How many tests of each kind there are, in the order in which they are numbered.

    Args:
        positions: Of positions.
        tables: Of tables.
        keys: Of keys.
        queries: Of queries.
        pairs: Of pairs.
        orders: What each table compares by, in two bits, the first one's lowest.
    """

    positions: int
    tables: int
    keys: int
    queries: int
    pairs: int
    orders: int

    def text(self, program: Sequence[int]) -> str:
        """A program as the name of a kernel says it (`pitc.ir.seen`)."""
        joins = {PROGRAM.both: BOTH, PROGRAM.either: EITHER, PROGRAM.negate: NEGATE}
        by_order = {order: letter for letter, order in TABLES.items()}
        compared = [by_order[self.orders >> 2 * k & 3] for k in range(self.tables)]
        leaves = [f"{POSITIONS}{k}" for k in range(self.positions)]
        leaves += [f"{letter}{k}" for k, letter in enumerate(compared)]
        counts = (KEYS, self.keys), (QUERIES, self.queries), (PAIRS, self.pairs)
        leaves += [f"{letter}{k}" for letter, count in counts for k in range(count)]
        first = PROGRAM.first_leaf
        return "".join(joins[x] if x in joins else leaves[x - first] for x in program)
