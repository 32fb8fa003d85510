"""The CPU engine: a dense tile of sums in vector registers.

    for each step of a stretch:         sums[row][vector] += a[row] * b[vector]

A family says addresses: where a step's numbers of the left operand (SRead) and vectors of the right
one stand, and where sums come from and go to. Each sum is one chain of fused multiply-adds, in the
order of the steps, so its bits do not depend on the tile that it falls into.
"""

from collections.abc import Callable, Sequence

from pitc.codegen import tir
from pitc.codegen.vector_math import relu

Read = tuple[Callable[[int], tir.Expr], Callable[[int], tir.Expr]]
"""Of one step: row -> number of the left operand, vector -> vector of the right one."""


class DenseTile:
    """Sums of rows x vectors.

    Args:
        rows: How many.
        vectors: How many in a row.
        lanes: Floats of a vector.
        input_relu: Numbers of the left operand that are below 0 stand for 0.
    """

    def __init__(
        self, rows: int, vectors: int, lanes: int = tir.LANES, *, input_relu: bool = False
    ) -> None:
        self.rows, self.vectors, self.lanes = rows, vectors, lanes
        self._input_relu = input_relu
        self._sums = [[tir.Variable(lanes) for _ in range(vectors)] for _ in range(rows)]

    def start(self, vector: Callable[[int, int], tir.Expr]) -> None:
        """Set every sum, by row and vector."""
        for r, row in enumerate(self._sums):
            for v, total in enumerate(row):
                total.set(vector(r, v))

    def clear(self) -> None:
        """Start the sums at 0."""
        self.start(lambda _r, _v: tir.splat(0, self.lanes))

    def take(self, scratch: tir.Buffer, rows: Sequence[tir.Expr]) -> None:
        """Start from sums that were put there; row r begins at element rows[r]."""
        self.start(lambda r, v: tir.load(scratch, rows[r] + v * self.lanes, width=self.lanes))

    def put(self, scratch: tir.Buffer, rows: Sequence[tir.Expr]) -> None:
        """Keep the sums for later steps, or for whoever finishes them.

        They lie close together there: rows of C, a power of two apart, would share few lines of the
        caches.
        """
        for r in range(self.rows):
            for v, total in enumerate(self.row(r)):
                tir.store(scratch, total, rows[r] + v * self.lanes, width=self.lanes)

    def row(self, r: int) -> list[tir.Expr]:
        """The sums of a row."""
        return [total.value for total in self._sums[r]]

    def step(self, read: Read) -> None:
        """Add one product to each sum."""
        a, b = read
        vectors = [tir.keep(b(v)) for v in range(self.vectors)]
        for r, row in enumerate(self._sums):
            number = tir.keep(tir.splat(a(r), self.lanes))
            if self._input_relu:
                number = relu(number)
            for total, vector in zip(row, vectors, strict=True):
                total.set(tir.fma(number, vector, total.value))

    def multiply(
        self, count: tir.Expr, by: int, read: Callable[[tir.Expr], Read], *, rest: bool = True
    ) -> None:
        """Add the products of steps 0..count-1, `by` of them per turn of the loop.

        Args:
            count: How many steps.
            by: Steps per turn.
            read: What a step reads; it may also emit what comes before (asking for later lines).
            rest: `count` need not be a multiple of `by`.
        """
        tir.unrolled(count, by, lambda i: self.step(read(i)), rest=rest)
