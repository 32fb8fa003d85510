"""Instructions of NVIDIA's multiprocessors, as statements: copies, matrices.

Addresses of shared memory are 32 bits wide and count bytes (`Window`). The instructions are those
of the PTX manual, sections "Asynchronous copy", "Warp-level matrix instructions" and "Parallel
synchronization". What lanes tell each other is in `collective`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pitc.codegen import tir
from pitc.codegen.tir import Buffer, Expr, T

_LOWEST, _NAN = -0x00800000, 0x7FC00000
"""Bits of float32 numbers."""

CHUNK_BYTES = 16
"""What one copy moves, and one row of an 8 x 8 matrix of 16-bit numbers holds."""

WORD_BYTES = 4
"""What the smallest copy moves."""


def uint32(value: Expr | int) -> Expr:
    """A 32-bit number without sign."""
    return T.uint32(value) if isinstance(value, int) else T.Cast("uint32", value)


def int32(value: Expr) -> Expr:
    """A size that fits in 32 bits."""
    return T.Cast("int32", value)


def steps(count: Expr, by: int) -> Expr:
    """How many steps of `by` a count takes, int32."""
    return T.truncdiv(count + (by - 1), T.int32(by))


@contextmanager
def launch(blocks: Expr, threads: int, together: int = 1) -> Iterator[tuple[Expr, Expr]]:
    """Launch thread blocks; the context value is (number of the block, of the thread), int32.

    Args:
        blocks: How many.
        threads: Of each.
        together: How many a multiprocessor has registers for, at least: were it not said, the
            assembler might spill some to make room for one more block.
    """
    with (
        T.launch_thread("blockIdx.x", blocks) as block,
        T.launch_thread("threadIdx.x", threads) as thread,
        T.attr(tir.int64(0), "tirx.launch_bounds_min_blocks_per_sm", T.int32(together)),
    ):
        yield block, thread


@contextmanager
def turns(number: Expr, blocks: Expr, count: Expr) -> Iterator[Expr]:
    """Open a loop over 0..count-1 in which blocks take turns; the context value is int32."""
    with tir.serial(T.int32(0), T.truncdiv(count - number + blocks - 1, blocks)) as turn:
        yield held(number + turn * blocks, "int32")


@contextmanager
def returns(number: Expr, blocks: Expr, count: Expr) -> Iterator[Expr]:
    """The same to and fro: 0 1 2 3, 7 6 5 4, 8 ..: who has the first of a turn has the last next.

    It is for work that becomes less from one to the next.
    """
    with tir.serial(T.int32(0), T.truncdiv(count + blocks - 1, blocks)) as turn:
        back = T.Select(turn % 2 == 0, number, blocks - 1 - number)
        taken = held(turn * blocks + back, "int32")
        with tir.when(taken < count):
            yield taken


@contextmanager
def repeated(condition: Expr) -> Iterator[None]:
    """Statements that run again and again while the condition holds."""
    with T.While(condition):
        yield


def registers(count: int, dtype: str) -> Buffer:
    """Variables that each thread has for itself; indices are constants."""
    return T.alloc_buffer((count,), dtype, scope="local")


def held(value: Expr, dtype: str) -> Expr:
    """Name a value, so that it is computed once."""
    register = registers(1, dtype)
    tir.assign(register, value, 0)
    return register[0]


class Register:
    """A variable that each lane has for itself."""

    def __init__(self, dtype: str, value: Expr) -> None:
        self._buffer = T.alloc_buffer((1,), dtype, scope="local")
        self.set(value)

    @property
    def value(self) -> Expr:
        """What was stored last."""
        return self._buffer[0]

    def set(self, value: Expr) -> None:
        """Store a value."""
        tir.assign(self._buffer, value, 0)

    def add(self, value: Expr) -> None:
        """Add to what was stored last."""
        self.set(self.value + value)


def counter() -> Register:
    """An int32 register that starts at 0."""
    return Register("int32", T.int32(0))


class Window:
    """The shared memory of a thread block, counted in bytes.

    Args:
        size: Bytes; the launch asks for them.
        addressed: Copies or matrices name bytes by their address.
    """

    def __init__(self, size: int, *, addressed: bool = True) -> None:
        memory = T.alloc_buffer((size,), "uint8", scope="shared.dyn")
        if addressed:
            base = T.cuda.cvta_generic_to_shared(memory.access_ptr("rw", offset=0))
            self._base = held(base, "uint32")
        self._memory, self._size = memory, size

    def view(self, dtype: str) -> Buffer:
        """All of it as a vector of numbers."""
        count = self._size // tir.item_bytes(dtype)
        return T.decl_buffer((count,), dtype, data=self._memory.data, scope="shared.dyn")

    def address(self, byte: Expr | int) -> Expr:
        """The 32-bit address of a byte."""
        return self._base + uint32(byte)


def copy_chunk(to: Expr, operand: Buffer, element: Expr, size: Expr) -> None:
    """Start a copy of 16 bytes to shared memory.

    Args:
        to: Shared address.
        operand: A vector.
        element: The first element.
        size: Bytes that are read, uint32; the others are 0.
    """
    source = operand.access_ptr("r", offset=element, extent=1)
    T.evaluate(T.ptx.cp.async_.cg.shared.global_(to, source, CHUNK_BYTES, size))


def copy_word(to: Expr, operand: Buffer, element: Expr) -> None:
    """Start a copy of 4 bytes to shared memory.

    Args:
        to: Shared address.
        operand: A vector of numbers of 4 bytes.
        element: The one.
    """
    source = operand.access_ptr("r", offset=element, extent=1)
    T.evaluate(T.ptx.cp.async_.ca.shared.global_(to, source, WORD_BYTES))


def move_elements(window: Window, to: Expr, operand: Buffer, element: Expr, valid: Expr) -> None:
    """Read the elements of a chunk one by one, and store it to shared memory.

    Args:
        window: Shared memory.
        to: First byte there.
        operand: A vector.
        element: The first one.
        valid: How many are read, int32; the others are 0.
    """
    count = CHUNK_BYTES // tir.item_bytes(operand.dtype)
    zero = T.Cast(operand.dtype, T.float32(0))
    values = [T.if_then_else(valid > e, operand[element + e], zero) for e in range(count)]
    held_values = [held(value, operand.dtype) for value in values]
    chunk = T.Shuffle(_words(held_values, operand.dtype), [T.int32(i) for i in range(4)])
    tir.assign(window.view("uint32x4"), chunk, to // CHUNK_BYTES)


def _words(values: Sequence[Expr], dtype: str) -> list[Expr]:
    """Numbers that lie in registers, as words of 32 bits."""
    bits = f"uint{8 * tir.item_bytes(dtype)}"
    patterns = [x if dtype == bits else T.reinterpret(bits, x) for x in values]
    if bits == "uint32":
        return patterns
    pairs = zip(patterns[::2], patterns[1::2], strict=True)
    return [held(uint32(low) | uint32(high) << uint32(16), "uint32") for low, high in pairs]


def commit() -> None:
    """Close a group of copies."""
    T.evaluate(T.ptx.cp.async_.commit_group())


def wait(pending: int) -> None:
    """Wait until at most so many of this thread's groups of copies have not landed."""
    T.evaluate(T.ptx.cp.async_.wait_group(pending))


def barrier() -> None:
    """All threads of the block come here before any goes on."""
    T.evaluate(T.tvm_storage_sync("shared"))


def load_matrices(to: Buffer, first: int, address: Expr, *, transposed: bool = False) -> None:
    """Load four 8 x 8 matrices of 16-bit numbers into registers first .. first + 3.

    Args:
        to: uint32 registers.
        first: The first one.
        address: Of a row of a matrix: lane 8 i + r says where row r of matrix i lies.
        transposed: Lanes get columns for rows.
    """
    load = T.ptx.ldmatrix.sync.aligned.m8n8.x4
    load = load.trans.shared.b16 if transposed else load.shared.b16
    T.evaluate(load(*(to[first + i] for i in range(4)), address))


_MMA = {
    "float16": lambda: T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32,
    "bfloat16": lambda: T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32,
    "float32": lambda: T.ptx.mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32,
}


def multiply(dtype: str, sums: Sequence[Expr], a: Sequence[Expr], b: Sequence[Expr]) -> None:
    """Add a [16, k] b [k, 8] to sums [16, 8]; k takes 32 bytes, 16 numbers or 8 of tf32.

    Args:
        dtype: Of a and b.
        sums: Four float32 registers.
        a: Four uint32 registers.
        b: Two uint32 registers.
    """
    T.evaluate(_MMA[dtype]()(*sums, *a, *b, *sums))


def round_to_tf32(register: Buffer, index: int) -> None:
    """Round the float32 number in a uint32 register to the nearest that tensor cores read."""
    number = T.reinterpret("float32", register[index])
    T.evaluate(T.ptx.cvt.rna.tf32.f32(register[index], number))


def to_float(x: Expr, dtype: str) -> Expr:
    """An element of a tensor of a type, as float32."""
    if dtype == "bfloat16":
        return T.reinterpret("float32", uint32(x) << uint32(16))
    return T.Cast("float32", x)


def from_float(x: Expr, dtype: str) -> Expr:
    """A float32 number as an element of a tensor of a type, rounded to the nearest."""
    if dtype == "bfloat16":
        element = registers(1, "uint16")
        T.evaluate(T.ptx.cvt.rn.bf16.f32(element[0], x))
        return element[0]
    return held(T.Cast(dtype, x), dtype)


def seen_as(buffer: Buffer, dtype: str) -> Buffer:
    """A compact tensor as a vector of numbers of another type; after the last argument."""
    bits = tir.item_bytes(buffer.dtype) * 8, tir.item_bytes(dtype) * 8
    count = tir.flat(buffer).shape[0] * bits[0] // bits[1]
    return T.decl_buffer((count,), dtype, data=buffer.data)


def load_run(buffer: Buffer, element: Expr, count: int, there: Expr | None = None) -> list[Expr]:
    """Some neighbours.

    Args:
        buffer: Where they lie.
        element: Number of the first one in the whole buffer; a multiple of `count` if `there` is
            not given.
        count: How many, a power of two.
        there: How many of them there are, int32, at least one: the others count as 0.
    """
    if there is None:
        wide = min(count, CHUNK_BYTES // tir.item_bytes(buffer.dtype))
        runs = registers(count // wide, f"{buffer.dtype}x{wide}")
        for i in range(count // wide):
            tir.assign(runs, _runs(buffer, wide)[_number(element, wide) + i], i)
        return [T.Shuffle([runs[i // wide]], [T.int32(i % wide)]) for i in range(count)]
    vector, none = tir.flat(buffer), T.Cast(buffer.dtype, T.float32(0))
    return [T.if_then_else(there > i, vector[element + i], none) for i in range(count)]


def store_run(
    buffer: Buffer, values: Sequence[Expr], element: Expr, there: Expr | None = None
) -> None:
    """Store some neighbours; arguments as in `load_run`."""
    count, item = len(values), tir.item_bytes(buffer.dtype)
    if there is None and item == 2 and count * item == CHUNK_BYTES:  # CUDA has no vector of eight
        values = _words(values, str(buffer.dtype))
        buffer, element, count = seen_as(buffer, "uint32"), element >> T.int64(1), count // 2
    if there is None:
        run = T.Shuffle(list(values), [T.int32(i) for i in range(count)])
        tir.assign(_runs(buffer, count), run, _number(element, count))
        return
    vector = tir.flat(buffer)
    for i, value in enumerate(values):
        with tir.when(there > i):
            tir.assign(vector, value, element + i)


def _number(element: Expr, count: int) -> Expr:
    """Which run of `count` begins there."""
    return element >> T.int64(count.bit_length() - 1)


def _runs(buffer: Buffer, count: int) -> Buffer:
    """A tensor as a vector of runs."""
    runs = _number(tir.flat(buffer).shape[0], count)
    return T.decl_buffer((runs,), f"{buffer.dtype}x{count}", data=buffer.data)


def lowest() -> Expr:
    """-inf; the words that TVM has for it need one more header."""
    return tir.from_bits(held(T.int32(_LOWEST), "int32"))


def not_a_number() -> Expr:
    """NaN; see `lowest`."""
    return tir.from_bits(held(T.int32(_NAN), "int32"))


def exp2(value: Expr) -> Expr:
    """Compute 2^x by the instruction: to 2^-22 of itself; exact at 0 and at infinities."""
    power = registers(1, "float32")
    T.evaluate(T.ptx.ex2.approx.ftz.f32(power[0], value))
    return power[0]


def packed(dtype: str, low: Expr, high: Expr) -> Expr:
    """Two float32 numbers, rounded to a type of 16 bits, in one register.

    Args:
        dtype: float16 or bfloat16.
        low: What comes first in memory.
        high: What comes behind it.
    """
    pair = registers(1, "uint32")
    rounded = {"float16": T.ptx.cvt.rn.f16x2.f32, "bfloat16": T.ptx.cvt.rn.bf16x2.f32}
    T.evaluate(rounded[dtype](pair[0], high, low))
    return pair[0]
