"""Values of which few elements are not 0, whatever the input is.

Along its axis a one-hot tensor has at most one. The fact "a is 0 where that one is" carries this:

    a[t, e, c] is 0 where expert[t, e] == 0, or slot[t, c] == 0      ->    1 of e * c elements lives
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from pitc.ir.constant import is_zero
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import Digit, Poly
from pitc.ir.predicate import Test
from pitc.passes.rules.record import operator_of


def most_elements(graph: Graph, name: str) -> Fraction:
    """At most which share of the elements of a value is not 0, in every run: 1 where that is not
    known.
    """
    share, counted, others = Fraction(1), set[Digit](), set[Digit]()
    for fact in graph[name].fills:
        for line in _lines(graph, fact.region.tests) if is_zero(fact.constant) else ():
            seen = {line.digit} | line.others
            if line.digit in counted | others or line.others & counted or line.share >= 1:
                continue
            if any(_overlap(x, y) for x in seen for y in counted | others if x != y):
                continue
            share *= line.share
            counted.add(line.digit)
            others |= line.others
    return share


@dataclass(frozen=True, slots=True)
class _Line:
    """Elements along one digit of a value's dimensions, of which only some may not be 0.

    Args:
        digit: The digit.
        share: Of its elements.
        others: The digits that say which ones.
    """

    digit: Digit
    share: Fraction
    others: frozenset[Digit]


def _lines(graph: Graph, tests: tuple[Test, ...]) -> Iterator[_Line]:
    if len(tests) != 1:  # it is 0 at some of these places only
        return
    (test,) = tests
    producer = graph[test.src].producer if test.src else None
    few = None if producer is None else operator_of(producer).few
    found = None if few is None or producer is None else few(NodeView(graph, producer))
    if found is None or test.pred != "nz" or test.yes or test.somes:
        return
    axis, most = found
    digit = _whole_digit(test.idx[axis])
    rest = [a for d, p in enumerate(test.idx) if d != axis for a in p.digits()]
    times = [a.extent.as_int() for a in {a for a in rest if a.dim < 0}]
    size = None if digit is None else digit.extent.as_int()
    if digit is None or not size or None in times:
        return
    others = frozenset(a for a in rest if a.dim >= 0)
    yield _Line(digit, Fraction(most * prod(t for t in times if t is not None), size), others)


def _whole_digit(index: Poly) -> Digit | None:
    """The digit that an index is; None where it is something else."""
    match list(index.terms.items()):
        case [((Digit() as digit,), 1)] if digit.dim >= 0:
            return digit
    return None


def _overlap(x: Digit, y: Digit) -> bool:
    """Whether one of two digits may say something of the other one."""
    if x.dim != y.dim:
        return False
    low, high = sorted((x, y), key=lambda a: a.stride.as_int() or 0)
    ends = low.stride.as_int(), low.extent.as_int(), high.stride.as_int()
    if ends[0] is None or ends[1] is None or ends[2] is None:
        return True
    return ends[2] % (ends[0] * ends[1]) != 0
