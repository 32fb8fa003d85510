"""Loops of experts under a padding mask: what is around them runs on live rows, and padded tokens
are on no expert's list.
"""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.graph import GraphBuilder
from tests.lower_support import lower
from tests.plan_reference import run_lowered

WIDTH, NEURONS, EXPERTS, BEST = 128, 64, 3, 2
TOKENS = ("batch", "sequence")


def looped(by_row: bool) -> onnx.ModelProto:
    """Two products, experts for the best two of three shares, which are made to add up to 1, and a
    product; rows are added by index vectors or element by element.
    """
    g, rng = GraphBuilder("looped", 18), np.random.default_rng(7)

    def product(x: str, name: str, k: int, n: int) -> str:
        weight = rng.normal(0, k**-0.5, (k, n)).astype(np.float32)
        return g.op("MatMul", x, g.weight(name, weight))

    x = g.input("x", np.float32, (*TOKENS, WIDTH))
    g.input("mask", np.int64, TOKENS)
    h = product(g.op("Relu", product(x, "a", WIDTH, WIDTH)), "b", WIDTH, WIDTH)
    flat = g.op("Reshape", h, g.ints(-1, WIDTH))
    shares = g.op("Softmax", product(flat, "router", WIDTH, EXPERTS), axis=-1)
    best, chosen = g.ops(2, "TopK", shares, g.ints(BEST))
    gates = g.op("Div", best, g.op("ReduceSum", best, g.ints(-1)))
    total = g.op("Mul", flat, g.const(0, np.float32))
    for e in range(EXPERTS):
        places = g.op("Transpose", g.op("NonZero", g.op("Equal", chosen, g.const(e, np.int64))))
        token, choice = (g.op("Gather", places, g.const(k, np.int64), axis=1) for k in (0, 1))
        u = product(g.op("Gather", flat, token), f"up{e}", WIDTH, NEURONS)
        u = product(g.op("Sigmoid", u), f"down{e}", NEURONS, WIDTH)
        at = g.op("Add", g.op("Mul", token, g.const(BEST, np.int64)), choice)
        gate = g.op("Gather", g.op("Reshape", gates, g.ints(-1)), at)
        u = g.op("Mul", u, g.op("Unsqueeze", gate, g.ints(1)))
        row = g.op("Unsqueeze", token, g.ints(1))
        if by_row:
            total = g.op("ScatterND", total, row, u, reduction="add")
        else:
            every = g.op("Expand", row, g.op("Shape", u))
            total = g.op("ScatterElements", total, every, u, axis=0, reduction="add")
    back = g.op("Reshape", total, g.op("Shape", h))
    g.output(product(g.op("Add", h, back), "c", WIDTH, WIDTH), "y", np.float32, (*TOKENS, WIDTH))
    return g.model()


@pytest.mark.parametrize("by_row", [True, False])
def test_padded_tokens_are_on_no_list(by_row: bool) -> None:
    proto = looped(by_row)
    lowered = lower(proto, "mask", sparse=False)
    products = [r for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert [r.lowering for r in products].count("packed") == 4  # all but those of experts
    model = ir.to_proto(lowered.model)
    lists = [n.output[0] for n in model.graph.node if n.op_type == "NonZero"]
    assert len(lists) == EXPERTS
    for name in lists:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, 7, None))
    rng = np.random.default_rng(8)
    for live in (np.arange(9) < np.array([[9], [4], [0]]), rng.random((3, 9)) < 0.5):
        x = rng.normal(size=(3, 9, WIDTH)).astype(np.float32)
        feeds = {"x": x, "mask": live.astype(np.int64)}
        want = np.asarray(ort.InferenceSession(proto.SerializeToString()).run(None, feeds)[0])
        got, *places = run_lowered(model, feeds)
        np.testing.assert_allclose(got[live], want[live], rtol=1e-4, atol=1e-5)
        assert not got[~live].any()
        assert sum(p.shape[1] for p in places) == BEST * live.sum()
        assert all(live.reshape(-1)[p[0]].all() for p in places)
