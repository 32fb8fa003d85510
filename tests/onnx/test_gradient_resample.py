"""Gradients of Resize: all modes and coordinates, along any dimensions, and what is refused."""

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.gradient_check import gradient_model
from tests.window_gradients import Node, run

RNG = np.random.default_rng(8)
NEAR: dict[str, Any] = {"rtol": 2e-5, "atol": 2e-5}


def f(*shape: int) -> Any:
    """Normal float32."""
    return RNG.normal(size=shape).astype(np.float32)


def like(y: Any) -> Any:
    """Factors of the elements of a result."""
    return f(*y.shape).astype(y.dtype)


def check_linear(node: Node) -> None:
    """The gradient of operand 0, against what the node makes of unit vectors."""
    c = like(node.result())
    np.testing.assert_allclose(node.gradients(c, 0)[0], node.by_units(c), **NEAR)


IMAGE = (2, 2, 3, 4)
SCALES = [1, 1, 1.7, 0.6], [1, 1, 2, 3], [1, 1, 0.5, 1.5]
COORDINATES = "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("coordinates", [*COORDINATES, "half_pixel_symmetric"])
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_images_in_other_sizes(mode: str, coordinates: str, symbolic: bool) -> None:
    more: list[dict[str, Any]] = [{"antialias": 1}] if mode != "nearest" else []
    more += [{"exclude_outside": 1, "cubic_coeff_a": -0.5}] if mode == "cubic" else []
    more += [
        {"nearest_mode": m} for m in ("floor", "ceil", "round_prefer_ceil") if mode == "nearest"
    ]
    for extra in ({}, *more):
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, **extra}
        for image in (IMAGE, (1, 1, 1, 1), (1, 2, 5, 1)):
            for scales in SCALES:
                if min(n * s for n, s in zip(image, scales, strict=True)) < 1:
                    continue
                operands = [f(*image), None, np.array(scales, np.float32)]
                check_linear(Node("Resize", operands, attributes, (2,), symbolic))
        wanted = np.array([5, 3], np.int64)
        named = {**attributes, "axes": [2, 3]}
        check_linear(Node("Resize", [f(*IMAGE), None, None, wanted], named, (3,), symbolic))


def test_images_in_other_sizes_of_other_ranks() -> None:
    scales = np.array([1, 1, 2, 0.7, 1.5], np.float32)
    check_linear(Node("Resize", [f(1, 2, 2, 3, 2), None, scales], {"mode": "linear"}, (2,)))
    scales = np.array([1, 1.5, 2, 1], np.float32)
    check_linear(Node("Resize", [f(2, 3, 2, 3), None, scales], {"mode": "linear"}, (2,)))
    check_linear(Node("Resize", [f(3, 4), None, scales[1:3]], {"mode": "cubic"}, (2,)))


def test_half_floats_in_other_sizes() -> None:
    scales = np.array([1, 1, 1.6, 0.7], np.float32)
    for mode in ("linear", "nearest"):
        half = Node("Resize", [f(*IMAGE).astype(np.float16), None, scales], {"mode": mode}, (2,))
        c = like(half.result())
        got, want = half.gradients(c, 0)[0], half.by_units(c)
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, want, rtol=0.01, atol=0.01)


def test_no_images_in_other_sizes() -> None:
    for mode in ("linear", "cubic", "nearest"):
        scales = np.array([1, 1, 2, 1.5], np.float32)
        node = Node("Resize", [f(0, 2, 3, 4), None, scales], {"mode": mode}, (2,), symbolic=True)
        assert node.gradients(node.result(), 0)[0].shape == (0, 2, 3, 4)


def test_half_floats_keep_the_weights_of_single_ones() -> None:
    scales = np.array([1, 1, 1, 1.3], np.float32)
    x = f(1, 1, 1, 300)
    c = like(Node("Resize", [x, None, scales], {"mode": "linear"}, (2,)).result())
    c = c.astype(np.float16)
    half = Node("Resize", [x.astype(np.float16), None, scales], {"mode": "linear"}, (2,))
    want = Node("Resize", [x, None, scales], {"mode": "linear"}, (2,)).by_units(c)
    np.testing.assert_allclose(half.gradients(c, 0)[0], want, rtol=6e-4, atol=1e-6)


ROI = np.array([0, 0, -0.3, 0.1, 1, 1, 1.4, 0.8], np.float32)
CROP = {"coordinate_transformation_mode": "tf_crop_and_resize"}


def test_parts_of_images() -> None:
    operands = [f(1, 2, 4, 5), ROI, np.array([1, 1, 1.6, 2.2], np.float32)]
    plain, other = (
        Node("Resize", operands, {**CROP, "extrapolation_value": n}, (1, 2)) for n in (0.0, 7.0)
    )
    c = like(plain.result())
    want = plain.by_units(c)
    for node in (plain, other):
        np.testing.assert_allclose(node.gradients(c, 0)[0], want, **NEAR)


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_sizes_that_depend_on_those_of_the_image(mode: str) -> None:
    """Batch and channels are kept, and the images get a size: what exporters write."""
    attributes = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    nodes = [
        helper.make_node("Shape", ["x0"], ["planes"], end=2),
        helper.make_node("Concat", ["planes", "size"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x0", "", "", "sizes"], ["y"], **attributes),
        helper.make_node("Mul", ["y", "c"], ["t"]),
        helper.make_node("ReduceSum", ["t"], ["loss"], keepdims=0),
    ]
    kind, size = helper.np_dtype_to_tensor_dtype(np.dtype(np.float32)), np.array([5, 4])
    shapes = {"x0": ["n", 2, "h", "w"], "c": ["n", 2, 5, 4]}
    inputs = [helper.make_tensor_value_info(k, kind, s) for k, s in shapes.items()]
    outputs = [helper.make_tensor_value_info("loss", kind, [])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(size, "size")])
    opsets = [helper.make_opsetid("", 21)]
    model, found = gradient_model(
        helper.make_model(graph, opset_imports=opsets, ir_version=10), "loss", ["x0"]
    )
    products = [n for n in model.graph.node if n.op_type == "MatMul"]
    assert len(products) == (0 if mode == "nearest" else 2)
    for shape in ((2, 2, 3, 6), (0, 2, 3, 3), (1, 2, 5, 4)):
        x, c = f(*shape), f(shape[0], 2, 5, 4)
        wanted = np.array([*shape[:2], 5, 4])
        if shape[0]:
            want = Node("Resize", [x, None, None, wanted], attributes, (3,)).by_units(c)
        else:
            want = np.zeros(shape)
        got = run(model, {"x0": x, "c": c})[found.of["x0"]]
        np.testing.assert_allclose(got, want, **NEAR)


TWICE = np.array([1, 1, 2, 2], np.float32)
LARGER = np.array([1, 1, 9, 9])
KEPT = {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"}


@pytest.mark.parametrize(("node", "text"), [
    (Node("Resize", [f(*IMAGE), None, TWICE], {"mode": "linear"}), "not constant"),
    (Node("Resize", [f(*IMAGE), ROI, TWICE], {"mode": "linear", **CROP}, (1, 2)), "crop_and"),
    (Node("Resize", [f(*IMAGE), None, None, LARGER], KEPT, (3,)), "keep the aspect ratio"),
    (Node("Resize", [f(*IMAGE), None, TWICE], {"nearest_mode": "ceil"}, (2,), opset=13),
     "no scatter of operator set 13 adds; 16 has one"),
])  # fmt: skip
def test_what_is_refused(node: Node, text: str) -> None:
    assert text in node.refusal()
