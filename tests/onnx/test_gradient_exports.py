"""Gradients of real exports with respect to every weight, against differences in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from pitc.check.double import run_in_double
from pitc.importer.load import load_model
from pitc.passes.grad.gradient import add_gradients
from pitc.session import quiet_options

FOLDER = Path(__file__).parents[2] / "models" / "export"
EXPORTS = (
    "fixtures/bart-sdpa-traced",
    "fixtures/bert-classifier-eager-dynamo",
    "fixtures/bert-sdpa-traced",
    "fixtures/distilbert-sdpa-dynamo",
    "fixtures/experts-loop-sdpa-traced",
    "fixtures/gpt2-cache-sdpa-dynamo",
    "fixtures/llama-sdpa-dynamo",
    "fixtures/mixtral-batched-eager-dynamo",
    "fixtures/mixtral-sdpa-traced",
    "fixtures/modernbert-sdpa-traced",
    "fixtures/opt-eager-traced",
    "fixtures/resnet-relu-traced",
    "fixtures/roberta-eager-traced",
    "fixtures/swin-eager-traced",
    "fixtures/t5-eager-dynamo",
    "fixtures/vit-sdpa-dynamo",
    "masks/bloom-eager-traced",
    "masks/gpt-oss-eager-dynamo",
    "masks/phi3-sdpa-traced",
    "fused/gpt2",
    "fused/opt-session",
)
STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
"""Of a few, one jumps over no corner of a Relu, and is not lost in a float32 kernel's rounding."""
NEAR = 2e-3
"""Of a gradient in one direction; operators without a float64 kernel round to float32 between."""


def with_loss(path: Path) -> onnx.ModelProto:
    """The model with a loss of its first output in which every element counts otherwise."""
    model = onnx.load(path)
    floats = [o for o in model.graph.output if o.type.tensor_type.elem_type == TensorProto.FLOAT]
    name = floats[0].name
    model.graph.node.extend(
        [
            helper.make_node("Mul", [name, name], ["squares"]),
            helper.make_node("Sin", [name], ["waves"]),
            helper.make_node("Add", ["squares", "waves"], ["terms"]),
            helper.make_node("ReduceSum", ["terms"], ["loss"], keepdims=0),
        ]
    )
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return model


def feeds_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Random inputs: two sequences of seven tokens, all of them real; small token numbers."""
    rng, sizes = np.random.default_rng(0), dict[str, int]()
    feeds = {}
    weights = {x.name for x in model.graph.initializer}
    for value in (x for x in model.graph.input if x.name not in weights):
        shape = []
        for d in value.type.tensor_type.shape.dim:
            long = d.dim_param in ("sequence", "target", "s77") or "seq" in d.dim_param
            shape.append(d.dim_value or sizes.setdefault(d.dim_param, 7 if long else 2))
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if "mask" in value.name or dtype == np.bool_:
            feeds[value.name] = np.ones(shape, dtype)
        elif dtype.kind == "i":
            feeds[value.name] = rng.integers(1, 3, shape).astype(dtype)
        else:
            feeds[value.name] = rng.normal(size=shape).astype(dtype)
    return feeds


@pytest.mark.parametrize("export", EXPORTS)
def test_every_weight_of_an_export(export: str) -> None:
    model = with_loss(FOLDER / f"{export}.onnx")
    imported = load_model(model)
    weights = {x.name: numpy_helper.to_array(x) for x in model.graph.initializer}
    found = add_gradients(imported, "loss", None)
    run = run_in_double(imported, quiet_options)
    feeds = feeds_of(model)
    at = run(feeds)
    gradients = {name: at[found.of[name]] for name in found.of}
    size = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
    assert len(found.of) >= 7 and np.isfinite(size) and size > 0
    rng = np.random.default_rng(1)
    for name, gradient in gradients.items():
        weight = imported.graph.initializers[name].const_value
        assert weight is not None
        x = weights.get(name, weight.numpy()).astype(np.float64)
        assert gradient.shape == x.shape
        way = np.where(np.isfinite(x), rng.normal(size=x.shape), 0)
        errors = [difference(run, feeds, name, x, gradient, e * way, size) for e in STEPS]
        assert min(errors) < NEAR, (name, errors)


def difference(
    run: Any, feeds: dict[str, Any], name: str, x: Any, gradient: Any, step: Any, size: float
) -> float:
    """How far the loss's change is from what the gradient says, relative to both."""
    up, down = (float(run({**feeds, name: x + k * step})["loss"]) for k in (1, -1))
    said = 2 * float((gradient * step).sum())
    least = 1e-4 * size * float(np.linalg.norm(step)) + 1e-30  # a mask of -inf does not move
    return abs(up - down - said) / max(abs(up - down), abs(said), least)


def test_the_gradient_runs_without_float64() -> None:
    """ONNX Runtime takes the graph as it is written."""
    imported = load_model(with_loss(FOLDER / "fixtures/bert-sdpa-traced.onnx"))
    found = add_gradients(imported, "loss", None)
    import onnx_ir as ir

    session = ort.InferenceSession(ir.to_proto(imported).SerializeToString())
    feeds = feeds_of(ir.to_proto(imported))
    assert len(session.run(None, feeds)) == 1 + len(found.of)
