"""What kernels should take on GPUs, by the model of data sheets: predictions, no measurement.

python -m benchmarks.gpu_speed            print them
python -m benchmarks.gpu_speed --write    put them into docs/cuda.md
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from pitc.ir.cuda_target import CUDA_ARCHS, CudaArch
from pitc.ir.cuda_variants import dense_tiles, offers_of
from pitc.ir.gpu_speed import (
    Speed,
    memory_us,
    predict_attention,
    predict_copy,
    predict_listed,
    predict_product,
)

PAGE = Path(__file__).parent.parent / "docs" / "cuda.md"
BEGIN, END = "<!-- predictions -->\n", "<!-- end -->\n"
ARCHS, DTYPE, ITEM = ("sm_80", "sm_90"), "float16", 2
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
    """Lines of the table."""
    heads = [f"{CUDA_ARCHS[name].device}, predicted us" for name in ARCHS]
    yield f"| float16 | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(ARCHS)}"
    for what, cell in CASES:
        yield f"| {what} | {' | '.join(cell(CUDA_ARCHS[name]) for name in ARCHS)} |"


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    text = "\n".join(table()) + "\n"
    if not parser.parse_args().write:
        print(text, end="")
        return
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
