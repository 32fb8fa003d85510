"""Attention over windows and global tokens (Longformer, LED), written as dense attention.

transformers cuts the tokens into overlapping chunks, pads them to a multiple of the window and
gathers global tokens by their places. The graph of that holds for one size, and shows no mask. Here
each product is dense and each mask a bool over queries and keys:

    x = where(seen, q k, -inf);  out = softmax(x) v

The numbers are the same up to rounding. pitc proves from the bools which pairs are hidden.
"""

import math
from importlib import import_module
from typing import Any

from pitc.errors import ModelError


def window_attention(
    part: Any,
    hidden_states: Any,
    attention_mask: Any = None,
    layer_head_mask: Any = None,
    is_index_masked: Any = None,
    is_index_global_attn: Any = None,
    is_global_attn: Any = None,
    output_attentions: bool = False,
) -> tuple[Any]:
    """What `forward` of LongformerSelfAttention and LEDEncoderSelfAttention computes.

    A token sees the tokens within half a window, and the global ones. A global token sees all, by
    projections of its own. No token sees masked ones, and the result of a masked one is 0.

    Args:
        part: The attention module.
        hidden_states: `[batch, sequence, hidden]`.
        attention_mask: Not read: the two bools are made of it.
        layer_head_mask: A factor per head, or None.
        is_index_masked: Bool `[batch, sequence]`.
        is_index_global_attn: Bool `[batch, sequence]`; no token of it is masked.
        is_global_attn: Not read: it holds for one batch only.
        output_attentions: Probabilities per chunk are asked for.

    Returns:
        The output `[batch, sequence, hidden]`.

    Raises:
        ModelError: Probabilities are asked for.
    """
    if output_attentions:
        raise _no_probabilities(part)
    torch = import_module("torch")
    batch, sequence, _ = hidden_states.shape

    def heads(projection: Any) -> Any:
        rows = projection(hidden_states)
        return rows.view(batch, sequence, part.num_heads, part.head_dim).transpose(1, 2)

    def attend(q: Any, k: Any, v: Any, seen: Any) -> Any:
        scores = torch.matmul(heads(q) / math.sqrt(part.head_dim), heads(k).transpose(-1, -2))
        # -inf, not a finite number: a row of it is NaN for certain, and is chosen away below
        scores = torch.where(seen[:, None], scores, float("-inf"))
        weights = torch.softmax(scores, -1, dtype=torch.float32).type_as(scores)
        if layer_head_mask is not None:
            weights = weights * layer_head_mask.view(1, -1, 1, 1)
        return torch.matmul(weights, heads(v)).transpose(1, 2).reshape(hidden_states.shape)

    places = torch.arange(sequence, device=hidden_states.device)
    near = (places[:, None] - places[None, :]).abs() <= part.one_sided_attn_window_size
    alive = ~is_index_masked[:, None, :]
    local = attend(
        part.query, part.key, part.value, (near[None] | is_index_global_attn[:, None, :]) & alive
    )
    # the same rows for all queries would do, as the last step takes those of global tokens only
    whole = attend(
        part.query_global,
        part.key_global,
        part.value_global,
        is_index_global_attn[:, :, None] & alive,
    )
    rows = torch.where(is_index_global_attn[:, :, None], whole, local)
    return (rows.masked_fill(is_index_masked[:, :, None], 0.0),)


#: What a model pads, in the order in which it takes them back.
_PADDED = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")


def _no_probabilities(part: Any) -> ModelError:
    text = f"{type(part).__name__} gives its probabilities by chunks of one size"
    return ModelError(text, hint="export it with output_attentions=False")


def unpadded(part: Any, *, pad_token_id: Any = None, **inputs: Any) -> tuple[Any, ...]:
    """What `_pad_to_window_size` of LongformerModel and LEDEncoder gives where nothing is padded.

    Args:
        part: The model.
        pad_token_id: Not read.
        inputs: What the model pads: tensors or None, by name.

    Returns:
        0 as the number of tokens added, and the inputs.

    Raises:
        ModelError: The model is to give probabilities (`window_attention`).
    """
    if part.config.output_attentions:  # it fails before it comes to its attention
        raise _no_probabilities(part)
    return (0, *(inputs[name] for name in _PADDED if name in inputs))
