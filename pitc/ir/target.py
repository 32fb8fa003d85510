"""Targets as data: what compiled code may use on a machine, what tiles measured fastest there, and
what the passes have to know of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.cuda_target import CUDA_ARCHS
from pitc.ir.panels import PANEL_WIDTH, TURNED_COLUMNS
from pitc.ir.plan import CUDA_EP_NAME, EP_NAME


@dataclass(frozen=True, slots=True)
class CpuLevel:
    """A CPU level that kernels are built for.

    A *lane group* is 16 floats: one AVX-512 register, two AVX2 registers, or four NEON registers.

    Args:
        level: Suffix of the kernel symbols (`docs/plans.md`).
        mcpu: LLVM's name of the level.
        vector_lanes: Floats that are loaded and turned as one vector: a hardware register, or two
            NEON registers.
        vector_registers: Hardware vector registers.
        gemm_tile: Register tile of a dense contraction, rows x columns.
        pair_columns: Columns of the register tile of two rows, which divide a panel.
        most_pairs: So many of those, at most, are faster than a high tile that is not full.
        quad_columns: Columns of the register tile of four rows, for three or four that are left;
            0: there is none.
        lone_tiles: Register tiles, rows x columns, of products whose rows all fit into one: the
            lowest that holds them. Each number of the matrix is read once then.
        block_tiles: Row tiles of a dense contraction that go through B together.
        piece_tiles: The same of a matrix that is not in panels: every block of rows copies it.
        block_k: Longest block of k that they do so by: of a longer one the rows of A or the panel
            of B are lost from the second-level cache.
        stream_k: Longest stretch of k of few row tiles, for which B comes from memory: two of them
            are most of a first-level cache of 32 KiB.
        led_k: Longest stretch of k of so few rows that one of them, reading whole rows of B, goes
            ahead of the others; 0: none does.
        asks_sparingly: Only a few row tiles that share B ask for its lines; one by itself and many
            do not: to ask for what is foreseen takes time.
        relu_first: The ReLU in front of a dense contraction is computed for a block of rows, not
            where a number is multiplied: with few vectors in a register tile that takes as long.
        listed_tile: Register tile of a contraction over listed micro-tiles, rows x columns; the
            rows divide a group of rows, the columns a panel.
        row_columns: Columns that a contraction over listed elements of one row computes at once, a
            multiple of a panel.
        attention_lanes: Queries per register tile, widest first; each must divide the one before.
        attention_rows: Keys (scores) or value columns (output) per register tile, for each entry
            of `attention_lanes`; each must divide the key block.
        triple: LLVM's name of its machine; empty: that of the x86-64 on which it is compiled.
        features: What else it has, in LLVM's words.
        multiplies_pairs: An instruction adds two products of bfloat16 to a float32 sum.
        multiplies_tiles: A matrix unit multiplies tiles of bfloat16.
    """

    level: str
    mcpu: str
    vector_lanes: int
    vector_registers: int
    gemm_tile: tuple[int, int]
    pair_columns: int
    lone_tiles: tuple[tuple[int, int], ...]
    listed_tile: tuple[int, int]
    row_columns: int
    attention_lanes: tuple[int, ...]
    attention_rows: tuple[int, ...]
    most_pairs: int = 2
    quad_columns: int = 0
    block_tiles: int = 16
    piece_tiles: int = 64
    block_k: int = 1536
    stream_k: int = 48
    led_k: int = 0
    asks_sparingly: bool = False
    relu_first: bool = False
    triple: str = ""
    features: tuple[str, ...] = ()
    multiplies_pairs: bool = False
    multiplies_tiles: bool = False


CPU_LEVELS = (
    CpuLevel(
        "v4",
        "x86-64-v4",
        vector_lanes=16,
        vector_registers=32,
        gemm_tile=(6, 64),
        pair_columns=64,
        lone_tiles=((1, 64), (2, 64), (4, 64), (6, 64), (8, 32), (10, 32), (12, 32), (14, 32)),
        listed_tile=(4, 64),
        row_columns=128,
        attention_lanes=(32, 16),
        attention_rows=(8, 12),
    ),
    CpuLevel(
        "v3",
        "x86-64-v3",
        vector_lanes=8,
        vector_registers=16,
        gemm_tile=(6, 16),
        pair_columns=32,
        lone_tiles=((1, 64),),
        listed_tile=(4, 16),
        row_columns=64,
        attention_lanes=(16,),
        attention_rows=(6,),
        most_pairs=1,
        quad_columns=16,
        block_tiles=40,
        piece_tiles=128,
        block_k=768,
        stream_k=64,
        led_k=16,
        asks_sparingly=True,
        relu_first=True,
    ),
)
"""Of x86-64, best first."""

#: AVX512-BF16 beside `v4`: kernels of bfloat16 are built for it as well.
V4_BF16 = replace(CPU_LEVELS[0], level="v4_bf16", features=("+avx512bf16",), multiplies_pairs=True)

#: AMX beside it: for dense products.
V4_AMX = replace(
    V4_BF16,
    level="v4_amx",
    gemm_tile=(32, 32),
    features=("+avx512bf16", "+amx-tile", "+amx-bf16"),
    multiplies_tiles=True,
)

#: 64-bit Arm: correct on an emulator, tuned on no machine; its tiles and prices are those of `v3`.
NEON = CpuLevel(
    "neon",
    "generic",
    vector_lanes=8,
    vector_registers=32,
    gemm_tile=(6, 16),
    pair_columns=32,
    lone_tiles=((2, 32), (6, 16)),
    listed_tile=(4, 16),
    row_columns=64,
    attention_lanes=(16,),
    attention_rows=(6,),
    triple="aarch64-unknown-linux-gnu",
)


def cpu_level_of(name: str) -> CpuLevel:
    """The CPU level of that name.

    Raises:
        UsageError: No such level.
    """
    levels = (*CPU_LEVELS, V4_BF16, V4_AMX, NEON)
    for level in levels:
        if level.level == name:
            return level
    known = ", ".join(x.level for x in levels)
    raise UsageError(f"unknown CPU level {name!r}", hint=f"known levels: {known}")


def levels_of(
    dtype: str, levels: Sequence[CpuLevel], *, tiles: bool = False
) -> tuple[CpuLevel, ...]:
    """The levels for which kernels are built, where these are wanted.

    Args:
        dtype: Of their elements.
        levels: Those that are wanted.
        tiles: A matrix unit can multiply their operands.
    """
    if dtype != "bfloat16" or CPU_LEVELS[0] not in levels:
        return tuple(levels)
    more = (V4_AMX, V4_BF16) if tiles else (V4_BF16,)
    return (*(x for x in more if x not in levels), *levels)


@dataclass(frozen=True, slots=True)
class ChannelPrices:
    """What leaving out channels takes, in the operations that ONNX Runtime does in that time.

    Args:
        look: The choice.
        look_up: The choice, by tests that are looked up point by point.
        link: Which channels live, for each convolution.
        start: Many small steps around a convolution of live channels.
        hold: Per element of the result, which a choice has in memory of its own.
        turn: Per element that a choice takes out of the layout of the next convolution.
        loss: Of the work: what may be lost when every channel lives.
        speed: Of a convolution whose filters are not constant, to one whose filters are.
        least: Share of live products that has to pay, at least.
    """

    look: int = 1_000_000
    look_up: int = 9_000_000
    link: int = 1_000_000
    start: int = 6_000_000
    hold: int = 24
    turn: int = 16
    loss: float = 0.02
    speed: float = 0.75
    least: float = 0.25


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of machine, as the passes see it.

    Args:
        kind: Its name.
        machines: CPU levels, or GPU architectures, that its kernels are built for.
        library: File name of the kernel library in an artifact.
        provider: Execution provider that runs its nodes.
        types: What its kernels compute with.
        widens: What is float16 is computed in float32, as ONNX Runtime does it there.
        pads_bias: Kernels always add a bias, of float32 and as long as all panels.
        skips_right: Zeros of a right operand that is computed when the model runs are skipped.
        skips_channels: Convolutions leave out channels; the host chooses.
        reads_relu: Kernels over a sparse left operand can read max(a, 0) for a.
        hides_pairs: How attention leaves out pairs of a query and a key: by `lists` of keys that a
            node makes for it, or by `tests` that its kernel evaluates; empty: not at all.
        reads_stored: Attention can read keys and values as a cache has them, and one head of them
            for several heads of queries.
        steps_on_scores: Attention can round its scores and weights to steps, cap scores, and have a
            sink beside them.
        panel_width: Columns of a panel of a stored weight.
        turned_columns: Columns that a kernel over a sparse right operand computes in one call.
        least_extent: Extents of a contraction below it stay with ONNX Runtime.
        least_weight: Elements of a matrix; of smaller ones ONNX Runtime's product is as fast as a
            look at the operand.
        least_products: Of a contraction whose sizes are all known: a node of ours takes half a
            microsecond longer to start than ONNX Runtime's, 2 % of what so many take.
        longest_head: Head size of attention, at most.
        flops_per_byte: Work that must be saved for every byte that SRead and SWrite move.
        copied_price: Times that where ONNX Runtime computes, convolutions above all: it neither
            gathers nor scatters itself; at this price, copies take at most 2 % of its time when all
            points live.
        copied_start_bytes: What could be moved in the time that detector and copies take to start
            then.
        apart_price: What a byte counts for whose neighbours belong to other points.
        tested_price: What a byte counts for that a live test reads or makes: small steps of ONNX
            Runtime take about 0.03 ns for it, as long as 3 operations of a product; at this price
            they take at most 2 % of the time of what can be left out, when all of it lives.
        tested_free_bytes: Of them, those that take no longer than one node takes to start.
        channels: Prices of leaving out channels.
        rounds: Products by constant matrices round their operands to bfloat16, as the user wants:
            all of them are nodes of ours.
    """

    kind: str
    machines: tuple[str, ...]
    library: str = "kernels.so"
    provider: str = EP_NAME
    types: tuple[ir.DataType, ...] = (ir.DataType.FLOAT,)
    widens: bool = True
    skips_right: bool = True
    skips_channels: bool = True
    reads_relu: bool = True
    hides_pairs: str = "lists"
    reads_stored: bool = True
    steps_on_scores: bool = True
    pads_bias: bool = False
    panel_width: int = PANEL_WIDTH
    turned_columns: int = TURNED_COLUMNS
    least_extent: int = 16
    least_weight: int = 1 << 14
    least_products: int = 1 << 20
    longest_head: int = 256
    flops_per_byte: int = 32
    copied_price: int = 16
    copied_start_bytes: int = 80_000
    apart_price: int = 16
    tested_price: int = 5
    tested_free_bytes: int = 1 << 16
    channels: ChannelPrices = ChannelPrices()
    rounds: bool = False


CPU = Target("cpu", tuple(level.level for level in CPU_LEVELS))
CUDA = Target(
    "cuda",
    tuple(CUDA_ARCHS),
    provider=CUDA_EP_NAME,
    types=(ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16),
    widens=False,
    skips_right=False,
    skips_channels=False,
    reads_relu=False,
    hides_pairs="tests",
    reads_stored=False,
    steps_on_scores=False,
    pads_bias=True,
)


def target_of(kind: str, machines: tuple[str, ...] = ()) -> Target:
    """The target of a kind of machine, `cpu` or `cuda`.

    Args:
        kind: The kind.
        machines: CPU levels or GPU architectures; empty: all.
    """
    target = CUDA if kind == "cuda" else CPU
    return replace(target, machines=machines) if machines else target
