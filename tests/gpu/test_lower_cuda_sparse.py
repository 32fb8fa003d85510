"""Lowering for GPUs: contractions that skip zeros, their kernels and prices."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models.cnn import CnnConfig, cnn
from models.graph import GraphBuilder
from models.half import half
from models.masked import MlpConfig, masked_mlp
from models.opt import OptConfig, opt, opt_ffn
from models.sparsity import Sparsity
from models.t5 import T5Config, t5_ffn
from pitc.api import prices_of
from pitc.codegen.build.cuda_functions import cuda_functions
from pitc.ir.cuda_target import CUDA_ARCHS, CUDA_TILES
from pitc.ir.cuda_variants import (
    FEATURES,
    SUMMED_ROWS,
    CudaOffer,
    features_of,
    line_of,
    offers_of,
)
from pitc.ir.gpu_speed import TURN_NS, GpuPrices
from pitc.ir.gpu_speed import prices_of as prices_of_offer
from pitc.ir.kernel import KernelRequest
from pitc.ir.prices import Prices
from pitc.ir.target import CUDA
from pitc.ir.variants import CUDA_VARIANTS
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.gpu.test_lower_cuda import plans

SIZES = (1, 128, 2, 512, 50)
SPARSE = Sparsity(zeros=0.9)


PRICES: Prices = GpuPrices()


def lowered(
    model: onnx.ModelProto, padding: str | None = None, prices: Prices | None = PRICES
) -> Lowered:
    options = LowerOptions(padding, prices=prices, target=CUDA, check=True)
    return run_passes(ir.from_proto(half(model)), options)


def priced(plan: dict[str, str]) -> set[str]:
    return {key for key in plan if key.startswith(("price_", "clocks_"))}


def relu_product(k: int, n: int) -> onnx.ModelProto:
    """ReLU of an input times a constant matrix, and a sum behind it."""
    g = GraphBuilder("relu_product")
    rng = np.random.default_rng(0)
    x = g.input("x", np.float32, ("rows", k))
    w = g.weight("w", rng.standard_normal((k, n)).astype(np.float32))
    y = g.op("MatMul", g.op("Relu", x), w)
    g.output(g.op("Add", y, g.input("r", np.float32, ("rows", n))), "y", np.float32, ("rows", n))
    return g.model()


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "opt": lambda: opt_ffn(OptConfig(*SIZES), np.random.default_rng(0)),
    "opt, sparse": lambda: opt_ffn(OptConfig(*SIZES, sparsity=SPARSE), np.random.default_rng(0)),
    "t5": lambda: t5_ffn(T5Config(*SIZES), np.random.default_rng(0)),
}


def kernels(plan: dict[str, str]) -> dict[str, str]:
    """Symbols by what they are for."""
    return dict(pair.split(":") for pair in plan["kernels"].split(","))


@pytest.mark.parametrize("name", MODELS)
def test_two_products_around_a_relu_are_one_node(name: str) -> None:
    found = lowered(MODELS[name]())
    (plan,) = plans(found.model)
    kernel = kernels(plan)["dense"]
    assert plan["source"] == "PitCudaExecutionProvider" and plan["dtype"] == "float16"
    assert plan["kind"] == "ffn" and (plan["inner"], plan["k"], plan["n"]) == ("128", "512", "128")
    assert plan["bias"] == plan["inner_bias"] == "1"
    end = kernel.removeprefix("gather_gemm_")
    assert {request.symbol for request in found.kernels} == {
        *("gather_gemm_relu_bits_f16", "detect_bits_f16", "choose_f16", "lists_f16", kernel),
        *(f"contract_{kind}_{end}" for kind in ("tile", "block", "square")),
    }
    assert not any("cost_" in key for key in plan)


def test_a_decoder_skips_padding_and_zeros() -> None:
    model = opt(OptConfig(*SIZES), np.random.default_rng(0))
    found = {plan["kind"]: plan for plan in plans(lowered(model, "attention_mask").model)}
    assert set(found) >= {"detect", "dense", "ffn", "attention"}
    assert found["detect"]["source"] == "PitExecutionProvider"
    assert not priced(found["detect"]) and priced(found["ffn"]) > priced(found["dense"])


def test_a_relu_in_front_of_one_product_stays_a_node() -> None:
    found = lowered(relu_product(256, 128))
    (plan,) = plans(found.model)
    assert plan["kind"] == "sparse" and plan["input_relu"] == "0"
    assert "Relu" in {node.op_type for node in found.model.graph}
    symbols = {request.symbol for request in found.kernels}
    assert {
        "detect_f16",
        "lists_f16",
        kernels(plan)["dense"],
    } < symbols and "detect_bits_f16" not in symbols


@pytest.mark.parametrize("sizes", [(252, 128), (256, 124)], ids=["k", "n"])
def test_rows_that_start_anywhere_have_other_kernels(sizes: tuple[int, int]) -> None:
    symbols = {request.symbol for request in lowered(relu_product(*sizes)).kernels}
    loose = {s for s in symbols if "_loose" in s}
    assert {s.split("_")[1] for s in loose if s.startswith("contract")} == (
        {"square"} if sizes[0] % 8 else {"tile", "block", "square"}
    )
    assert ("detect_loose_f16" in loose) == ("lists_loose_f16" in loose) == bool(sizes[0] % 8)
    assert "choose_f16" in symbols


def test_nothing_is_skipped_without_prices() -> None:
    ops = {plan["kind"] for plan in plans(lowered(MODELS["opt"](), prices=None).model)}
    assert ops == set()


def test_right_operands_and_channels_are_left_to_others() -> None:
    config = MlpConfig()
    masked = lowered(masked_mlp(config, np.random.default_rng(0)))
    assert {plan["kind"] for plan in plans(masked.model)} <= {"sparse", "ffn"}
    assert any("on CPUs only" in str(node) for node in masked.report.nodes)
    images = lowered(cnn(CnnConfig(), np.random.default_rng(0)))
    assert "choose_channels" not in {plan["kind"] for plan in plans(images.model)}


def test_every_kernel_that_is_asked_for_can_be_made() -> None:
    found = lowered(MODELS["opt"]())
    names = [str(f.attrs["global_symbol"]) for r in found.kernels for f in cuda_functions(r)]
    assert len(set(names)) == len(names)
    (plan,) = plans(found.model)
    base = kernels(plan)["dense"].removeprefix("gather_gemm_")
    for offer in offers_of("float16"):
        ends = [f"_r{rows}" for rows in SUMMED_ROWS] if offer.variant.kind == "block" else [""]
        for end in ends:
            assert f"{offer.variant.family}_{base}_{offer.tile.name}{end}_cuda" in names
    assert {"detect_bits_f16_cuda", "choose_f16_cuda"} < set(names)
    assert {"lists_f16_h32_cuda", "lists_f16_h16_cuda"} < set(names)


def test_an_unknown_family_is_an_error() -> None:
    request = KernelRequest.of_cuda(
        "contract_row", "float16", k=64, n=64, activation="none", residual=0
    )
    with pytest.raises(ValueError, match="no CUDA kernel"):
        list(cuda_functions(request))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_each_tile_of_each_variant_has_a_price_on_each_architecture(dtype: str) -> None:
    fields = dict(GpuPrices().table(dtype))
    kinds = {"float32": 6 + 1 + 2 + 2 + 2}.get(dtype, 4 + 1 + 1 + 1 + 1)
    assert len(fields) == kinds * len(CUDA_ARCHS)
    for numbers in fields.values():
        assert isinstance(numbers, tuple) and len(numbers) == len(FEATURES)
        assert all(isinstance(x, int) for x in numbers) and numbers[-1] != 0
    for arch, measured in TURN_NS.items():
        assert {f"price_{name}_{arch}" for name in measured} <= dict(
            GpuPrices().table("float16")
        ).keys()
    assert fields["price_dense_mma64x128_sm_90"] == (2 * 10**9, 0, 0, 225 * 10**6)
    block = "block32" if dtype == "float32" else "block64"
    assert f"price_{block}_mma64x64_sm_90" in fields
    assert ("price_tile32_simt32x128_sm_80" in fields) == (dtype == "float32")


def test_prices_are_those_of_the_model() -> None:
    """128 x 128 x 32 on an A100: 462 clocks of the cache, 512 of tensor cores, at 1410 MHz."""
    offer = CudaOffer(CUDA_VARIANTS["dense"], CUDA_TILES[0])
    launch, listed, steps, turns = prices_of_offer(offer, "float16", CUDA_ARCHS["sm_80"])
    assert (launch, listed) == (2_000_000_000, 0)
    assert turns == pytest.approx(512 / 1410 * 1e9, abs=1)
    assert steps * 108 == pytest.approx(462 / 1410 * 1e9, rel=1e-2)
    tile = CudaOffer(CUDA_VARIANTS["tile32"], CUDA_TILES[2])
    assert prices_of_offer(tile, "float16", CUDA_ARCHS["sm_80"])[0] == 2 * launch


def test_few_live_columns_make_lists_pay() -> None:
    """What the device will choose for 4096 x 3072 by 3072 x 768, by what lives in a group."""
    rows, k, n, groups = 4096, 3072, 768, 128
    arch = CUDA_ARCHS["sm_80"]
    chosen = {}
    for live in (60, 300, k):
        totals = {"strips": live * groups, "segments": rows * k // 64, "squares": rows * k // 1024}
        times = {}
        for offer in offers_of("float16"):
            if offer.variant.name == "tile16":
                continue  # is for few rows
            summed = 256 if offer.variant.kind == "block" else 0
            line = line_of(offer.variant, offer.tile, "float16", arch.processors, summed)
            amounts = features_of(line, totals, (rows, k, n), k // 64)
            prices = prices_of_offer(offer, "float16", arch)
            times[offer.name] = sum(a * p for a, p in zip(amounts, prices, strict=True))
        chosen[live] = min(times, key=times.__getitem__)
    assert chosen == {60: "tile32_mma32x128", 300: "tile32_mma32x128", k: "dense_mma128x128"}


def test_prices_of_machines() -> None:
    assert prices_of("cuda") == GpuPrices()
    assert "cost_dense_v3" in dict(prices_of("cpu").table("float32"))
    with pytest.raises(ValueError, match="no prices of float16"):
        prices_of("cpu").table("float16")
