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
    quantised_products,
    reductions,
    resampling,
    sampling,
    signal,
    sources,
)
from pitc.passes.rules.record import OPERATORS, Operator, Rule, operator_of
from pitc.passes.rules.refused import REFUSED, Reason
from pitc.passes.rules.registry import expr_of, rule

__all__ = [
    "OPERATORS",
    "REFUSED",
    "Operator",
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
    "operator_of",
    "quantise",
    "quantised_products",
    "reductions",
    "resampling",
    "rule",
    "sampling",
    "signal",
    "sources",
]
