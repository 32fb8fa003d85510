"""Masks of pairs in blocks, in bars of music, and as they come: kinds of `models.pair_masks`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from models.graph import Array, GraphBuilder
from models.pair_masks import Feeds, Flags, Places


@dataclass(frozen=True, slots=True)
class Bars:
    """Music in bars: a token sees earlier tokens of its bar and of some bars before, and summaries.

    Args:
        mean: Mean length that bars are drawn to.
        before: How many bars lie between, of those that are seen whole.
    """

    mean: int = 128
    before: tuple[int, ...] = (1, 2, 4, 8, 12, 16)

    @property
    def label(self) -> str:
        """Part of a case's name."""
        return f"bars-{self.mean}"

    def graph(self, g: GraphBuilder, at: Places) -> str:
        """A distance of bars compared with each number, or-ed, and the order."""
        bar = g.input("bar", np.int64, ("batch", "sequence"))
        summary = g.input("summary", np.bool_, ("batch", "sequence"))
        query, key = (g.op("Unsqueeze", bar, g.ints(1, axis)) for axis in (3, 2))
        back = g.op("Sub", query, key)
        tests = [g.op("Equal", back, g.const(n, np.int64)) for n in (0, *self.before)]
        tests.append(g.op("Unsqueeze", summary, g.ints(1, 2)))
        seen = reduce(lambda a, b: g.op("Or", a, b), tests)
        return g.op("And", seen, g.op("GreaterOrEqual", at.queries, at.keys))

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Feeds:
        """Bars of random lengths about the mean; the last token of each is its summary."""
        bar, summary = np.zeros((batch, length), np.int64), np.zeros((batch, length), np.bool_)
        least, most = max(self.mean * 3 // 4, 1), self.mean * 5 // 4
        for row, flags in zip(bar, summary, strict=True):
            ends = np.cumsum(rng.integers(least, most + 1, length // least + 1))
            row[:] = np.searchsorted(ends, np.arange(length), side="right")
            flags[ends[ends <= length] - 1] = True
        return {"bar": bar, "summary": summary}

    def seen(self, feeds: Mapping[str, Array], row: int, queries: Array, length: int) -> Flags:
        """By bar, summary and order."""
        bar, summary = feeds["bar"][row], feeds["summary"][row]
        near = np.isin(bar[queries, None] - bar, (0, *self.before))
        return (near | summary) & (queries[:, None] >= np.arange(length))


@dataclass(frozen=True, slots=True)
class Blocks:
    """A mask of blocks, chosen by the run and widened to pairs.

    Args:
        size: Queries, and keys, of a block.
        live: Share of blocks that are drawn; those of the diagonal are among them besides.
        lookup: Each query and key looks its block up, which takes any length. Otherwise blocks are
            expanded, and the length must be a multiple of their size.
    """

    size: int
    live: float
    lookup: bool = False

    @property
    def label(self) -> str:
        """Part of a case's name."""
        form = "-lookup" if self.lookup else ""
        return f"blocks-{self.size}-{round(100 * self.live)}{form}"

    def graph(self, g: GraphBuilder, at: Places) -> str:
        """Two Gathers, or Unsqueeze, Expand and Reshape."""
        blocks = g.input("blocks", np.bool_, ("batch", 1, "blocks", "blocks"))
        if self.lookup:
            size = g.const(self.size, np.int64)
            places = [
                g.op("Squeeze", x, g.ints(0, 1, i)) for x, i in ((at.queries, 3), (at.keys, 2))
            ]
            for axis, place in zip((2, 3), places, strict=True):
                blocks = g.op("Gather", blocks, g.op("Div", place, size), axis=axis)
            return blocks
        count = g.size(blocks, 2)
        apart = g.op("Unsqueeze", blocks, g.ints(3, 5))
        shape = g.dims(at.batch, 1, count, self.size, count, self.size)
        wide = g.op("Expand", apart, shape)
        return g.op("Reshape", wide, g.dims(at.batch, 1, at.length, at.length))

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Feeds:
        """Random blocks, and the diagonal."""
        count = -(-length // self.size)
        drawn = rng.random((batch, 1, count, count)) < self.live
        return {"blocks": drawn | np.eye(count, dtype=np.bool_)}

    def seen(self, feeds: Mapping[str, Array], row: int, queries: Array, length: int) -> Flags:
        """By block."""
        keys = np.arange(length) // self.size
        return np.asarray(feeds["blocks"][row, 0][queries[:, None] // self.size, keys], np.bool_)


@dataclass(frozen=True, slots=True)
class Given:
    """The mask itself is an input, bool [batch, 1, sequence, sequence].

    Args:
        live: Share of pairs that are drawn; queries without any key are not ruled out.
    """

    live: float

    @property
    def label(self) -> str:
        """Part of a case's name."""
        return f"given-{round(100 * self.live)}"

    def graph(self, g: GraphBuilder, at: Places) -> str:
        """The input as it is."""
        return g.input("mask", np.bool_, ("batch", 1, "sequence", "sequence"))

    def draw(self, rng: np.random.Generator, batch: int, length: int) -> Feeds:
        """Random pairs."""
        return {"mask": rng.random((batch, 1, length, length)) < self.live}

    def seen(self, feeds: Mapping[str, Array], row: int, queries: Array, length: int) -> Flags:
        """As given."""
        return np.asarray(feeds["mask"][row, 0, queries], np.bool_)
