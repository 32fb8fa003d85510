"""What kernels take on GPUs: measured, and by a model predictions, floors and goals.

python -m benchmarks.gpu_speed            print them
python -m benchmarks.gpu_speed --write    put them into docs/cuda-developers.md
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.gpu import measured
from benchmarks.gpu.goals import GOALS, floor_of
from benchmarks.gpu.model import (
    Speed,
    memory_us,
    predict_attention,
    predict_chain,
    predict_copy,
    predict_listed,
    predict_product,
)
from pitc.ir.cuda_target import CUDA_ARCHS, CUDA_DEVICES, CudaArch
from pitc.ir.cuda_variants import dense_tiles, offers_of

PAGE = Path(__file__).parent.parent / "docs" / "cuda-developers.md"
BEGIN, END = "<!-- {} -->\n", "<!-- end -->\n"
DEVICES, DTYPE, ITEM = ("A100 SXM 80 GB", "H100 SXM", "H200 SXM"), "float16", 2
HIDDEN, FFN, HEADS = 768, 3072, 12
FULL, HALF = (128,) * 32, (40,) * 32
"""Lengths of the sequences of a batch of BERT-base: of full ones, and of 40 tokens each."""
SIDE, EMPTY = 4096, (0.5, 0.9, 0.95, 0.99)
OPT = (1024, 2048, 8192)
"""Tokens, hidden and inner width of a feed-forward layer of OPT-1.3B."""

Cell = Callable[[CudaArch], str]


def best(arch: CudaArch, rows: int, k: int, n: int) -> tuple[str, Speed]:
    """The dense tile that should be the fastest, and its prediction."""
    each = [(t.name, predict_product(t, DTYPE, arch, rows, k, n)) for t in dense_tiles(DTYPE)]
    return min(each, key=lambda item: item[1].total_us)


def product(rows: int, k: int, n: int) -> Cell:
    """A contraction without zeros."""

    def cell(arch: CudaArch) -> str:
        tile, speed = best(arch, rows, k, n)
        return f"{speed.total_us:.1f} ({tile}, {speed.limit})"

    return cell


def attention(lengths: tuple[int, ...]) -> Cell:
    """Attention of a layer of BERT-base."""

    def cell(arch: CudaArch) -> str:
        speed = predict_attention(DTYPE, arch, lengths, heads=HEADS, d=HIDDEN // HEADS)
        return f"{speed.total_us:.1f} ({speed.limit})"

    return cell


def copy(rows: int) -> Cell:
    """Packing, or unpacking, rows of BERT-base."""

    def cell(arch: CudaArch) -> str:
        speed = predict_copy(rows, HIDDEN * ITEM, arch)
        return f"{speed.total_us:.1f} ({speed.limit})"

    return cell


def listed_us(
    arch: CudaArch, variant: str, live: float, rows: int, k: int, n: int, width: int
) -> float:
    """A contraction over micro-tiles of which a share lives: all that is launched for it.

    Args:
        arch: Where it runs.
        variant: Of `cuda_variants`.
        live: Share of live micro-tiles.
        rows: Of A.
        k: Columns of A.
        n: Columns of C.
        width: k of a micro-tile.
    """
    count = round(live * rows * k / (32 if variant == "tile32" else width))
    totals: dict[str, int] = dict.fromkeys(
        ("elements", "strips", "segments32", "segments", "squares"), count
    )
    offer = next(o for o in offers_of(DTYPE) if o.variant.name == variant)
    return predict_listed(offer, DTYPE, arch, totals, rows, k, n)


def sparse(variant: str, empty: float) -> Cell:
    """A square contraction whose micro-tiles are empty at random."""

    def cell(arch: CudaArch) -> str:
        us = listed_us(arch, variant, 1 - empty, SIDE, SIDE, SIDE, 64)
        _, whole = best(arch, SIDE, SIDE, SIDE)
        return f"{us:.1f} ({whole.total_us / us:.1f} x dense)"

    return cell


def fixed(arch: CudaArch) -> str:
    """What such a contraction takes however few micro-tiles live."""
    chain = predict_chain(DTYPE, arch, SIDE, SIDE)
    parts = chain.detect_us, chain.choose_us, chain.lists_us, chain.leave_us
    return f"{chain.total_us:.1f} ({' + '.join(f'{x:.1f}' for x in parts)})"


def least(empty: float) -> Cell:
    """The floor of a square contraction."""

    def cell(arch: CudaArch) -> str:
        floor = floor_of(arch, SIDE, SIDE, SIDE, DTYPE, 1 - empty)
        return f"{floor.us:.1f} ({floor.limit})"

    return cell


def ffn(empty: float) -> Cell:
    """Both contractions of a feed-forward layer, the second over the ReLU's 32 x 1 zeros."""
    rows, hidden, inner = OPT

    def cell(arch: CudaArch) -> str:
        _, first = best(arch, rows, hidden, inner)
        _, second = best(arch, rows, inner, hidden)
        us = listed_us(arch, "tile32", 1 - empty, rows, inner, hidden, 64)
        us -= memory_us(rows * inner * ITEM, arch)  # the first one tells what is not 0
        dense = first.total_us + second.total_us
        return f"{first.total_us + us:.1f} ({dense / (first.total_us + us):.2f} x dense)"

    return cell


CASES: tuple[tuple[str, Cell], ...] = (
    ("BERT-base, 32 x 128 tokens: FFN, first product", product(4096, HIDDEN, FFN)),
    ("the same, mean 40 live tokens", product(1280, HIDDEN, FFN)),
    ("BERT-base, 32 x 128 tokens: FFN, second product", product(4096, FFN, HIDDEN)),
    ("the same, mean 40 live tokens", product(1280, FFN, HIDDEN)),
    ("BERT-base, 32 x 128 tokens: attention", attention(FULL)),
    ("the same, 40 live tokens each", attention(HALF)),
    ("BERT-base: pack or unpack 1280 rows", copy(1280)),
    ("one token, 768 x 3072", product(1, HIDDEN, FFN)),
    ("4096 x 4096 x 4096", product(SIDE, SIDE, SIDE)),
    ("the same: floor, no kernel is faster", least(0)),
    ("the same, 99% empty: floor", least(0.99)),
    ("the same: detect + choose + lists + kernels that leave, whatever lives", fixed),
    *(
        (f"the same, {empty:.0%} of {micro} micro-tiles empty", sparse(variant, empty))
        for variant, micro in (("tile32", "32 x 1"), ("block64", "1 x 64"))
        for empty in EMPTY
    ),
    *(
        (f"OPT-1.3B, 1024 tokens: FFN, {empty:.0%} of the second one's 32 x 1 empty", ffn(empty))
        for empty in EMPTY
    ),
)


def table() -> Iterator[str]:
    """Lines of the predictions."""
    yield from _rows("float16", [f"{name}, predicted us" for name in DEVICES])
    for what, cell in CASES:
        yield f"| {what} | {' | '.join(cell(CUDA_DEVICES[name]) for name in DEVICES)} |"


def goals() -> Iterator[str]:
    """Lines of the goals: a line for cases of the same goals."""
    yield from _rows("float16", [f"{name}: floor us; goal" for name in DEVICES])
    lines: dict[str, list[str]] = {}
    for goal in GOALS.values():
        each = []
        for name in DEVICES:
            floor = goal.floor(name)
            share = f"{goal.shares[name]:.0%}, {goal.us(name):.0f} us"
            each.append(f"{floor.us:.1f} ({floor.limit}); {share}")
        lines.setdefault(" | ".join(each), []).append(f"`{goal.case}`")
    for cells, cases in lines.items():
        yield f"| {' '.join(cases)} | {cells} |"


def rates() -> Iterator[str]:
    """Lines of what the model takes of each architecture."""
    yield from _rows(
        "GPU",
        [
            "16 bit, mma.sync / data sheet, TFLOP/s",
            "second-level cache, TB/s",
            "memory, data sheet, GB/s",
            "who says so",
        ],
    )
    for arch in CUDA_ARCHS.values():
        clocks = arch.processors * arch.clock_mhz * 1e-6
        reached, peak = (x[DTYPE] * clocks for x in (arch.mma_flops, arch.peak_flops))
        cache = arch.l2_bytes * arch.clock_mhz * 1e-6
        cells = f"{reached:.0f} / {peak:.0f}", f"{cache:.1f}", str(arch.memory_gbs), arch.reached
        yield f"| {arch.name}, {arch.device} | {' | '.join(cells)} |"


def _rows(first: str, heads: Sequence[str]) -> Iterator[str]:
    yield f"| {first} | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(heads)}"


TABLES = {"measured": measured.table, "predictions": table, "goals": goals, "rates": rates}
"""By the mark that they stand behind."""


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    page = PAGE.read_text("utf-8") if write else ""
    for mark, lines in TABLES.items():
        text = "\n".join(lines()) + "\n"
        if not write:
            print(text)
            continue
        before, _, rest = page.partition(BEGIN.format(mark))
        _, _, after = rest.partition(END)
        page = f"{before}{BEGIN.format(mark)}\n{text}\n{END}{after}"
    if write:
        PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
