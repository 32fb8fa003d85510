"""Siblings are joined where all of their products run grouped then."""

import onnx_ir as ir

from pitc.ir.plans.whole import Grouped
from pitc.ir.target import Target
from pitc.passes.analysis import analysis
from pitc.passes.regions.choose import choose_regions
from pitc.passes.siblings.loops import join_loops, loops_of
from pitc.passes.siblings.sums import join_sums, sums_of


def join_siblings(model: ir.Model, padding: str | None, target: Target) -> int:
    """Join siblings whose results are added up, if their products run grouped then.

    Args:
        model: A normalised model; it is changed in place.
        padding: The padding masks, or None.
        target: What it is lowered for.

    Returns:
        How many products were joined, of all siblings each.
    """
    if target.kind != "cpu" or not (sums_of(model.graph) or loops_of(model.graph)):
        return 0
    trial = model.clone()
    products = join_sums(trial) + join_loops(trial)
    if not products:
        return 0
    regions = choose_regions(analysis(trial, padding, target).graph)
    forms = (regions.forms[n] if n in regions.demand.forms else None for n in products)
    if not all(form is not None and isinstance(form.plan, Grouped) for form in forms):
        return 0
    return len(join_sums(model) + join_loops(model))
