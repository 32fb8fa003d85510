"""What gated convolutions decided when a model ran: run on their live channels, or whole.

Each convolution has its own line in a trace. Several, one behind the other, may have chosen
together, by the sum of their work; their lines tell the same sum, budget and choice.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass as checked

CHANNELS = "channels"

_Count = Annotated[int, Field(ge=0)]


@checked(config=ConfigDict(strict=True, extra="ignore"), frozen=True, slots=True)
class ChannelDecision:
    """One line of a trace, as far as it is looked at here; it may tell more.

    Args:
        node: The convolution, by its name in the source graph.
        channels: Channels of its image.
        live_channels: Those that are not known to be 0.
        filters: Channels of its result.
        live_filters: Those that are not known to be 0 or unread.
        work: What all channels and filters take, of all convolutions that chose together.
        live_work: What the live ones take.
        budget: What they may take, so that leaving out the others pays.
        chosen: `channels` or `dense`.
    """

    node: str
    channels: _Count
    live_channels: _Count
    filters: _Count
    live_filters: _Count
    work: _Count
    live_work: _Count
    budget: _Count
    chosen: Literal["channels", "dense"]

    @model_validator(mode="after")
    def _consistent(self) -> "ChannelDecision":
        if self.live_channels > self.channels:
            raise ValueError("more live channels than channels")
        if self.live_filters > self.filters:
            raise ValueError("more live filters than filters")
        if max(self.live_work, self.budget) > self.work:
            raise ValueError("more than all of the work")
        if self.chosen == CHANNELS and self.live_work > self.budget:
            raise ValueError("channels were chosen beyond the budget")
        return self


@dataclass(frozen=True, slots=True)
class Convolution:
    """All decisions of one convolution. Shares are medians over them, 1 where there is nothing.

    Args:
        node: Its name in the source graph.
        channels: Channels of its image.
        filters: Channels of its result.
        decisions: How many.
        live_channels: Share of channels that were live.
        live_filters: Share of filters that were live.
        live_pairs: Share of its work: of pairs of a channel and a filter.
        live_work: The same of all convolutions that chose together.
        limit: Share of that work up to which it pays to leave out the rest.
        choices: How often `channels` and `dense` were chosen, most often first.
    """

    node: str
    channels: int
    filters: int
    decisions: int
    live_channels: float
    live_filters: float
    live_pairs: float
    live_work: float
    limit: float
    choices: Mapping[str, int]


def convolutions(decisions: Sequence[ChannelDecision]) -> list[Convolution]:
    """Sum up decisions by convolution, in the order in which they first ran."""
    found: dict[tuple[str, int, int], list[ChannelDecision]] = defaultdict(list)
    for each in decisions:  # by sizes, too: a trace may be of several models
        found[each.node, each.channels, each.filters].append(each)
    return [
        Convolution(
            node=node,
            channels=channels,
            filters=filters,
            decisions=len(each),
            live_channels=median(_share(d.live_channels, channels) for d in each),
            live_filters=median(_share(d.live_filters, filters) for d in each),
            live_pairs=median(
                _share(d.live_channels * d.live_filters, channels * filters) for d in each
            ),
            live_work=median(_share(d.live_work, d.work) for d in each),
            limit=median(_share(d.budget, d.work) for d in each),
            choices=dict(Counter(d.chosen for d in each).most_common()),
        )
        for (node, channels, filters), each in found.items()
    ]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
