"""CPU levels as data: what code may use on each, and the register tiles that measured fastest."""

from dataclasses import dataclass

from pitc.errors import UsageError

LINE_BYTES = 64
"""One cache line: no micro-tile is smaller than this along memory."""


@dataclass(frozen=True, slots=True)
class Target:
    """One CPU level that kernels are built for.

    A *lane group* is 16 floats: one AVX-512 register, or two AVX2 registers.

    Args:
        level: Suffix of the kernel symbols (`docs/plans.md`).
        mcpu: LLVM's name of the level.
        vector_lanes: Floats per hardware register.
        vector_registers: Hardware vector registers.
        gemm_tile: Register tile of a dense contraction, rows x columns.
        listed_tile: Register tile of a contraction over listed micro-tiles, rows x columns; the
            rows divide a group of rows, the columns a panel.
        row_columns: Columns that a contraction over listed elements of one row computes at once, a
            multiple of a panel.
        attention_lanes: Queries per register tile, widest first; each must divide the one before.
        attention_rows: Keys (scores) or value columns (output) per register tile, for each entry
            of `attention_lanes`; each must divide the key block.
    """

    level: str
    mcpu: str
    vector_lanes: int
    vector_registers: int
    gemm_tile: tuple[int, int]
    listed_tile: tuple[int, int]
    row_columns: int
    attention_lanes: tuple[int, ...]
    attention_rows: tuple[int, ...]


TARGETS = (
    Target("v4", "x86-64-v4", 16, 32, (6, 64), (4, 64), 128, (32, 16), (8, 12)),
    Target("v3", "x86-64-v3", 8, 16, (6, 16), (4, 16), 64, (16,), (6,)),
)


def target_of(level: str) -> Target:
    """The target of a CPU level.

    Raises:
        UsageError: No such level.
    """
    for target in TARGETS:
        if target.level == level:
            return target
    known = ", ".join(t.level for t in TARGETS)
    raise UsageError(f"unknown CPU level {level!r}", hint=f"known levels: {known}")
