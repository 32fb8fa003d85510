"""Few rows in gather_gemm: B is read from memory once, in the order in which it lies.

Rows that all fit into one register tile (`CpuLevel.lone_tiles`) take all of k at a time. Whole rows
of a panel are read in order, which the processor foresees: asking for all lines made it slower. For
one or two rows, which are done soon, a line of each page ahead is asked for. Parts of rows are
asked for.

    AVX-512:   1..6 rows   ->   tiles of 1, 2, 4, 6 rows x 64 columns    7..14   ->   8..14 x 32

With half as many registers of half the length a tile of two rows reads parts of rows. There one row
leads (`CpuLevel.led_k`): it multiplies a short stretch of whole rows of a panel, from memory. Tiles
of the other rows follow, while the stretch is in the first-level cache, and ask for the next one.

    AVX2:      1 row   ->   1 x 64         2..6   ->   stretch by stretch 1 x 64, then the others
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pitc.codegen import tir
from pitc.codegen.families.gather_gemm_tile import PAIR, QUAD, Columns, RegisterTile, Stretch
from pitc.codegen.families.right import Turned
from pitc.ir.panels import PANEL_WIDTH

LONE_K = 128
"""How far ahead a lone row tile asks for B: 32 KiB, the best of 8 to 64 KiB (Zen 4)."""
MOST_LED = 6
"""Rows that a leading row helps: more take longer than their matrix from memory."""


def lone_tile(kernel: Any, first: tir.Expr, count: tir.Expr) -> None:
    """The lowest row tile that holds all rows of a block; tiles of one width share the code that
    stores their sums.

    Args:
        kernel: The kernel that is emitted.
        first: The first row of the block, in the list.
        count: How many there are, at most as the highest lone tile has.
    """
    right = kernel.right[1]
    assert not isinstance(right, Turned)
    zero, lower = tir.int64(0), 0
    for columns, same in groupby(kernel.lone_tiles, key=lambda tile: tile[1]):
        heights = [rows for rows, _ in same]
        fits = tir.both(count > lower, count <= heights[-1])
        with tir.when(fits), tir.serial(kernel.j0, kernel.j1) as j:
            ahead, share = tir.int64(LONE_K), tir.int64(PANEL_WIDTH)
            whole = tir.int64(kernel.k)
            stretch = Stretch(right, j, zero, zero, whole, ahead, share, lone=True)
            for group in kernel.column_groups(stretch, columns):
                _lowest(kernel, stretch, group, (first, count), heights)
                kernel.write(first, count, j, group, kernel.epilogue)
        lower = heights[-1]


def _lowest(
    kernel: Any,
    stretch: Stretch,
    columns: Columns,
    block: tuple[tir.Expr, tir.Expr],
    heights: Sequence[int],
) -> None:
    """The sums of the lowest of some tiles that holds all rows."""
    first, count = block

    def add(rows: int) -> None:
        tile = RegisterTile(kernel, stretch, columns, first, rows)
        tile.add_all()
        tile.finish()

    lowest, *others = heights
    if others:
        tir.either(
            count <= lowest,
            lambda: add(lowest),
            lambda: _lowest(kernel, stretch, columns, block, others),
        )
    else:
        add(lowest)


def led_rows(kernel: Any, first: tir.Expr, count: tir.Expr) -> None:
    """A leading row, two or four of the others, and one that is left.

    2 rows   ->   1 1      3   ->   1 2      4   ->   1 2 1      5   ->   1 4      6   ->   1 4 1

    Tiles take whole groups of columns: behind the last one a panel is padded, and nothing is
    stored.

    Args:
        kernel: The kernel that is emitted.
        first: The first row of the block, in the list.
        count: How many there are, 2 to `MOST_LED`.
    """
    right, level, zero, one = kernel.right[1], kernel.target, tir.int64(0), tir.int64(1)
    assert not isinstance(right, Turned)
    pairs = tir.hold((count - 1) // PAIR)
    pair = tir.hold(tir.select(pairs == 1, one, zero))
    quad = tir.hold(tir.select(pairs == QUAD // PAIR, one, zero))
    tiles = [  # rows, columns, place of the first row, whether there is one
        (1, PANEL_WIDTH, zero, one),
        (PAIR, level.pair_columns, one, pair),
        (QUAD, level.quad_columns, one, quad),
        (1, PANEL_WIDTH, tir.hold(count - 1), tir.hold((count + 1) % 2)),
    ]
    longest, share = tir.int64(level.led_k), tir.int64(PANEL_WIDTH)
    with tir.serial(kernel.j0, kernel.j1) as j:
        width = tir.bind(tir.smaller(PANEL_WIDTH, kernel.n - j * PANEL_WIDTH))
        with tir.serial(0, -(-kernel.k // level.led_k)) as s:
            start = tir.hold(s * longest)
            length = tir.hold(tir.smaller(longest, kernel.k - start))
            stretch = Stretch(right, j, zero, start, length, longest, share, led=True)
            for i, (rows, columns, place, there) in enumerate(tiles):
                groups = tir.bind((width + columns - 1) // columns)
                with tir.serial(0, there), tir.serial(0, groups) as g:
                    group = Columns(tir.hold(g * columns), columns // tir.LANES, tir.LANES)
                    tile = RegisterTile(kernel, stretch, group, tir.bind(first + place), rows)
                    tile.add_part(place, asks=i > 0)
        for group in kernel.column_groups(stretch, PANEL_WIDTH):
            kernel.write(first, count, j, group, kernel.epilogue, PANEL_WIDTH)
