"""Where fill facts start: tautologies about masks, and constants.

"Where T == 0, T is 0" is true of every value. It is worth saying of those whose zeros decide
something: mask inputs and bools here, and what `pitc.passes.facts.zeros` finds among results.
"""

import numpy as np

from pitc.ir.constant import MASKED, NEG, NZ, Constant, FillFact, Range
from pitc.ir.graph import Array, Graph
from pitc.ir.region import EVERYWHERE, Predicate, Region, Test
from pitc.passes.facts.uses import is_factor

MOSTLY = 0.5  # share of zeros from which a weight counts as masked
SAMPLE = 4096
MASK_SIZE = 64  # smaller constants are not masks


def own(graph: Graph, name: str, pred: Predicate, yes: bool, c: Constant) -> FillFact:
    """The tautology "where `pred` of the value itself is `yes`, the value is c"."""
    return FillFact(Region({Test(name, graph.index_of(name), pred, yes)}), c)


def truth_values(graph: Graph, name: str) -> list[FillFact]:
    """A bool is 0 or 1."""
    return [own(graph, name, "nz", False, 0), own(graph, name, "nz", True, 1)]


def zero_or_not(graph: Graph, name: str) -> list[FillFact]:
    """A number is 0 or not."""
    return [own(graph, name, "nz", False, 0), own(graph, name, "nz", True, NZ)]


def seed_input(graph: Graph, name: str, is_mask: bool) -> list[FillFact]:
    """Tautologies about a graph input.

    Args:
        graph: The derived graph.
        name: The input.
        is_mask: The user named it as a padding mask.
    """
    dtype = graph[name].dtype
    if dtype is None or graph[name].shape is None:
        return []
    if dtype.kind == "b":
        return truth_values(graph, name)
    if is_mask and dtype.kind in "iuf":
        graph.assumptions.setdefault(f"the padding mask '{name}' holds 0 and 1 only", [])
        graph.only_01 |= {name}
        return truth_values(graph, name)
    if dtype.kind in "iu":
        return zero_or_not(graph, name)
    if dtype.kind != "f":
        return []
    # of weights that a training changes, single zeros are no pattern: what masks them is an input
    sparse = is_factor(graph, name) and name not in graph.parameters
    facts = zero_or_not(graph, name) if sparse else []
    return facts + [own(graph, name, "neg", True, NEG)] * (graph[name].term)


def seed_constant(graph: Graph, name: str) -> list[FillFact]:
    """What is worth knowing of a constant."""
    x = graph.array(name)
    if x is None or not x.size:
        return []
    splat = graph.splat(name)
    if splat is not None:
        return [] if splat != splat else [FillFact(EVERYWHERE, splat)]
    if x.dtype.kind == "b":
        return truth_values(graph, name)
    if x.dtype.kind != "f":
        return []
    if x.size > MASK_SIZE and _mostly_zero(x):
        return [own(graph, name, "nz", False, 0)]
    return _ends(graph, name, x) if graph[name].term else []  # other weights are not read


def _ends(graph: Graph, name: str, x: Array) -> list[FillFact]:
    """Between which numbers a table lies: those of masked places, and the others."""
    masked = x <= MASKED
    if np.isnan(x).any():
        return []
    if not masked.any():
        return [FillFact(EVERYWHERE, Range(float(x.min()), float(x.max())))]
    facts = []
    for yes, part in ((True, x[masked]), (False, x[~masked])):
        if part.size:
            ends = Range(float(part.min()), float(part.max()))
            facts.append(own(graph, name, "neg", yes, ends))
    return facts


def _mostly_zero(x: Array) -> bool:
    sample = x.ravel()[:: max(1, x.size // SAMPLE)]
    if float(np.mean(sample == 0)) <= MOSTLY:
        return False
    return float(np.mean(x == 0)) > MOSTLY
