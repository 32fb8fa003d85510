"""Elements that are scaled by extremes of a whole value: dynamic quantisation.

    s = (max(x, 0) - min(x, 0)) / 255      q[i] = round(x[i] / s) + zero

0 is among what the extremes are taken of, so elements that are 0 may be left out.
"""

from pitc.ir.constant import FINITE
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions.domain import covering
from pitc.passes.regions.form import Form, PackCandidate, PackedOperand, zero_facts
from pitc.passes.rules.record import operator_of


def by_extremes(site: PackCandidate) -> Form | Refusal:
    """9. The rows that live, where the value is 0 in the others; scales come as they were."""
    context, (operand,) = site.context, [operator_of(site.node).extremes_of]
    if operand is None or site.expr.reads[0].operand != operand or len(site.node.inputs) != 1:
        return site.refuse(Code.NO_LOWERING, f"{site.node.op_type} has no packed form")
    name = site.input(operand)
    rows = [p for p in context.rows(name) if p.coords == site.out.coords]
    if not rows:
        return site.refuse(Code.AXIS_NOT_PIT, "rows are not read at the same packed row")
    proof = covering(context.domain, site.out.coords, zero_facts(context.graph, name))
    if proof is None:
        text = f"'{name}' is not 0 in the skipped rows, and its extremes are read"
        return site.refuse(Code.NO_FACT, text)
    context.graph.assume(FINITE, site.node)  # where extremes of NaN lie depends on the order
    return Form(
        (site.out, *[None] * (len(site.node.outputs) - 1)),
        (PackedOperand(name, context.domain, site.out.coords),),
        site.node.op_type,
        rests_on=(proof,),
        whole=tuple(o.name for o in site.node.outputs[1:] if o.name),
    )
