"""Contractions that skip zeros: which nodes they become, and that the answer stays the same."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest

from models.graph import GraphBuilder
from pitc.ir.metadata import RULE, SOURCE
from pitc.ir.refusal import Code
from pitc.ir.target import CUDA
from pitc.passes.pipeline import Lowered
from tests.lower_support import SMALL, check, lower, plans, weight

K, H, N = 64, 320, 96
Build = Callable[[GraphBuilder, str], str]


def first(g: GraphBuilder, x: str) -> str:
    """A contraction with a bias."""
    return g.op("Add", g.op("MatMul", x, weight(g, "w1", K, H)), weight(g, "b1", H))


def second(g: GraphBuilder, h: str, columns: int = N) -> str:
    return g.op("MatMul", h, weight(g, "w2", H, columns))


def row(g: GraphBuilder, x: str) -> str:
    """The bias is a matrix of one row."""
    bias = g.weight("row", np.linspace(-1, 1, H, dtype=np.float32)[None])
    return second(g, g.op("Relu", g.op("Add", g.op("MatMul", x, weight(g, "w1", K, H)), bias)))


def one_number(g: GraphBuilder, x: str) -> str:
    """One number is no bias: it is added to every column."""
    h = g.op("Add", g.op("MatMul", x, weight(g, "w1", K, H)), g.const(0.5, np.float32))
    return second(g, g.op("Relu", h))


def constants_first(g: GraphBuilder, x: str) -> str:
    h = g.op("Add", weight(g, "b1", H), g.op("MatMul", x, weight(g, "w1", K, H)))
    return second(g, g.op("Max", g.const(0, np.float32), h))


def plain(g: GraphBuilder, x: str) -> str:
    return g.op("Add", second(g, g.op("Relu", first(g, x))), weight(g, "b2", N))


def turned(g: GraphBuilder, x: str) -> str:
    """Transposed there and back."""
    h = g.op("Transpose", g.op("Relu", first(g, g.op("Reshape", x, g.ints(-1, K)))), perm=[1, 0])
    return back(g, g.op("Gemm", h, weight(g, "w2", H, N), transA=1), x)


def back(g: GraphBuilder, y: str, like: str) -> str:
    """The rows with the leading dimensions of another value."""
    sizes = g.op("Slice", g.op("Shape", like), g.ints(0), g.ints(2))
    return g.op("Reshape", y, g.op("Concat", sizes, g.ints(N), axis=0))


def scaled(g: GraphBuilder, x: str) -> str:
    """The numbers go into the constants."""
    h = g.op("Relu", first(g, g.op("Reshape", x, g.ints(-1, K))))
    y = g.op("Gemm", h, weight(g, "w2", N, H), weight(g, "b2", N), transB=1, alpha=0.5, beta=-3.0)
    return back(g, y, x)


def clip(g: GraphBuilder, x: str) -> str:
    return second(g, g.op("Max", first(g, x), g.const(0, np.float32)))


def residual(g: GraphBuilder, x: str) -> str:
    return g.op("Add", x, second(g, g.op("Relu", first(g, x)), K))


def flattened(g: GraphBuilder, x: str) -> str:
    """Rows are flattened and turned back around each contraction, as exporters do."""

    def back(y: str, like: str, columns: int) -> str:
        sizes = g.op("Slice", g.op("Shape", like), g.ints(0), g.ints(2))
        return g.op("Reshape", y, g.op("Concat", sizes, g.ints(columns), axis=0))

    rows = g.op("Reshape", x, g.ints(-1, K))
    h = g.op("Gemm", rows, weight(g, "w1", H, K), weight(g, "b1", H), transB=1)
    h = g.op("Relu", back(h, x, H))
    y = g.op("Gemm", g.op("Reshape", h, g.ints(-1, H)), weight(g, "w2", K, H), transB=1)
    return g.op("Add", x, back(y, h, K))


def squared(g: GraphBuilder, x: str) -> str:
    h = g.op("Relu", first(g, x))
    return second(g, g.op("Mul", h, h))


def gated(g: GraphBuilder, x: str) -> str:
    up = g.op("MatMul", x, weight(g, "up", K, H))
    return second(g, g.op("Mul", g.op("Relu", first(g, x)), up))


def activated(g: GraphBuilder, x: str) -> str:
    """ReLU of something that is no contraction."""
    h = g.op("Relu", g.op("LayerNormalization", first(g, x), g.weight("g", np.ones(H, np.float32))))
    return second(g, h)


def read_twice(g: GraphBuilder, x: str) -> str:
    h = g.op("Relu", first(g, x))
    return g.op("Concat", second(g, h), h, axis=-1)


def shared(g: GraphBuilder, x: str) -> str:
    """Two contractions read the same zeros."""
    h = g.op("Relu", first(g, x))
    return g.op("Add", second(g, h), g.op("MatMul", h, weight(g, "w3", H, N)))


FORMS: dict[str, tuple[Build, list[str]]] = {
    "plain": (plain, ["ffn"]),
    "row": (row, ["ffn"]),
    "constants first": (constants_first, ["ffn"]),
    "one number": (one_number, ["sparse"]),
    "clip": (clip, ["ffn"]),
    "residual": (residual, ["ffn"]),
    "flattened": (flattened, ["ffn"]),
    "scaled": (scaled, ["ffn"]),
    "turned": (turned, ["sparse"]),
    "squared": (squared, ["sparse"]),
    "activated": (activated, ["sparse"]),
    "gated": (gated, ["sparse"]),
    "read twice": (read_twice, ["sparse"]),
    "shared": (shared, ["sparse", "sparse"]),
}


BY_RELU = ("activated", "one number")  # the node takes in ReLU, and not what is in front of it


def model(build: Build, lead: tuple[int | str, ...] = ("b", "s")) -> onnx.ModelProto:
    g = GraphBuilder("m")
    y = build(g, g.input("x", np.float32, (*lead, K)))
    g.output(y, "y", np.float32, (*(f"d{d}" for d in range(len(lead))), "columns"))
    return g.model()


def rows(*lead: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((*lead, K), dtype=np.float32)}


@pytest.mark.parametrize("lead", [(2, 3), (1, 1), (0, 4)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_form(form: str, lead: tuple[int, int]) -> None:
    build, want = FORMS[form]
    proto = model(build)
    lowered = lower(proto)
    assert check(proto, lowered, rows(*lead)) == want
    found = plans(lowered)
    assert [p.get("input_relu", "0") for p in found] == ["1" if form in BY_RELU else "0"] * len(
        want
    )
    if want == ["ffn"] and form not in ("scaled", "row"):  # not even a Reshape is left
        assert len(lowered.model.graph) == 1
    records = [r for r in lowered.report.nodes if r.sparse]
    assert [r.lowering for r in records] == ["contract"] * len(want)
    assert all("== 0" in r.sparse for r in records), records


def inside(lowered: Lowered) -> list[str]:
    return [r.inside for r in lowered.report.nodes]


KERNELS = [
    *("contract_block_k320_n96_none", "contract_row_k320_n96_none", "contract_tile_k320_n96_none"),
    *("gather_gemm_k320_n96_none", "gather_gemm_k64_n320_relu_bits"),
]


def test_what_one_node_takes_in_and_needs() -> None:
    lowered = lower(model(plain))
    assert inside(lowered) == ["matmul_3"] * 3 + ["", "matmul_3"]
    assert sorted(k.symbol for k in lowered.kernels) == KERNELS
    (node,) = lowered.model.graph
    assert (node.metadata_props[SOURCE], node.metadata_props[RULE]) == ("matmul_3", "contract")


def test_a_relu_that_is_read_in_front_of_a_reshape_stays() -> None:
    g = GraphBuilder("m")
    x = g.op("Reshape", g.input("x", np.float32, (2, "s", K)), g.ints(-1, K))
    scale = g.weight("g", np.ones(H, np.float32))
    h = g.op("Relu", g.op("LayerNormalization", first(g, x), scale))
    y = second(g, g.op("Reshape", h, g.ints(2, -1, H)))
    g.output(y, "y", np.float32, (2, "s", N))
    g.output(g.op("Neg", h), "h", np.float32, ("r", H))
    proto = g.model()
    lowered = lower(proto)
    assert check(proto, lowered, rows(2, 3)) == ["sparse"]
    assert [p["input_relu"] for p in plans(lowered)] == ["0"]


def second_bias(g: GraphBuilder, h: str) -> str:
    y = g.op("Gemm", h, weight(g, "w2", H, N), weight(g, "b2", N))
    return g.op("Add", y, weight(g, "b3", N))


def foreign_sum(g: GraphBuilder, h: str) -> str:
    return g.op("Add", second(g, h), weight(g, "b2", N), domain="elsewhere")


@pytest.mark.parametrize("behind", [second_bias, foreign_sum])
def test_a_sum_behind_a_product_that_it_does_not_take(behind: Build) -> None:
    g = GraphBuilder("m")
    h = g.op("Relu", first(g, g.input("x", np.float32, ("r", K))))
    g.output(behind(g, h), "y", np.float32, ("r", N))
    proto = g.model()
    lowered = lower(proto)
    assert [n.op_type for n in lowered.model.graph] == ["EPContext", "Add"]
    if behind is second_bias:
        assert check(proto, lowered, rows(5)) == ["ffn"]


@pytest.mark.parametrize(("lead", "known"), [((4, 8), True), (("b", 8), False), ((), False)])
def test_a_tile_is_predicted_for_known_rows(lead: tuple[int | str, ...], known: bool) -> None:
    gpu = replace(CUDA, least_products=0)
    (kernel,) = (r.kernel for r in lower(model(plain, lead), target=gpu).report.nodes if r.kernel)
    assert bool(kernel.predicted) == known


def test_a_packed_node_needs_no_more() -> None:
    g = GraphBuilder("m")
    x = g.input("x", np.float32, ("b", "s", K))
    g.input("mask", np.int64, ("b", "s"))
    g.output(plain(g, x), "y", np.float32, ("b", "s", N))
    lowered = lower(g.model(), "mask")
    assert [p["kind"] for p in plans(lowered)] == ["detect", "ffn"]
    assert inside(lowered) == ["matmul_3"] * 3 + ["", "matmul_3"]
    assert sorted(k.symbol for k in lowered.kernels) == KERNELS


def test_rows_of_a_batch_of_one_keep_their_shape_in_old_operator_sets() -> None:
    """There a size of 0 cannot be asked for: the one that may be 0 is found."""
    g = GraphBuilder("m", opset=13)
    x = g.input("x", np.float32, (1, "s", K))
    rows_of = g.op("Tanh", g.op("Reshape", x, g.ints(-1, K)))
    y = g.op("Reshape", second(g, g.op("Relu", first(g, rows_of))), g.ints(1, -1, N))
    g.output(g.op("Relu", y), "y", np.float32, (1, "s", N))
    proto = g.model()
    for size in (1, 5):
        assert check(proto, lower(proto), rows(1, size)) == ["ffn"]


def test_sizes_of_what_is_inside_are_those_of_inputs() -> None:
    g = GraphBuilder("m")
    h = g.op("Relu", first(g, g.input("x", np.float32, ("b", "s", K))))
    g.output(second(g, h), "y", np.float32, ("b", "s", N))
    g.output(g.op("Shape", h), "sizes", np.int64, (3,))
    proto = g.model()
    lowered = lower(proto)
    assert check(proto, lowered, rows(2, 3)) == ["ffn"]
    assert "MatMul" not in [n.op_type for n in lowered.model.graph]


@pytest.mark.parametrize("lead", [(), ("s",), ("b", "h", "s")], ids=str)
def test_any_rank(lead: tuple[str, ...]) -> None:
    proto = model(plain, lead)
    lowered = lower(proto, target=SMALL)
    assert check(proto, lowered, rows(*range(2, 2 + len(lead)))) == ["ffn"]


@pytest.mark.parametrize(
    ("lead", "lowering"),
    [((1, 34), "ordinary"), ((1, 35), "contract"), ((0, 9), "ordinary"), (("b", 1), "contract")],
    ids=str,
)
def test_a_product_of_few_numbers_in_every_run_stays(
    lead: tuple[int | str, ...], lowering: str
) -> None:
    """Wake words of an open package: 32,768 products, of which a node's start is 8 %."""
    lowered = lower(model(plain, lead))
    products = [r for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert products[1].lowering == lowering
    if lowering == "ordinary":
        assert products[1].refusal is not None and products[1].refusal.code is Code.NO_GAIN
        assert "products in every run" in products[1].refusal.reason


def test_without_prices_everything_stays_dense() -> None:
    proto = model(plain)
    lowered = lower(proto, sparse=False)
    assert check(proto, lowered, rows(2, 3)) == []
    assert not any(r.sparse for r in lowered.report.nodes)


def smooth(g: GraphBuilder, x: str) -> str:
    return second(g, g.op("Sigmoid", first(g, x)))


def infinite(g: GraphBuilder, x: str) -> str:
    w = np.ones((H, N), np.float32)
    w[3, 5] = np.inf
    return g.op("MatMul", g.op("Relu", first(g, x)), g.weight("w2", w))


def narrow(g: GraphBuilder, x: str) -> str:
    return second(g, g.op("Relu", first(g, x)), 16)


def nothing(g: GraphBuilder, x: str) -> str:
    """Scaled to zeros: no product at all."""
    return g.op("Gemm", g.op("Relu", first(g, x)), weight(g, "w2", H, N), alpha=0.0)


def float64(g: GraphBuilder, x: str) -> str:
    h = g.op("Cast", g.op("Relu", first(g, x)), to=onnx.TensorProto.DOUBLE)
    y = g.op("MatMul", h, g.weight("w2", np.ones((H, N), np.float64)))
    return g.op("Cast", y, to=onnx.TensorProto.FLOAT)


REFUSED: dict[str, tuple[Build, Code]] = {
    "smooth": (smooth, Code.NO_FACT),
    "infinite": (infinite, Code.NON_FINITE_WEIGHT),
    "narrow": (narrow, Code.NO_GAIN),
    "nothing": (nothing, Code.NO_LOWERING),
    "float64": (float64, Code.NO_LOWERING),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name: str) -> None:
    build, code = REFUSED[name]
    proto = model(build, ("s",))
    lowered = lower(proto)
    assert not plans(lowered)
    last = [r for r in lowered.report.nodes if r.op_type in ("MatMul", "Gemm")][-1]
    assert last.refusal is not None and last.refusal.code is code, last


def test_hidden_value_that_is_an_output_stays() -> None:
    g = GraphBuilder("m")
    h = g.op("Relu", first(g, g.input("x", np.float32, ("s", K))))
    g.output(second(g, h), "y", np.float32, ("s", N))
    g.output(h, "h", np.float32, ("s", H))
    proto = g.model()
    assert check(proto, lower(proto), rows(5)) == ["sparse"]


def test_bias_behind_a_reshape_that_moves_columns_is_not_taken() -> None:
    g = GraphBuilder("m")
    x = g.input("x", np.float32, (N, K))
    y = second(g, g.op("Relu", first(g, x)))
    turned_rows = g.op("Reshape", y, g.ints(2, N // 2, N))
    y = g.op("Add", turned_rows, g.weight("b", np.arange(N, dtype=np.float32)))
    split = g.op("Reshape", y, g.ints(N // 2, 2 * N))
    y = g.op("Add", split, g.weight("c", np.arange(2 * N, dtype=np.float32)))
    g.output(y, "y", np.float32, (N // 2, 2 * N))
    proto = g.model()
    assert check(proto, lower(proto), rows(N)) == ["ffn"]


@pytest.mark.parametrize("form", ["plain", "flattened"])
def test_packed_rows(form: str) -> None:
    g = GraphBuilder("m")
    x = g.input("x", np.float32, ("b", "s", K))
    mask = g.input("mask", np.int64, ("b", "s"))
    y = FORMS[form][0](g, x)
    keep = g.op("Cast", g.op("Unsqueeze", mask, g.ints(2)), to=onnx.TensorProto.FLOAT)
    g.output(
        g.op("ReduceSum", g.op("Mul", y, keep), g.ints(1), keepdims=0), "y", np.float32, ("b", "n")
    )
    proto = g.model()
    lowered = lower(proto, "mask")
    found = plans(lowered)
    (node,) = [p for p in found if p["kind"] == "ffn"]
    assert node["gather"] == str(int(form == "plain")), node  # else the residual needs them too
    for mask_rows in ([[1, 1, 0, 0], [1, 0, 1, 1]], [[0] * 4] * 2, [[1] * 4] * 2):
        feeds = rows(2, 4) | {"mask": np.array(mask_rows)}
        check(proto, lowered, feeds)
