"""ONNX Runtime's layer of experts in parts: as its kernel computes it, also at odd numbers."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.experts import ExpertsConfig, experts
from models.half import half
from models.mixtral import MixtralConfig, mixtral
from pitc.ir.nodes import WHOLE
from pitc.ir.target import CPU, CUDA
from pitc.ir.unused import remove_unused
from pitc.passes.expand.expansion import restore_fused
from pitc.passes.lower.share import share_panels
from pitc.passes.normalise import normalise
from tests.lower_support import lower, lower_and_compare, plans

Array = Any
E, D, F = 6, 96, 192


def layer(rank: int = 2, *, bias: bool = True, **attributes: Any) -> onnx.ModelProto:
    """The operator alone: tokens and what the router says are inputs."""
    rng, attributes = np.random.default_rng(0), {"k": 2, "activation_type": "relu"} | attributes
    wide = 2 * F if attributes["activation_type"] == "swiglu" else F
    shapes = {"up": (E, wide, D), "up.bias": (E, wide), "down": (E, D, F), "down.bias": (E, D)}
    weights = {n: rng.normal(0, 0.2, s).astype(np.float32) for n, s in shapes.items()}
    biases = ("up.bias", "down.bias") if bias else ("", "")
    names = ["x", "router", "up", biases[0], "down", biases[1]]
    rows = ["b", "s"][2 - rank + 1 :]
    nodes = [helper.make_node("MoE", names, ["y"], "moe", domain="com.microsoft", **attributes)]
    if rank > 2:
        nodes.insert(0, helper.make_node("Reshape", ["logits", "shape"], ["router"]))
        weights["shape"] = np.array([-1, E])
    graph = helper.make_graph(
        nodes,
        "layer",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [*rows, D]),
            helper.make_tensor_value_info(nodes[0].input[rank < 3], TensorProto.FLOAT, [*rows, E]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*rows, D])],
        [numpy_helper.from_array(w, n) for n, w in weights.items() if n in (*names, "shape")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def feeds(*shape: int) -> dict[str, Array]:
    rng = np.random.default_rng(sum(shape))
    says = "router" if len(shape) == 1 else "logits"
    return {n: rng.normal(size=(*shape, m)).astype(np.float32) for n, m in (("x", D), (says, E))}


def are_grouped(made: Any) -> bool:
    found = [p["op"] for p in plans(made)]
    return found.count("grouped") == 2 and not any(n.op_type == "MoE" for n in made.model.graph)


GELU: dict[str, Any] = {"activation_type": "gelu"}
SWIGLU: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1}
NUMBERS: dict[str, Any] = {"activation_alpha": 1.7, "activation_beta": 0.5}


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"bias": False, "normalize_routing_weights": 1},
        {"k": 1},
        {"k": E, **GELU},
        {"activation_type": "silu", "k": 3},
        {"activation_type": "identity"},
        SWIGLU,
        {**SWIGLU, **NUMBERS, "swiglu_limit": 0.4, "normalize_routing_weights": 1},
    ],
    ids=str,
)
def test_every_activation(attributes: dict[str, Any]) -> None:
    for rank, shapes in ((2, [(0,), (1,), (17,)]), (3, [(1, 1), (0, 2), (3, 5)])):
        made = lower_and_compare(layer(rank, **attributes), [feeds(*s) for s in shapes])
        assert are_grouped(made)


def test_gates_are_read_where_they_lie() -> None:
    """Matrices have their rows in order; so have biases, given when the model runs or not."""
    made = lower_and_compare(layer(bias=False, **SWIGLU), [feeds(9)])
    names = [n.name or "" for n in made.model.graph]
    assert sum(name.endswith("[elementwise]") for name in names) == 1
    assert not any("moe.gather" in name for name in names)
    proto, given = layer(**SWIGLU), feeds(9)
    (bias,) = [w for w in proto.graph.initializer if w.name == "up.bias"]
    given["up.bias"] = numpy_helper.to_array(bias).copy()
    proto.graph.initializer.remove(bias)
    shape = given["up.bias"].shape
    proto.graph.input.append(helper.make_tensor_value_info("up.bias", TensorProto.FLOAT, shape))
    assert are_grouped(lower_and_compare(proto, [given]))


@pytest.mark.parametrize("of", [lambda model: model, half], ids=["float32", "float16"])
def test_ordered_matrices_are_in_an_artifact_once(of: Any) -> None:
    """The source graph puts their rows back, in the type that it has."""
    config = ExpertsConfig("operator", experts=4, hidden=96, ffn=192, gated=True)
    proto = of(experts(config, np.random.default_rng(0)))
    made, shared = lower(proto), ir.serde.deserialize_model(proto)
    assert are_grouped(made)
    share_panels(shared, made.model, made.panels)
    source = ir.serde.serialize_model(shared)
    assert not {"up in turn", "down in turn"} & {w.name for w in source.graph.initializer}
    sessions = [ort.InferenceSession(m.SerializeToString()) for m in (proto, source)]
    x = np.random.default_rng(9).normal(size=(9, 96))
    x = x.astype(np.float16 if of is half else np.float32)
    want, got = (s.run(None, {"x": x})[0] for s in sessions)
    np.testing.assert_array_equal(got, want)


def test_the_last_of_equal_experts_is_taken() -> None:
    given = feeds(7)
    given["router"][:] = np.array([0, 1, 1, 1, -1, 0])
    given["router"][3:] = 0
    assert are_grouped(lower_and_compare(layer(), [given]))


def test_experts_without_a_share_are_left_out() -> None:
    """Shares of 0, next to nothing, and NaN; the row of such an expert may be infinite."""
    given = feeds(6)
    given["router"][0, :] = np.nan
    given["router"][1, 2] = np.nan
    given["router"][2] = [0, -200, -200, -200, -200, -200]
    given["router"][3] = [0, -100, -200, -200, -200, -200]  # a denormal number
    given["x"][2, 0] = 1e30
    proto = layer()
    for name in ("up", "down"):
        (weight,) = [w for w in proto.graph.initializer if w.name == name]
        numbers = numpy_helper.to_array(weight).copy()
        numbers[5] = 1e30
        weight.CopyFrom(numpy_helper.from_array(numbers, name))
    with np.errstate(invalid="ignore", over="ignore"):
        assert are_grouped(lower_and_compare(proto, [given]))


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity"])
def test_numbers_that_are_none_stay_in_their_rows(kind: str) -> None:
    """A ReLU makes 0 of NaN, as the kernel does."""
    given = feeds(5)
    given["x"][1, 3], given["x"][3, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        assert are_grouped(lower_and_compare(layer(activation_type=kind), [given]))


def test_padding_reaches_the_experts() -> None:
    config = ExpertsConfig("operator", experts=4, hidden=96, ffn=192, gated=True, bias=True)
    proto = mixtral(MixtralConfig(config, layers=2, vocab=50), np.random.default_rng(0))
    made = lower(proto, padding="attention_mask")
    found = [r for r in made.report.nodes if r.op_type in ("MatMul", "Gemm")]
    assert {r.lowering for r in found} == {"packed", "grouped", "attention", "folded"}
    assert [r.lowering for r in found].count("grouped") == 4


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "sparse mixer": ({"use_sparse_mixer": 1}, "use_sparse_mixer is set"),
    "halves": ({**SWIGLU, "swiglu_fusion": 2}, "the activation 'swiglu'"),
    "more than there are": ({"k": E + 1}, f"{E + 1} of {E} experts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_well_stays(name: str) -> None:
    attributes, text = REFUSED[name]
    model = ir.from_proto(layer(**attributes))
    normalise(model)
    (node,) = model.graph
    assert node.op_type == "MoE" and text in node.meta[WHOLE]


def test_matrices_that_are_computed_stay() -> None:
    proto = layer()
    (up,) = [w for w in proto.graph.initializer if w.name == "up"]
    proto.graph.initializer.remove(up)
    proto.graph.input.append(helper.make_tensor_value_info("up", TensorProto.FLOAT, [E, F, D]))
    assert "grouped" not in [p["op"] for p in plans(lower(proto))]


def test_a_gpu_runs_the_operator() -> None:
    for target, left in ((CPU, 0), (CUDA, 1)):
        model = ir.from_proto(layer())
        normalise(model, target)
        assert [n.op_type for n in model.graph].count("MoE") == left


def test_ordered_matrices_come_back_with_their_node() -> None:
    proto = layer(**SWIGLU)
    model = ir.from_proto(proto)
    normalise(model)
    remove_unused(model)
    assert "up" not in model.graph.initializers
    assert restore_fused(model, []) == 1
    sessions = [ort.InferenceSession(m.SerializeToString()) for m in (proto, ir.to_proto(model))]
    want, got = (s.run(None, feeds(9))[0] for s in sessions)
    np.testing.assert_array_equal(got, want)


def test_parts_that_are_not_lowered_are_put_together() -> None:
    """Widths that are no numbers: no product runs grouped."""
    proto = experts(
        ExpertsConfig("operator", experts=4, hidden=12, ffn=40), np.random.default_rng(0)
    )
    assert [n.op_type for n in lower(proto).model.graph].count("MoE") == 1
