"""The CPU engine: a dense tile of sums in vector registers.

    for each step of a stretch:         sums[row][vector] += a[row] * b[vector]

A family says addresses: where a step's numbers of the left operand (SRead) and vectors of the right
one stand, and where sums come from and go to. Each sum is one chain of fused multiply-adds, in the
order of the steps, so its bits do not depend on the tile that it falls into.

A chain of thousands loses digits: what it rounds grows with its length. So products are added up in
blocks of `FOLD` k, each a chain of its own, and the blocks' sums are added in their order. Where
blocks end depends on k alone: it is the same for every tile, and where terms are left out.
"""

from collections.abc import Callable, Sequence

from pitc.codegen import tir
from pitc.codegen.vector_math import relu
from pitc.ir.variants import FOLD

Read = tuple[Callable[[int], tir.Expr], Callable[[int], tir.Expr]]
"""Of one step: row -> number of the left operand, vector -> vector of the right one."""


class Blocks:
    """Emits what ends blocks of k while a tile walks a list of entries in ascending k.

    Args:
        tile: The tile.
        complete: Where sums of complete blocks lie.
        bound: First k behind the entries' block; twice that, and 1 where blocks are complete.
    """

    def __init__(self, tile: "DenseTile", complete: "Scratch | Registers", bound: tir.Expr) -> None:
        self.tile, self.complete = tile, complete
        self.state = tir.Counter(bound)

    @staticmethod
    def state_at(k: tir.Expr, complete: tir.Expr | int = 0) -> tir.Expr:
        """The state while entries are of the block of `k`."""
        return (k // FOLD + 1) * (2 * FOLD) + complete

    def before(self, k: tir.Expr) -> None:
        """The next entry is of `k`."""
        with tir.when(k * 2 + 1 >= self.state.value):
            self.end()
            self.complete.put(self.tile)
            self.tile.clear()
            self.state.set(self.state_at(k, 1))

    def end(self) -> None:
        """Add complete blocks to the sums."""
        with tir.when(self.state.value % 2 == 1):
            self.complete.add_to(self.tile)


class Scratch:
    """Sums in memory.

    Args:
        buffer: Where.
        rows: Element at which each row of a tile begins.
    """

    def __init__(self, buffer: tir.Buffer, rows: Sequence[tir.Expr]) -> None:
        self.buffer, self.rows = buffer, rows

    def put(self, tile: "DenseTile") -> None:
        """Keep a tile's sums."""
        tile.put(self.buffer, self.rows)

    def add_to(self, tile: "DenseTile") -> None:
        """Add what was kept to a tile."""
        tile.add(self.buffer, self.rows)


class Registers:
    """Sums in registers: for a tile that takes less than half of them.

    Args:
        like: A tile of that size.
    """

    def __init__(self, like: "DenseTile") -> None:
        self._sums = DenseTile(like.rows, like.vectors, like.lanes)
        self._sums.clear()

    def put(self, tile: "DenseTile") -> None:
        """Keep a tile's sums."""
        self._sums.start(lambda r, v: tile.row(r)[v])

    def add_to(self, tile: "DenseTile") -> None:
        """Add what was kept to a tile."""
        tile.add_each(lambda r, v: self._sums.row(r)[v])


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

    def add_each(self, vector: Callable[[int, int], tir.Expr]) -> None:
        """Add to every sum, by row and vector."""
        for r, row in enumerate(self._sums):
            for v, total in enumerate(row):
                total.set(vector(r, v) + total.value)

    def add(self, scratch: tir.Buffer, rows: Sequence[tir.Expr]) -> None:
        """Add sums that were put there."""
        self.add_each(lambda r, v: tir.load(scratch, rows[r] + v * self.lanes, width=self.lanes))

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
            number = tir.keep(self.number(a(r)))
            if self._input_relu:
                number = relu(number)
            for total, vector in zip(row, vectors, strict=True):
                total.set(self.added(number, vector, total.value))

    def number(self, x: tir.Expr) -> tir.Expr:
        """A number of the left operand in every lane."""
        return tir.splat(x, self.lanes)

    def added(self, number: tir.Expr, vector: tir.Expr, total: tir.Expr) -> tir.Expr:
        """A sum and one product more."""
        return tir.fma(number, vector, total)

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
