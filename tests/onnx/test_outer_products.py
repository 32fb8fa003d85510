"""Sampled sums of outer products: what becomes one node, why others do not, and both are right."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import pitc
from models.bert import BertConfig, bert
from models.graph import GraphBuilder
from models.masked import MlpConfig, masked_mlp
from models.sparsity import block_mask
from pitc.ir.nodes import is_pit_node, plan_of
from pitc.ir.plans.whole import OuterProducts
from pitc.ir.refusal import Code
from pitc.ir.target import CUDA
from pitc.passes.pipeline import Lowered
from tests.onnx.test_sampled_products import K, N, compare, lowered, masked

Body = Callable[[GraphBuilder], str]
SHAPE = (K, N)


def rows(g: GraphBuilder) -> tuple[str, str]:
    """Of a batch, however many."""
    return g.input("a", np.float32, ("t", K)), g.input("b", np.float32, ("t", N))


def gemm(g: GraphBuilder) -> str:
    return masked(g, g.op("Gemm", *rows(g), transA=1), SHAPE)


def product(g: GraphBuilder) -> str:
    x, dy = rows(g)
    return masked(g, g.op("MatMul", g.op("Transpose", x, perm=[1, 0]), dy), SHAPE)


def turned_twice(g: GraphBuilder) -> str:
    """The right operand is stored as what it is transposed from, too."""
    x, dy = rows(g)
    turned = g.op("Transpose", g.op("Relu", g.op("Transpose", dy, perm=[1, 0])), perm=[1, 0])
    return masked(g, g.op("Gemm", x, turned, transA=1), SHAPE)


def flattened(g: GraphBuilder) -> str:
    """Rows of [batch, sequence]."""
    flat = [
        g.op("Reshape", g.input(name, np.float32, ("batch", 7, size)), g.ints(-1, size))
        for name, size in (("a", K), ("b", N))
    ]
    return masked(g, g.op("Gemm", *flat, transA=1), SHAPE)


def bools(g: GraphBuilder) -> str:
    keep = g.op("Cast", g.input("mask", np.bool_, SHAPE), to=1)
    return g.op("Mul", keep, g.op("Gemm", *rows(g), transA=1))


def chosen(g: GraphBuilder) -> str:
    made = g.op("Gemm", *rows(g), transA=1)
    return g.op("Where", g.input("mask", np.bool_, SHAPE), made, g.const(0.0))


def of_any_size(g: GraphBuilder) -> str:
    """Nothing is known of the weight either."""
    x, dy = g.input("a", np.float32, ("t", "m")), g.input("b", np.float32, ("t", "n"))
    return masked(g, g.op("Gemm", x, dy, transA=1), ("m", "n"))


def plans(made: Lowered) -> list[OuterProducts]:
    found = [plan_of(n) for n in made.model.graph if is_pit_node(n)]
    assert all(isinstance(plan, OuterProducts) for plan in found)
    return [plan for plan in found if isinstance(plan, OuterProducts)]


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
    "body", [gemm, product, turned_twice, flattened, bools, chosen, of_any_size]
)
def test_one_node_computes_live_elements(body: Body, density: float) -> None:
    source, made = lowered(body)
    (plan,) = plans(made)
    kernels = ("dense", "outer_products_dense"), ("listed", "outer_products")
    assert plan.masked and plan.kernels == kernels
    node = next(r for r in made.report.nodes if r.flops and r.kernel)
    assert (node.lowering, node.rule) == ("outer_products", "sampled sum of outer products")
    assert node.kernel and node.kernel.micro_tiles[0] == "row 1x1"
    for count in (0, 1, 40):
        compare(source, made, count, density)


@pytest.mark.parametrize(("body", "left"), [(bools, []), (chosen, []), (gemm, ["Mul"])])
def test_a_mask_of_bools_is_taken_in(body: Body, left: list[str]) -> None:
    _, made = lowered(body)
    assert [n.op_type for n in made.model.graph if not is_pit_node(n)] == left


def scaled(g: GraphBuilder) -> str:
    """A factor and a bias are nodes of their own."""
    bias = g.input("c", np.float32, (N,))
    return masked(g, g.op("Gemm", *rows(g), bias, transA=1, alpha=2.0), SHAPE)


def cut(g: GraphBuilder) -> str:
    """A part of the columns of x^T: the other rows of x are no terms."""
    x, dy = g.input("a", np.float32, (60, K)), g.input("b", np.float32, (40, N))
    turned = g.op("Transpose", x, perm=[1, 0])
    part = g.op("Slice", turned, g.ints(0), g.ints(40), g.ints(1))
    return masked(g, g.op("MatMul", part, dy), SHAPE)


def both_cut(g: GraphBuilder) -> str:
    """Of both operands, so that nobody would see it by their sizes."""
    x, dy = g.input("a", np.float32, (60, K)), g.input("b", np.float32, (60, N))
    turned = (g.op("Transpose", v, perm=[1, 0]) for v in (x, dy))
    x, dy = (g.op("Slice", v, g.ints(0), g.ints(40), g.ints(1)) for v in turned)
    return masked(g, g.op("MatMul", x, g.op("Transpose", dy, perm=[1, 0])), SHAPE)


@pytest.mark.parametrize("body", [cut, both_cut])
def test_a_part_of_a_matrix_is_not_all_of_it(body: Body) -> None:
    source, made = lowered(body)
    compare(source, made, 60, 0.3)


def test_what_else_a_gemm_does_stays_behind_it() -> None:
    source, made = lowered(scaled)
    assert len(plans(made)) == 1
    compare(source, made, 40, 0.3)


def narrow(g: GraphBuilder) -> str:
    x, dy = g.input("a", np.float32, ("t", 8)), g.input("b", np.float32, ("t", N))
    return masked(g, g.op("Gemm", x, dy, transA=1), (8, N))


def doubles(g: GraphBuilder) -> str:
    x, dy = g.input("a", np.float64, ("t", K)), g.input("b", np.float64, ("t", N))
    made = g.op("Gemm", x, dy, transA=1)
    zeros = g.op("Mul", made, g.input("mask", np.float64, SHAPE))
    return g.op("Cast", zeros, to=1)


def few_rows(g: GraphBuilder) -> str:
    x, dy = g.input("a", np.float32, (9, K)), g.input("b", np.float32, (9, N))
    return masked(g, g.op("Gemm", x, dy, transA=1), SHAPE)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (narrow, Code.NO_GAIN),
        (few_rows, Code.NO_GAIN),
        (doubles, Code.NO_LOWERING),
    ],
)
def test_why_others_are_none(body: Body, code: Code) -> None:
    _, made = lowered(body)
    assert not plans(made)
    told = [
        r.refusal.code for r in made.report.nodes if r.op_type in ("Gemm", "MatMul") and r.refusal
    ]
    assert told == [code]


def test_gpus_have_no_kernel() -> None:
    _, made = lowered(gemm, CUDA)
    assert not plans(made)


BLOCKS = [(1, 1), (32, 1), (32, 64)]


def agree(model: ir.Model, compiled: Any, feeds: dict[str, Any]) -> None:
    """The compiled model gives what ONNX Runtime does."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    want = [np.asarray(x) for x in session.run(None, feeds)]
    for name, x in zip((o.name for o in session.get_outputs()), want, strict=True):
        got = compiled.run(feeds)[name]
        assert np.abs(got - x).max(initial=0) <= 1e-4 * max(1, np.abs(x).max(initial=0)), name


def test_all_products_of_a_masked_step_skip_what_is_dead() -> None:
    """Of any number of rows: zeros of weights forward and backward, and of their gradients."""
    config = MlpConfig((96, 256, 128))
    made = pitc.gradient(
        masked_mlp(config, np.random.default_rng(0)), pitc.Loss("mse", "y"), ["weight*"]
    )
    compiled = pitc.compile(made, suggest=False)
    found = [r.lowering for r in compiled.report.nodes if r.op_type == "MatMul"]
    assert sorted(found) == ["contract"] * 3 + ["outer_products"] * 2
    rng = np.random.default_rng(1)
    for count in (0, 1, 33, 400):
        for block in BLOCKS:
            given = {
                x: rng.standard_normal((count, size), np.float32)
                for x, size in (("x", 96), ("labels", 128))
            }
            given |= {x: block_mask(rng, s, block, 0.9) for x, s in config.shapes.items()}
            agree(made, compiled, given)


@pytest.mark.parametrize("block", BLOCKS)
def test_padding_and_masks_of_weights_meet(block: tuple[int, int]) -> None:
    """Rows of padding are left out of the sums, and masked elements of their results."""
    config = BertConfig(layers=1, hidden=256, heads=4, ffn=512, vocab=50, head="tokens")
    model = bert(config, np.random.default_rng(0))
    loss = pitc.Loss("cross_entropy", "logits")
    made = pitc.gradient(model, loss, masks=["encoder.*.dense.weight*"])
    compiled = pitc.compile(made, padding="attention_mask", suggest=False)
    rules = [r.rule for r in compiled.report.nodes if r.lowering == "outer_products"]
    assert rules.count("sampled sum of outer products") == 3
    assert {*rules} == {"sampled sum of outer products", "sum of live terms"}
    rng, shape = np.random.default_rng(1), (3, 20)
    live = np.arange(20) < np.array([[20], [3], [11]])
    masks = {
        x.name: block_mask(rng, tuple(x.shape), block, 0.8)  # type: ignore[arg-type]
        for x in made.graph.inputs
        if x.name and x.name.startswith("mask.")
    }
    assert len(masks) == 3
    labels = np.where(live, rng.integers(0, config.labels, shape), -100)
    given = {
        "input_ids": rng.integers(0, 50, shape),
        "token_type_ids": np.zeros(shape, np.int64),
        "attention_mask": live.astype(np.int64),
        "labels": labels,
        **masks,
    }
    agree(made, compiled, given)
