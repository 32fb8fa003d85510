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
define internal void @pitc_amx_store(ptr %c0, ptr %c1, ptr %c2, ptr %c3) alwaysinline #1 {{
  call void @llvm.x86.tilestored64(i8 0, ptr %c0, i64 {4 * SIDE})
  call void @llvm.x86.tilestored64(i8 1, ptr %c1, i64 {4 * SIDE})
  call void @llvm.x86.tilestored64(i8 2, ptr %c2, i64 {4 * SIDE})
  call void @llvm.x86.tilestored64(i8 3, ptr %c3, i64 {4 * SIDE})
  ret void
}}
attributes #1 = {{ "target-features"="+amx-tile,+amx-bf16" }}
"""

Place = tuple[tir.Buffer, Sequence[tir.Expr]]
"""A word of a buffer."""


class Tiles(Protocol):
    """Sums of 32 rows x 32 columns."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Statements that may use them."""
        ...

    def clear(self) -> None:
        """Start the sums at 0."""
        ...

    def step(self, a: Sequence[Place], b: Sequence[Place]) -> None:
        """Add the products of 16 words.

        Args:
            a: Two tiles of A, 16 words a row.
            b: Two tiles of B, rows of which are as far apart as rows of its buffer.
        """
        ...

    def store(self) -> tir.Buffer:
        """The sums, f32 `[32, 32]`."""
        ...


class UnitTiles:
    """In the tile registers of a matrix unit."""

    def __init__(self) -> None:
        self.sums = tir.workspace(SIDE, SIDE)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Shape the registers, and give them back."""
        with T.attr(tir.int64(0), "pragma_import_llvm", tvm.ir.StringImm(_TILES)):
            self._call("begin")
            yield
            self._call("end")

    def clear(self) -> None:
        """Zero."""
        self._call("zero")

    def step(self, a: Sequence[Place], b: Sequence[Place]) -> None:
        """Load and multiply."""
        (b0, _), _ = b
        stride = tir.int64(4 * int(b0.shape[-1]))
        self._call("step", *(self._address(*place) for place in (*a, *b)), stride)

    def store(self) -> tir.Buffer:
        """Through memory."""
        corners = ((0, 0), (0, TILE), (TILE, 0), (TILE, TILE))
        self._call("store", *(self._address(self.sums, corner) for corner in corners))
        return self.sums

    @staticmethod
    def _address(buffer: tir.Buffer, index: Sequence[tir.Expr | int]) -> tir.Expr:
        return T.address_of(buffer[tuple(index)])

    @staticmethod
    def _call(name: str, *arguments: tir.Expr) -> None:
        T.evaluate(T.call_extern("void", f"pitc_amx_{name}", *arguments))


class ModelTiles:
    """In memory, in steps that any machine has."""

    def __init__(self) -> None:
        self.sums = tir.workspace(SIDE, SIDE)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Nothing is to be shaped."""
        yield

    def clear(self) -> None:
        """Zero."""
        with tir.serial(tir.int64(0), tir.int64(SIDE)) as r:
            for v in range(2):
                tir.store(self.sums, tir.splat(0), r, tir.int64(v * LANES))

    def step(self, a: Sequence[Place], b: Sequence[Place]) -> None:
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
                    at = tir.int64(i * TILE) + r, tir.int64(v * LANES)
                    both = tir.keep(chains[0].value + chains[1].value)
                    tir.store(self.sums, tir.load(self.sums, *at) + both, *at)

    def store(self) -> tir.Buffer:
        """They are there."""
        return self.sums
