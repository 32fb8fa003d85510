"""The wall in front of TVM: the small vocabulary in which kernel families are written.

Families emit TIR through TVM's statement builder: a Python loop or function is a static one, a
`serial` loop is a run-time one. Values are expressions; indices are int64. A *vector* is one lane
group of 16 floats.

Buffers are declared with 4-byte alignment: TVM's default promises 64 bytes, checks nothing and
crashes on other data. Multiply-adds are written as `fma`, so that no compiler chooses a rounding.
"""

import functools
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder

T: Any = builder

LANES = 16
"""Floats in a vector; narrower targets get them as several registers."""

_STREAM = f"""
define internal void @pitc_stream(ptr %place, <{LANES} x float> %value) alwaysinline {{
  store <{LANES} x float> %value, ptr %place, align 64, !nontemporal !0
  ret void
}}
define internal void @pitc_end_stream() alwaysinline {{
  fence seq_cst
  ret void
}}
!0 = !{{i32 1}}
"""

_ROUNDED = f"""
define internal <{LANES} x float> @pitc_rounded(<{LANES} x float> %x) alwaysinline {{
  %y = call <{LANES} x float> @llvm.arithmetic.fence.v{LANES}f32(<{LANES} x float> %x)
  ret <{LANES} x float> %y
}}
declare <{LANES} x float> @llvm.arithmetic.fence.v{LANES}f32(<{LANES} x float>)
"""

_NUMBER = """
@pitc_bits_BITS = weak hidden global i32 u0xBITS
define linkonce_odr hidden float @pitc_number_BITS() alwaysinline {
  %x = load float, ptr @pitc_bits_BITS
  ret float %x
}
"""
_NUMBERS: ContextVar[set[str] | None] = ContextVar("numbers", default=None)

Expr = Any
Buffer = Any


def item_bytes(dtype: str) -> int:
    """Bytes of an element."""
    return int(tvm.DataType(dtype).itemsize)


def prim_func(symbol: str, body: Callable[[], None]) -> Any:
    """Make the TIR function that `body` emits; its buffers must not overlap."""
    with IRBuilder() as ir, T.prim_func():
        T.func_name(symbol)
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})
        body()
    return ir.get()


def size(name: str = "") -> Expr:
    """A dimension that is known when the kernel is called; the name is for those who read it."""
    variable = T.int64()
    if name:
        IRBuilder.name(name, variable)
    return variable


def tensor(name: str, shape: Sequence[Expr], dtype: str = "float32") -> Buffer:
    """Declare the next argument, a compact tensor at any address that is a multiple of 4 bytes."""
    buffer = T.match_buffer(T.arg(name, T.handle()), tuple(shape), dtype, align=4)
    IRBuilder.name(name, buffer)
    return buffer


def device_tensor(name: str, shape: Sequence[Expr], dtype: str) -> Buffer:
    """Declare the next argument, a compact tensor of a device: at a multiple of 16 bytes.

    Numbers of bfloat16 are uint16 to kernels and their callers, who never compute with them.
    """
    words = "uint16" if dtype == "bfloat16" else dtype
    buffer = T.match_buffer(T.arg(name, T.handle()), tuple(shape), words, align=16)
    IRBuilder.name(name, buffer)
    return buffer


def flat(buffer: Buffer) -> Buffer:
    """A tensor as a vector; after the last argument."""
    count = functools.reduce(operator.mul, buffer.shape)
    return T.decl_buffer((count,), buffer.dtype, data=buffer.data)


def bit_pieces(words: Buffer, lanes: int = LANES) -> Buffer:
    """See int64 words `[rows, words]` as int16 `[rows, 4 * words]`; after the last argument.

    Bit i of word w is bit i % 16 of piece 4 w + i // 16: a target's bytes are in ascending order.
    With 8 `lanes` pieces have 8 bits.
    """
    rows, count = words.shape
    return T.decl_buffer((rows, count * (64 // lanes)), f"int{lanes}", data=words.data)


def scalars(*names: str) -> list[Expr]:
    """Declare the next arguments, int32 numbers; they are returned as int64."""
    arguments = [T.arg(name, T.int32()) for name in names]
    return [bind(T.Cast("int64", a)) for a in arguments]


def float_scalar(name: str) -> Expr:
    """Declare the next argument, a float32 number."""
    return T.arg(name, T.float32())


def float32(value: float) -> Expr:
    """A constant number."""
    return T.float32(value)


def int64(value: int) -> Expr:
    """A constant index."""
    return T.int64(value)


def no_bits(lanes: int = LANES) -> Expr:
    """A piece of a bit word without bits."""
    return T.IntImm(f"int{lanes}", 0)


def bind(value: Expr) -> Expr:
    """Name an index, so that it is computed once."""
    return T.Bind(value)


def index_of(buffer: Buffer, i: Expr) -> Expr:
    """Element `i` of an int32 index list, as int64."""
    return bind(T.Cast("int64", buffer[i]))


def float_of(number: Expr) -> Expr:
    """A whole number as a float32."""
    return T.Cast("float32", number)


def smaller(a: Expr, b: Expr) -> Expr:
    """The smaller of two indices."""
    return T.min(a, b)


def larger(a: Expr, b: Expr) -> Expr:
    """The larger of two indices, or of lanes of two int32 vectors."""
    return T.max(a, b)


def quotient(a: Expr, b: Expr) -> Expr:
    """The quotient of indices that are not negative: for `//`, TVM looks for a proof of that."""
    return T.truncdiv(a, b)


def both(a: Expr, b: Expr) -> Expr:
    """Logical and of two conditions; both are computed."""
    return T.And(a, b)


def negated(a: Expr) -> Expr:
    """Logical not of a condition."""
    return T.Not(a)


class Variable:
    """A vector variable; it lives in a register.

    TVM keeps only buffers of scope "global" below 1 KiB off the heap, hence one small buffer each.
    """

    def __init__(self, lanes: int = LANES) -> None:
        self._buffer = stack(1, lanes)

    @property
    def value(self) -> Expr:
        """The vector stored last."""
        return self._buffer[0]

    def set(self, value: Expr) -> None:
        """Store a vector."""
        assign(self._buffer, value, 0)


class Counter:
    """An index that changes."""

    def __init__(self, start: Expr) -> None:
        self._buffer = T.alloc_buffer((1,), "int64", scope="global")
        self.set(start)

    @property
    def value(self) -> Expr:
        """The index stored last."""
        return self._buffer[0]

    def set(self, value: Expr) -> None:
        """Store an index."""
        assign(self._buffer, value, 0)


class IntVariable:
    """An int32 vector variable."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._buffer = T.alloc_buffer((lanes,), "int32", scope="global")

    @property
    def value(self) -> Expr:
        """The vector stored last."""
        return self._buffer[T.ramp(T.int64(0), 1, self._lanes)]

    def set(self, value: Expr) -> None:
        """Store a vector."""
        T.buffer_store(self._buffer, value, [T.ramp(T.int64(0), 1, self._lanes)])

    def reach(self, least: int) -> Expr:
        """1 where a lane is at least so large, else 0: an int32."""
        highest = self._buffer[0]
        for lane in range(1, self._lanes):
            highest = T.max(highest, self._buffer[lane])
        return T.Select(highest >= T.int32(least), T.int32(1), T.int32(0))


def _vector(dtype: str, lanes: int) -> str:
    return f"{dtype}x{lanes}" if lanes > 1 else dtype


def lanes_of(value: Expr) -> int:
    """How many lanes a value has."""
    return int(tvm.DataType(str(value.ty)).lanes)


def keep(value: Expr) -> Expr:
    """Name a vector or a number, so that it is computed once.

    It becomes a variable and not a binding, because TVM's index analysis looks through bindings, in
    exponential time.
    """
    variable = Variable(lanes_of(value))
    variable.set(value)
    return variable.value


def hold(index: Expr) -> Expr:
    """Name an index like `keep` does a vector: for one that others are computed from in turn."""
    variable = T.alloc_buffer((1,), "int64", scope="global")
    assign(variable, index, 0)
    return variable[0]


def stack(vectors: int, lanes: int = LANES) -> Buffer:
    """A scratch array of vectors on the stack, at most 15 of them; elements are vectors."""
    scope = "global" if lanes > 1 else "local"  # one lane: a thread of a GPU has registers
    return T.alloc_buffer((vectors,), _vector("float32", lanes), scope=scope)


def workspace(*shape: int | Expr, dtype: str = "float32") -> Buffer:
    """A scratch array, not initialised; from 1 KiB on it is the caller's workspace.

    So is one of a size that is known when the kernel is called; that size must not be 0.
    """
    return T.alloc_buffer(shape, dtype, scope="global")


def _lanes(index: Sequence[Expr], width: int) -> list[Expr]:
    return [*index[:-1], T.ramp(index[-1], 1, width)]


def first_lanes(count: int | Expr, width: int = LANES) -> Expr:
    """A mask of the first lanes."""
    number = T.int32(count) if isinstance(count, int) else T.Cast("int32", count)
    return T.ramp(T.int32(0), 1, width) < T.broadcast(number, width)


def load(buffer: Buffer, *index: Expr, lanes: int | Expr = LANES, width: int = LANES) -> Expr:
    """Load a vector of `width` floats that starts at an element; memory of lanes from `lanes` on is
    not touched.
    """
    if isinstance(lanes, int) and lanes >= width:
        return buffer[tuple(_lanes(index, width))]
    return T.masked_load(
        f"float32x{width}", buffer, *_lanes(index, width), first_lanes(lanes, width)
    )


def flags(buffer: Buffer, *index: Expr, lanes: int | Expr = LANES) -> Expr:
    """Which of 16 bytes that start at an element are not 0; those from `lanes` on are not read."""
    zeros = T.broadcast(T.int8(0), LANES)
    if isinstance(lanes, int) and lanes >= LANES:
        return buffer[tuple(_lanes(index, LANES))] != zeros
    mask = first_lanes(lanes)
    return T.masked_load(f"int8x{LANES}", buffer, *_lanes(index, LANES), mask) != zeros


def store(
    buffer: Buffer, value: Expr, *index: Expr, lanes: int | Expr = LANES, width: int = LANES
) -> None:
    """Store a vector of `width` floats that starts at an element; memory of lanes from `lanes` on
    is not touched.
    """
    if isinstance(lanes, int) and lanes >= width:
        T.buffer_store(buffer, value, _lanes(index, width))
    else:
        T.evaluate(T.masked_store(buffer, value, *_lanes(index, width), first_lanes(lanes, width)))


@contextmanager
def streaming() -> Iterator[None]:
    """Statements that may use `stream` and `end_stream`, which are imported: no intrinsics."""
    with T.attr(int64(0), "pragma_import_llvm", tvm.ir.StringImm(_STREAM)):
        yield


@contextmanager
def numbers_in_memory() -> Iterator[None]:
    """Statements whose constants of `splat` are loaded where they are used.

    LLVM puts constants of a loop into registers in front of the outermost loop around it, where
    they stay; a tile of sums in the same loop is then spilled. A load from a variable that another
    object might change stays where it is.
    """
    used: set[str] = set()
    token = _NUMBERS.set(used)
    try:
        yield
    finally:
        _NUMBERS.reset(token)
    text = "".join(_NUMBER.replace("BITS", bits) for bits in sorted(used))
    with T.attr(int64(0), "pragma_import_llvm", tvm.ir.StringImm(text)):
        T.evaluate(T.int32(0))


@contextmanager
def rounding() -> Iterator[None]:
    """Statements that may use `rounded`, which is imported: no intrinsic."""
    with T.attr(int64(0), "pragma_import_llvm", tvm.ir.StringImm(_ROUNDED)):
        yield


def rounded(x: Expr) -> Expr:
    """A product that is rounded, whatever is added to it: LLVM would make one multiply-add."""
    return T.call_extern(f"float32x{LANES}", "pitc_rounded", x)


def stream(buffer: Buffer, value: Expr, *index: Expr) -> None:
    """Store a vector past the caches; its address must be a multiple of 64 bytes (`aligned`)."""
    pointer = T.address_of(buffer[tuple(index)])
    T.evaluate(T.call_extern("void", "pitc_stream", pointer, value))


def end_stream() -> None:
    """Let other threads see streamed stores before any later store."""
    T.evaluate(T.call_extern("void", "pitc_end_stream"))


def aligned(buffer: Buffer) -> Expr:
    """Whether a tensor starts at a multiple of 64 bytes."""
    first = T.address_of(buffer[tuple(int64(0) for _ in buffer.shape)])
    return T.reinterpret("uint64", first) % T.uint64(64) == T.uint64(0)


def prefetch(buffer: Buffer, *index: Expr, far: bool = False) -> None:
    """Ask for the cache line of an element that is read soon.

    Args:
        buffer: Where it is.
        index: Its place.
        far: Into the second-level cache only: of lines from memory many more may be on their way
            there than to the first-level one.
    """
    pointer = T.address_of(buffer[tuple(index)])
    read, locality, data = 0, 2 if far else 3, 1
    T.evaluate(T.call_intrin("void", "tirx.prefetch", pointer, read, locality, data))


def assign(buffer: Buffer, value: Expr, *index: Expr) -> None:
    """Store one element of a buffer."""
    T.buffer_store(buffer, value, list(index))


def splat(value: Expr, lanes: int = LANES) -> Expr:
    """A vector of equal lanes, from a number or a float32 expression; a number if it has one."""
    number = _constant(value) if isinstance(value, int | float) else value
    return T.broadcast(number, lanes) if lanes > 1 else number


def _constant(value: float) -> Expr:
    used = _NUMBERS.get()
    if used is None or value == 0:
        return T.float32(value)
    bits = struct.pack(">f", value).hex()
    used.add(bits)
    return T.call_extern("float32", f"pitc_number_{bits}")


def splat_bits(value: int, lanes: int = LANES) -> Expr:
    """A vector of equal int32 lanes; a number if it has one."""
    return T.broadcast(T.int32(value), lanes) if lanes > 1 else T.int32(value)


def splat_condition(condition: Expr) -> Expr:
    """A mask of equal lanes."""
    return T.broadcast(condition, LANES)


def lanes_with_bit(bits: Expr, first: Expr) -> Expr:
    """A mask of lanes: lane i is chosen by bit `first + i` of an int32 number."""
    shifted = T.broadcast(T.shift_right(bits, T.Cast("int32", first)), LANES)
    return (shifted & T.shift_left(splat_bits(1), T.ramp(T.int32(0), 1, LANES))) != splat_bits(0)


def as_bits(value: Expr) -> Expr:
    """The int32 bit patterns of a float vector."""
    return T.reinterpret(_vector("int32", lanes_of(value)), value)


def from_bits(value: Expr) -> Expr:
    """The float vector with these int32 bit patterns."""
    return T.reinterpret(_vector("float32", lanes_of(value)), value)


def nonzero_mask(value: Expr, lanes: int, width: int = LANES) -> Expr:
    """The int16 whose bit i says that lane i of a float vector is not zero; NaN is not.

    Of a vector of 8 lanes, `width`, it is an int8. Only the first `lanes` count. The comparison is
    one of integers, because the ordered one that TVM has for floats takes NaN for zero.
    """
    mask = as_bits(value) & splat_bits(0x7FFFFFFF, width)
    # TVM counts 8 bits for a truth value, the vector type of LLVM has 1.
    bits = T.call_intrin(f"int{width}", "tirx.reinterpret", mask != splat_bits(0, width))
    return bits if lanes == width else bits & T.IntImm(f"int{width}", (1 << lanes) - 1)


def all_bits(vectors: Sequence[Expr]) -> Expr:
    """The vector that has every bit of some: a lane is zero where that of all of them is."""
    return from_bits(functools.reduce(operator.or_, map(as_bits, vectors)))


def shift_left(value: Expr, bits: int) -> Expr:
    """Shift int32 lanes left."""
    return value << splat_bits(bits, lanes_of(value))


def fma(x: Expr, y: Expr, z: Expr) -> Expr:
    """Compute `x * y + z`, rounded once."""
    if lanes_of(x) == 1:  # on a GPU
        return T.call_extern("float32", "fmaf", x, y, z)
    return T.fma(x, y, z)


def root(x: Expr) -> Expr:
    """Square roots."""
    return T.sqrt(x)


def select(condition: Expr, then: Expr, other: Expr) -> Expr:
    """One of two values, lane by lane; both are computed."""
    return T.Select(condition, then, other)


def maximum(a: Expr, b: Expr) -> Expr:
    """The larger value of each lane; `b` where either is NaN."""
    return select(a > b, a, b)


def shuffle(a: Expr, b: Expr, lanes: Sequence[int]) -> Expr:
    """The vector of the named lanes of `a` (from 0 on) and of `b` (behind those of `a`)."""
    return T.Shuffle([a, b], [T.int32(i) for i in lanes])


def transpose(rows: Sequence[Expr]) -> list[Expr]:
    """Transpose 16 vectors of 16 lanes, or 8 of 8, by rounds of pairwise interleaving.

    The round of bit b exchanges, between vectors i and i + b, the lanes whose bit b differs from
    that of the vector's own number.
    """
    side = len(rows)
    before, after = ([Variable(side) for _ in rows] for _ in range(2))
    for variable, row in zip(before, rows, strict=True):
        variable.set(row)
    for bit in (b for b in (1, 2, 4, 8) if b < side):
        low = [lane if not lane & bit else side + lane - bit for lane in range(side)]
        high = [lane + bit if not lane & bit else side + lane for lane in range(side)]
        for i in (i for i in range(side) if not i & bit):
            a, b = before[i].value, before[i + bit].value
            after[i].set(shuffle(a, b, low))
            after[i + bit].set(shuffle(a, b, high))
        before, after = after, before
    return [variable.value for variable in before]


def serial(start: Expr, stop: Expr) -> AbstractContextManager[Expr]:
    """Open a run-time loop over start..stop-1 whose context value is the loop variable."""
    loop: AbstractContextManager[Expr] = T.serial(start, stop)
    return loop


@contextmanager
def when(condition: Expr) -> Iterator[None]:
    """Statements that run only if the condition holds."""
    with T.If(condition), T.Then():
        yield


def either(condition: Expr, then: Callable[[], None], other: Callable[[], None]) -> None:
    """One of two pieces of code."""
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            other()


def unrolled(
    count: Expr,
    by: int,
    step: Callable[[Expr], None],
    *,
    rest: bool,
    turn: Callable[[Expr], None] | None = None,
) -> None:
    """Run `step` for 0..count-1, `by` steps per turn; without `rest`, `by` must divide `count`.

    `turn` runs before each turn, with its first step.
    """
    with serial(0, count // by) as number:
        if turn is not None:
            turn(number * by)
        for u in range(by):
            step(number * by + u)
    if rest:
        with serial(count // by * by, count) as i:
            step(i)


def chunks(length: int, block: Callable[[Expr, int], None]) -> None:
    """Run `block(start, lanes)` for each vector of a row of `length` floats."""
    full, rest = divmod(length, LANES)
    if full:
        with serial(0, int64(full)) as i:
            block(bind(i * LANES), LANES)
    if rest:
        block(int64(full * LANES), rest)
