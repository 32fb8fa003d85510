"""What kernels of GPUs may use: registers, shared memory and no spill, on every architecture."""

import functools
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from pitc.codegen import tir
from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.cubin import KernelResources, kernel_resources
from pitc.codegen.build.cuda_functions import cuda_functions, functions_of
from pitc.codegen.build.find_cuda import find_cuda_compiler
from pitc.codegen.build.kernel_keys import Key
from pitc.codegen.engines.attend_grad import GradientPieces
from pitc.codegen.engines.attend_mma import FragmentAttention
from pitc.codegen.engines.attend_simt import ThreadAttention
from pitc.codegen.families import contract_cuda
from pitc.codegen.families.pair_tests_cuda import Places
from pitc.errors import MachineError
from pitc.ir.attention_tile import GradientTile
from pitc.ir.cuda_target import CUDA_ARCHS, CUDA_TILES
from pitc.ir.kernel import KernelRequest
from tests.cuda_budgets import BUDGETS, REGISTERS, Budget, budget_of
from tests.gpu.test_cuda_elementwise import CROWDED, FLAT, NORM
from tests.kept_code import cuda_module

ALL = "PITC_ALL_CUBINS"
"""Where it is set, each kernel is compiled for each architecture, not for one in rotation."""
DTYPES = ("float16", "bfloat16", "float32")
PLAIN: dict[str, int | str] = {"activation": "none", "residual": 0}
FULL: dict[str, int | str] = {"activation": "gelu", "residual": 1}
FORMS: tuple[tuple[str, dict[str, int | str]], ...] = (
    ("gather_gemm", PLAIN),
    ("gather_gemm", FULL | {"bits": 1}),
    ("gather_gemm", FULL | {"k": 1}),
    ("gather_gemm", PLAIN | {"stored": "kn"}),
    ("gather_gemm", PLAIN | {"stored": "nk"}),
    ("gather_gemm", PLAIN | {"grouped": 1}),
    ("contract_tile", FULL),
    ("contract_square", FULL),
    ("contract_square", FULL | {"k": 1}),
    ("contract_block", FULL),
    ("detect", {}),
    ("detect", {"k": 1}),
    ("detect", {"bits": 1}),
    ("choose", {}),
    ("lists", {}),
    ("lists", {"k": 1}),
    *(("attention", {"d": d, "dv": d, "bias": bias}) for d in (64, 128, 256) for bias in (0, 1)),
)
"""Families, and what their kernels are asked for; `k` = 1: rows start anywhere."""
OTHERS = [
    *(KernelRequest.of_cuda(family, "int8") for family in ("pack", "unpack")),
    KernelRequest.of("live_points", "bool", "cuda"),
    KernelRequest.of("group_rows", "int64", "cuda"),
    *(
        KernelRequest.of("elementwise", "float32", "cuda", kinds=kinds, formula=formula)
        for kinds, formula in (NORM, CROWDED, FLAT["comparisons"])
    ),
    *(
        KernelRequest.of_cuda("attention_grad", "float32", d=d, dv=d, bias=bias)
        for d in (64, 128, 256)
        for bias in (0, 1)
    ),
]
"""Kernels that there are in one type alone."""
REQUESTS = [
    *(KernelRequest.of_cuda(family, dtype, **form) for family, form in FORMS for dtype in DTYPES),
    *OTHERS,
]


def over(used: KernelResources, budget: Budget) -> list[str]:
    """What of a budget a kernel exceeds."""
    limits = {
        "stack": (used.stack_bytes, 0),
        "spills": (used.stored_bytes + used.loaded_bytes, 0),
        "registers": (used.registers, budget.registers),
        "threads": (used.max_threads, budget.threads),
        "static shared memory": (used.shared_bytes, 0),
    }
    return [f"{name} {is_} > {most}" for name, (is_, most) in limits.items() if is_ > most]


def used_by(function: Any, arch: str) -> KernelResources:
    """What the kernel of a function uses."""
    try:
        compiler = find_cuda_compiler()
    except MachineError as error:
        pytest.skip(error.message)
    source = cuda_module([function], "sm_80").source
    key = Key("image", source, arch, compiler.fingerprint).name
    image = kernel_cache().made(key, lambda: compiler.compile(source, arch).image)
    (used,) = kernel_resources(image)
    return used


@functools.cache
def functions(request: KernelRequest) -> tuple[Any, ...]:
    return tuple(cuda_functions(request))


def compiled() -> Iterator[tuple[KernelRequest, str]]:
    """Requests and architectures: each form in one type, for one architecture, in rotation."""
    if os.environ.get(ALL):
        yield from ((request, arch) for request in REQUESTS for arch in CUDA_ARCHS)
        return
    archs = list(CUDA_ARCHS)
    for i, (family, form) in enumerate(FORMS):
        dtype = "float32" if i % 2 else DTYPES[i // 2 % 2]
        yield KernelRequest.of_cuda(family, dtype, **form), archs[i % len(archs)]
    yield from zip(OTHERS, cycle(archs), strict=False)


@pytest.mark.parametrize(
    ("request_", "arch"), list(compiled()), ids=lambda x: getattr(x, "symbol", str(x))
)
def test_kernels_keep_to_their_budgets(request_: KernelRequest, arch: str) -> None:
    for function in functions(request_):
        symbol = str(function.attrs["global_symbol"])
        assert over(used_by(function, arch), budget_of(symbol)) == [], (symbol, arch)


def test_each_kernel_has_one_budget_and_each_budget_a_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def named(symbol: str, _: Any) -> Any:  # nobody reads the bodies
        return SimpleNamespace(attrs={"global_symbol": symbol})

    monkeypatch.setattr(tir, "prim_func", named)
    symbols = [str(f.attrs["global_symbol"]) for f in functions_of(REQUESTS)]
    assert {budget_of(symbol) for symbol in symbols} == set(BUDGETS)
    with pytest.raises(LookupError, match="has 0 budgets"):
        budget_of("gather_gemm_none_f16_mma8x8_cuda")


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: b.kernels)
def test_budgets_fit_into_each_multiprocessor(budget: Budget) -> None:
    """Where several blocks should run side by side, two have room; each takes 1 KiB more."""
    assert budget.registers * budget.threads * budget.together <= REGISTERS
    for arch in CUDA_ARCHS.values():
        if "_r" in budget.kernels:  # the runtime takes the largest that a device has room for
            fits = budget.shared_bytes <= arch.shared_bytes
            assert fits or "_r128" not in budget.kernels
        else:
            assert budget.shared_bytes <= arch.shared_bytes
            beside = min(budget.together, 2)
            assert beside * (budget.shared_bytes + 1024) <= arch.processor_shared_bytes


@pytest.mark.parametrize("kind", [FragmentAttention, ThreadAttention])
@pytest.mark.parametrize("width", [8, 64, 128, 256])
def test_heads_of_any_width_fit(kind: Any, width: int) -> None:
    for dtype in ("float32",) if kind is ThreadAttention else DTYPES:
        _, pieces = kind.plan(dtype, width, width, bias=False)
        assert all(pieces.size <= arch.shared_bytes for arch in CUDA_ARCHS.values()), dtype


LONG = "p0p1ok0aq0an"
"""A window, and tokens that see all and that all see."""
SEEN: tuple[tuple[str, int, str, str], ...] = (
    ("float16", 64, "p0n", "sm_80"),
    ("float16", 64, LONG, "sm_90"),
    ("float16", 64, "f0n", "sm_86"),
    ("float16", 128, "f0n", "sm_90"),
    ("float32", 64, "e0p0af0a", "sm_80"),
    ("bfloat16", 128, "p0p1on", "sm_120"),
    ("float32", 64, LONG, "sm_86"),
)


@pytest.mark.parametrize(("dtype", "d", "text", "arch"), SEEN)
def test_formulas_of_pairs_keep_to_the_budgets(dtype: str, d: int, text: str, arch: str) -> None:
    request = KernelRequest.of_cuda("attention", dtype, d=d, dv=d, bias=0, sees=text)
    for function in functions(request):
        symbol = str(function.attrs["global_symbol"])
        assert over(used_by(function, arch), budget_of(symbol)) == [], (symbol, arch)


@pytest.mark.parametrize(
    ("d", "text", "arch"),
    [(64, "p0", "sm_90"), (64, LONG, "sm_80"), (128, "f0n", "sm_120"), (256, LONG, "sm_86")],
)
def test_gradients_under_formulas_keep_to_the_budgets(d: int, text: str, arch: str) -> None:
    for bias in (0, 1):
        sizes = {"d": d, "dv": d, "bias": bias, "sees": text}
        for function in functions(KernelRequest.of_cuda("attention_grad", "float32", **sizes)):
            symbol = str(function.attrs["global_symbol"])
            assert over(used_by(function, arch), budget_of(symbol)) == [], (symbol, arch)


def test_gradients_of_heads_of_any_width_fit() -> None:
    for width in (8, 64, 65, 128, 129, 256):
        tile = GradientTile(width, width)
        size = GradientPieces.of(tile).size(numbers=True)
        size += Places(size // 4, tile.m, 8, 8, 8, kept=False).size
        assert all(size <= arch.shared_bytes for arch in CUDA_ARCHS.values()), width


def test_formulas_of_wide_heads_spill_little() -> None:
    """Of more than 64 float32 numbers: registers are full of sums."""
    request = KernelRequest.of_cuda("attention", "float32", d=128, dv=128, bias=0, sees=LONG)
    for function in functions(request):
        assert used_by(function, "sm_90").stack_bytes <= 64


@pytest.mark.parametrize("kind", [FragmentAttention, ThreadAttention])
def test_formulas_of_heads_of_any_width_fit(kind: Any) -> None:
    for dtype in ("float32",) if kind is ThreadAttention else DTYPES:
        for width in (8, 64, 128, 256):
            tile, pieces = kind.plan(dtype, width, width, bias=False)
            size = pieces.size + Places(pieces.size // 4, tile.m, 8, 8, 8, kept=False).size
            assert all(size <= arch.shared_bytes for arch in CUDA_ARCHS.values()), (dtype, width)


def test_a_kernel_that_spills_is_over_its_budget() -> None:
    crowded = replace(CUDA_TILES[0], together=4)  # 128 registers of a thread
    function = contract_cuda.gather_gemm("x", PLAIN | {"dtype": "float16"}, crowded)
    found = over(used_by(function, "sm_80"), BUDGETS[0])
    assert len(found) == 2 and found[0].startswith("stack") and found[1].startswith("spills")


def test_a_kernel_that_takes_more_registers_is_over_its_budget() -> None:
    function = contract_cuda.gather_gemm("x", PLAIN | {"dtype": "float16"}, CUDA_TILES[0])
    (found,) = over(used_by(function, "sm_80"), budget_of("lists_f16_h32_cuda"))
    assert found.startswith("registers")
