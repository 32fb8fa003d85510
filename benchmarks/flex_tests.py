"""Masks of pairs as users of flex_attention write them: a function of one query and one key."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from models.attention_reference import seen_by
from models.block_masks import Bars, Blocks
from models.graph import Array
from models.pair_masks import Causal, Documents, PairMask, Window

FlexTest = Callable[[Any, Any, Any, Any], Any]


def flex_test(
    mask: PairMask, feeds: Mapping[str, Array], length: int, put: Callable[[Array], Any]
) -> FlexTest:
    """The test of a sequence, a head, a query and a key.

    Args:
        mask: Which keys a query sees.
        feeds: Inputs of the mask.
        length: Tokens.
        put: Makes a tensor of an array, where attention runs.
    """
    if isinstance(mask, Causal):
        if mask.window is None:
            return lambda b, h, q, k: q >= k
        return lambda b, h, q, k: (q >= k) & (q - k < mask.window)
    if isinstance(mask, Window):
        half, flags = mask.width // 2, put(feeds["global"] != 0)
        return lambda b, h, q, k: ((q - k).abs() <= half) | flags[b, k] | flags[b, q]
    if isinstance(mask, Documents):
        segments = put(feeds["segments"])
        return lambda b, h, q, k: (segments[b, q] == segments[b, k]) & (q >= k)
    if isinstance(mask, Bars):
        bar, summary = put(feeds["bar"]), put(feeds["summary"])
        near = np.zeros(int(feeds["bar"].max()) + 1, np.bool_)
        near[[n for n in (0, *mask.before) if n < len(near)]] = True
        is_near = put(near)
        return lambda b, h, q, k: (
            (q >= k) & (is_near[(bar[b, q] - bar[b, k]).clamp(min=0)] | summary[b, k])
        )
    if isinstance(mask, Blocks):
        blocks, size = put(feeds["blocks"]), mask.size
        return lambda b, h, q, k: blocks[b, 0, q // size, k // size]
    pairs = put(seen_by(mask, feeds, 1, length))
    return lambda b, h, q, k: pairs[b, 0, q, k]
