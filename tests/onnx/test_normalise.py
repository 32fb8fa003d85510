"""Normalise: every rewrite is exact, and keeps the graph's own names."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx import helper as h

from pitc.errors import ModelError
from pitc.ir.target import CUDA
from pitc.passes import normalise as rewrites
from pitc.passes.control.branches import close_branches
from pitc.passes.normalise import normalise

FLOAT = TensorProto.FLOAT


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    weights: dict[str, np.ndarray] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
    opset: int = 23,
) -> onnx.ModelProto:
    opsets = [h.make_opsetid("", opset), h.make_opsetid("local", 1)]
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info(k, FLOAT, v) for k, v in inputs.items()],
        [h.make_tensor_value_info(k, FLOAT, v) for k, v in outputs.items()],
        [onnx.numpy_helper.from_array(v, k) for k, v in (weights or {}).items()],
    )
    return h.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=11)


def _run(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(None, feed)]


def _traced_squeeze() -> onnx.ModelProto:
    """squeeze() as traced: If(size == 1, Squeeze, Identity), twice, with equal inner names."""
    nodes = []
    for k, (x, axis) in enumerate((("x", 1), ("y0", 0))):
        then = h.make_graph(
            [h.make_node("Squeeze", [x, f"axis{k}"], ["inner"])],
            "then",
            [],
            [h.make_tensor_value_info("inner", FLOAT, None)],
        )
        other = h.make_graph(
            [h.make_node("Identity", [x], ["inner"])],
            "else",
            [],
            [h.make_tensor_value_info("inner", FLOAT, None)],
        )
        nodes += [
            h.make_node("Shape", [x], [f"shape{k}"]),
            h.make_node("Gather", [f"shape{k}", f"at{k}"], [f"size{k}"]),
            h.make_node("Equal", [f"size{k}", "one"], [f"is_one{k}"]),
            h.make_node("If", [f"is_one{k}"], [f"y{k}"], then_branch=then, else_branch=other),
        ]
        nodes[-4].name = f"shape_{k}"
        del axis
    weights = {
        "axis0": np.array([1]),
        "axis1": np.array([0]),
        "at0": np.array(1),
        "at1": np.array(1),
        "one": np.array(1),
    }
    return _model(nodes, {"x": ["b", 1, 4]}, {"y0": ["b", 4], "y1": ["p", "q"]}, weights)


def _local_function(opset: int = 23) -> onnx.ModelProto:
    body = [h.make_node("Mul", ["a", "a"], ["s"]), h.make_node("Add", ["s", "a"], ["r"])]
    function = h.make_function("local", "Poly", ["a"], ["r"], body, [h.make_opsetid("", opset)])
    nodes = [
        h.make_node("Poly", ["x"], ["m"], domain="local"),
        h.make_node("Poly", ["m"], ["y"], domain="local"),
    ]
    return _model(nodes, {"x": ["b", 3]}, {"y": ["b", 3]}, functions=[function])


def _identities() -> onnx.ModelProto:
    nodes = [
        h.make_node("Identity", ["x"], ["out_of_input"]),
        h.make_node("Identity", ["x"], ["x1"]),
        h.make_node("Relu", ["x1"], ["r"]),
        h.make_node("Identity", ["r"], ["out_of_relu"]),
        h.make_node("Identity", ["r"], ["out_again"]),
        h.make_node("Constant", [], ["c"], value_float=2.0),
        h.make_node("Mul", ["r", "c"], ["y"]),
    ]
    names = ("out_of_input", "out_of_relu", "out_again", "y")
    return _model(nodes, {"x": ["b", 3]}, {name: ["b", 3] for name in names})


def _attention(mask: bool = False, causal: int = 0) -> onnx.ModelProto:
    inputs: dict[str, list[int | str]] = {k: ["b", 2, "s", 4] for k in "qkv"}
    if mask:
        inputs["m"] = ["b", 1, "s", "s"]
    node = h.make_node("Attention", list(inputs), ["y"], is_causal=causal)
    return _model([node], inputs, {"y": ["b", 2, "s", 4]})


def _attention_with_scores() -> onnx.ModelProto:
    """Outputs 1 and 2 are not asked for, output 3 is."""
    inputs: dict[str, list[int | str]] = {k: ["b", 2, "s", 4] for k in "qkv"}
    node = h.make_node("Attention", list(inputs), ["y", "", "", "scores"])
    return _model([node], inputs, {"y": ["b", 2, "s", 4], "scores": ["b", 2, "s", "s"]})


def _range_behind_if() -> onnx.ModelProto:
    """Range reads a size of shape [1] out of an If, which hides that shape from checks."""
    branch = {}
    for name, op in (("then_branch", "Identity"), ("else_branch", "Neg")):
        out = h.make_tensor_value_info("inner", TensorProto.INT64, None)
        branch[name] = h.make_graph([h.make_node(op, ["size"], ["inner"])], name, [], [out])
    nodes = [
        h.make_node("Shape", ["x"], ["size"], start=0, end=1),
        h.make_node("If", ["always"], ["limit"], **branch),
        h.make_node("Range", ["zero", "limit", "one"], ["r"]),
        h.make_node("Cast", ["r"], ["f"], to=FLOAT),
        h.make_node("Add", ["x", "f"], ["y"]),
    ]
    weights = {"always": np.array(True), "zero": np.array(0), "one": np.array(1)}
    return _model(nodes, {"x": ["s"]}, {"y": ["s"]}, weights)


def _feed(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {"b": 2, "s": 5}
    return {
        i.name: rng.normal(
            size=[d.dim_value or sizes[d.dim_param] for d in i.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for i in proto.graph.input
    }


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], str, set[str]]] = {
    "traced squeeze": (_traced_squeeze, "fold_known_if", {"If"}),
    "local function": (_local_function, "inline_functions", {"Poly"}),
    "older function": (lambda: _local_function(14), "inline_functions", {"Poly"}),
    "identities": (_identities, "remove_identities", set()),
    "constants": (_identities, "lift_constants", {"Constant"}),
    "attention": (_attention, "expand_fused", {"Attention"}),
    "masked attention": (lambda: _attention(mask=True), "expand_fused", {"Attention"}),
    "attention with scores": (_attention_with_scores, "expand_fused", {"Attention"}),
    "range behind if": (_range_behind_if, "fold_known_if", {"If"}),
    "causal attention": (lambda: _attention(causal=1), "expand_fused", {"Attention"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rewrite_is_exact_and_removes_what_it_is_for(case: str) -> None:
    build, rule, gone = CASES[case]
    proto = build()
    onnx.checker.check_model(proto)
    model = ir.from_proto(proto)
    counts = normalise(model)
    assert counts[rule] > 0
    assert not gone & {n.op_type for n in model.graph}
    after = ir.to_proto(model)
    onnx.checker.check_model(after)
    assert [o.name for o in after.graph.output] == [o.name for o in proto.graph.output]
    feed = _feed(proto)
    for a, b in zip(_run(proto, feed), _run(after, feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("past", [False, True])
def test_attention_whose_body_is_not_exact_stays(past: bool) -> None:
    """In 16 bits, which GPUs compute in, the body rounds more often."""
    dtype = TensorProto.FLOAT16
    inputs: dict[str, list[int | str]] = {k: ["b", 2, "s", 4] for k in "qkv"}
    names = list(inputs)
    if past:
        inputs |= {"pk": ["b", 2, "p", 4], "pv": ["b", 2, "p", 4]}
        names += ["", "pk", "pv"]
    outputs = ["y", "nk", "nv"] if past else ["y"]
    proto = _model(
        [h.make_node("Attention", names, outputs)],
        inputs,
        {name: ["b", 2, "t", 4] for name in outputs},
    )
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = dtype
    onnx.checker.check_model(proto)
    model = ir.from_proto(proto)
    assert not normalise(model, CUDA)
    assert [n.op_type for n in model.graph] == ["Attention"]


def test_a_function_of_other_operators_is_refused() -> None:
    """Softmax of operator set 12 has lines of several dimensions."""
    body = [h.make_node("Softmax", ["a"], ["r"], axis=1)]
    function = h.make_function("local", "Old", ["a"], ["r"], body, [h.make_opsetid("", 12)])
    nodes = [h.make_node("Old", ["x"], ["y"], domain="local")]
    proto = _model(nodes, {"x": ["b", 3, 2]}, {"y": ["b", 3, 2]}, functions=[function])
    with pytest.raises(ModelError, match="means Softmax of operator set 12"):
        normalise(ir.from_proto(proto))


def test_an_if_that_depends_on_data_stays() -> None:
    branch = {}
    for name, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
        out = h.make_tensor_value_info("inner", FLOAT, None)
        branch[name] = h.make_graph([h.make_node(op, ["x"], ["inner"])], name, [], [out])
    nodes = [
        h.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        h.make_node("Greater", ["s", "zero"], ["positive"]),
        h.make_node("If", ["positive"], ["y"], **branch),
    ]
    proto = _model(nodes, {"x": ["b"]}, {"y": ["b"]}, {"zero": np.zeros((), np.float32)})
    model = ir.from_proto(proto)
    assert normalise(model) == {"open_branches": 1}
    assert [n.op_type for n in model.graph] == ["ReduceSum", "Greater", "Relu", "Neg", "Choose"]
    close_branches(model)
    assert [n.op_type for n in model.graph] == ["ReduceSum", "Greater", "If"]


def test_rewrites_are_independent_rules() -> None:
    """Without one rule the others still give an exact graph."""
    for left_out in rewrites.REWRITES:
        for build, _, _ in CASES.values():
            proto = build()
            model = ir.from_proto(proto)
            for rewrite in rewrites.REWRITES:
                if rewrite is not left_out:
                    rewrite(model)
            close_branches(model)
            feed = _feed(proto)
            for a, b in zip(_run(proto, feed), _run(ir.to_proto(model), feed), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_identity_keeps_graph_inputs_and_outputs_apart() -> None:
    model = ir.from_proto(_identities())
    normalise(model)
    kept = [n for n in model.graph if n.op_type == "Identity"]
    assert {n.outputs[0].name for n in kept} == {"out_of_input", "out_again"}
