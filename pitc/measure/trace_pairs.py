"""What attention read when a model ran: pairs of a query and a key that a mask leaves, by lists.

A line of a trace is one run of one attention whose mask hides pairs (`docs/attention.md`). Counts
are those of one head: all heads have the same lists.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass as checked

_Count = Annotated[int, Field(ge=0)]


@checked(config=ConfigDict(strict=True, extra="ignore"), frozen=True, slots=True)
class LivePairs:
    """One line of a trace, as far as it is looked at here; it may tell more.

    Args:
        node: The product with the values, by its name in the source graph.
        pairs: All pairs of a query and a key of its sequence that are not left out as padding.
        live_pairs: Those that the mask leaves.
        tiles: How many tiles the queries make.
        keys: Keys that all tiles would read without a mask.
        listed_keys: Keys that they read.
    """

    node: str
    pairs: _Count
    live_pairs: _Count
    tiles: _Count
    keys: _Count
    listed_keys: _Count

    @model_validator(mode="after")
    def _consistent(self) -> "LivePairs":
        if self.live_pairs > self.pairs:
            raise ValueError("more live pairs than pairs")
        if self.listed_keys > self.keys:
            raise ValueError("more listed keys than keys")
        return self


@dataclass(frozen=True, slots=True)
class Attention:
    """All runs of one attention.

    Args:
        node: The product with the values, by its name in the source graph.
        runs: How many.
        live_pairs: Share of pairs that the mask left, of all runs together; 1 where there is none.
        live_keys: Share of keys that tiles read; above `live_pairs`, as a tile reads a key that one
            of its queries sees.
        tile_keys: Keys that a tile reads, on average.
        all_keys: Keys that it would read without a mask, on average.
    """

    node: str
    runs: int
    live_pairs: float
    live_keys: float
    tile_keys: float
    all_keys: float


def attentions(lines: Sequence[LivePairs]) -> list[Attention]:
    """Sum up runs by attention, in the order in which they first ran."""
    found: dict[str, list[LivePairs]] = defaultdict(list)
    for each in lines:
        found[each.node].append(each)
    return [_summed_up(node, each) for node, each in found.items()]


def _summed_up(node: str, each: Sequence[LivePairs]) -> Attention:
    keys, listed = sum(x.keys for x in each), sum(x.listed_keys for x in each)
    tiles = max(sum(x.tiles for x in each), 1)
    live, pairs = sum(x.live_pairs for x in each), sum(x.pairs for x in each)
    return Attention(
        node=node,
        runs=len(each),
        live_pairs=live / pairs if pairs else 1.0,
        live_keys=listed / keys if keys else 1.0,
        tile_keys=listed / tiles,
        all_keys=keys / tiles,
    )
