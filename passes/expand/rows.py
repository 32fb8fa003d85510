"""What operators on rows consist of: sums or groups before a normalisation or an activation."""

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import NoRule
from pitc.ir.index import ONE
from pitc.ir.since import Since
from pitc.passes.expand.body import Body
from pitc.passes.rules.registry import MICROSOFT

EPSILON = 1e-12


def bias_activation(body: Body) -> list[ir.Value | None]:
    """BiasGelu and FastGelu: a bias is added before the activation."""
    rows = body.op("Add", body.input(0), body.input(1))
    if body.view.op == "FastGelu":
        return [body.op("FastGelu", rows, domain=MICROSOFT)]
    domain = "" if body.opset >= Since.GELU else MICROSOFT
    return [body.op("Gelu", rows, domain=domain)]


def skip_layer_norm(body: Body) -> list[ir.Value | None]:
    """Normalisation of input + skip (+ bias); output 3 is the sum."""
    body.only_outputs(0, 3)
    simplified = body.view.op == "SkipSimplifiedLayerNormalization"
    bias = 3 if simplified else 4
    # the bias belongs to the product that is one of the two, so that a kernel can take it in
    first, second = (1, 0) if _is_product(body, 1) and not _is_product(body, 0) else (0, 1)
    total = body.input(first)
    if body.view.has(bias):
        total = body.op("Add", total, body.input(bias))
    total = body.op("Add", total, body.input(second))
    scales = [body.input(i) for i in range(2, bias) if body.view.has(i)]
    kind = "SimplifiedLayerNormalization" if simplified else "LayerNormalization"
    return [_normalised(body, kind, total, scales), None, None, total]


def _normalised(body: Body, kind: str, rows: ir.Value, scales: list[ir.Value]) -> ir.Value:
    epsilon = float(body.view.attr("epsilon", EPSILON))
    return body.op(kind, rows, *scales, axis=-1, epsilon=epsilon)


def _is_product(body: Body, i: int) -> bool:
    expr = body.view.graph[body.view.name(i)].expr
    return expr is not None and expr.combine is Combine.PRODUCT


def embed_layer_norm(body: Body) -> list[ir.Value | None]:
    """Rows of up to three tables, added and normalised; the ones in a mask row; what was added."""
    view = body.view
    if len(view.shape(0)) != 2:
        raise NoRule(f"tokens of shape {view.shape(0)}")
    places = body.input(8) if view.has(8) else body.unsqueeze(body.positions(0, 1), 0)
    total = body.op("Gather", body.input(2), body.input(0), axis=0)
    total = body.op("Add", total, body.op("Gather", body.input(3), places, axis=0))
    if view.has(4):  # without segments everything is of the first one
        kinds = body.input(1) if view.has(1) else body.constant(np.zeros((1, 1), np.int64))
        total = body.op("Add", total, body.op("Gather", body.input(4), kinds, axis=0))
    scales = [body.input(i) for i in (5, 6)]
    results = [_normalised(body, "LayerNormalization", total, scales), None, total]
    if body.wants(1):
        if view.shape(7) != view.shape(0) or view.shape(7)[1] == ONE * 0:
            raise NoRule("the mask is not one number per token")
        counted = body.op("Equal", body.input(7), body.constant(np.ones((), np.int32)))
        results[1] = body.along(
            "ReduceSum", body.op("Cast", counted, to=ir.DataType.INT32), [1], keepdims=0
        )
    return results


def group_norm(body: Body) -> list[ir.Value | None]:
    """Groups of channels become the channels of an instance normalisation; then scale and shift.

    ONNX Runtime has no kernel of its own for it, and what it runs instead fails without images.
    """
    view = body.view
    shape = [e.as_int() for e in view.shape(0)]
    inner = [n for n in shape[1:] if n is not None]
    groups = int(view.attr("num_groups", 0))
    if not inner or len(inner) != len(shape) - 1 or not groups or inner[0] % groups:
        raise NoRule(f"{view.shape(0)} in {groups} groups")
    one, zero = (body.constant(np.full(groups, n, np.float32)) for n in (1, 0))
    epsilon = float(view.attr("epsilon", 1e-5))
    size = int(np.prod(inner)) // groups
    x = body.reshape(body.input(0), 0, groups, size)
    x = body.op("InstanceNormalization", x, one, zero, epsilon=epsilon)
    per_channel = view.opset >= Since.SCALES_PER_CHANNEL
    if per_channel:
        x = body.reshape(x, 0, *inner)
    axes = range(1, len(inner) if per_channel else 2)
    for op, i in (("Mul", 1), ("Add", 2)):
        x = body.op(op, x, body.unsqueeze(body.input(i), *axes))
    return [x if per_channel else body.reshape(x, 0, *inner)]
