"""Which keys a query sees: masks of pairs as data, each as a graph, in numpy, and its inputs drawn.

Exporters write such a mask as one bool value that broadcasts to [batch, heads, query, key].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from models.graph import Array, GraphBuilder, element_type

Flags = npt.NDArray[np.bool_]
Feeds = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Places:
    """Where queries and keys stand in a graph.

    Args:
        queries: Positions of queries, int64 [1, 1, query, 1].
        keys: Positions of keys, int64 [1, 1, 1, key].
        batch: How many sequences there are, an int64 scalar.
        length: How many keys there are, an int64 scalar.
    """

    queries: str
    keys: str
    batch: str
    length: str


def places(g: GraphBuilder, batch: str, length: str, past: str | None = None) -> Places:
    """Positions of all keys, and of queries: all of them too, or those behind a past."""
    zero, one = g.const(0, np.int64), g.const(1, np.int64)
    at = g.op("Range", zero, length, one)
    asking = at if past is None else g.op("Range", past, length, one)
    queries, keys = (g.op("Unsqueeze", x, g.ints(0, 1, axis)) for x, axis in ((asking, 3), (at, 2)))
    return Places(queries, keys, batch, length)


class PairMask(Protocol):
    """A kind of mask."""

    @property
    def label(self) -> str:
        """Part of a case's name."""
        ...

    def graph(self, g: GraphBuilder, at: Places) -> str | None:
        """Add inputs and nodes; a bool value, True where a query sees a key. None: no mask."""
        ...

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Feeds:
        """Random inputs of the mask."""
        ...

    def seen(self, feeds: Mapping[str, Array], row: int, queries: Array, length: int) -> Flags:
        """What some queries of one sequence see, bool [queries, length]."""
        ...


@dataclass(frozen=True, slots=True)
class Everything:
    """No mask: a query sees all keys."""

    label: str = "full"

    def graph(self, g: GraphBuilder, at: Places) -> str | None:
        """No node."""
        return None

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Feeds:
        """No input."""
        return {}

    def seen(self, feeds: Mapping[str, Array], row: int, queries: Array, length: int) -> Flags:
        """All."""
        return np.ones((len(queries), length), np.bool_)


@dataclass(frozen=True, slots=True)
class Causal:
    """A query sees itself and earlier keys, all of them or the nearest.

    Args:
        window: How many keys a query sees at most, its own among them; None: all.
    """

    window: int | None = None

    @property
    def label(self) -> str:
        """Part of a case's name."""
        return "causal" if self.window is None else f"causal-window-{self.window}"

    def graph(self, g: GraphBuilder, at: Places) -> str:
        """A test of positions, or two as sliding-window decoders write them."""
        if self.window is None:
            return g.op("GreaterOrEqual", at.queries, at.keys)
        start = g.op("Sub", at.queries, g.const(self.window, np.int64))
        near = g.op("Greater", at.keys, start)
        return g.op("And", near, g.op("LessOrEqual", at.keys, at.queries))

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Feeds:
        """No input."""
        return {}

    def seen(self, feeds: Mapping[str, Array], row: int, queries: Array, length: int) -> Flags:
        """By position."""
        back = queries[:, None] - np.arange(length)
        return (back >= 0) & (back < (length if self.window is None else self.window))


@dataclass(frozen=True, slots=True)
class Window:
    """A query sees keys on both sides; tokens that the run names global see all, and are seen.

    Args:
        width: Keys of a window, the query's own in the middle; odd.
        globals: How many global tokens are drawn; 0: there is no such input.
        dtype: Of the input `global` [batch, sequence].
    """

    width: int
    globals: int = 0
    dtype: str = "int64"

    @property
    def label(self) -> str:
        """Part of a case's name."""
        return f"window-{self.width}" + (f"-global-{self.globals}" if self.globals else "")

    def graph(self, g: GraphBuilder, at: Places) -> str:
        """The distance compared, or-ed with the flags of keys and of queries."""
        distance = g.op("Abs", g.op("Sub", at.queries, at.keys))
        near = g.op("LessOrEqual", distance, g.const(self.width // 2, np.int64))
        if not self.globals:
            return near
        flags = g.input("global", np.dtype(self.dtype), ("batch", "sequence"))
        if self.dtype != "bool":
            flags = g.op("Cast", flags, to=element_type(np.bool_))
        key, query = (g.op("Unsqueeze", flags, g.ints(1, axis)) for axis in (2, 3))
        return g.op("Or", g.op("Or", near, key), query)

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Feeds:
        """Global tokens at random places."""
        if not self.globals:
            return {}
        order = np.argsort(rng.random((batch, length)), axis=1)
        flags = order < min(self.globals, length)
        return {"global": flags.astype(self.dtype)}

    def seen(self, feeds: Mapping[str, Array], row: int, queries: Array, length: int) -> Flags:
        """By distance and flag."""
        near = np.abs(queries[:, None] - np.arange(length)) <= self.width // 2
        if not self.globals:
            return near
        flags = feeds["global"][row] != 0
        return near | flags | flags[queries, None]


def pieces(rng: np.random.Generator, batch: int, length: int, mean: int) -> Array:
    """A sequence cut at random: the number of each token's piece from 0, int64 [batch, length]."""
    starts = np.zeros((batch, length), np.int64)
    for row in starts:
        cuts = min(max(round(length / mean) - 1, 0), length - 1)
        row[1 + rng.choice(max(length - 1, 1), cuts, replace=False)] = 1
    return np.cumsum(starts, axis=1)


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents packed into one sequence: a query sees earlier keys of its own document.

    Args:
        mean: Mean length that documents are drawn to.
    """

    mean: int

    @property
    def label(self) -> str:
        """Part of a case's name."""
        return f"documents-{self.mean}"

    def graph(self, g: GraphBuilder, at: Places) -> str:
        """Segment numbers compared, and the order."""
        segments = g.input("segments", np.int64, ("batch", "sequence"))
        query, key = (g.op("Unsqueeze", segments, g.ints(1, axis)) for axis in (3, 2))
        same = g.op("Equal", query, key)
        return g.op("And", same, g.op("GreaterOrEqual", at.queries, at.keys))

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Feeds:
        """As many documents as the mean says, cut at random."""
        return {"segments": 1 + pieces(rng, batch, length, self.mean)}

    def seen(self, feeds: Mapping[str, Array], row: int, queries: Array, length: int) -> Flags:
        """By segment and order."""
        segments = feeds["segments"][row]
        return (segments[queries, None] == segments) & (queries[:, None] >= np.arange(length))
