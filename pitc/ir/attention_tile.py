"""Dense tiles of attention on a multiprocessor: queries of a thread block x keys of a step."""

from dataclasses import dataclass

from pitc.ir.kernel import CHUNK_BYTES
from pitc.ir.variants import ITEM_BYTES

WARPS = 4
"""Of a thread block."""
_SUMS = 128
"""Most columns of v of which a warp's registers hold sums of twice its rows."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Queries of a block, and keys of a step.

    Args:
        dtype: Of the operands.
        d: Columns of q and k.
        dv: Columns of v.
        bias: Whether there is one: it takes registers.
        unit_m: Rows of queries that a warp takes at a time.
        unit_k: k is filled up to a multiple of it with zeros.
        unit_n: So are columns of v.
        most_together: Blocks of narrow rows that a multiprocessor has registers for.
    """

    dtype: str
    d: int
    dv: int
    bias: bool
    unit_m: int
    unit_k: int
    unit_n: int
    most_together: int

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def width(self) -> int:
        """Columns of q and k with those that are filled up."""
        return -(-self.d // self.unit_k) * self.unit_k

    @property
    def columns(self) -> int:
        """Columns of v with those that are filled up."""
        return -(-self.dv // self.unit_n) * self.unit_n

    @property
    def down(self) -> int:
        """How many times `unit_m` a warp has: what it reads of K and V serves them all."""
        return 2 if self.columns <= _SUMS else 1

    @property
    def rows(self) -> int:
        """Rows of queries of a warp."""
        return self.unit_m * self.down

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
        """Keys of a step: few, as short sequences fill them and many blocks have room."""
        crowded = self.bias and self.columns > 96
        return 16 if self.widest > 256 or (self.widest > 128 and crowded) else 32

    @property
    def together(self) -> int:
        """Blocks that a multiprocessor has registers for, at least."""
        return self.most_together if self.widest <= 128 and not self.bias else 2

    def row_bytes(self, columns: int) -> int:
        """Of a row in shared memory."""
        return max(32, 1 << (columns * self.item - 1).bit_length())

    def chunks(self, columns: int) -> int:
        """Of a row."""
        return -(-columns * self.item // CHUNK_BYTES)


def attention_tile(engine: str, dtype: str, d: int, dv: int, *, bias: bool) -> AttentionTile:
    """The tile of an engine, `mma` or `simt`.

    Args:
        engine: What computes.
        dtype: Of the operands.
        d: Columns of q and k.
        dv: Columns of v.
        bias: Whether there is one.
    """
    if engine == "simt":
        return AttentionTile(dtype, d, dv, bias, 16, 4, 32, 2)
    unit = 32 // ITEM_BYTES[dtype]  # k of an instruction
    return AttentionTile(dtype, d, dv, bias, 16, unit, 32 if dtype == "float32" else unit, 3)
