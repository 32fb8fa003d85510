"""How rules get into the records, and how a node is asked for its expressions."""

from collections.abc import Callable
from dataclasses import replace

from pitc.ir.expr import TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.record import OPERATORS, UNKNOWN, Operator, Rule
from pitc.passes.rules.refused import REFUSED

MICROSOFT = "com.microsoft"


def rule(
    *names: str, assumes: tuple[Assumes, ...], domain: str = "", has: Operator = UNKNOWN
) -> Callable[[Rule], Rule]:
    """Register a function as the rule of some operators.

    Args:
        names: Operator types.
        assumes: What the function takes for granted.
        domain: Their domain; empty for the standard one.
        has: Their properties.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            OPERATORS[domain, name] = replace(has, rule=function, assumes=assumes)
        return function

    return register


def expr_of(view: NodeView) -> tuple[TensorExpr | None, ...]:
    """The tensor expression of each output of a node.

    Args:
        view: The node.

    Returns:
        One expression per output; None for an output that the rule does not describe.

    Raises:
        NoRule: No rule describes this node. The reason names what is missing.
    """
    found = OPERATORS.get((view.domain, view.op), UNKNOWN).rule
    if found is None:
        reason = REFUSED.get((view.domain, view.op))
        if reason is not None:
            raise NoRule(reason.value)
        raise NoRule(f"no rule for operator {view.domain or 'ai.onnx'}::{view.op}")
    try:
        exprs = tuple(found(view))
    except IndexError:
        raise NoRule("an operand has fewer dimensions than the operator takes") from None
    for read in (read for expr in exprs if expr is not None for read in expr.reads):
        if view.has_shape(read.operand) and view.rank(read.operand) != len(read.index):
            raise NoRule(f"input {read.operand} has {view.rank(read.operand)} dimensions")
    return (*exprs, *(None for _ in range(view.n_outputs - len(exprs))))[: view.n_outputs]
