"""Products of an operand that holds few elements: the others are 0, whatever the input is.

    y[.., m, n] = sum over k of a[.., m, k] * b[k, n]

It is a sum of few rows of b, which may be computed when the model runs. (Where nothing bounds how
many live, zeros have to be counted, and many of them be skipped at once: `sparse.py`.)
"""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from pitc.ir.refusal import Code, Refusal
from pitc.passes.facts.few_elements import most_elements
from pitc.passes.regions.form import PackCandidate, Skip, static_shape
from pitc.passes.regions.matrix import is_float32

MOST = Fraction(1, 32)
"""Of all elements. A row of b is added at about a tenth of the speed of a dense product."""


@dataclass(frozen=True, slots=True)
class FewTerms(Skip):
    """A product whose left operand holds few elements that are not 0.

    Args:
        name: The operand.
        share: At most so many of its elements.
    """

    lowering = "sparse_product"
    name: str
    share: Fraction

    def __str__(self) -> str:
        return f"at most {self.share} of '{self.name}' is not 0"


def few_terms(site: PackCandidate) -> FewTerms | Refusal:
    """The left operand of a product by a matrix, where most of it is 0 in every run."""
    graph, node = site.context.graph, site.node
    none = site.refuse(Code.NO_FACT, "nothing bounds how many elements of an operand are not 0")
    if node.op_identifier() != ("", "MatMul", "") or graph.target.kind != "cpu":
        return none
    a, b = site.input(0), site.input(1)
    ranks = [len(graph[name].shape or ()) for name in (a, b)]
    if ranks[0] < 2 or ranks[1] != 2 or graph.is_constant(b):
        return none
    if not all(x is not None and is_float32(graph, x) for x in node.inputs):
        return none
    share = most_elements(graph, a)
    if share > MOST:
        return none
    sizes = static_shape(site.expr.extents)
    if sizes and prod(sizes) < graph.target.least_products:
        return site.refuse(Code.NO_GAIN, f"it sums only {prod(sizes)} products in every run", a)
    return FewTerms((node,), a, share)
