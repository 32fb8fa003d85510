"""What it costs to find the zeros of a matrix (figure 17 of the PIT paper): libraries make an index
of its numbers or blocks, pitc lists of micro-tiles.

    cmake -S runtime -B build/bench -G Ninja -DPITC_TESTS=ON
    cmake --build build/bench --target micro_tiles_bench
    .venv-libs/bin/python -m benchmarks.conversion build/bench/tests/micro_tiles_bench

One thread, CPU time, medians of interleaved rounds (pitc: the least of many runs, as that program
measures them). A dense product by the matrix, of 512 rows, is what an index must repay.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.one_thread import limit_threads

limit_threads()

import numpy as np  # noqa: E402

from benchmarks.machine import machine_facts  # noqa: E402
from benchmarks.report import RESULTS  # noqa: E402
from models.sparsity import block_mask  # noqa: E402

SHAPE, ROWS, ROUNDS = (768, 3072), 512, 9
BLOCKS = ((1, 1), (32, 1), (32, 32), (32, 64))
ZEROS = (0.8, 0.9, 0.95, 0.99)
FILE = RESULTS / "conversion.json"
Step = Callable[[], Any]


def libraries(w: Any, block: tuple[int, int]) -> dict[str, Step]:
    """Conversions of a matrix, by library and format, and what stands beside them."""
    import scipy.sparse as sparse  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    tensor, x = torch.from_numpy(w), torch.ones(ROWS, SHAPE[0])
    steps: dict[str, Step] = {
        "scipy-csr": lambda: sparse.csr_matrix(w),
        "torch-csr": tensor.to_sparse_csr,
        "dense product": lambda: x @ tensor,
        "one read": lambda: float(w.sum()),
    }
    if block != (1, 1):
        steps["scipy-bsr"] = lambda: sparse.bsr_matrix(w, blocksize=block)
        steps["torch-bsr"] = lambda: tensor.to_sparse_bsr(block)
    return steps


def timed(steps: dict[str, Step]) -> dict[str, float]:
    """Milliseconds of each step."""
    took: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            took[name].append(1e3 * (time.process_time() - start))
    return {name: round(median(each[1:]), 3) for name, each in took.items()}


def of_pitc(program: Path) -> dict[str, float]:
    """Milliseconds by pattern: bits, counts, and the cheapest lists."""
    ran = subprocess.run(
        [str(program), "v4", *map(str, SHAPE)], capture_output=True, text=True, check=True
    )
    found: dict[str, dict[str, float]] = json.loads(ran.stdout)["us"]
    return {
        name: round((us["bits"] + us["counts"] + min(list_us(us))) / 1e3, 3)
        for name, us in found.items()
    }


def list_us(us: dict[str, float]) -> list[float]:
    """What each kind of list takes."""
    return [x for name, x in us.items() if name not in ("bits", "counts")]


def main() -> None:
    """Measure, and write the result."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    ours, rng, rows = of_pitc(Path(sys.argv[1])), np.random.default_rng(0), []
    warnings.filterwarnings("ignore", message="Sparse .* tensor support is in beta")
    for block in BLOCKS:
        for zeros in ZEROS:
            w = rng.standard_normal(SHAPE, dtype=np.float32) * block_mask(rng, SHAPE, block, zeros)
            name = f"{block[0]}x{block[1]} at {100 * zeros:.1f} % zeros"
            rows.append(
                {
                    "block": block,
                    "zeros": zeros,
                    "ms": {"pitc": ours[name], **timed(libraries(w, block))},
                }
            )
            print(name, rows[-1]["ms"])
    result = {"shape": SHAPE, "rows": ROWS, "conversions": rows, "machine": machine_facts()}
    FILE.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
