"""Prices of variants from times on a device, in the form of plans: `price_VARIANT_TILE_ARCH`.

The time of a variant is the sum of its features times its prices (`pitc/ir/cuda_variants.py`).
Times of its lists and product are taken at several sizes and shares of zeros; the prices are those
of least relative error that are not below 0: of all sets of features the one whose solution is.

    us 10, 20, 40 at launch 1, 1, 1 and turns 5, 15, 35    ->    launch 5 us, turns 1 us
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations

import numpy as np

from benchmarks.gpu.answers import blocks_of_zeros, checked, free, normal
from benchmarks.gpu.arrays import download
from benchmarks.gpu.driver import Array
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.products import ListedProduct, dense
from benchmarks.gpu.run import DTYPE, Run, product_bytes
from benchmarks.gpu.timing import Contender
from pitc.ir.cuda_variants import (
    FEATURES,
    KINDS,
    TOTALS,
    CudaOffer,
    block_count,
    block_width,
    features_of,
    line_of,
    offers_of,
)
from pitc.ir.gpu_speed import GpuPrices
from pitc.ir.tiles import FEMTOSECONDS

SIZES = ((4096, 4096), (1280, 3072), (512, 4096))
"""Rows, and k and n."""
ZEROS = (0.5, 0.9, 0.99)
BLOCKS = {"tile": (32, 1), "block": (1, 64), "square": (32, 32)}


def price_cases(run: Run) -> Iterator[Case]:
    """One case for each variant in each dense tile."""
    for kind in KINDS:
        for offer in _offers(run, kind):
            yield Case(f"price-{offer.name}", {"dtype": DTYPE}, partial(_price, run, offer))


def _offers(run: Run, kind: str) -> list[CudaOffer]:
    """Of a kind those that `ListedProduct` takes, and every dense tile."""
    offers = [o for o in offers_of(DTYPE) if o.variant.kind == kind and o.variant.name != "tile16"]
    return offers[:1] if run.small else offers


def _price(run: Run, offer: CudaOffer, telling: Telling) -> Result:
    kind = offer.variant.kind
    zeros = ZEROS if kind != "dense" else (0.0,)
    points: list[tuple[list[float], float]] = []
    for rows, side in [(64, 128)] if run.small else SIZES:
        for share in zeros[:1] if run.small else zeros:
            block = BLOCKS.get(kind, (1, 1))
            a = blocks_of_zeros(np.random.default_rng(2), side, block, share)[:rows]
            part = f"{rows}x{side}-{round(100 * share)}"
            found = _point(run, offer, a, part, telling)
            points += [found] if found else []
            telling.tell(points=points)
    features = np.array([x for x, _ in points]).reshape(len(points), len(FEATURES))
    times = np.array([us for _, us in points])
    if not points:
        raise RuntimeError("no point was measured")
    prices, error = fitted(features, times)
    name = f"price_{offer.name}_{run.machine.arch}"
    told = np.array(dict(GpuPrices().table(DTYPE))[name], float) / FEMTOSECONDS
    before = np.abs(features @ told / np.maximum(times, 1e-9) - 1)
    return {
        "contenders": [],
        "prices": {name: [round(x * FEMTOSECONDS) for x in prices]},
        "error": error,
        "error_of_model": float(np.median(before)),
    }


def _point(
    run: Run, offer: CudaOffer, a: Array, name: str, telling: Telling
) -> tuple[list[float], float] | None:
    """Features and microseconds of a variant over one operand."""
    side = a.shape[1]
    w = normal(np.random.default_rng(1), side, side)
    sets = run.operands(a, w)
    kind, rows_of_block = offer.variant.kind, 0
    totals: dict[str, int] = dict.fromkeys(TOTALS, 0)

    def make() -> Contender:
        nonlocal totals, rows_of_block
        if kind == "dense":
            works = [dense(run.machine, operands, offer.tile) for operands in sets]
            checked(run.device, sets[0], works[0], a, w)
            return run.own(works)
        products = [ListedProduct(run.machine, operands, kind) for operands in sets]
        checked(run.device, sets[0], products[0], a, w)
        for product in products[1:]:
            product()  # its gate says what is chosen
        counted = download(run.device, products[0].trace)[: len(TOTALS)]
        totals = {name: int(x) for name, x in zip(TOTALS, counted, strict=True)}
        number = KINDS.index(kind)
        rows_of_block = products[0].offered[number][1] if kind == "block" else 0
        return run.own([partial(_lists_and_product, p, number) for p in products])

    result = run.timed(telling, {name: make}, product_bytes(a, w), len(sets))
    free(run.device, sets)
    if not result["contenders"]:
        return None
    processors = run.machine.multiprocessors
    line = line_of(offer.variant, offer.tile, DTYPE, processors, rows_of_block)
    blocks = block_count(side, block_width(DTYPE))
    features = features_of(line, totals, (len(a), side, side), blocks)
    return [float(x) for x in features], result["contenders"][0]["us"]


def _lists_and_product(product: ListedProduct, number: int) -> None:
    product.lists()
    product.products[number]()


def fitted(features: Array, times: Array) -> tuple[Sequence[float], float]:
    """Prices that are not below 0, and the median of their relative errors.

    Args:
        features: `[points, features]`.
        times: Microseconds, `[points]`, at least one, above 0.

    Returns:
        Microseconds for each feature, 0 for one that is of no use.
    """
    count = features.shape[1]
    best, least = np.zeros(count), float("inf")
    scaled, ones = features / times[:, None], np.ones(len(times))
    for size in range(1, min(count, len(times)) + 1):
        for chosen in combinations(range(count), size):
            part = scaled[:, chosen]
            found, *_ = np.linalg.lstsq(part, ones, rcond=None)
            if (found < 0).any():
                continue
            off = float(((part @ found - ones) ** 2).sum())
            if off < least * (1 - 1e-9):
                least, best = off, np.zeros(count)
                best[list(chosen)] = found
    return [float(x) for x in best], float(np.median(np.abs(scaled @ best - 1)))
