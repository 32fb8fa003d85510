"""Operator rules: tensor expressions, one file per family."""

from pitc.passes.rules import (
    contraction,
    contrib,
    convolution,
    elementwise,
    gather,
    movement,
    normalisers,
    quantise,
    reductions,
    sources,
)
from pitc.passes.rules.registry import RULES, Rule, expr_of, rule

__all__ = [
    "RULES",
    "Rule",
    "contraction",
    "contrib",
    "convolution",
    "elementwise",
    "expr_of",
    "gather",
    "movement",
    "normalisers",
    "quantise",
    "reductions",
    "rule",
    "sources",
]
