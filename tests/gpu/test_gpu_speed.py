"""The model of GPUs' speed counts what the emulator counts, and ranks as measured figures do."""

from dataclasses import replace

import pytest

from benchmarks import gpu_speed
from benchmarks.gpu.goals import DRIVER_NAMES, GOALS, device_of, floor_of
from benchmarks.gpu.model import (
    attention_clocks,
    limit_of,
    predict_attention,
    predict_chain,
    predict_copy,
    predict_listed,
    predict_product,
)
from pitc.codegen.families import attention_cuda
from pitc.ir.attention_tile import AttentionTile
from pitc.ir.cuda_target import CUDA_ARCHS, CUDA_DEVICES, CUDA_TILES, CudaArch, CudaTile
from pitc.ir.cuda_variants import CudaOffer, dense_tiles, features_of, line_of, offers_of
from pitc.ir.gpu_speed import prices_of, step_clocks, step_wavefronts
from pitc.ir.variants import CUDA_VARIANTS
from tests.cuda_kernels import Product
from tests.gpu import test_cuda_attention, test_cuda_contract

A100 = CUDA_ARCHS["sm_80"]
H100, H200 = CUDA_DEVICES["H100 SXM"], CUDA_DEVICES["H200 SXM"]
V100 = CudaArch("sm_70", "V100 SXM", 0, 0, 80, 1530, {}, 128, 1408, 0, 900, {})
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
    assert limit_of(clocks) == "compute"
    # 1280 rows of 1536 bytes, read and written at 0.895 of 2039 GB/s, and a launch
    assert predict_copy(1280, 1536, A100).total_us == pytest.approx(2 + 3932160 / 1824.905e3)


def test_the_fixed_part_of_a_chain_by_hand() -> None:
    """4096 x 4096 of float16 on an H100: 3.0 TB/s, seven launches of which one computes."""
    chain = predict_chain("float16", H100, 4096, 4096)
    assert chain.detect_us == pytest.approx(2 + 35651584 / 3.0e6, rel=1e-3)
    assert chain.choose_us == 2 + 8
    assert chain.lists_us == pytest.approx(2 + 2097152 / 3.0e6, rel=1e-3)
    assert chain.leave_us == 3 * 2
    assert chain.total_us == pytest.approx(32.6, abs=0.05)


@pytest.mark.parametrize("offer", offers_of("float16"), ids=lambda offer: offer.name)
def test_a_chain_without_a_live_micro_tile_takes_its_fixed_part(offer: CudaOffer) -> None:
    """And a launch, and what the product does of itself."""
    totals: dict[str, int] = dict.fromkeys(("strips", "segments", "squares"), 0)
    time = predict_listed(offer, "float16", H100, totals, 4096, 4096, 4096)
    summed = 512 if offer.variant.kind == "block" else 0
    line = line_of(offer.variant, offer.tile, "float16", H100.processors, summed)
    _, _, steps, turns = features_of(line, totals, (4096, 4096, 4096), 64)
    prices = prices_of(offer, "float16", H100)
    own = (steps * prices[2] + turns * prices[3]) / 1e9
    assert time == pytest.approx(own + 2 + predict_chain("float16", H100, 4096, 4096).total_us)


def test_rates_are_what_kernels_can_reach() -> None:
    """wgmma's rate, which a data sheet tells, is for floors alone: no kernel here issues it."""
    assert [H100.mma_flops[t] / H100.peak_flops[t] for t in ("float16", "float32")] == [0.625] * 2
    assert step_clocks(CUDA_TILES[0], "float16", H100).compute == 2 * 128 * 128 * 32 / 2560
    for arch in CUDA_DEVICES.values():
        assert all(rate <= arch.peak_flops[t] for t, rate in arch.mma_flops.items())
        assert arch.reached
    assert H200.name == H100.name == "sm_90" and H200.memory_gbs > H100.memory_gbs
    assert replace(H200, device="", l2_size=0, memory_gbs=0) == replace(
        H100, device="", l2_size=0, memory_gbs=0
    )


def test_floors_by_hand() -> None:
    """137.4 GFLOP at 949 TFLOP/s, 100.7 MB at 3.0 and 4.3 TB/s: no kernel has more than that."""
    side = (4096, 4096, 4096)
    dense = floor_of("H100 SXM", *side)
    assert dense.compute_us == pytest.approx(2 * 4096**3 / (4096 * 132 * 1755e6) * 1e6)
    assert (dense.us, dense.limit) == (dense.compute_us, "compute")
    few = {name: floor_of(name, *side, live=0.01) for name in ("H100 SXM", "H200 SXM")}
    assert [round(x.us, 1) for x in few.values()] == [33.6, 23.4]
    assert {x.limit for x in few.values()} == {"memory"}
    assert [round(196 / x.us, 1) for x in few.values()] == [5.8, 8.4]  # cuBLAS at 700 TFLOP/s
    assert floor_of(H200, *side, live=0.5).us == pytest.approx(dense.compute_us / 2)
    half, whole, exact = (
        floor_of(H100, *side, dtype, exact=exact).compute_us
        for dtype, exact in (("float16", False), ("float32", False), ("float32", True))
    )
    assert (whole / half, exact / half) == (2, 16)
    assert floor_of(H100, 1, 4096, 4096, "float32").us == pytest.approx(
        4 * (4096 + 4096**2 + 4096) / 3.0e6, rel=1e-3
    )


def test_goals_are_shares_that_can_be_reached() -> None:
    """With mma.sync, by what it can reach; over zeros, with the fixed part of a chain in half."""
    for goal in GOALS.values():
        rows, k, _ = goal.sizes
        for device, share in goal.shares.items():
            arch, floor = CUDA_DEVICES[device], goal.floor(device)
            least = max(
                floor.compute_us * arch.peak_flops["float16"] / arch.mma_flops["float16"],
                floor.memory_us,
            )
            if goal.live < 1:
                least = max(least, predict_chain("float16", arch, rows, k).total_us / 2)
            assert 0 < share <= 1 and goal.us(device) > least, (goal.case, device)
        assert list(goal.shares) == list(DRIVER_NAMES.values())
    assert device_of("NVIDIA H200") == "H200 SXM"
    assert device_of("NVIDIA H100 80GB HBM3") == "H100 SXM"
    assert device_of("NVIDIA H100 PCIe") is None


def test_the_page_has_what_is_predicted() -> None:
    page = gpu_speed.PAGE.read_text("utf-8")
    for mark, lines in gpu_speed.TABLES.items():
        text = "\n".join(lines())
        assert f"<!-- {mark} -->\n\n{text}\n\n<!-- end -->" in page, (
            "python -m benchmarks.gpu_speed --write"
        )
