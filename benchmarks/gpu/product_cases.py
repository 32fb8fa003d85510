"""Products that are timed: copies, dense ones, ones over zeros, and what finds these."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.gpu.answers import blocks_of_zeros, checked, free, normal
from benchmarks.gpu.arrays import download, empty, release, upload
from benchmarks.gpu.goals import DETECTOR_GOAL
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.peers import SPARSE_FROM, product_peers
from benchmarks.gpu.products import ListedProduct, Operands, Work, dense, dense_tile
from benchmarks.gpu.run import DTYPE, ITEM, OURS, Run, product_bytes
from benchmarks.gpu.timing import Contender, Make
from pitc.ir.cuda_target import CudaTile
from pitc.ir.cuda_variants import KINDS, TOTALS, dense_tiles
from pitc.ir.tiles import FEMTOSECONDS

GEMMS = ((4096, 4096, 4096), (1280, 768, 3072), (1280, 3072, 768))
"""Rows, k and n: a large one, and those of a feed-forward layer of BERT-base, 40 of 128 tokens."""
BLOCKS = ((32, 1), (1, 64), (32, 32))
ZEROS = (0.5, 0.9, 0.95, 0.99)
DETECTED = ((8192, 0.0), (8192, 0.9), (4096, 0.9), (4096, 0.99))
"""Rows and k, and the share of zeros, of operands that are looked through."""


def copy_cases(run: Run) -> Iterator[Case]:
    """How fast the device copies: the ceiling of what reads and writes memory."""
    size = 1 << (16 if run.small else 28)
    yield Case("copy", {"bytes": size}, partial(_copy, run, size))


def _copy(run: Run, size: int, telling: Telling) -> Result:
    words = np.arange(size // 4, dtype=np.uint32)
    x, y = upload(run.device, words), empty(run.device, words.shape, words.dtype)

    def work() -> None:
        run.device.copy(y.address, x.address, size)

    def make() -> Contender:
        work()
        if not np.array_equal(download(run.device, y), words):
            raise AssertionError("the copy is not what was copied")
        return run.own([work])

    result = run.timed(telling, {"copy": make}, 2 * size, 1)
    release(run.device, x, y)
    for row in result["contenders"]:
        result["gbytes_per_s"] = 2 * size / row["us"] / 1e3
    return result


def gemm_cases(run: Run) -> Iterator[Case]:
    """Dense products: every tile, the one that the runtime takes, and cuBLAS."""
    for sizes in [(40, 64, 64)] if run.small else GEMMS:
        t, k, n = sizes
        facts = {"dtype": DTYPE, "sizes": list(sizes), "gflop": 2e-9 * t * k * n}
        yield Case(f"gemm-{t}x{k}x{n}", facts, partial(_gemm, run, sizes))


def _gemm(run: Run, sizes: tuple[int, int, int], telling: Telling) -> Result:
    t, k, n = sizes
    rng = np.random.default_rng(0)
    a, w = (normal(rng, *shape) for shape in ((t, k), (k, n)))
    sets = run.operands(a, w)

    def in_tile(tile: CudaTile) -> Contender:
        works = [dense(run.machine, operands, tile) for operands in sets]
        error = checked(run.device, sets[0], works[0], a, w)
        return run.own(works, tile=tile.name, error=error)

    makers: dict[str, Make] = {OURS: partial(in_tile, dense_tile(run.machine, sets[0]))}
    makers |= {tile.name: partial(in_tile, tile) for tile in dense_tiles(DTYPE)}
    makers |= run.peers(lambda torch: product_peers(torch, a, w, 0, len(sets)))
    result = run.timed(telling, makers, product_bytes(a, w), len(sets))
    free(run.device, sets)
    return result


def spmm_cases(run: Run) -> Iterator[Case]:
    """A product whose left operand holds zeros in blocks: detection included."""
    size = 128 if run.small else 4096
    for block in BLOCKS:
        for zeros in (0.9,) if run.small else ZEROS:
            name = f"spmm-{size}-{block[0]}x{block[1]}-{round(100 * zeros)}"
            facts = {"dtype": DTYPE, "block": list(block), "zeros": zeros, "sizes": [size] * 3}
            yield Case(name, facts, partial(_spmm, run, size, block, zeros))


def _spmm(run: Run, size: int, block: tuple[int, int], zeros: float, telling: Telling) -> Result:
    w = normal(np.random.default_rng(1), size, size)
    a = blocks_of_zeros(np.random.default_rng(2), size, block, zeros)
    sets = run.operands(a, w)

    def of_kind(kind: str) -> Contender:
        products = [ListedProduct(run.machine, operands, kind) for operands in sets]
        error = checked(run.device, sets[0], products[0], a, w)
        trace, gate = (download(run.device, x) for x in (products[0].trace, products[0].gate))
        return run.own(
            products,
            error=error,
            chosen=products[0].offered[int(gate[0])][0].name,
            predicted_us=[float(x) / FEMTOSECONDS for x in trace[len(TOTALS) :]],
        )

    makers: dict[str, Make] = {OURS: partial(of_kind, "")}
    makers |= {f"{OURS}-{kind}": partial(of_kind, kind) for kind in KINDS}
    makers |= run.peers(lambda torch: product_peers(torch, a, w, zeros, len(sets)))
    result = run.timed(telling, makers, product_bytes(a, w), len(sets))
    if zeros < SPARSE_FROM:
        result["left_out"]["sparse"] = f"libraries for it compete from {SPARSE_FROM:.0%} zeros on"
    free(run.device, sets)
    least = ITEM * (a.size + w.size + size * size)
    return {**result, "zeros": float((a == 0).mean()), "least_bytes": least}


def detector_cases(run: Run) -> Iterator[Case]:
    """What each part of the chain takes but the product, beside a copy of the operand."""
    for size, zeros in [(128, 0.9)] if run.small else DETECTED:
        facts = {"dtype": DTYPE, "sizes": [size, size], "targets": {"of_copy": DETECTOR_GOAL}}
        name = f"detector-{size}-{round(100 * zeros)}"
        yield Case(name, facts, partial(_detector, run, size, zeros))


def _detector(run: Run, size: int, zeros: float, telling: Telling) -> Result:
    a = blocks_of_zeros(np.random.default_rng(3), size, (32, 1), zeros)
    operands = Operands.of(run.device, a, np.zeros((size, 64), np.float16), DTYPE)
    copied = empty(run.device, (size, size), np.float16)
    product = ListedProduct(run.machine, operands, "tile")

    def copy() -> None:
        run.device.copy(copied.address, operands.a.address, a.nbytes)

    def detecting() -> Contender:
        product()
        live = int(download(run.device, product.trace)[0])
        if live != np.count_nonzero(a):
            raise AssertionError(f"{live} live elements were counted, {np.count_nonzero(a)} are")
        return run.own([product.detect])

    def behind_detection(work: Work) -> Contender:
        product()  # what it reads is there
        return run.own([work])

    makers: dict[str, Make] = {"detect": detecting, "copy": lambda: run.own([copy])}
    makers["choose"] = partial(behind_detection, product.choose)
    makers["lists"] = partial(behind_detection, product.lists)
    makers["leave"] = partial(behind_detection, product.leave)
    result = run.timed(telling, makers, a.nbytes, 1)
    us = {row["name"]: row["us"] for row in result["contenders"]}
    if "detect" in us:
        result["read_gbytes_per_s"] = a.nbytes / us["detect"] / 1e3
        if "copy" in us:
            result["of_copy"] = us["copy"] / us["detect"] / 2  # a copy also writes
    free(run.device, [operands])
    release(run.device, copied)
    return result
