"""The one table of variants: how the sparse operand of a contraction is cut into micro-tiles.

    y[m, n] = sum over k of A[m, k] * B[k, n], pieces of A that hold zeros only left out

A kernel gathers pieces along a PIT axis of A into a dense tile: single k for a group of rows, or
single rows for a block of k. The micro-tile follows (`Variant.micro_tile`). Everything that goes
through variants reads this table: prices, tuning, the compiler, the kernels, the docs, and the
runtime through a header (`pitc/ir/machine_header.py`). A new line is a new variant; of CPUs
`pitc tune` measures its prices, of GPUs `pitc/ir/cuda_variants.py` says which tiles it has.
"""

from dataclasses import dataclass

LINE_BYTES = {"cpu": 64, "cuda": 32}
"""What memory fetches at once, a line or a sector: no micro-tile is shorter along memory."""
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int8": 1}
TILE_ROWS, PAIR_ROWS, LISTED_ROWS = 6, 2, 4
"""Rows of a register tile: of whole rows, of few of them, of listed micro-tiles."""
CHUNK = 64
"""Entries of a list that a register tile of a group of rows takes at a time."""
FOLD = 384
"""Products of one chain: a multiple of the widths of micro-tiles and of the stretches of B."""
SQUARE = 32
"""k of a square."""

FEATURES = ("launch", "scanned", "listed", "written", "runs", "streamed", "steps", "visits")
"""What a variant's time is made of on CPUs (`pitc/ir/tiles.py`)."""

PIT_AXES = {"dense": "", "row": "k", "tile": "k", "block": "m", "square": "k"}
"""Kinds of variants, by what a list is of: nothing, k of a row, k of a group of rows, rows of a
block of k, blocks of k of a group; and the axis along which micro-tiles are gathered."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A piece of a matrix A [m, k].

    Args:
        m: Rows.
        k: Columns, which lie side by side in memory.
    """

    m: int
    k: int

    def __str__(self) -> str:
        return f"{self.m} x {self.k}"


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to cut A.

    Args:
        machine: Kind of target that computes so, `cpu` or `cuda`.
        kind: One of `PIT_AXES`.
        name: In plans, traces, tables of prices and options.
        dense_tile: What a kernel fills with what it gathers before it goes on; of GPUs at least.
    """

    machine: str
    kind: str
    name: str
    dense_tile: Tile

    @property
    def family(self) -> str:
        """Kernel family (`codegen/families/`)."""
        return f"contract_{self.kind}" if self.pit_axis else "gather_gemm"

    @property
    def pit_axis(self) -> str:
        """Along which micro-tiles are gathered; empty where all of A is read."""
        return PIT_AXES[self.kind]

    def micro_tile(self, dtype: str = "float32") -> Tile:
        """The smallest piece that is kept or skipped as a whole (the PIT paper, section 3.1).

        Pieces of a dense tile may come from anywhere along the PIT axis: there the micro-tile is 1.
        On the other axis it is what the dense tile is, and no shorter than a line where that axis
        lies along memory: a shorter read would fetch the line all the same. So are squares, which
        are read where A lies. Single elements along memory are picked while the detector has their
        line, so that no floor holds for them. Where nothing is gathered it is an element.

            32 x 64 along k -> 32 x 1      4 x 32 along m -> 1 x 32      4 x 8 along m -> 1 x 16
        """
        tile, line = self.dense_tile, LINE_BYTES[self.machine] // ITEM_BYTES[dtype]
        match self.kind:
            case "row" | "tile":
                return Tile(tile.m, 1)
            case "block" | "square":
                return Tile(1 if self.pit_axis == "m" else tile.m, max(tile.k, line))
        return Tile(1, 1)

    @property
    def waits(self) -> bool:
        """It reads rows of B here and there; others ask for them in order and compute meanwhile."""
        return self.pit_axis == "k"

    @property
    def height(self) -> int:
        """Rows of a group that share a list of k; 0 where there are no groups."""
        return self.micro_tile().m if self.kind == "tile" else 0

    @property
    def width(self) -> int:
        """Elements of a block of k that share a list of rows; 0 where there are no blocks."""
        return self.micro_tile().k if self.kind == "block" else 0


_TABLE = (
    Variant("cpu", "dense", "dense", Tile(TILE_ROWS, 1)),
    Variant("cpu", "row", "row", Tile(1, 1)),
    Variant("cpu", "tile", "tile8", Tile(8, CHUNK)),
    Variant("cpu", "block", "block16", Tile(LISTED_ROWS, 16)),
    Variant("cpu", "block", "block32", Tile(LISTED_ROWS, 32)),
    Variant("cpu", "block", "block64", Tile(LISTED_ROWS, 64)),
    Variant("cuda", "dense", "dense", Tile(1, 1)),
    Variant("cuda", "tile", "tile16", Tile(16, 64)),
    Variant("cuda", "tile", "tile32", Tile(32, 64)),
    Variant("cuda", "block", "block32", Tile(64, 32)),
    Variant("cuda", "block", "block64", Tile(64, 64)),
    Variant("cuda", "square", "square32", Tile(32, SQUARE)),
)
VARIANTS, CUDA_VARIANTS = (
    {variant.name: variant for variant in _TABLE if variant.machine == machine}
    for machine in LINE_BYTES
)
"""By name, of CPUs and of GPUs. Groups and blocks each stand together, in ascending order; `dense`
is the first. A contraction on a GPU has at most one of each kind; `tile16` is for up to 16 rows."""

SPARSE_FAMILIES = tuple(dict.fromkeys(v.family for v in VARIANTS.values() if v.pit_axis))
