"""Attention with tensor cores: scores become the left operand of the second product as they are.

Lane 4 g + t of a warp has scores of rows g and g + 8, and of keys 2 t and 2 t + 1 of each eight. An
instruction with 16 bits an element takes k = 2 t, 2 t + 1 and those + 8 from a lane: two blocks of
eight keys, rounded and put together. One with tf32 takes k = t and t + 4 from it; but in what order
keys are added does not matter (PIT axis k), so there k = t means key 2 t, and t + 4 key 2 t + 1:

    k          0 1 2 3 4 5 6 7
    key        0 2 4 6 1 3 5 7

Columns of v are permuted too (PIT axis n): of 32 of them four side by side are column g of four
instructions, so that sums of a lane, those of columns 2 t and 2 t + 1, lie four side by side too:

    column of instructions       0     1     2     3     4     5     6     7
    columns of v               0-3 16-19   4-7 20-23  8-11 24-27 12-15 28-31
"""

from collections.abc import Sequence

from pitc.codegen import ptx, tir
from pitc.codegen.engines.attend import Columns, Pieces, Words
from pitc.codegen.engines.multiprocessor import transposed
from pitc.codegen.engines.ring import Block, Piece
from pitc.codegen.tir import Expr, T
from pitc.ir.attention_tile import AttentionTile
from pitc.ir.cuda_target import STEP_BYTES, SUMS_M, SUMS_N

_REGISTERS = 4
_FOUR = 4


class FragmentAttention:
    """Scores and sums in the fragments of warps (`attend.Attender`).

    Args:
        tile: Queries of the block, keys of a step.
        pieces: Shared memory.
        block: Who computes.
    """

    lanes: Sequence[int] = (1, 2)

    @classmethod
    def plan(cls, dtype: str, d: int, dv: int, *, bias: bool) -> tuple[AttentionTile, Pieces]:
        """The tile and the shared memory for operands of some type and width."""
        is_wide = dtype == "float32"
        tile = AttentionTile("mma", dtype, d, dv, bias)
        q = Piece(0, tile.m, tile.row_bytes(tile.width))
        k = Piece(q.end, tile.n, tile.row_bytes(tile.width))
        row_bytes = tile.row_bytes(tile.columns)
        return tile, Pieces(q, k, Piece(k.end, tile.n, row_bytes, turn=2 if is_wide else 0))

    def __init__(self, tile: AttentionTile, pieces: Pieces, block: Block) -> None:
        self.tile, self.pieces, self._window = tile, pieces, block.window
        self._is_wide = tile.dtype == "float32"
        self._lane = ptx.held(block.thread % 32, "int32")
        self.first = ptx.held(block.thread // 32 * tile.rows, "int32")
        t = self._lane % 4
        self.rows: Sequence[Expr] = [self.row(T.int32(r)) for r in range(tile.down * 2)]
        self._across, self._out = tile.n // SUMS_N, tile.columns // SUMS_N
        self.key = ptx.held(t * 2, "int32")
        self.keys: Sequence[int] = [j * SUMS_N + e for j in range(self._across) for e in range(2)]
        self.scores = ptx.registers(tile.down * self._across * _REGISTERS, "float32")
        self.sums = ptx.registers(tile.down * self._out * _REGISTERS, "float32")
        self._steps = tile.width * tile.item // STEP_BYTES
        held = self._steps if tile.holds_queries else 1
        self._q = ptx.registers(held * tile.down * _REGISTERS, "uint32")
        self._a = ptx.registers(tile.down * _REGISTERS, "uint32")
        self._b = ptx.registers(4 * 2, "uint32")

    def row(self, number: Expr) -> Expr:
        """Row of the tile that is `number` among those that this thread has, int32."""
        return self.first + number * (SUMS_M // 2) + self._lane // 4

    def score(self, row: int, key: int) -> int:
        """Where the score of the thread's `row` and `key` is."""
        return (row // 2 * self._across + key // 2) * _REGISTERS + row % 2 * 2 + key % 2

    def columns(self, row: int) -> list[Columns]:
        """Where the sums of the thread's `row` are."""
        t, found = self._lane % 4, []

        def place(j: int, e: int) -> int:
            return (row // 2 * self._out + j) * _REGISTERS + row % 2 * 2 + e

        if not self._is_wide:
            for j in range(self._out):
                found.append(Columns(j * SUMS_N + t * 2, (place(j, 0), place(j, 1))))
            return found
        for j in range(0, self._out, _FOUR):
            for e in range(2):
                places = tuple(place(j + i, e) for i in range(_FOUR))
                found.append(Columns(j * SUMS_N + e * 16 + t * _FOUR, places))
        return found

    def words(self, values: Sequence[Expr]) -> list[Words]:
        """Values of a row as they are best stored: 16 bytes by each lane.

        Of 16 bits, a lane has a word of each block of eight columns. Four lanes exchange them, so
        that each has the four words of one block in four.
        """
        if self._is_wide:
            t = self._lane % 4
            return [
                Words((i * _FOUR + t) * _FOUR, tuple(values[i * _FOUR : (i + 1) * _FOUR]))
                for i in range(self._out // 2)
            ]
        found: list[Words] = []
        pairs = zip(values[::2], values[1::2], strict=True)
        words = [ptx.packed(self.tile.dtype, low, high) for low, high in pairs]
        while words:
            count = min(_FOUR, len(words))
            found.append(self._exchanged(self._out - len(words), words[:count]))
            words = words[count:]
        return found

    def _exchanged(self, block: int, words: list[Expr]) -> Words:
        """Words of four, or two, blocks: those of lanes side by side in one block."""
        count, t = len(words), self._lane % 4
        column = (block + t % count) * SUMS_N + t // count * count * 2
        return Words(column, tuple(transposed(self._lane, words, "uint32")))

    def load_queries(self) -> None:
        """Read the queries, if registers hold them."""
        for kk in range(self._steps if self.tile.holds_queries else 0):
            self._load_step(kk, kk)

    def _load_step(self, kk: int, held: int) -> None:
        """Read 32 bytes of each query."""
        lane = self._lane
        for i in range(self.tile.down):
            first = (held * self.tile.down + i) * _REGISTERS
            at = self.pieces.q.at(self.first + i * SUMS_M + lane % 16, kk * 2 + lane // 16)
            ptx.load_matrices(self._q, first, self._window.address(at))
            for r in range(first, first + _REGISTERS if self._is_wide else first):
                ptx.round_to_tf32(self._q, r)

    def multiply_keys(self, slot: Expr) -> None:
        """Make scores of a slot, which starts at byte `slot`."""
        lane = self._lane
        for i in range(self.tile.down * self._across * _REGISTERS):
            tir.assign(self.scores, T.float32(0), i)
        for kk in range(self._steps):
            if not self.tile.holds_queries:
                self._load_step(kk, 0)
            held = (kk if self.tile.holds_queries else 0) * self.tile.down * _REGISTERS
            for j in range(0, self._across, 2):
                row = j * SUMS_N + lane // 16 * 8 + lane % 8
                at = self.pieces.k.at(row, kk * 2 + lane // 8 % 2)
                ptx.load_matrices(self._b, 0, self._window.address(slot + at))
                if self._is_wide:
                    for r in range(4):
                        ptx.round_to_tf32(self._b, r)
                for i in range(self.tile.down):
                    q = [self._q[held + i * _REGISTERS + r] for r in range(_REGISTERS)]
                    for u in range(2):
                        at_s = (i * self._across + j + u) * _REGISTERS
                        s = [self.scores[at_s + r] for r in range(_REGISTERS)]
                        k = [self._b[u * 2 + r] for r in range(2)]
                        ptx.multiply(self.tile.dtype, s, q, k)

    def multiply_values(self, slot: Expr) -> None:
        """Add what the scores, now weights, make of the values of a slot."""
        if self._is_wide:
            self._multiply_wide(slot)
        else:
            self._multiply_narrow(slot)

    def _add(self, first: int, count: int) -> None:
        """Multiply weights by `count` blocks of eight columns of v, from block `first` on."""
        for i in range(self.tile.down):
            p = [self._a[i * _REGISTERS + r] for r in range(_REGISTERS)]
            for u in range(count):
                at = (i * self._out + first + u) * _REGISTERS
                sums = [self.sums[at + r] for r in range(_REGISTERS)]
                v = [self._b[u * 2 + r] for r in range(2)]
                ptx.multiply(self.tile.dtype, sums, p, v)

    def _multiply_narrow(self, slot: Expr) -> None:
        lane = self._lane
        for kk in range(self.tile.n // 16):
            for i in range(self.tile.down):
                for r in range(_REGISTERS):  # rows g, g + 8 of the first eight keys, of the second
                    at = (i * self._across + kk * 2 + r // 2) * _REGISTERS + r % 2 * 2
                    pair = ptx.packed(self.tile.dtype, self.scores[at], self.scores[at + 1])
                    tir.assign(self._a, pair, i * _REGISTERS + r)
            for j in range(0, self._out, 2):
                at_v = self.pieces.v.at(kk * 16 + lane % 16, j + lane // 16)
                ptx.load_matrices(self._b, 0, self._window.address(slot + at_v), transposed=True)
                self._add(j, 2)

    def _multiply_wide(self, slot: Expr) -> None:
        group, t = self._lane // 4, self._lane % 4
        chunk = ptx.held(group % 2 * _FOUR + group // 2, "int32")
        view = self._window.view("uint32x4")
        for kk in range(self._across):
            for i in range(self.tile.down):
                for r in range(_REGISTERS):  # rows g, g + 8 of key 2 t, of key 2 t + 1
                    at = (i * self._across + kk) * _REGISTERS + r % 2 * 2 + r // 2
                    weight = T.reinterpret("uint32", self.scores[at])
                    tir.assign(self._a, weight, i * _REGISTERS + r)
                    ptx.round_to_tf32(self._a, i * _REGISTERS + r)
            for j in range(0, self._out, _FOUR):
                for hi in range(2):
                    at_v = self.pieces.v.at(kk * 8 + t * 2 + hi, j * 2 + chunk)
                    four = ptx.registers(1, "uint32x4")
                    tir.assign(four, view[(slot + at_v) // 16], 0)
                    for u in range(_FOUR):
                        number = T.Shuffle([four[0]], [T.int32(u)])
                        tir.assign(self._b, number, u * 2 + hi)
                        ptx.round_to_tf32(self._b, u * 2 + hi)
                self._add(j, _FOUR)
