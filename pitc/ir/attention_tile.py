"""Dense tiles of attention on a multiprocessor: queries of a thread block x keys of a step."""

from dataclasses import dataclass

from pitc.ir.cuda_target import STEP_BYTES, SUMS_M, SUMS_N
from pitc.ir.kernel import CHUNK_BYTES
from pitc.ir.variants import ITEM_BYTES

WARPS = 4
"""Of a thread block."""
TOGETHER = 2
"""Blocks that a multiprocessor has registers for, at least."""
_SUMS = 128
"""Most columns of v of which a warp's registers hold sums of twice its rows."""
_REGISTERS = 4
"""Of a thread, for one instruction's sums, or queries."""
_BIAS_REGISTERS = 16
_MOST_REGISTERS = 144
"""Of scores, sums and queries: beyond it queries are read from shared memory in each step."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Queries of a block, and keys of a step.

    Args:
        engine: What computes, `mma` or `simt`.
        dtype: Of the operands.
        d: Columns of q and k.
        dv: Columns of v.
        bias: Whether there is one: it takes registers.
    """

    engine: str
    dtype: str
    d: int
    dv: int
    bias: bool

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def width(self) -> int:
        """Columns of q and k with those that are filled up with zeros."""
        unit = 4 if self.engine == "simt" else STEP_BYTES // self.item
        return -(-self.d // unit) * unit

    @property
    def columns(self) -> int:
        """Columns of v with those that are filled up."""
        unit = 32 if self.dtype == "float32" else STEP_BYTES // self.item
        return -(-self.dv // unit) * unit

    @property
    def down(self) -> int:
        """How many times 16 queries a warp has: what it reads of K and V serves them all."""
        return 2 if self.columns <= _SUMS else 1

    @property
    def holds_queries(self) -> bool:
        """Whether registers hold queries from step to step."""
        if self.engine == "simt":
            return False
        each = self.n // SUMS_N + self.columns // SUMS_N + self.width * self.item // STEP_BYTES
        used = self.down * each * _REGISTERS + _BIAS_REGISTERS * self.bias
        return used <= _MOST_REGISTERS

    @property
    def rows(self) -> int:
        """Rows of queries of a warp."""
        return SUMS_M * self.down

    @property
    def m(self) -> int:
        """Rows of queries of the block."""
        return self.rows * WARPS

    @property
    def widest(self) -> int:
        """Bytes of a row of K or V in shared memory."""
        return self.row_bytes(max(self.width, self.columns))

    @property
    def n(self) -> int:
        """Keys of a step: few, as short sequences fill them and registers hold their scores."""
        if self.widest > 512:
            return 8
        return 16 if self.widest > 256 or self.columns > 96 else 32

    def row_bytes(self, columns: int) -> int:
        """Of a row in shared memory."""
        return max(32, 1 << (columns * self.item - 1).bit_length())

    def chunks(self, columns: int) -> int:
        """Of a row."""
        return -(-columns * self.item // CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class GradientTile:
    """The same where attention's gradients are computed, in float32: rows are of queries and steps
    of keys, or rows of keys and steps of queries.

    Args:
        d: Columns of q and k.
        dv: Columns of v and of the gradient.
    """

    d: int
    dv: int

    @property
    def columns(self) -> int:
        """Of either, the wider one, with those that are filled up."""
        return max(filled(self.d), filled(self.dv))

    @property
    def down(self) -> int:
        """Rows of a thread are taken together."""
        return 1

    @property
    def height(self) -> int:
        """Rows of a thread: two operands of as many rows lie in shared memory."""
        return 4 if self.columns <= _SUMS else 2

    @property
    def rows(self) -> int:
        """Rows of a warp: four threads have them, one below the other."""
        return 4 * self.height

    @property
    def m(self) -> int:
        """Rows of the block."""
        return self.rows * WARPS

    @property
    def n(self) -> int:
        """Rows of a step."""
        return 32 if self.columns <= _SUMS // 2 else 8 * (self.height // 2)


def filled(columns: int) -> int:
    """Columns of float32 numbers, filled up to what lanes of a row have."""
    return -(-columns // 32) * 32
