"""Words of two bfloat16 numbers, which kernels hold as float32: how they are made and multiplied.

Both are instructions of AVX512-BF16, as helpers in LLVM IR that are compiled into a kernel; and for
tests steps that any machine has, whose bits are the same but for denormals, which the instruction
takes for 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import tvm

from pitc.codegen import tir
from pitc.codegen.tir import LANES

_FLOATS, _HALVES = f"<{LANES} x float>", f"<{2 * LANES} x bfloat>"
_WORDS, _SHORTS = f"<{LANES} x i32>", f"<{LANES} x i16>"
_TWICE = f"<{2 * LANES} x i16>"


def _places(*numbers: int) -> str:
    return f"<{len(numbers)} x i32> <{', '.join(f'i32 {i}' for i in numbers)}>"


def _of_both(first: int) -> str:
    """Numbers of two vectors from one on, in turn."""
    return _places(*(i + of * 2 * LANES for i in range(first, first + LANES) for of in (0, 1)))


_ZIPS = "".join(
    f"""
define internal {_FLOATS} @pitc_zip_{name}({_FLOATS} %x, {_FLOATS} %y) alwaysinline {{
  %a = bitcast {_FLOATS} %x to {_TWICE}
  %b = bitcast {_FLOATS} %y to {_TWICE}
  %h = shufflevector {_TWICE} %a, {_TWICE} %b, {_of_both(first)}
  %r = bitcast {_TWICE} %h to {_FLOATS}
  ret {_FLOATS} %r
}}"""
    for name, first in (("low", 0), ("high", LANES))
)
_PAIRS = f"""
declare {_FLOATS} @llvm.x86.avx512bf16.dpbf16ps.512({_FLOATS}, {_HALVES}, {_HALVES})
declare {_HALVES} @llvm.x86.avx512bf16.cvtne2ps2bf16.512({_FLOATS}, {_FLOATS})
declare <{LANES} x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512({_FLOATS})
define internal {_FLOATS} @pitc_dot_pairs(
    {_FLOATS} %x, {_FLOATS} %y, {_FLOATS} %z) alwaysinline #0 {{
  %a = bitcast {_FLOATS} %x to {_HALVES}
  %b = bitcast {_FLOATS} %y to {_HALVES}
  %r = call {_FLOATS} @llvm.x86.avx512bf16.dpbf16ps.512({_FLOATS} %z, {_HALVES} %a, {_HALVES} %b)
  ret {_FLOATS} %r
}}
define internal {_FLOATS} @pitc_as_pairs({_FLOATS} %low, {_FLOATS} %high) alwaysinline #0 {{
  %h = call {_HALVES} @llvm.x86.avx512bf16.cvtne2ps2bf16.512({_FLOATS} %high, {_FLOATS} %low)
  %r = bitcast {_HALVES} %h to {_FLOATS}
  ret {_FLOATS} %r
}}
define internal {_FLOATS} @pitc_lane_pairs({_FLOATS} %low, {_FLOATS} %high) alwaysinline #0 {{
  %h = call {_HALVES} @llvm.x86.avx512bf16.cvtne2ps2bf16.512({_FLOATS} %high, {_FLOATS} %low)
  %z = shufflevector {_HALVES} %h, {_HALVES} poison, IN_TURN
  %r = bitcast {_HALVES} %z to {_FLOATS}
  ret {_FLOATS} %r
}}
define internal {_SHORTS} @pitc_as_halves({_FLOATS} %x) alwaysinline #0 {{
  %h = call <{LANES} x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512({_FLOATS} %x)
  %r = bitcast <{LANES} x bfloat> %h to {_SHORTS}
  ret {_SHORTS} %r
}}
attributes #0 = {{ "target-features"="+avx512f,+avx512bw,+avx512vl,+avx512bf16" }}
""".replace("IN_TURN", _places(*(i + of * LANES for i in range(LANES) for of in (0, 1))))


def _each(value: int) -> str:
    return f"<{', '.join([f'i32 {value}'] * LANES)}>"


_MODEL_OF_PAIRS = f"""
declare {_FLOATS} @llvm.fma.v{LANES}f32({_FLOATS}, {_FLOATS}, {_FLOATS})
define internal {_FLOATS} @pitc_half({_FLOATS} %x, i1 %second) alwaysinline {{
  %b = bitcast {_FLOATS} %x to {_WORDS}
  %high = and {_WORDS} %b, {_each(-65536)}
  %low = shl {_WORDS} %b, {_each(16)}
  %w = select i1 %second, {_WORDS} %high, {_WORDS} %low
  %r = bitcast {_WORDS} %w to {_FLOATS}
  ret {_FLOATS} %r
}}
define internal {_FLOATS} @pitc_dot_pairs(
    {_FLOATS} %x, {_FLOATS} %y, {_FLOATS} %z) alwaysinline {{
  %x1 = call {_FLOATS} @pitc_half({_FLOATS} %x, i1 true)
  %y1 = call {_FLOATS} @pitc_half({_FLOATS} %y, i1 true)
  %x0 = call {_FLOATS} @pitc_half({_FLOATS} %x, i1 false)
  %y0 = call {_FLOATS} @pitc_half({_FLOATS} %y, i1 false)
  %s = call {_FLOATS} @llvm.fma.v{LANES}f32({_FLOATS} %x1, {_FLOATS} %y1, {_FLOATS} %z)
  %r = call {_FLOATS} @llvm.fma.v{LANES}f32({_FLOATS} %x0, {_FLOATS} %y0, {_FLOATS} %s)
  ret {_FLOATS} %r
}}
define internal {_WORDS} @pitc_rounded({_FLOATS} %x) alwaysinline {{
  %b = bitcast {_FLOATS} %x to {_WORDS}
  %shifted = lshr {_WORDS} %b, {_each(16)}
  %odd = and {_WORDS} %shifted, {_each(1)}
  %up = add {_WORDS} %odd, {_each(32767)}
  %sum = add {_WORDS} %b, %up
  %near = lshr {_WORDS} %sum, {_each(16)}
  %quiet = or {_WORDS} %shifted, {_each(64)}
  %nan = fcmp uno {_FLOATS} %x, zeroinitializer
  %r = select <{LANES} x i1> %nan, {_WORDS} %quiet, {_WORDS} %near
  ret {_WORDS} %r
}}
define internal {_FLOATS} @pitc_as_pairs({_FLOATS} %low, {_FLOATS} %high) alwaysinline {{
  %a = call {_WORDS} @pitc_rounded({_FLOATS} %low)
  %b = call {_WORDS} @pitc_rounded({_FLOATS} %high)
  %all = shufflevector {_WORDS} %a, {_WORDS} %b, {_places(*range(2 * LANES))}
  %h = trunc <{2 * LANES} x i32> %all to <{2 * LANES} x i16>
  %r = bitcast <{2 * LANES} x i16> %h to {_FLOATS}
  ret {_FLOATS} %r
}}
define internal {_FLOATS} @pitc_lane_pairs({_FLOATS} %low, {_FLOATS} %high) alwaysinline {{
  %a = call {_WORDS} @pitc_rounded({_FLOATS} %low)
  %b = call {_WORDS} @pitc_rounded({_FLOATS} %high)
  %up = shl {_WORDS} %b, {_each(16)}
  %w = or {_WORDS} %a, %up
  %r = bitcast {_WORDS} %w to {_FLOATS}
  ret {_FLOATS} %r
}}
define internal {_SHORTS} @pitc_as_halves({_FLOATS} %x) alwaysinline {{
  %w = call {_WORDS} @pitc_rounded({_FLOATS} %x)
  %r = trunc {_WORDS} %w to {_SHORTS}
  ret {_SHORTS} %r
}}
"""


@contextmanager
def pairing(*, native: bool) -> Iterator[None]:
    """Statements that may use what follows.

    Args:
        native: The machine has instructions for them; else steps do the same, for tests.
    """
    helpers = _ZIPS + (_PAIRS if native else _MODEL_OF_PAIRS)
    with tir.T.attr(tir.int64(0), "pragma_import_llvm", tvm.ir.StringImm(helpers)):
        yield


def as_pairs(low: tir.Expr, high: tir.Expr) -> tir.Expr:
    """Round 32 floats to bfloat16: word i of the vector holds numbers 2 i and 2 i + 1."""
    return tir.T.call_extern(f"float32x{LANES}", "pitc_as_pairs", low, high)


def lane_pairs(low: tir.Expr, high: tir.Expr) -> tir.Expr:
    """Round 32 floats to bfloat16: word i of the vector holds numbers i of `low` and of `high`."""
    return tir.T.call_extern(f"float32x{LANES}", "pitc_lane_pairs", low, high)


def zipped(x: tir.Expr, y: tir.Expr) -> tuple[tir.Expr, tir.Expr]:
    """Words of the numbers of two vectors of words, the first 16 and the last 16.

    x (1, 2) (3, 4) ..  and  y (5, 6) (7, 8) ..   ->   (1, 5) (2, 6) (3, 7) (4, 8) ..
    """
    names = ("pitc_zip_low", "pitc_zip_high")
    low, high = (tir.T.call_extern(f"float32x{LANES}", name, x, y) for name in names)
    return low, high


def store_halves(buffer: tir.Buffer, x: tir.Expr, *index: tir.Expr, lanes: int = LANES) -> None:
    """Round a vector of floats to bfloat16 and store its first `lanes` as uint16.

    Fewer lanes are copied one by one: LLVM makes a masked store of one 16-bit lane one of 32 bits.
    """
    halves = tir.T.call_extern(f"uint16x{LANES}", "pitc_as_halves", x)
    if lanes == LANES:
        tir.store(buffer, halves, *index)
        return
    rest = tir.workspace(LANES, dtype="uint16")
    tir.store(rest, halves, tir.int64(0))
    *lead, first = index
    for lane in range(lanes):
        tir.assign(buffer, rest[lane], *lead, first + lane)


def store_both(buffer: tir.Buffer, low: tir.Expr, high: tir.Expr, *index: tir.Expr) -> None:
    """Round 32 floats to bfloat16 and store them as uint16."""
    width = 2 * LANES
    numbers = tir.T.reinterpret(f"uint16x{width}", as_pairs(low, high))
    tir.store(buffer, numbers, *index, lanes=width, width=width)


def spread(x: tir.Expr) -> tuple[tir.Expr, tir.Expr]:
    """The numbers of words as floats in their order, the first 16 and the last 16."""
    even, odd = tir.keep(first_of_pairs(x)), tir.keep(second_of_pairs(x))
    half = LANES // 2
    low, high = (
        tir.shuffle(even, odd, [i + of * LANES for i in range(at, at + half) for of in (0, 1)])
        for at in (0, half)
    )
    return low, high


def dot_pairs(x: tir.Expr, y: tir.Expr, total: tir.Expr) -> tir.Expr:
    """Add to each lane the products of both numbers of the words of x and y."""
    return tir.T.call_extern(f"float32x{LANES}", "pitc_dot_pairs", x, y, total)


def first_of_pairs(x: tir.Expr) -> tir.Expr:
    """The numbers in the low halves of words, as floats."""
    return tir.from_bits(tir.shift_left(tir.as_bits(x), 16))


def second_of_pairs(x: tir.Expr) -> tir.Expr:
    """Those in the high halves."""
    return tir.from_bits(tir.as_bits(x) & tir.splat_bits(-(1 << 16), tir.lanes_of(x)))
