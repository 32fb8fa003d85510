"""Products of single elements (m x n): what becomes one node, and why others do not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.graph import GraphBuilder
from pitc.ir.nodes import Array, is_pit_node, plan_of
from pitc.ir.plans.ops import Contract
from pitc.ir.refusal import Code
from pitc.ir.target import CPU, CUDA, Target
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.plan_reference import run_lowered
from tests.tile_prices import PRICES

M, K, N = 40, 96, 80
ANY = replace(CPU, tested_price=0, flops_per_byte=0)
Body = Callable[[GraphBuilder], str]


def matrices(g: GraphBuilder, *, turned: bool = False) -> tuple[str, str]:
    b = g.input("b", np.float32, (N, K) if turned else (K, N))
    return g.input("a", np.float32, ("m", K)), b


def masked(g: GraphBuilder, product: str, shape: tuple[str | int, ...] = ("m", N)) -> str:
    return g.op("Mul", product, g.input("mask", np.float32, shape))


def plain(g: GraphBuilder) -> str:
    return masked(g, g.op("MatMul", *matrices(g)))


def transposed(g: GraphBuilder) -> str:
    a, b = matrices(g, turned=True)
    return masked(g, g.op("MatMul", a, g.op("Transpose", b, perm=[1, 0])))


def gemm(g: GraphBuilder) -> str:
    return masked(g, g.op("Gemm", *matrices(g, turned=True), transB=1))


def chosen(g: GraphBuilder) -> str:
    product = g.op("MatMul", *matrices(g))
    return g.op("Where", g.input("mask", np.bool_, ("m", N)), product, g.const(1.0))


def computed(g: GraphBuilder) -> str:
    """The mask is what another value says."""
    scores = g.input("mask", np.float32, ("m", N))
    keep = g.op("Greater", scores, g.const(0.5))
    return g.op("Where", keep, g.op("MatMul", *matrices(g)), g.const(0.0))


def lowered(body: Body, target: Target = ANY, prices: bool = True) -> tuple[ir.Model, Lowered]:
    g = GraphBuilder("m")
    lead = ["two"] if body in (batched, blocks) else []
    g.output(body(g), "y", np.float32, (*lead, "rows", "columns"))
    model = ir.from_proto(g.model())
    options = LowerOptions(prices=PRICES if prices else None, target=target, check=True)
    return model.clone(), run_passes(model, options)


def plans(made: Lowered) -> list[Contract]:
    found = [plan_of(n) for n in made.model.graph if is_pit_node(n)]
    assert all(isinstance(plan, Contract) for plan in found)
    return [plan for plan in found if isinstance(plan, Contract)]


RIGHT: dict[Body, str] = {
    plain: "kn",
    transposed: "nk",
    gemm: "nk",
    chosen: "kn",
    computed: "kn",
}


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("body", "right"), RIGHT.items())
def test_one_node_computes_live_elements(body: Body, right: str, density: float) -> None:
    source, made = lowered(body)
    (plan,) = plans(made)
    assert (plan.tiles, plan.skips, plan.right, plan.k, plan.n) == (
        True,
        True,
        RIGHT[body],
        K,
        N,
    )
    assert [role for role, _ in plan.kernels] == ["dense", "block"]
    assert all(f"_{right}" in symbol for _, symbol in plan.kernels)
    product = next(r for r in made.report.nodes if r.flops and r.kernel)
    assert (product.lowering, product.rule) == ("contract", "sampled product")
    compare(source, made, M, density)


def compare(source: ir.Model, made: Lowered, rows: int, density: float) -> None:
    """The source in ONNX Runtime and what was made of it give the same."""
    rng, given = np.random.default_rng(3), dict[str, Array]()
    for x in source.graph.inputs:
        shape = [d if isinstance(d, int) else rows for d in x.shape or ()]
        numbers = rng.normal(size=shape)
        if x.name in ("mask", "other"):
            numbers = np.where(rng.random(shape) < density, numbers**2 + 1, 0)
        given[x.name or ""] = numbers.astype((x.dtype or ir.DataType.FLOAT).numpy())
    session = ort.InferenceSession(ir.to_proto(source).SerializeToString())
    want = np.asarray(session.run(None, given)[0])
    (got,) = run_lowered(ir.to_proto(made.model), given)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def cast(g: GraphBuilder) -> str:
    keep = g.op("Cast", g.input("mask", np.bool_, ("m", N)), to=1)
    return g.op("Mul", keep, g.op("MatMul", *matrices(g)))


def where(g: GraphBuilder) -> str:
    product = g.op("MatMul", *matrices(g))
    return g.op("Where", g.input("mask", np.bool_, ("m", N)), product, g.const(0.0))


def cast_behind(g: GraphBuilder) -> str:
    product = g.op("MatMul", *matrices(g))
    return g.op("Mul", product, g.op("Cast", g.input("mask", np.bool_, ("m", N)), to=1))


def two_conditions(g: GraphBuilder) -> str:
    mask, other = (g.input(x, np.bool_, ("m", N)) for x in ("mask", "other"))
    inner = g.op("Where", other, g.op("MatMul", *matrices(g)), g.const(0.0))
    return g.op("Where", mask, inner, g.const(0.0))


def more_dimensions(g: GraphBuilder) -> str:
    product, zero = g.op("MatMul", *matrices(g)), g.const(np.zeros((1, 1, 1), np.float32))
    y = g.op("Where", g.input("mask", np.bool_, ("m", N)), product, zero)
    return g.op("Squeeze", y, g.ints(0))


def one_by_one(g: GraphBuilder) -> str:
    product, zero = g.op("MatMul", *matrices(g)), g.const(np.zeros((1, 1), np.float32))
    return g.op("Where", g.input("mask", np.bool_, ("m", N)), product, zero)


def row_of_zeros(g: GraphBuilder) -> str:
    product, zeros = g.op("MatMul", *matrices(g)), g.const(np.zeros(N, np.float32))
    return g.op("Where", g.input("mask", np.bool_, ("m", N)), product, zeros)


def chosen_other(g: GraphBuilder) -> str:
    product, other = g.op("MatMul", *matrices(g)), g.input("z", np.float32, ("m", N))
    return g.op("Where", g.input("mask", np.bool_, ("m", N)), product, other)


def sixteen(g: GraphBuilder) -> str:
    a, b = g.input("a", np.float32, ("m", 16)), g.input("b", np.float32, (16, N))
    return masked(g, g.op("MatMul", a, b))


def negated(g: GraphBuilder) -> str:
    negative = g.op("Neg", g.op("MatMul", *matrices(g)))
    return g.op("Where", g.input("mask", np.bool_, ("m", N)), negative, g.const(0.0))


def chosen_negative(g: GraphBuilder) -> str:
    product = g.op("MatMul", *matrices(g))
    return g.op("Where", g.input("mask", np.bool_, ("m", N)), product, g.const(-0.0))


def whole_numbers(g: GraphBuilder) -> str:
    """What lives is multiplied by other numbers than 1."""
    keep = g.op("Cast", g.input("mask", np.int64, ("m", N)), to=1)
    return g.op("Mul", g.op("MatMul", *matrices(g)), keep)


def scaled_where(g: GraphBuilder) -> str:
    mask, product = g.input("mask", np.bool_, ("m", N)), g.op("MatMul", *matrices(g))
    return g.op("Mul", product, g.op("Where", mask, g.const(2.0), g.const(0.0)))


def between(make: Callable[[GraphBuilder, str, str], str]) -> Body:
    """A step between the product and its mask."""

    def body(g: GraphBuilder) -> str:
        mask, product = g.input("mask", np.bool_, ("m", N)), g.op("MatMul", *matrices(g))
        return g.op("Where", mask, make(g, product, mask), g.const(0.0))

    return body


def other_mask(g: GraphBuilder, product: str, _: str) -> str:
    return g.op("Mul", product, g.op("Cast", g.input("other", np.bool_, ("m", N)), to=1))


def other_input(g: GraphBuilder, product: str, _: str) -> str:
    return g.op("Mul", product, g.input("z", np.float32, ("m", N)))


def mask_subtracted(g: GraphBuilder, product: str, mask: str) -> str:
    return g.op("Sub", product, g.op("Cast", mask, to=1))


def two_masks(g: GraphBuilder) -> str:
    other = g.op("Cast", g.input("other", np.bool_, ("m", N)), to=1)
    return g.op("Mul", g.op("Mul", where(g), other), g.const(2.0))


def squared(g: GraphBuilder) -> str:
    y = g.op("MatMul", *matrices(g))
    return masked(g, g.op("Mul", y, y))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (cast, []),
        (where, []),
        (cast_behind, []),
        (two_conditions, ["Where", "Where"]),
        (more_dimensions, ["Squeeze", "Where"]),
        (negated, ["Neg", "Where"]),
        (one_by_one, []),
        (chosen_other, ["Where"]),
        (sixteen, ["Mul"]),
        (computed, ["Greater"]),
        (plain, ["Mul"]),
        (chosen, ["Where"]),
        (chosen_negative, ["Where"]),
        (two_masks, ["Cast", "Mul", "Mul"]),
        (squared, ["Mul", "Mul"]),
        (whole_numbers, ["Cast", "Mul"]),
        (scaled_where, ["Mul", "Where"]),
        (between(other_mask), ["Cast", "Mul", "Where"]),
        (between(other_input), ["Mul", "Where"]),
        (between(mask_subtracted), ["Cast", "Sub", "Where"]),
        (row_of_zeros, ["Where"]),
    ],
)
def test_a_mask_is_taken_in(body: Body, left: list[str]) -> None:
    """Where the node reads the same bool: what is dead is 0 as it is."""
    source, made = lowered(body)
    assert len(plans(made)) == 1
    assert sorted(n.op_type for n in made.model.graph if not is_pit_node(n)) == left
    compare(source, made, M, 0.3)


def test_it_needs_no_prices() -> None:
    """Without them the node has the dense variant alone."""
    _, made = lowered(plain, prices=False)
    assert [plan.prices for plan in plans(made)] == [()]


def batched(g: GraphBuilder) -> str:
    a, b = g.input("a", np.float32, (2, "m", K)), g.input("b", np.float32, (2, K, N))
    return masked(g, g.op("MatMul", a, b), (2, "m", N))


def blocks(g: GraphBuilder) -> str:
    """One number of the mask for 8 columns each."""
    product = g.op("Reshape", g.op("MatMul", *matrices(g)), g.ints(0, N // 8, 8))
    return masked(g, product, ("m", N // 8, 1))


def turned_mask(g: GraphBuilder) -> str:
    mask = g.op("Transpose", g.input("mask", np.float32, (N, "m")), perm=[1, 0])
    return g.op("Mul", g.op("MatMul", *matrices(g)), mask)


def halves(g: GraphBuilder) -> str:
    a, b = g.input("a", np.float64, ("m", K)), g.input("b", np.float64, (K, N))
    mask = g.input("mask", np.float64, ("m", N))
    product = g.op("Mul", g.op("MatMul", a, b), mask)
    return g.op("Cast", product, to=1)


def unknown_terms(g: GraphBuilder) -> str:
    a, b = g.input("a", np.float32, ("m", "k")), g.input("b", np.float32, ("k", N))
    return masked(g, g.op("MatMul", a, b))


def unknown_columns(g: GraphBuilder) -> str:
    a, b = g.input("a", np.float32, ("m", K)), g.input("b", np.float32, (K, "n"))
    return masked(g, g.op("MatMul", a, b), ("m", "n"))


def with_bias(g: GraphBuilder) -> str:
    bias = g.input("bias", np.float32, (N,))
    return masked(g, g.op("Gemm", *matrices(g), bias))


def few_terms(g: GraphBuilder) -> str:
    a, b = g.input("a", np.float32, ("m", 8)), g.input("b", np.float32, (8, N))
    return masked(g, g.op("MatMul", a, b))


@pytest.mark.parametrize(
    ("body", "code", "target"),
    [
        (batched, Code.NO_KERNEL, ANY),
        (blocks, Code.NO_KERNEL, ANY),
        (plain, Code.NO_KERNEL, replace(CUDA, tested_price=0, flops_per_byte=0)),
        (halves, Code.NO_LOWERING, ANY),
        (unknown_terms, Code.DYNAMIC_DIM, ANY),
        (unknown_columns, Code.DYNAMIC_DIM, ANY),
        (few_terms, Code.NO_GAIN, ANY),
        (with_bias, Code.LAYOUT, ANY),
    ],
)
def test_others_say_why(body: Body, code: Code, target: Target) -> None:
    _, made = lowered(body, target)
    assert not plans(made)
    (why,) = (r.refusal for r in made.report.nodes if r.flops and r.op_type in ("MatMul", "Gemm"))
    assert why is not None and why.code is code


def test_zeros_that_a_reader_divides_by_stay_dense() -> None:
    """What is dead holds 0 in place: where a reader would divide by it, the product is whole."""

    def divides(g: GraphBuilder) -> str:
        product = g.op("MatMul", *matrices(g))
        mask = g.input("mask", np.float32, ("m", N))
        return g.op("Mul", g.op("Div", g.const(1.0), product), mask)

    _, made = lowered(divides)
    assert not plans(made)


def test_a_value_that_is_read_whole_stays_dense() -> None:
    def read_twice(g: GraphBuilder) -> str:
        product = g.op("MatMul", *matrices(g))
        g.output(g.op("Neg", product), "p", np.float32, ("m", N))
        return masked(g, product)

    _, made = lowered(read_twice)
    assert not plans(made)


def test_small_sums_do_not_repay_a_look_at_the_mask() -> None:
    _, made = lowered(plain, CPU)
    assert not plans(made)
    (why,) = (r.refusal for r in made.report.nodes if r.op_type == "MatMul")
    assert why is not None and why.code is Code.LIVE_TEST
