"""Where fill facts start: tautologies about masks, and constants.

"Where T == 0, T is 0" is true of every value. It is worth saying of those whose zeros decide
something: mask inputs, bools, one-hot and ReLU outputs that reach a contraction.
"""

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import NEG, NZ, VERY_NEGATIVE, Constant, FillFact
from pitc.ir.expr import Combine
from pitc.ir.graph import Array, Graph
from pitc.ir.nodes import output_names
from pitc.ir.region import EVERYWHERE, Predicate, Region, Test

MOSTLY = 0.5  # share of zeros from which a weight counts as masked
SAMPLE = 4096
MASK_SIZE = 64  # smaller constants are not masks
ZERO_VALUED = frozenset({"Relu", "ThresholdedRelu", "Clip", "OneHot", "ScatterElements"})
ZERO_KEEPING = frozenset({"Mul", "Dropout", "Identity", "Cast"})
MASKING = frozenset(
    {"Add", "Sub", "Sum", "Mul", "Div", "Neg", "Where", "Min", "Max", "Cast", "Identity"}
)
CONTRACTIONS = (Combine.PRODUCT, Combine.BIASED_PRODUCT)


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
    readers = {n.op_type for n in _readers(graph, name)}
    masks = bool(readers & {"Mul", "Einsum"})
    facts = zero_or_not(graph, name) if masks else []
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


def _readers(graph: Graph, name: str) -> list[ir.Node]:
    """Nodes that read the value, or what movement operators make of it."""
    seen, todo, out = {name}, [name], []
    while todo:
        for node in graph.uses.get(todo.pop(), ()):
            out.append(node)
            for output in output_names(node):
                expr = graph.exprs.get(output)
                moves = expr is not None and (expr.combine is Combine.MOVE)
                if (moves or node.op_type in ("Cast", "Identity")) and output not in seen:
                    seen.add(output)
                    todo.append(output)
    return out


def reaches_contraction(graph: Graph, name: str) -> bool:
    """True when zeros of the value arrive as they are at an operand of a contraction."""
    return _reaches(graph, name, CONTRACTIONS, ZERO_KEEPING)


def reaches_softmax(graph: Graph, name: str) -> bool:
    """True when very negative elements of the value can decide a softmax: it is a mask."""
    return _reaches(graph, name, (Combine.SOFTMAX,), MASKING)


def _reaches(graph: Graph, name: str, goals: tuple[Combine, ...], through: frozenset[str]) -> bool:
    """Whether the value gets to a goal through movement and the given elementwise operators."""
    seen, todo = {name}, [name]
    while todo:
        for node in graph.uses.get(todo.pop(), ()):
            for output in output_names(node):
                expr = graph.exprs.get(output)
                if expr is None or output in seen:
                    continue
                if expr.combine in goals:
                    return True
                if expr.combine is Combine.MOVE or node.op_type in through:
                    seen.add(output)
                    todo.append(output)
    return False
