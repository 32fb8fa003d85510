"""The five operations of the execution provider against numpy, with reference kernels in C++."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.plan_text import Plan
from tests.runtime_support import (
    BOOL,
    COORDS,
    DETECT,
    FLOAT,
    INT32,
    MASK,
    OFFSETS,
    ROWS,
    Array,
    Value,
    attention_plan,
    gemm_plan,
    kernel_plan,
    make_model,
    panels,
    pit_node,
    points,
    quiet_options,
    save,
    session,
    use_built_provider,
)

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

Run = Callable[..., list[Array]]


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Run]:
    """Make a session of a model and return its run function, which takes inputs by name."""

    def load(model: onnx.ModelProto, threads: int = 1, level: str | None = None) -> Run:
        options = quiet_options(threads)
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        made = session(save(tmp_path, model), options, **({"cpu_level": level} if level else {}))
        return lambda **feeds: made.run(None, feeds)

    return load


def masks(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[Array]:
    """Nothing live, all live, and three random densities."""
    for density in (0.0, 1.0, 0.1, 0.5, 0.9):
        yield rng.random(shape) < density


# ---- detect

SHAPES = [
    (0,),
    (1,),
    (200,),
    (3, 0),
    (0, 5),
    (4, 33),
    (2, 3, 65),
    (2, 1, 0, 4),
    (1, 2, 1, 2, 1, 2, 1, 3),
]


def _alive(dtype: np.dtype) -> Array:
    """Numbers that are not 0: bits that a narrower type would lose, NaN, the smallest ones."""
    if dtype.kind == "f":
        tiny = np.finfo(dtype).smallest_subnormal
        return np.array([1, -1, np.nan, np.inf, tiny, -tiny, np.finfo(dtype).max], dtype)
    bits = [1] if dtype == np.bool_ else [1 << b for b in range(8 * dtype.itemsize - 1)]
    return np.array(bits, dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_detect(load: Callable[..., Run], shape: tuple[int, ...]) -> None:
    rank = len(shape)
    node = pit_node("d", Plan("detect", (("rank", rank),)), ["live"], ["rows", "coords", "offsets"])
    dims: list[str | int | None] = [f"e{k}" for k in range(rank)]
    outputs: list[Value] = [ROWS, COORDS, OFFSETS]
    rng = np.random.default_rng(rank)
    for dtype in ("bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"):
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        run = load(make_model([node], [("live", kind, dims)], outputs))
        for live in masks(rng, shape):
            marks = np.where(live, rng.choice(_alive(np.dtype(dtype)), shape), 0).astype(dtype)
            if marks.dtype.kind == "f":
                marks[~live] *= -1  # -0.0
            for got, expected in zip(run(live=marks), points(live), strict=True):
                np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize("level", [None, "v3"])
def test_detect_many_points_on_two_threads(load: Callable[..., Run], level: str | None) -> None:
    node = pit_node("d", Plan("detect", (("rank", 3),)), ["live"], ["rows", "coords", "offsets"])
    model = make_model([node], [("live", BOOL, ["a", "b", "c"])], [ROWS, COORDS, OFFSETS])
    run = load(model, threads=2, level=level)
    for live in masks(np.random.default_rng(0), (9, 41, 777)):
        for got, expected in zip(run(live=live), points(live), strict=True):
            np.testing.assert_array_equal(got, expected, strict=True)


def test_detect_outputs_that_nobody_reads(load: Callable[..., Run]) -> None:
    live = np.random.default_rng(1).random((5, 9)) < 0.5
    names = ["rows", "coords", "offsets"]
    for at, expected in enumerate(points(live)):
        node = pit_node("d", DETECT, ["live"], names)
        wanted = (ROWS, COORDS, OFFSETS)[at]
        model = make_model([node], [MASK], [wanted], [ROWS, COORDS, OFFSETS])
        np.testing.assert_array_equal(load(model)(live=live)[0], expected)
        nameless = [name if name == names[at] else "" for name in names]
        node = pit_node("d", DETECT, ["live"], nameless)
        run = load(make_model([node], [MASK], [wanted]))
        np.testing.assert_array_equal(run(live=live)[0], expected)


# ---- pack and unpack

ELEMENTS = [np.float32, np.int64, np.float16, np.int8, np.bool_]
# (dims, kept extents), for a domain of two dimensions
LAYOUTS = [
    ("c0,c1", ()),
    ("c0,c1,r", (12,)),
    ("c0,r,c1,r", (3, 4)),
    ("c0,r,0,c1,r,r", (2, 3, 4)),
    ("r,c1,r,c0,r", (2, 3, 4)),
    ("l,r", (8,)),
    ("r,l,0", (4,)),
    ("c0,c1,r", (0,)),
    ("c0,r,c1,r", (0, 4)),
]


def unpacked_shape(dims: str, kept: tuple[int, ...], domain: tuple[int, ...]) -> list[int]:
    rest = iter(kept)
    known = {"c0": domain[0], "c1": domain[1], "l": math.prod(domain), "0": 1}
    return [next(rest) if use == "r" else known[use] for use in dims.split(",")]


def packed_view(dims: str, x: Array, domain: tuple[int, ...]) -> Array:
    """x as `[points of the domain, kept ..]`."""
    uses = dims.split(",")
    order = sorted(range(len(uses)), key=lambda i: (uses[i] == "r", uses[i]))
    order = [i for i in order if uses[i] != "0"]
    flat = x.squeeze(tuple(i for i, use in enumerate(uses) if use == "0"))
    kept = [i for i, use in enumerate(uses) if use != "0"]
    moved = flat.transpose([kept.index(i) for i in order])
    return moved.reshape(math.prod(domain), *[x.shape[i] for i in order if uses[i] == "r"])


def element_kernel(op: str, dtype: Any) -> str:
    return f"{op}_b4" if np.dtype(dtype).itemsize >= 4 else f"{op}_b1"


def random_elements(rng: np.random.Generator, shape: list[int], dtype: Any) -> Array:
    raw = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return raw[..., 0] > 99 if dtype == np.bool_ else raw.view(dtype)[..., 0]


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize(("dims", "kept"), LAYOUTS)
def test_pack_and_unpack(
    load: Callable[..., Run], dims: str, kept: tuple[int, ...], dtype: Any
) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rank = len(dims.split(","))
    pack = kernel_plan("pack", element_kernel("pack", dtype), dims=dims)
    unpack = kernel_plan("unpack", element_kernel("unpack", dtype), dims=dims)
    any_dims: list[str | int | None] = [None] * rank
    model = make_model(
        [
            pit_node("p", pack, ["x", "rows", "coords", "live"], ["packed"]),
            pit_node("u", unpack, ["packed", "rows", "coords", "live"], ["y"]),
        ],
        [("x", kind, any_dims), ROWS, COORDS, MASK],
        [("packed", kind, ["t"] + [None] * len(kept)), ("y", kind, any_dims)],
    )
    run = load(model)
    rng = np.random.default_rng(len(dims))
    for domain in ((3, 7), (1, 1), (4, 40)):
        x = random_elements(rng, unpacked_shape(dims, kept, domain), dtype)
        for live in masks(rng, domain):
            rows, coords, _ = points(live)
            packed, y = run(x=x, rows=rows, coords=coords, live=live)
            flat = packed_view(dims, x, domain)
            assert packed.dtype == dtype
            assert packed.tobytes() == flat[rows].tobytes()
            assert packed.shape == (len(rows), *kept)
            expected = flat.copy()
            expected[~live.reshape(-1)] = 0
            assert y.shape == x.shape
            assert packed_view(dims, y, domain).tobytes() == expected.tobytes()


def test_pack_some_coordinates(load: Callable[..., Run]) -> None:
    """A tensor without the domain's last dimension is repeated for every point of a sequence."""
    plan = kernel_plan("pack", "pack_b4", dims="c0,r")
    node = pit_node("p", plan, ["x", "rows", "coords", "live"], ["y"])
    inputs: list[Value] = [("x", FLOAT, ["b", "w"]), ROWS, COORDS, MASK]
    run = load(make_model([node], inputs, [("y", FLOAT, ["t", "w"])]))
    live = np.random.default_rng(2).random((4, 6)) < 0.5
    rows, coords, _ = points(live)
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    (y,) = run(x=x, rows=rows, coords=coords, live=live)
    np.testing.assert_array_equal(y, x[coords[0]])


@pytest.mark.parametrize("dims", ["c0,c1,r", "c0,r,c1", "r,l"])
def test_large_moves_on_two_threads(load: Callable[..., Run], dims: str) -> None:
    plans = [kernel_plan(op, f"{op}_b4", dims=dims) for op in ("pack", "unpack")]
    any_dims: list[str | int | None] = [None] * len(dims.split(","))
    model = make_model(
        [
            pit_node("p", plans[0], ["x", "rows", "coords", "live"], ["packed"]),
            pit_node("u", plans[1], ["packed", "rows", "coords", "live"], ["y"]),
        ],
        [("x", FLOAT, any_dims), ROWS, COORDS, MASK],
        [("packed", FLOAT, ["t", None]), ("y", FLOAT, any_dims)],
    )
    rng = np.random.default_rng(3)
    domain = (16, 301)
    x = rng.standard_normal(unpacked_shape(dims, (96,), domain), np.float32)
    run = load(model, threads=2)
    for live in masks(rng, domain):
        rows, coords, _ = points(live)
        packed, y = run(x=x, rows=rows, coords=coords, live=live)
        flat = packed_view(dims, x, domain)
        np.testing.assert_array_equal(packed, flat[rows])
        expected = np.where(live.reshape(-1, 1), flat, 0)
        np.testing.assert_array_equal(packed_view(dims, y, domain), expected)


# ---- gather_gemm


def reference_gemm(x: Array, b: Array, activation: str) -> Array:
    y = x.astype(np.float64) @ b.astype(np.float64)
    if activation == "relu":
        return np.maximum(y, 0)
    if activation == "gelu":
        return y * 0.5 * (1 + np.vectorize(math.erf, otypes=[np.float64])(y / math.sqrt(2)))
    return y


GEMMS = [(1, 1, "none"), (3, 5, "relu"), (16, 70, "gelu"), (64, 130, "none")]


@pytest.mark.parametrize(("k", "n", "activation"), GEMMS)
@pytest.mark.parametrize(("gather", "scatter"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("bias", "residual"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gather_gemm(
    load: Callable[..., Run],
    k: int,
    n: int,
    activation: str,
    gather: int,
    scatter: int,
    bias: int,
    residual: int,
) -> None:
    flags = {"bias": bias, "gather": gather, "residual": residual, "scatter": scatter}
    plan = gemm_plan(k, n, activation, **flags)
    present = {"bias": bias, "residual": residual, "rows": gather or scatter}
    present["live"] = present["rows"]
    optional: dict[str, Value] = {
        "bias": ("bias", FLOAT, [n]),
        "residual": ("residual", FLOAT, ["t", n]),
        "rows": ROWS,
        "live": MASK,
    }
    names = [name for name, there in present.items() if there]
    rank = 3 if gather else 2
    model = make_model(
        [pit_node("g", plan, ["a", "b", *names], ["c"])],
        [
            ("a", FLOAT, [None] * rank),
            ("b", FLOAT, [None, k, None]),
            *[optional[name] for name in names],
        ],
        [("c", FLOAT, [None] * (3 if scatter else 2))],
    )
    run = load(model)
    rng = np.random.default_rng(k)
    weights = rng.standard_normal((k, n), np.float32)
    for shape in ((2, 9), (1, 1), (3, 0), (5, 40)):
        for live in masks(rng, shape):
            rows, _, _ = points(live)
            dense = rng.standard_normal((*shape, k), np.float32)
            a = dense if gather else dense.reshape(-1, k)[rows]
            feeds = {
                "bias": rng.standard_normal(n, np.float32),
                "residual": rng.standard_normal((len(rows), n), np.float32),
                "rows": rows,
                "live": live,
            }
            width = int(rng.choice([1, 8, 16, 64]))
            given = {name: feeds[name] for name in names}
            (c,) = run(a=a, b=panels(weights, width), **given)
            x = dense.reshape(-1, k)[rows]
            if bias:  # the activation comes after it
                x = np.concatenate([x, np.ones((len(rows), 1), np.float32)], 1)
            full = np.concatenate([weights, feeds["bias"][None]]) if bias else weights
            expected = reference_gemm(x, full, activation)
            if residual:
                expected = expected + feeds["residual"]
            if scatter:
                packed, expected = expected, np.zeros((live.size, n))
                expected[rows] = packed
                expected = expected.reshape(*shape, n)
            assert c.shape == expected.shape
            np.testing.assert_allclose(c, expected, rtol=1e-6, atol=1e-6)


def test_gather_gemm_keeps_leading_dimensions(load: Callable[..., Run]) -> None:
    node = pit_node("g", gemm_plan(3, 5, residual=1), ["a", "b", "r"], ["c"])
    dims: list[str | int | None] = [None] * 3
    model = make_model(
        [node], [("a", FLOAT, dims), ("b", FLOAT, dims), ("r", FLOAT, dims)], [("c", FLOAT, dims)]
    )
    run = load(model)
    rng = np.random.default_rng(4)
    b = rng.standard_normal((3, 5), np.float32)
    for lead in ((2, 4), (0, 4), (1, 1)):
        a, r = (rng.standard_normal((*lead, w), np.float32) for w in (3, 5))
        np.testing.assert_allclose(
            run(a=a, b=panels(b, 4), r=r)[0], a @ b + r, rtol=1e-5, atol=1e-6
        )


# ---- attention


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


# ---- the same bits on any number of threads


def test_two_threads_give_the_same_bits(load: Callable[..., Run]) -> None:
    """Every operation at a size that is split."""
    plans = {
        "p": kernel_plan("pack", "pack_b4", dims="c0,c1,r"),
        "g": gemm_plan(64, 130, "relu", bias=1),
        "a": attention_plan(16, 16, 4),
        "u": kernel_plan("unpack", "unpack_b4", dims="c0,c1,r,r"),
    }
    model = make_model(
        [
            pit_node("d", DETECT, ["live"], ["rows", "coords", "offsets"]),
            pit_node("p", plans["p"], ["x", "rows", "coords", "live"], ["px"]),
            pit_node("g", plans["g"], ["px", "b", "bias"], ["c"]),
            pit_node("a", plans["a"], ["px", "px", "px", "offsets", "offsets"], ["y"]),
            pit_node("u", plans["u"], ["y", "rows", "coords", "live"], ["z"]),
        ],
        [("x", FLOAT, [None] * 3), ("live", BOOL, [None] * 2)],
        [("c", FLOAT, [None] * 2), ("z", FLOAT, [None] * 4)],
        [ROWS, COORDS, OFFSETS, ("px", FLOAT, ["t", 64]), ("y", FLOAT, ["t", 4, 16])],
        {
            "b": panels(np.random.default_rng(7).standard_normal((64, 130), np.float32), 16),
            "bias": np.random.default_rng(8).standard_normal(130, np.float32),
        },
    )
    rng = np.random.default_rng(9)
    live = rng.random((6, 300)) < 0.6
    x = rng.standard_normal((6, 300, 64), np.float32)
    one, two = (load(model, threads=threads)(x=x, live=live) for threads in (1, 2))
    for left, right in zip(one, two, strict=True):
        np.testing.assert_array_equal(left, right)
    rows, _, o = points(live)
    px = x.reshape(-1, 64)[rows]
    heads = px.reshape(-1, 4, 16)
    expected = reference_attention(heads, heads, heads, o, o, 0.5)
    np.testing.assert_allclose(one[1][live], expected, rtol=1e-5, atol=1e-6)
    assert not one[1][~live].any()
