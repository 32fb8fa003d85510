"""What rules and columns assume, and who checks it: the column `assumes`.

A rule declares what its index maps take for granted; the rest follows from the other columns and
from the expression (`implied`). A check is a function that has to be passed, the rule itself, which
refuses the node, or ONNX Runtime, which refuses the run in the source model too.
"""

from enum import Enum
from typing import NamedTuple

from pitc.ir.expr import PRODUCTS, Combine, Reducer, TensorExpr

RUNTIME, RULE = "ONNX Runtime", "the rule"
SUMS = (Reducer.SUM, Reducer.SQUARE, Reducer.PROD)  # of nothing, others are infinite or NaN


class Check(NamedTuple):
    """One assumption.

    Args:
        text: What is assumed.
        by: Who checks it: `module:function`, the rule, or the runtime.
    """

    text: str
    by: str


class Assumes(Enum):
    """What may be assumed."""

    FITTING_SIZES = Check("sizes of operands fit together", RUNTIME)
    INSIDE = Check("indices are inside the dimension that they index", RUNTIME)
    KNOWN_ARGUMENTS = Check("axes, counts and bounds are known, as symbols at least", RULE)
    INFERENCE = Check("it is not a training form", RULE)
    STATED_SIZES = Check("shape inference gives sizes that follow", "pitc.ir.inference:infer")
    REACHED = Check("a size is not cut off", "pitc.passes.exprs.derive:_reached")
    FINITE_OPERANDS = Check("0 * x: x is finite", "pitc.passes.facts.fill:term_guard")
    SIGN_UNSEEN = Check(
        "0 * x: no reader sees the sign of the 0", "pitc.passes.facts.zero_signs:signed_zeros"
    )
    NO_OVERFLOW = Check("nothing overflows (named in the report)", "pitc.ir.constant:FINITE")
    NO_WRAP = Check("integers stay inside their type", "pitc.passes.exprs.affine:in_type")
    NOT_EMPTY = Check("there is something to reduce", "pitc.passes.facts.total:filled")
    BOUNDED_SCORES = Check("scores are bounded (named in the report)", "pitc.ir.constant:BOUNDED")
    FILLED_SIZES = Check("no two sizes are 0 (named in the report)", "pitc.ir.constant:FILLED")
    KEPT_KEY = Check("a row keeps a key", "pitc.passes.facts.softmax:spared_rows")

    @property
    def label(self) -> str:
        """Its name in text."""
        return self.name.lower().replace("_", " ")


def implied_by(expr: TensorExpr) -> list[Assumes]:
    """What facts about an expression rest on."""
    if expr.combine in PRODUCTS:
        return [Assumes.FINITE_OPERANDS, Assumes.SIGN_UNSEEN, Assumes.NO_OVERFLOW]
    if expr.combine is Combine.SOFTMAX:
        return [Assumes.BOUNDED_SCORES, Assumes.KEPT_KEY]
    if expr.combine is Combine.REDUCE and expr.reducer not in SUMS:
        return [Assumes.NOT_EMPTY]
    return []
