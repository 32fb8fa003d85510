"""What hides a pair of a query and a key: a formula over leaves that are evaluated when it runs.

    p[b, h, q, k] == 0 where k - q - 1 >= 0          causal: positions
    p[b, h, q, k] == 0 where seen[b, q, k] == 0      a mask by pair, as flags of pairs
    p[b, h, q, k] == 0 where near[q//32, k//32] == 0 a mask of blocks, as flags of blocks
    p[b, h, q, k] == 0 where m[b, q, k] == 0         m = And (Equal (doc[b, q], doc[b, k]), ..): a
                                                     comparison of a query's number with a key's

A fact says where a softmax's result is 0; it may look at a bool of pairs. The formula computes such
a bool a second time, with the same result, from what it is made of: Or, And, Not, comparisons. What
is not understood is a leaf: flags of queries, of keys, or of pairs, which nodes compute. So each
formula holds exactly where its fact's tests hold.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from pitc.ir.constant import is_number
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE, Coords, Digit, Poly, atom, digit, fits, substitute, sym
from pitc.ir.kernel import MOST_CONSTANT, MOST_FACTOR
from pitc.ir.region import MAX_TESTS, Region, Test, covered, position, pull
from pitc.ir.sizes import sizes_known
from pitc.passes.exprs.affine import LONGEST, before_moves
from pitc.passes.exprs.sums import Element, Sum, sum_of
from pitc.passes.regions.blocks import Blocks, blocks_of
from pitc.passes.regions.domain import Domain, Table, exchange, free_digits
from pitc.passes.regions.live_tests import can_compute
from pitc.passes.rules import laws
from pitc.passes.rules.affine import Order
from pitc.passes.rules.laws import Law
from pitc.passes.rules.record import operator_of

MOST_SIZES = 8  # in a test of positions
LONG = np.dtype(np.int64)
#: Of operators of bools, by the law of their constants.
CONNECTIVES: Mapping[Law, str] = {laws.both: "and", laws.either: "or", laws.opposite: "not"}


@dataclass(frozen=True, slots=True)
class Positions:
    """Holds where a polynomial is at least 0.

    Args:
        line: Linear in the position of the query, `Digit(0)`, and of the key, `Digit(1)`.
    """

    line: Poly


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number of each query, or of each key: a sum, which wraps around as its type does.

    Args:
        terms: Places of elements, as tests that look at them, and how often each one is added.
        constant: What is added to them.
        dtype: The type of the sum.
    """

    terms: tuple[tuple[Test, int], ...]
    constant: int
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class Compared:
    """Holds where a number of the query is as `order` says of one of the key.

    Args:
        order: The comparison, query first: equal, less, or less or equal.
        query: The query's number.
        key: The key's; its last coordinate is the key's, as if keys were queries.
    """

    order: Order
    query: Numbers
    key: Numbers


@dataclass(frozen=True, slots=True)
class Dead:
    """Holds where a point is dead.

    Args:
        kind: What the points are: `keys`, `queries` or `pairs`.
        domain: Which are dead.
        blocks: Which blocks are, of pairs that are dead in blocks.
    """

    kind: str
    domain: Domain
    blocks: Blocks | None = None


Leaf = Positions | Compared | Dead


@dataclass(frozen=True, slots=True)
class Formula:
    """`and`, `or` or `not` of its parts: of one at least."""

    op: str
    parts: "tuple[Condition, ...]"


Condition = Leaf | Formula


def leaves(condition: Condition) -> Iterator[Leaf]:
    """The leaves of a condition, in order."""
    if isinstance(condition, Formula):
        for part in condition.parts:
            yield from leaves(part)
    else:
        yield condition


def sources(condition: Condition) -> set[str]:
    """Names of the values that a condition looks at."""
    found = set[str]()
    for leaf in leaves(condition):
        match leaf:
            case Compared(_, query, key):
                found |= {test.src for test, _ in (*query.terms, *key.terms)}
            case Dead(_, domain, _):
                found |= domain.sources()
            case Positions():
                pass
    return found


def negation(condition: Condition) -> Condition:
    """Holds where the condition does not."""
    if isinstance(condition, Formula) and condition.op == "not":
        return condition.parts[0]
    return Formula("not", (condition,))


def joint(op: str, parts: Sequence[Condition]) -> Condition:
    """Holds where all of some do (`and`), or one (`or`)."""
    return parts[0] if len(parts) == 1 else Formula(op, tuple(parts))


def one_of(parts: Sequence[Condition]) -> Condition:
    """Holds where one of some does: what all of them ask for is asked once.

    (a and c) or (b and c)   ->   (a or b) and c
    """
    asked = [p.parts if isinstance(p, Formula) and p.op == "and" else (p,) for p in parts]
    shared = [x for x in asked[0] if all(x in others for others in asked)]
    left = [[x for x in each if x not in shared] for each in asked]
    if not shared:
        return joint("or", parts)
    if not all(left):
        return joint("and", shared)
    return joint("and", [joint("or", [joint("and", each) for each in left]), *shared])


@dataclass(frozen=True, slots=True)
class Sight:
    """The space of the pairs of a softmax's result.

    Args:
        graph: The analysed graph.
        queries: Coordinates of the queries, as digits of the value.
        keys: Of the keys; all but the last are those of the queries.
    """

    graph: Graph
    queries: Coords
    keys: Coords

    @property
    def extents(self) -> Shape:
        """Of the coordinates that both have, of queries, and of keys."""
        return tuple(c.extent for c in (*self.queries, self.keys[-1]))

    def hidden(self, fact: Region) -> Condition | None:
        """Where a region of the value holds; None where a test cannot be evaluated."""
        table = {a: self._part(a) for test in fact for a in free_digits(test)}
        known: Table = {a: p for a, p in table.items() if p is not None}
        if len(known) < len(table):
            return None
        return self._all_of([exchange(test, known) for test in sorted(fact, key=str)])

    def _part(self, a: Digit) -> Poly | None:
        """A digit of the value as one of a coordinate; None where it is no part of one."""
        for k, c in enumerate((*self.queries, self.keys[-1])):
            stride = a.stride.divide(c.stride) if a.dim == c.dim else None
            whole = atom(Digit(k, ONE, c.extent))
            part = whole if a == c else None if stride is None else digit(whole, stride, a.extent)
            if part is not None:
                return part
        return None

    def _all_of(self, tests: Sequence[Test]) -> Condition | None:
        """Where tests of a pair's coordinates all hold; those of one kind of point together."""
        parts, found = list[Condition](), dict[str, list[Test]]()
        for test in tests:
            part = self._line(test) or self._of_bool(test)
            if part is not None:
                parts.append(part)
            else:
                found.setdefault(self._kind(test.dims()), []).append(test)
        flags = [self._dead(kind, of_kind) for kind, of_kind in sorted(found.items())]
        if None in flags or not (parts or flags):
            return None
        return joint("and", [*parts, *(f for f in flags if f is not None)])

    @property
    def _rank(self) -> int:
        return len(self.queries)

    def _kind(self, dims: Set[int]) -> str:
        of_query, of_key = self._rank - 1 in dims, self._rank in dims
        return "pairs" if of_query and of_key else "keys" if of_key else "queries"

    def _dead(self, kind: str, tests: Sequence[Test]) -> Dead | None:
        """Flags of points where the tests hold."""
        *lead, query, key = self.extents
        extents = {"pairs": self.extents, "queries": (*lead, query), "keys": (*lead, key)}[kind]
        if kind == "keys":
            if not all(self._is_of_whole_keys(t) for t in tests):
                return None
            tests = [self._as_query(t) for t in tests]
        domain = self._of_few(Domain(extents, frozenset(tests)))
        if not can_compute(self.graph, domain):
            return None
        lists = kind == "pairs" and self.graph.target.hides_pairs == "lists"
        blocks = blocks_of(self.graph, tests, extents) if lists else None
        if blocks is not None:
            blocks = replace(blocks, domain=self._of_few(blocks.domain))
        known = blocks is not None and can_compute(self.graph, blocks.domain)
        return Dead(kind, domain, blocks if known else None)

    def _of_few(self, domain: Domain) -> Domain:
        """The same of one sequence, where all are alike: lists read flags of few for all."""
        if self.graph.target.hides_pairs != "lists":
            return domain
        dims = [d for t in domain.dead for d in t.dims()]
        first = min(min((d for d in dims if d >= 0), default=0), self._rank - 1)
        return replace(domain, extents=(*[ONE] * first, *domain.extents[first:]))

    def _is_of_whole_keys(self, test: Test) -> bool:
        """True where a test looks at no part of a key's position."""
        last = self._rank
        digits = (a for p in test.idx for a in p.digits() if a.dim == last)
        return all(a == Digit(last, ONE, self.extents[-1]) for a in digits)

    def _as_query(self, test: Test) -> Test:
        """A test of keys, in coordinates as those of queries."""
        last, extent = self._rank, self.extents[-1]
        return exchange(test, {Digit(last, ONE, extent): atom(Digit(last - 1, ONE, extent))})

    def _line(self, test: Test) -> Positions | None:
        """A test of positions that is linear in those of the query and of the key."""
        if test.pred != "pos" or test.dims() != {self._rank - 1, self._rank}:
            return None
        (p,) = test.idx
        extents = self.extents[-2:]
        mine = [Digit(self._rank - 1 + k, ONE, e) for k, e in enumerate(extents)]
        moving = [m for m in p.terms if any(a in p.digits() for a in m)]
        rest = [m for m in p.terms if m not in moving]
        linear = all(len(m) == 1 and m[0] in mine for m in moving) and all(len(m) < 2 for m in rest)
        # Sizes are below 2^31: the sum of so many does not overflow when the model runs.
        small = all(
            abs(f) <= (MOST_FACTOR if m else MOST_CONSTANT >> 1) for m, f in p.terms.items()
        )
        known = sizes_known(self.graph, (sym(a) for a in p.symbols()))
        if not (linear and small and known and len(rest) <= MOST_SIZES):
            return None
        table: Table = {d: atom(Digit(k, ONE, d.extent)) for k, d in enumerate(mine)}
        return Positions(exchange(test, table).idx[0])

    def _of_bool(self, test: Test) -> Condition | None:
        """Where a bool of pairs is not 0, or is 0, by what it is made of; None: by flags of it."""
        if test.pred != "nz" or test.somes or test.alls or self._kind(test.dims()) != "pairs":
            return None
        made = self._made(test.src, test.idx)
        return made if made is None or test.yes else negation(made)

    def _made(self, name: str, index: tuple[Poly, ...]) -> Condition | None:
        """Where a bool is not 0 at a place, by its operands; None where that is not known.

        Args:
            name: The value.
            index: Its place, in coordinates of pairs.
        """
        graph = self.graph
        name, index, _ = before_moves(graph, name, index)
        node, expr = graph[name].producer, graph[name].expr
        if node is None or expr is None or graph.dtype(name) != np.bool_:
            return None
        places = [
            tuple(None if p is None else substitute(p, index, expr.extents) for p in read.index)
            for read in expr.reads
        ]
        names = (NodeView(graph, node).name(read.operand) for read in expr.reads)
        sides = [
            (operand, tuple(p for p in place if p is not None))
            for operand, place in zip(names, places, strict=True)
            if None not in place
        ]
        if len(sides) < len(places) or any(read.within for read in expr.reads):
            return None
        operator = operator_of(node)
        op = CONNECTIVES.get(operator.law) if operator.law is not None else None
        if op is not None:
            parts = [self._truth(*side) for side in sides]
            if any(part is None for part in parts):
                return None
            known = [part for part in parts if part is not None]
            return negation(known[0]) if op == "not" else joint(op, known)
        order = operator.order
        compared = None if order is None else self._compared(order, *sides)
        return compared or self._by_facts(name, index)

    def _truth(self, name: str, index: tuple[Poly, ...]) -> Condition | None:
        """The same; by its flags where that is not known."""
        test = Test(name, index, "nz", False)
        kind = self._kind(test.dims())
        made = self._made(name, index) if kind == "pairs" else None
        if made is not None:
            return made
        dead = self._dead(kind, [test])
        return None if dead is None else negation(dead)

    def _by_facts(self, name: str, index: tuple[Poly, ...]) -> Condition | None:
        """Where a bool is not 0, if its facts say at each point which it is: not where it is 0."""
        facts = self.graph[name].fills
        known = [f for f in facts if is_number(f.constant)]
        looks_at_itself = any(t.src == name for f in known for t in f.region)
        if looks_at_itself or not covered([list(f.region) for f in known], MAX_TESTS):
            return None
        parts = list[Condition]()
        for fact in (f for f in known if f.constant == 0):
            where = pull(fact.region, index, self.graph[name].shape)
            part = None if where is None else self._all_of(sorted(where, key=str))
            if part is None:
                return None
            parts.append(part)
        return negation(joint("or", parts)) if parts else None

    def _compared(
        self, order: Order, left: tuple[str, tuple[Poly, ...]], right: tuple[str, tuple[Poly, ...]]
    ) -> Condition | None:
        """A comparison of two integers: of positions, or of a query's number and a key's."""
        graph = self.graph
        if not all(_is_long(graph.dtype(name)) for name, _ in (left, right)):
            return None
        values = [
            None if (p := graph[name].affine) is None else substitute(p, index, graph[name].shape)
            for name, index in (left, right)
        ]
        x, y = values
        if x is not None and y is not None:
            return self._between_positions(order, x - y)
        sums = [
            sum_of(graph, *side, lambda e: self._kind_of(e) == "pairs") for side in (left, right)
        ]
        sides = self._by_side(sums[0].plus(sums[1], -1)) if order.less is None else tuple(sums)
        numbers = self._numbers(sides[0], "queries"), self._numbers(sides[1], "keys")
        if None in numbers:
            order = order.turned()
            numbers = self._numbers(sides[1], "queries"), self._numbers(sides[0], "keys")
        query, key = numbers
        if query is None or key is None:
            return None
        if order.less is False:
            return negation(Compared(Order(True, not order.equal), query, key))
        return Compared(order, query, key)

    def _between_positions(self, order: Order, difference: Poly) -> Condition | None:
        """A comparison of two positions."""
        differences = order.nonnegative(difference)
        if not all(fits(d, -LONGEST, LONGEST) for d in differences):
            return None
        lines = [self._line(position(d)) for d in differences]
        known = [line for line in lines if line is not None]
        return joint("and", known) if len(known) == len(lines) else None

    def _by_side(self, difference: Sum) -> tuple[Sum, Sum]:
        """The sides of the equation that says that a sum is 0: terms of queries, and the rest."""
        terms = tuple((e, n) for e, n in difference.terms if self._kind_of(e) == "queries")
        query = replace(difference, terms=terms, constant=0)
        key = query.plus(difference, -1)
        nothing = replace(difference, terms=(), constant=0)
        sign = 1 if sum(n for _, n in terms) >= 0 else -1
        return nothing.plus(query, sign), nothing.plus(key, sign)

    def _numbers(self, number: Sum, kind: str) -> Numbers | None:
        """A sum as a number of each query, or of each key; None where it is none."""
        tests = [(Test(*element, "nz", True), n) for element, n in number.terms]
        if not tests or any(self._kind(t.dims()) != kind for t, _ in tests):
            return None
        if any(self._dead(kind, [t]) is None for t, _ in tests):
            return None
        terms = tuple((self._as_query(t) if kind == "keys" else t, n) for t, n in tests)
        return Numbers(terms, number.wrapped(), number.dtype)

    def _kind_of(self, element: Element) -> str:
        return self._kind(Test(*element, "nz", True).dims())


def _is_long(dtype: np.dtype) -> bool:
    """True for integers that int64 holds."""
    return dtype.kind in "iu" and np.can_cast(dtype, LONG)
