"""How models with branches and loops are checked: every feed, before and after."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from models.graph import GraphBuilder
from pitc.ir.branch import BRANCH, GROUP, NAME
from pitc.passes.audit.engine import audit
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import Lowered, analyse
from tests.branch_models import (
    BSD,
    MASKS,
    PADDING,
    differences,
    feeds_of,
    lower,
)

CHOICES = (True, False)


def every_feed(proto: onnx.ModelProto, masks: Sequence[str] = tuple(MASKS)) -> list[dict[str, Any]]:
    """All of the masks, with every bool input both ways."""
    flags = [i.name for i in proto.graph.input if i.type.tensor_type.elem_type == TensorProto.BOOL]
    out = []
    for seed, mask in enumerate(map(MASKS.__getitem__, masks)):
        for values in product(CHOICES, repeat=len(flags)):
            shapes = {
                i.name: [d.dim_value for d in i.type.tensor_type.shape.dim]
                for i in proto.graph.input
            }
            known = {n: np.full(shapes[n], v) for n, v in zip(flags, values, strict=True)}
            out.append(feeds_of(proto, mask, seed, known))
    return out


def compiled(
    proto: onnx.ModelProto, padding: str | None = None, masks: Sequence[str] = tuple(MASKS)
) -> Lowered:
    """Lower a model; it must compute what it did."""
    onnx.checker.check_model(proto)
    lowered = lower(proto, padding)
    got = ir.to_proto(lowered.model)
    assert not got.functions and all(o.domain != "pitc" for o in got.opset_import)
    left = {p.key for n in got.graph.node for p in n.metadata_props}
    assert not left & {BRANCH, GROUP, NAME}
    assert differences(proto, got, every_feed(proto, masks), padding) == []
    return lowered


def audited(
    proto: onnx.ModelProto, padding: str | None = None, masks: Sequence[str] = tuple(MASKS)
) -> list[str]:
    """Facts of a model that do not hold."""
    source = ir.from_proto(proto)
    opened = source.clone()
    normalise(opened)
    graph, given_up = analyse(opened, padding)
    result = audit(graph, given_up, every_feed(proto, masks), source=source, teeth=False)
    assert result.failures or result.fill_checks + result.dead_checks > 0
    return result.failures


def lowerings(lowered: Lowered, *operators: str) -> list[str]:
    return [r.lowering for r in lowered.report.nodes if r.op_type in operators]


def start(g: GraphBuilder) -> tuple[str, str, str]:
    """Rows, their mask, and a flag."""
    mask = g.input(PADDING, np.int64, ("b", "s"))
    return g.input("x", np.float32, BSD), mask, g.input("c", np.bool_, ())
