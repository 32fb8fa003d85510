"""The execution provider's operations, but attention, against numpy, with C++ reference kernels."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.plan_text import Plan
from tests.plugin.test_runtime_attention import reference_attention
from tests.runtime_support import (
    BOOL,
    COORDS,
    DETECT,
    FLOAT,
    MASK,
    OFFSETS,
    ROWS,
    Array,
    Run,
    Value,
    attention_plan,
    gemm_plan,
    kernel_plan,
    loader,
    make_model,
    masks,
    panels,
    pit_node,
    points,
    use_built_provider,
)

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

load = pytest.fixture(loader)


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
