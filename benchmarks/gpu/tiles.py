"""Dense tiles that are tried on a device beside those of the table: which ones belong there?

A tile that wins is one line of `pitc/ir/cuda_target.py`.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu.answers import checked, free, normal
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.library import CudaLibrary
from benchmarks.gpu.product_cases import GEMMS
from benchmarks.gpu.products import dense, dense_on, dense_tile
from benchmarks.gpu.run import DTYPE, OURS, Run, product_bytes
from benchmarks.gpu.timing import Contender, Make
from pitc.ir.cuda_target import CudaTile

FILE = "tiles.so"
TRIED: Mapping[str, CudaTile] = {
    "128x128-8warps": CudaTile(128, 128, 64, 2, 4, 3, together=2),
    "128x128-k128": CudaTile(128, 128, 128, 2, 2, 3),
    "128x256-8warps": CudaTile(128, 256, 64, 2, 4, 4),
    "256x128-8warps": CudaTile(256, 128, 64, 4, 2, 4),
    "64x128-k128": CudaTile(64, 128, 128, 2, 2, 3, together=2),
    "64x64": CudaTile(64, 64, 128, 2, 2, 3, together=2),
}
"""More columns, more rows, more warps, longer steps; smaller ones for few rows."""


def symbol_of(name: str) -> str:
    """Of the kernel of a tile that is tried."""
    return f"gather_gemm_{name.replace('-', '_')}_cuda"


def tried(*, small: bool) -> Mapping[str, CudaTile]:
    """The tiles; for an emulated device one of them."""
    return dict(list(TRIED.items())[-1:]) if small else TRIED


def build(out: Path, archs: list[str], *, small: bool) -> None:
    """Write the library of their kernels."""
    from pitc.codegen.build.cache import kernel_cache
    from pitc.codegen.build.cuda_library import build_cuda_kernels
    from pitc.codegen.families.contract_cuda import gather_gemm

    params = {"dtype": DTYPE, "activation": "none", "residual": 0}
    tiles = tried(small=small)
    functions = [gather_gemm(symbol_of(name), params, tile) for name, tile in tiles.items()]
    build_cuda_kernels(functions, archs, out, cache=kernel_cache())


def tile_cases(run: Run, pack: Path) -> Iterator[Case]:
    """Every tile that is tried, beside the one that the runtime takes."""
    for sizes in [(40, 64, 64)] if run.small else GEMMS:
        name = f"tiles-{'x'.join(map(str, sizes))}"
        facts = {"dtype": DTYPE, "sizes": list(sizes)}
        yield Case(name, facts, partial(_tiles, run, pack, sizes))


def _tiles(run: Run, pack: Path, sizes: tuple[int, int, int], telling: Telling) -> Result:
    t, k, n = sizes
    rng = np.random.default_rng(0)
    a, w = normal(rng, t, k), normal(rng, k, n)
    sets = run.operands(a, w)
    library = CudaLibrary(run.device, pack / FILE)
    taken = dense_tile(run.machine, sets[0])

    def ours() -> Contender:
        works = [dense(run.machine, operands, taken) for operands in sets]
        return run.own(works, error=checked(run.device, sets[0], works[0], a, w), tile=taken.name)

    def in_tile(name: str, tile: CudaTile) -> Contender:
        symbol = symbol_of(name)
        works = [dense_on(library, run.machine, operands, tile, symbol) for operands in sets]
        return run.own(works, error=checked(run.device, sets[0], works[0], a, w))

    makers: dict[str, Make] = {OURS: ours}
    makers |= {name: partial(in_tile, name, tile) for name, tile in tried(small=run.small).items()}
    result = run.timed(telling, makers, product_bytes(a, w), len(sets))
    free(run.device, sets)
    return result
