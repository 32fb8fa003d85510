"""Attention of the execution provider against numpy, with reference kernels in C++."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tests.runtime_support import (
    BOOL,
    COORDS,
    FLOAT,
    INT32,
    Array,
    Run,
    Value,
    attention_plan,
    loader,
    make_model,
    masks,
    pit_node,
    points,
    use_built_provider,
)

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)
load = pytest.fixture(loader)


def reference_attention(
    q: Array,
    k: Array,
    v: Array,
    q_offsets: Array,
    k_offsets: Array,
    scale: float,
    bias: Array | None = None,
    positions: Array | None = None,
    rounded: Callable[[Array, str], Array] = lambda x, _: x,
) -> Array:
    """float64; NaN where there is no key.

    Args:
        q, k, v: `[t, heads, size]`.
        q_offsets, k_offsets: First row of each sequence, and the end.
        scale: Of scores.
        bias: `[sequences, heads, length, length]`, added to scores.
        positions: `[t]`, of each row in its sequence.
        rounded: What `score` and `weight` are rounded to.
    """
    out = np.full((q.shape[0], q.shape[1], v.shape[2]), np.nan)
    for s in range(len(q_offsets) - 1):
        i, j = slice(*q_offsets[s : s + 2]), slice(*k_offsets[s : s + 2])
        if j.start == j.stop:
            continue
        x = np.einsum("ihd,jhd->hij", q[i].astype(np.float64), k[j].astype(np.float64))
        x = rounded(x * scale, "score")
        if bias is not None and positions is not None:
            x = x + bias[s][:, positions[i][:, None], positions[j]]
        with np.errstate(invalid="ignore"):
            p = np.exp(x - x.max(-1, keepdims=True))
            p = rounded(p / p.sum(-1, keepdims=True), "weight")
        out[i] = np.einsum("hij,jhd->ihd", p, v[j].astype(np.float64))
    return out


VARIANTS = [(1, 1, 1), (4, 4, 3), (8, 3, 2), (16, 16, 4)]


@pytest.mark.parametrize(("d", "dv", "heads"), VARIANTS)
@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 1)])
def test_attention(
    load: Callable[..., Run], d: int, dv: int, heads: int, flags: tuple[int, int]
) -> None:
    nan, keyless = flags
    plan = attention_plan(d, dv, heads, scale=0.3, nan_to_zero=nan, no_keys_to_zero=keyless)
    names = ["q", "k", "v", "qo", "ko"]
    kinds = [FLOAT, FLOAT, FLOAT, INT32, INT32]
    ranks = [3, 3, 3, 1, 1]
    inputs: list[Value] = [
        (name, kind, [None] * rank) for name, kind, rank in zip(names, kinds, ranks, strict=True)
    ]
    run = load(make_model([pit_node("a", plan, names, ["y"])], inputs, [("y", FLOAT, [None] * 3)]))
    rng = np.random.default_rng(d)
    for lengths in ([], [0], [1], [5, 0, 70], [64, 65, 3], [0, 0, 129]):
        for key_lengths in (lengths, [length % 3 for length in lengths]):
            qo, ko = (
                np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (lengths, key_lengths)
            )
            q, k = (rng.standard_normal((t[-1], heads, d), np.float32) for t in (qo, ko))
            v = rng.standard_normal((ko[-1], heads, dv), np.float32)
            expected = reference_attention(q, k, v, qo, ko, 0.3)
            if any(flags):
                expected = np.nan_to_num(expected)
            (y,) = run(q=q, k=k, v=v, qo=qo, ko=ko)
            assert y.shape == expected.shape
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_attention_of_one_fused_tensor(load: Callable[..., Run], rank: int) -> None:
    """The same value thrice: ONNX Runtime hands it over once."""
    plan = attention_plan(4, 4, 2, first=(0, 2, 4))
    node = pit_node("a", plan, ["x", "x", "x", "o", "o"], ["y"])
    dims: list[str | int | None] = [None] * rank
    run = load(
        make_model([node], [("x", FLOAT, dims), ("o", INT32, ["n"])], [("y", FLOAT, [None] * 3)])
    )
    x = np.random.default_rng(5).standard_normal((7, 6, 4), np.float32)
    o = np.array([0, 3, 7], np.int32)
    shape = {2: (7, 24), 3: (7, 6, 4), 4: (7, 3, 2, 4)}[rank]
    expected = reference_attention(x[:, :2], x[:, 2:4], x[:, 4:], o, o, 0.5)
    np.testing.assert_allclose(run(x=x.reshape(shape), o=o)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", ["BHQK", "1111", "B11K", "1HQ1", "11QK", "BHQ1"])
def test_attention_with_bias(load: Callable[..., Run], shape: str) -> None:
    names = ["q", "k", "v", "o", "o", "bias", "coords", "coords"]
    node = pit_node("a", attention_plan(8, 3, 2, bias=1), names, ["y"])
    inputs: list[Value] = [
        ("q", FLOAT, [None] * 3),
        ("k", FLOAT, [None] * 3),
        ("v", FLOAT, [None] * 3),
    ]
    inputs += [("o", INT32, [None]), ("bias", FLOAT, [None] * 4), COORDS]
    run = load(make_model([node], inputs, [("y", FLOAT, [None] * 3)]))
    rng = np.random.default_rng(6)
    batch, length = 3, 70
    full = {"B": batch, "H": 2, "Q": length, "K": length, "1": 1}
    for live in masks(rng, (batch, length)):
        _, coords, o = points(live)
        q, k = (rng.standard_normal((o[-1], 2, 8), np.float32) for _ in range(2))
        v = rng.standard_normal((o[-1], 2, 3), np.float32)
        bias = rng.standard_normal([full[c] for c in shape], np.float32)
        everywhere = np.broadcast_to(bias, (batch, 2, length, length))
        expected = reference_attention(q, k, v, o, o, 0.5, everywhere, coords[1])
        (y,) = run(q=q, k=k, v=v, o=o, bias=bias, coords=coords)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


SCORE_STEPS = {"score_step": 0.25, "score_below": 9, "score_above": 12, "score_scale": 0.5}
WEIGHT_STEPS = {"weight_step": 1 / 1000, "weight_above": 255}
CAP = {"score_cap": -2.0}


@pytest.mark.parametrize("bias", [0, 1])
@pytest.mark.parametrize("steps", [SCORE_STEPS, WEIGHT_STEPS, SCORE_STEPS | WEIGHT_STEPS, CAP])
def test_attention_that_rounds_or_caps(
    load: Callable[..., Run], steps: dict[str, int | float], bias: int
) -> None:
    """Scores are whole numbers times a power of two; no weight lies at half a step."""
    plan = attention_plan(8, 3, 2, bias=bias, steps=steps)
    names = ["q", "k", "v", "o", "o", *(["bias", "coords", "coords"] if bias else [])]
    inputs: list[Value] = [(name, FLOAT, [None] * 3) for name in "qkv"]
    inputs += [("o", INT32, [None])]
    inputs += [("bias", FLOAT, [None] * 4), COORDS] if bias else []
    run = load(make_model([pit_node("a", plan, names, ["y"])], inputs, [("y", FLOAT, [None] * 3)]))

    def rounded(x: Array, what: str) -> Array:
        if f"{what}_cap" in steps:
            return np.asarray(np.tanh(x) * steps[f"{what}_cap"])
        if f"{what}_step" not in steps:
            return x
        below, above = steps.get(f"{what}_below", 0), steps[f"{what}_above"]
        whole = np.clip(np.rint(x / steps[f"{what}_step"]), -below, above)
        return np.asarray(whole * steps[f"{what}_step"] * steps.get(f"{what}_scale", 1))

    rng = np.random.default_rng(6)
    for live in masks(rng, (3, 70)):
        _, coords, o = points(live)
        q, k = (rng.integers(-2, 3, (o[-1], 2, 8)).astype(np.float32) for _ in range(2))
        v = rng.standard_normal((o[-1], 2, 3), np.float32)
        added = rng.integers(-2, 3, (3, 2, 70, 70)).astype(np.float32) * bias
        expected = reference_attention(q, k, v, o, o, 0.5, added, coords[1], rounded)
        given = {"bias": added, "coords": coords} if bias else {}
        (y,) = run(q=q, k=k, v=v, o=o, **given)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_attention_rows_without_a_live_key(load: Callable[..., Run]) -> None:
    """A bias of -inf everywhere makes the softmax NaN: NaN, or 0 on demand. NaN in v stays NaN."""
    names = ["x", "x", "x", "o", "o", "bias", "coords", "coords"]
    inputs: list[Value] = [
        ("x", FLOAT, [None] * 3),
        ("o", INT32, [None]),
        ("bias", FLOAT, [None] * 4),
        COORDS,
    ]
    x = np.array([1, 2, np.nan, 4], np.float32).reshape(4, 1, 1)
    o = np.array([0, 2, 3, 4], np.int32)
    coords = np.array([[0, 0, 1, 2], [0, 1, 0, 0]], np.int32)
    bias = np.zeros((3, 1, 2, 1), np.float32)
    bias[0, 0, 1] = -np.inf
    for zero, empty in product((0, 1), (0, 1)):
        plan = attention_plan(1, 1, 1, bias=1, nan_to_zero=zero, no_keys_to_zero=empty)
        model = make_model([pit_node("a", plan, names, ["y"])], inputs, [("y", FLOAT, [None] * 3)])
        y = load(model)(x=x, o=o, bias=bias, coords=coords)[0].ravel()
        assert y[0] > 1 and y[3] == 4
        assert y[1] == 0 if zero else np.isnan(y[1])
        assert y[2] == 0 if zero else np.isnan(y[2])


def lists_of(rng: np.random.Generator, queries: Array, keys: Array) -> dict[str, Array]:
    """Lists of keys for tiles of 32 queries, some of them a run of keys, by offsets of both."""
    entries, seen_by, tiles = list[Array](), list[Array](), list[tuple[int, int, int]]()
    for s in range(len(queries) - 1):
        count = int(keys[s + 1] - keys[s])
        for at in range(int(queries[s]), int(queries[s + 1]), 32):
            first, stop = np.sort(rng.integers(0, count + 1, 2))
            if rng.random() < 0.5:
                tiles.append((first, stop - first, 0))
                continue
            seen = np.flatnonzero(rng.random(count) < rng.choice([0.0, 0.1, 0.9]))
            tiles.append((sum(map(len, entries)), len(seen), 1))
            entries.append(seen)
            lanes = (1 << min(32, int(queries[s + 1]) - at)) - 1
            seen_by.append(rng.integers(1, 1 << 32, len(seen)) & lanes | 1)
    order = np.arange(queries[-1])
    found = {"list": entries, "by": seen_by, "tiles": tiles, "order": [order]}
    joined = {n: np.concatenate([np.zeros(0, int), *x]) for n, x in found.items() if n != "tiles"}
    joined["tiles"] = np.array(tiles, np.int64).reshape(-1, 3)
    return {n: x.astype(np.uint32).view(np.int32) for n, x in joined.items()}


@pytest.mark.parametrize(("bias", "pairs", "group"), [*product((0, 1), (0, 1), (1, 2))])
def test_attention_reads_a_cache_where_it_lies(
    load: Callable[..., Run], bias: int, pairs: int, group: int
) -> None:
    """Keys and values [b, h, s, d]: live ones in front, behind, with gaps, none; the bits of packed
    ones of as many heads as the queries have, and what is dead is not read.
    """
    rng, heads, d, dv, batch, length = np.random.default_rng(8), 4, 8, 3, 5, 70
    ranks = {"q": 3, "k": 4, "v": 4, "qo": 1, "ko": 1, "bias": 4, "qc": 2, "kc": 2, "live": 2}
    ranks |= {"list": 1, "by": 1, "tiles": 2, "order": 1}
    kinds = {name: INT32 for name in ranks}
    kinds |= dict.fromkeys(("q", "k", "v", "bias"), FLOAT) | {"live": BOOL}

    def run_of(whole: int, group: int | None) -> Run:
        names = ["q", "k", "v", "qo", "ko", *(["bias", "qc"] if bias else [])]
        names += ["kc"] if bias or whole else []
        names += ["live"] if whole else []
        names += ["list", "by", "tiles", "order"] if pairs else []
        plan = attention_plan(
            d,
            dv,
            heads,
            bias=bias,
            no_keys_to_zero=1,
            no_pairs="mean" if pairs else "nan",
            whole=whole,
            pairs=pairs,
            group=group,
        )
        inputs: list[Value] = [
            (n, kinds[n], [None] * (ranks[n] - (n in "kv" and not whole))) for n in names
        ]
        run = load(make_model([pit_node("a", plan, names, ["y"])], inputs, [("y", FLOAT, None)]))
        return lambda **feeds: run(**{n: feeds[n] for n in names})

    shared = group if group > 1 else None
    repeated, packed, whole = run_of(0, None), run_of(0, shared), run_of(1, shared)
    place = np.arange(length)
    lives = [*masks(rng, (batch, length)), place >= np.array([[0], [1], [69], [70], [33]])]
    lives += [place < np.array([[0], [1], [69], [70], [33]]), np.zeros((0, length), bool)]
    for live in lives:
        queries = live & (rng.random(live.shape) < rng.choice([0.02, 0.5, 1]))
        (_, qc, qo), (_, kc, ko) = points(queries), points(live)
        shape = len(live), heads // group, length
        k, v = (rng.standard_normal((*shape, n), np.float32) for n in (d, dv))
        for x in (k, v):
            x.transpose(0, 2, 1, 3)[~live] = np.nan
        feeds = {"q": rng.standard_normal((len(qc[0]), heads, d), np.float32), "kc": kc, "qc": qc}
        feeds |= {"bias": rng.standard_normal((1, heads, length, length), np.float32)}
        feeds |= {"qo": qo, "ko": ko, **lists_of(rng, qo, ko)}
        rows = {"k": k[kc[0], :, kc[1]], "v": v[kc[0], :, kc[1]]}
        (want,) = repeated(**feeds, **{n: x.repeat(group, axis=1) for n, x in rows.items()})
        assert not np.isnan(want).any()
        for got in (packed(**feeds, **rows), whole(**feeds, k=k, v=v, live=live)):
            np.testing.assert_array_equal(got[0], want)
