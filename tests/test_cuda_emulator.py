"""The CUDA emulator finds what is wrong with a kernel, says where, and lets right ones pass."""

import re
from collections.abc import Mapping

import numpy as np
import pytest

from tests.cuda_emulator import EmulatedText, EmulationError

N = 64
BLOCKS = 4

COPY = """
  extern __shared__ float s[];
  unsigned to = __cvta_generic_to_shared(s + threadIdx.x * 4);
  if (threadIdx.x < 16) asm volatile("cp.async.cg.shared.global [%0], [%1], SIZES;"
      : : "r"(to), "l"(x + threadIdx.x * 4 SOURCE) : "memory");
  asm volatile("cp.async.commit_group;" : : );
  asm volatile("cp.async.wait_group LEFT;" : : : "memory");
  BARRIER
  y[threadIdx.x] = s[63 - threadIdx.x];
"""


def copy(
    sizes: str = "16", source: str = "", left: str = "0", barrier: str = "__syncthreads();"
) -> str:
    """A kernel that reverses x through shared memory."""
    text = COPY.replace("SIZES", sizes).replace("SOURCE", source)
    return text.replace("LEFT", left).replace("BARRIER", barrier)


FLAG = """
  if (threadIdx.x == 0) {
    int block = atomicAdd(flag + 1, 1);
    if (block > 0) {
      int seen;
      do { READ } while (seen < block);
      y[block] = y[block - 1] + 1;
    } else {
      y[0] = 1;
    }
    RELEASE
  }
"""
ACQUIRE = 'asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");'
RELAXED = ACQUIRE.replace("acquire", "relaxed")
RELEASE = (
    'asm volatile("st.release.gpu.global.s32 [%0], %1;" : : "l"(flag), "r"(block + 1) : "memory");'
)


def chain(read: str, release: str) -> str:
    """Blocks that wait for each other, in the order of their tickets."""
    return FLAG.replace("READ", read).replace("RELEASE", release)


# Twins: a kernel that is right, one that is wrong, and what is said of the wrong one.
i = "threadIdx.x"
SHARED = f"__shared__ float s[64]; s[{i}] = x[{i}];"
TWINS: Mapping[str, tuple[str, str, str]] = {
    "past_the_end": (
        f"y[{i}] = x[{i}];",
        f"y[{i}] = x[{i} + 1];",
        r"read outside argument 0, 4 bytes past its end, by thread \(63,0,0\) of block \(0,0,0\)",
    ),
    "before_the_begin": (
        f"y[{i}] = 1;",
        f"y[(int){i} - 2] = 1;",
        "write outside argument 1, [48] bytes before it",
    ),
    "shared_end": (
        f"__shared__ float s[64]; s[{i}] = 1;",
        f"__shared__ float s[64]; s[{i} + 1] = 1;",
        "access outside shared memory, at byte 256 of 256",
    ),
    "misaligned": (
        f"if ({i} < 8) *(float4*)(y + {i} * 4) = *(float4*)(x + {i} * 4);",
        f"if ({i} < 8) *(float4*)(y + {i} * 4) = *(float4*)(x + 2 + {i} * 4);",
        "misaligned access of 16 bytes to byte .* of argument 0",
    ),
    "misaligned_shared": (
        f"__shared__ float s[64]; if ({i} < 32) *(float2*)(s + {i} * 2) = float2{{1, 2}};",
        f"__shared__ float s[64]; if ({i} < 31) *(float2*)(s + {i} * 2 + 1) = float2{{1, 2}};",
        "misaligned access of 8 bytes to byte .* of shared memory",
    ),
    "uninitialised_shared": (
        f"__shared__ float s[64]; s[{i}] = 0; __syncthreads(); y[{i}] = s[63 - {i}];",
        f"__shared__ float s[64]; if ({i}) s[{i}] = 0; __syncthreads(); y[{i}] = s[63 - {i}];",
        "byte 0 of shared memory is read before anything was written there",
    ),
    "race": (
        f"{SHARED} __syncthreads(); y[{i}] = s[63 - {i}];",
        f"{SHARED} y[{i}] = s[{i} ^ 32];",
        "race: byte .* of shared memory was written by .* without a barrier|read before anything",
    ),
    "race_after_reading": (
        f"{SHARED} __syncthreads(); float v = s[63 - {i}]; __syncthreads(); s[{i}] = v;",
        f"{SHARED} __syncthreads(); float v = s[63 - {i}]; s[{i}] = v;",
        "race: byte .* of shared memory was .* without a barrier between",
    ),
    "race_of_writes": (
        f"__shared__ float s[64]; s[{i} / 2] = 3;",  # of the same value
        f"__shared__ float s[64]; s[{i} / 2] = {i};",
        "race: byte .* of shared memory was written by .* and is written without a barrier between",
    ),
    "race_in_warp": (
        f"{SHARED} __syncwarp(); y[{i}] = s[{i} ^ 1];",
        f"{SHARED} __shfl_xor_sync(~0u, 1, 1); y[{i}] = s[{i} ^ 1];",  # orders no memory
        "race: byte .* of shared memory was written by .* and is read without a barrier between",
    ),
    "race_in_global_memory": (
        f"y[{i}] = 1; __syncthreads(); x[{i}] = y[63 - {i}];",
        f"y[{i}] = 1; x[{i}] = y[{i} ^ 32];",
        "race: byte .* of argument 1 was .* without a barrier between",
    ),
    "barrier": (
        f"if (n > 0) __syncthreads(); y[{i}] = 1;",
        f"if ({i} < 40) __syncthreads(); y[{i}] = 1;",
        r"threads part at a barrier: thread \(0,0,0\) of block \(0,0,0\) is at a barrier at line",
    ),
    "two_barriers": (
        "__syncthreads();",
        f"if ({i} < 32) {{ __syncthreads(); }} else {{ __syncthreads(); }}",
        "threads part at a barrier: .* is at a barrier at .* is at a barrier at",
    ),
    "collective": (
        f"int v = __shfl_xor_sync(~0u, {i}, 1); if ({i} < 5) y[{i}] = v; __syncthreads();",
        f"if ({i} < 5) y[{i}] = __shfl_xor_sync(~0u, {i}, 1); __syncthreads();",
        "threads part at a collective: .* is at a collective at line .* is at a barrier at line",
    ),
    "two_collectives": (
        f"if ({i} < 32) __syncwarp(); else __syncwarp();",
        f"if ({i} % 2) __syncwarp(); else __syncwarp();",
        "threads part at a collective",
    ),
    "mask": (
        f"if ({i} % 32 < 4) __syncwarp(15);",
        f"if ({i} % 32 < 5) __syncwarp(15);",
        "a collective's mask leaves out its caller, by thread .4,",
    ),
    "shuffle_from_nobody": (
        f"if ({i} % 32 >= 30) return; y[{i}] = __shfl_sync(~0u, x[{i}], 29);",
        f"if ({i} % 32 >= 30) return; y[{i}] = __shfl_sync(~0u, x[{i}], 30);",
        "a shuffle reads a lane that has returned",
    ),
    "copy_in_flight": (
        copy(),
        copy(left="1"),
        "cp.async may still write byte 252 of shared memory",
    ),
    "copy_of_others": (copy(), copy(barrier=""), "byte 252 of shared memory is read before"),
    "copy_misaligned": (
        copy(source="+ 0"),
        copy(source="- 1"),
        "misaligned cp.async from|before it",
    ),
    "copy_past_the_end": (
        copy("16, 16"),
        copy("16, 16", "+ 4"),
        "read outside argument 0, 16 bytes past its end",
    ),
    "copy_size": (copy("16, 8"), copy("8"), "cp.async of 8 bytes"),
    "blocks_read": (
        f"if (blockIdx.x == 0) y[{i}] = 1;",
        f"if (blockIdx.x == 0) y[{i}] = 1; else x[{i}] = y[{i}];",
        "race: byte 0 of argument 1 was written by .* of block .0,0,0. and is read "
        "without release and acquire between, by .* of block .1,0,0.",
    ),
    "blocks_write": (
        f"y[{i}] = 3;",
        f"y[{i}] = blockIdx.x;",
        "race: .* was written by .* of block .0,0,0. and is written without release and acquire",
    ),
    "blocks_write_what_was_read": (
        f"float v = y[{i}]; if (n < 0) y[{i}] = v;",
        f"float v = y[{i}]; if (blockIdx.x == 1) y[{i}] = v + 1;",
        "race: .* was read by .* and is written without release and acquire between",
    ),
    "atomic_and_plain": (
        "atomicAdd(flag, 1);",
        "if (blockIdx.x) atomicAdd(flag, 1); else flag[0] = 0;",
        "race: byte 0 of argument 2 was written",
    ),
    "fences": (
        chain(
            "seen = *(volatile int*)flag; __threadfence();", "__threadfence(); atomicAdd(flag, 1);"
        ),
        chain("seen = *(volatile int*)flag; __threadfence();", "atomicAdd(flag, 1);"),
        "race: .* of argument 1 was written by .* without release and acquire between",
    ),
    "acquire": (
        chain(ACQUIRE, RELEASE),
        chain(RELAXED, RELEASE),
        "race: .* of argument 1 was written by .* without release and acquire between",
    ),
    "release": (
        chain(ACQUIRE, RELEASE),
        chain(ACQUIRE, "*(volatile int*)flag = block + 1;"),
        "race: .* of argument 1 was written by .* without release and acquire between",
    ),
    "waits": (
        "while (*(volatile int*)flag < 0) {}",
        "while (*(volatile int*)flag < 1) {}",
        "waits for ever: no thread that can still run writes byte 0 of argument 2, by thread .0,",
    ),
}


def source(bodies: Mapping[str, str]) -> str:
    """Kernels with these bodies, each on lines of its own."""
    head = "(float* __restrict__ x, float* __restrict__ y, int* __restrict__ flag, int n)"
    return "".join(
        f'extern "C" __global__ void __launch_bounds__(64) {name}{head} {{\n{body}\n}}\n'
        for name, body in bodies.items()
    )


@pytest.fixture(name="twins", scope="module")
def _twins() -> EmulatedText:
    right = {f"{name}_right": twin[0] for name, twin in TWINS.items()}
    return EmulatedText(source(right | {f"{name}_wrong": twin[1] for name, twin in TWINS.items()}))


def blocks_of(name: str) -> int:
    """How many blocks a twin is for: those about other blocks run in several."""
    several = ("blocks", "atomic", "fences", "acquire", "release")
    return BLOCKS if name.startswith(several) else 1


@pytest.mark.parametrize("name", TWINS)
def test_twins(twins: EmulatedText, name: str) -> None:
    _, _, message = TWINS[name]
    shared = 256 if name.startswith("copy") else 0

    def run(kernel: str) -> None:
        x, y, flag = np.arange(N, dtype=np.float32), np.zeros(N, np.float32), np.zeros(2, np.int32)
        twins.launch(kernel, (blocks_of(name),), (N,), x, y, flag, 3, shared=shared)

    run(f"{name}_right")
    with pytest.raises(EmulationError, match=f"{name}_wrong: {message}") as raised:
        run(f"{name}_wrong")
    number = re.search(r"at line (\d+)", str(raised.value))
    assert number, raised.value
    lines = twins.source.splitlines()
    kernel = [line for line in lines[: int(number[1])] if "__global__" in line][-1]
    assert f" {name}_wrong(" in kernel
    with twins.backwards():
        run(f"{name}_right")
    with twins.shuffled(7):
        run(f"{name}_right")
