"""Where fill facts start: tautologies about masks, and constants.

"Where T == 0, T is 0" is true of every value. It is worth saying of those whose zeros decide
something: mask inputs and bools here, and what `pitc.passes.facts.zeros` finds among results.
"""

import numpy as np

from pitc.ir.constant import NEG, NZ, VERY_NEGATIVE, Constant, FillFact
from pitc.ir.expr import Combine
from pitc.ir.graph import Array, Graph
from pitc.ir.nodes import output_names
from pitc.ir.region import EVERYWHERE, Predicate, Region, Test
from pitc.passes.facts.zeros import is_factor

MOSTLY = 0.5  # share of zeros from which a weight counts as masked
SAMPLE = 4096
MASK_SIZE = 64  # smaller constants are not masks
MASKING = frozenset(
    {"Add", "Sub", "Sum", "Mul", "Div", "Neg", "Where", "Min", "Max", "Cast", "Identity"}
)


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
        is_mask: The user named it as the padding mask.
    """
    dtype = graph.dtypes.get(name)
    if dtype is None or graph.shapes.get(name) is None:
        return []
    if dtype.kind == "b":
        return truth_values(graph, name)
    if is_mask and dtype.kind in "iuf":
        graph.assumptions.setdefault(f"the padding mask '{name}' holds 0 and 1 only", [])
        return truth_values(graph, name)
    if dtype.kind in "iu":
        return zero_or_not(graph, name)
    if dtype.kind != "f":
        return []
    facts = zero_or_not(graph, name) if is_factor(graph, name) else []
    return facts + [own(graph, name, "neg", True, NEG)] * reaches_softmax(graph, name)


def seed_constant(graph: Graph, name: str) -> list[FillFact]:
    """What is worth knowing of a constant."""
    x = graph.array(name)
    if x is None or not x.size or x.dtype.kind not in "biuf":
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
    if reaches_softmax(graph, name) and bool((x <= VERY_NEGATIVE).any()):  # weights are not read
        return [own(graph, name, "neg", True, NEG)]
    return []


def _mostly_zero(x: Array) -> bool:
    sample = x.reshape(-1)[:: max(1, x.size // SAMPLE)]
    if float(np.mean(sample == 0)) <= MOSTLY:
        return False
    return float(np.mean(x == 0)) > MOSTLY


def reaches_softmax(graph: Graph, name: str) -> bool:
    """True when very negative elements of the value can decide a softmax: it is a mask."""
    seen, todo = {name}, [name]
    while todo:
        for node in graph.uses.get(todo.pop(), ()):
            for output in output_names(node):
                expr = graph.exprs.get(output)
                if expr is None or output in seen:
                    continue
                if expr.combine is Combine.SOFTMAX:
                    return True
                if expr.combine is Combine.MOVE or node.op_type in MASKING:
                    seen.add(output)
                    todo.append(output)
    return False
