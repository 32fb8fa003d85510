"""The auditor's check of what is known besides facts: symbolic integers and finiteness."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from pitc.ir.graph import Array, Graph
from pitc.ir.index import Poly
from pitc.passes.audit.points import blocks, where

Values = Mapping[str, Array]
Sizes = Mapping[str, int]


def wrong_symbols(graph: Graph, values: Values, sizes: Sizes) -> Iterator[str]:
    """One line for every symbolic value, affine function or image that a real value contradicts."""
    for name, known in graph.values.items():
        x = values.get(name)
        if x is None:
            continue
        if known.ints is not None and _evaluable(known.ints.reshape(-1), sizes):
            expected = [int(p.evaluate(sizes, {})) for p in known.ints.reshape(-1)]
            if known.ints.shape != x.shape or expected != [int(v) for v in x.reshape(-1)]:
                yield f"value of {name}: {expected} is {x.tolist()}"
        if known.affine is not None and not _is_function(known.affine, x, sizes):
            yield f"value of {name} is not {known.affine}"
        for k, part in enumerate(known.vectors or ()):
            if part is not None and not _is_function(part, x[..., k], sizes):
                yield f"component {k} of {name} is not {part}"
        mask = values.get(known.live_places_of or "")
        if mask is not None and not np.all(mask[x] != 0):
            yield f"{name} holds places where {known.live_places_of} is 0"


def _evaluable(ps: Array, sizes: Sizes) -> bool:
    return all(p.symbols() <= sizes.keys() for p in ps)


def _is_function(p: Poly, x: Array, sizes: Sizes) -> bool:
    """The array is p of its own index, as far as all sizes are known."""
    if not p.symbols() <= sizes.keys():
        return True
    index: dict[int, Array] = dict(enumerate(np.indices(x.shape, sparse=True)))
    try:
        return bool(np.all(x == p.evaluate(sizes, index)))
    except KeyError:  # a size inside a digit that no shape tells
        return True
    except OverflowError:  # no 64 bits hold that
        return False


def not_finite(
    graph: Graph, names: Iterable[str], values: Values, sizes: Sizes
) -> Iterator[tuple[str, str]]:
    """Every value, of those named, with Inf or NaN where it is said to have none, and a line.

    A value without an entry is finite everywhere, when the inputs are.
    """
    for name in names:
        if values[name].dtype.kind != "f" or graph[name].shape is None:
            continue
        if graph.is_constant(name) and not graph[name].uses:  # nothing is said of it
            continue
        x = values[name]
        if all(np.isfinite(part).all() for _, part in blocks(x)):
            continue
        finite = graph[name].finite_if
        clean = graph[name].clean_if
        if finite is not None and np.any(~np.isfinite(x) & where(finite, x.shape, sizes, values)):
            yield name, f"{name} is not finite where {finite}"
        bad = np.isnan(x) | np.isposinf(x)
        if clean is not None and np.any(bad & where(clean, x.shape, sizes, values)):
            yield name, f"{name} is NaN or +inf where {clean}"
