"""Lowering a model for tests, and comparing what it computes then."""

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from models.graph import GraphBuilder
from pitc.ir.nodes import is_pit_node
from pitc.ir.target import CPU, Target
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.plan_reference import parse, run_lowered
from tests.tile_prices import PRICES


def weight(g: GraphBuilder, name: str, *shape: int) -> str:
    rng = np.random.default_rng(len(name) + shape[0])
    return g.weight(name, rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32))


SMALL = replace(CPU, least_products=0)  # products whose sizes are all known are few in tests


def lower(
    proto: onnx.ModelProto,
    padding: str | None = None,
    *,
    sparse: bool = True,
    target: Target | None = None,
) -> Lowered:
    options = LowerOptions(padding=padding, prices=PRICES if sparse else None, target=target)
    return run_passes(ir.serde.deserialize_model(proto), options)


def plans(lowered: Lowered) -> list[dict[str, str]]:
    """The plans of the PIT nodes, in order, but those of elementwise nodes."""
    return [plan for plan in _all_plans(lowered) if plan["op"] != "elementwise"]


def _all_plans(lowered: Lowered) -> list[dict[str, str]]:
    nodes = (n.attributes.get("ep_cache_context") for n in lowered.model.graph)
    return [parse(text.as_string()) for text in nodes if text is not None]


def operators(lowered: Lowered) -> list[str]:
    """The operators of ordinary nodes and, behind them, of the steps of elementwise ones."""
    formulas = (unquote(p["formula"]) for p in _all_plans(lowered) if p["op"] == "elementwise")
    steps = [step.partition(":")[0] for text in formulas for step in text.split(",")]
    return [n.op_type for n in lowered.model.graph if not is_pit_node(n)] + steps


def lower_and_compare(proto: onnx.ModelProto, feeds: Iterable[dict[str, np.ndarray]]) -> Lowered:
    """Lower a model, and compare its answers with ONNX Runtime's, NaN included."""
    lowered = lower(proto, sparse=False)
    found = ir.serde.serialize_model(lowered.model)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds:
        for got, want in zip(run_lowered(found, feed), session.run(None, feed), strict=True):
            np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)
    return lowered


def check(proto: onnx.ModelProto, lowered: Lowered, feeds: dict[str, np.ndarray]) -> list[str]:
    """The kinds of the lowered model's PIT nodes, once its answer has been compared."""
    found = ir.serde.serialize_model(lowered.model)
    onnx.checker.check_model(found)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, feeds)
    for x, y in zip(run_lowered(found, feeds), want, strict=True):
        np.testing.assert_allclose(x, np.asarray(y), rtol=1e-4, atol=1e-5)
    return [p["kind"] for p in plans(lowered)]
