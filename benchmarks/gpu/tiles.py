"""Dense tiles that are tried on a device beside those of the table: which ones belong there?

A tile that wins is one line of `pitc/ir/cuda_target.py`.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu.answers import blocks_of_zeros, checked, free, normal
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.library import CudaLibrary
from benchmarks.gpu.product_cases import GEMMS
from benchmarks.gpu.products import ListedProduct, dense, dense_on, dense_tile
from benchmarks.gpu.run import DTYPE, OURS, Run, product_bytes
from benchmarks.gpu.timing import Contender, Make
from pitc.ir.cuda_target import CudaTile
from pitc.ir.cuda_variants import KINDS

FILE = "tiles.so"
TRIED: Mapping[str, CudaTile] = {
    "128x128-k128": CudaTile(128, 128, 128, 2, 2, 3),
    "64x128-k128": CudaTile(64, 128, 128, 2, 2, 3, together=2),
    "32x128-k64-4blocks": CudaTile(32, 128, 64, 1, 4, 4, together=4),
    "32x128-3blocks": CudaTile(32, 128, 128, 1, 4, 3, together=3),
    "64x64-3blocks": CudaTile(64, 64, 128, 2, 2, 3, together=3),
    "64x64-k64-4blocks": CudaTile(64, 64, 64, 2, 2, 4, together=4),
}
"""Longer steps; smaller tiles, more of which stand on a multiprocessor."""
TRIED_LISTED: Mapping[str, CudaTile] = {
    "32x128-3blocks": CudaTile(32, 128, 128, 1, 4, 3, together=3),
    "32x128-k64-4blocks": CudaTile(32, 128, 64, 1, 4, 4, together=4),
    "32x128-k64-3stages-6blocks": CudaTile(32, 128, 64, 1, 4, 3, together=6),
    "32x256-k64": CudaTile(32, 256, 64, 1, 8, 4, together=2),
}
"""The same, over listed k."""
LISTED_ZEROS = (0.9, 0.99)


def symbol_of(name: str, family: str = "gather_gemm") -> str:
    """Of the kernel of a tile that is tried."""
    return f"{family}_{name.replace('-', '_')}_cuda"


def _some(tiles: Mapping[str, CudaTile], *, small: bool) -> Mapping[str, CudaTile]:
    """All of some tiles; for an emulated device one of them."""
    return dict(list(tiles.items())[-1:]) if small else tiles


def build(out: Path, archs: list[str], *, small: bool) -> None:
    """Write the library of their kernels."""
    from benchmarks.gpu.own_kernels import build_cuda_kernels
    from pitc.codegen.build.cache import kernel_cache
    from pitc.codegen.families.contract_cuda import contract_tile, gather_gemm

    params = {"dtype": DTYPE, "activation": "none", "residual": 0}
    functions = [
        family(symbol_of(name, family.__name__), params, tile)
        for family, tiles in ((gather_gemm, TRIED), (contract_tile, TRIED_LISTED))
        for name, tile in _some(tiles, small=small).items()
    ]
    build_cuda_kernels(functions, archs, out, cache=kernel_cache())


def tile_cases(run: Run, pack: Path) -> Iterator[Case]:
    """Every tile that is tried, beside the one that the runtime takes."""
    for sizes in [(40, 64, 64)] if run.small else GEMMS:
        name = f"tiles-{'x'.join(map(str, sizes))}"
        facts = {"dtype": DTYPE, "sizes": list(sizes)}
        yield Case(name, facts, partial(_tiles, run, pack, sizes))
    size = 128 if run.small else 4096
    for zeros in LISTED_ZEROS[:1] if run.small else LISTED_ZEROS:
        name = f"tiles-listed-{size}-{round(100 * zeros)}"
        facts = {"dtype": DTYPE, "sizes": [size] * 3, "zeros": zeros}
        yield Case(name, facts, partial(_listed_tiles, run, pack, size, zeros))


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
    makers |= {
        name: partial(in_tile, name, tile) for name, tile in _some(TRIED, small=run.small).items()
    }
    result = run.timed(telling, makers, product_bytes(a, w), len(sets))
    free(run.device, sets)
    return result


def _listed_tiles(run: Run, pack: Path, size: int, zeros: float, telling: Telling) -> Result:
    """The product alone, behind its lists."""
    w = normal(np.random.default_rng(1), size, size)
    a = blocks_of_zeros(np.random.default_rng(2), size, (32, 1), zeros)
    sets = run.operands(a, w)
    library = CudaLibrary(run.device, pack / FILE)
    products = [ListedProduct(run.machine, operands, "tile") for operands in sets]
    number = KINDS.index("tile")

    def ours() -> Contender:
        for product in products[1:]:
            product()
        error = checked(run.device, sets[0], products[0], a, w)
        return run.own([product.products[number] for product in products], error=error)

    def in_tile(name: str, tile: CudaTile) -> Contender:
        symbol = symbol_of(name, "contract_tile")
        works = [product.in_tile(library, symbol, number, tile) for product in products]
        return run.own(works, error=checked(run.device, sets[0], works[0], a, w))

    makers: dict[str, Make] = {OURS: ours}
    for name, tile in _some(TRIED_LISTED, small=run.small).items():
        makers[name] = partial(in_tile, name, tile)
    result = run.timed(telling, makers, product_bytes(a, w), len(sets))
    free(run.device, sets)
    return result
