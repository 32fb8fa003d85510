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
#: Rows x columns of tiles of sums; the one in row i and column j is in register 2 i + j.
_SHAPES = ((2, 2), (1, 2), (2, 1), (1, 4))
_FIRST_A = 4


def _helper(name: str, pointers: Sequence[str], lines: Sequence[str]) -> str:
    """A function of tile instructions, whose last argument is a stride in bytes."""
    arguments = ", ".join([*(f"ptr %{x}" for x in pointers), "i64 %stride"])
    body = "".join(f"  call void @llvm.x86.{line}\n" for line in lines)
    return (
        f"define internal void @pitc_amx_{name}({arguments}) alwaysinline #1 {{\n"
        f"{body}  ret void\n}}\n"
    )


def _step(rows: int, columns: int, *, far: bool) -> str:
    """Multiply tiles of A, in one piece each, and of B; B's stay in registers for all of A's."""
    load = "tileloaddt164" if far else "tileloadd64"
    of_b = [_FIRST_A + rows + j % (4 - rows) for j in range(columns)]
    lines = []
    for i in range(rows):
        lines.append(f"{load}(i8 {_FIRST_A + i}, ptr %a{i}, i64 64)")
        for j, b in enumerate(of_b):
            if i == 0:
                lines.append(f"tileloadd64(i8 {b}, ptr %b{j}, i64 %stride)")
            lines.append(f"tdpbf16ps(i8 {2 * i + j}, i8 {_FIRST_A + i}, i8 {b})")
    pointers = [*(f"a{i}" for i in range(rows)), *(f"b{j}" for j in range(columns))]
    return _helper(f"{'far_' if far else ''}step_{rows}x{columns}", pointers, lines)


def _moved(name: str, instruction: str, rows: int, columns: int) -> str:
    """Load or store all sums."""
    registers = [2 * i + j for i in range(rows) for j in range(columns)]
    lines = [f"{instruction}(i8 {r}, ptr %c{r}, i64 %stride)" for r in registers]
    return _helper(f"{name}_{rows}x{columns}", [f"c{r}" for r in registers], lines)


def _helpers() -> str:
    """What the engine calls, in LLVM IR."""
    zeros = "".join(f"  call void @llvm.x86.tilezero(i8 {r})\n" for r in range(_FIRST_A))
    shape = ", ".join(f"i8 {b}" for b in _CONFIG)
    fixed = f"""
@pitc_amx_shape = internal constant [64 x i8] [{shape}], align 64
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
{zeros}  ret void
}}
attributes #1 = {{ "target-features"="+amx-tile,+amx-bf16" }}
"""
    steps = [_step(*x, far=far) for x in _SHAPES for far in (False, True)]
    moves = [("load", "tileloadd64"), ("store", "tilestored64")]
    return "".join([fixed, *steps, *(_moved(*names, *x) for names in moves for x in _SHAPES)])


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
        """Go on with the sums of a square."""
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
        with T.attr(tir.int64(0), "pragma_import_llvm", tvm.ir.StringImm(_helpers())):
            self._call("begin")
            yield
            self._call("end")

    def clear(self, sums: Square) -> None:
        """Zero."""
        self._call("zero")

    def load(self, sums: Square) -> None:
        """Tile by tile."""
        self._move("load", sums)

    def step(
        self, sums: Square, a: Sequence[Place], b: Sequence[Place], *, far: bool = False
    ) -> None:
        """Load and multiply."""
        name = f"{'far_' if far else ''}step_{len(a)}x{len(b)}"
        self._call(name, *self._addresses([*a, *b]), _bytes(_across(b[0])))

    def store(self, sums: Square) -> None:
        """Tile by tile."""
        self._move("store", sums)

    def _move(self, name: str, sums: Square) -> None:
        shape = f"{len(sums.tiles)}x{len(sums.tiles[0])}"
        self._call(f"{name}_{shape}", *self._addresses(sums.places), _bytes(sums.stride))

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
