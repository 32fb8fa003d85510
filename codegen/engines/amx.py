"""The engine of matrix units (AMX): tiles of 16 x 16 words of two bfloat16 numbers.

    sums[32][32] += A[32][16 words] * B[16 words][32]        four tiles of sums, two of A, two of B
    sums[16][64] += A[16][16 words] * B[16 words][64]        four tiles of sums, one of A, four of B

One instruction adds, for every sum of a tile, the products of even k and those of odd k in chains
of their own, each from 0 on, and then both to the sum: so does the model of it, for tests on any
machine, whose bits are the same but for denormals, which the instruction takes for 0.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import tvm

from pitc.codegen import tir
from pitc.codegen.engines.pairs import HALVES
from pitc.codegen.tir import T
from pitc.ir.target import CpuLevel

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
declare void @llvm.x86.tileloaddt164(i8 immarg, ptr, i64)
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
define internal void @pitc_amx_far_step(
    ptr %a0, ptr %a1, ptr %b0, ptr %b1, i64 %stride) alwaysinline #1 {{
  call void @llvm.x86.tileloaddt164(i8 4, ptr %a0, i64 64)
  call void @llvm.x86.tileloadd64(i8 6, ptr %b0, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 0, i8 4, i8 6)
  call void @llvm.x86.tileloadd64(i8 7, ptr %b1, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 1, i8 4, i8 7)
  call void @llvm.x86.tileloaddt164(i8 5, ptr %a1, i64 64)
  call void @llvm.x86.tdpbf16ps(i8 2, i8 5, i8 6)
  call void @llvm.x86.tdpbf16ps(i8 3, i8 5, i8 7)
  ret void
}}
define internal void @pitc_amx_far_half_step(
    ptr %a0, ptr %b0, ptr %b1, i64 %stride) alwaysinline #1 {{
  call void @llvm.x86.tileloaddt164(i8 4, ptr %a0, i64 64)
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
define internal void @pitc_amx_tall_step(
    ptr %a0, ptr %a1, ptr %b0, i64 %stride) alwaysinline #1 {{
  call void @llvm.x86.tileloadd64(i8 4, ptr %a0, i64 64)
  call void @llvm.x86.tileloadd64(i8 6, ptr %b0, i64 %stride)
  call void @llvm.x86.tdpbf16ps(i8 0, i8 4, i8 6)
  call void @llvm.x86.tileloadd64(i8 5, ptr %a1, i64 64)
  call void @llvm.x86.tdpbf16ps(i8 2, i8 5, i8 6)
  ret void
}}
define internal void @pitc_amx_load(
    ptr %c0, ptr %c1, ptr %c2, ptr %c3, i64 %stride) alwaysinline #1 {{
  call void @llvm.x86.tileloadd64(i8 0, ptr %c0, i64 %stride)
  call void @llvm.x86.tileloadd64(i8 1, ptr %c1, i64 %stride)
  call void @llvm.x86.tileloadd64(i8 2, ptr %c2, i64 %stride)
  call void @llvm.x86.tileloadd64(i8 3, ptr %c3, i64 %stride)
  ret void
}}
define internal void @pitc_amx_store(
    ptr %c0, ptr %c1, ptr %c2, ptr %c3, i64 %stride) alwaysinline #1 {{
  call void @llvm.x86.tilestored64(i8 0, ptr %c0, i64 %stride)
  call void @llvm.x86.tilestored64(i8 1, ptr %c1, i64 %stride)
  call void @llvm.x86.tilestored64(i8 2, ptr %c2, i64 %stride)
  call void @llvm.x86.tilestored64(i8 3, ptr %c3, i64 %stride)
  ret void
}}
define internal void @pitc_amx_store_tall(ptr %c0, ptr %c2, i64 %stride) alwaysinline #1 {{
  call void @llvm.x86.tilestored64(i8 0, ptr %c0, i64 %stride)
  call void @llvm.x86.tilestored64(i8 2, ptr %c2, i64 %stride)
  ret void
}}
attributes #1 = {{ "target-features"="+amx-tile,+amx-bf16" }}
"""

Place = tuple[tir.Buffer, Sequence[tir.Expr]]
"""A word or a sum of a buffer."""


@dataclass(frozen=True, slots=True)
class Square:
    """Where the sums of up to four tiles stand.

    Args:
        tiles: The first sum of each: two above two others, one above another, or four of the same
            rows.
        stride: Sums from one row of a tile to the next.
    """

    tiles: Sequence[Sequence[Place]]
    stride: int

    @property
    def places(self) -> list[Place]:
        """Of all tiles."""
        return [place for row in self.tiles for place in row]


class Tiles(Protocol):
    """Sums of tiles, which stand in memory between two stretches of k."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Statements that may use them."""
        ...

    def clear(self, sums: Square) -> None:
        """Start sums at 0."""
        ...

    def load(self, sums: Square) -> None:
        """Go on with the sums of a square, of four tiles."""
        ...

    def step(
        self, sums: Square, a: Sequence[Place], b: Sequence[Place], *, far: bool = False
    ) -> None:
        """Add the products of 16 words.

        Args:
            sums: Of each tile of A with each of B.
            a: One or two tiles of A, 16 words a row, in one piece. One of two may be left out: then
                the last sums stay as they are.
            b: Tiles of B, rows of which are as far apart as rows of its buffer, or in one piece.
            far: A is too long for the first-level cache, and is to leave what is there alone.
        """
        ...

    def store(self, sums: Square) -> None:
        """Put the sums where the square is."""
        ...


class UnitTiles:
    """In the tile registers of a matrix unit."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Shape the registers, and give them back."""
        with T.attr(tir.int64(0), "pragma_import_llvm", tvm.ir.StringImm(_TILES)):
            self._call("begin")
            yield
            self._call("end")

    def clear(self, sums: Square) -> None:
        """Zero."""
        self._call("zero")

    def load(self, sums: Square) -> None:
        """Tile by tile."""
        self._call("load", *self._addresses(sums.places), _bytes(sums.stride))

    def step(
        self, sums: Square, a: Sequence[Place], b: Sequence[Place], *, far: bool = False
    ) -> None:
        """Load and multiply."""
        kinds = {(2, 2): "step", (1, 2): "half_step", (1, 4): "wide_step", (2, 1): "tall_step"}
        name = ("far_" if far else "") + kinds[len(a), len(b)]
        self._call(name, *self._addresses([*a, *b]), _bytes(_across(b[0])))

    def store(self, sums: Square) -> None:
        """Tile by tile."""
        name = "store" if len(sums.places) == 4 else "store_tall"
        self._call(name, *self._addresses(sums.places), _bytes(sums.stride))

    @staticmethod
    def _addresses(places: Sequence[Place]) -> list[tir.Expr]:
        return [T.address_of(buffer[tuple(index)]) for buffer, index in places]

    @staticmethod
    def _call(name: str, *arguments: tir.Expr) -> None:
        T.evaluate(T.call_extern("void", f"pitc_amx_{name}", *arguments))


def _across(place: Place) -> int:
    """Words from one row of a tile to the next."""
    buffer, _ = place
    return TILE if len(buffer.shape) == 1 else int(buffer.shape[-1])


def _bytes(words: int) -> tir.Expr:
    return tir.int64(4 * words)


class ModelTiles:
    """In memory, in steps that any machine has."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Nothing is to be shaped."""
        yield

    def clear(self, sums: Square) -> None:
        """Zero."""
        for buffer, index in sums.places:
            with tir.serial(tir.int64(0), tir.int64(TILE)) as r:
                tir.store(buffer, tir.splat(0), *self._row(index, r, sums.stride))

    def load(self, sums: Square) -> None:
        """They are there."""

    def step(
        self, sums: Square, a: Sequence[Place], b: Sequence[Place], *, far: bool = False
    ) -> None:
        """Row by row, vector by vector."""
        for (words, left), row in zip(a, sums.tiles, strict=False):
            *lead_a, first = left
            with tir.serial(tir.int64(0), tir.int64(TILE)) as r:
                for (panel, right), (buffer, index) in zip(b, row, strict=True):
                    chains = [tir.Variable() for _ in range(2)]
                    for chain in chains:
                        chain.set(tir.splat(0))
                    with tir.serial(tir.int64(0), tir.int64(TILE)) as s:
                        x = tir.keep(tir.splat(words[(*lead_a, first + r * TILE + s)]))
                        y = tir.keep(tir.load(panel, *self._row(right, s, TILE)))
                        for chain, half in zip(chains, HALVES, strict=True):
                            chain.set(tir.fma(half(x), half(y), chain.value))
                    at = self._row(index, r, sums.stride)
                    both = tir.keep(chains[0].value + chains[1].value)
                    tir.store(buffer, tir.load(buffer, *at) + both, *at)

    def store(self, sums: Square) -> None:
        """They are there."""

    @staticmethod
    def _row(index: Sequence[tir.Expr], r: tir.Expr, stride: int) -> list[tir.Expr]:
        """Row `r` of a tile: of a buffer of rows of that length, or of one dimension."""
        *lead, last = index
        return [*lead[:-1], lead[-1] + r, last] if lead else [last + r * stride]


def tiles_of(target: CpuLevel) -> Tiles:
    """The unit of a CPU level, or the model of it where the level has no features."""
    return UnitTiles() if target.features else ModelTiles()
