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
    modern_bert_reference,
)
from models.graph import Array
from models.modern_bert import draw_tokens, draw_weights, modern_bert
from models.pair_masks import Feeds

BYTES = 4  # of a float


def attention_model(case: TimedAttention | AttentionMemoryCase) -> onnx.ModelProto:
    """The model of a case; random weights are those of its seed."""
    if isinstance(case, StepCase):
        return attention_step(case.config)
    if isinstance(case, LayersCase):
        return modern_bert(case.config, _weights(case))
    return attention(case.config)


def _weights(case: LayersCase) -> dict[str, Array]:
    return draw_weights(case.config, np.random.default_rng(case.seed))


def attention_feeds(case: TimedAttention | AttentionMemoryCase) -> Feeds:
    """The inputs of one call."""
    rng = np.random.default_rng((case.seed, 1))
    if isinstance(case, StepCase):
        return draw_step(case.config, rng, 1, 1, case.past)
    if isinstance(case, LayersCase):
        return draw_tokens(case.config, rng, 1, case.length)
    return draw(case.config, rng, 1, case.length)


def attention_answer(case: TimedAttention, feeds: Feeds) -> Float:
    """The exact answer, in float64."""
    if isinstance(case, LayersCase):
        return modern_bert_reference(case.config, _weights(case), feeds)
    return attention_reference(case.config, feeds)


def pairs_of(case: TimedAttention, feeds: Feeds) -> tuple[int, int]:
    """Live pairs of queries and keys, and all of them; of layers the sum over layers."""
    if isinstance(case, StepCase):
        keys, queries = case.past + 1, np.array([case.past])
        return live_pairs(case.config.mask, feeds, 1, queries, keys), keys
    queries = np.arange(case.length)
    masks = case.config.masks if isinstance(case, LayersCase) else (case.mask,)
    live = sum(live_pairs(mask, feeds, 1, queries, case.length) for mask in masks)
    return live, case.length**2 * len(masks)


def attention_cost(case: TimedAttention, pairs: int) -> Cost:
    """The least work of one call with so many live pairs.

    Two products of a head's width for each pair and head; of layers their projections besides. Of a
    step the cache, which Concat reads and writes, comes from memory.
    """
    config = case.config
    flops = 4 * config.size * config.heads * pairs
    if isinstance(case, StepCase):
        rows = 2 * case.config.groups * (case.past + 1)
        return Cost(flops, 2 * BYTES * config.size * rows)
    if isinstance(case, AttentionCase):
        return Cost(flops)
    hidden, ffn = case.config.hidden, case.config.ffn
    weights = len(case.config.masks) * (4 * hidden**2 + 3 * hidden * ffn)
    return Cost(flops + 2 * case.length * weights, BYTES * weights)
