"""Rows of keys and values, where attention reads them (SRead): in place, or in a copy of a block.

    InPlace        the numbers, or words of two columns, that are stored
    Widened        words of two columns are taken apart       (a, b) (c, d)      ->  a b c d
    Rounded        float32 is rounded to such words           a b c d            ->  (a, b) (c, d)
    Zipped         float32 of two rows is, to words of these  a b  and  e f      ->  (a, e) (b, f)
    ZippedWords    words of two columns make words of rows    (a, b)  and (e, f) ->  (a, e) (b, f)

The words of the last one of an odd number of rows have 0 beside it.
"""

from collections.abc import Callable
from typing import Any

from pitc.codegen import pairs, tir

Column = Callable[[tir.Expr], tir.Expr]
"""Column -> number, or word, of a row."""
WORD = 2 * tir.LANES
"""Numbers of a vector of words."""


class InPlace:
    """Rows of a head that are read where they lie.

    Args:
        kernel: The arguments, as `attention.py` has them.
        rows: `[keys, heads, columns]`.
        head: Name of the argument that says which head.
    """

    def __init__(self, kernel: Any, rows: tir.Buffer, head: str) -> None:
        self.kernel, self.rows, self.head = kernel, rows, head

    def bring(self, k0: tir.Expr, keys: tir.Expr) -> None:
        """Copy a block of keys, if rows are not read in place."""

    def at(self, k0: tir.Expr, number: tir.Expr) -> Column:
        """The row of step `number` of the block that begins at key `k0`."""
        row, head = self.kernel.key(k0 + number), self.kernel.at[self.head]
        return lambda column: self.rows[row, head, column]

    def lanes_at(self, k0: tir.Expr, number: tir.Expr) -> Callable[[tir.Expr, int], tir.Expr]:
        """Up to 16 columns of the row of step `number`, by the first one."""
        row = self.kernel.key(k0 + number)
        return lambda column, lanes: self.vector(row, column, lanes)

    def vector(self, row: tir.Expr, column: tir.Expr, lanes: int) -> tir.Expr:
        """Up to 16 columns of a row."""
        return tir.keep(tir.load(self.rows, row, self.kernel.at[self.head], column, lanes=lanes))


class Copied(InPlace):
    """Rows that are copied.

    Args:
        kernel: The arguments.
        rows: `[keys, heads, columns]`.
        head: Name of the argument that says which head.
        most: Rows of a copy.
        width: Columns of one.
    """

    def __init__(self, kernel: Any, rows: tir.Buffer, head: str, most: int, width: int) -> None:
        super().__init__(kernel, rows, head)
        self.columns = int(rows.shape[2])
        self.copy = tir.workspace(most, -(-width // WORD) * WORD)

    def bring(self, k0: tir.Expr, keys: tir.Expr) -> None:
        """Copy a block of keys."""
        with tir.serial(tir.int64(0), keys) as i:
            self.bring_row(tir.bind(self.kernel.key(k0 + i)), i)

    def bring_row(self, row: tir.Expr, i: tir.Expr) -> None:
        """Copy one."""
        raise NotImplementedError

    def at(self, k0: tir.Expr, number: tir.Expr) -> Column:
        """The row of step `number`."""
        del k0
        return lambda column: self.copy[number, column]

    def lanes_at(self, k0: tir.Expr, number: tir.Expr) -> Callable[[tir.Expr, int], tir.Expr]:
        """16 columns of that row."""
        del k0
        return lambda column, _lanes: tir.load(self.copy, number, column)


class Widened(Copied):
    """Words that are taken apart: float32."""

    def bring_row(self, row: tir.Expr, i: tir.Expr) -> None:
        """Take one apart."""

        def part(word: tir.Expr, lanes: int) -> None:
            for half, numbers in enumerate(pairs.spread(self.vector(row, word, lanes))):
                tir.store(self.copy, numbers, i, word * 2 + half * tir.LANES)

        tir.chunks(self.columns, part)


class Rounded(Copied):
    """Numbers of float32 that are rounded: words of two columns."""

    def bring_row(self, row: tir.Expr, i: tir.Expr) -> None:
        """Round one."""
        word_chunks(self.columns, lambda d, n: self._part(row, i, d, n))

    def _part(self, row: tir.Expr, i: tir.Expr, d: tir.Expr, numbers: int) -> None:
        words = pairs.as_pairs(*halves(lambda at, n: self.vector(row, d + at, n), numbers))
        tir.store(self.copy, words, i, d // 2)


class Zipped(Copied):
    """Words of two rows, of each column one."""

    def bring(self, k0: tir.Expr, keys: tir.Expr) -> None:
        """Bring two and two together."""
        with tir.serial(tir.int64(0), keys // 2) as i:
            self.zip(tir.bind(k0 + i * 2), i, alone=False)
        with tir.when(keys % 2 == 1):
            self.zip(tir.bind(k0 + keys - 1), tir.bind(keys // 2), alone=True)

    def zip(self, number: tir.Expr, i: tir.Expr, *, alone: bool) -> None:
        """Make words of key `number` and the next one, or of it and 0."""
        first = tir.bind(self.kernel.key(number))
        second = first if alone else tir.bind(self.kernel.key(number + 1))

        def part(column: tir.Expr, lanes: int) -> None:
            x = self.vector(first, column, lanes)
            y = tir.splat(0) if alone else self.vector(second, column, lanes)
            self.put(x, y, i, column)

        tir.chunks(self.columns, part)

    def put(self, x: tir.Expr, y: tir.Expr, i: tir.Expr, column: tir.Expr) -> None:
        """Store the words of two vectors of float32."""
        tir.store(self.copy, pairs.lane_pairs(x, y), i, column)


class ZippedWords(Zipped):
    """The same of rows that are words of two columns."""

    def put(self, x: tir.Expr, y: tir.Expr, i: tir.Expr, column: tir.Expr) -> None:
        """Store the words of two vectors of words."""
        for half, words in enumerate(pairs.zipped(x, y)):
            tir.store(self.copy, words, i, column * 2 + half * tir.LANES)


def halves(vector: Callable[[int, int], tir.Expr], numbers: int) -> list[tir.Expr]:
    """Up to 32 numbers as two vectors, by what loads up to 16 of them from one on."""
    counts = [min(tir.LANES, numbers), numbers - tir.LANES]
    return [vector(h * tir.LANES, n) if n > 0 else tir.splat(0) for h, n in enumerate(counts)]


def word_chunks(length: int, block: Callable[[tir.Expr, int], None]) -> None:
    """Run `block(start, numbers)` for each 32 of a row of `length` numbers."""
    full, rest = divmod(length, WORD)
    if full:
        with tir.serial(0, tir.int64(full)) as i:
            block(tir.bind(i * WORD), WORD)
    if rest:
        block(tir.int64(full * WORD), rest)
