"""Masks of pairs that tests of attention share, small enough to hide much of a short sequence, and
the models of them with inputs of many sizes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np
import onnx

from models.attention import (
    AttentionConfig,
    StepConfig,
    attention,
    attention_layer,
    attention_step,
    draw,
    draw_layer,
    draw_step,
)
from models.block_masks import Bars, Blocks, Given
from models.longformer import LongformerConfig, draw_long_tokens, draw_longformer, longformer
from models.modern_bert import ModernBertConfig, draw_tokens, draw_weights, modern_bert
from models.pair_masks import Causal, Documents, Everything, Feeds, PairMask, Window

MASKS: dict[str, PairMask] = {
    "full": Everything(),
    "causal": Causal(),
    "causal window": Causal(7),
    "window": Window(9),
    "window of one": Window(1),
    "window wider than all": Window(1001),
    "window and integers of global tokens": Window(9, 3),
    "window and flags of global tokens": Window(9, 3, "bool"),
    "documents": Documents(20),
    "bars": Bars(9, (1, 2, 4)),
    "blocks of 32": Blocks(32, 0.3),
    "blocks of 64": Blocks(64, 0.1),
    "blocks that are looked up": Blocks(32, 0.3, lookup=True),
    "pairs": Given(0.3),
    "pairs, and queries of none": Given(0.02),
    "no pair": Given(0.0),
}
BESIDE_SINKS = ("full", "causal window", "documents", "no pair")
LENGTHS = (1, 2, 17, 63, 64, 65, 200)


def lengths(mask: PairMask) -> tuple[int, ...]:
    """Lengths that the model of a mask takes: blocks that are expanded are whole ones."""
    if isinstance(mask, Blocks) and not mask.lookup:
        return tuple(dict.fromkeys(-(-n // mask.size) * mask.size for n in LENGTHS))
    return LENGTHS


BATCHES = (1, 3)
LONG = LongformerConfig(2, Window(9, globals=2), 32, 4, 64, 50, 256)
TINY = ModernBertConfig((Everything(), Window(9), Window(9)), 32, 4, 24, 50)
Made = tuple[onnx.ModelProto, Iterator[Feeds]]


def _alone(name: str) -> Made:
    config = AttentionConfig(MASKS[name], 3, 16)
    sizes = product(BATCHES, lengths(config.mask))
    feeds = (draw(config, np.random.default_rng(s), b, s) for b, s in sizes)
    return attention(config), feeds


def _layer(name: str, sinks: tuple[float, ...] = ()) -> Made:
    config = AttentionConfig(MASKS[name], 3, 16, sinks)
    sizes = product(BATCHES, lengths(config.mask))
    feeds = (draw_layer(config, np.random.default_rng(s), b, s) for b, s in sizes)
    return attention_layer(config, np.random.default_rng(1)), feeds


def _step() -> Made:
    config = StepConfig(16, 6, 2, 16)
    sizes = product(BATCHES, (1, 2, 17), (0, 1, 15, 200))
    feeds = (draw_step(config, np.random.default_rng(p), b, s, p) for b, s, p in sizes)
    return attention_step(config), feeds


def bert_tokens(rng: np.random.Generator) -> Iterator[Feeds]:
    """Of several sequences the first is padded."""
    for batch, length in product(BATCHES, LENGTHS):
        feeds = draw_tokens(TINY, rng, batch, length)
        if batch > 1:
            feeds["attention_mask"][0, length // 2 + 1 :] = 0
        yield feeds


def long_tokens(rng: np.random.Generator) -> Iterator[Feeds]:
    """Of several sequences one is padded, one has a global token in its middle, one has none."""
    for batch, length in product(BATCHES, LENGTHS):
        feeds = draw_long_tokens(LONG, rng, batch, length)
        if batch > 1:
            feeds["attention_mask"][0, length // 2 + 1 :] = 0
            feeds["global_attention_mask"][1, length // 2] = 1
            feeds["global_attention_mask"][2] = 0
        yield feeds


def _bert() -> Made:
    rng = np.random.default_rng(0)
    return modern_bert(TINY, draw_weights(TINY, rng)), bert_tokens(rng)


def _long() -> Made:
    rng = np.random.default_rng(0)
    return longformer(LONG, draw_longformer(LONG, rng)), long_tokens(rng)


#: Every builder of attention under masks of pairs: what makes a model and its inputs.
MODELS: dict[str, Callable[[], Made]] = {
    **{f"attention, {name}": partial(_alone, name) for name in MASKS},
    **{f"layer, {name}": partial(_layer, name) for name in MASKS},
    **{f"sinks, {name}": partial(_layer, name, (-1.0, 0.5, 3.0)) for name in BESIDE_SINKS},
    "step": _step,
    "modern bert": _bert,
    "longformer": _long,
}
