"""The model of GPUs' speed counts what the emulator counts, and ranks as measured figures do."""

import pytest

from pitc.codegen.families import attention_cuda
from pitc.ir.attention_tile import AttentionTile
from pitc.ir.cuda_target import CUDA_ARCHS, CUDA_TILES, CudaArch, CudaTile
from pitc.ir.cuda_variants import CUDA_VARIANTS, CudaOffer, dense_tiles, offers_of
from pitc.ir.gpu_speed import (
    attention_clocks,
    predict_attention,
    predict_copy,
    predict_listed,
    predict_product,
    step_wavefronts,
)
from tests import test_cuda_attention, test_cuda_contract
from tests.cuda_kernels import Product

A100 = CUDA_ARCHS["sm_80"]
V100 = CudaArch("sm_70", "V100 SXM", 0, 0, 80, 1530, {}, 128, 1408, 0, 900)
"""15.7 TFLOP/s of float32 and 900 GB/s are its data sheet's, 2155 GB/s of the second-level cache
are from Jia et al., Dissecting the NVIDIA Volta GPU Architecture (2018). It is no target of pitc.
"""
MEASURED_MS = {
    0.0: 14.4716,
    0.1: 13.1382,
    0.2: 11.5319,
    0.3: 10.2030,
    0.4: 8.8701,
    0.5: 7.5225,
    0.6: 6.2052,
    0.7: 4.7652,
    0.8: 3.2905,
    0.9: 1.7549,
    0.95: 0.9408,
    0.99: 0.3871,
}
"""By share of empty 32 x 1 micro-tiles: 4096 x 4096 x 4096 in float32, by other kernels than these,
from the table of tiles in the artifact of the PIT paper; the dense time tells a GPU of V100's
class.
"""
MEASURED_DENSE_MS = 10.22


@pytest.mark.parametrize("tile", [CUDA_TILES[1], CUDA_TILES[-1]], ids=lambda t: t.name)
def test_dense_tiles_take_the_wavefronts_that_the_model_says(tile: CudaTile) -> None:
    steps, dtype = 4, "float16" if tile.engine == "mma" else "float32"
    k = steps * tile.k_bytes // (2 if dtype == "float16" else 4)
    product = Product(tile.m, k, tile.n, dtype)
    test_cuda_contract.multiply(product, tile, "plain", blocks=1)
    (launch,) = test_cuda_contract.kernels(tile, dtype).launches
    assert launch.counts.shared_wavefronts == steps * step_wavefronts(tile)


@pytest.mark.parametrize("kind", test_cuda_attention.PLAIN, ids=test_cuda_attention.name)
def test_attention_takes_the_wavefronts_that_the_model_says(
    kind: test_cuda_attention.Kind,
) -> None:
    """Queries are copied once: of that a step knows nothing."""
    engine, dtype, d, dv, _ = kind
    tile, pieces = attention_cuda.ENGINES[engine].plan(dtype, d, dv, bias=False)
    clocks = attention_clocks(tile, A100)
    counted = []
    for steps in (2, 6):
        some = test_cuda_attention.case(kind, [(tile.m, steps * tile.n)], heads=1)
        test_cuda_attention.run(kind, some)
        (launch,) = test_cuda_attention.kernel(kind).launches
        counted.append(launch.counts.shared_wavefronts)
    assert (counted[1] - counted[0]) / 4 == pytest.approx(clocks.shared, rel=0.1), pieces


def predicted_ms(empty: float | None) -> float:
    """4096 x 4096 x 4096 on a V100."""
    side, dtype = 4096, "float32"
    if empty is None:
        return (
            min(
                predict_product(t, dtype, V100, side, side, side).total_us
                for t in dense_tiles(dtype)
                if t.engine == "simt"
            )
            / 1e3
        )
    strips = round((1 - empty) * side * side / 32)
    offer = CudaOffer(CUDA_VARIANTS["tile32"], CUDA_TILES[-1])
    totals = {"strips": strips, "segments": 0, "squares": 0}
    return predict_listed(offer, dtype, V100, totals, side, side, side) / 1e3


def test_ranks_as_a_measured_table_does() -> None:
    """Of all pairs of times in the table, and the dense one, few stand the other way round."""
    measured = [*MEASURED_MS.values(), MEASURED_DENSE_MS]
    predicted = [*(predicted_ms(empty) for empty in MEASURED_MS), predicted_ms(None)]
    pairs = [(i, j) for i in range(len(measured)) for j in range(i)]
    turned = [
        (i, j) for i, j in pairs if (measured[i] < measured[j]) != (predicted[i] < predicted[j])
    ]
    assert len(turned) <= 0.05 * len(pairs)
    ratios = [m / p for m, p in zip(measured, predicted, strict=True)]
    assert min(ratios) > 1 and max(ratios) < 3, ratios  # real kernels take longer


def test_less_work_never_takes_longer() -> None:
    for arch in CUDA_ARCHS.values():
        for offer in offers_of("float16"):
            times = [
                predict_listed(
                    offer, "float16", arch, dict.fromkeys(("strips", "segments", "squares"), x),
                    1024, 4096, 1024,
                )
                for x in (0, 1000, 8000, 16000)
            ]  # fmt: skip
            assert times == sorted(times)
        few, many = (
            predict_attention("float16", arch, [x] * 32, heads=12, d=64) for x in (40, 512)
        )
        assert few.total_us < many.total_us
        assert predict_copy(1280, 1536, arch).total_us < predict_copy(4096, 1536, arch).total_us


def test_an_example_by_hand() -> None:
    """128 queries, 32 keys, width 64, on an A100: 512 clocks of its tensor cores, 8 KiB of K, V."""
    clocks = attention_clocks(AttentionTile("mma", "float16", 64, 64, bias=False), A100)
    assert clocks.compute == 2 * 128 * 32 * 128 / 2048 == 512
    assert clocks.shared == 5 * 8192 / 128
    assert clocks.limit == "compute"
    # 1280 rows of 1536 bytes, read and written at nine tenths of 2039 GB/s, and a launch
    assert predict_copy(1280, 1536, A100).total_us == pytest.approx(2 + 3932160 / 1835.1e3)
