"""What contractions should take on GPUs, by the model of data sheets: predictions, no measurement.

python -m benchmarks.gpu_speed            print them
python -m benchmarks.gpu_speed --write    put them into docs/cuda.md
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from pitc.ir.cuda_target import CUDA_ARCHS, CudaArch
from pitc.ir.cuda_variants import dense_tiles
from pitc.ir.gpu_speed import Speed, predict_product

PAGE = Path(__file__).parent.parent / "docs" / "cuda.md"
BEGIN, END = "<!-- predictions -->\n", "<!-- end -->\n"
ARCHS = ("sm_80", "sm_90")
CASES = (
    # what, rows, k, n, live rows of a batch of them
    ("BERT-base, 32 x 128 tokens: FFN, first product", 4096, 768, 3072),
    ("the same, mean 40 live tokens", 1280, 768, 3072),
    ("BERT-base, 32 x 128 tokens: FFN, second product", 4096, 3072, 768),
    ("the same, mean 40 live tokens", 1280, 3072, 768),
    ("one token, 768 x 3072", 1, 768, 3072),
    ("4096 x 4096 x 4096", 4096, 4096, 4096),
)


def best(arch: CudaArch, dtype: str, rows: int, k: int, n: int) -> tuple[str, Speed]:
    """The dense tile that should be the fastest, and its prediction."""
    each = [(t.name, predict_product(t, dtype, arch, rows, k, n)) for t in dense_tiles(dtype)]
    return min(each, key=lambda item: item[1].total_us)


def table() -> Iterator[str]:
    """Lines of the table."""
    heads = [f"{CUDA_ARCHS[name].device}, predicted us (tile, limit)" for name in ARCHS]
    yield f"| float16 | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(ARCHS)}"
    for what, rows, k, n in CASES:
        cells = []
        for name in ARCHS:
            tile, speed = best(CUDA_ARCHS[name], "float16", rows, k, n)
            cells.append(f"{speed.total_us:.1f} ({tile}, {speed.limit})")
        yield f"| {what} | {' | '.join(cells)} |"


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
