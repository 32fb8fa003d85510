"""Forward: fill facts. A fact (region, c) of a value says that it is c in all of the region.

One engine over the tensor expressions. Facts of the operands are brought into the iteration space
by their index maps, combined there as the expression combines elements, and quantified over the
reduced axes. `Region.via` collects the values whose own facts were used.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from math import copysign, inf, isfinite, prod

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import (
    BOUNDED,
    FINITE,
    NZ,
    SCORE,
    TOP,
    ZN,
    Constant,
    FillFact,
    Range,
    annihilates,
    is_assumed,
    is_number,
    is_score,
    is_zero,
    range_of,
)
from pitc.ir.expr import Combine, Read, Reducer, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ZERO, dim_index, nonneg
from pitc.ir.nodes import output_names
from pitc.ir.region import (
    EVERYWHERE,
    MAX_TESTS,
    Region,
    Test,
    all_hold,
    covered,
    for_all,
    prune,
    pull,
    region,
    resolve,
)
from pitc.passes.control.bodies import BODY, body_model, captured, states_of
from pitc.passes.exprs.affine import comparison, diagonal, threshold, zero_place
from pitc.passes.exprs.derive import derive
from pitc.passes.exprs.sums import same_element
from pitc.passes.facts.finite import (
    all_finite,
    at_a_place,
    both,
    clean_if,
    finite_if,
    guard_at,
    note_outputs,
    note_sources,
    row_clean,
)
from pitc.passes.facts.seeds import (
    own,
    seed_constant,
    seed_input,
    truth_values,
)
from pitc.passes.facts.signs import Known
from pitc.passes.facts.softmax import Lines, keeping, softmax_facts
from pitc.passes.facts.terms import add_tests, bounded_term, note_terms, raw_score, scaled_score
from pitc.passes.facts.total import filled, some_term
from pitc.passes.facts.uses import note_uses
from pitc.passes.facts.zeros import holds_zeros, scattered
from pitc.passes.normalise import normalise
from pitc.passes.rules.constants import evaluate_constants
from pitc.passes.rules.record import Operator, operator_of
from pitc.passes.rules.signs import Sign

MAX_COMBINATIONS = 256  # of operand facts at one node; beyond it nothing is said
UNKNOWN = FillFact(EVERYWHERE, TOP)
LEAST = float(np.finfo(np.float32).min)
INFINITE = (inf, -inf)
_COUNTS = tuple(map(np.dtype, (np.int64, np.float32, np.float64)))
MOST_COUNTED = 1 << 20  # of so many numbers an integer of 64 bits holds the sum
MANY_PARTS = 3  # of a mask, which are regions of its zeros


def fill_facts(graph: Graph, flags: Collection[str] = ()) -> None:
    """Derive expressions and symbols, then fill facts, for every value of a graph.

    Args:
        graph: A graph as read; `exprs`, `shapes`, `fills` and the symbol tables are filled in.
        flags: Inputs that hold 0 and 1 only, as the user says of padding masks.
    """
    derive(graph)
    note_terms(graph)
    note_uses(graph)
    for name in graph.constants():
        if graph[name].uses:
            graph[name].fills = seed_constant(graph, name)
    for name in graph.inputs:
        facts = seed_input(graph, name, name in flags)
        graph[name].fills = _resting_on(graph, name, facts)
    note_sources(graph)
    for node in graph.nodes:
        view = NodeView(graph, node)
        if node in graph.carried and BODY not in graph.model.meta:
            _fill_body(graph, node)
        for k in range(view.n_outputs):
            name = view.out(k)
            if not name:
                continue
            expr, facts = graph[name].expr, []
            note_outputs(view, k, expr)
            if graph[name].shape is not None:
                facts = simplest(_facts(view, k, expr))
            graph[name].fills = _resting_on(graph, name, facts)


def _fill_body(graph: Graph, node: ir.Node) -> None:
    """Facts of a loop's body, whose inputs count as finite: what it captures and carries must be.

    Carried values are by induction: at the start, and again after each trip.
    """
    states = [x.name or "" for x in states_of(node)]
    outer = {x.name or "" for _, _, x in captured(node.attributes["body"].as_graph())}
    if not all_finite(graph, (*states, *(x for x in outer if not graph.is_constant(x)))):
        _refuse_body(graph, node, "what its body reads may be infinite")
        return
    model = body_model(graph, node, graph.carried[node])
    normalise(model, graph.target)
    inner = Graph(model, graph.target)
    fill_facts(inner)
    if all_finite(inner, inner.outputs[: 1 + len(states)]):  # the condition, a bool, is first
        graph.bodies[node] = inner
    else:
        _refuse_body(graph, node, "what its body carries on may become infinite")


def _refuse_body(graph: Graph, node: ir.Node, reason: str) -> None:
    for name in output_names(node):
        graph[name].unruled = f"{node.op_type}: {reason}"


def _resting_on(graph: Graph, name: str, facts: Sequence[FillFact]) -> list[FillFact]:
    """The facts as those of one value; it and what they test get their bits.

    That it is a score stays true when it is overwritten; and, of a value that may be, that it is 0
    where it is 0.
    """
    if not facts:
        return []
    for t in (t for f in facts for t in f.region if graph[t.src].order >= 0):
        graph.note_bit(t.src)
    bit = graph.note_bit(name)
    own = Region({Test(name, graph.index_of(name), "nz", False)})
    overwritten = graph[name].producer is not None

    def always(f: FillFact) -> bool:
        same = overwritten and is_zero(f.constant) and f.region == own
        return same or is_score(f.constant)

    return [
        f if always(f) else FillFact(Region(f.region, f.region.via | bit), f.constant)
        for f in facts
    ]


def simplest(facts: Iterable[FillFact]) -> list[FillFact]:
    """The facts pruned per constant."""
    out = []
    for c, regions in by_constant(facts).items():
        out += [FillFact(r, c) for r in prune(regions)]
    return out


def facts_at(graph: Graph, name: str, read: Read) -> list[FillFact]:
    """Facts of an operand in the iteration space, with "unknown, everywhere" last."""
    out, shape = [], graph[name].shape
    if shape is not None:
        for f in graph[name].fills:
            found = pull(f.region, read.index, shape)
            at = None if found is None else region(found | read.within)
            if at is not None:
                out.append(FillFact(at, f.constant))
    return [*out, UNKNOWN]


def known_at(view: NodeView, read: Read) -> list[FillFact]:
    """The facts of `facts_at` that say something."""
    return facts_at(view.graph, view.name(read.operand), read)[:-1]


def _facts(view: NodeView, output: int, expr: TensorExpr | None) -> list[FillFact]:
    graph, name = view.graph, view.out(output)
    facts = [] if expr is None else _by_combine(view, output, expr)
    if output == 0 and holds_zeros(view, expr, facts):
        facts = [*facts, own(graph, name, "nz", False, 0)]
    dtype = graph[name].dtype
    if dtype is None or dtype.kind != "b":
        return facts
    # that a key is kept must be known, so a bool's facts leave no point open
    facts = facts if _complete(facts) else [*facts, *truth_values(graph, name)]
    shape = graph[name].shape or ()
    facts = [FillFact(at_a_place(f.region, shape), f.constant) for f in facts]
    return _by_cases(facts)


def _by_cases(facts: Iterable[FillFact]) -> list[FillFact]:
    """Facts, those of cases as one: 0 where a and t, 0 where a and not t   ->   0 where a."""
    return [
        FillFact(r, c)
        for c, regions in by_constant(facts).items()
        for r in resolve(regions)
        # of a and t, and b and not t, "a and b" says nothing new
        if any(all(any(u.implies(t) for u in case) for t in r) for case in regions)
    ]


def _complete(facts: Sequence[FillFact]) -> bool:
    """True when the facts together cover every point."""
    return covered([list(f.region) for f in facts], MAX_TESTS)


def _by_combine(view: NodeView, output: int, expr: TensorExpr) -> list[FillFact]:
    graph = view.graph
    if expr.combine is Combine.MOVE:
        return _moved(view, expr)
    if output > 0:  # further outputs (masks, statistics) are not what the operator computes
        return []
    match expr.combine:
        case Combine.MAP:
            return _mapped(view, expr) + bounded_term(view)
        case Combine.PRODUCT:
            return _product(view, expr) + raw_score(view, expr, finite_if(graph, view.out()))
        case Combine.BIASED_PRODUCT:
            return raw_score(view, expr, finite_if(graph, view.out()))
        case Combine.REDUCE:
            facts = _reduced(view, expr) + largest_score(view, expr)
            return facts + _largest(view, expr) + _not_zero(view, expr)
        case Combine.SOFTMAX:
            return softmax_facts(view, expr, row_clean(view, expr))
        case Combine.SCATTER:
            return _scattered(view, expr)
    return _by_places(view, expr)


def _by_places(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    """Facts of what positions alone decide: a diagonal, and what is on one side of one."""
    dtype = view.out_dtype()
    number = float if dtype is not None and dtype.kind == "f" else int  # of -0.0 the sign counts
    facts = [FillFact(r, number(c)) for r, c in diagonal(view, expr)]
    elsewhere = operator_of(view).elsewhere
    c = elsewhere(view) if elsewhere is not None else None
    if c is not None:
        (read,) = expr.reads
        outside = (region([n]) for t in read.within if (n := t.negate()) is not None)
        facts += [FillFact(r, number(c)) for r in outside if r is not None]
        facts += known_at(view, read)
    return facts


def _moved(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    facts = [f for r in expr.moving_reads for f in known_at(view, r)]
    return _by_cases(facts) if len(expr.moving_reads) > 1 else facts  # parts of what is joined


def _mapped(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    positions = [FillFact(r, c) for r, c in comparison(view, expr)]
    if positions:
        return positions
    if view.graph[view.out()].guard_flag:  # "0 or NaN" becomes 0
        facts = known_at(view, expr.reads[2])
        return [FillFact(f.region, 0) for f in facts if annihilates(f.constant)]
    add_tests(view, expr)
    same = [FillFact(r, c) for r, c in (*same_element(view, expr), *zero_place(view, expr))]
    facts = _combinations(view, expr) + same
    guard = finite_if(view.graph, view.out()) if view.graph[view.out()].guarded_softmax else None
    if guard is not None:  # "0 or NaN" is 0 where its row is clean
        places = (both(f.region, guard) if f.constant is ZN else f.region for f in facts)
        found = zip(places, facts, strict=True)
        facts = [
            FillFact(r, 0 if f.constant is ZN else f.constant) for r, f in found if r is not None
        ]
    score = scaled_score(view, expr)
    if score is not None:
        scaled: Region | None = score.region
        for read in expr.reads:
            scaled = both(scaled, term_guard(view, read))
        if scaled is not None:
            proven = (f for f in facts if not is_assumed(f.constant))
            facts = [*proven, FillFact(scaled, score.constant)]
        return facts
    lengths = [FillFact(r, c) for r, c in threshold(view, expr)]
    # of a number about which too little is known, "0 < x" says all of "x > 0"
    return lengths + same if lengths and not _complete(facts) else facts


def _combinations(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    """Every constant that the operator can be shown to have, over combinations of facts."""
    lists = [facts_at(view.graph, view.name(r.operand), r) for r in expr.reads]
    if operator_of(view).chooses and view.graph[view.out()].term and lists:
        lists[0] = _with_itself(view, expr.reads[0], lists[0])
    if prod(map(len, lists)) > MAX_COMBINATIONS:
        return []
    groups = [by_constant(facts) for facts in lists]
    results: dict[tuple[Constant, ...], tuple[Constant, Region]] = {}
    for constants in product(*groups):
        # bounds of unknown numbers are of no use but on the way to a softmax
        if view.graph[view.out()].term or any(c is not TOP for c in constants) or not lists:
            result = _result(view, expr, constants)
            if result is not None:
                results[constants] = result
    out: dict[Constant, list[Region]] = {}
    for constants, (c, guard) in results.items():
        found = out.setdefault(c, [])
        if not any(results.get(weaker) == (c, guard) for weaker in weaker_than(constants)):
            found += all_hold([[guard], *(g[k] for g, k in zip(groups, constants, strict=True))])
    return [FillFact(r, c) for c, regions in out.items() for r in regions]


def _with_itself(view: NodeView, read: Read, facts: list[FillFact]) -> list[FillFact]:
    """Facts of a mask, and where it is 0 by itself: of a mask of many parts one test says that, and
    its regions may be too many.
    """
    name = view.name(read.operand)
    shape, dtype = view.graph[name].shape, view.graph[name].dtype
    if sum(is_zero(f.constant) for f in facts) < MANY_PARTS or shape is None or dtype != np.bool_:
        return facts
    view.graph.many_parts.add(name)
    whole = (
        FillFact(r, f.constant)
        for f in truth_values(view.graph, name)
        if (r := pull(f.region, read.index, shape)) is not None
    )
    return [*whole, *facts]


def by_constant(facts: Iterable[FillFact]) -> dict[Constant, list[Region]]:
    """The regions of each constant, in order."""
    groups: dict[Constant, list[Region]] = {}
    for f in facts:
        groups.setdefault(f.constant, []).append(f.region)
    return groups


def weaker_than(constants: Sequence[Constant]) -> Iterator[tuple[Constant, ...]]:
    """The same with one of them unknown.

    What holds of (0, unknown) holds of (0, 1): there is nothing to learn from the second.
    """
    for k, c in enumerate(constants):
        if c is not TOP:
            yield (*constants[:k], TOP, *constants[k + 1 :])


def _result(
    view: NodeView, expr: TensorExpr, constants: tuple[Constant, ...]
) -> tuple[Constant, Region] | None:
    """What an elementwise step gives for constants, and on which condition; None for nothing."""
    operator, c = operator_of(view), evaluate_constants(view.op, constants, node=view)
    if c is ZN and operator.power(1) < 0 and is_zero(constants[0]):
        c = 0 if Known(view).sign(1) is Sign.POSITIVE else ZN
    guard = None if c is TOP else _tame(view, expr, constants)
    if guard is None:
        return None
    if not operator.selects and not all(is_number(x) or _is_tame(x, operator) for x in constants):
        view.assume(FINITE)
    halves = view.out_dtype() == np.float16  # ONNX Runtime may leave out the rounding between nodes
    if halves and c in INFINITE and not any(x in INFINITE for x in constants):
        view.assume(FINITE)
    if any(map(is_assumed, constants)) and not is_assumed(c):
        proven = [TOP if is_assumed(x) else x for x in constants]
        if evaluate_constants(view.op, proven, node=view) != c:
            view.assume(BOUNDED)
    return c, guard


def _tame(view: NodeView, expr: TensorExpr, constants: Sequence[Constant]) -> Region | None:
    """Where the operands that count as unknown but finite are; None for nowhere."""
    operator = operator_of(view)
    if operator.selects:
        return EVERYWHERE
    guard: Region | None = EVERYWHERE
    for read, c in zip(expr.reads, constants, strict=True):
        if not is_number(c) and not _is_tame(c, operator):
            guard = both(guard, term_guard(view, read))
    return guard


def _is_tame(c: Constant, operator: Operator) -> bool:
    """True for what is finite by what is known of it, or may be -inf where that is a number like
    any other: it is at a corner of the box, but 0 * -inf is NaN.
    """
    return isinstance(c, Range) and isfinite(c.hi) and (isfinite(c.lo) or not operator.multiplies)


def term_guard(view: NodeView, read: Read) -> Region | None:
    """Where an operand may be taken for finite, in the iteration space."""
    name = view.name(read.operand)
    table = clean_if if operator_of(view).weight(read.operand) > 0 else finite_if
    expr = view.graph[view.out()].expr
    extents = () if expr is None else expr.shape
    return guard_at(view.graph, name, read, table(view.graph, name), extents)


def _product(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    """A product is 0 where one factor is and the others are finite; of a sum's terms some may be 0
    for another reason than the others.

    p[q, k] is 0 where m[q] != 0 and m[k] == 0, g[q] where m[q] == 0    ->    sum_q p[q, k] * g[q]
    is 0 where m[k] == 0
    """
    if expr.reduced and expr.reducer is not Reducer.SUM:
        return []
    axes = range(len(expr.shape), len(expr.extents))
    out, zeros = list[FillFact](), list[Region]()
    for read in expr.reads:
        guard: Region | None = EVERYWHERE
        for other in expr.reads:
            # the same value at another place is another factor
            if (view.name(other.operand), other.index) != (view.name(read.operand), read.index):
                guard = both(guard, term_guard(view, other))
        for f in known_at(view, read) if guard is not None else ():
            at = both(f.region, guard) if annihilates(f.constant) else None
            r = None if at is None else _over(view, at, axes)
            if at is not None and is_zero(f.constant):
                zeros.append(at)
            if r is not None:
                view.assume(FINITE)
                out.append(FillFact(r, f.constant))
    if axes and len(zeros) > 1:
        joined = [r for r in resolve(zeros) if r not in zeros and not _looks_at(r, axes)]
        if joined:
            view.assume(FINITE)
        out += [FillFact(r, 0) for r in joined]
    return out


def _over(view: NodeView, r: Region, axes: range) -> Region | None:
    """The region in which r holds along all of the reduced axes, where that is worth a fact."""
    bound = {t.src for t in r if any(d in axes for d in t.dims())}
    return None if any(scattered(view.graph, x) for x in bound) else for_all(r, axes)


def _reduced(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    axes = range(len(expr.shape), len(expr.extents))
    out = []
    for f in known_at(view, expr.reads[0]):
        r = _over(view, f.region, axes) if _survives(f.constant, expr.reducer) else None
        r = None if r is None else region(r | filled(expr))
        if r is not None:
            out.append(FillFact(r, f.constant))
    return out


def _largest(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    """The largest of a line of known numbers: one that some member is, where none is above it.

    -inf where q < k, 0 where q >= k   ->   0, by the key k = q
    """
    if expr.reducer is not Reducer.MAX:
        return []
    numbers = [f for f in known_at(view, expr.reads[0]) if is_number(f.constant)]
    if not covered([list(f.region) for f in numbers], MAX_TESTS):
        return []
    most = max((f.constant for f in numbers if is_number(f.constant)), default=0)
    lines = Lines(expr.extents, tuple(range(len(expr.shape), len(expr.extents))))
    # Where it is all of a line, which may be empty, is said of reductions of one number.
    parts = (f.region for f in numbers if f.constant == most and _looks_at(f.region, lines.axes))
    return [FillFact(r, most) for r in prune(r for part in parts for r in keeping(part, lines))]


def _not_zero(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    """The sum of a line of known numbers, of which none is negative and one is positive: a count of
    flags. Rounding keeps it above 0, and a sum of such integers does not wrap around.

    1 where labels[t] != -100, else 0   ->   not 0 where some label is not -100
    """
    dtype = view.graph[view.name(0)].dtype
    if expr.reducer is not Reducer.SUM or dtype is None or dtype not in _COUNTS:
        return []
    groups = by_constant(f for f in known_at(view, expr.reads[0]) if is_number(f.constant))
    counted = all(is_number(c) and 0 <= c <= MOST_COUNTED for c in groups)
    if not counted or not covered([list(r) for rs in groups.values() for r in rs], MAX_TESTS):
        return []
    lines = Lines(expr.extents, tuple(range(len(expr.shape), len(expr.extents))))
    found = list[Region | None]()
    for r in (r for c, regions in groups.items() if is_number(c) and c >= 1 for r in regions):
        found += keeping(r, lines) if _looks_at(r, lines.axes) else [region(r | some_term(expr))]
    return [FillFact(r, NZ) for r in prune(r for r in found if r is not None)]


def _looks_at(where: Region, axes: Collection[int]) -> bool:
    return any(t.dims() & set(axes) for t in where)


def largest_score(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    """The largest of a line on the way to a softmax, as a score: what is added up is no larger, and
    one member is known not to be lower: a sink beside the scores, at the last place.
    """
    if expr.reducer is not Reducer.MAX or len(expr.reduced) != 1:
        return []
    axis, extent = len(expr.shape), expr.reduced[0]
    if not view.graph[view.out()].term or not nonneg(extent - 1):
        return []
    facts = known_at(view, expr.reads[0])
    known = [(f.region, r) for f in facts if (r := range_of(f.constant)) is not None]
    upper = [list(where) for where, r in known if r.hi <= SCORE.hi]
    if not covered(upper, MAX_TESTS):
        return []
    out = []
    for place in (ZERO, extent - 1):
        maps = [dim_index(d, e) for d, e in enumerate(expr.extents)]
        maps[axis] = place
        found = (pull(where, maps, expr.extents) for where, r in known if r.lo >= SCORE.lo)
        out += [FillFact(r, SCORE) for r in found if r is not None]
    return out


def _survives(c: Constant, reducer: Reducer) -> bool:
    """True when reducing copies of c gives c exactly."""
    if c is ZN:  # the extreme of NaNs is up to the kernel
        return reducer.keeps_zero and not reducer.keeps_constant
    if is_zero(c):
        return reducer.keeps_zero
    if c == -inf:
        return reducer in (Reducer.MAX, Reducer.MIN, Reducer.MEAN)
    if isinstance(c, Range) and reducer is Reducer.POOLED and c.hi < LEAST:
        return False
    return (is_number(c) or isinstance(c, Range)) and reducer.keeps_constant


def _scattered(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    """What operand 0 and all updates of a place are; and operand 0's own facts where nothing is
    written.
    """
    return _same_updates(view, expr) + _not_written(view, expr)


def _same_updates(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    """Where operand 0 and every update that may go there are one number, so is the result: of an
    overwriting scatter any number, of one that adds 0.

    zeros, to which 0 is added in the rows that are ignored   ->   0 in those rows
    """
    base = [r for r in expr.reads if r.operand == 0]
    updates = [r for r in expr.reads if r.operand == 2]
    adds = expr.reducer is Reducer.SUM
    if not base or not updates or not (adds or expr.reducer is Reducer.ORDERED):
        return []
    axes, out = range(len(expr.shape), len(expr.extents)), []
    for f in known_at(view, base[0]):
        for u in known_at(view, updates[0]):
            if not (_adds_nothing(f.constant, u.constant) if adds else f.constant == u.constant):
                continue
            every = _over(view, u.region, axes)
            at = None if every is None else region(f.region | every)
            if at is not None and is_number(f.constant):
                out.append(FillFact(at, f.constant))
    return out


def _adds_nothing(c: Constant, update: Constant) -> bool:
    """True for 0 to which 0 is added, of either sign; -0.0 would become 0.0 by it."""
    return is_number(c) and is_zero(c) and is_zero(update) and copysign(1, c) > 0


def _not_written(view: NodeView, expr: TensorExpr) -> list[FillFact]:
    """Operand 0's own facts where the mask whose live places are written is 0."""
    mask = view.image(1)
    if mask is None or len(expr.ordered) != 1:  # the dimensions that the indices address
        return []
    (axis,) = expr.ordered
    length = expr.shape[axis]
    if view.graph[mask].shape != (length,):
        return []
    missed = Region({Test(mask, (dim_index(axis, length),), "nz", False)})
    facts = known_at(view, expr.reads[0])
    found = ((region(f.region | missed), f.constant) for f in facts)
    return [FillFact(r, c) for r, c in found if r is not None]
