"""Operator rules: tensor expressions, one file per family."""

from pitc.passes.rules import (
    attention,
    contraction,
    contrib,
    control,
    convolution,
    elementwise,
    gather,
    movement,
    normalisers,
    quantise,
    reductions,
    resampling,
    sampling,
    signal,
    sources,
)
from pitc.passes.rules.refused import REFUSED, Reason
from pitc.passes.rules.registry import RULES, Rule, expr_of, rule

__all__ = [
    "REFUSED",
    "RULES",
    "Reason",
    "Rule",
    "attention",
    "contraction",
    "contrib",
    "control",
    "convolution",
    "elementwise",
    "expr_of",
    "gather",
    "movement",
    "normalisers",
    "quantise",
    "reductions",
    "resampling",
    "rule",
    "sampling",
    "signal",
    "sources",
]
