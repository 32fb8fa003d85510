"""The engine of bfloat16 on CPUs: a step multiplies two k, words of two numbers of either operand.

    sums[row][vector] += a[row][2 s] * b[2 s][vector] + a[row][2 s + 1] * b[2 s + 1][vector]

A machine with AVX512-BF16 has an instruction for that, with sums in float32. Another one reads the
same panels: their words are taken apart, and multiplied by numbers of float32 that nothing rounds.
"""

from collections.abc import Callable

from pitc.codegen import pairs, tir
from pitc.codegen.engines.cpu import DenseTile, Read


HALVES = (pairs.first_of_pairs, pairs.second_of_pairs)
"""The numbers of words: of even k, and of odd k."""


class PairTile(DenseTile):
    """Both operands are words of two numbers (`pairs.as_pairs`)."""

    def added(self, number: tir.Expr, vector: tir.Expr, total: tir.Expr) -> tir.Expr:
        """A sum and two products more: of the odd numbers first."""
        return pairs.dot_pairs(number, vector, total)


class WideTile(DenseTile):
    """Only the right operand is words of two numbers."""

    def add_pair(
        self, left: Callable[[int, int], tir.Expr], right: Callable[[int], tir.Expr]
    ) -> None:
        """Add two products to each sum.

        Args:
            left: The number of a row at the first or second k (0, 1).
            right: A vector of words.
        """
        for half, take in enumerate(HALVES):
            self.step(self._of(left, right, half, take))

    @staticmethod
    def _of(
        left: Callable[[int, int], tir.Expr],
        right: Callable[[int], tir.Expr],
        half: int,
        take: Callable[[tir.Expr], tir.Expr],
    ) -> Read:
        return lambda r: left(r, half), lambda v: take(right(v))
