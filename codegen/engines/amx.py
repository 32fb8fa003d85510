"""The engine of matrix units (AMX): tiles of 16 x 16 words of two bfloat16 numbers.

    sums[32][32] += A[32][16 words] * B[16 words][32]        four tiles of sums, two of A, two of B

One instruction adds, for every sum of a tile, the products of even k and those of odd k in chains
of their own, each from 0 on, and then both to the sum: so does the model of it, for tests on any
machine, whose bits are the same but for denormals, which the instruction takes for 0.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import tvm

from pitc.codegen import tir
from pitc.codegen.engines.pairs import HALVES
from pitc.codegen.tir import LANES, T

TILE = 16
"""Rows of a tile, and words or sums of a row."""
SIDE = 2 * TILE
"""Rows and columns of the sums."""

_CONFIG = bytes([1, 0, *[0] * 14, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])
_TILES = f"""
@pitc_amx_shape = internal constant [64 x i8] [{", ".join(f"i8 {b}" for b in _CONFIG)}], align 64
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
define internal void @pitc_amx_begin() alwaysinline #1 {{
  call void @llvm.x86.ldtilecfg(ptr @pitc_amx_shape)
  ret void
}}
define internal void @pitc_amx_end() alwaysinline #1 {{
  call void @llvm.x86.tilerelease()
  ret void
}}
define internal void @pitc_amx_zero() alwaysinline #1 {{
  call void @llvm.x86.tilezero(i8 0)
  call void @llvm.x86.tilezero(i8 1)
  call void @llvm.x86.tilezero(i8 2)
  call void @llvm.x86.tilezero(i8 3)
  ret void
}}
define internal void @pitc_amx_step(
    ptr %a0, ptr %a1, ptr %b0, ptr %b1, i64 %stride) alwaysinline #1 {{
  call void @llvm.x86.tileloadd64(i8 4, ptr %a0, i64 64)
  call void @llvm.x86.tileloadd64(i8 6, ptr %b0, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 0, i8 4, i8 6)
  call void @llvm.x86.tileloadd64(i8 7, ptr %b1, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 1, i8 4, i8 7)
  call void @llvm.x86.tileloadd64(i8 5, ptr %a1, i64 64)
  call void @llvm.x86.tdpbf16ps(i8 2, i8 5, i8 6)
  call void @llvm.x86.tdpbf16ps(i8 3, i8 5, i8 7)
  ret void
}}
define internal void @pitc_amx_half_step(
    ptr %a0, ptr %b0, ptr %b1, i64 %stride) alwaysinline #1 {{
  call void @llvm.x86.tileloadd64(i8 4, ptr %a0, i64 64)
  call void @llvm.x86.tileloadd64(i8 6, ptr %b0, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 0, i8 4, i8 6)
  call void @llvm.x86.tileloadd64(i8 7, ptr %b1, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 1, i8 4, i8 7)
  ret void
}}
define internal void @pitc_amx_wide_step(ptr %a0, ptr %b0, ptr %b1, ptr %b2, ptr %b3,
    i64 %stride) alwaysinline #1 {{
  call void @llvm.x86.tileloadd64(i8 4, ptr %a0, i64 64)
  call void @llvm.x86.tileloadd64(i8 5, ptr %b0, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 0, i8 4, i8 5)
  call void @llvm.x86.tileloadd64(i8 6, ptr %b1, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 1, i8 4, i8 6)
  call void @llvm.x86.tileloadd64(i8 7, ptr %b2, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 2, i8 4, i8 7)
  call void @llvm.x86.tileloadd64(i8 5, ptr %b3, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 3, i8 4, i8 5)
  ret void
}}
define internal void @pitc_amx_load(ptr %c0, ptr %c1, ptr %c2, ptr %c3) alwaysinline #1 {{
  call void @llvm.x86.tileloadd64(i8 0, ptr %c0, i64 64)
  call void @llvm.x86.tileloadd64(i8 1, ptr %c1, i64 64)
  call void @llvm.x86.tileloadd64(i8 2, ptr %c2, i64 64)
  call void @llvm.x86.tileloadd64(i8 3, ptr %c3, i64 64)
  ret void
}}
define internal void @pitc_amx_store(ptr %c0, ptr %c1, ptr %c2, ptr %c3) alwaysinline #1 {{
  call void @llvm.x86.tilestored64(i8 0, ptr %c0, i64 64)
  call void @llvm.x86.tilestored64(i8 1, ptr %c1, i64 64)
  call void @llvm.x86.tilestored64(i8 2, ptr %c2, i64 64)
  call void @llvm.x86.tilestored64(i8 3, ptr %c3, i64 64)
  ret void
}}
attributes #1 = {{ "target-features"="+amx-tile,+amx-bf16" }}
"""

Place = tuple[tir.Buffer, Sequence[tir.Expr]]
"""A word of a buffer."""


class Tiles(Protocol):
    """Sums of 32 rows x 32 columns, which stand in memory between two stretches of k.

    There a square is four tiles of 16 x 16: of the first rows, left and right, and of the last. Or
    they are of 16 rows x 64 columns, four tiles side by side.
    """

    @contextmanager
    def used(self) -> Iterator[None]:
        """Statements that may use them."""
        ...

    def clear(self, place: tir.Expr) -> None:
        """Start the sums of a square at 0.

        Args:
            place: Where the square begins.
        """
        ...

    def load(self, place: tir.Expr) -> None:
        """Go on with the sums of a square."""
        ...

    def step(self, place: tir.Expr, a: Sequence[Place], b: Sequence[Place]) -> None:
        """Add the products of 16 words.

        Args:
            place: Where the square begins.
            a: Two tiles of A, 16 words a row; or one, of the first rows.
            b: Two tiles of B, rows of which are as far apart as rows of its buffer; or four of
                64 columns, and one of A.
        """
        ...

    def store(self, place: tir.Expr) -> None:
        """Put the sums of a square where it is."""
        ...


def place_in_square(row: tir.Expr, vector: int) -> tir.Expr:
    """Where 16 sums of a row begin, from the start of its square."""
    return row // TILE * (2 * TILE * TILE) + row % TILE * TILE + vector * TILE * TILE


class UnitTiles:
    """In the tile registers of a matrix unit.

    Args:
        sums: Where squares stand.
    """

    def __init__(self, sums: tir.Buffer) -> None:
        self.sums = sums

    @contextmanager
    def used(self) -> Iterator[None]:
        """Shape the registers, and give them back."""
        with T.attr(tir.int64(0), "pragma_import_llvm", tvm.ir.StringImm(_TILES)):
            self._call("begin")
            yield
            self._call("end")

    def clear(self, place: tir.Expr) -> None:
        """Zero."""
        self._call("zero")

    def load(self, place: tir.Expr) -> None:
        """Four tiles."""
        self._call("load", *self._square(place))

    def step(self, place: tir.Expr, a: Sequence[Place], b: Sequence[Place]) -> None:
        """Load and multiply."""
        stride = tir.int64(4 * int(b[0][0].shape[-1]))
        name = {(2, 2): "step", (1, 2): "half_step", (1, 4): "wide_step"}[len(a), len(b)]
        self._call(name, *(self._address(*at) for at in (*a, *b)), stride)

    def store(self, place: tir.Expr) -> None:
        """Four tiles."""
        self._call("store", *self._square(place))

    def _square(self, place: tir.Expr) -> list[tir.Expr]:
        return [self._address(self.sums, (place + i * TILE * TILE,)) for i in range(4)]

    @staticmethod
    def _address(buffer: tir.Buffer, index: Sequence[tir.Expr | int]) -> tir.Expr:
        return T.address_of(buffer[tuple(index)])

    @staticmethod
    def _call(name: str, *arguments: tir.Expr) -> None:
        T.evaluate(T.call_extern("void", f"pitc_amx_{name}", *arguments))


class ModelTiles:
    """In memory, in steps that any machine has.

    Args:
        sums: Where squares stand.
    """

    def __init__(self, sums: tir.Buffer) -> None:
        self.sums = sums

    @contextmanager
    def used(self) -> Iterator[None]:
        """Nothing is to be shaped."""
        yield

    def clear(self, place: tir.Expr) -> None:
        """Zero."""
        with tir.serial(tir.int64(0), tir.int64(SIDE * SIDE // LANES)) as v:
            tir.store(self.sums, tir.splat(0), place + v * LANES)

    def load(self, place: tir.Expr) -> None:
        """They are there."""

    def step(self, place: tir.Expr, a: Sequence[Place], b: Sequence[Place]) -> None:
        """Row by row, vector by vector."""
        for i, (words, left) in enumerate(a):
            *lead_a, first = left
            with tir.serial(tir.int64(0), tir.int64(TILE)) as r:
                for v, (panel, right) in enumerate(b):
                    *lead_b, k, column = right
                    chains = [tir.Variable() for _ in range(2)]
                    for chain in chains:
                        chain.set(tir.splat(0))
                    with tir.serial(tir.int64(0), tir.int64(TILE)) as s:
                        x = tir.keep(tir.splat(words[(*lead_a, first + r * TILE + s)]))
                        y = tir.keep(tir.load(panel, *lead_b, k + s, column))
                        for chain, half in zip(chains, HALVES, strict=True):
                            chain.set(tir.fma(half(x), half(y), chain.value))
                    at = place + place_in_square(r + i * TILE, v)  # or in one of four tiles
                    both = tir.keep(chains[0].value + chains[1].value)
                    tir.store(self.sums, tir.load(self.sums, at) + both, at)

    def store(self, place: tir.Expr) -> None:
        """They are there."""
