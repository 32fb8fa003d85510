"""Random tests and regions over one space, and small worlds to look at them in."""

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from pitc.ir.index import ONE, ZERO, Digit, Poly, atom, dim_index, sym
from pitc.ir.nodes import Array
from pitc.ir.region import SOME, Predicate, Region, Test, position

b, s = sym("b"), sym("s")
SPACE = (b, s, s)
X, Y, Z = (dim_index(d, e) for d, e in enumerate(SPACE))
SIZES = ({"b": 2, "s": 3}, {"b": 1, "s": 2}, {"b": 3, "s": 1})
SOURCES = {"P": (b, s), "Q": (s,), "M": (s, s), "F": (b * s,), "C": ()}


def shape_of(sizes: dict[str, int], space: tuple[Poly, ...] = SPACE) -> tuple[int, ...]:
    return tuple(int(e.evaluate(sizes, {})) for e in space)


def worlds(seed: int) -> Iterator[tuple[dict[str, int], dict[str, Array]]]:
    """Random values of the sources for several sizes."""
    rng = np.random.default_rng(seed)
    for sizes in SIZES:
        for share in (0.3, 0.8):
            values = {
                name: np.where(rng.random(shape_of(sizes, shape)) < share, 1.0, 0.0)
                for name, shape in SOURCES.items()
            }
            values["P"] = values["P"] * rng.choice([1, -2e4], values["P"].shape)
            values["L"] = rng.integers(0, 4, sizes["b"])
            yield sizes, values


def bound_digit(d: int, extent: Poly) -> Poly:
    return atom(Digit(d, ONE, extent))


@st.composite
def some_tests(draw: st.DrawFn, quantified: bool = True) -> Test:
    """One test over SPACE, with at most one kind of quantifier."""
    if draw(st.integers(0, 4)) == 0:
        p = draw(st.sampled_from([X, Y, Z, Y - Z, Z - Y - 1, Y * s + Z]))
        return position(p + draw(st.integers(-2, 1)))
    kind = draw(st.sampled_from([0, -1, SOME - 1])) if quantified else 0
    if draw(st.integers(0, 6)) == 0:
        place = draw(st.sampled_from([Y, Z, ONE]))
        return Test("L", (X, place), "below", draw(st.booleans()))
    name = draw(st.sampled_from(sorted(SOURCES)))
    idx = []
    for k, e in enumerate(SOURCES[name]):
        options = [ZERO]
        options += {b: [X], s: [Y, Z], b * s: [X * s + Y, X * s + Z]}[e]
        if kind:
            options += [bound_digit(kind - k, e), bound_digit(kind, e)]
            if e == b * s:
                options += [X * s + bound_digit(kind, s)]
        idx.append(draw(st.sampled_from(options)))
    pred: Predicate = draw(st.sampled_from(["nz", "neg", "small"])) if name == "P" else "nz"
    return Test(name, tuple(idx), pred, draw(st.booleans()))


@st.composite
def regions(draw: st.DrawFn, quantified: bool = False) -> Region:
    """Up to three tests."""
    return Region(draw(st.lists(some_tests(quantified), min_size=0, max_size=3)))
