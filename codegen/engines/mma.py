"""The tensor-core engine: a dense tile of sums in the fragments of warps.

    sums[m, n] += a[m, k] b[k, n]       float16, bfloat16 and tf32; sums in float32

A block's tile is cut into one piece for each warp. An instruction multiplies 16 x 32 bytes of a by
32 bytes x 8 of b. Which lane holds what is said in the PTX manual (mma.m16n8k16, mma.m16n8k8): lane
4 g + t has rows g and g + 8 of the sums, columns 2 t and 2 t + 1. A family says addresses: what is
copied into shared memory (`ring`), and where sums go.

Two sums of 16 bits are half of what memory stores at once. Four lanes of a row exchange those of
four instructions, so that each has all of one. In shared memory nothing is exchanged, but lanes of
four rows start with another instruction each: whatever rows these are, no two meet in a bank.

    columns of lane 4 g + t, four instructions     to memory       to shared memory
    g = 0                   2 t + 0, 8, 16, 24     8 t .. 8 t + 7  2 t + 0, 8, 16, 24
    g = 1                   2 t + 0, 8, 16, 24     8 t .. 8 t + 7  2 t + 8, 0, 24, 16
"""

from collections.abc import Callable

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines.multiprocessor import Load, Run, transposed
from pitc.codegen.engines.ring import Block, Piece
from pitc.codegen.tir import Expr, T
from pitc.ir.cuda_target import STEP_BYTES, SUMS_M, SUMS_N, CudaTile
from pitc.ir.panels import PANEL_WIDTH

_REGISTERS = 4
_FOUR = 4
"""Instructions side by side whose sums change lanes or places."""
_WORD = 32


class Fragments:
    """Sums of one block, and the steps that add to them (`multiprocessor.Engine`).

    Args:
        tile: The dense tile; a warp's columns are a multiple of 32.
        dtype: Of the operands.
        block: Who computes.
    """

    def __init__(self, tile: CudaTile, dtype: str, block: Block) -> None:
        self._tile, self._dtype, self._window = tile, dtype, block.window
        self._item = tir.item_bytes(dtype)
        self._is_wide = dtype == "float32"
        self.step_k = tile.k_bytes // self._item
        m, n = tile.m // tile.warps_m, tile.n // tile.warps_n
        self._down, self._across = m // SUMS_M, n // SUMS_N
        self.words = -(-n // _WORD)
        warp = block.thread // 32
        self._lane = ptx.held(block.thread % 32, "int32")
        self._row = ptx.held(warp // tile.warps_n * SUMS_M, "int32")
        self.column = ptx.held(warp % tile.warps_n * n, "int32")
        self.leads = self._lane % 4 == 0
        self._sums = ptx.registers(self._down * self._across * _REGISTERS, "float32")
        parts = tile.k_bytes // STEP_BYTES
        self._a = ptx.registers(max(self._down, parts) * _REGISTERS, "uint32")
        self._b = ptx.registers(self._across * 2 * parts, "uint32")

    def clear(self) -> None:
        """Start at 0."""
        for i in range(self._down * self._across * _REGISTERS):
            tir.assign(self._sums, T.float32(0), i)

    def step(self, slot: Expr, load_a: Load, load_b: Load) -> None:
        """Add the products of a slot, which starts at byte `slot`."""
        for kk in range(self._tile.k_bytes // STEP_BYTES):
            for i in range(self._down):
                load_a(slot, self._row_of(i), kk, i * _REGISTERS)
            for j in range(0, self._across, 2):
                load_b(slot, self.column + j * SUMS_N, kk, j * 2)
            self._round(self._a, self._down * _REGISTERS)
            self._round(self._b, self._across * 2)
            for i in range(self._down):
                self._multiply(i, i * _REGISTERS, 0)

    def product(
        self,
        slot: Expr,
        load_a: Load,
        load_b: Load,
        there: Callable[[Expr], Expr],
        visit: Callable[[Expr, list[Run]], None],
    ) -> None:
        """Visit the products of a slot alone (`multiprocessor.Engine`)."""
        parts, b = self._tile.k_bytes // STEP_BYTES, self._across * 2
        for kk in range(parts):
            for j in range(0, self._across, 2):
                load_b(slot, self.column + j * SUMS_N, kk, kk * b + j * 2)
        self._round(self._b, parts * b)
        for i in range(self._down):
            row = self._row_of(i)
            with tir.when(there(row)):
                for r in range(self._across * _REGISTERS):
                    tir.assign(self._sums, T.float32(0), i * self._across * _REGISTERS + r)
                for kk in range(parts):
                    load_a(slot, row, kk, kk * _REGISTERS)
                self._round(self._a, parts * _REGISTERS)
                for kk in range(parts):
                    self._multiply(i, kk * _REGISTERS, kk * b)
                self._visit(i, self._turned, visit)

    def _row_of(self, i: int) -> Expr:
        """The first row of the warp's `i`-th 16: warps take them in turns."""
        return self._row + i * (SUMS_M * self._tile.warps_m)

    def _round(self, operand: tir.Buffer, count: int) -> None:
        """Round the first registers of an operand to what tensor cores read."""
        if self._is_wide:
            for r in range(count):
                ptx.round_to_tf32(operand, r)

    def _multiply(self, i: int, first_a: int, first_b: int) -> None:
        """Add the products of 16 rows, of operands in the registers from the first ones on."""
        for j in range(self._across):
            at = (i * self._across + j) * _REGISTERS
            sums = [self._sums[at + r] for r in range(_REGISTERS)]
            a = [self._a[first_a + r] for r in range(_REGISTERS)]
            b = [self._b[first_b + j * 2 + r] for r in range(2)]
            ptx.multiply(self._dtype, sums, a, b)

    def rows(self, visit: Callable[[Expr, list[Run]], None]) -> None:
        """Visit this thread's rows: place in the tile, and its sums there."""
        for i in range(self._down):
            self._visit(i, self._exchanged if self._item == 2 else self._own, visit)

    def _visit(
        self,
        i: int,
        runs: Callable[[list[list[Expr]]], list[Run]],
        visit: Callable[[Expr, list[Run]], None],
    ) -> None:
        """Visit this thread's rows of the warp's `i`-th 16."""
        for half in range(2):
            first = [(i * self._across + j) * _REGISTERS + half * 2 for j in range(self._across)]
            sums = [[self._sums[at], self._sums[at + 1]] for at in first]
            row = ptx.held(self._row_of(i) + half * 8 + self._lane // 4, "int32")
            visit(row, runs(sums))

    def _run(self, j: int, column: Expr, sums: list[Expr]) -> Run:
        """Sums that begin at a column from the `j`-th instruction on."""
        word = j * SUMS_N // _WORD
        inside = j * SUMS_N + column
        return Run(self.column + inside, tuple(sums), word, inside - word * _WORD)

    def _own(self, sums: list[list[Expr]]) -> list[Run]:
        """The thread's sums of a row, of each instruction two, as they are."""
        return [self._run(j, self._lane % 4 * 2, pair) for j, pair in enumerate(sums)]

    def _exchanged(self, sums: list[list[Expr]]) -> list[Run]:
        """All eight sums of one instruction in four."""
        runs = []
        for j in range(0, self._across, _FOUR):
            halves = [[pair[e] for pair in sums[j : j + _FOUR]] for e in range(2)]
            low, high = (transposed(self._lane, half, "float32") for half in halves)
            eight = [x for pair in zip(low, high, strict=True) for x in pair]
            runs.append(self._run(j, self._lane % 4 * SUMS_N, eight))
        return runs

    def _turned(self, sums: list[list[Expr]]) -> list[Run]:
        """The thread's sums, of instruction j xor g for the j-th."""
        g = ptx.held(self._lane // 4 % _FOUR, "int32")
        for bit in (1, 2):
            swaps = ptx.held(T.Cast("int32", (g & bit) != 0), "int32")
            for j in (j for j in range(self._across) if not j & bit):
                pair = sums[j], sums[j + bit]
                for to, (own, other) in ((j, pair), (j + bit, pair[::-1])):
                    sums[to] = [
                        ptx.held(T.Select(swaps != 0, y, x), "float32")
                        for x, y in zip(own, other, strict=True)
                    ]
        return [
            self._run(j // _FOUR * _FOUR, (g ^ j % _FOUR) * SUMS_N + self._lane % 4 * 2, pair)
            for j, pair in enumerate(sums)
        ]

    def joined(self, word: Expr) -> Expr:
        """The bits of all four lanes that share a row."""
        for lanes in (1, 2):
            word = ptx.held(word | collective.exchanged(word, lanes, "uint32"), "uint32")
        return word

    def rows_of_a(self) -> tuple[Piece, Load]:
        """A piece with a row of a in each row."""
        piece = Piece(0, self._tile.m, self._tile.k_bytes)

        def load(slot: Expr, row: Expr, kk: int, first: int) -> None:
            at = piece.at(row + self._lane % 16, kk * 2 + self._lane // 16)
            ptx.load_matrices(self._a, first, self._window.address(slot + at))

        return piece, load

    def columns_of_a(self) -> tuple[Piece, Load]:
        """A piece with a k of a in each row."""
        if self._is_wide:
            piece, word = self._words(0, self.step_k, self._tile.m)

            def load_words(slot: Expr, row: Expr, kk: int, first: int) -> None:
                for r in range(_REGISTERS):
                    k = kk * 8 + self._lane % 4 + r // 2 * 4
                    value = word(slot, k, row + self._lane // 4 + r % 2 * 8)
                    tir.assign(self._a, value, first + r)

            return piece, load_words
        piece = Piece(0, self.step_k, self._tile.m * self._item)

        def load(slot: Expr, row: Expr, kk: int, first: int) -> None:
            k = kk * 16 + self._lane // 16 * 8 + self._lane % 8
            at = piece.at(k, row // 8 + self._lane // 8 % 2)
            ptx.load_matrices(self._a, first, self._window.address(slot + at), transposed=True)

        return piece, load

    def rows_of_b(self) -> tuple[Piece, Load]:
        """A piece with a k of a panel of b in each row, one panel below the other."""
        rows = self._tile.n // PANEL_WIDTH * self.step_k
        before = self._tile.m * self._tile.k_bytes
        if self._is_wide:
            piece, word = self._words(before, rows, PANEL_WIDTH)

            def load_words(slot: Expr, column: Expr, kk: int, first: int) -> None:
                for j in range(2):
                    for r in range(2):
                        k = kk * 8 + self._lane % 4 + r * 4
                        row = column // PANEL_WIDTH * self.step_k + k
                        at = column % PANEL_WIDTH + j * SUMS_N + self._lane // 4
                        tir.assign(self._b, word(slot, row, at), first + j * 2 + r)

            return piece, load_words
        piece = Piece(before, rows, PANEL_WIDTH * self._item)

        def load(slot: Expr, column: Expr, kk: int, first: int) -> None:
            row = column // PANEL_WIDTH * self.step_k + kk * 16 + self._lane % 16
            at = piece.at(row, column % PANEL_WIDTH // 8 + self._lane // 16)
            ptx.load_matrices(self._b, first, self._window.address(slot + at), transposed=True)

        return piece, load

    def columns_of_b(self) -> tuple[Piece, Load]:
        """A piece with a column of b in each row."""
        piece = Piece(self._tile.m * self._tile.k_bytes, self._tile.n, self._tile.k_bytes)

        def load(slot: Expr, column: Expr, kk: int, first: int) -> None:
            row = column + self._lane // 16 * 8 + self._lane % 8
            at = piece.at(row, kk * 2 + self._lane // 8 % 2)
            ptx.load_matrices(self._b, first, self._window.address(slot + at))

        return piece, load

    def _words(
        self, offset: int, rows: int, width: int
    ) -> tuple[Piece, Callable[[Expr, Expr, Expr], Expr]]:
        """A piece of words, four rows of which are read at once; (slot, row, column) -> word."""
        piece = Piece(offset, rows, width * self._item, turn=1, stride=2)
        view = self._window.view("uint32")

        def word(slot: Expr, row: Expr, column: Expr) -> Expr:
            return view[(slot + piece.at(row, column // 4)) // 4 + column % 4]

        return piece, word
