"""What the CUDA emulator knows of CUDA: types, warps, atomics, PTX; against NumPy."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.cuda_emulator import EmulatedText, EmulationError, build_module, build_run_time
from tests.cuda_emulator.text import translate

Array = np.ndarray[Any, Any]
LANES = np.arange(32)
HEAD = 'extern "C" __global__ void __launch_bounds__(32)'

# Of a warp: an expression of the lane, and what every lane gets.
WARP: Mapping[str, tuple[str, Array]] = {
    "shuffle": ("__shfl_sync(~0u, lane * 10, lane * 3)", LANES * 3 % 32 * 10),
    "shuffle_half_warp": (
        "__shfl_sync(~0u, lane, lane + 1, 16)",
        LANES // 16 * 16 + (LANES + 1) % 16,
    ),
    "shuffle_xor": ("__shfl_xor_sync(~0u, lane, 5)", LANES ^ 5),
    "shuffle_xor_8": ("__shfl_xor_sync(~0u, lane, 3, 8)", LANES ^ 3),
    "shuffle_down": ("__shfl_down_sync(~0u, lane, 4)", np.where(LANES < 28, LANES + 4, LANES)),
    "shuffle_up": ("__shfl_up_sync(~0u, lane, 4)", np.where(LANES >= 4, LANES - 4, LANES)),
    "shuffle_up_8": ("__shfl_up_sync(~0u, lane, 4, 8)", np.where(LANES % 8 >= 4, LANES - 4, LANES)),
    "shuffle_64_bits": (
        "(int)(__shfl_xor_sync(~0u, (long long)lane << 40, 1) >> 40)",
        LANES ^ 1,
    ),
    "shuffle_half": ("(int)__shfl_xor_sync(~0u, (half)lane, 1)", LANES ^ 1),
    "shuffle_float": ("(int)(2 * __shfl_xor_sync(~0u, lane + 0.5f, 1))", (LANES ^ 1) * 2 + 1),
    "ballot": ("(int)__ballot_sync(~0u, lane % 3 == 0)", np.full(32, 0x49249249)),
    "any": ("__any_sync(~0u, lane == 31) + __any_sync(~0u, lane > 31)", np.ones(32)),
    "all": ("__all_sync(~0u, lane >= 0) + 2 * __all_sync(~0u, lane > 0)", np.ones(32)),
    "add": ("__reduce_add_sync(~0u, lane - 20)", np.full(32, 31 * 16 - 640)),
    "min": ("__reduce_min_sync(~0u, lane - 20)", np.full(32, -20)),
    "max": ("__reduce_max_sync(~0u, lane - 40)", np.full(32, -9)),
    "unsigned_min": ("(int)__reduce_min_sync(~0u, lane - 1u)", np.zeros(32)),
    "unsigned_max": ("(int)__reduce_max_sync(~0u, lane - 1u)", np.full(32, -1)),
    "or": ("(int)__reduce_or_sync(~0u, 1u << lane % 5)", np.full(32, 31)),
    "and": ("(int)__reduce_and_sync(~0u, lane | 64u)", np.full(32, 64)),
    "xor": ("(int)__reduce_xor_sync(~0u, 1u << lane % 31)", np.full(32, (1 << 31) - 1 - 1)),
    "part_of_a_warp": (
        "lane < 8 ? __reduce_add_sync(255u, lane) : __reduce_add_sync(~255u, lane)",
        np.where(LANES < 8, 28, 496 - 28),
    ),
    "popc": ("__popc(lane) + __popcll(~0ull)", np.bitwise_count(LANES) + 64),
    "ffs": ("__ffs(lane)", np.frexp(LANES & -LANES)[1]),
    "clz": ("__clz(lane)", 32 - np.frexp(LANES)[1]),
    "min_max": (
        "min(lane, 7) + max((int64_t)lane, (int64_t)20)",
        np.minimum(LANES, 7) + np.maximum(LANES, 20),
    ),
    "bits": ("__float_as_int(1.f) + (int)__int_as_float(0x40000000)", np.full(32, 0x3F800002)),
}


@pytest.fixture(name="warp", scope="module")
def _warp() -> EmulatedText:
    text = ""
    for name, (expression, _) in WARP.items():
        body = f"int lane = threadIdx.x; out[lane] = {expression};"
        text += f"{HEAD} k_{name}(int* __restrict__ out) {{\n{body}\n}}\n"
    return EmulatedText(text)


@pytest.mark.parametrize("name", WARP)
def test_warps(warp: EmulatedText, name: str) -> None:
    out = np.zeros(32, np.int32)
    warp.launch(f"k_{name}", (1,), (32,), out)
    np.testing.assert_array_equal(out, WARP[name][1])


# Atomics: a statement on a word that starts as 5, run by lanes 0..31, and what stands there then.
ATOMICS: Mapping[str, tuple[str, int]] = {
    "add": ("atomicAdd(word, lane)", 5 + 496),
    "max": ("atomicMax(word, lane)", 31),
    "min": ("atomicMin(word, lane)", 0),
    "or": ("atomicOr(word, 1 << lane % 3)", 7),
    "and": ("atomicAnd(word, ~(lane & 1))", 4),
    "exchange": ("if (lane == 3) atomicExch(word, 9)", 9),
    "compare": ("if (lane == 3) atomicCAS(word, 5, 11); if (lane == 4) atomicCAS(word, 5, 12)", 11),
    "red": (
        'asm volatile("red.relaxed.gpu.global.add.s32 [%0], %1;" : : "l"(word), "r"(lane))',
        501,
    ),
    "atom": (
        'int old; asm volatile("atom.acq_rel.gpu.global.max.s32 %0, [%1], %2;" '
        ': "=r"(old) : "l"(word), "r"(lane) : "memory")',
        31,
    ),
    "store": (
        'if (lane == 7) asm("st.relaxed.gpu.global.u32 [%0+0], %1;" : : "l"(word), "r"(lane))',
        7,
    ),
}


@pytest.fixture(name="atomics", scope="module")
def _atomics() -> EmulatedText:
    text = ""
    for name, (statement, _) in ATOMICS.items():
        body = f"int lane = threadIdx.x; {statement};"
        text += f"{HEAD} k_{name}(int* __restrict__ word) {{\n{body}\n}}\n"
    return EmulatedText(text)


@pytest.mark.parametrize("name", ATOMICS)
def test_atomics(atomics: EmulatedText, name: str) -> None:
    for blocks in (1, 2):
        word = np.array([5], np.int32)
        if name in ("add", "red"):
            word[0] -= (blocks - 1) * 496
        atomics.launch(f"k_{name}", (blocks,), (32,), word)
        assert word == ATOMICS[name][1]


FLOATS = np.array(
    [
        *[0.0, -0.0, 1.0, -1.5, 0.1, 3e-39, -3e-39, 65504.0, 65519.9, 70000.0, 1e30, -1e-30],
        *[np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 6e-8],
        *[1 + 2**-12, 126.5, -126.5, -150.0, 1 + 2**-11 + 2**-13, 0.7, 2.5, 3.5, 7.0, 8.0, 9.0],
        10.0,
    ],
    np.float32,
)


def tf32(x: Array) -> Array:
    """To nearest, ties away from zero."""
    kept = ((x.view(np.uint32).astype(np.uint64) + 0x1000) & 0xFFFFE000).astype(np.uint32)
    return np.where(np.isfinite(x), kept.view(np.float32), x)


def flushed(x: Array) -> Array:
    """Denormals are 0 of the same sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def unary(instruction: str) -> str:
    return f'float y; asm("{instruction} %0, %1;" : "=f"(y) : "f"(x)); out[lane] = y;'


with np.errstate(all="ignore"):
    # Of numbers: statements on a float x, and what they store.
    NUMBERS: Mapping[str, tuple[str, Array]] = {
        "half": ("out[lane] = (float)(half)x;", FLOATS.astype(np.float16)),
        "half_function": (
            "out[lane] = __half2float(__float2half_rn(x));",
            FLOATS.astype(np.float16),
        ),
        "bfloat": ("out[lane] = (float)(nv_bfloat16)x;", FLOATS.astype(ml_dtypes.bfloat16)),
        "bfloat_sum": (
            "out[lane] = (float)((nv_bfloat16)x + (nv_bfloat16)0.3f);",
            np.add(FLOATS.astype(ml_dtypes.bfloat16), np.array(0.3, ml_dtypes.bfloat16)),
        ),
        "half_sum": (
            "out[lane] = (float)((half)x * (half)0.3f + (half)1.f);",
            FLOATS.astype(np.float16) * np.float16(0.3) + np.float16(1),
        ),
        "half2": (
            "half2 h = __floats2half2_rn(1.f, x); out[lane] = __half22float2(h).y;",
            FLOATS.astype(np.float16),
        ),
        "half4": (
            "half4 h = {1, 2, 3, (half)x}; out[lane] = (float)h.w;",
            FLOATS.astype(np.float16),
        ),
        "cvt_f16x2": (
            'unsigned u; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(1.f), "f"(x));'
            "out[lane] = (float)((half*)&u)[0] + 8 * (float)((half*)&u)[1];",
            FLOATS.astype(np.float16).astype(np.float32) + 8,
        ),
        "cvt_bf16x2": (
            'unsigned u; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(x), "f"(1.f));'
            "out[lane] = (float)((nv_bfloat16*)&u)[1];",
            FLOATS.astype(ml_dtypes.bfloat16),
        ),
        "cvt_tf32": (
            'unsigned u; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));'
            "out[lane] = __uint_as_float(u);",
            tf32(FLOATS),
        ),
        "exp2": (unary("ex2.approx.ftz.f32"), flushed(np.exp2(flushed(FLOATS)))),
        "reciprocal": (unary("rcp.approx.ftz.f32"), flushed(1 / flushed(FLOATS))),
        "tanh": (unary("tanh.approx.f32"), np.tanh(FLOATS)),
        "functions": (
            "out[lane] = __expf(x) + rsqrtf(x) + __fdividef(x, 3.f) + __frcp_rn(x);",
            np.exp(FLOATS) + 1 / np.sqrt(FLOATS) + FLOATS / np.float32(3) + 1 / FLOATS,
        ),
        "max": ("out[lane] = max(x, 0.f);", np.fmax(FLOATS, np.float32(0))),
        "no_contraction": (
            "float a = 1 + 1.f / 4096; out[lane] = a * a - (x - x + 1);",
            np.float32(2.0**-11) + (FLOATS - FLOATS),
        ),
        "fma": (
            "float a = 1 + 1.f / 4096; out[lane] = fmaf(a, a, x - x - 1) + __fmaf_rn(0.f, a, 0.f);",
            np.float32(2.0**-11 + 2.0**-24) + (FLOATS - FLOATS),
        ),
    }


@pytest.fixture(name="numbers", scope="module")
def _numbers() -> EmulatedText:
    text = "struct __align__(8) half4 { half x, y, z, w; };\n"  # TVM's text has its own
    for name, (statement, _) in NUMBERS.items():
        body = f"int lane = threadIdx.x; float x = in[lane]; {statement}"
        parameters = "float* __restrict__ in, float* __restrict__ out"
        text += f"{HEAD} k_{name}({parameters}) {{\n{body}\n}}\n"
    return EmulatedText(text)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(numbers: EmulatedText, name: str) -> None:
    out = np.zeros(32, np.float32)
    numbers.launch(f"k_{name}", (1,), (32,), FLOATS, out)
    want = NUMBERS[name][1].astype(np.float32)
    if name in ("exp2", "reciprocal", "tanh", "functions"):
        np.testing.assert_allclose(out, want, rtol=1e-6)
    else:
        np.testing.assert_array_equal(out, want)
        zeros = want == 0
        np.testing.assert_array_equal(np.signbit(out[zeros]), np.signbit(want[zeros]))


def test_unknown_instruction() -> None:
    body = 'int x; asm("frobnicate.sync.b32 %0, 3;" : "=r"(x));'
    with pytest.raises(EmulationError, match="ptx_frobnicate_sync_b32"):
        EmulatedText(f"{HEAD} k(int* __restrict__ out) {{ {body} }}")


def test_translation_keeps_lines() -> None:
    text = """
asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global.L2::128B "
  "[%0], [%1], 16; }"
  :  : "r"(a), "l"(f(b, c)),
  "r"(d) : "memory");
__asm__ __volatile__("ld.volatile.global.f32 %0, [%1+8];" : "=f"(x[0]) : "l"(p));
__shared__ alignas(64) signed char s[128];
"""
    lines = translate(text).splitlines()
    assert len(lines) == len(text.splitlines())
    assert lines[1] == "if (d) ptx_cp_async_cg_shared_global(a, f(b, c), 16)"
    assert lines[5] == "ptx_ld_volatile_global<float>(x[0], emulator::Offset(p, 8));"
    place = "*(signed char(*)[128])emulator::Shared(0, sizeof(signed char) * 128)"
    assert lines[6] == f"signed char (&s)[128] = {place};"


def test_module_is_a_file(tmp_path: Any) -> None:
    path = build_module(f"{HEAD} k(int* __restrict__ out) {{ out[0] = 1; }}", tmp_path)
    assert path.parent == tmp_path
    assert b"emulated_k\0" in path.read_bytes() and b"libcuda_emulator.so\0" in path.read_bytes()
    assert build_run_time(tmp_path) == tmp_path / "libcuda_emulator.so"
