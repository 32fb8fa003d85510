"""CUDA sources of the build tests, and what nvcc says of them."""

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pitc.codegen import collective, tir
from pitc.codegen.build.cuda_compiler import OPTIONS
from pitc.codegen.build.cuda_module import cuda_module
from pitc.codegen.families import choose_cuda, detect_cuda, lists_cuda
from pitc.codegen.tir import Expr, T
from tests.cuda_emulator import ARCH

BLOCK_WARPS = 8
ARCHS = (80, 86, 89, 90, 100, 120)
NVCC = shutil.which("nvcc")

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")

ADD_ONE = 'extern "C" __global__ void add_one(float* x) { x[threadIdx.x] += 1.0f; }\n'

USES = """
// More values than a thread of so large a block has registers.
extern "C" __global__ void __launch_bounds__(1024) spilling(float* x) {
  float value[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) value[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i)
    x[i * 1024 + threadIdx.x] = fmaf(value[i], value[(i * 7 + 3) % 96], value[i * 13 % 96]);
}
extern "C" __global__ void __launch_bounds__(512) spilling_twins(double* x) {
  double value[70];
#pragma unroll
  for (int i = 0; i < 70; ++i) value[i] = x[i * 512 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 70; ++i)
    x[i * 512 + threadIdx.x] = fma(value[i], value[(i * 11 + 5) % 70], value[i * 3 % 70]);
}
extern "C" __global__ void __launch_bounds__(64) sharing(float* x) {
  __shared__ float held[1000];
  for (int i = threadIdx.x; i < 1000; i += 64) held[i] = x[i];
  __syncthreads();
  x[threadIdx.x] = held[999 - threadIdx.x];
}
extern "C" __global__ void sharing_as_asked(float* x) {
  extern __shared__ float held[];
  held[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = held[31 - threadIdx.x];
}
// Arrays whose places are known only when it runs, one of them in a function that is called.
__device__ __noinline__ float looked_up(const float* x, int n) {
  float held[24];
#pragma unroll 1
  for (int i = 0; i < 24; ++i) held[i * n % 24] = x[i];
  return held[n % 24];
}
extern "C" __global__ void calling(float* x, int n) { x[0] = looked_up(x, n); }
extern "C" __global__ void indexing(float* x, int n) {
  float held[16];
#pragma unroll 1
  for (int i = 0; i < 16; ++i) held[i * n % 16] = x[i];
  x[0] = held[n % 16] + held[n % 5] + held[n % 3];
}
extern "C" __global__ void plain(float* x) { x[threadIdx.x] = 1.0f; }
"""


@functools.cache
def detector() -> str:
    """The detector's source; it is the same for every architecture."""
    return cuda_module(detectors(), ARCH).source


def detectors() -> list[Any]:
    """Functions that detect zeros, choose a variant and make its lists."""
    params = {"dtype": "float16", "width": 64, "height": 32}
    return [
        detect_cuda.detect("detect", params),
        choose_cuda.choose("choose", params),
        lists_cuda.lists("lists", params),
    ]


@contextmanager
def warps(jobs: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Launch one warp for each of 0..jobs-1; the context value is (job, lane), both int64."""
    # A grid of no block is an error of the driver.
    blocks = tir.larger(tir.int64(1), (jobs + BLOCK_WARPS - 1) // BLOCK_WARPS)
    with (
        T.launch_thread("blockIdx.x", blocks) as block,
        T.launch_thread("threadIdx.y", BLOCK_WARPS) as warp,
        T.launch_thread("threadIdx.x", 32) as lane,
    ):
        job = tir.bind(T.Cast("int64", block) * BLOCK_WARPS + T.Cast("int64", warp))
        with tir.when(job < jobs):
            yield job, T.Cast("int64", lane)


def three_launches() -> Any:
    """A function of three kernels of warps."""

    def body() -> None:
        counts, sums = (tir.tensor(name, (tir.size(),), "int32") for name in ("counts", "sums"))
        for place in range(3):
            with warps(tir.int64(1)) as (_, lane):
                tir.assign(sums, collective.total(counts[lane]), place)

    return tir.prim_func("three_launches", body)


@dataclass(frozen=True, slots=True)
class Report:
    """What `ptxas -v` says of a kernel."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_stores: int
    spill_loads: int


def nvcc_report(source: str, arch: int, folder: Path) -> tuple[bytes, dict[str, Report]]:
    """The cubin by nvcc, and its report for each kernel."""
    (folder / "report.cu").write_text(source)
    command = [str(NVCC), *OPTIONS, f"-arch=sm_{arch}", "-cubin", "-Xptxas", "-v", "report.cu"]
    done = subprocess.run(
        [*command, "-o", "report.cubin"], cwd=folder, check=True, capture_output=True, text=True
    )
    reports = {}
    for text in done.stderr.split("Function properties for ")[1:]:

        def number(pattern: str, text: str = text) -> int:
            found = re.search(rf"(\d+) {pattern}", text)
            return int(found[1]) if found else 0

        words = (
            "registers",
            "bytes smem",
            "bytes cumulative stack",
            "bytes spill st",
            "bytes spill l",
        )
        if number("registers"):  # a kernel's, not that of a function that it calls
            reports[text.split()[0]] = Report(*map(number, words))
    return (folder / "report.cubin").read_bytes(), reports


def reverse_rows() -> Any:
    """A function whose kernel has dynamic shared memory and another order of launch numbers."""

    def body() -> None:
        count = tir.size()
        x, out = (tir.tensor(name, (count, 64)) for name in ("x", "out"))
        with (
            T.launch_thread("blockIdx.y", count) as row,
            T.launch_thread("threadIdx.x", 64) as lane,
        ):
            held = T.alloc_buffer((64,), "float32", scope="shared.dyn")
            tir.assign(held, x[row, lane], lane)
            T.evaluate(T.tvm_storage_sync("shared"))
            tir.assign(out, held[63 - lane], row, lane)

    return tir.prim_func("reverse_rows", body)


def halves() -> Any:
    """A function of the types of 16 bits: converted in pairs, compared, and held in common."""

    def body() -> None:
        count = tir.size()
        x = tir.tensor("x", (count, 64), "float16")
        y = tir.tensor("y", (count, 64), "bfloat16")
        with (
            T.launch_thread("blockIdx.x", count) as row,
            T.launch_thread("threadIdx.x", 32) as lane,
        ):
            held = T.alloc_buffer((64,), "bfloat16", scope="shared")
            with T.vectorized(2) as v:
                wide = T.Cast("float32", x[row, lane * 2 + v])
                tir.assign(held, T.Cast("bfloat16", wide), lane * 2 + v)
            T.evaluate(T.tvm_storage_sync("shared"))
            tir.assign(y, T.max(held[lane], held[63 - lane]), row, lane)

    return tir.prim_func("halves", body)


def calls_nothing() -> Any:
    """A function whose source no compiler takes."""

    def body() -> None:
        out = tir.tensor("out", (tir.size(),))
        with T.launch_thread("threadIdx.x", 32) as lane:
            tir.assign(out, T.call_extern("float32", "absent_function", lane), lane)

    return tir.prim_func("calls_nothing", body)
