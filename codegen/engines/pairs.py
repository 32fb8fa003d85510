"""The engine of bfloat16 on CPUs: a step multiplies two k, words of two numbers of either operand.

    sums[row][vector] += a[row][2 s] * b[2 s][vector] + a[row][2 s + 1] * b[2 s + 1][vector]

A machine with AVX512-BF16 has an instruction for that, with sums in float32. Another one reads the
same words: they are taken apart, and their numbers are multiplied as float32. Its left operand may
also be numbers of float32 that nothing rounds.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pitc.codegen import pairs, tir
from pitc.codegen.engines.cpu import DenseTile, Read
from pitc.ir.target import CpuLevel

HALVES = (pairs.first_of_pairs, pairs.second_of_pairs)
"""The numbers of words: of even k, and of odd k."""


class PairTile(DenseTile):
    """Both operands are words of two numbers (`pairs.as_pairs`)."""

    def added(self, number: tir.Expr, vector: tir.Expr, total: tir.Expr) -> tir.Expr:
        """A sum and two products more: of the odd numbers first."""
        return pairs.dot_pairs(number, vector, total)


class WordTile(DenseTile):
    """The same without that instruction, in the order of its steps: odd k, then even k."""

    _half = 1

    def number(self, x: tir.Expr) -> tir.Expr:
        """One of the numbers of a word in every lane."""
        return HALVES[self._half](super().number(x))

    def step(self, read: Read) -> None:
        """Add two products to each sum."""
        a, b = read
        for self._half in (1, 0):
            super().step((a, lambda v: HALVES[self._half](b(v))))


class WideTile(DenseTile):
    """A step of two k, whose numbers are float32 on both sides."""

    def add_pair(
        self, left: Callable[[int, int], tir.Expr], right: Callable[[int, int], tir.Expr]
    ) -> None:
        """Add two products to each sum.

        Args:
            left: The number of a row at the first or second k (0, 1).
            right: A vector there.
        """
        for half in (1, 0):
            self.step(self._of(left, right, half))

    @staticmethod
    def _of(
        left: Callable[[int, int], tir.Expr], right: Callable[[int, int], tir.Expr], half: int
    ) -> Read:
        return lambda r: left(r, half), lambda v: right(v, half)


def step_count(params: Mapping[str, Any]) -> int:
    """Steps over all k of a kernel."""
    k: int = params["k"]
    return -(-k // 2) if params.get("dtype") == "bfloat16" else k


def tiles(params: Mapping[str, Any], target: CpuLevel) -> type[DenseTile]:
    """What multiplies the operands of a kernel: float32, or words of both."""
    if params.get("dtype") != "bfloat16":
        return DenseTile
    return PairTile if target.multiplies_pairs else WordTile


def instructions(params: Mapping[str, Any], target: CpuLevel) -> AbstractContextManager[None]:
    """Statements that may use what the kernel needs of `pairs`."""
    makes = params.get("dtype") == "bfloat16" and target.multiplies_pairs
    if makes or params.get("rounds_result"):
        return pairs.pairing(native=bool(target.features))
    return nullcontext()
