"""Numeric meaning of tests and regions: at which points of a tensor they hold."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pitc.ir.constant import MASKED, SMALL
from pitc.ir.graph import Array, Graph
from pitc.ir.index import Digit, Poly
from pitc.ir.region import Region, Test

BLOCK = 1 << 22  # elements looked at in one go


def sizes_of(graph: Graph, values: Mapping[str, Array]) -> tuple[dict[str, int], list[str]]:
    """Numbers of the size symbols, from the shapes of real values.

    Returns:
        The sizes, and one line for every real shape that contradicts the derived one.
    """
    sizes: dict[str, int] = {}
    clashes = []
    real: dict[tuple[Poly, ...], tuple[int, ...]] = {}  # many values have the same shape
    for name, known in graph.values.items():
        x, shape = values.get(name), known.shape
        if x is None or shape is None:
            continue
        if len(shape) != x.ndim:
            clashes.append(f"rank of {name}: {len(shape)} is {x.ndim}")
            continue
        for p, e in zip(shape, x.shape, strict=True):
            symbols = p.symbols()
            if len(symbols) == 1 and len(p.terms) == 1 and p.terms.get(tuple(symbols)) == 1:
                sizes.setdefault(next(iter(symbols)), int(e))
    for name, known in graph.values.items():
        x, shape = values.get(name), known.shape
        if x is None or shape is None or len(shape) != x.ndim:
            continue
        if shape in real or all(p.symbols() <= sizes.keys() for p in shape):
            if shape not in real:
                real[shape] = tuple(int(p.evaluate(sizes, {})) for p in shape)
            if real[shape] != x.shape:
                clashes.append(f"shape of {name}: {real[shape]} is {x.shape}")
    return sizes, clashes


def blocks(x: Array) -> Iterator[tuple[int, Array]]:
    """A tensor in pieces along its first dimension: a mapped weight is larger than memory may be.

    Yields:
        The first row of a piece, and the piece.
    """
    if x.size <= BLOCK:
        yield 0, x
        return
    rows = max(1, BLOCK * len(x) // x.size)
    yield from ((k, x[k : k + rows]) for k in range(0, len(x), rows))


class Points:
    """Where regions hold in one run. Many values have the same shape, and tests.

    Args:
        sizes: Numbers of the size symbols.
        values: What was computed.
    """

    def __init__(self, sizes: Mapping[str, int], values: Mapping[str, Array]) -> None:
        self.sizes, self.values = sizes, values
        self._found: dict[tuple[Test, tuple[int, ...], int], Array] = {}

    def where(self, r: Region, shape: tuple[int, ...], start: int = 0) -> Array:
        """The points of a tensor of that shape, or of a piece that starts at a row, where all hold.

        A test of a value that was not computed, as its branch was not taken, holds nowhere.
        """
        out = np.full(shape, all(not t.src or t.src in self.values for t in r))
        if not out.any():
            return out
        for t in r:
            key = t, shape, start
            if key not in self._found:
                self._found[key] = holds(t, shape, self.sizes, self.values, start)
            out &= self._found[key]
        return out


def where(
    r: Region, shape: tuple[int, ...], sizes: Mapping[str, int], values: Mapping[str, Array]
) -> Array:
    """`Points.where` of one region."""
    return Points(sizes, values).where(r, shape)


def holds(
    t: Test,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    values: Mapping[str, Array],
    start: int = 0,
) -> Array:
    """The points of a tensor of that shape, or of a piece of it, at which the test holds.

    A place out of the tested tensor's range, which no reader ever asks for, is clipped.
    """
    bound = sorted((*t.alls, *t.somes))
    digits = [a for p in t.idx for a in p.digits()]
    extents = [max(_range(a, sizes) for a in digits if a.dim == d) for d in bound]
    grid = (*shape, *extents)
    rank = len(grid)
    axis = {d: len(shape) + k for k, d in enumerate(bound)} | {d: d for d in range(len(shape))}
    index = {
        d: np.arange(grid[k]).reshape([-1 if j == k else 1 for j in range(rank)])
        + (start if d == 0 else 0)
        for d, k in axis.items()
    }
    places = [np.asarray(p.evaluate(sizes, index)) for p in t.idx]
    truth = np.broadcast_to(_truth(t, places, values), grid)
    some = tuple(axis[d] for d in t.somes)
    every = tuple(axis[d] for d in t.alls)
    truth = np.any(truth, axis=some, keepdims=True) if some else truth
    truth = np.all(truth, axis=every, keepdims=True) if every else truth
    return np.asarray(truth.reshape(shape) if bound else truth)


def _range(a: Digit, sizes: Mapping[str, int]) -> int:
    return int((a.stride * a.extent).evaluate(sizes, {}))


HOLDS: dict[str, Callable[[Array], Array]] = {
    "nz": lambda x: x != 0,
    "neg": lambda x: x <= MASKED,
    "small": lambda x: np.abs(x) < SMALL,
}


def _truth(t: Test, places: list[Array], values: Mapping[str, Array]) -> Array:
    if t.pred == "pos":
        return np.asarray(places[0] >= 0)
    x = values[t.src]
    at = places[:-1] if t.pred == "below" else places
    if any(e == 0 for e in x.shape):
        return np.asarray(False)
    clipped = tuple(np.clip(p, 0, e - 1) for p, e in zip(at, x.shape, strict=True))
    found = x[clipped] if clipped else x
    truth = places[-1] < found if t.pred == "below" else HOLDS[t.pred](found)
    return np.asarray(truth == t.yes)
