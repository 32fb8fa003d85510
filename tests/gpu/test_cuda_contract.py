"""Contractions over listed rows and over listed k on the emulated device, exact to the bit."""

import functools
from typing import Any

import numpy as np
import pytest

from pitc.codegen.families import contract_cuda
from pitc.ir.cuda_target import CUDA_TILES, CudaTile
from pitc.ir.cuda_variants import GATHERED_TILES
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, panel_count
from tests.codegen_kernels import LEVELS, Array, library
from tests.cuda_emulator import Emulated
from tests.cuda_kernels import CANARY, DTYPES, Product, emulated, integers, words

PLAIN: dict[str, int | str] = {"activation": "none", "residual": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "relu_res": {"activation": "relu", "residual": 1},
    "gelu": {"activation": "gelu", "residual": 0},
    "gelu_tanh": {"activation": "gelu_tanh", "residual": 0},
    "silu_res": {"activation": "silu", "residual": 1},
    "bits": {"activation": "relu", "residual": 0, "bits": 1},
    "loose": PLAIN | {"loose": 1},
    "loose_bits_res": {"activation": "relu", "residual": 1, "loose": 1, "bits": 1},
    "kn": PLAIN | {"stored": "kn"},
    "nk": PLAIN | {"stored": "nk"},
    "loose_nk": PLAIN | {"stored": "nk", "loose": 1},
    "loose_kn": PLAIN | {"stored": "kn", "loose": 1},
}
"""One tile of each engine has them all, the other tiles have the first one."""

ALL = [
    *((tile, "float16") for tile in CUDA_TILES if tile.engine == "mma"),
    *((tile, "float32") for tile in CUDA_TILES),
    (CUDA_TILES[1], "bfloat16"),
]
FULL = [(CUDA_TILES[1], "float16"), (CUDA_TILES[1], "float32"), (CUDA_TILES[-1], "float32")]
TILE_IDS = [f"{tile.name}-{dtype}" for tile, dtype in ALL]
in_each_tile = pytest.mark.parametrize(("tile", "dtype"), ALL, ids=TILE_IDS)
in_full_tiles = pytest.mark.parametrize(
    ("tile", "dtype"), FULL, ids=[f"{tile.name}-{dtype}" for tile, dtype in FULL]
)

# 0, 1, whole tiles, tails of every kind; k and n are multiples of 16 bytes
SHAPES = [
    (0, 8, 8),
    (1, 8, 8),
    (5, 0, 16),
    (31, 72, 64),
    (64, 128, 136),
    (130, 40, 200),
    (17, 264, 72),
]


@functools.cache
def kernels(tile: CudaTile, dtype: str) -> Emulated:
    wanted = VARIANTS if (tile, dtype) in FULL else {"plain": PLAIN}
    variants = {name: params | {"dtype": dtype} for name, params in wanted.items()}
    return emulated(contract_cuda.gather_gemm, tile, **variants)


def multiply(product: Product, tile: CudaTile, variant: str, **options: Any) -> Array:
    """All of C, by a variant of gather_gemm."""
    stored = str(VARIANTS[variant].get("stored", ""))
    b = {"": product.panels, "kn": product.w, "nk": np.ascontiguousarray(product.w.T)}[stored]
    device = kernels(tile, product.dtype)
    return product.run(
        lambda *last: device.run(variant, words(product.a), product.rows_a, words(b), *last),
        **options,
    )


@in_each_tile
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_multiplies(tile: CudaTile, dtype: str, shape: tuple[int, int, int]) -> None:
    product = Product(*shape, dtype)
    product.check(multiply(product, tile, "plain"))


@in_full_tiles
@pytest.mark.parametrize("variant", ["relu_res", "gelu", "gelu_tanh", "silu_res", "kn", "nk"])
def test_variants(tile: CudaTile, dtype: str, variant: str) -> None:
    params = VARIANTS[variant]
    product = Product(70, 48, 136, dtype, params["activation"], bool(params["residual"]))
    product.check(multiply(product, tile, variant))


@in_full_tiles
@pytest.mark.parametrize("variant", ["loose", "loose_nk", "loose_kn"])
@pytest.mark.parametrize("shape", [(3, 1, 1), (33, 19, 65), (66, 130, 7)], ids=str)
def test_rows_may_start_anywhere(
    tile: CudaTile, dtype: str, variant: str, shape: tuple[int, int, int]
) -> None:
    product = Product(*shape, dtype)
    product.check(multiply(product, tile, variant))


@in_full_tiles
@pytest.mark.parametrize(("variant", "n"), [("bits", 136), ("bits", 64), ("loose_bits_res", 77)])
def test_tells_what_is_not_zero(tile: CudaTile, dtype: str, variant: str, n: int) -> None:
    params = VARIANTS[variant]
    product = Product(37, 24, n, dtype, "relu", bool(params["residual"]))
    bits = np.full((37, 2 * -(-n // PANEL_WIDTH)), 0xAAAAAAAA, np.uint32)
    c = multiply(product, tile, variant, bits=bits)
    product.check(c)
    live = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little").astype(bool)
    np.testing.assert_array_equal(live[:, :n], c[product.rows_c] != 0)
    assert not live[:, n:].any()


@in_each_tile
def test_the_device_says_how_many_rows_there_are(tile: CudaTile, dtype: str) -> None:
    product = Product(40, 32, 64, dtype)
    for count in (0, 1, 33, 40, 1000):
        product.check(multiply(product, tile, "plain", count=count), min(count, 40))


def test_leaves_when_not_chosen() -> None:
    product = Product(40, 32, 64, "float16")
    c = multiply(product, CUDA_TILES[1], "plain", chosen=False)
    product.check(c, 0)
    (launch,) = kernels(CUDA_TILES[1], "float16").launches
    assert launch.counts.mma_flops == 0 and launch.counts.async_bytes == 0


@in_each_tile
def test_bits_do_not_depend_on_the_order_of_execution(tile: CudaTile, dtype: str) -> None:
    product = Product(70, 96, 136, dtype)
    rng = np.random.default_rng(1)
    product.a = rng.standard_normal(product.a.shape).astype(DTYPES[dtype])
    product.w = rng.standard_normal(product.w.shape).astype(DTYPES[dtype])
    first = multiply(product, tile, "plain", blocks=1)
    device = kernels(tile, dtype)
    with device.backwards():
        np.testing.assert_array_equal(multiply(product, tile, "plain", blocks=7), first)
    with device.shuffled(3):
        np.testing.assert_array_equal(multiply(product, tile, "plain", blocks=2), first)


@pytest.mark.here
def test_threads_add_as_a_cpu_does() -> None:
    """One chain of fused multiply-adds in ascending k: the bits of a CPU's kernel."""
    product = Product(33, 68, 64, "float32")
    rng = np.random.default_rng(2)
    product.a = rng.standard_normal(product.a.shape).astype(np.float32)
    product.w = rng.standard_normal(product.w.shape).astype(np.float32)
    request = KernelRequest.of("gather_gemm", k=product.k, n=product.n, **PLAIN)
    on_cpu = np.full((product.rows + 5, product.n), CANARY, np.float32)
    symbol = f"{request.symbol}_{LEVELS[0]}"
    operands = (product.a, product.rows_a, product.panels, product.bias, product.rows_c, on_cpu)
    library(request).call(symbol, *operands, 0, product.rows, 0, panel_count(product.n))
    np.testing.assert_array_equal(multiply(product, CUDA_TILES[-1], "plain"), on_cpu)


@functools.cache
def listed_kernels(tile: CudaTile, dtype: str) -> Emulated:
    params = {"plain": PLAIN | {"dtype": dtype}}
    return emulated(contract_cuda.contract_tile, tile, **params)


LISTED = [
    *((t, "float16") for t in GATHERED_TILES if t.engine == "mma"),
    (GATHERED_TILES[0], "float32"),
    (GATHERED_TILES[-1], "float32"),
]


@pytest.mark.parametrize(
    ("tile", "dtype"), LISTED, ids=[f"{tile.name}-{dtype}" for tile, dtype in LISTED]
)
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(1, 8, 8), (45, 200, 136), (32, 64, 64)], ids=str)
def test_multiplies_listed_k(
    tile: CudaTile, dtype: str, density: float, shape: tuple[int, int, int]
) -> None:
    product = Product(*shape, dtype)
    rng = np.random.default_rng(int(100 * density))
    product.a = integers(rng, product.a.shape, dtype, density)
    a = product.a[product.rows_a]
    groups = -(-product.rows // tile.m)
    padded = np.zeros((groups * tile.m, product.k), a.dtype)
    padded[: product.rows] = a
    strips = padded.reshape(groups, tile.m, product.k)
    live = (strips != 0).any(axis=1)
    group, ks = np.nonzero(live)
    values = np.ascontiguousarray(strips.transpose(0, 2, 1)[group, ks])
    starts = np.append(0, live.sum(axis=1).cumsum()).astype(np.int32)
    if not len(ks):  # device memory is never empty
        values, ks = np.full((1, tile.m), CANARY_VALUE, a.dtype), np.zeros(1, np.int64)
    device = listed_kernels(tile, dtype)
    lists = (values, ks.astype(np.int32), starts, product.panels)
    product.check(product.run(lambda *last: device.run("plain", *lists, *last)))


CANARY_VALUE = 9
