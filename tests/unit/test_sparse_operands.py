"""Operands with zeros at run time: every source, every way to a contraction, and what is none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models.cnn import CnnConfig, cnn
from models.graph import GraphBuilder
from models.masked import MlpConfig, masked_mlp
from models.opt import OptConfig, opt_ffn
from pitc.importer import load_model
from pitc.ir.graph import Graph
from pitc.ir.refusal import Code, Refusal
from pitc.passes.facts.fill import fill_facts
from pitc.passes.normalise import normalise
from pitc.passes.regions.contraction import axis_kinds, factor_reads
from pitc.passes.regions.sparse import SparseOperand, sparse_operands
from pitc.passes.regions.terms import term_domains
from tests.fact_check import analysed, built, proven, rows
from tests.lower_support import lower

FLOAT, BOOL, INT = 1, 9, 7
TOKENS, K, N = ("batch", "seq"), 6, 5
FIXTURES = Path(__file__).parents[2] / "models/export/fixtures"
RNG = np.random.default_rng(3)

Make = Callable[[GraphBuilder, str], str]


def contraction(make: Make, weight: np.ndarray | None = None) -> onnx.ModelProto:
    """y = make(h) @ w, with h [batch, seq, 6] computed before."""

    def build(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, (*TOKENS, 4))
        h = make(g, g.op("MatMul", x, g.weight("w1", rows(RNG, 4, K))))
        y = g.op("MatMul", h, g.weight("w", rows(RNG, K, N) if weight is None else weight))
        g.output(g.op("Identity", y), "y", np.float32, (*TOKENS, N))

    return built(build)


def operands(graph: Graph) -> list[list[SparseOperand]]:
    """The sparse operands of each node that has some."""
    each = ([x for x in known if isinstance(x, SparseOperand)] for known in everything(graph))
    return [found for found in each if found]


def everything(graph: Graph) -> list[list[SparseOperand | Refusal]]:
    """What is known of each node of whose operands something is."""
    return list(filter(None, (sparse_operands(graph, node) for node in graph.nodes)))


def the_one(graph: Graph) -> SparseOperand:
    """The only sparse operand of a graph."""
    ((found,),) = operands(graph)
    return found


def kinds(graph: Graph, operand: SparseOperand) -> dict[str, str]:
    """What the axes are to the operand: their names, by what they are."""
    expr = graph[operand.steps[0].outputs[0].name or ""].expr
    assert expr is not None
    (mine,) = (r for r in factor_reads(expr) if r.operand == operand.operand)
    others = [r for r in factor_reads(expr) if r is not mine]
    found: dict[str, list[str]] = {}
    for axis, kind in axis_kinds(expr, mine, others).items():
        found.setdefault(kind.value, []).append(expr.axes[axis].name)
    return {kind: " ".join(names) for kind, names in found.items()}


def test_a_sum_is_no_product() -> None:
    """Whatever it sums; of rows that are 0 nothing is skipped either."""

    def build(g: GraphBuilder) -> None:
        x, m = g.input("x", np.float32, (*TOKENS, 4)), g.input("m", np.float32, (*TOKENS, 1))
        y = g.op("ReduceSum", g.op("Mul", x, m), g.ints(0, 1), keepdims=0)
        g.output(y, "y", np.float32, (4,))

    graph, _ = analysed(built(build))
    assert not everything(graph)
    assert [list(term_domains(graph, node)) for node in graph.nodes] == [[], []]


def the_refusal(graph: Graph) -> Refusal:
    ((refusal,),) = everything(graph)
    assert isinstance(refusal, Refusal)
    return refusal


def squared(g: GraphBuilder, h: str) -> str:
    r = g.op("Relu", h)
    return g.op("Mul", r, r)


def full(g: GraphBuilder, name: str, dtype: type) -> str:
    return g.input(name, dtype, (*TOKENS, K))


def float_of(g: GraphBuilder, flag: str) -> str:
    return g.op("Cast", flag, to=FLOAT)


def positive(g: GraphBuilder, h: str) -> str:
    return g.op("Greater", h, g.const(0.0))


def hard_swish_in_parts(g: GraphBuilder, h: str) -> str:
    ramp = g.op("Clip", g.op("Add", h, g.const(3.0)), g.const(0.0), g.const(6.0))
    return g.op("Mul", h, g.op("Div", ramp, g.const(6.0)))


def scattered(g: GraphBuilder, h: str) -> str:
    zeros = g.op("ConstantOfShape", g.op("Shape", h))
    places = g.input("places", np.int64, (*TOKENS, 2))
    values = g.op("Slice", h, g.ints(0), g.ints(2), g.ints(2))
    return g.op("ScatterElements", zeros, places, values, axis=2)


def one_hot(g: GraphBuilder, h: str) -> str:
    hot = g.op(
        "OneHot", g.op("ArgMax", h, axis=-1, keepdims=0), g.const(K, np.int64), g.const((0.0, 1.0))
    )
    return g.op("Mul", hot, g.const(0.5))


SOURCES: dict[str, Make] = {
    "relu": lambda g, h: g.op("Relu", h),
    "clip to 0..6": lambda g, h: g.op("Clip", h, g.const(0.0), g.const(6.0)),
    "clip from 0": lambda g, h: g.op("Clip", h, g.const(0.0)),
    "thresholded": lambda g, h: g.op("ThresholdedRelu", h, alpha=0.5),
    "max with 0": lambda g, h: g.op("Max", h, g.const(0.0)),
    "shrink": lambda g, h: g.op("Shrink", h, lambd=0.6),
    "hard swish": lambda g, h: g.op("HardSwish", h),
    "hard swish in parts": hard_swish_in_parts,
    "squared relu": squared,
    "relu to a power": lambda g, h: g.op("Pow", g.op("Relu", h), g.const(2.0)),
    "gated by relu": lambda g, h: g.op("Mul", g.op("Sigmoid", h), g.op("Relu", h)),
    "where positive": lambda g, h: g.op("Where", positive(g, h), h, g.const(0.0)),
    "filled by a mask": lambda g, h: g.op("Where", full(g, "mask", np.bool_), g.const(0.0), h),
    "times a comparison": lambda g, h: g.op("Mul", h, float_of(g, positive(g, h))),
    "times a bool mask": lambda g, h: g.op("Mul", h, float_of(g, full(g, "mask", np.bool_))),
    "times an integer mask": lambda g, h: g.op("Mul", h, float_of(g, full(g, "mask", np.int32))),
    "times a float mask": lambda g, h: g.op("Mul", h, full(g, "mask", np.float32)),
    "times a scaled mask": lambda g, h: g.op(
        "Mul", h, g.op("Mul", full(g, "mask", np.float32), g.const(2.0))
    ),
    "times two masks": lambda g, h: g.op(
        "Mul",
        g.op("Mul", h, float_of(g, full(g, "mask", np.bool_))),
        float_of(g, full(g, "mask2", np.bool_)),
    ),
    "a comparison": lambda g, h: float_of(g, positive(g, h)),
    "one hot": one_hot,
    "scattered": scattered,
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_zeros_is_found(source: str) -> None:
    graph = proven(contraction(SOURCES[source]), sizes={"batch": 2, "seq": 3})
    found = the_one(graph)
    assert found.operand == 0
    assert kinds(graph, found) == {"m": "o0 o1", "k": "r0", "n": "o2"}
    assert found.where and str(found).startswith("operand 0 is 0 where")


def test_dropout_in_training_form_is_a_source() -> None:
    """Its result is not deterministic, so it cannot be audited."""
    proto = contraction(lambda g, h: g.op("Dropout", h, g.const(0.5), g.const(True, np.bool_)))
    assert the_one(analysed(proto)[0]).name.startswith("dropout")


def _split(g: GraphBuilder, r: str) -> str:
    four = g.op("Reshape", r, g.ints(0, 0, 2, 3))
    return g.op("Reshape", g.op("Transpose", four, perm=[0, 1, 3, 2]), g.ints(0, 0, K))


def _halves(g: GraphBuilder, r: str) -> str:
    first = g.op("Slice", r, g.ints(0), g.ints(3), g.ints(2))
    last = g.op("Slice", g.op("Exp", r), g.ints(3), g.ints(6), g.ints(2))
    return g.op("Concat", last, first, axis=2)


WAYS: dict[str, Make] = {
    "transposed and back": lambda g, r: g.op(
        "Transpose", g.op("Transpose", r, perm=[2, 1, 0]), perm=[2, 1, 0]
    ),
    "in heads": _split,
    "one half": _halves,
    "a dimension more": lambda g, r: g.op("Squeeze", g.op("Unsqueeze", r, g.ints(1)), g.ints(1)),
    "backwards": lambda g, r: g.op(
        "Slice", r, g.ints(-1), g.ints(-(1 << 40)), g.ints(2), g.ints(-1)
    ),
    "scaled": lambda g, r: g.op("Div", g.op("Mul", r, g.const(0.5)), g.const(3.0)),
    "root": lambda g, r: g.op("Sqrt", r),
    "negated": lambda g, r: g.op("Neg", r),
    "tanh": lambda g, r: g.op("Tanh", r),
    "clipped": lambda g, r: g.op("Min", r, g.const(1.0)),
    "channel weights": lambda g, r: g.op("Mul", r, g.weight("c", rows(RNG, K))),
    "dropout": lambda g, r: g.op("Dropout", r),
    "twice": lambda g, r: g.op("Relu", g.op("Relu", r)),
}


@pytest.mark.parametrize("way", WAYS)
def test_zeros_pass_what_keeps_them(way: str) -> None:
    found = the_one(proven(contraction(lambda g, h: WAYS[way](g, g.op("Relu", h)))))
    assert all("relu" in where for where in found.where)


def gelu_in_parts(g: GraphBuilder, h: str) -> str:
    erf = g.op("Erf", g.op("Div", h, g.const(2**0.5)))
    return g.op("Mul", g.op("Mul", h, g.op("Add", erf, g.const(1.0))), g.const(0.5))


def _row_mask(g: GraphBuilder, h: str) -> str:
    mask = g.op("Unsqueeze", g.input("mask", np.int64, TOKENS), g.ints(-1))
    return g.op("Mul", h, float_of(g, mask))


OTHERS: dict[str, Make] = {
    "as it is": lambda g, h: h,
    "gelu": lambda g, h: g.op("Gelu", h),
    "gelu in parts": gelu_in_parts,
    "gelu of an input": lambda g, h: gelu_in_parts(g, full(g, "x2", np.float32)),
    "square of an input": lambda g, h: g.op("Mul", *[full(g, "x2", np.float32)] * 2),
    "an input with channel weights": lambda g, h: g.op(
        "Mul", full(g, "x2", np.float32), g.weight("c", rows(RNG, K))
    ),
    "leaky": lambda g, h: g.op("LeakyRelu", h),
    "prelu": lambda g, h: g.op("PRelu", h, g.const(0.25)),
    "sigmoid": lambda g, h: g.op("Sigmoid", h),
    "silu": lambda g, h: g.op("Mul", h, g.op("Sigmoid", h)),
    "tanh": lambda g, h: g.op("Tanh", h),
    "elu": lambda g, h: g.op("Elu", h),
    "clip to -1..1": lambda g, h: g.op("Clip", h, g.const(-1.0), g.const(1.0)),
    "exp of relu": lambda g, h: g.op("Exp", g.op("Relu", h)),
    "relu + bias": lambda g, h: g.op("Add", g.op("Relu", h), g.weight("c", rows(RNG, K))),
    "residual": lambda g, h: g.op("Add", h, g.op("Relu", h)),
    "layer norm of relu": lambda g, h: g.op(
        "LayerNormalization", g.op("Relu", h), g.weight("c", rows(RNG, K)), axis=-1
    ),
    "softmax": lambda g, h: g.op("Softmax", h, axis=-1),
    "leaky by where": lambda g, h: g.op("Where", positive(g, h), h, g.op("Mul", h, g.const(0.1))),
    "rows of a padding mask": _row_mask,
    "a channel's constant zeros": lambda g, h: g.op(
        "Mul", h, g.weight("c", np.arange(K, dtype=np.float32))
    ),
    "hot and cold": lambda g, h: g.op(
        "OneHot",
        g.op("ArgMax", h, axis=-1, keepdims=0),
        g.const(K, np.int64),
        g.const((0.5, 1.0)),
    ),
    "scatter over values": lambda g, h: g.op(
        "ScatterElements", h, g.op("Cast", g.op("Mul", h, g.const(0.0)), to=INT), h, axis=2
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_nothing_else_is_said_to_be_sparse(other: str) -> None:
    graph, _ = analysed(contraction(OTHERS[other]), "mask" if "mask" in other else None)
    assert not everything(graph)


def test_constant_zeros_are_known_before() -> None:
    """A pruned weight is no operand with zeros of the run."""
    weight = rows(RNG, 64, 5)
    weight[np.arange(64) % 3 > 0] = 0

    def build(g: GraphBuilder) -> None:
        y = g.op("MatMul", g.input("x", np.float32, ("rows", 64)), g.weight("w", weight))
        g.output(y, "y", np.float32, ("rows", 5))

    graph, _ = analysed(built(build))
    assert graph["w"].fills
    assert not operands(graph)


def test_a_product_of_two_inputs() -> None:
    """Either may be the mask; a vector of one of them is none of elements."""

    def build(g: GraphBuilder) -> None:
        h = g.op("Mul", full(g, "x", np.float32), full(g, "mask", np.float32))
        h = g.op("Mul", h, g.input("scale", np.float32, (K,)))
        y = g.op("MatMul", h, g.weight("w", rows(RNG, K, N)))
        g.output(y, "y", np.float32, (*TOKENS, N))

    assert [where.split("[")[0] for where in the_one(proven(built(build))).where] == ["mask", "x"]


def masked_weight(shape: tuple[int, int], mask: tuple[int, int], transposed: int = 0) -> Graph:
    """y = x @ (w * mask), or with the masked weight transposed."""

    def build(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("rows", K))
        m = g.input("mask", np.float32, mask)
        w = g.op("Mul", g.weight("w", rows(RNG, *shape)), m)
        y = g.op("Gemm", x, w, g.weight("c", rows(RNG, N)), transB=transposed)
        g.output(y, "y", np.float32, ("rows", N))

    return proven(built(build))


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_masked_weight_is_the_other_operand(transposed: int) -> None:
    shape = (N, K) if transposed else (K, N)
    graph = masked_weight(shape, shape, transposed)
    found = the_one(graph)
    assert found.operand == 1 and [where.split("[")[0] for where in found.where] == ["mask"]
    assert kinds(graph, found) == {"m": "o1", "n": "o0", "k": "r0"}


@pytest.mark.parametrize("mask", [(K, 1), (1, N), (1, 1)])
def test_a_mask_over_whole_rows_or_columns_is_not_one_over_elements(mask: tuple[int, int]) -> None:
    assert not operands(masked_weight((K, N), mask))


def test_both_operands_may_be_sparse() -> None:
    model = masked_mlp(MlpConfig((16, 32, 16)), np.random.default_rng(0))
    graph, _ = analysed(model)
    assert [[f.operand for f in found] for found in operands(graph)] == [[1], [0, 1]]


@pytest.mark.parametrize(
    ("bad", "where"), [(np.nan, (0, 0)), (np.inf, (3, 4)), (-np.inf, (K - 1, N - 1))]
)
def test_a_weight_that_is_not_finite_is_refused(bad: float, where: tuple[int, int]) -> None:
    weight = rows(RNG, K, N)
    weight[where] = bad
    weight[-1, -1] = bad  # only the first one is named
    refusal = the_refusal(analysed(contraction(SOURCES["relu"], weight))[0])
    assert refusal.code is Code.NON_FINITE_WEIGHT and refusal.code.id == "PIT003"
    assert f"'w' holds {bad} at {list(where)}" in refusal.reason
    assert refusal.node.startswith("matmul")


def test_a_weight_behind_movement_is_looked_at() -> None:
    weight = rows(RNG, N, 2, 3)
    weight[4, 1, 2] = np.inf

    def build(g: GraphBuilder) -> None:
        r = g.op("Relu", g.input("x", np.float32, ("rows", K)))
        whole = g.op("Reshape", g.weight("w", weight), g.ints(N, K))
        y = g.op("MatMul", r, g.op("Transpose", whole, perm=[1, 0]))
        g.output(y, "y", np.float32, ("rows", N))

    graph = Graph(ir.from_proto(built(build)))  # as it is: normalised, it is one constant
    fill_facts(graph)
    assert "'w' holds inf at [4, 1, 2]" in the_refusal(graph).reason


def test_a_bias_may_be_infinite() -> None:
    """It is added, not multiplied by 0."""

    def build(g: GraphBuilder) -> None:
        r = g.op("Relu", g.input("x", np.float32, ("rows", K)))
        bias = np.full(N, np.inf, np.float32)
        y = g.op("Gemm", r, g.weight("w", rows(RNG, K, N)), g.weight("c", bias))
        g.output(y, "y", np.float32, ("rows", N))

    assert the_one(analysed(built(build))[0]).operand == 0


def convolution(channels: int, filters: np.ndarray, group: int) -> Graph:
    def build(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("images", channels, 6, 6))
        r = g.op("MaxPool", g.op("Relu", x), kernel_shape=[2, 2], strides=[2, 2])
        y = g.op("Conv", r, g.weight("w", filters), group=group, pads=[1, 1, 1, 1])
        g.output(y, "y", np.float32, ("images", len(filters), 3, 3))

    return proven(built(build))


def test_a_convolution_by_its_channels() -> None:
    graph = convolution(4, rows(RNG, 5, 4, 3, 3), 1)
    found = the_one(graph)
    assert found.operand == 0
    assert kinds(graph, found) == {
        "k": "r0",
        "n": "o1",
        "m": "o0",
    }  # places are read through a window


def test_a_convolution_in_groups_has_no_axis_of_channels() -> None:
    refusal = the_refusal(convolution(4, rows(RNG, 4, 2, 3, 3), 2))
    assert refusal.code is Code.AXIS_NOT_PIT


@pytest.mark.parametrize(
    ("activation", "parameters", "sparse"),
    [
        ("Relu", [], True),
        ("Clip", [0.0, 6.0], True),
        ("Clip", [-1.0, 1.0], False),
        ("LeakyRelu", [0.1], False),
    ],
)
def test_a_fused_convolution(activation: str, parameters: list[float], sparse: bool) -> None:
    def build(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("images", 4, 6, 6))
        fused = {"activation": activation} | (
            {"activation_params": parameters} if parameters else {}
        )
        h = g.op(
            "FusedConv", x, g.weight("w1", rows(RNG, 4, 4, 1, 1)), domain="com.microsoft", **fused
        )
        y = g.op("Conv", h, g.weight("w", rows(RNG, 5, 4, 1, 1)))
        g.output(y, "y", np.float32, ("images", 5, 6, 6))

    assert len(operands(proven(built(build)))) == int(sparse)


def test_the_largest_of_many_is_no_source() -> None:
    """In a whole image some element is positive; nor is one of small windows of other numbers 0."""

    def build(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("images", 4, 8, 8))
        whole = g.op("Flatten", g.op("GlobalMaxPool", g.op("Relu", x)))
        small = g.op("Flatten", g.op("MaxPool", x, kernel_shape=[2, 2], strides=[8, 8]))
        for name, value in (("y", whole), ("z", small)):
            out = g.op("MatMul", value, g.weight("w", rows(RNG, 4, N)))
            g.output(out, name, np.float32, ("images", N))

    graph = proven(built(build))
    assert not operands(graph)


def test_einsum_and_batches() -> None:
    def build(g: GraphBuilder) -> None:
        r = g.op("Relu", g.input("x", np.float32, ("b", K, "rows")))
        w = g.op("Sigmoid", g.input("w", np.float32, ("b", K, N)))
        y = g.op("Einsum", r, w, equation="bkm,bkn->bmn")
        g.output(y, "y", np.float32, ("b", "rows", N))

    model = ir.from_proto(built(build))
    graph = Graph(model)
    fill_facts(graph)
    found = the_one(graph)
    assert kinds(graph, found) == {"e": "o0", "m": "o1", "k": "r0", "n": "o2"}


def test_of_what_no_kernel_computes_the_first_operand_is_named() -> None:
    """Of a product it is the right one, whose zeros are skipped by any left one."""
    both = list[str]()

    def build(g: GraphBuilder) -> None:
        both.append(g.op("Relu", g.input("x", np.float32, ("b", K, "rows"))))
        both.append(g.op("Relu", g.input("w", np.float32, (N, K, 1))))
        g.output(g.op("Identity", g.op("Conv", *both)), "y", np.float32, ("b", N, "rows"))

    (refusal,) = (r.refusal for r in lower(built(build)).report.nodes if r.op_type == "Conv")
    assert refusal is not None
    assert (refusal.code, refusal.value) == (Code.NO_LOWERING, both[0])


def test_a_row_vector_has_no_rows_of_its_own() -> None:
    def build(g: GraphBuilder) -> None:
        r = g.op("Relu", g.input("x", np.float32, (1, K)))
        y = g.op("MatMul", r, g.weight("w", rows(RNG, K, N)))
        g.output(y, "y", np.float32, (1, N))

    graph = proven(built(build))
    assert "m" not in kinds(graph, the_one(graph))


def test_a_sum_of_one_term_is_no_contraction() -> None:
    def build(g: GraphBuilder) -> None:
        r = g.op("Relu", g.input("x", np.float32, ("rows", 1)))
        y = g.op("MatMul", r, g.weight("w", rows(RNG, 1, N)))
        g.output(y, "y", np.float32, ("rows", N))

    assert not everything(analysed(built(build))[0])


def test_facts_are_said_where_they_are_read() -> None:
    """Zeros that no contraction gets to see have no test of their own: it would cost time."""

    def build(g: GraphBuilder) -> None:
        r = g.op("Relu", g.input("x", np.float32, ("rows", K)))
        y = g.op("MatMul", g.op("Exp", g.op("Neg", r)), g.weight("w", rows(RNG, K, N)))
        g.output(y, "y", np.float32, ("rows", N))
        g.output(g.op("Softmax", r, axis=-1), "z", np.float32, ("rows", K))

    graph, _ = analysed(built(build))
    tests = [t for x in graph.values.values() for f in x.fills for t in f.region]
    assert not any(t.pred == "nz" for t in tests)


def graph_of(path: Path) -> Graph:
    model = load_model(path)
    normalise(model)
    graph = Graph(model)
    fill_facts(graph, {"attention_mask"} & set(graph.inputs))
    return graph


# by family: contractions with a sparse operand. ResNet: each convolution but the first; the
# classifier comes after a mean over the image.
EXPECTED = {
    "opt": 2,
    "opt-cache": 2,
    "opt-merged": 4,
    "opt-past": 2,
    "t5": 3,
    "t5-past": 2,
    "t5-encoder": 2,
    "resnet": 6,
    "switch": 5,
    "experts-all": 1,
    "experts-loop": 3,
}


def family(path: Path) -> str:
    """The model, without attention and exporter."""
    return path.stem.rsplit("-", 2)[0]


WEIGHTS = ("modernbert-sdpa-traced",)  # of attention, under a mask of many parts
FILES = sorted(FIXTURES.glob("*.onnx"))
ONE_EACH = {family(path): path for path in FILES}  # of the others one is enough


@pytest.mark.parametrize(
    "path",
    [f for f in FILES if family(f) in EXPECTED or f == ONE_EACH[family(f)]],
    ids=lambda path: path.stem,
)
def test_exports(path: Path) -> None:
    graph = graph_of(path)
    weights = path.stem in WEIGHTS
    expected = EXPECTED.get(family(path), weights)
    assert len(everything(graph)) == len(operands(graph)) == expected
    for (operand,) in operands(graph):
        assert operand.operand == 0 and kinds(graph, operand)["k"] == "r0"


def test_models_of_the_zoo() -> None:
    rng = np.random.default_rng(0)
    graph, _ = analysed(opt_ffn(OptConfig(), rng))
    assert len(operands(graph)) == OptConfig().layers
    graph, _ = analysed(cnn(CnnConfig(), rng))
    config = CnnConfig()
    assert len(operands(graph)) == len(config.channels) * config.depth - 1
