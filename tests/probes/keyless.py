"""Attention in sequences without a single kept key: NaN, zero or a mean, as the steps say."""

from collections.abc import Callable
from itertools import product

import numpy as np

from tests.probes.build import D, Net, Probe, Table, normal
from tests.probes.masks import attention, outer, soft

KEYLESS = Table("keyless")
INF = float("inf")
MASKS_OF = (
    np.array([[0, 0, 0, 0], [1, 1, 0, 1], [0, 1, 0, 0]]),
    np.zeros((2, 1), int),
    np.array([[1, 1, 1], [0, 0, 0]]),
)
Step = Callable[[Net, str, str], str]  # from scores or probabilities and the mask as a bool

# how keys are hidden from the softmax
HIDDEN: dict[str, Step] = {
    "where_inf": lambda g, s, m: g.Where(m, s, -INF),
    "add_inf": lambda g, s, m: g.Add(s, g.Where(m, 0.0, -INF)),
    "where_low": lambda g, s, m: g.Where(m, s, -1e9),
    "both": lambda g, s, m: g.Where(m, g.Add(s, g.Where(m, 0.0, -1e4)), -INF),
}
# what stands between the softmax and the values
BEHIND: dict[str, Step] = {
    "nothing": lambda g, p, m: p,
    "where": lambda g, p, m: g.Where(m, p, 0.0),
    "where_not": lambda g, p, m: g.Where(g.Not(m), 0.0, p),
    "guard": lambda g, p, m: g.Where(g.IsNaN(p), 0.0, p),
    "guard_where": lambda g, p, m: g.Where(m, g.Where(g.IsNaN(p), 0.0, p), 0.0),
    "where_guard": lambda g, p, m: (lambda q: g.Where(g.IsNaN(q), 0.0, q))(g.Where(m, p, 0.0)),
    "where_one": lambda g, p, m: g.Where(m, p, 1.0),
    "mul": lambda g, p, m: g.Mul(p, g.cast(m, np.float32)),
    "where_nan": lambda g, p, m: g.Where(m, p, g.Log(-1.0)),
}
ROWS = ("gated", "all", "mean")  # which rows of the result are read


def keyless(hidden: str, behind: str, rows: str, first: str = "") -> Probe:
    """Self attention, perhaps on the rows of an attention with other steps behind its softmax."""
    g = Net(17)
    x = g.input("x", np.float32, ("b", "s", D))
    mask = g.cast(g.input("mask", np.int64, ("b", "s")), np.bool_)
    keys = outer(g, mask)

    def score(step: str) -> Callable[[Net, str], str]:
        return lambda g, raw: BEHIND[step](g, soft(g, HIDDEN[hidden](g, raw, keys)), keys)

    h = x if not first else g.Add(x, attention(g, x, x, score(first), 7))
    y = attention(g, x if first else h, h, score(behind))
    kept = g.Unsqueeze(mask, [2])
    if rows == "gated":
        y = g.Mul(y, g.cast(kept, np.float32))
    elif rows == "mean":
        y = g.ReduceSum(g.Where(kept, y, 0.0), g.const([1], np.int64))
    g.out(y)
    feeds = [{"x": normal(*m.shape, D, seed=n), "mask": m} for n, m in enumerate(MASKS_OF)]
    return Probe(g.model(), feeds)


for _hidden, _behind, _rows in product(HIDDEN, BEHIND, ROWS):
    KEYLESS.add(
        f"{_hidden}.{_behind}.{_rows}", lambda h=_hidden, b=_behind, r=_rows: keyless(h, b, r)
    )
for _hidden, _behind, _first in product(
    HIDDEN, ("nothing", "where", "guard"), ("nothing", "guard")
):
    KEYLESS.add(
        f"{_hidden}.{_behind}.after_{_first}",
        lambda h=_hidden, b=_behind, f=_first: keyless(h, b, "gated", f),
    )


def no_keys(hidden: str, behind: str) -> Probe:
    """Attention to a memory that may be empty: a sum of nothing is 0, of hidden keys NaN."""
    g = Net(17)
    x = g.input("x", np.float32, ("b", "q", D))
    memory = g.input("memory", np.float32, ("b", "k", D))
    keys = outer(g, g.cast(g.input("mask", np.int64, ("b", "k")), np.bool_))

    def score(g: Net, raw: str) -> str:
        return BEHIND[behind](g, soft(g, HIDDEN[hidden](g, raw, keys)), keys)

    y = attention(g, x, g.mlp(memory), score)
    g.out(g.Mul(y, g.cast(g.Unsqueeze(g.input("read", np.int64, ("b", "q")), [2]), np.float32)))
    masks = (np.zeros((2, 0), int), *MASKS_OF)
    feeds = [
        {
            "x": normal(m.shape[0], 3, D, seed=n),
            "memory": normal(*m.shape, D, seed=n),
            "mask": m,
            "read": np.array([[1, 0, 1]] * m.shape[0]),
        }
        for n, m in enumerate(masks)
    ]
    return Probe(g.model(), feeds)


for _hidden, _behind in product(HIDDEN, ("nothing", "where", "guard")):
    KEYLESS.add(f"{_hidden}.{_behind}.of_none", lambda h=_hidden, b=_behind: no_keys(h, b))
