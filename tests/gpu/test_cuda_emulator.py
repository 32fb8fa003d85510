"""The CUDA emulator finds what is wrong with a kernel, says where, and lets right ones pass."""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.cuda_emulator import EmulatedText, EmulationError
from tests.cuda_twins import TWINS, source

N = 64
BLOCKS = 4


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
