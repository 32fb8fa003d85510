"""Twins for the CUDA emulator: a kernel that is right, and one that is wrong in one way."""

from collections.abc import Mapping

WAIT = 'asm volatile("cp.async.wait_group LEFT;" : : : "memory");'
START = """
  extern __shared__ float s[];
  unsigned to = __cvta_generic_to_shared(s + threadIdx.x * 4);
  if (threadIdx.x < 16) asm volatile("cp.async.cg.shared.global [%0], [%1], SIZES;"
      : : "r"(to), "l"(x + threadIdx.x * 4 SOURCE) : "memory");
  asm volatile("cp.async.commit_group;" : : );
"""
COPY = f"{START} {WAIT} BARRIER y[threadIdx.x] = s[63 - threadIdx.x];"
LATE = f"{START} ORDER if (threadIdx.x >= 32) y[threadIdx.x] = s[0];"


def copy(
    sizes: str = "16",
    source: str = "",
    left: str = "0",
    barrier: str = "__syncthreads();",
    text: str = COPY,
) -> str:
    """A kernel that copies x to shared memory; most read it backwards."""
    text = text.replace("SIZES", sizes).replace("SOURCE", source)
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

# By name: the right one, the wrong one, and what is said of the wrong one.
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
    "shuffle_mask": (
        f"if ({i} < 16) y[{i}] = __shfl_sync(0xffff, x[{i}], 15);",
        f"if ({i} < 16) y[{i}] = __shfl_sync(0xffff, x[{i}], 16);",
        "a shuffle's mask leaves out the lane it reads",
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
    "copy_that_lands_late": (
        copy(text=LATE.replace("ORDER", f"{WAIT} __syncthreads();")),
        copy(text=LATE.replace("ORDER", f"__syncthreads(); {WAIT}")),
        "race: byte 0 of shared memory was written by .* and is read without a barrier between",
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
