"""Kernels from TIR on the CUDA emulator: TVM's text of tensor cores, and TVM's host code."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pitc.codegen import ptx, tir
from pitc.codegen.call import KernelError
from pitc.codegen.tir import T
from tests.cuda_emulator import Emulated, EmulationError
from tests.cuda_sources import warps

Array = np.ndarray[Any, Any]
run = T.evaluate


def emulated(body: Callable[[], None], symbol: str = "k") -> Emulated:
    """A function of one body."""
    return Emulated([tir.prim_func(symbol, body)])


def shared(buffer: Any, offset: Any) -> Any:
    """An address in shared memory for PTX; an extent of 8 halves."""
    return T.cuda.cvta_generic_to_shared(buffer.access_ptr("w", offset=offset, extent=8))


def tile(dtype: str, stored: str) -> Callable[[], None]:
    """One warp: d[16, 8] = a[rows[i], :16] b[16, 8] by cp.async, ldmatrix and mma."""

    def body() -> None:
        a = tir.tensor("a", (tir.size(), 16), dtype)
        rows = tir.tensor("rows", (16,), "int32")
        b, d = tir.tensor("b", (16, 8), dtype), tir.tensor("d", (16, 8))
        with T.launch_thread("blockIdx.x", 1), T.launch_thread("threadIdx.x", 32) as lane:
            a_tile = T.alloc_buffer((256,), dtype, scope="shared")
            b_tile = T.alloc_buffer((128,), dtype, scope="shared")
            fa = [T.alloc_buffer((1,), "uint32", scope="local") for _ in range(4)]
            fb = [T.alloc_buffer((1,), "uint32", scope="local") for _ in range(2)]
            sums = [ptx.Register("float32", T.float32(0)) for _ in range(4)]
            acc = [s._buffer[0] for s in sums]
            copy = T.ptx.cp.async_.cg.shared.global_
            place = rows[lane // 2] * 16 + lane % 2 * 8
            run(copy(shared(a_tile, lane * 8), a.access_ptr("r", offset=place, extent=8), 16))
            with tir.when(lane < 16):
                run(
                    copy(shared(b_tile, lane * 8), b.access_ptr("r", offset=lane * 8, extent=8), 16)
                )
            run(T.ptx.cp.async_.commit_group())
            run(T.ptx.cp.async_.wait_group(0))
            T.evaluate(T.tvm_storage_sync("shared"))
            load = T.ptx.ldmatrix.sync.aligned.m8n8
            row = lane % 16 * 16 + lane // 16 * 8
            run(load.x4.shared.b16(*(f[0] for f in fa), shared(a_tile, row)))
            run(load.x2.trans.shared.b16(*(f[0] for f in fb), shared(b_tile, lane % 16 * 8)))
            mma = getattr(T.ptx.mma.sync.aligned.m16n8k16.row.col.f32, stored)
            mma = getattr(mma, stored).f32
            run(mma(*acc, *(f[0] for f in fa), *(f[0] for f in fb), *acc))
            for i in range(4):
                tir.assign(d, acc[i], lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2)

    return body


@pytest.mark.parametrize(
    ("dtype", "stored", "kind"),
    [("float16", "f16", np.float16), ("bfloat16", "bf16", ml_dtypes.bfloat16)],
)
def test_tensor_cores(dtype: str, stored: str, kind: Any) -> None:
    """Small integers are exact in every type."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (n, k)).astype(kind) for n, k in ((40, 16), (16, 8)))
    rows = rng.permutation(40)[:16].astype(np.int32)
    d = np.zeros((16, 8), np.float32)
    kernel = emulated(tile(dtype, stored))
    kernel.run("k", a, rows, b, d)
    np.testing.assert_array_equal(d, a.astype(np.float32)[rows] @ b.astype(np.float32))
    (launch,) = kernel.launches
    assert (launch.kernel, launch.grid, launch.block) == ("k_kernel", (1, 1, 1), (32, 1, 1))
    counts = launch.counts
    assert (counts.mma_flops, counts.async_bytes, counts.barriers) == (2 * 16 * 8 * 16, 768, 1)
    # Copies: 8 rows of 32 bytes are read two lanes each, and 16 of 16 bytes; ldmatrix: 4 and 2.
    assert (counts.unique_read, counts.unique_written) == (16 * 32 + 256 + 64, 512)
    assert counts.shared_ideal == 4 + 2 + 4 + 2
    with kernel.backwards():
        kernel.run("k", a, rows, b, np.zeros_like(d))


def _tf32() -> None:
    """One warp: d[16, 8] = a[16, 8] b[8, 8] of floats, rounded."""
    a, b, d = tir.tensor("a", (16, 8)), tir.tensor("b", (8, 8)), tir.tensor("d", (16, 8))
    with T.launch_thread("blockIdx.x", 1), T.launch_thread("threadIdx.x", 32) as lane:
        g, t = lane // 4, lane % 4
        words = []
        fragments = [a[g + i % 2 * 8, t + i // 2 * 4] for i in range(4)]
        for value in [*fragments, b[t, g], b[t + 4, g]]:
            word = T.alloc_buffer((1,), "uint32", scope="local")
            run(T.ptx.cvt.rna.tf32.f32(word[0], ptx.Register("float32", value).value))
            words.append(word[0])
        acc = [ptx.Register("float32", T.float32(0))._buffer[0] for _ in range(4)]
        run(T.ptx.mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32(*acc, *words, *acc))
        for i in range(4):
            tir.assign(d, acc[i], g + i // 2 * 8, t * 2 + i % 2)


def test_tf32() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-1000, 1001, shape).astype(np.float32) for shape in ((16, 8), (8, 8)))
    a += np.float32(2**-12)  # is rounded away
    d = np.zeros((16, 8), np.float32)
    kernel = emulated(_tf32)
    kernel.run("k", a, b, d)
    np.testing.assert_array_equal(d, np.round(a) @ b)
    assert kernel.launches[0].counts.mma_flops == 2 * 16 * 8 * 8


def _transposed() -> None:
    """Sixteen bits by x1 ldmatrix, plain and transposed, of a matrix of shorts."""
    a, plain = tir.tensor("a", (8, 8), "int16"), tir.tensor("plain", (32, 2), "int16")
    turned = tir.tensor("turned", (32, 2), "int16")
    with T.launch_thread("blockIdx.x", 1), T.launch_thread("threadIdx.x", 32) as lane:
        tile = T.alloc_buffer((64,), "int16", scope="shared")
        word = T.alloc_buffer((1,), "uint32", scope="local")
        for i in range(2):
            tir.assign(tile, a[lane // 4, lane % 4 * 2 + i], lane * 2 + i)
        T.evaluate(T.tvm_storage_sync("shared"))
        load = T.ptx.ldmatrix.sync.aligned.m8n8.x1
        for instruction, out in ((load.shared.b16, plain), (load.trans.shared.b16, turned)):
            run(instruction(word[0], shared(tile, lane % 8 * 8)))
            for i in range(2):
                half = T.Cast("int16", T.Cast("int32", word[0] >> T.uint32(16 * i)))
                tir.assign(out, half, lane, i)


def test_ldmatrix() -> None:
    a = np.arange(-30, 34, dtype=np.int16).reshape(8, 8)
    plain, turned = np.zeros((32, 2), np.int16), np.zeros((32, 2), np.int16)
    emulated(_transposed).run("k", a, plain, turned)
    np.testing.assert_array_equal(plain, a.reshape(32, 2))
    np.testing.assert_array_equal(turned, a.T.reshape(32, 2))


def _padded_copy() -> None:
    """Rows of four floats, the last one partly: what is not there is 0."""
    x, y = tir.tensor("x", (tir.size(),)), tir.tensor("y", (128,))
    with T.launch_thread("blockIdx.x", 1), T.launch_thread("threadIdx.x", 32) as lane:
        rows = T.alloc_buffer((128,), "float32", scope="shared.dyn")
        size = T.Cast("int32", x.shape[0]) - lane * 4
        valid = T.max(T.min(size, 4), 0) * 4
        source = x.access_ptr("r", offset=T.Select(size > 0, lane * 4, 0))
        to = T.cuda.cvta_generic_to_shared(rows.access_ptr("w", offset=lane * 4, extent=4))
        run(T.ptx.cp.async_.ca.shared.global_(to, source, 16, T.Cast("uint32", valid)))
        run(T.ptx.cp.async_.wait_all())
        T.evaluate(T.tvm_storage_sync("warp"))
        with tir.serial(tir.int64(0), tir.int64(4)) as i:
            tir.assign(y, rows[lane * 4 + i], lane * 4 + i)


def _two_kernels() -> None:
    """Two launches of different shapes, numbers of each kind among the arguments."""
    x, y = tir.tensor("x", (tir.size(),)), tir.tensor("y", (tir.size(),))
    factor, by = tir.float_scalar("factor"), T.arg("by", T.int32())
    for number in range(2):
        with (
            T.launch_thread("blockIdx.y", x.shape[0]) as block,
            T.launch_thread("threadIdx.y", 2),
            T.launch_thread("threadIdx.x", 4 + number) as lane,
            tir.when(lane == number),
        ):
            source, to = (x, y) if number == 0 else (y, x)
            value = source[block] * factor + T.Cast("float32", by)
            tir.assign(to, value, block)


def test_host_code() -> None:
    kernel = emulated(_two_kernels)
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    kernel.run("k", x, y, 0.5, -3)
    np.testing.assert_array_equal(y, np.arange(3) * 0.5 - 3)
    np.testing.assert_array_equal(x, y * 0.5 - 3)
    shapes = [(launch.kernel, launch.grid, launch.block) for launch in kernel.launches]
    assert shapes == [("k_kernel", (1, 3, 1), (4, 2, 1)), ("k_kernel_1", (1, 3, 1), (5, 2, 1))]
    # Two threads write each element, the same value.
    assert [launch.counts.rewritten for launch in kernel.launches] == [3, 3]
    with pytest.raises(KernelError, match="float32"):
        kernel.run("k", x.astype(np.float64), y, 0.5, -3)
    assert kernel.launches == ()


def _past_the_end() -> None:
    """Reads one element too many."""
    x, y = tir.tensor("input", (tir.size(),)), tir.tensor("output", (tir.size(),))
    with warps(tir.int64(1)) as (_, lane):
        tir.assign(y, x[lane + 1], lane)


def test_errors_name_the_parameter() -> None:
    kernel = emulated(_past_the_end, "shift")
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    message = (
        r"shift_kernel: read outside input, 4 bytes past its end, "
        r"by thread \(31,0,0\) of block \(0,0,0\) at line \d+: output_ptr\["
    )
    with pytest.raises(EmulationError, match=message):
        kernel.run("shift", x, y)
    with pytest.raises(EmulationError, match="input_ptr"):
        kernel.run("shift", kernel.device(x), kernel.device(y))
    np.testing.assert_array_equal(y[:31], x[1:])  # lanes before the wrong one ran


def test_memory_stays_between_functions() -> None:
    first, second = (tir.prim_func(name, _doubled) for name in ("first", "second"))
    kernels = Emulated([first, second])
    x = np.arange(40, dtype=np.float32)
    source, between, out = kernels.device(x), kernels.empty((40,), x.dtype), kernels.device(0 * x)
    kernels.run("first", source, between)
    kernels.run("second", between, out)
    np.testing.assert_array_equal(out.numpy(), 4 * x)
    between.free()
    with pytest.raises(EmulationError, match="read of x, which was freed"):
        kernels.run("second", between, out)


def _doubled() -> None:
    x, y = tir.tensor("x", (tir.size(),)), tir.tensor("y", (tir.size(),))
    with warps((x.shape[0] + 31) // 32) as (job, lane):
        i = tir.bind(job * 32 + lane)
        with tir.when(i < x.shape[0]):
            tir.assign(y, x[i] + x[i], i)


@pytest.mark.parametrize("size", [1, 3, 4, 6, 128])
def test_padded_copies(size: int) -> None:
    kernel = emulated(_padded_copy)
    x, y = np.arange(1, size + 1, dtype=np.float32), np.zeros(128, np.float32)
    kernel.run("k", x, y)
    np.testing.assert_array_equal(y, np.pad(x, (0, 128 - size)))
    assert kernel.launches[0].counts.async_bytes == 4 * size
