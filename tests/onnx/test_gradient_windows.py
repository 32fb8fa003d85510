"""Gradients of convolutions, columns and LRN: sizes that leave remainders, groups, dilations, no
images at all, and what is refused.
"""

from typing import Any

import numpy as np
import pytest

from tests.window_gradients import Node, by_differences

RNG = np.random.default_rng(5)
NEAR: dict[str, Any] = {"rtol": 2e-5, "atol": 2e-5}


def f(*shape: int) -> Any:
    """Normal float32."""
    return RNG.normal(size=shape).astype(np.float32)


def like(y: Any) -> Any:
    """Factors of the elements of a result."""
    return RNG.normal(size=y.shape).astype(np.float32).astype(y.dtype)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 6), (4, 3, 3), {}),
    ((2, 3, 3), (4, 3, 3), {}),
    ((1, 1, 1), (1, 1, 1), {"strides": [3]}),
    ((2, 4, 7), (6, 2, 3), {"group": 2, "dilations": [2]}),
    ((2, 3, 8), (3, 1, 3), {"group": 3, "strides": [3], "pads": [2, 1]}),
    ((3, 2, 9), (4, 2, 2), {"strides": [4], "dilations": [3]}),
    ((3, 2, 10), (4, 2, 2), {"strides": [4], "dilations": [3]}),
    ((1, 2, 11), (2, 2, 2), {"strides": [5]}),
    ((1, 2, 3), (2, 2, 2), {"pads": [4, 5]}),
    ((2, 3, 6, 5), (4, 3, 3, 2), {"pads": [1, 0, 1, 1], "strides": [2, 1]}),
    ((2, 4, 7, 6), (8, 2, 3, 1), {"group": 2, "strides": [2, 4], "dilations": [2, 1]}),
    ((1, 2, 5, 4, 6), (2, 1, 2, 3, 2), {"group": 2, "strides": [2, 1, 3], "pads": [1] * 6}),
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_convolutions(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], symbolic: bool
) -> None:
    node = Node("Conv", [f(*x), f(*w), f(w[0])], attributes, symbolic=symbolic)
    c = check_products(node)
    if "group" in attributes:  # the reference's transposed convolution knows none
        return
    wide = Node("Conv", [o.astype(np.float64) for o in node.operands], attributes)
    exact = wide.gradients(c.astype(np.float64), 0, 1, 2, by="reference")
    for got, right in zip(node.gradients(c, 0, 1, 2), exact, strict=True):
        np.testing.assert_allclose(got, right, **NEAR)


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_convolutions_as_pytorch_has_them(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    functional, n = torch.nn.functional, len(x) - 2
    rest = {"pads": [0] * 2 * n, "strides": [1] * n, "dilations": [1] * n, "group": 1} | attributes
    node = Node("Conv", [f(*x), f(*w), f(w[0])], attributes, symbolic=True)
    image, filters, bias = xs = [torch.tensor(o, requires_grad=True) for o in node.operands]
    pads = [p for d in reversed(range(n)) for p in (rest["pads"][d], rest["pads"][n + d])]
    conv = (functional.conv1d, functional.conv2d, functional.conv3d)[n - 1]
    args = rest["strides"], 0, rest["dilations"], rest["group"]
    y = conv(functional.pad(image, pads), filters, bias, *args)
    c = f(*y.shape)
    (y * torch.tensor(c)).sum().backward()
    for got, right in zip(node.gradients(c, 0, 1, 2), xs, strict=True):
        np.testing.assert_allclose(got, right.grad.numpy(), **NEAR)


def check_products(node: Node) -> Any:
    """The gradients of all operands, against what the node makes of unit vectors; the factors."""
    parts = [*node.operands[:2], *(0 * o for o in node.operands[2:])]
    plain = Node(node.op, parts, node.attributes, symbolic=node.symbolic)
    c = like(plain.result())
    found = node.gradients(c, *range(len(parts)))
    for i, got in enumerate(found[:2]):
        np.testing.assert_allclose(got, plain.by_units(c, i), **NEAR)
    if found[2:]:
        axes = tuple(d for d in range(c.ndim) if d != 1)
        np.testing.assert_allclose(found[2], c.sum(axes), **NEAR)
    return c


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5), (3, 4, 3), {}),
    ((1, 1, 1), (1, 1, 1), {}),
    ((2, 4, 5), (4, 3, 3), {"group": 2, "dilations": [2], "pads": [1, 1]}),
    ((2, 3, 4), (3, 2, 2), {"strides": [3], "output_padding": [2]}),
    (
        (2, 3, 4),
        (3, 2, 4),
        {"strides": [3], "output_padding": [1], "dilations": [2], "pads": [2, 2]},
    ),
    ((2, 4, 4, 5), (4, 1, 2, 3), {"group": 4, "strides": [3, 2], "output_padding": [2, 1]}),
    ((1, 2, 3, 2, 4), (2, 3, 2, 1, 2), {"strides": [1, 2, 3]}),
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED)
def test_transposed_convolutions(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], symbolic: bool
) -> None:
    filters = w[1] * attributes.get("group", 1)
    node = Node("ConvTranspose", [f(*x), f(*w), f(filters)], attributes, symbolic=symbolic)
    check_products(node)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 1), (7, 4, 2), (6, 3, 3), (5, 2, 1)])
def test_padding_that_nodes_find_themselves(
    auto_pad: str, size: int, kernel: int, stride: int
) -> None:
    attributes = {"auto_pad": auto_pad, "strides": [stride]}
    for op, w in (("Conv", f(4, 2, kernel)), ("ConvTranspose", f(2, 3, kernel))):
        check_products(Node(op, [f(2, 2, size), w], attributes))


@pytest.mark.parametrize("attributes", [
    {"pads": [1, 0], "strides": [2]},
    {"output_shape": [8], "strides": [2]},
    {"output_shape": [7], "strides": [2], "auto_pad": "SAME_UPPER"},
    {"output_shape": [7], "strides": [2], "output_padding": [1]},
])  # fmt: skip
def test_transposed_convolutions_cut_to_a_size(attributes: dict[str, Any]) -> None:
    check_products(Node("ConvTranspose", [f(2, 4, 4), f(4, 3, 3)], {"group": 2, **attributes}))


def check_linear(node: Node) -> None:
    """The gradient of operand 0, against what the node makes of unit vectors."""
    c = like(node.result())
    np.testing.assert_allclose(node.gradients(c, 0)[0], node.by_units(c), **NEAR)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("group", [1, 2])
def test_no_images_have_no_part_in_filters(op: str, group: int) -> None:
    node = Node(op, [f(0, 4, 5, 5), f(4, 4 // group, 3, 3)], {"group": group}, symbolic=True)
    dx, dw = node.gradients(node.result(), 0, 1)
    assert dx.shape == (0, 4, 5, 5)
    assert dw.shape == (4, 4 // group, 3, 3)
    assert not dw.any()


def test_places_that_there_are_none_of() -> None:
    """ONNX Runtime runs a transposed convolution of none, and never ends one by none."""
    node = Node("ConvTranspose", [f(2, 3, 0), f(3, 4, 3)], symbolic=True)
    dx, dw = node.gradients(like(node.result()), 0, 1)
    assert dx.shape == (2, 3, 0)
    assert dw.shape == (3, 4, 3)
    assert not dw.any()


def test_half_floats() -> None:
    x, w = f(2, 3, 7), f(4, 3, 3)
    small = Node("Conv", [x.astype(np.float16), w.astype(np.float16)], {"strides": [2]})
    c = like(small.result())
    wide = Node("Conv", [x, w], {"strides": [2]}).gradients(c.astype(np.float32), 0, 1)
    for got, right in zip(small.gradients(c, 0, 1), wide, strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, right, rtol=0.01, atol=0.02)


@pytest.mark.parametrize(("columns", "image", "block", "attributes"), [
    ((2, 12, 9), [4, 4], [2, 2], {}),
    ((1, 6, 4), [8], [3], {"strides": [2], "pads": [0, 1]}),
    ((1, 8, 4), [6, 5], [2, 2], {"dilations": [2, 1], "strides": [2, 3]}),
])  # fmt: skip
def test_columns(columns: tuple[int, ...], image: Any, block: Any, attributes: Any) -> None:
    sizes = [np.array(image), np.array(block)]
    for symbolic in (False, True):
        check_linear(Node("Col2Im", [f(*columns), *sizes], attributes, (1, 2), symbolic))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_norms_of_channels_around(size: int) -> None:
    numbers = {"alpha": 0.7, "beta": 0.6, "bias": 0.8}

    def norm(x: Any) -> Any:
        half = size // 2
        squares = np.pad(x * x, [(0, 0), (half, half), (0, 0), (0, 0)])
        around = sum(squares[:, k : k + x.shape[1]] for k in range(size))
        return x / (0.8 + 0.7 / size * around) ** 0.6

    for shape in ((2, 5, 3, 2), (1, 1, 2, 2), (3, 2, 1, 4)):
        x, c = 2 * f(*shape), f(*shape)
        want = by_differences(norm, x.astype(np.float64), c)
        for symbolic in (False, True):
            node = Node("LRN", [x], {"size": size, **numbers}, symbolic=symbolic)
            np.testing.assert_allclose(node.result(), norm(x), rtol=1e-5)
            np.testing.assert_allclose(node.gradients(c, 0)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("node", "text"), [
    (Node("Conv", [f(1, 1, 6), f(1, 1, 2)], {"pads": [-1, 0]}), "padding below 0"),
    (Node("ConvTranspose", [f(1, 1, 6), f(1, 1, 2)], {"pads": [-1, 0]}), "padding below 0"),
    (Node("ConvTranspose", [f(1, 1, 4), f(1, 1, 2)], {"output_shape": [9]}), "by auto_pad or"),
    (Node("ConvTranspose", [f(1, 1, 4), f(1, 1, 2)], {"output_shape": [4]}, symbolic=True),
     "by auto_pad or"),
    (Node("ConvTranspose", [f(1, 1, 4), f(1, 1, 2)],
          {"output_padding": [1], "dilations": [2]}), "an output_padding of a stride or more"),
    (Node("Conv", [f(1, 1, 4), f(1, 1, 2)], {"auto_pad": "SAME_UPPER"}, symbolic=True), "auto_pad"),
    (Node("LRN", [f(1, 2, 3, 4)], {"size": 2}), "windows of 2 channels"),
])  # fmt: skip
def test_what_is_refused(node: Node, text: str) -> None:
    assert text in node.refusal()


def test_a_fused_activation_is_refused() -> None:
    operands = [f(1, 1, 6), f(1, 1, 2)]
    node = Node("FusedConv", operands, {"activation": "Relu"}, domain="com.microsoft")
    assert "no gradient of FusedConv: it has no derivative here" in node.refusal()
