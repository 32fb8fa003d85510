"""What a walk between two contractions gathers, and what facts say at live (query, key) pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import onnx_ir as ir

from pitc.ir.constant import (
    ZN,
    Constant,
    is_number,
    is_zero,
)
from pitc.ir.expr import Read, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import Coords
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, covered, covers, pull, region
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import BiasTerm, Factor, FormContext, PackCandidate
from pitc.passes.regions.row_guard import RowGuard
from pitc.passes.regions.score_bias import shape_of_term
from pitc.passes.regions.sight import Condition
from pitc.passes.regions.steps import LEAST, MOST, Inner, Steps


@dataclass(slots=True)
class Scores:
    """Where the walk stands, and what it has gathered.

    Args:
        name: The value reached.
        query_coords: Coordinates of the queries, as digits of that value.
        key_coords: Coordinates of the keys, as digits of that value.
        pairs: Regions of that value which together hold every live pair.
        factors: Numbers computed of sizes that they are multiplied or divided by.
        zero: The weights that the values get are 0 at dead keys, never NaN.
        chosen: A step was left out for what it does at live pairs; asked at the softmax, of those
            behind it.
        nan_to_zero: A row whose softmax is NaN has weights of 0.
        no_keys_to_zero: Only a row without live keys has.
        spared: Every live row keeps a key, so that hidden ones have weights of 0.
        guard: Where rows of weights are 0, behind the softmax.
        weight_steps: What the weights are rounded to, behind the softmax.
        inner: What scores go through behind a first factor, `scale`.
        sink: What stands beside the scores in their softmax, and has no value.
        sinks: How many numbers that is.
        hidden: Pairs that are left out as well: `pairs` are the others, from the softmax on.
        may_be_uniform: Rows of hidden pairs alone may be left to the kernel.
        uniform: They are: all their weights are equal, for what replaced the scores was one number.
    """

    name: str
    query_coords: Coords
    key_coords: Coords
    pairs: list[Region]
    scale: float = 1.0
    factors: list[Factor] = field(default_factory=list)
    bias: list[BiasTerm] = field(default_factory=list)
    zero: bool = False
    chosen: bool = False
    nan_to_zero: bool = False
    no_keys_to_zero: bool = False
    spared: bool = False
    guard: RowGuard | None = None
    weight_steps: Steps | None = None
    inner: Inner | None = None
    sink: str | None = None
    sinks: int | None = None
    hidden: list[Condition] = field(default_factory=list)
    may_be_uniform: bool = True
    uniform: bool = False
    softmaxed: bool = False
    absorbs: list[ir.Node] = field(default_factory=list)
    rests_on: list[Region] = field(default_factory=list)

    @property
    def is_scaled(self) -> bool:
        """What stands in front is multiplied by numbers."""
        return self.scale != 1.0 or bool(self.factors)

    def add(
        self, site: PackCandidate, term: str, low: float | None = None, *, low_when: bool = True
    ) -> Refusal | None:
        """Gather a term that is added where the walk stands (see `BiasTerm`)."""
        graph, coords = site.context.graph, (*self.query_coords, self.key_coords[-1])
        shape = shape_of_term(graph, graph[self.name].shape, coords, graph[term].shape)
        if shape is None:
            text = "a bias needs scores [batch, heads, queries, keys]"
            return site.refuse(Code.NO_LOWERING, text, term)
        self.bias.append(BiasTerm(term, shape, low, low_when))
        return None


def live_pairs(queries: Domain, keys: Domain, at_q: Coords, at_k: Coords) -> list[Region] | None:
    """Regions that together hold every pair of a live query and a live key; None where they
    cannot be said.
    """
    q_cases, k_cases = queries.live_cases(at_q), keys.live_cases(at_k)
    if q_cases is None or k_cases is None:
        return None
    pairs = [region(Region((q, k))) for q in q_cases for k in k_cases]
    return [p for p in pairs if p is not None]


def rest_on_zeros(context: FormContext, keys: Domain, scores: Scores) -> bool | None:
    """Rest on fill facts which say that the probabilities of live queries are zero at dead keys.

    Returns:
        True; False where they may be NaN as well; None without such facts.
    """
    for or_nan in (False, True):
        proofs = _zero_at_dead_keys(context, keys, scores, or_nan)
        if proofs is not None:
            scores.rests_on += proofs
            return not or_nan
    return None


def _zero_at_dead_keys(
    context: FormContext, keys: Domain, scores: Scores, or_nan: bool
) -> list[Region] | None:
    cases = context.domain.live_cases(scores.query_coords)
    if cases is None:
        return None
    dead, proofs = keys.at(scores.key_coords), []
    facts = context.graph[scores.name].fills
    zeros = [f.region for f in facts if is_zero(f.constant) or (or_nan and f.constant == ZN)]
    for case in cases:
        where = region(Region((*dead, case)))
        if where is None:
            continue
        proof = _proof(zeros, where)
        if proof is None:
            return None
        proofs += proof
    return proofs


def _proof(facts: Sequence[Region], where: Region) -> list[Region] | None:
    """A fact that covers a region, or two that do so together; None without.

    {k <= q, mask[k] == 0} and {k > q, mask[k] == 0} cover {mask[k] == 0}
    """
    for fact in facts:
        if covers(fact, where):
            return [fact]
    unsaid = [(f, [u for u in f if not any(t.implies(u) for t in where)]) for f in facts]
    pairs = combinations(unsaid, 2)
    return next(([a, b] for (a, x), (b, y) in pairs if covered([x, y], 1)), None)


def known_at_pairs(
    site: PackCandidate, scores: Scores, expr: TensorExpr, operand: int, name: str
) -> Constant:
    """The number that an operand is known to be at every live pair; None where it is not."""
    graph = site.context.graph
    splat = graph.splat(name)
    if splat is not None:
        return splat
    found: set[float] = set()
    used: list[Region] = []
    facts = facts_at(graph, expr, operand, name)
    for pair in scores.pairs:
        hit = next(((w, c) for w, c in facts if covers(w, pair)), None)
        if hit is None:
            return None
        found.add(hit[1])
        used.append(hit[0])
    if len(found) != 1:
        return None
    scores.rests_on += used
    return found.pop()


def facts_at(graph: Graph, expr: TensorExpr, operand: int, name: str) -> list[tuple[Region, float]]:
    """Where an operand is known to be a number, in the coordinates of the result."""
    shape = graph[name].shape
    reads: list[Read] = [r for r in expr.reads if r.operand == operand]
    if shape is None or len(reads) != 1:
        return []
    facts = ((read, f) for read in reads for f in graph[name].fills)
    places = ((pull(f.region, read.index, shape), f) for read, f in facts)
    return [(w, float(f.constant)) for w, f in places if w is not None and is_number(f.constant)]


def continue_at(site: PackCandidate, scores: Scores, name: str) -> Refusal | None:
    """Go on at an operand, if it has the dimensions of the scores."""
    graph = site.context.graph
    if graph[name].shape != graph[scores.name].shape:
        return site.refuse(Code.LAYOUT, f"'{name}' is widened to the scores' shape", name)
    scores.name = name
    return None


def is_factor(number: float) -> bool:
    """True for a number that scores may be multiplied by, before or after the contraction."""
    return LEAST <= abs(number) <= MOST
