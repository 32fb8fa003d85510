"""Gradients of pools: padding, holes, windows that go past the image, ties, no images or places."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.window_gradients import Node, by_differences, windows

RNG = np.random.default_rng(6)
NEAR: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
LOWEST = float(np.finfo(np.float32).min)


def f(*shape: int) -> Any:
    """Normal float32."""
    return RNG.normal(size=shape).astype(np.float32)


def apart(*shape: int) -> Any:
    """Float32, none of which is near another one or 0."""
    size = int(np.prod(shape))
    return (RNG.permutation(size).reshape(shape) + 0.5 - size // 2).astype(np.float32) / 4


SHAPES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 6), {"kernel_shape": [3]}),
    ((1, 1, 6), {"kernel_shape": [3], "pads": [0, 1]}),
    ((1, 1, 1), {"kernel_shape": [1], "strides": [2]}),
    ((2, 3, 6, 5), {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 0, 1]}),
    ((1, 2, 7, 8), {"kernel_shape": [3, 2], "strides": [3, 3], "pads": [1, 0, 0, 1]}),
    ((2, 2, 11), {"kernel_shape": [2], "strides": [4]}),
    ((1, 2, 8), {"kernel_shape": [3], "dilations": [3], "strides": [2], "pads": [2, 1]}),
    ((1, 2, 9), {"kernel_shape": [2], "dilations": [4], "pads": [1, 1]}),
    ((2, 2, 1), {"kernel_shape": [3], "dilations": [2], "pads": [2, 2]}),
    ((1, 2, 1), {"kernel_shape": [2], "dilations": [2], "pads": [1, 1], "strides": [3]}),
    (
        (1, 2, 3, 4, 5),
        {"kernel_shape": [2, 3, 2], "strides": [2, 2, 1], "pads": [1, 0, 1, 0, 1, 1]},
    ),
]
CEILED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, n), {"kernel_shape": [k], "strides": [step], "pads": [pad, 0], "ceil_mode": 1})
    for n in (2, 3, 7)
    for k, step, pad in ((2, 2, 0), (2, 2, 1), (3, 2, 0), (3, 3, 1), (4, 3, 2))
    if n + pad >= k
]


def largest(x: Any, attributes: Any, places: Any) -> Any:
    return windows(x, attributes, places, LOWEST).max(-1)


def mean(x: Any, attributes: Any, places: Any) -> Any:
    pads = attributes.get("pads") or [0] * 2 * len(places)
    number = np.ones(x.shape)
    if attributes.get("count_include_pad"):
        n = len(places)
        width = [(0, 0), (0, 0), *zip(pads[:n], pads[n:], strict=True)]
        inner = {**attributes, "pads": [0] * 2 * n}
        counts = windows(np.pad(number, width, constant_values=1), inner, places, 0).sum(-1)
    else:
        counts = windows(number, attributes, places, 0).sum(-1)
    return windows(x, attributes, places, 0).sum(-1) / np.maximum(counts, 1)


def length(x: Any, attributes: Any, places: Any) -> Any:
    p = attributes.get("p", 2)
    return (np.abs(windows(x, attributes, places, 0)) ** p).sum(-1) ** (1 / p)


POOLS: list[tuple[str, Any, dict[str, Any]]] = [
    ("MaxPool", largest, {}),
    ("MaxPool", largest, {"storage_order": 1}),
    ("AveragePool", mean, {}),
    ("AveragePool", mean, {"count_include_pad": 1}),
    ("LpPool", length, {}),
    ("LpPool", length, {"p": 1}),
    ("LpPool", length, {"p": 3}),
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("shape", "attributes"), SHAPES + CEILED)
@pytest.mark.parametrize(("op", "function", "more"), POOLS)
def test_pools(
    op: str, function: Any, more: Any, shape: tuple[int, ...], attributes: Any, symbolic: bool
) -> None:
    attributes = {**attributes, **more}
    x = apart(*shape)
    node = Node(op, [x], attributes, symbolic=symbolic)
    y = node.result()
    pool = partial(function, attributes=attributes, places=y.shape[2:])
    np.testing.assert_allclose(pool(x), y, **NEAR)
    c = f(*y.shape)
    want = by_differences(pool, x.astype(np.float64), np.where(y == LOWEST, 0, c))
    if op == "LpPool":  # a length of 0 has no derivative
        want = np.where(np.isfinite(want), want, 0)
        c = np.where(y == 0, 0, c)
        want = by_differences(pool, x.astype(np.float64), c)
    np.testing.assert_allclose(node.gradients(c, 0)[0], want, **NEAR)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("size", "kernel", "step"), [(1, 3, 2), (1, 3, 3), (2, 3, 2), (2, 5, 3)])
def test_windows_longer_than_the_image(op: str, size: int, kernel: int, step: int) -> None:
    """ONNX Runtime finds one place, or none."""
    attributes = {"kernel_shape": [kernel], "strides": [step]}
    for more in ({}, {"count_include_pad": 1} if op == "AveragePool" else {"ceil_mode": 1}):
        x = apart(2, 2, size)
        node = Node(op, [x], attributes | more, symbolic=True)
        y = node.result()
        c = f(*y.shape)
        want = np.zeros(x.shape)
        if y.size:
            function = {"MaxPool": largest, "AveragePool": mean, "LpPool": length}[op]
            pool = partial(function, attributes=attributes | more, places=y.shape[2:])
            np.testing.assert_allclose(pool(x), y, **NEAR)
            want = by_differences(pool, x.astype(np.float64), c)
        np.testing.assert_allclose(node.gradients(c, 0)[0], want, **NEAR)


TIED: list[dict[str, Any]] = [
    {"kernel_shape": [2, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]},
    {"kernel_shape": [2, 2], "dilations": [2, 1], "strides": [1, 3]},
]


@pytest.mark.parametrize("attributes", TIED)
def test_of_equal_elements_the_first_one_counts(attributes: Any) -> None:
    x = RNG.integers(0, 3, (2, 3, 6, 7)).astype(np.float32)
    node = Node("MaxPool", [x], attributes, symbolic=True)
    y = node.result()
    c = f(*y.shape)
    numbers = np.arange(1.0, x.size + 1).reshape(x.shape)
    where = windows(numbers, attributes, y.shape[2:], 0)
    first = windows(x, attributes, y.shape[2:], LOWEST).argmax(-1)  # numpy's is the first one
    want = np.zeros(x.size + 1)
    np.add.at(want, np.take_along_axis(where, first[..., None], -1).astype(int)[..., 0], c)
    np.testing.assert_allclose(node.gradients(c, 0)[0], want[1:].reshape(x.shape), **NEAR)


@pytest.mark.parametrize("attributes", TIED)
def test_of_equal_elements_pytorch_takes_the_same(attributes: Any) -> None:
    torch = pytest.importorskip("torch")
    x = RNG.integers(0, 3, (2, 3, 6, 7)).astype(np.float32)
    image = torch.tensor(x, requires_grad=True)
    pads = attributes.get("pads", [0, 0])[:2]
    y = torch.nn.functional.max_pool2d(
        image,
        attributes["kernel_shape"],
        attributes.get("strides", 1),
        pads,
        attributes.get("dilations", 1),
    )
    whole = torch.nn.functional.adaptive_max_pool2d(image, 1)
    c, d = f(*y.shape), f(*whole.shape)
    (y * torch.tensor(c)).sum().backward()
    got = Node("MaxPool", [x], attributes).gradients(c, 0)[0]
    np.testing.assert_allclose(got, image.grad.numpy(), **NEAR)
    image.grad.zero_()
    (whole * torch.tensor(d)).sum().backward()
    got = Node("GlobalMaxPool", [x]).gradients(d, 0)[0]
    np.testing.assert_allclose(got, image.grad.numpy(), **NEAR)


@pytest.mark.parametrize("order", [0, 1])
def test_a_pool_whose_places_are_read(order: int) -> None:
    x = apart(2, 2, 5, 4)
    attributes = {"kernel_shape": [2, 2], "storage_order": order}
    node = Node("MaxPool", [x], attributes, outputs=("y", "places"))
    c = f(*node.result().shape)
    want = Node("MaxPool", [x], {"kernel_shape": [2, 2]}).gradients(c, 0)[0]
    np.testing.assert_array_equal(node.gradients(c, 0)[0], want)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (2, 3, 5), (1, 1, 1), (2, 1, 1, 3), (1, 2, 3, 2, 2)]
)
def test_pools_of_whole_images(shape: tuple[int, ...], symbolic: bool) -> None:
    x = apart(*shape)
    axes = tuple(range(2, len(shape)))
    powers = {
        p: lambda v, p=p: (np.abs(v) ** p).sum(axes, keepdims=True) ** (1 / p) for p in (1, 2, 3)
    }
    cases = [
        ("GlobalMaxPool", {}, lambda v: v.max(axes, keepdims=True)),
        ("GlobalAveragePool", {}, lambda v: v.mean(axes, keepdims=True)),
        *(("GlobalLpPool", {"p": p}, power) for p, power in powers.items()),
    ]
    for op, attributes, function in cases:
        node = Node(op, [x], attributes, symbolic=symbolic)
        c = f(*node.result().shape)
        want = by_differences(function, x.astype(np.float64), c)
        np.testing.assert_allclose(node.gradients(c, 0)[0], want, **NEAR)


def test_lengths_of_0_have_the_gradient_0() -> None:
    x = np.zeros((1, 2, 4), np.float32)
    c = f(1, 2, 3)
    for p in (1, 2, 3):
        got = Node("LpPool", [x], {"kernel_shape": [2], "p": p}).gradients(c, 0)[0]
        assert not got.any()
        assert not Node("GlobalLpPool", [x], {"p": p}).gradients(c[..., :1], 0)[0].any()


WINDOW = {"kernel_shape": [2, 3], "strides": [2, 2]}
EVERY: list[tuple[str, dict[str, Any]]] = [
    *((op, WINDOW) for op in ("MaxPool", "AveragePool", "LpPool")),
    *((op, {}) for op in ("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")),
]


@pytest.mark.parametrize(("op", "attributes"), EVERY)
def test_no_images(op: str, attributes: Any) -> None:
    node = Node(op, [f(0, 2, 5, 6)], attributes, symbolic=True)
    assert node.gradients(node.result(), 0)[0].shape == (0, 2, 5, 6)


@pytest.mark.parametrize(("op", "attributes"), EVERY)
def test_half_floats(op: str, attributes: Any) -> None:
    x = f(2, 2, 5, 6).astype(np.float16)
    wide = Node(op, [x.astype(np.float32)], attributes)
    c = f(*wide.result().shape)
    (got,) = Node(op, [x], attributes).gradients(c.astype(np.float16), 0)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, wide.gradients(c, 0)[0], rtol=0.01, atol=0.01)


def test_double_floats() -> None:
    x = apart(2, 2, 7).astype(np.float64)
    node = Node("MaxPool", [x], {"kernel_shape": [3]})
    c = RNG.normal(size=(2, 2, 5))
    pool = partial(largest, attributes={"kernel_shape": [3]}, places=[5])
    np.testing.assert_allclose(node.gradients(c, 0)[0], by_differences(pool, x, c), **NEAR)


def test_old_operator_sets_scatter_where_windows_do_not_overlap() -> None:
    x, c, attributes = apart(1, 2, 7), f(1, 2, 3), {"kernel_shape": [2], "strides": [2]}
    new, old = (Node("MaxPool", [x], attributes, opset=v).gradients(c, 0)[0] for v in (21, 13))
    np.testing.assert_array_equal(new, old)
    text = Node("MaxPool", [x], {"kernel_shape": [2]}, opset=13).refusal()
    assert "windows overlap, and no scatter of operator set 13 adds; 16 has one" in text


def test_a_norm_of_power_0_is_refused() -> None:
    assert "power 0" in Node("GlobalLpPool", [f(1, 1, 3)], {"p": 0}).refusal()
