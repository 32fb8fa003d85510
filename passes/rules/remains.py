"""What remains of a Reshape for a size of -1, where sizes beside it may be 0 and count as 0."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from pitc.ir.graph import NodeView, Rest
from pitc.ir.index import Poly, nonneg, total_of

MOST_ZEROS = 5  # sizes that may be 0, of which all sets are tried


def remaining(view: NodeView, place: int, known: Sequence[Poly], left: Poly) -> Poly | None:
    """What remains beside extents that may be 0.

    Args:
        view: The Reshape.
        place: Where it asks for what remains.
        known: The extents that it asks for.
        left: The quotient of all extents.

    Returns:
        The quotient; None where it is another size if some are 0. Whether one may take it for the
        quotient where nobody sees it depends on its readers (`Graph.rests`).
    """
    shape = view.shape(0)
    if _divides_beside_0(shape, known, left):
        return left
    broadcasts = _broadcasts_beside_0(shape, known, left)
    view.graph.rests[view.node] = Rest(place, left, broadcasts)
    return None


def _divides_beside_0(shape: Sequence[Poly], known: Sequence[Poly], left: Poly) -> bool:
    """Whether what remains is the quotient of all extents where some that are asked for are 0, too.

    Beside a 0 that it is told to allow, which ONNX does not define, ONNX Runtime divides what is
    not 0 by what is not 0, and refuses the model where that leaves a rest.

    (b, s) to (b, 2, -1)           b = 0: s / 2, as it is without 0
    (6*b, 1, s) to (b, 6, -1, s)   b = 0: 1 / 6 is refused
    (b, 12, s) to (3*b, -1, s)     b = 0: 12, and 4 without 0
    """
    if all(nonneg(e - 1) for e in Counter(known) - Counter(shape)):
        return True
    cases = _zeros(shape, known)
    return cases is not None and all(
        _is_refused(has, asked) or (has.divide(asked) == left and not left.symbols() & zeros)
        for zeros, has, asked in cases
    )


def _broadcasts_beside_0(shape: Sequence[Poly], known: Sequence[Poly], left: Poly) -> bool:
    """Whether what remains then broadcasts with the quotient to that, if it does at all. It always
    does, but for another size than 1 beside a quotient of 1.

    (4*b, s, s) to (b, 4, s, -1)   s = 0: 1, beside 0; b = 0: s / 4, for s = 1 that is refused
    """
    cases, ones = _zeros(shape, known), left.symbols()
    if cases is None or not _is_product(left) or any(c < 1 for c in left.terms.values()):
        return False
    if any(c > 1 for c in left.terms.values()):
        return True
    found = [(_where_1(x, ones), _where_1(y, ones)) for zeros, x, y in cases if not ones & zeros]
    return all(has == asked or _is_refused(has, asked) for has, asked in found)


def _zeros(
    shape: Sequence[Poly], known: Sequence[Poly]
) -> list[tuple[frozenset[str], Poly, Poly]] | None:
    """All ways in which sizes that are asked for may be 0: those sizes, and of what there is and of
    what is asked for the product of the others. None where they are too many, or no products.
    """
    extents = [e for e in (*shape, *known) if not nonneg(e - 1)]
    symbols = sorted({a for e in extents for a in e.symbols()})
    if len(symbols) > MOST_ZEROS or not all(map(_is_product, extents)):
        return None
    sets = (frozenset(z) for n in range(len(symbols)) for z in combinations(symbols, n + 1))
    asked = [zeros for zeros in sets if any(e.symbols() & zeros for e in known)]
    return [(zeros, _without(shape, zeros), _without(known, zeros)) for zeros in asked]


def _without(extents: Sequence[Poly], zeros: frozenset[str]) -> Poly:
    """The product of those extents that are not 0."""
    return total_of([e for e in extents if not e.symbols() & zeros])


def _is_refused(has: Poly, asked: Poly) -> bool:
    """True where more is asked for than there is."""
    more = asked.divide(has)
    return more is not None and nonneg(more - 2)


def _where_1(product: Poly, ones: frozenset[str]) -> Poly:
    """A product where some of its sizes are 1."""
    return Poly({tuple(a for a in m if a not in ones): c for m, c in product.terms.items()})


def _is_product(extent: Poly) -> bool:
    """True for a number times sizes: 0 where one of them is."""
    return len(extent.terms) == 1 and all(isinstance(a, str) for m in extent.terms for a in m)
