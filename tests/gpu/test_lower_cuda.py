"""Lowering for GPUs: element types, kernels, biases, providers."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from models.bert import BertConfig, bert
from models.graph import GraphBuilder
from models.half import half
from pitc.ir.nodes import is_pit_node
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CPU, CUDA, Target
from pitc.passes.lower.activation import ROUNDED
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.attention_masks import MODELS
from tests.branch_models import model as model_with
from tests.onnx.test_control_loops import refined
from tests.plan_reference import parse

CONFIG = BertConfig(layers=2, hidden=128, heads=2, ffn=512, vocab=50)


GLOBALS = "p0p1ok0aq0an"
"""A window; tokens that see all, and that all see."""


def lowered(model: onnx.ModelProto, target: Target, padding: str = "attention_mask") -> Lowered:
    options = LowerOptions(padding or None, target=target, check=True)
    return run_passes(ir.from_proto(model), options)


def test_half_changes_types_only() -> None:
    """`saturate` of a Cast is 1, as the type float32 is. With 10 ONNX Runtime's kernel writes
    nothing, and a mask is what its memory held before.
    """
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT, saturate=1)
    body = helper.make_graph([cast], "b", [], [helper.make_tensor_value_info("y", 1, None)])
    branch = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    model = helper.make_model(helper.make_graph([cast, branch], "g", [], []))
    made, chosen = half(model).graph.node
    for graph in [a.g for a in chosen.attribute]:
        assert graph.node[0] == made
        assert graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    given = {a.name: a.i for a in made.attribute}
    assert given == {"to": TensorProto.FLOAT16, "saturate": 1}


def in_branches(make: Callable[[GraphBuilder], None], target: Target) -> Lowered:
    """The model of `branch_models`, lowered whether it pays or not."""
    options = LowerOptions(target=replace(target, flops_per_byte=0), check=True)
    return run_passes(ir.from_proto(model_with(make)), options)


def plans(model: ir.Model) -> list[dict[str, str]]:
    found = []
    for node in model.graph:
        if is_pit_node(node):
            fields = parse(node.attributes["ep_cache_context"].as_string())
            found.append(fields | {"source": node.attributes["source"].as_string()})
    return found


@pytest.fixture(name="model", scope="module")
def _model() -> onnx.ModelProto:
    return bert(CONFIG, np.random.default_rng(0))


@pytest.mark.parametrize("is_half", [False, True], ids=["float32", "float16"])
def test_the_same_nodes_run_packed(model: onnx.ModelProto, is_half: bool) -> None:
    on_cpu = Counter(f["kind"] for f in plans(lowered(model, CPU).model))
    source = half(model) if is_half else model
    on_gpu = Counter(f["kind"] for f in plans(lowered(source, CUDA).model))
    assert on_gpu == on_cpu
    assert on_gpu["dense"] == 12 and on_gpu["attention"] == 2


def test_cpus_have_kernels_of_float32_alone(model: onnx.ModelProto) -> None:
    found = lowered(half(model), CPU)
    ops = {f["kind"] for f in plans(found.model)}
    assert ops == {"attention", "detect", "dense", "elementwise", "pack", "unpack"}
    dtypes = {k.dtype for k in found.kernels if k.family in ("attention", "gather_gemm")}
    assert dtypes == {"float32"}


def test_masks_are_looked_at_on_the_host(model: onnx.ModelProto) -> None:
    sources = {f["kind"]: f["source"] for f in plans(lowered(half(model), CUDA).model)}
    assert sources.pop("detect") == "PitExecutionProvider"
    assert set(sources.values()) == {"PitCudaExecutionProvider"}


def test_kernels_are_asked_for_without_sizes(model: onnx.ModelProto) -> None:
    symbols = {k.symbol for k in lowered(half(model), CUDA).kernels}
    assert {s for s in symbols if "pack" not in s} == {
        *("attention_d64_v64_f16", "gather_gemm_none_f16"),
        *("gather_gemm_none_res_f16", "gather_gemm_gelu_f16"),
    }


@pytest.mark.parametrize("is_half", [False, True], ids=["float32", "float16"])
def test_elementwise_nodes_are_computed_in_one_pass_in_float32(is_half: bool) -> None:
    model = bert(replace(CONFIG, layers=1, hidden=256), np.random.default_rng(0))
    (output,) = model.graph.output
    model.graph.node.append(helper.make_node("Exp", [output.name], ["grown"]))
    model.graph.node.append(helper.make_node("Mul", ["grown", output.name], ["product"]))
    output.name = "product"
    found = lowered(half(model) if is_half else model, CUDA)
    fused = [f for f in plans(found.model) if f["op"] == "elementwise"]
    if is_half:
        assert not fused and {n.op_type for n in found.model.graph} >= {"Exp", "Mul"}
        return
    (plan,) = fused
    assert plan["source"] == "PitCudaExecutionProvider" and plan["kinds"] == "whole"
    (request,) = [k for k in found.kernels if k.family == "elementwise"]
    assert request.kind == "cuda" and plan["kernels"] == f"elementwise:{request.symbol}"
    (record,) = [r for r in found.report.nodes if r.kernel and r.kernel.operation == "elementwise"]
    assert record.engine == "simt"


@pytest.mark.parametrize("linear", ["matmul", "gemm"])
def test_every_bias_is_as_long_as_all_panels(linear: str) -> None:
    model = bert(replace(CONFIG, linear=linear), np.random.default_rng(0))
    graph = lowered(half(model), CUDA).model.graph
    seen = 0
    for node in graph:
        if not is_pit_node(node) or "op=contract" not in _plan(node):
            continue
        fields = dict(line.split("=", 1) for line in _plan(node).splitlines()[1:])
        bias = node.inputs[2]
        assert fields["bias"] == "1" and bias is not None and bias.const_value is not None
        assert bias.dtype == ir.DataType.FLOAT
        values = bias.const_value.numpy()
        n = int(fields["n"])
        assert values.shape == (panel_count(n) * PANEL_WIDTH,) and not values[n:].any()
        seen += bool(values.any())
    assert seen == 12


def _plan(node: ir.Node) -> str:
    return node.attributes["ep_cache_context"].as_string()


def test_prices_of_tiles_are_in_plans(model: onnx.ModelProto) -> None:
    (f, *_) = [f for f in plans(lowered(half(model), CUDA).model) if f["kind"] == "dense"]
    assert f["dtype"] == "float16" and f["clocks_sm_80"] == "512,347,578,520"
    (f, *_) = [f for f in plans(lowered(model, CUDA).model) if f["kind"] == "dense"]
    assert len(f["clocks_sm_90"].split(",")) == 6


def test_constants_of_activations_are_rounded_to_their_type() -> None:
    """The formula of GELU is that of its constants in float16, and no other."""
    for dtype, tolerance in ROUNDED.items():
        info = ir.DataType(dtype).numpy()
        off = abs(float(np.sqrt(0.5).astype(info)) - np.sqrt(0.5)) / np.sqrt(0.5)
        assert off < tolerance < 0.02


def test_bodies_of_loops_are_for_the_same_machine() -> None:
    made = in_branches(refined(9), CUDA)
    assert {k.kind for k in made.kernels} == {"cuda"}
    (loop,) = [n for n in made.model.graph if n.op_type == "Loop"]
    inside = [n for n in loop.attributes["body"].as_graph() if is_pit_node(n)]
    sources = Counter(n.attributes["source"].as_string() for n in inside)
    assert sources == {"PitCudaExecutionProvider": 4, "PitExecutionProvider": 1}


@pytest.mark.parametrize(
    ("name", "program", "sees"),
    [
        ("layer, causal", "3,2", "p0n"),
        ("layer, documents", "4,3,0", "e0p0a"),
        ("layer, window and flags of global tokens", "3,4,1,5,0,6,0,2", GLOBALS),
        ("layer, pairs", "3,2", "f0n"),
    ],
)
def test_attention_evaluates_what_pairs_would_list(name: str, program: str, sees: str) -> None:
    """The same programs; kernels are named by them, and no node makes lists."""
    proto, _ = MODELS[name]()
    free = {"flops_per_byte": 0, "least_extent": 1}
    of = {t.kind: lowered(proto, replace(t, **free), "") for t in (CPU, CUDA)}
    (listed,) = [f for f in plans(of["cpu"].model) if f["kind"] == "pairs"]
    assert not [f for f in plans(of["cuda"].model) if f["kind"] == "pairs"]
    (attends,) = [f for f in plans(of["cuda"].model) if f["kind"] == "attention"]
    assert attends["program"] == listed["program"] == program and attends["pairs"] == "0"
    names = {"key_tests": "keys", "query_tests": "queries", "pair_tests": "pairs"}
    for field in ("positions", "tables", "orders", *names):
        assert attends[field] == listed[names.get(field, field)], field
    assert attends["kernels"] == f"attention:attention_d16_v16_sees_{sees}_f32"
