"""The encoder in plain float64 numpy, written apart from the builder: each checks the other."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from models.bert import BertConfig, Weights
from models.masks import MASKS

Float = npt.NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _linear(weights: Weights, name: str, x: Float) -> Float:
    weight, bias = (weights[f"{name}.{p}"].astype(np.float64) for p in ("weight", "bias"))
    y: Float = x @ weight.T + bias
    return y


def _norm(weights: Weights, name: str, x: Float, epsilon: float) -> Float:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    y: Float = x * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return y


def _activation(name: str, x: Float) -> Float:
    if name == "relu":
        gate: Float = (x > 0.0).astype(np.float64)
    elif name.endswith("tanh"):
        gate = 0.5 + 0.5 * np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))
    else:
        gate = 0.5 + 0.5 * _erf(x / math.sqrt(2.0))
    return x * gate


def _softmax(x: Float) -> Float:
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        p: Float = e / e.sum(-1, keepdims=True)
        return p


def _attention(config: BertConfig, weights: Weights, layer: str, x: Float, live: Any) -> Float:
    batch, length, hidden = x.shape

    def heads(name: str) -> Float:
        y = _linear(weights, f"{layer}.attention.self.{name}", x)
        return y.reshape(batch, length, config.heads, config.head_size).transpose(0, 2, 1, 3)

    q, k, v = heads("query"), heads("key"), heads("value")
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(config.head_size)
    dialect = MASKS.get(config.mask)
    if dialect is not None:
        filled = scores + dialect.fill if dialect.additive else np.float64(dialect.fill)
        scores = np.where(live[:, None, None, :], scores, filled)
    p = _softmax(scores)
    if dialect is not None and dialect.nan_guard:
        p = np.where(np.isnan(p), 0.0, p)
    y = (p @ v).transpose(0, 2, 1, 3).reshape(batch, length, hidden)
    return _linear(weights, f"{layer}.attention.output.dense", y)


def hidden_state(config: BertConfig, weights: Weights, feeds: dict[str, Any]) -> Float:
    """The encoder's last hidden state.

    Args:
        config: The model's configuration.
        weights: The model's weights.
        feeds: `input_ids` and `attention_mask` [batch, sequence]; `token_type_ids`, else zeros.

    Returns:
        Array of shape [batch, sequence, hidden].
    """
    ids, live = feeds["input_ids"], feeds["attention_mask"] != 0
    x = weights["embeddings.word_embeddings.weight"].astype(np.float64)[ids]
    x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    if config.token_types != "none":
        kinds = feeds.get("token_type_ids", np.zeros_like(ids))
        x = x + weights["embeddings.token_type_embeddings.weight"][kinds]
    x = _norm(weights, "embeddings.LayerNorm", x, config.epsilon)
    for i in range(config.layers):
        layer = f"encoder.layer.{i}"
        y = _attention(config, weights, layer, x, live)
        x = _norm(weights, f"{layer}.attention.output.LayerNorm", x + y, config.epsilon)
        y = _activation(config.activation, _linear(weights, f"{layer}.intermediate.dense", x))
        y = _linear(weights, f"{layer}.output.dense", y)
        x = _norm(weights, f"{layer}.output.LayerNorm", x + y, config.epsilon)
    return x


def forward(config: BertConfig, weights: Weights, feeds: dict[str, Any]) -> dict[str, Float]:
    """Every output of the model, by name."""
    x = hidden_state(config, weights, feeds)
    if config.head in ("mean", "mean_normalised"):
        flags = (feeds["attention_mask"] != 0).astype(np.float64)[..., None]
        pooled = (x * flags).sum(1) / np.maximum(flags.sum(1), 1e-9)
        if config.head == "mean_normalised":
            pooled /= np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return {"sentence_embedding": pooled}
    match config.head:
        case "none":
            return {"last_hidden_state": x}
        case "cls":
            return {"cls": x[:, 0]}
        case "tokens":
            return {"logits": _linear(weights, "classifier", x)}
    pooled = np.tanh(_linear(weights, "pooler.dense", x[:, 0]))
    if config.head == "sequence":
        return {"logits": _linear(weights, "classifier", pooled)}
    outputs = {"pooler_output": pooled}
    return outputs if config.head == "pooler" else outputs | {"last_hidden_state": x}
