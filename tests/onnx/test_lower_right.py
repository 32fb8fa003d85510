"""Contractions whose right operand may hold zeros: which nodes they become, and that the answer
stays the same.
"""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from models.graph import GraphBuilder
from models.masked import MlpConfig, masked_mlp, masks
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.refusal import Code
from pitc.ir.variants import VARIANTS
from pitc.passes.pipeline import Lowered
from tests.lower_support import SMALL, check, lower, operators, plans, weight

K, N = 128, 160
FLOAT = onnx.TensorProto.FLOAT
Build = Callable[[GraphBuilder, str], str]


def flags(g: GraphBuilder, *shape: int | str, name: str = "mask") -> str:
    return g.op("Cast", g.input(name, np.bool_, shape), to=FLOAT)


def masked(g: GraphBuilder, rows: int = K, columns: int = N) -> str:
    return g.op("Mul", weight(g, "w", rows, columns), flags(g, rows, columns))


def turned(g: GraphBuilder, x: str) -> str:
    return g.op("Transpose", x, perm=[1, 0])


def chosen(g: GraphBuilder) -> str:
    keep = g.input("mask", np.bool_, (K, N))
    return g.op("Where", keep, weight(g, "w", K, N), g.const(0.0))


def squared(g: GraphBuilder) -> str:
    r = g.op("Relu", g.input("w", np.float32, (K, N)))
    return g.op("Mul", r, r)


def two_masks(g: GraphBuilder) -> str:
    return g.op("Mul", masked(g), flags(g, K, N, name="mask2"))


def scaled(g: GraphBuilder) -> str:
    return g.op("Mul", masked(g), g.const(0.5))


def by_rows(g: GraphBuilder) -> str:
    """The outer factor is a column."""
    return g.op("Mul", masked(g), g.input("scale", np.float32, (K, 1)))


#: The right operand of a MatMul -> how the node reads it: stored, factor.
RIGHTS: dict[str, tuple[Callable[[GraphBuilder], str], str, str]] = {
    "weight by mask": (masked, "kn", "2"),
    "mask by weight": (lambda g: g.op("Mul", flags(g, K, N), weight(g, "w", K, N)), "kn", "2"),
    "transposed": (lambda g: turned(g, masked(g, N, K)), "nk", "1"),
    "twice transposed": (lambda g: turned(g, turned(g, masked(g))), "kn", "2"),
    "transposed weight": (lambda g: g.op("Mul", turned(g, g.input("w", np.float32, (N, K))),
                                         flags(g, K, N)), "kn", "1"),
    "two masks": (two_masks, "kn", "1"),
    "squared": (squared, "kn", "1"),
    "where": (chosen, "kn", "0"),
    "a mask": (lambda g: flags(g, K, N), "kn", "0"),
    "scaled": (scaled, "kn", "0"),
    "scaled by rows": (by_rows, "kn", "0"),
    "positive": (lambda g: g.op("Relu", g.input("w", np.float32, (K, N))), "kn", "0"),
}  # fmt: skip


def model(build: Build, lead: tuple[int | str, ...] = ("b", "s")) -> onnx.ModelProto:
    g = GraphBuilder("m")
    y = build(g, g.input("x", np.float32, (*lead, K)))
    g.output(y, "y", np.float32, (*(f"d{d}" for d in range(len(lead))), "columns"))
    return g.model()


def feeds(proto: onnx.ModelProto, *lead: int, density: float = 0.3) -> dict[str, np.ndarray]:
    """Random inputs; symbolic dimensions get the given sizes."""
    rng = np.random.default_rng(1)
    found = {}
    dims = [v.type.tensor_type.shape.dim for v in proto.graph.input]
    symbols = dict.fromkeys(d.dim_param for each in dims for d in each if d.dim_param)
    sizes = dict(zip(symbols, lead, strict=True))
    for value, each in zip(proto.graph.input, dims, strict=True):
        shape = [sizes.get(d.dim_param, d.dim_value) for d in each]
        found[value.name] = rng.standard_normal(shape, dtype=np.float32)
        if value.type.tensor_type.elem_type == onnx.TensorProto.BOOL:
            found[value.name] = rng.random(shape) < density
    return found


def the_plan(lowered: Lowered) -> dict[str, str]:
    (plan,) = plans(lowered)
    return plan


def inputs(lowered: Lowered) -> list[str | None]:
    (node,) = [n for n in lowered.model.graph if n.op_type == "EPContext"]
    return [x.name for x in node.inputs if x is not None]


@pytest.mark.parametrize("lead", [(2, 3), (0, 4)], ids=str)
@pytest.mark.parametrize("name", RIGHTS)
def test_right_operand(name: str, lead: tuple[int, int]) -> None:
    make, stored, factor = RIGHTS[name]
    proto = model(lambda g, x: g.op("MatMul", x, make(g)))
    lowered = lower(proto)
    assert check(proto, lowered, feeds(proto, *lead)) == ["right"]
    plan = the_plan(lowered)
    assert (plan["right"], plan["factor"]) == (stored, factor)
    products = operators(lowered).count("Mul")
    before = sum(n.op_type == "Mul" for n in proto.graph.node)
    assert products == before - (factor != "0")  # what the node multiplies is written by nobody
    (record,) = [r for r in lowered.report.nodes if r.sparse]
    assert (record.op_type, record.lowering, record.refusal) == ("MatMul", "contract", None)
    assert record.sparse.startswith("operand 1 is 0 where ")


def test_plan_and_kernels() -> None:
    """Everything that the runtime gets to know."""
    proto = model(lambda g, x: g.op("MatMul", x, masked(g)))
    lowered = lower(proto)
    plan = the_plan(lowered)
    prices = {f"cost_{variant}_{level}" for variant in VARIANTS for level in ("v3", "v4")}
    fields = {
        "activation",
        "bias",
        "dtype",
        "factor",
        "gather",
        "inner_bias",
        "input_relu",
        "k",
        "kernels",
        "kind",
        "library",
        "n",
        "op",
        "residual",
        "right",
        "scatter",
        "skips",
        "tiles",
    }
    assert set(plan) == fields | prices
    kernel = f"gather_gemm_k{K}_n{N}_none_kn_factor"
    assert (plan["k"], plan["n"], plan["right"]) == (str(K), str(N), "kn")
    assert f"dense:{kernel}," in plan["kernels"]
    (node,) = [n for n in lowered.model.graph if n.op_type == "EPContext"]
    product = next(n.name for n in proto.graph.node if n.op_type == "MatMul")
    assert node.name == f"{product} [contract]"
    families = ("contract_row", "contract_tile", "contract_block")
    want = [f"{family}_k{K}_n{2 * PANEL_WIDTH}_none" for family in families]
    want += [kernel, f"panels_k{K}", f"swrite_columns_n{N}_none"]
    want.append(f"stored_rows_k{K}_n{N}_kn_mask")
    assert sorted(k.symbol for k in lowered.kernels) == sorted(want)
    assert not lowered.panels.made


@pytest.mark.parametrize("odd", [None, np.inf, np.nan], ids=str)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_mask_tells_beside_a_constant(odd: float | None, replaced: bool) -> None:
    """0 times Inf or NaN is NaN; a caller may replace a constant by such numbers."""
    proto = model(lambda g, x: g.op("MatMul", x, masked(g)))
    (w,) = [t for t in proto.graph.initializer if t.name == "w"]
    numbers = onnx.numpy_helper.to_array(w).copy()
    if odd is not None:
        numbers[3, 4] = odd
    w.CopyFrom(onnx.numpy_helper.from_array(numbers, "w"))
    if replaced:
        proto.graph.input.append(onnx.helper.make_tensor_value_info("w", FLOAT, (K, N)))
    lowered = lower(proto)
    factors = ["1"] if replaced else ["2"] if odd is None else []
    assert [p["factor"] for p in plans(lowered)] == factors
    given = feeds(proto, 2, 3) | ({"w": numbers} if replaced else {})
    given["mask"][3, 4] = False
    with np.errstate(invalid="ignore"):
        assert check(proto, lowered, given) == ["right"] * len(factors)


def affine(g: GraphBuilder, x: str) -> str:
    return g.op("Add", g.op("MatMul", x, masked(g)), weight(g, "b", N))


def behind(g: GraphBuilder, x: str) -> str:
    """Bias, activation, and a residual that is no input of anything else."""
    return g.op("Add", g.op("Relu", affine(g, x)), g.input("r", np.float32, ("b", "s", N)))


def flattened(g: GraphBuilder, x: str) -> str:
    """Gemm of rows, as exporters write a layer of more dimensions."""
    rows = g.op("Reshape", x, g.ints(-1, K))
    y = g.op("Gemm", rows, masked(g, N, K), weight(g, "b", N), transB=1)
    sizes = g.op("Slice", g.op("Shape", x), g.ints(0), g.ints(2))
    return g.op("Gelu", g.op("Reshape", y, g.op("Concat", sizes, g.ints(N), axis=0)))


def gemm_of_a_transpose(g: GraphBuilder, x: str) -> str:
    return g.op("Gemm", g.op("Reshape", x, g.ints(-1, K)), turned(g, masked(g)), transB=1)


def scaled_gemm(g: GraphBuilder, x: str) -> str:
    """What is computed is scaled behind, what is constant before."""
    columns = g.op("Reshape", x, g.ints(K, -1))
    return g.op("Gemm", columns, masked(g), weight(g, "b", N), transA=1, alpha=2.0, beta=0.25)


def fused(g: GraphBuilder, x: str) -> str:
    """An operator of ONNX Runtime's own that consists of a product and a transpose."""
    return g.op("FusedMatMul", x, masked(g, N, K), transB=1, domain="com.microsoft")


#: What stands around the product -> fields of the plan, and inputs besides a, s and the factor.
AROUND: dict[str, tuple[Build, dict[str, str], int]] = {
    "bias": (affine, {"bias": "1"}, 1),
    "everything": (behind, {"bias": "1", "activation": "relu", "residual": "1"}, 2),
    "flattened": (flattened, {"bias": "1", "activation": "gelu", "right": "nk"}, 1),
    "gemm of a transpose": (gemm_of_a_transpose, {"right": "kn", "bias": "0"}, 0),
    "scaled": (scaled_gemm, {"right": "kn", "bias": "0"}, 0),
    "fused": (fused, {"right": "nk"}, 0),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_the_node_takes_in(name: str) -> None:
    build, fields, more = AROUND[name]
    g = GraphBuilder("m", 20)
    rank = 2 if name in ("gemm of a transpose", "scaled") else 3
    y = build(g, g.input("x", np.float32, ("b", "s", K)))
    g.output(y, "y", np.float32, tuple(f"d{d}" for d in range(rank)))
    proto = g.model()
    lowered = lower(proto)
    assert check(proto, lowered, feeds(proto, 3, 5)) == ["right"]
    factor = {"kn": "2", "nk": "1"}[the_plan(lowered)["right"]]
    assert the_plan(lowered).items() >= (fields | {"factor": factor}).items()
    assert len(inputs(lowered)) == 3 + more


@pytest.mark.parametrize("lead", [(), ("s",), ("b", "h", "s")], ids=str)
def test_any_rank_of_the_left_operand(lead: tuple[str, ...]) -> None:
    proto = model(affine, lead)
    lowered = lower(proto, target=SMALL)
    assert check(proto, lowered, feeds(proto, *range(2, 2 + len(lead)))) == ["right"]


def test_a_constant_left_operand() -> None:
    g = GraphBuilder("m")
    y = g.op("MatMul", weight(g, "table", 7, K), masked(g))
    g.output(y, "y", np.float32, (7, N))
    proto = g.model()
    lowered = lower(proto, target=SMALL)
    assert check(proto, lowered, feeds(proto)) == ["right"]
    assert inputs(lowered)[0] == "table"


def read_twice(g: GraphBuilder, x: str) -> str:
    s = masked(g)
    return g.op("Concat", g.op("MatMul", x, s), g.op("MatMul", g.op("Neg", x), s), axis=-1)


def transpose_read_twice(g: GraphBuilder, x: str) -> str:
    """The product has one reader, the transpose of it two."""
    s = turned(g, masked(g, N, K))
    return g.op("Add", g.op("MatMul", x, s), g.op("ReduceSum", s, g.ints(0)))


def masked_output(g: GraphBuilder, x: str) -> str:
    s = masked(g)
    y = g.op("MatMul", x, s)
    g.output(s, "s", np.float32, (K, N))
    return y


@pytest.mark.parametrize(
    ("build", "nodes"), [(read_twice, 2), (transpose_read_twice, 1), (masked_output, 1)]
)
def test_a_product_that_others_read_is_made_once(build: Build, nodes: int) -> None:
    proto = model(build)
    lowered = lower(proto)
    assert check(proto, lowered, feeds(proto, 2, 3)) == ["right"] * nodes
    assert {p["factor"] for p in plans(lowered)} == {"0"}
    assert operators(lowered).count("Mul") == 1


def test_masked_layers_one_behind_the_other() -> None:
    """Zeros of both operands: ReLU becomes part of the layer in front."""
    config = MlpConfig((K, N, K), zeros=0.8)
    proto = masked_mlp(config, np.random.default_rng(0))
    lowered = lower(proto)
    x = np.random.default_rng(1).standard_normal((5, K), dtype=np.float32)
    given = {"x": x, **masks(config, np.random.default_rng(2))}
    assert check(proto, lowered, given) == ["right"] * 2
    assert [p["activation"] for p in plans(lowered)] == ["relu", "none"]


@pytest.mark.parametrize("contraction", [False, True])
def test_relu_in_front_stays(contraction: bool) -> None:
    """It is part of a node of which the left operand's zeros are skipped, not of this one."""

    def build(g: GraphBuilder, x: str) -> str:
        h = g.op("MatMul", x, weight(g, "first", K, K)) if contraction else x
        return g.op("MatMul", g.op("Relu", h), masked(g))

    proto = model(build)
    lowered = lower(proto)
    assert check(proto, lowered, feeds(proto, 2, 3)) == ["right"]
    assert "Relu" in [n.op_type for n in lowered.model.graph]


def test_zeros_of_a_left_operand_by_a_constant_matrix_are_skipped_as_ever() -> None:
    """The masked layer stays in front of it, in a node of its own."""

    def build(g: GraphBuilder, x: str) -> str:
        return g.op("MatMul", g.op("Relu", affine(g, x)), weight(g, "w2", N, K))

    proto = model(build)
    lowered = lower(proto)
    assert check(proto, lowered, feeds(proto, 2, 3)) == ["right", "sparse"]
    first, second = plans(lowered)
    assert (first["activation"], second["input_relu"]) == ("relu", "0")


def test_without_prices_everything_stays_dense() -> None:
    proto = model(affine)
    lowered = lower(proto, sparse=False)
    assert check(proto, lowered, feeds(proto, 2, 3)) == []
    assert not any(r.sparse for r in lowered.report.nodes)


def batches(g: GraphBuilder, x: str) -> str:
    w = g.weight("w", np.ones((3, K, N), np.float32))
    s = g.op("Mul", w, flags(g, 3, K, N))
    return g.op("MatMul", g.op("Unsqueeze", x, g.ints(0)), s)


def wide(g: GraphBuilder, x: str) -> str:
    s = g.op("Mul", g.weight("w", np.ones((K, N))), g.op("Cast", flags(g, K, N), to=11))
    return g.op("Cast", g.op("MatMul", g.op("Cast", x, to=11), s), to=FLOAT)


def of_any_size(g: GraphBuilder, x: str) -> str:
    scale = g.input("scale", np.float32, (K, "n"))
    return g.op("MatMul", x, g.op("Mul", scale, flags(g, K, "n")))


def with_a_matrix(g: GraphBuilder, x: str) -> str:
    return g.op("Gemm", x, masked(g), g.input("c", np.float32, ("s", N)))


def few(g: GraphBuilder, x: str) -> str:
    return g.op("MatMul", x, masked(g, K, 64))


def narrow(g: GraphBuilder, x: str) -> str:
    h = g.op("MatMul", x, weight(g, "first", K, 2048))
    s = g.op("Mul", weight(g, "w", 2048, 8), flags(g, 2048, 8))
    return g.op("MatMul", h, s)


def infinite(g: GraphBuilder, x: str) -> str:
    w = np.ones((8, K), np.float32)
    w[3, 5] = np.inf
    return g.op("MatMul", g.weight("table", w), masked(g))


def left_only(g: GraphBuilder, x: str) -> str:
    """Zeros on the left, a right operand of the run without."""
    return g.op("MatMul", g.op("Relu", x), g.op("Sigmoid", g.input("w", np.float32, (K, N))))


def by_vectors(g: GraphBuilder, x: str) -> str:
    """Whole rows of the matrix are masked."""
    return g.op("MatMul", x, g.op("Mul", weight(g, "w", K, N), flags(g, K, 1)))


REFUSED: dict[str, tuple[Build, Code, str]] = {
    "batches": (batches, Code.NO_LOWERING, "is no float32 matrix of known extents"),
    "float64": (wide, Code.NO_LOWERING, "is no float32 matrix of known extents"),
    "any size": (of_any_size, Code.NO_LOWERING, "is no float32 matrix of known extents"),
    "bias": (with_a_matrix, Code.NO_LOWERING, f"its bias is not a constant row of {N}"),
    "left only": (left_only, Code.NO_LOWERING, "is multiplied by no constant matrix of float32"),
    "few": (few, Code.NO_GAIN, f"the matrix has only {K} x 64 elements"),
    "narrow": (narrow, Code.NO_GAIN, "the matrix has only 2048 x 8 elements"),
    "infinite": (infinite, Code.NON_FINITE_WEIGHT, "'table' holds inf at [3, 5]"),
    "whole rows": (by_vectors, Code.NO_GAIN, "under 32 operations per byte moved"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name: str) -> None:
    build, code, reason = REFUSED[name]
    proto = model(build, ("s",))
    lowered = lower(proto)
    assert not plans(lowered)
    last = [r for r in lowered.report.nodes if r.op_type in ("MatMul", "Gemm")][-1]
    assert last.refusal is not None and last.refusal.code is code, last
    assert reason in last.refusal.reason


def live_sum(g: GraphBuilder, h: str, keep: str) -> onnx.ModelProto:
    """The model that sums the tokens of h that are kept."""
    live = g.op("Cast", g.op("Unsqueeze", keep, g.ints(2)), to=FLOAT)
    g.output(
        g.op("ReduceSum", g.op("Mul", h, live), g.ints(1), keepdims=0), "y", np.float32, ("b", N)
    )
    return g.model()


def test_packed_rows() -> None:
    """Live rows alone meet the masked matrix."""
    g = GraphBuilder("m")
    x = g.input("x", np.float32, ("b", "s", K))
    keep = g.input("tokens", np.int64, ("b", "s"))
    h = g.op("Relu", affine(g, x))
    proto = live_sum(g, h, keep)
    lowered = lower(proto, "tokens")
    found = {p["kind"]: p for p in plans(lowered)}
    assert {"detect", "pack", "right"} <= set(found)
    assert found["right"].items() >= {"factor": "2", "activation": "relu"}.items()
    given = feeds(proto, 2, 4)
    for live_rows in ([[1, 1, 0, 0], [1, 0, 1, 1]], [[0] * 4] * 2, [[1] * 4] * 2):
        check(proto, lowered, given | {"tokens": np.array(live_rows)})


def test_a_gather_is_not_left_to_others() -> None:
    """Packed rows that a masked matrix reads too are written."""
    g = GraphBuilder("m")
    x = g.input("x", np.float32, ("b", "s", K))
    keep = g.input("tokens", np.int64, ("b", "s"))
    h = g.op("Add", g.op("MatMul", x, weight(g, "w2", K, N)), g.op("Tanh", affine(g, x)))
    proto = live_sum(g, h, keep)
    lowered = lower(proto, "tokens")
    found = {p["kind"]: p for p in plans(lowered)}
    assert found["dense"]["gather"] == "0" and "pack" in found
    check(proto, lowered, feeds(proto, 2, 4) | {"tokens": np.array([[1, 1, 0, 0], [1, 0, 1, 1]])})
