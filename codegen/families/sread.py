"""SRead of contractions on a multiprocessor: where the chunks of a dense tile's operands lie.

a     Rows            listed rows of A [m, k]               PIT axis m
      SquareRows      of these listed blocks of k           PIT axis k
      Columns         values [z, rows] of listed k          PIT axis k
b     PanelRows       all k of panels of a stored weight
      ListedRows      listed k of them                      PIT axis k
      SquarePanels    listed blocks of k of them            PIT axis k
      StoredRows      all k of a matrix [k, n] that was computed when the model runs
      (Rows           of a matrix [n, k])
q k v HeadRows        rows of a head, side by side        PIT axes query, key
k v   SeenRows        listed steps of these               PIT axis key
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from pitc.codegen import ptx, tir
from pitc.codegen.engines.ring import Chunk, Place
from pitc.codegen.ptx import CHUNK_BYTES
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.variants import SQUARE


def _int64(value: Expr) -> Expr:
    return T.Cast("int64", value)


class _All:
    """A source without lists along k."""

    def look_up(self, step: Expr) -> None:
        """Nothing to do."""


class Rows(_All):
    """Listed rows of a matrix.

    Args:
        matrix: `[rows, k]` as a vector.
        k: Its columns, int32.
        step_k: Of a step.
        first: Row of the list -> where it starts, int64; the last row stands for those behind it.
    """

    def __init__(self, matrix: Buffer, k: Expr, step_k: int, first: Callable[[Expr], Expr]) -> None:
        self._matrix, self._k, self._step_k, self._first = matrix, k, step_k, first

    def start(self, copies: int, place: Place) -> None:
        """Look the rows up."""
        per_chunk = CHUNK_BYTES // tir.item_bytes(self._matrix.dtype)
        self._starts = ptx.registers(copies, "int64")
        self._column = ptx.held(place(0)[1] * per_chunk, "int32")  # in all copies the same
        for i in range(copies):
            tir.assign(self._starts, self._first(place(i)[0]), i)

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        k = step * self._step_k + self._column
        return Chunk(self._matrix, self._starts[i] + _int64(k), self._k - k)


class Squares:
    """A list of blocks of k, `SQUARE` wide, which a step goes through in order.

    Args:
        blocks: The lists, int32.
        first: The first entry, int32.
        count: Entries of the list, int32.
        step_k: Of a step; with `SQUARE`, one divides the other.
    """

    def __init__(self, blocks: Buffer, first: Expr, count: Expr, step_k: int) -> None:
        self._blocks, self._first, self._count, self._step_k = blocks, first, count, step_k

    @property
    def steps(self) -> Expr:
        """How many steps the list takes, int32."""
        return ptx.steps(self._count * SQUARE, self._step_k)

    def k(self, step: Expr, inside: Expr) -> Expr:
        """The k that stands at a place of a step, int32: the entry is read now."""
        at = step * self._step_k + inside
        last = T.min(at // SQUARE, self._count - 1)
        return self._blocks[self._first + last] * SQUARE + at % SQUARE

    def here(self, step: Expr, inside: Expr) -> Expr:
        """Whether there is an entry for a place of a step."""
        return step * self._step_k + inside < self._count * SQUARE


class SquareRows(Rows):
    """Listed blocks of k of listed rows of a matrix.

    Args:
        matrix: `[rows, k]` as a vector.
        k: Its columns, int32.
        step_k: Of a step.
        first: Row of the list -> where it starts, int64.
        squares: The blocks.
    """

    def __init__(
        self,
        matrix: Buffer,
        k: Expr,
        step_k: int,
        first: Callable[[Expr], Expr],
        squares: Squares,
    ) -> None:
        super().__init__(matrix, k, step_k, first)
        self._squares = squares

    def start(self, copies: int, place: Place) -> None:
        """Look the rows up."""
        super().start(copies, place)
        self._found = ptx.registers(1, "int32")

    def look_up(self, step: Expr) -> None:
        """Read the k of this thread's chunks from the list."""
        tir.assign(self._found, self._squares.k(step, self._column), 0)

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        k = self._found[0]
        valid = T.Select(self._squares.here(step, self._column), self._k - k, T.int32(0))
        return Chunk(self._matrix, self._starts[i] + _int64(k), valid)


class Columns(_All):
    """Packed values: a row has those of all rows of a group at one listed k.

    Args:
        values: `[entries, rows]` as a vector.
        rows: Of the group.
        step_k: Entries of a step.
        first: The first entry of the list, int32.
        count: Entries of the list, int32.
    """

    def __init__(self, values: Buffer, rows: int, step_k: int, first: Expr, count: Expr) -> None:
        self._values, self._rows, self._step_k = values, rows, step_k
        self._first, self._count = first, count

    def start(self, copies: int, place: Place) -> None:
        """Begin a dense tile."""
        self._place = place

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        row, chunk = self._place(i)
        z = step * self._step_k + row
        per_chunk = CHUNK_BYTES // tir.item_bytes(self._values.dtype)
        element = _int64(self._first + z) * self._rows + _int64(chunk * per_chunk)
        valid = T.Select(z < self._count, T.int32(per_chunk), T.int32(0))
        return Chunk(self._values, element, valid)


class PanelRows(_All):
    """Rows of panels that lie side by side in a dense tile, one below the other in a piece.

    Args:
        b: `[panels, k, PANEL_WIDTH]` as a vector.
        panels: How many there are, int32.
        k: Rows of each, int32.
        step_k: Of a step.
        j: The first panel, int32.
    """

    def __init__(self, b: Buffer, panels: Expr, k: Expr, step_k: int, j: Expr) -> None:
        self._b, self._panels, self._k, self._step_k, self._j = b, panels, k, step_k, j
        self._per_chunk = CHUNK_BYTES // tir.item_bytes(b.dtype)

    def start(self, copies: int, place: Place) -> None:
        """Find the rows of the first step."""
        self._place = place
        self._starts = ptx.registers(copies, "int64")
        for i in range(copies):
            row, chunk = place(i)
            panel = _int64(self._j + row // self._step_k)
            at = panel * _int64(self._k) + _int64(self._row(row))
            tir.assign(self._starts, at * PANEL_WIDTH + _int64(chunk * self._per_chunk), i)

    def _row(self, row: Expr) -> Expr:
        """Row of a panel in the first step."""
        return row % self._step_k

    def _valid(self, row: Expr, here: Expr) -> Expr:
        there = tir.both(here, self._j + row // self._step_k < self._panels)
        return T.Select(there, T.int32(self._per_chunk), T.int32(0))

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        row, _ = self._place(i)
        first = step * self._step_k
        here = first + row % self._step_k < self._k
        element = self._starts[i] + _int64(first) * PANEL_WIDTH
        return Chunk(self._b, element, self._valid(row, here))


class _PanelsByList(PanelRows, ABC):
    """Rows of panels that a list names."""

    @abstractmethod
    def _listed(self, step: Expr, row: Expr) -> Expr:
        """The k of a row of a step, int32."""

    @abstractmethod
    def _here(self, step: Expr, row: Expr, k: Expr) -> Expr:
        """Whether there is that row."""

    def _row(self, row: Expr) -> Expr:
        return T.int32(0)

    def start(self, copies: int, place: Place) -> None:
        """Find the panels."""
        super().start(copies, place)
        self._copies, self._found = copies, ptx.registers(copies, "int32")

    def look_up(self, step: Expr) -> None:
        """Read the rows of a step from the list."""
        for i in range(self._copies):
            tir.assign(self._found, self._listed(step, self._place(i)[0] % self._step_k), i)

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        row, _ = self._place(i)
        here = self._here(step, row % self._step_k, self._found[i])
        element = self._starts[i] + _int64(self._found[i]) * PANEL_WIDTH
        return Chunk(self._b, element, self._valid(row, here))


class ListedRows(_PanelsByList):
    """Listed rows of panels.

    Args:
        b: `[panels, k, PANEL_WIDTH]` as a vector.
        panels: How many there are, int32.
        k: Rows of each, int32.
        step_k: Entries of a step.
        j: The first panel, int32.
        ks: The lists, int32.
        first: The first entry, int32.
        count: Entries of the list, int32.
    """

    def __init__(
        self,
        b: Buffer,
        panels: Expr,
        k: Expr,
        step_k: int,
        j: Expr,
        ks: Buffer,
        first: Expr,
        count: Expr,
    ) -> None:
        super().__init__(b, panels, k, step_k, j)
        self._ks, self._first, self._count = ks, first, count

    def _listed(self, step: Expr, row: Expr) -> Expr:
        return self._ks[self._first + T.min(step * self._step_k + row, self._count - 1)]

    def _here(self, step: Expr, row: Expr, k: Expr) -> Expr:
        return step * self._step_k + row < self._count


class SquarePanels(_PanelsByList):
    """Rows of panels at listed blocks of k.

    Args:
        b: `[panels, k, PANEL_WIDTH]` as a vector.
        panels: How many there are, int32.
        k: Rows of each, int32.
        step_k: Of a step.
        j: The first panel, int32.
        squares: The blocks.
    """

    def __init__(
        self, b: Buffer, panels: Expr, k: Expr, step_k: int, j: Expr, squares: Squares
    ) -> None:
        super().__init__(b, panels, k, step_k, j)
        self._squares = squares

    def _listed(self, step: Expr, row: Expr) -> Expr:
        return self._squares.k(step, row)

    def _here(self, step: Expr, row: Expr, k: Expr) -> Expr:
        return tir.both(self._squares.here(step, row), k < self._k)


class StoredRows(_All):
    """Rows of a matrix [k, n], cut into panels in a piece.

    Args:
        matrix: `[k, n]` as a vector.
        n: Its columns, int32.
        k: Its rows, int32.
        step_k: Of a step.
        j: The first panel, int32.
    """

    def __init__(self, matrix: Buffer, n: Expr, k: Expr, step_k: int, j: Expr) -> None:
        self._matrix, self._n, self._k, self._step_k, self._j = matrix, n, k, step_k, j

    def start(self, copies: int, place: Place) -> None:
        """Find the columns."""
        self._place = place
        per_chunk = CHUNK_BYTES // tir.item_bytes(self._matrix.dtype)
        self._columns = ptx.registers(copies, "int32")
        for i in range(copies):
            row, chunk = place(i)
            column = (self._j + row // self._step_k) * PANEL_WIDTH + chunk * per_chunk
            tir.assign(self._columns, column, i)

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        k = step * self._step_k + self._place(i)[0] % self._step_k
        element = _int64(k) * _int64(self._n) + _int64(self._columns[i])
        valid = T.Select(k < self._k, self._n - self._columns[i], T.int32(0))
        return Chunk(self._matrix, element, valid)


class HeadRows(_All):
    """Rows of one head in a tensor [rows, heads, columns], from one row on.

    Args:
        tensor: As a vector.
        heads: How many it has, int64; a row has less than 2^31 elements.
        columns: Of a head.
        step_rows: Rows of a step.
        head: Number of the head, int32.
        first: The first row, int32.
        count: How many there are, int32.
    """

    def __init__(
        self,
        tensor: Buffer,
        heads: Expr,
        columns: int,
        step_rows: int,
        head: Expr,
        first: Expr,
        count: Expr,
    ) -> None:
        self._tensor, self._columns, self._step_rows = tensor, columns, step_rows
        self._row = ptx.held(ptx.int32(heads * columns), "int32")
        start = _int64(first) * _int64(self._row) + _int64(head) * columns
        self._start = ptx.held(start, "int64")
        self._count = count

    def start(self, copies: int, place: Place) -> None:
        """Begin a dense tile."""
        self._place = place

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        row, chunk = self._place(i)
        column = chunk * (CHUNK_BYTES // tir.item_bytes(self._tensor.dtype))
        at = step * self._step_rows + row
        element = self._start + _int64(at) * _int64(self._row) + _int64(column)
        valid = T.Select(at < self._count, self._columns - column, T.int32(0))
        return Chunk(self._tensor, element, valid)


class SeenRows(HeadRows):
    """The same in listed steps.

    Args:
        tensor: As a vector.
        heads: How many it has, int64.
        columns: Of a head.
        step_rows: Rows of a step.
        head: Number of the head, int32.
        first: The first row, int32.
        count: How many there are, int32.
        step_of: Which step an entry of the list names, int32.
    """

    def __init__(
        self,
        tensor: Buffer,
        heads: Expr,
        columns: int,
        step_rows: int,
        head: Expr,
        first: Expr,
        count: Expr,
        step_of: Callable[[Expr], Expr],
    ) -> None:
        super().__init__(tensor, heads, columns, step_rows, head, first, count)
        self._step_of = step_of

    def start(self, copies: int, place: Place) -> None:
        """Begin a dense tile."""
        super().start(copies, place)
        self._found = ptx.registers(1, "int32")

    def look_up(self, step: Expr) -> None:
        """Read which step an entry names."""
        tir.assign(self._found, self._step_of(step), 0)

    def chunk(self, i: int, step: Expr) -> Chunk:
        """The `i`-th chunk of this thread."""
        return super().chunk(i, self._found[0])
