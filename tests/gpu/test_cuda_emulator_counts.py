"""What the CUDA emulator counts: traffic of global and shared memory, work, all by line."""

import numpy as np
import pytest

from tests.cuda_emulator import EmulatedText


def one(body: str) -> EmulatedText:
    """One kernel `k`."""
    parameters = "float* __restrict__ x, float* __restrict__ y"
    return EmulatedText(f'extern "C" __global__ void k({parameters}) {{\n{body}\n}}\n')


@pytest.fixture(name="strides", scope="module")
def _strides() -> EmulatedText:
    """Accesses of a warp with a stride that is given."""
    head = 'extern "C" __global__ void __launch_bounds__(32)'
    text = ""
    for kind, zero in (("float", "0.f"), ("float2", "make_float2(0, 0)"), ("float4", "v")):
        body = f"__shared__ alignas(64) {kind} s[1100]; float4 v = make_float4(1, 2, 3, 4);"
        text += f"{head} shared_{kind}(int n) {{\n{body} s[threadIdx.x * n] = {zero};\n}}\n"
        body = f"float4 v = make_float4(1, 2, 3, 4); x[threadIdx.x * n] = {zero};"
        text += f"{head} stores_{kind}({kind}* __restrict__ x, int n) {{\n{body}\n}}\n"
        body = f"__shared__ alignas(64) {kind} s[32]; s[threadIdx.x] = x[threadIdx.x * n];"
        text += f"{head} loads_{kind}({kind}* __restrict__ x, int n) {{\n{body}\n}}\n"
    return EmulatedText(text)


WAVEFRONTS = [
    # type, stride in elements: wavefronts needed, and without conflicts
    *[("float", 0, 1, 1), ("float", 1, 1, 1), ("float", 2, 2, 1), ("float", 32, 32, 1)],
    *[("float", 33, 1, 1), ("float2", 1, 2, 2), ("float2", 16, 32, 2), ("float2", 17, 2, 2)],
    *[("float4", 1, 4, 4), ("float4", 2, 8, 4), ("float4", 8, 32, 4), ("float4", 9, 4, 4)],
]


@pytest.mark.parametrize(("kind", "stride", "wavefronts", "ideal"), WAVEFRONTS, ids=str)
def test_counts_wavefronts(
    strides: EmulatedText, kind: str, stride: int, wavefronts: int, ideal: int
) -> None:
    counts = strides.launch(f"shared_{kind}", (1,), (32,), stride)
    assert (counts.shared_requests, counts.shared_wavefronts) == (1, wavefronts)
    assert counts.shared_ideal == ideal
    lost = strides.losses()
    assert [row[1] for row in lost] == ([wavefronts - ideal] if wavefronts > ideal else [])
    assert all(strides.source.splitlines()[row[0] - 1].strip() == row[3] for row in lost)


@pytest.mark.parametrize("what", ["loads", "stores"])
@pytest.mark.parametrize(
    ("kind", "stride", "sectors"),
    [("float", 1, 4), ("float", 2, 8), ("float", 8, 32), ("float2", 1, 8), ("float4", 1, 16)],
)
def test_counts_sectors(
    strides: EmulatedText, what: str, kind: str, stride: int, sectors: int
) -> None:
    width = {"float": 1, "float2": 2, "float4": 4}[kind]
    x = np.zeros(32 * stride * width, np.float32)
    c = strides.launch(f"{what}_{kind}", (1,), (32,), x, stride)
    loads = (c.load_requests, c.load_sectors, c.load_bytes, c.unique_read)
    stores = (c.store_requests, c.store_sectors, c.store_bytes, c.unique_written)
    done, none = (loads, stores) if what == "loads" else (stores, loads)
    assert done == (1, sectors, 128 * width, 32 * sectors)
    assert none == (0, 0, 0, 0)
    waste = 32 * sectors - 128 * width
    assert [row[2] for row in strides.losses()] == ([waste] if waste else [])


def test_counts_what_is_done_twice_but_once_as_unique() -> None:
    emulated = one("y[threadIdx.x] = x[0] + x[threadIdx.x];\ny[40] = 1;")
    c = emulated.launch("k", (2, 2), (32,), np.zeros(32, np.float32), np.zeros(48, np.float32))
    assert (c.blocks, c.load_requests, c.load_sectors, c.unique_read) == (4, 8, 20, 128)
    assert (c.store_requests, c.unique_written) == (8, 128 + 32)
    # All but the first writer of a word wrote what stood there.
    assert c.rewritten == 3 * 32 + 127


def test_counts_by_line() -> None:
    emulated = one("y[threadIdx.x] = x[threadIdx.x];\n__syncthreads();\natomicAdd(x, 1);")
    emulated.launch("k", (1,), (64,), np.zeros(64, np.float32), np.zeros(64, np.float32))
    lines = {line.number: line for line in emulated.lines()}
    assert sorted(lines) == [2, 3, 4]
    assert lines[2].text == "y[threadIdx.x] = x[threadIdx.x];"
    assert (lines[2].counts.load_sectors, lines[2].counts.store_sectors) == (8, 8)
    assert (lines[3].counts.barriers, lines[4].counts.atomics) == (1, 64)
    total = emulated.launches[0].counts
    assert sum(line.counts.store_bytes for line in lines.values()) == total.store_bytes


def test_counts_multiply_adds() -> None:
    """Those of kernels and of the functions that they call."""
    head = "__forceinline__ __device__ void fma_of(float& d, float a) {\n"
    head += 'asm volatile("fma.rn.f32 %0, %1, %1, %1;" : "=f"(d) : "f"(a));\n}\n'
    body = "float v = x[threadIdx.x];\nfor (int i = 0; i < n; ++i) v = fmaf(v, 2.f, 1.f);\n"
    body += "if (threadIdx.x < 3) fma_of(v, v);\nx[threadIdx.x] = v;\n"
    kernel = f'extern "C" __global__ void k(float* __restrict__ x, int n) {{\n{body}}}\n'
    x = np.zeros(32, np.float32)
    counts = EmulatedText(head + kernel).launch("k", (1,), (32,), x, 5)
    assert counts.fmas == 32 * 5 + 3
    assert x[0] == 31 * 31 + 31 and x[31] == 31
