"""Attention between two quantisations: scores and weights that are whole numbers of steps.

    scores   s' = clamp(round(s / step), lowest, highest) * unit
    weights  p' = min(round(p / step), highest) * step,   p = exp(s - top) / total of the whole row

A weight is rounded once its row's maximum and total are known, so there are two passes over the
keys: one for these, one that rounds and multiplies by values. The second one goes from the last key
block to the first: of the last one the exponentials are still there, of others they are made again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pitc.codegen import tir
from pitc.codegen.vector_math import exp, whole


@dataclass(frozen=True, slots=True)
class ScoreSteps:
    """Arguments of a kernel: scores are whole numbers from `lowest` to `highest`, times `unit`."""

    lowest: tir.Expr
    highest: tir.Expr
    unit: tir.Expr

    def rounded(self, score: tir.Expr) -> tir.Expr:
        """A vector of scores, given in steps."""
        lowest, highest = tir.splat(self.lowest), tir.splat(self.highest)
        above = tir.keep(tir.select(score < lowest, lowest, score))  # NaN stays NaN
        within = tir.keep(tir.select(above > highest, highest, above))
        return tir.keep(whole(within) * tir.splat(self.unit))


@dataclass(frozen=True, slots=True)
class WeightSteps:
    """Arguments of a kernel: weights are whole numbers up to `highest`, times `step`."""

    step: tir.Expr
    highest: tir.Expr

    def rounded(self, weight: tir.Expr) -> tir.Expr:
        """How many steps a vector of weights is."""
        steps, highest = tir.keep(weight / tir.splat(self.step)), tir.splat(self.highest)
        return whole(tir.keep(tir.select(steps > highest, highest, steps)))


def add_rounded(
    block: Any, steps: WeightSteps, blocks: tir.Expr, pivot: Sequence[tir.Expr]
) -> list[tir.Expr]:
    """The second pass: o = sum over keys of v * (steps of the weight).

    Args:
        block: Queries, as `attention.py` has them, whose maxima and totals are known; p holds
            exponentials of the last key block.
        steps: Of the weights.
        blocks: How many key blocks there are.
        pivot: What is subtracted from scores, by lane group.

    Returns:
        By lane group, what o has to be multiplied by.
    """
    total = [tir.keep(tir.splat(1) / t.value) for t in block.total]
    with tir.serial(0, blocks) as turn:
        k0, keys = block.key_block(tir.bind(blocks - 1 - turn))
        again = turn > 0
        with tir.when(again):
            block.scores(k0, keys)

        def weigh(key: tir.Expr, power: bool) -> None:
            for g in block.groups:
                e = tir.load(block.kernel.p, key, g * tir.LANES)
                if power:
                    e = exp(tir.keep(e - pivot[g]), nonpositive=True)
                weight = steps.rounded(tir.keep(e * total[g]))
                tir.store(block.kernel.p, weight, key, g * tir.LANES)

        def weights(power: bool) -> None:
            with tir.serial(0, keys) as key:
                weigh(key, power)

        tir.either(again, lambda: weights(True), lambda: weights(False))
        block.values(turn == 0, k0, keys)
    return [tir.keep(tir.splat(steps.step)) for _ in block.groups]
