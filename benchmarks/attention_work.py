"""What a case of attention runs on: its model, its inputs, the exact answer, and its least cost."""

import numpy as np
import onnx

from benchmarks.attention_cases import (
    AttentionCase,
    AttentionMemoryCase,
    LayersCase,
    StepCase,
    TimedAttention,
)
from benchmarks.cost import Cost
from models.attention import attention, attention_step, draw, draw_step
from models.attention_reference import (
    Float,
    attention_reference,
    live_pairs,
    longformer_reference,
    modern_bert_reference,
)
from models.longformer import LongformerConfig, draw_long_tokens, draw_longformer, longformer
from models.modern_bert import ModernBertConfig, draw_tokens, draw_weights, modern_bert
from models.pair_masks import Feeds, PairMask

BYTES = 4  # of a float


def attention_model(case: TimedAttention | AttentionMemoryCase) -> onnx.ModelProto:
    """The model of a case; random weights are those of its seed."""
    if isinstance(case, StepCase):
        return attention_step(case.config)
    if not isinstance(case, LayersCase):
        return attention(case.config)
    rng = np.random.default_rng(case.seed)
    if isinstance(case.config, LongformerConfig):
        return longformer(case.config, draw_longformer(case.config, rng))
    return modern_bert(case.config, draw_weights(case.config, rng))


def attention_feeds(case: TimedAttention | AttentionMemoryCase) -> Feeds:
    """The inputs of one call."""
    rng = np.random.default_rng((case.seed, 1))
    if isinstance(case, StepCase):
        return draw_step(case.config, rng, 1, 1, case.past)
    if not isinstance(case, LayersCase):
        return draw(case.config, rng, 1, case.length)
    if isinstance(case.config, LongformerConfig):
        return draw_long_tokens(case.config, rng, 1, case.length)
    return draw_tokens(case.config, rng, 1, case.length)


def attention_answer(case: TimedAttention, feeds: Feeds) -> Float:
    """The exact answer, in float64."""
    if not isinstance(case, LayersCase):
        return attention_reference(case.config, feeds)
    rng = np.random.default_rng(case.seed)
    if isinstance(case.config, LongformerConfig):
        return longformer_reference(case.config, draw_longformer(case.config, rng), feeds)
    return modern_bert_reference(case.config, draw_weights(case.config, rng), feeds)


def pairs_of(case: TimedAttention, feeds: Feeds) -> tuple[int, int]:
    """Live pairs of queries and keys, and all of them; of layers the sum over layers."""
    if isinstance(case, StepCase):
        keys, queries = case.past + 1, np.array([case.past])
        return live_pairs(case.config.mask, feeds, 1, queries, keys), keys
    masks: tuple[PairMask, ...] = (case.config.mask,) if isinstance(case, AttentionCase) else ()
    if isinstance(case, LayersCase):
        masks = _masks(case.config)
        feeds = feeds | {"global": feeds.get("global_attention_mask", np.zeros((1, 0)))}
    found = {
        mask: live_pairs(mask, feeds, 1, np.arange(case.length), case.length) for mask in set(masks)
    }
    return sum(found[mask] for mask in masks), case.length**2 * len(masks)


def _masks(config: ModernBertConfig | LongformerConfig) -> tuple[PairMask, ...]:
    """Of each layer."""
    if isinstance(config, LongformerConfig):
        return (config.window,) * config.layers
    return config.masks


def attention_cost(case: TimedAttention, pairs: int) -> Cost:
    """The least work of one call with so many live pairs.

    Two products of a head's width for each pair and head; of layers the products by weights
    besides, without the queries of global tokens, which are few. Of a step the cache, which Concat
    reads and writes, comes from memory.
    """
    config = case.config
    flops = 4 * config.size * config.heads * pairs
    if isinstance(case, StepCase):
        rows = 2 * case.config.groups * (case.past + 1)
        return Cost(flops, 2 * BYTES * config.size * rows)
    if isinstance(case, AttentionCase):
        return Cost(flops)
    hidden, ffn = case.config.hidden, case.config.ffn
    if isinstance(case.config, LongformerConfig):
        weights = case.config.layers * (6 * hidden**2 + 2 * hidden * ffn)
    else:
        weights = len(case.config.masks) * (4 * hidden**2 + 3 * hidden * ffn)
    return Cost(flops + 2 * case.length * weights, BYTES * weights)
