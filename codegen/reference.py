"""What each kernel family computes, in numpy and float64: the judge of every test."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def pack(x: Array, index: Array) -> Array:
    """out[i] = x[index[i]]."""
    return np.asarray(x[index])


def unpack(packed: Array, index: Array, out: Array) -> Array:
    """A copy of `out` with out[index[i]] = packed[i]."""
    result = out.copy()
    result[index] = packed
    return result


def _times_sigmoid(x: Array, t: Array) -> Array:
    with np.errstate(over="ignore"):  # e^-t may be inf: the product is 0
        return np.asarray(x / (1.0 + np.exp(-t)))


def activate(x: Array, activation: str) -> Array:
    """Apply one of the activations of `docs/plans.md` to float64 values."""
    match activation:
        case "none":
            return x
        case "relu":
            return np.where(x < 0, 0.0, x)
        case "gelu":
            tail: Array = 1.0 + _erf(x * math.sqrt(0.5))
            return 0.5 * x * tail
        case "gelu_tanh":
            return _times_sigmoid(x, math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
        case "gelu_quick":
            return _times_sigmoid(x, 1.702 * x)
        case "silu":
            return _times_sigmoid(x, x)
    raise ValueError(f"unknown activation {activation!r}")


def gather_gemm(
    a: Array,
    rows: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    activation: str = "none",
) -> Array:
    """act(a[rows] @ w + bias) + residual.

    Args:
        a: `[M, K]`.
        rows: int `[T]`.
        w: `[K, N]`, not in panels.
        bias: `[N]`.
        residual: `[T, N]`.
        activation: One of those of `docs/plans.md`.

    Returns:
        `[T, N]` f64.
    """
    x = a[rows].astype(np.float64) @ w.astype(np.float64)
    x = activate(x if bias is None else x + bias, activation)
    return x if residual is None else np.add(x, residual)


def swrite_columns(
    sums: Array, bias: Array, residual: Array | None = None, activation: str = "none"
) -> Array:
    """act(sums.T + bias) + residual.

    Args:
        sums: `[R, T]`, a row for each column of the result.
        bias: `[R]`.
        residual: `[T, R]`.
        activation: One of those of `docs/plans.md`.

    Returns:
        `[T, R]` f64.
    """
    x = activate(sums.T.astype(np.float64) + bias, activation)
    return x if residual is None else np.add(x, residual)


def to_steps(x: Array, step: float, below: int, above: int) -> Array:
    """The nearest whole number of steps, of two the even one, times the step; NaN stays NaN."""
    return np.asarray(np.clip(np.rint(x / step), -below, above) * step)


Steps = tuple[float, int, int]
"""A step, and how many of them there are below and above 0."""


def attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    bias: Array | None = None,
    nan_to_zero: bool = False,
    score_steps: Steps | None = None,
    score_scale: float = 1.0,
    weight_steps: Steps | None = None,
    score_cap: float | None = None,
    sink: float | None = None,
) -> Array:
    """softmax(scale * q @ k.T + bias) @ v for one head.

    Args:
        q: `[Q, D]`.
        k: `[K, D]`, K may be 0.
        v: `[K, DV]`.
        scale: Factor of the scores.
        bias: `[Q, K]`.
        nan_to_zero: A row whose softmax is NaN gives 0.
        score_steps: What the scaled scores are rounded to.
        score_scale: Their factor behind that.
        weight_steps: What the softmax is rounded to.
        score_cap: What the hyperbolic tangent of the scaled scores is multiplied by.
        sink: One more score of each row, of a key that has no value.

    Returns:
        `[Q, DV]` f64.
    """
    fill = 0.0 if nan_to_zero else math.nan
    if not len(k) and sink is None:
        return np.full((len(q), v.shape[1]), fill)
    with np.errstate(all="ignore"):
        s = scale * (q.astype(np.float64) @ k.astype(np.float64).T)
        s = s if score_cap is None else np.tanh(s) * score_cap
        s = s if score_steps is None else to_steps(s, *score_steps) * score_scale
        s = s if bias is None else s + bias
        s = s if sink is None else np.column_stack([s, np.full(len(s), sink)])
        e = np.exp(s - s.max(axis=1, keepdims=True))
        p = e / e.sum(axis=1, keepdims=True)
        undefined = np.isnan(p).any(axis=1)
        p = p if weight_steps is None else to_steps(p, *weight_steps)
        out: Array = p[:, : len(v)] @ v.astype(np.float64)
    out[undefined] = fill
    return out


def attention_grad(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    scale: float,
    bias: Array | None = None,
    floor: float = -math.inf,
    no_pairs: str = "nan",
) -> tuple[Array, Array, Array]:
    """Gradients of `attention` by its queries, keys and values, for one head.

    Args:
        q: `[Q, D]`.
        k: `[K, D]`, K may be 0.
        v: `[K, DV]`.
        g: `[Q, DV]`, the gradient of the result.
        scale: Factor of the scores.
        bias: `[Q, K]`.
        floor: A row of scores that are all below it has no gradient.
        no_pairs: Weights of a row whose scores are all -inf: "nan" or "zero".

    Returns:
        `[Q, D]`, `[K, D]` and `[K, DV]` f64.
    """
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    if not len(k):
        return np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    with np.errstate(all="ignore"):
        s = scale * (q @ k.T) if bias is None else scale * (q @ k.T) + bias
        e = np.exp(s - s.max(axis=1, keepdims=True))
        p = e / e.sum(axis=1, keepdims=True)
        if no_pairs == "zero":
            p[(s == -np.inf).all(axis=1)] = 0
        by_p = g @ v.T
        by_s = p * (by_p - (p * by_p).sum(axis=1, keepdims=True))
        by_s[s.max(axis=1) < floor] = 0
        return scale * by_s @ k, scale * by_s.T @ q, p.T @ g
