"""What the time of a contraction depends on, as values: sizes, and counts of live micro-tiles."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """One contraction, as far as its time depends on it: what a trace line tells.

    Args:
        rows: Rows of A.
        k: Its columns.
        panels: Panels of B.
        row_block: Rows that share a pass over B on the sparse paths.
        k_blocks: Blocks of k of the row lists.
        scanned: The detector has still to read A.
        counts: Live micro-tiles: `elements`, and those of every variant but `dense` and `row`;
            columns with a live element, and pieces of 16, 32 and 64 columns; stretches of such
            columns (`runs`) and pieces (`runs16`).
    """

    rows: int
    k: int
    panels: int
    row_block: int
    k_blocks: int
    scanned: bool
    counts: Mapping[str, int]
