"""What an engine of a multiprocessor is: sums of a dense tile, by the threads of a block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pitc.codegen import collective, ptx
from pitc.codegen.engines.ring import Block, Piece
from pitc.codegen.tir import Expr, T
from pitc.ir.cuda_target import CudaTile

Load = Callable[..., None]
"""Loads an operand of a slot into registers; what it takes is the engine's own affair."""


@dataclass(frozen=True, slots=True)
class Run:
    """Sums of a thread that lie side by side.

    Args:
        column: Of the first one, in the dense tile, int32; a multiple of how many they are.
        sums: Two, four, or eight.
        word: Which of the thread's words of bits they belong to.
        bit: Place of the first one's bit there, int32.
    """

    column: Expr
    sums: tuple[Expr, ...]
    word: int
    bit: Expr


def transposed(lane: Expr, values: Sequence[Expr], dtype: str) -> list[Expr]:
    """Exchange values among as many lanes side by side: lane t gets the t-th value of each.

    A round exchanges, between lanes whose numbers differ in a bit, values whose numbers do.

    Args:
        lane: Number of the lane, int32.
        values: Of this lane: one, two, or four.
        dtype: Their type.

    Returns:
        What the lanes have, in their order.
    """
    values = list(values)
    for bit in (b for b in (1, 2) if b < len(values)):
        upper = ptx.held(T.Cast("int32", (lane & bit) != 0), "int32")
        for low in (i for i in range(len(values)) if not i & bit):
            pair = values[low], values[low + bit]
            given = ptx.held(T.Select(upper != 0, *pair), dtype)
            taken = collective.exchanged(given, bit, dtype)
            values[low] = ptx.held(T.Select(upper != 0, taken, pair[0]), dtype)
            values[low + bit] = ptx.held(T.Select(upper != 0, pair[1], taken), dtype)
    return values


class Sums(Protocol):
    """Finished sums of a dense tile, as SWrite takes them.

    Attributes:
        words: Words of 32 columns that a thread has elements of.
        column: First column of the thread's part of the tile, int32.
        leads: Whether this thread writes for those that share its rows.
    """

    words: int
    column: Expr
    leads: Expr

    def rows(self, visit: Callable[[Expr, list[Run]], None]) -> None:
        """Visit this thread's rows: place in the tile, and its sums there."""
        ...

    def joined(self, word: Expr) -> Expr:
        """The bits of all threads that share a row."""
        ...


class Engine(Sums, Protocol):
    """Sums of a dense tile, and the steps that add to them.

    Attributes:
        step_k: k of a step.
    """

    step_k: int

    def __init__(self, tile: CudaTile, dtype: str, block: Block) -> None: ...

    def rows_of_a(self) -> tuple[Piece, Load]:
        """A piece with a row of a in each row."""
        ...

    def columns_of_a(self) -> tuple[Piece, Load]:
        """A piece with a k of a in each row."""
        ...

    def rows_of_b(self) -> tuple[Piece, Load]:
        """A piece with a k of a panel of b in each row, one panel below the other."""
        ...

    def columns_of_b(self) -> tuple[Piece, Load]:
        """A piece with a column of b in each row."""
        ...

    def clear(self) -> None:
        """Start at 0."""
        ...

    def step(self, slot: Expr, load_a: Load, load_b: Load) -> None:
        """Add the products of a slot, which starts at byte `slot`."""
        ...

    def product(
        self,
        slot: Expr,
        load_a: Load,
        load_b: Load,
        there: Callable[[Expr], Expr],
        visit: Callable[[Expr, list[Run]], None],
    ) -> None:
        """Visit the products of a slot alone: two numbers side by side, or four.

        Runs that lanes of a warp visit at a time lie in different columns, modulo the banks of
        shared memory, or in one row.

        Args:
            slot: Its first byte.
            load_a: Loads a of it.
            load_b: Loads b of it.
            there: Whether a group of 16 rows, which begins at a place in the tile, is wanted: the
                same for all lanes of a warp.
            visit: Sees the rows of these groups.
        """
        ...
