"""The CUDA emulator finds what is wrong with a kernel, says where, and lets right ones pass."""

import re
import signal
import subprocess
import sys
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


LAST = """
  __shared__ int s[1];
  if (threadIdx.x >= 48) x[blockIdx.x * 16 + threadIdx.x - 48] = 1;
  BARRIER
  if (threadIdx.x == 0) {
    RELEASE
    s[0] = atomicAdd(flag, 1);
    ACQUIRE
  }
  __syncthreads();
  if (s[0] == 3) y[threadIdx.x] = x[threadIdx.x];
"""


def last(barrier: str, release: str = "__threadfence();", acquire: str = "__threadfence();") -> str:
    """The block that comes last reads what all have written."""
    text = LAST.replace("BARRIER", barrier).replace("RELEASE", release)
    return text.replace("ACQUIRE", acquire)


TWICE = """
  if (threadIdx.x == 0) block[0] = atomicAdd(flag, 1);
  __syncthreads();
  if (block[0] == 0) {
    for (int turn = 0; turn < 2; ++turn) {
      if (threadIdx.x == 32) y[turn] = 1;
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();
        *(volatile int*)(flag + 1 + turn) = 1;
      }
    }
  } else if (threadIdx.x == 0) {
    while (*(volatile int*)(flag + 1) == 0) {}
    __threadfence();
    float first = y[0];
    SECOND
    x[block[0]] = first + y[1];
  }
"""


def twice(second: str) -> str:
    """One block writes and releases two words, one after the other; others read both."""
    return "__shared__ int block[1];" + TWICE.replace("SECOND", second)


OWN = """
  if (threadIdx.x != 0) return;
  int seen, block = atomicAdd(flag + 1, 1);
  if (block == 0) {
    y[0] = 1;
    asm volatile("st.release.gpu.global.s32 [%0], %1;" : : "l"(flag), "r"(1));
  } else {
    if (CONDITION) do { ACQUIRE } while (seen == 0);
    x[block] = y[0];
  }
"""


def own(condition: str) -> str:
    """Blocks that read what one has released; those of the condition acquire it."""
    return OWN.replace("ACQUIRE", ACQUIRE).replace("CONDITION", condition)


MMA = """
  float d[4] = {0, 0, 0, 0};
  unsigned a = 0;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
      "{%4, %4, %4, %4}, {%4, %4}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a));
  y[threadIdx.x] = d[0];
"""

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
    "race_with_a_reader": (
        f"{SHARED} __syncthreads(); if ({i} < 32) y[{i}] = s[{i}]; __syncthreads();"
        f"if ({i} >= 32) s[{i} - 32] = 1;",
        f"{SHARED} __syncthreads(); if ({i} < 32) y[{i}] = s[{i}]; else s[{i} - 32] = 1;",
        "race: byte 0 of shared memory was read by .* and is written without a barrier between",
    ),
    "halves_of_a_word": (
        f"__shared__ unsigned short s[64]; s[{i}] = {i}; y[{i}] = s[{i}];",
        f"__shared__ unsigned short s[64]; s[{i}] = {i}; y[{i}] = s[{i} & 62];",
        "race: byte 0 of shared memory was written by .* and is read without a barrier between",
    ),
    "race_of_vectors": (
        f"__shared__ alignas(64) float s[64]; if ({i} == 0) s[0] = 1;"
        f"if ({i} == 1) *(float4*)s = make_float4(1, 2, 3, 4);",  # one word is the same again
        f"__shared__ alignas(64) float s[64]; if ({i} == 0) s[3] = 1;"
        f"if ({i} == 1) *(float4*)s = make_float4(1, 2, 3, 4);",
        "race: byte 12 of shared memory was written by .* and is written without a barrier",
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
        f"if ({i} % 2) __syncwarp(); else __syncwarp(~0u);",
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
        f"__shared__ float s[64]; s[{i}] = y[{i}]; if (n < 0) y[{i}] = 1;",
        f"__shared__ float s[64]; s[{i}] = y[{i}]; if (blockIdx.x == 1) y[{i}] = 1;",
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
    "release_too_early": (
        chain(ACQUIRE, RELEASE),
        "int seen; int block = blockIdx.x;"
        f"if ({i} == 0 && block == 1) {{ {ACQUIRE} y[1] = y[0]; }}"
        f"if ({i} == 0 && block == 0) {{ {RELEASE} y[0] = 1; }}",
        "race: byte 0 of argument 1 was written by .* without release and acquire between",
    ),
    "release": (
        chain(ACQUIRE, RELEASE),
        chain(ACQUIRE, "*(volatile int*)flag = block + 1;"),
        "race: .* of argument 1 was written by .* without release and acquire between",
    ),
    "part_of_a_warp": (
        f"{SHARED} __syncwarp(); if ({i} % 32 < 16) y[{i}] = s[{i} + 16];",
        f"{SHARED} if ({i} % 32 < 16) {{ __syncwarp(0xffff); y[{i}] = s[{i} + 16]; }}",
        "race: byte .* of shared memory was written by .* and is read without a barrier between",
    ),
    "masks": (
        f"__syncwarp({i} % 2 ? 0xaaaaaaaau : 0x55555555u); __syncthreads();",
        f"__syncwarp({i} % 32 ? 0xfffffffeu : ~0u); __syncthreads();",
        r"threads part at a collective: thread \(0,0,0\) .* is at a collective .* is at a barrier",
    ),
    "mma": (
        f"if ({i} >= 32) return;{MMA}",
        f"if ({i} >= 31) return;{MMA}",
        r"threads part at a collective: .* thread \(31,0,0\) of block \(0,0,0\) has returned",
    ),
    "release_twice": (
        twice("while (*(volatile int*)(flag + 2) == 0) {} __threadfence();"),
        twice(""),
        "race: byte 4 of argument 1 was written by .* without release and acquire between",
    ),
    "overwritten_release": (
        f"if ({i} == 0) {{ int block = 0; y[0] = 1; {RELEASE} {RELEASE} }}"
        f"if ({i} == 33) {{ int seen; do {{ {ACQUIRE} }} while (seen < 1); y[1] = y[0]; }}",
        f"if ({i} == 0) {{ int block = 0; y[0] = 1; {RELEASE} }}"
        f"if ({i} == 1) {{ *(volatile int*)flag = 2; }}"
        f"if ({i} == 33) {{ int seen; do {{ {ACQUIRE} }} while (seen < 1); y[1] = y[0]; }}",
        "race: byte 0 of argument 1 was written by .* and is read without a barrier between",
    ),
    "acquire_by_another_block": (
        own("true"),
        own("block == 1"),
        "race: byte 0 of argument 1 was written by .* and is read without release and acquire",
    ),
    "warp_that_has_returned": (
        f"if ({i} < 32) return; __syncwarp(); y[{i}] = 1;",
        f"if ({i} < 32) return; __syncthreads(); y[{i}] = 1;",
        "threads part at a barrier: .* has returned",
    ),
    "blocks_last_one": (
        last("__syncthreads();"),
        last("__syncthreads();", release=""),
        "race: .* of argument 0 was written by .* and is read without release and acquire",
    ),
    "blocks_last_acquire": (
        last("__syncthreads();"),
        last("__syncthreads();", acquire=""),
        "race: .* of argument 0 was written by .* and is read without release and acquire",
    ),
    "blocks_last_barrier": (
        last("__syncthreads();"),
        last(""),
        "race: .* of argument 0 was written by .* and is read without release and acquire",
    ),
    "lock": (
        "while (atomicCAS(flag, 0, 1)) {} __threadfence(); y[0] = y[0] + 1;"
        "__threadfence(); atomicExch(flag, 0);",
        "while (atomicCAS(flag, 0, 1)) __nanosleep(20); __threadfence(); y[0] = y[0] + 1;"
        "__threadfence();",
        "waits for ever: no thread that can still run writes byte 0 of argument 2",
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
        x, y, flag = np.arange(N, dtype=np.float32), np.zeros(N, np.float32), np.zeros(4, np.int32)
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


def one(
    body: str, parameters: str = "float* __restrict__ x, float* __restrict__ y"
) -> EmulatedText:
    """One kernel `k`."""
    head = f'extern "C" __global__ void __launch_bounds__(64) k({parameters}) {{'
    return EmulatedText(f"{head}\n{body}\n}}\n")


@pytest.fixture(name="add", scope="module")
def _add() -> EmulatedText:
    return one("y[threadIdx.x] += x[threadIdx.x];")


def test_memory_stays(add: EmulatedText) -> None:
    x = add.device(np.arange(N, dtype=np.float32))
    y = add.device(np.ones(N, np.float32))
    for _ in range(3):
        add.launch("k", (1,), (N,), x, y)
    np.testing.assert_array_equal(y.numpy(), 1 + 3 * np.arange(N))
    np.testing.assert_array_equal(x.numpy(), np.arange(N))


def test_memory_is_not_initialised(add: EmulatedText) -> None:
    x = np.ones(N, np.float32)
    y = add.empty((N,), np.float32)
    with pytest.raises(EmulationError, match="byte 0 of argument 1 is read before anything was"):
        add.launch("k", (1,), (N,), x, y)
    y.write(x)
    add.launch("k", (1,), (N,), x, y)
    y = add.empty((N,), np.float32)
    add.launch("k", (1,), (N // 2,), x, add.device(x))
    with pytest.raises(EmulationError, match=r"byte 0 of argument 0 is read before .* block"):
        add.launch("k", (1,), (N,), y, x)


def test_atomics_read_too(order: EmulatedText) -> None:
    with pytest.raises(EmulationError, match="byte 0 of argument 0 is read before"):
        order.launch("k", (1,), (1,), order.empty((1,), np.int32), np.zeros(1, np.int32))


def test_what_a_kernel_wrote_is_initialised() -> None:
    emulated = one("if (threadIdx.x < n) y[threadIdx.x] = 1;", "float* __restrict__ y, int n")
    reads = one("x[threadIdx.x] = y[threadIdx.x];")
    x, y = np.zeros(N, np.float32), emulated.empty((N,), np.float32)
    emulated.launch("k", (1,), (N,), y, 63)
    with pytest.raises(EmulationError, match="byte 252 of argument 1 is read before anything was"):
        reads.launch("k", (1,), (N,), x, y)
    emulated.launch("k", (1,), (N,), y, 64)
    reads.launch("k", (1,), (N,), x, y)


def test_use_after_free(add: EmulatedText) -> None:
    x, y = np.ones(N, np.float32), add.device(np.ones(N, np.float32))
    keeps_the_arena = add.device(x)
    add.launch("k", (1,), (N,), x, y)
    y.free()
    with pytest.raises(EmulationError, match="read of argument 1, which was freed"):
        add.launch("k", (1,), (N,), x, y)
    keeps_the_arena.free()


def test_what_is_no_device_memory(add: EmulatedText) -> None:
    y = np.zeros(N, np.float32)
    with pytest.raises(EmulationError, match="wild read of no device memory"):
        add.launch("k", (1,), (N,), 4096, y)


CLOSED = """
import ctypes, numpy
from tests.cuda_emulator import EmulatedText
memory = EmulatedText("").device(numpy.ones(4, numpy.float32))
print(memory.numpy().sum(), flush=True)
ctypes.string_at(memory.address, 4)
"""


def test_memory_is_closed_to_the_host() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("4.0\n", -signal.SIGSEGV)


def test_a_failed_launch_leaves_nothing_behind(twins: EmulatedText, add: EmulatedText) -> None:
    """Lanes that were left at a barrier, a shuffle or in a function start afresh."""
    for name in ("collective", "two_barriers", "past_the_end", "copy_in_flight"):
        x, y, flag = np.zeros(N, np.float32), np.zeros(N, np.float32), np.zeros(4, np.int32)
        with pytest.raises(EmulationError):
            twins.launch(f"{name}_wrong", (1,), (N,), x, y, flag, 3, shared=256)
        y = np.zeros(N, np.float32)
        add.launch("k", (1,), (N,), np.ones(N, np.float32), y)
        assert (y == 1).all()


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        ((0,), (1,), "an empty grid or block is launched"),
        ((1,), (1025,), "a block of more than 1024 threads"),
        ((1,), (32, 33), "a block of more than 1024 threads"),
        ((1, 65536), (1,), "more than 65535 blocks along y or z"),
        ((1 << 26,), (2,), "more threads are launched than the emulator can tell apart"),
    ],
)
def test_launches_that_a_device_refuses(
    add: EmulatedText, grid: tuple[int, ...], block: tuple[int, ...], message: str
) -> None:
    with pytest.raises(EmulationError, match=message):
        add.launch("k", grid, block, np.zeros(N, np.float32), np.zeros(N, np.float32))


def test_too_much_shared_memory(add: EmulatedText) -> None:
    x, y = np.zeros(N, np.float32), np.zeros(N, np.float32)
    with pytest.raises(EmulationError, match="more shared memory is asked for than there is"):
        add.launch("k", (1,), (N,), x, y, shared=229 << 10)


@pytest.fixture(name="order", scope="module")
def _order() -> EmulatedText:
    return one(
        "int n = atomicAdd(next, 1);\nturns[n] = threadIdx.x + 64 * blockIdx.x;",
        "int* __restrict__ next, int* __restrict__ turns",
    )


def turns(order: EmulatedText) -> list[int]:
    """The order in which threads came."""
    out = np.zeros(4 * N, np.int32)
    order.launch("k", (4,), (N,), np.zeros(1, np.int32), out)
    return out.tolist()


def test_orders(order: EmulatedText) -> None:
    assert turns(order) == list(range(4 * N))
    with order.backwards():
        assert turns(order) == list(range(4 * N))[::-1]
        with order.shuffled(1):
            first = turns(order)
        assert turns(order) == list(range(4 * N))[::-1]
    with order.shuffled(1):
        assert turns(order) == first
    seen = set()
    for seed in range(8):
        with order.shuffled(seed):
            found = turns(order)
        assert sorted(found) == list(range(4 * N))
        seen.add(tuple(turn // N for turn in found[::N]))
    assert len(seen) > 4  # orders of blocks
    assert turns(order) == list(range(4 * N))


def test_lanes_of_other_warps_go_on_while_one_waits() -> None:
    """Warp 0 waits for what warp 1 writes, and comes first."""
    emulated = one(
        "if (threadIdx.x == 0) while (*(volatile int*)flag == 0) {}\n"
        "if (threadIdx.x == 63) *(volatile int*)flag = 1;",
        "int* __restrict__ flag",
    )
    emulated.launch("k", (1,), (N,), np.zeros(1, np.int32))
    with emulated.backwards():
        emulated.launch("k", (1,), (N,), np.zeros(1, np.int32))


@pytest.mark.parametrize("body", ["y[threadIdx.x] = x[i];", "__syncthreads();"])
def test_loops_for_ever(body: str) -> None:
    emulated = one(f"for (int i = x[0]; i >= 0; i = (i + 1) % 64) {{ {body} }}")
    with pytest.raises(EmulationError, match=r"runs for ever, by thread \(0,"):
        emulated.launch("k", (1,), (2,), np.zeros(N, np.float32), np.zeros(N, np.float32))


def test_registers_are_not_initialised() -> None:
    emulated = one("float s[1];\nif (x[0] > 0) s[0] = 1;\ny[threadIdx.x] = s[0];")
    y = np.zeros(N, np.float32)
    emulated.launch("k", (1,), (N,), np.zeros(N, np.float32), y)
    assert (y < -1e30).all()


def test_long_loops_need_little_memory() -> None:
    """What is not yet counted is kept, so lanes take turns; counts are as if they had not."""
    emulated = one(
        "float s = 0;\nfor (int i = 0; i < 50000; ++i) s += x[i % 64];\ny[threadIdx.x] = s;"
    )
    x, y = np.ones(N, np.float32), np.zeros(N, np.float32)
    counts = emulated.launch("k", (1,), (N,), x, y)
    assert (y == 50000).all()
    assert counts.load_requests == counts.load_sectors == 2 * 50000
