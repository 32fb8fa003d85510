"""Models with gates for channels, and what became of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.graph import GraphBuilder
from pitc.ir import target as targets
from pitc.ir.refusal import Code
from pitc.ir.report import NodeRecord
from pitc.passes.pipeline import Lowered
from pitc.runtime.library import make_session
from tests.runtime_support import Array, quiet_options

Feeds = dict[str, Array]
Make = Callable[[GraphBuilder, str], str]
C, F, SIZE = 8, 6, 7
BATCH = ("batch", C, SIZE, SIZE)
RTOL = 1e-5  # of the largest element, float32
DENSITIES = (0.0, 0.2, 0.6, 1.0)


def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small convolutions count as large."""
    free = replace(targets.CPU.channels, look=0, look_up=0, link=0, start=0, hold=0, turn=0)
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, channels=free, flops_per_byte=0))


def array(*shape: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(sum(shape) + seed)
    return rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)


def conv(g: GraphBuilder, x: str, filters: int, channels: int, bias: bool = True, **a: Any) -> str:
    name = f"w{len(g._nodes)}"
    operands = [g.weight(name, array(filters, channels, 3, 3))]
    operands += [g.weight(f"{name}.bias", array(filters, 1).reshape(-1))] * bias
    return g.op("Conv", x, *operands, **{"pads": [1] * 4, **a})


def norm(g: GraphBuilder, x: str, channels: int) -> str:
    parts = [array(channels, 1, seed=k).reshape(-1) ** 2 + 0.5 for k in range(4)]
    names = [g.weight(f"norm{len(g._nodes)}.{k}", part) for k, part in enumerate(parts)]
    return g.op("BatchNormalization", x, *names)


def built(build: Callable[[GraphBuilder], str], shape: tuple[int | str, ...]) -> onnx.ModelProto:
    g = GraphBuilder("channels")
    g.output(g.op("Identity", build(g)), "y", np.float32, shape)
    return g.model()


def gated(gate: Make, filters: int = F) -> onnx.ModelProto:
    """Conv(gate(x)), with x [batch, 8, 7, 7]."""

    def build(g: GraphBuilder) -> str:
        return conv(g, gate(g, g.input("x", np.float32, BATCH)), filters, C)

    return built(build, ("batch", filters, "height", "width"))


def selected(gate: Make) -> onnx.ModelProto:
    """gate(Conv(x)) with 8 filters, and a product that reads what is left."""

    def build(g: GraphBuilder) -> str:
        return gate(g, conv(g, g.input("x", np.float32, ("batch", 5, SIZE, SIZE)), C, 5))

    return built(build, BATCH)


def flag(g: GraphBuilder, dtype: type = np.float32, shape: tuple[int | str, ...] = ()) -> str:
    return g.input("gate", dtype, shape or ("batch", C, 1, 1))


def cast(g: GraphBuilder, x: str) -> str:
    return g.op("Cast", x, to=onnx.TensorProto.FLOAT)


def feeds_of(proto: onnx.ModelProto, density: float, batch: int = 2, **sizes: int) -> Feeds:
    """Random inputs; gates are 0 in the other channels."""
    rng, out = np.random.default_rng(7), {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = [
            sizes.get(d.dim_param, batch) if d.dim_param else d.dim_value for d in kind.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        x = rng.normal(1, 2, shape)
        if value.name.startswith("gate"):
            x = (np.abs(x) + 1) * (rng.random(shape) < density)
        out[value.name] = x.astype(dtype)
    return out


def records(lowered: Lowered) -> list[NodeRecord]:
    """Those of convolutions, without what computes gates."""
    return [r for r in lowered.report.nodes if r.op_type == "Conv" and r.node != "squeeze"]


def lowerings(lowered: Lowered) -> list[str]:
    return [r.lowering for r in records(lowered)]


def code_of(lowered: Lowered) -> Code | None:
    """Why the last convolution runs whole; None where it does not."""
    record = records(lowered)[-1]
    assert (record.refusal is None) == (record.lowering == "channels")
    return record.refusal and record.refusal.code


def ifs(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.op_type == "If"]


def session(proto: onnx.ModelProto, **options: str) -> Any:
    """With pitc's provider, and options for it."""
    with TemporaryDirectory() as folder:
        onnx.save(proto, path := Path(folder, "model.onnx"))
        return make_session(path, quiet_options(), options)


def plain(proto: onnx.ModelProto) -> Any:
    options = quiet_options()
    return ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])


def same(proto: onnx.ModelProto, lowered: Lowered, feeds: list[Feeds]) -> None:
    """The lowered model gives what the source model gives."""
    found = ir.serde.serialize_model(lowered.model)
    onnx.checker.check_model(found, full_check=True)
    ours, theirs = session(found), plain(proto)
    for each in feeds:
        for x, y in zip(ours.run(None, each), theirs.run(None, each), strict=True):
            largest = np.abs(y[np.isfinite(y)]).max(initial=1)
            np.testing.assert_allclose(x, y, atol=RTOL * largest, rtol=0)


def blocks(gates: Make, bias: bool = False) -> onnx.ModelProto:
    """Three blocks of a gated network, and a classifier."""

    def build(g: GraphBuilder) -> str:
        x = g.input("x", np.float32, BATCH)
        for _ in range(3):
            gate = gates(g, x)
            x = g.op("Relu", g.op("Mul", norm(g, conv(g, x, C, C, bias), C), gate))
        pooled = g.op("Flatten", g.op("GlobalAveragePool", x))
        return g.op("MatMul", pooled, g.weight("head", array(C, 4)))

    return built(build, ("batch", 4))


def of_input(g: GraphBuilder, x: str) -> str:
    del x
    return g.input(f"gate{len(g._nodes)}", np.float32, ("batch", C, 1, 1))


def of_image(g: GraphBuilder, x: str) -> str:
    """Computed from what the convolution reads: from what gates before it have let through."""
    weight = g.weight(f"squeeze{len(g._nodes)}", array(C, C, 1, 1))
    return g.op("Relu", g.op("Conv", g.op("GlobalAveragePool", x), weight))


def choices(lowered: Lowered) -> int:
    return len(ifs(ir.serde.serialize_model(lowered.model)))


def branches(proto: onnx.ModelProto) -> dict[str, onnx.GraphProto]:
    (node,) = ifs(proto)
    return {a.name: a.g for a in node.attribute}


def poisoned(lowered: Lowered, side: str) -> onnx.ModelProto:
    """The lowered model, with NaN from one of the branches."""
    proto = ir.serde.serialize_model(lowered.model)
    graph = branches(proto)[f"{side}_branch"]
    nan = onnx.helper.make_tensor("nan", onnx.TensorProto.FLOAT, [], [np.nan])
    graph.initializer.append(nan)
    old = graph.output[0].name
    graph.node.append(onnx.helper.make_node("Mul", [old, "nan"], ["spoilt"]))
    graph.output[0].name = "spoilt"
    return proto
