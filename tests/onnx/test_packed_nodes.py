"""Nodes between a product and the mask that hides its padding: each runs on live rows, or stays for
a reason that names the value it is about. Smallest graphs; the answer is ONNX Runtime's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from pitc.ir import target as targets
from pitc.ir.constant import FillFact
from pitc.ir.index import ONE, Coords, Digit, dim_index
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, Test
from pitc.passes.exprs.coordinates import Paths
from pitc.passes.pipeline import Lowered, LowerOptions, analyse, run_passes
from pitc.passes.regions.candidates import Tried
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import Form, FormContext, PackCandidate
from pitc.passes.regions.forms import form_of
from tests.plan_reference import run_lowered

HEAD = '<ir_version: 9, opset_import: ["" : 17]> g '
SIZES = {"b": 3, "s": 5, "k": 6}
NUMBERS = {
    "w": (4, 4),
    "wide": (4, 6),
    "scale": (4,),
    "scales": (3, 4),
    "several": (2, 4, 6),
    "column": (4, 1),
    "left": (3, 6),
    "square": (6, 6),
    "three": (3, 1),
    "w5": (5, 5),
    "points": (4, 4, 1, 1),
    "table": (4, 1, 5),
}
INTEGERS: dict[str, object] = {
    "last": [-1],
    "zero": [0],
    "one": [1],
    "two": [2],
    "outer": [0, 2],
    "next": [1, 2],
    "second": 1,
    "order": [2, 0, 1],
    "starts": [1],
    "ends": [3],
    "halves": [1, 3],
    "around": [1, 2, 4],
    "one_four": [1, 4],
    "two_four": [2, 4],
    "twice": [1, 1, 2],
    "thrice": [1, 3, 1, 1],
    "parts": [3, 2, 4],
    "pair": [2, 3],
}
TOKENS = "float[b, s, 4] x, float[b, s] m"
MASK = "m3 = Unsqueeze (m, last) m4 = Unsqueeze (m3, last)"
SPREAD = """tokens = Shape <start = 0, end = 2> (x) to_one = Concat <axis = 0> (tokens, one_four)
    to_two = Concat <axis = 0> (tokens, two_four)"""
A = f"{MASK} a = MatMul (x, w)"
SUMMED = "float[b, 6] x, float[b, 5] dy, float[b] m"
D = "m2 = Unsqueeze (m, last) d = Mul (dy, m2)"
IMAGES = "float[b, s, 3, 4] x, float[b, s] m"

# inputs, output, body, and the nodes that run on live rows
PACKED = {
    "a sum of as many products as are found": (
        f"{SUMMED}, float[5] q",
        "float[6, u] z",
        f"""{D} found = NonZero (q) at = Squeeze (found, zero) some = Gather <axis = 1> (d, at)
        t = Transpose <perm = [1, 0]> (x) z = MatMul (t, some)""",
        "m2 d some t z",
    ),
    "two axes normalised": (
        IMAGES,
        "float[b, s, 3, 4] z",
        f"{A} y = LayerNormalization <axis = 2> (a, scales, scales) z = Mul (y, m4)",
        "a y",
    ),
    "no bias": (
        TOKENS,
        "float[b, s, 4] z",
        f"{A} y = LayerNormalization (a, scale) z = Mul (y, m3)",
        "a y",
    ),
    "channels": (
        "float[b, 4] x, float[b] m",
        "float[b, 4] z",
        """m2 = Unsqueeze (m, last) a = MatMul (x, w)
        y = BatchNormalization (a, scale, scale, scale, positive) z = Mul (y, m2)""",
        "a y",
    ),
    "channels turned": (
        TOKENS,
        "float[b, 4, s] z",
        """m2 = Unsqueeze (m, one) a = MatMul (x, w) t = Transpose <perm = [0, 2, 1]> (a)
        y = BatchNormalization (t, scale, scale, scale, positive) z = Mul (y, m2)""",
        "a t y",
    ),
    "largest": (
        IMAGES,
        "float[b, s, 4] z",
        f"{A} y = ReduceMax <axes = [2], keepdims = 0> (a) z = Mul (y, m3)",
        "a y",
    ),
    "sum of a kept axis": (
        IMAGES,
        "float[b, s, 3, 1] z",
        f"{A} y = ReduceSum (a, last) z = Mul (y, m4)",
        "a y",
    ),
    "slice of a kept axis": (
        TOKENS,
        "float[b, s, 2] z",
        f"{A} y = Slice (a, starts, ends, last) z = Mul (y, m3)",
        "a y",
    ),
    "parts of a kept axis": (
        TOKENS,
        "float[b, s, 3] z",
        f"{A} y0, y = Split <axis = -1> (a, halves) z = Mul (y, m3)",
        "a y0",
    ),
    "one place of a kept axis": (
        IMAGES,
        "float[b, s, 4] z",
        f"{A} y = Gather <axis = 2> (a, second) z = Mul (y, m3)",
        "a y",
    ),
    "places of the last axis": (
        IMAGES,
        "float[b, s, 3, 3] z",
        f"{A} y = Gather <axis = 3> (a, order) z = Mul (y, m4)",
        "a y",
    ),
    "a slope for each token's place": (
        f"{TOKENS}, float[s, 4] slope",
        "float[b, s, 4] z",
        f"{A} y = PRelu (a, slope) z = Mul (y, m3)",
        "a y",
    ),
    "one matrix for a pair of rows": (
        "float[2, s, 4] x, float[s] m",
        "float[2, s, 6] z",
        "m3 = Unsqueeze (m, outer) y = MatMul (x, wide) z = Mul (y, m3)",
        "y",
    ),
    "one column": (
        "float[2, s, 4] x, float[s] m",
        "float[2, s, 1] z",
        "m3 = Unsqueeze (m, outer) y = MatMul (x, column) z = Mul (y, m3)",
        "y",
    ),
    "axes exchanged": (
        "float[b, s, 2, 4] x, float[b, s] m",
        "float[b, s, 4, 2] z",
        f"{A} y = Transpose <perm = [0, 1, 3, 2]> (a) z = Mul (y, m4)",
        "a y",
    ),
    "a table on both sides of the tokens": (
        "float[b, 3, 4, s, 5] x, float[b, s] m",
        "float[b, 3, 4, s, 5] z",
        "m5 = Unsqueeze (m, around) a = MatMul (x, w5) y = Add (a, table) z = Mul (y, m5)",
        "a y",
    ),
    "one row for every sequence": (
        f"{TOKENS}, float[s, 1, 4] c",
        "float[b, s, 1, 6] z",
        f"{MASK} {SPREAD} e = Expand (c, to_one) u = MatMul (e, wide) z = Mul (u, m4)",
        "e u",
    ),
    "all of one point": (
        "float[1, 4] x, float[1, 1] m",
        "float[1, 1] z",
        "a = MatMul (x, wide) y = ReduceMax (a) z = Mul (y, m)",
        "a y",
    ),
    "scaled by extremes": (
        TOKENS,
        "float[b, s, 6] z",
        f"""{A} h = Mul (a, m3) q, unit, middle = DynamicQuantizeLinear (h)
        p = MatMulInteger (q, bytes, middle) f = Cast <to = 1> (p) y = Mul (f, unit)
        z = Mul (y, m3)""",
        "a h q p f y",
    ),
    "rounded to one grid": (
        TOKENS,
        "float[b, s, 4] z",
        f"""{A} q = QuantizeLinear (a, tenth, offset) y = DequantizeLinear (q, tenth, offset)
        z = Mul (y, m3)""",
        "a q y",
    ),
    "a choice of a constant": (
        TOKENS,
        "float[b, s, 4] z",
        f"{A} y = Where (chosen, a, scale) z = Mul (y, m3)",
        "a y",
    ),
    "columns by a constant": (
        "float[6, k] v, float[k] m",
        "float[3, k] z",
        "y = MatMul (left, v) z = Mul (y, m)",
        "y",
    ),
    "columns by a matrix of more dimensions": (
        "float[6, k] v, float[k] m",
        "float[1, 3, k] z",
        "t = Unsqueeze (left, zero) y = MatMul (t, v) z = Mul (y, m)",
        "y",
    ),
    "columns by a computed matrix": (
        "float[s, 6] x, float[6, k] v, float[k] m",
        "float[s, k] z",
        "y = MatMul (x, v) z = Mul (y, m)",
        "y",
    ),
    "columns and a bias": (
        "float[6, k] v, float[k] m",
        "float[3, k] z",
        "y = Gemm (left, v, three) z = Mul (y, m)",
        "y",
    ),
    "columns of rows": (
        "float[6, k] v, float[k] m",
        "float[3, k] z",
        "u = Relu (v) y0 = MatMul (square, u) y = MatMul (left, y0) z = Mul (y, m)",
        "u y0 y",
    ),
    "columns stored as rows": (
        "float[k, 6] v, float[k] m",
        "float[3, k] z",
        "y = Gemm <transB = 1> (left, v, three) z = Mul (y, m)",
        "y",
    ),
    "matrices of each point": (
        "float[b, 3, 4] x, float[b, 4, 5] v, float[b] m",
        "float[b, 3, 5] z",
        "m3 = Unsqueeze (m, next) y = MatMul (x, v) z = Mul (y, m3)",
        "y",
    ),
    "a sum of products": (
        SUMMED,
        "float[6, 5] z",
        f"{D} t = Transpose <perm = [1, 0]> (x) z = MatMul (t, d)",
        "m2 d t z",
    ),
    "a sum of products of two rows": (
        SUMMED.replace("6", "2, 3"),
        "float[2, 3, 5] z",
        f"{D} t = Transpose <perm = [1, 2, 0]> (x) z = MatMul (t, d)",
        "m2 d t z",
    ),
    "rows and a bias of rows": (
        "float[b, 4] x, float[b] m, float[b, 6] c",
        "float[b, 6] z",
        "m2 = Unsqueeze (m, last) y = Gemm (x, wide, c) z = Mul (y, m2)",
        "y",
    ),
    "rows by a matrix stored as columns": (
        "float[b, 4] x, float[b] m",
        "float[b, 4] z",
        "m2 = Unsqueeze (m, last) y = Gemm <transB = 1> (x, w) z = Mul (y, m2)",
        "y",
    ),
}

# inputs, output, body, the node that stays, why, and the value that this is about
STAYS = {
    "a scale for each place": (
        f"{TOKENS}, float[s, 4] g",
        "float[b, s, 4] z",
        f"{A} y = LayerNormalization (a, g) z = Mul (y, m3)",
        ("y", Code.LAYOUT, "scale or bias depends on the packed axis", ""),
    ),
    "a scale of unknown size": (
        "float[b, s, 4] x, float[b, s] m, float[4, k] v, float[1, 1, k] g",
        "float[b, s, k] z",
        "m3 = Unsqueeze (m, last) a = MatMul (x, v) y = LayerNormalization (a, g) z = Mul (y, m3)",
        ("y", Code.DYNAMIC_DIM, "must be reshaped", "g"),
    ),
    "channels that are no first axis": (
        TOKENS.replace("s", "5"),
        "float[b, 5, 4] z",
        f"{A} y = BatchNormalization (a, five, five, five, fives) z = Mul (y, m3)",
        ("y", Code.LAYOUT, "the channels are not the first", "a"),
    ),
    "a row that is also repeated": (
        f"{TOKENS}, float[s, 1, 4] c",
        "float[b, s, 2, 6] z",
        f"{MASK} {SPREAD} e = Expand (c, to_two) u = MatMul (e, wide) z = Mul (u, m4)",
        ("e", Code.LAYOUT, "the operand is read at", "c"),
    ),
    "repeated in turn": (
        TOKENS,
        "float[b, s, 8] z",
        f"{A} y = Tile (a, twice) z = Mul (y, m3)",
        ("y", Code.LAYOUT, "4 elements are repeated in turn", "a"),
    ),
    "images that are read whole or not at all": (
        "float[2, 4, 8, 8] x, float[1] m",
        "float[2, 4, 4, 4] z",
        """c = Conv (x, points) y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
        z = Mul (y, m)""",
        ("y", Code.NO_LOWERING, "along dimension 0 only", ""),
    ),
    "images between the pixels": (
        "float[b, s, 4, 4] x, float[b, s] m",
        "float[b, s, 8, 8] z",
        f'{A} y = Resize <mode = "linear"> (a, , factors) z = Mul (y, m4)',
        ("y", Code.NO_LOWERING, "along dimension 0 only", ""),
    ),
    "elements that others name": (
        f"{TOKENS}, int64[b, s, 4] at",
        "float[b, s, 4] z",
        f"{A} y = GatherElements <axis = 2> (a, at) z = Mul (y, m3)",
        ("y", Code.NO_LOWERING, "along dimension 0 only", ""),
    ),
    "the same weights for every query": (
        "float[b, s, 4] x, bool[b, s] m, float[b, 1, s] q, bool[b, 3] other",
        "float[b, 3, 1, 4] z",
        """v = MatMul (x, w) m3 = Unsqueeze (m, one) s1 = Where (m3, q, least)
        p = Softmax <axis = -1> (s1) p4 = Unsqueeze (p, one) v4 = Unsqueeze (v, one)
        values = Expand (v4, thrice) y = MatMul (p4, values) o4 = Unsqueeze (other, pair)
        z = Where (o4, y, nought)""",
        ("y", Code.LAYOUT, "the probabilities lack the query or the key axis", "p4"),
    ),
    "a triangle": (
        TOKENS,
        "float[b, s, 4] z",
        f"{A} y = Trilu (a) z = Mul (y, m3)",
        ("y", Code.NO_LOWERING, "along dimension 0 only", ""),
    ),
    "a matrix for each of two": (
        "float[2, s, 4] x, float[s] m",
        "float[2, s, 6] z",
        "m3 = Unsqueeze (m, outer) y = MatMul (x, several) z = Mul (y, m3)",
        ("y", Code.LAYOUT, "the right operand is not a matrix", "several"),
    ),
    "a sum of ones, beside one of zeros": (
        SUMMED,
        "float[6, 5] z",
        f"""{D} ones = Exp (d) t = Transpose <perm = [1, 0]> (x) a = MatMul (t, d)
        y = MatMul (t, ones) z = Add (a, y)""",
        ("y", Code.NO_FACT, "every part of it is read", "z"),
    ),
    "a bias added to a sum": (
        SUMMED,
        "float[6, 5] z",
        f"{D} t = Transpose <perm = [1, 0]> (x) z = Gemm (t, d, five)",
        ("z", Code.LAYOUT, "a bias is added to the sum", ""),
    ),
    "a sum of products of rows of unknown size": (
        SUMMED.replace("6", "k, 3"),
        "float[k, 3, 5] z",
        f"{D} t = Transpose <perm = [1, 2, 0]> (x) z = MatMul (t, d)",
        ("z", Code.DYNAMIC_DIM, "extents that are joined", ""),
    ),
    "a sum of products in float64": (
        SUMMED.replace("float", "double"),
        "double[6, 5] z",
        f"{D} t = Transpose <perm = [1, 0]> (x) z = MatMul (t, d)",
        ("z", Code.NO_LOWERING, "float32 only", ""),
    ),
    "a matrix of unknown size, and more dimensions": (
        "float[b, 4] x, float[b] m, float[1, 4, k] v",
        "float[1, b, k] z",
        "m3 = Unsqueeze (m, outer) y = MatMul (x, v) z = Mul (y, m3)",
        ("y", Code.DYNAMIC_DIM, "the right operand must be reshaped to a matrix", "v"),
    ),
    "columns by a matrix of unknown size": (
        "float[1, s, 6] x, float[6, k] v, float[k] m",
        "float[1, s, k] z",
        "y = MatMul (x, v) z = Mul (y, m)",
        ("y", Code.DYNAMIC_DIM, "the left operand must be reshaped to a matrix", "x"),
    ),
    "columns by a matrix for each of two": (
        "float[2, 3, 6] x, float[6, k] v, float[k] m",
        "float[2, 3, k] z",
        "y = MatMul (x, v) z = Mul (y, m)",
        ("y", Code.LAYOUT, "the left operand is not a matrix", "x"),
    ),
    "parts of columns": (
        "float[6, 8] v, float[2] m",
        "float[3, 2, 4] z",
        "y = MatMul (left, v) r = Reshape (y, parts) m2 = Unsqueeze (m, last) z = Mul (r, m2)",
        ("y", Code.LAYOUT, "the columns of the right operand cannot be gathered", "v"),
    ),
    "columns by a vector": (
        "float[6] x, float[6, k] v, float[k] m",
        "float[k] z",
        "y = MatMul (x, v) z = Mul (y, m)",
        ("y", Code.LAYOUT, "the left operand is not a matrix", "x"),
    ),
}


def parsed(inputs: str, output: str, body: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEAD} ({inputs}) => ({output}) {{ {body} }}")
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in NUMBERS.items()
    }
    arrays |= {"five": np.ones(5, np.float32), "fives": np.full(5, 2, np.float32)}
    arrays |= {"positive": np.ones(4, np.float32), "bytes": np.ones((4, 6), np.int8)}
    arrays |= {"least": np.array(-np.inf, np.float32), "nought": np.array(0, np.float32)}
    arrays |= {"tenth": np.array(0.1, np.float32), "offset": np.array(7, np.uint8)}
    arrays |= {"factors": np.array([1, 1, 2, 2], np.float32)}
    arrays |= {"chosen": np.array([True, False, True, True])}
    arrays |= {name: np.asarray(x, np.int64) for name, x in INTEGERS.items()}
    for name in sorted({name for node in model.graph.node for name in node.input} & set(arrays)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(arrays[name]), name))
    return model


def lower(model: onnx.ModelProto) -> Lowered:
    return run_passes(ir.serde.deserialize_model(model), LowerOptions())


def check(model: onnx.ModelProto, lowered: Lowered) -> None:
    """No token live, all, one, some."""
    found = ir.serde.serialize_model(lowered.model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    for share in (0.0, 1.0, 0.1, 0.6):
        feeds = {}
        for value in model.graph.input:
            tensor = value.type.tensor_type
            shape = [SIZES.get(d.dim_param, d.dim_value) for d in tensor.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            live = rng.random(shape) < share
            feeds[value.name] = (live if value.name == "m" else rng.normal(size=shape)).astype(
                dtype
            )
        for x, y in zip(run_lowered(found, feeds), session.run(None, feeds), strict=True):
            want = np.asarray(y)
            assert x.shape == want.shape
            np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    eager = replace(targets.CPU, flops_per_byte=0, least_extent=1)
    monkeypatch.setattr(targets, "CPU", eager)
    with np.errstate(invalid="ignore"):  # of a softmax of no key
        yield


@pytest.mark.parametrize("case", PACKED)
def test_runs_on_live_rows(case: str) -> None:
    inputs, output, body, nodes = PACKED[case]
    model = parsed(inputs, output, body)
    lowered = lower(model)
    packed = [r.node for r in lowered.report.nodes if r.lowering != "ordinary"]
    assert packed == nodes.split(), [str(r.refusal) for r in lowered.report.nodes]
    check(model, lowered)


@pytest.mark.parametrize("case", STAYS)
def test_stays(case: str) -> None:
    inputs, output, body, (name, code, reason, value) = STAYS[case]
    model = parsed(inputs, output, body)
    lowered = lower(model)
    (record,) = (r for r in lowered.report.nodes if r.node == name)
    given = record.refusal
    assert given is not None, record
    (refusal,) = (r for r in (given, given.also) if r is not None and reason in r.reason)
    assert (refusal.code, refusal.value) == (code, value), refusal
    check(model, lowered)


def test_what_broadcasts_as_it_is_is_not_reshaped() -> None:
    model = parsed(IMAGES, "float[b, s, 3, 4] z", f"{A} y = Mul (a, scales) z = Mul (y, m4)")
    lowered = lower(model)
    assert "Reshape" not in [n.op_type for n in lowered.model.graph]
    check(model, lowered)


@pytest.mark.parametrize(("columns", "taken"), [((2, 2), True), ((2, 1), False), ((1, 2), False)])
def test_a_bias_of_heads_goes_in_front(columns: tuple[int, int], taken: bool) -> None:
    """The product adds it, if it has a number for each column."""
    model = parsed(
        TOKENS,
        "float[b, s, 2, 2] z",
        f"{A} r = Reshape (a, to_heads) y = Add (r, bias) z = Mul (y, m4)",
    )
    bias = np.random.default_rng(4).normal(size=columns).astype(np.float32)
    heads = np.asarray([0, 0, 2, 2])
    for name, array in (("bias", bias), ("to_heads", heads)):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    lowered = lower(model)
    assert ("Add" in [n.op_type for n in lowered.model.graph]) != taken
    check(model, lowered)


@pytest.mark.parametrize(
    ("choice", "stays"),
    [
        ("Where (live, a, scale)", False),
        ("Where (dead, scale, a)", False),
        ("Where (live, scale, a)", True),  # what is chosen is no row for each token
        ("Where (chosen, a, scale)", True),
        ("Where (some, a, scale)", True),
    ],
)
def test_what_is_chosen_at_every_live_row_is_the_result(choice: str, stays: bool) -> None:
    model = parsed(
        f"{TOKENS}, bool[b, s, 1] some",
        "float[b, s, 4] z",
        f"{A} live = Cast <to = 9> (m3) dead = Not (live) y = {choice}"
        " u = MatMul (y, w) z = Mul (u, m3)",
    )
    lowered = lower(model)
    assert "y" in [r.node for r in lowered.report.nodes if r.lowering == "packed"]
    assert ("Where" in [n.op_type for n in lowered.model.graph]) == stays
    check(model, lowered)


def test_rows_that_come_back_are_read_whole_by_another_product() -> None:
    """Rows of e are found by one mask, those of p, which reads all of e, by another one."""
    model = parsed(
        "float[s, 4] x, float[s] m, float[b, s] q, float[b] other",
        "float[b, 4] z",
        """n2 = Unsqueeze (other, last) q2 = Mul (q, m) e = MatMul (x, w) p = MatMul (q2, e)
        z = Mul (p, n2)""",
    )
    lowered = lower(model)
    packed = [r.node for r in lowered.report.nodes if r.lowering != "ordinary"]
    assert packed == ["q2", "e", "p"]
    assert [n.op_type for n in lowered.model.graph].count("MatMul") == 1
    check(model, lowered)


def test_sizes_of_a_packed_value_are_those_of_inputs() -> None:
    model = parsed(
        TOKENS, "float[b, s, 4] z, int64[3] n", f"{A} n = Shape (a) y = Relu (a) z = Mul (y, m3)"
    )
    lowered = lower(model)
    assert "MatMul" not in [n.op_type for n in lowered.model.graph]
    check(model, lowered)


def test_an_absent_bias_is_none() -> None:
    model = parsed(
        "float[b, 4] x, float[b] m",
        "float[b, 6] z",
        "m2 = Unsqueeze (m, last) y = Gemm (x, wide) z = Mul (y, m2)",
    )
    model.graph.node[1].input.append("")
    lowered = lower(model)
    assert [r.node for r in lowered.report.nodes if r.lowering != "ordinary"] == ["y"]
    check(model, lowered)


class Nowhere(Paths):
    """Coordinates that lead to no other value."""

    def reached(self, starts: Mapping[str, Sequence[Coords]]) -> dict[str, list[Coords]]:
        return {name: list(known) for name, known in starts.items()}


# inputs, output, node, its rule, and why it stays where its operand is not known to have the rows
RULES = {
    "normaliser": (
        *(TOKENS, "float[b, s, 4] z", "z = LayerNormalization (x, scale)"),
        ("normaliser", Code.AXIS_NOT_PIT, "rows are not read at the same packed row", "x"),
    ),
    "channels": (
        *("float[b, 4, s] x, float[b, s] m", "float[b, 4, s] z"),
        "z = BatchNormalization (x, scale, scale, scale, positive)",
        ("per_channel", Code.LAYOUT, "the channels are not the first dimension", "x"),
    ),
    "product": (
        *(TOKENS, "float[b, s, 6] z", "z = MatMul (x, wide)"),
        ("contraction", Code.AXIS_NOT_PIT, "not a row axis of the left operand", "x"),
    ),
    "reduction": (
        *(TOKENS, "float[b, s, 1] z", "z = ReduceMax <axes = [2]> (x)"),
        ("reduction", Code.AXIS_NOT_PIT, "the packed axis is reduced over", "x"),
    ),
    "movement": (
        *(IMAGES, "float[b, s, 4, 3] z", "z = Transpose <perm = [0, 1, 3, 2]> (x)"),
        ("movement", Code.LAYOUT, "the operand is read at", "x"),
    ),
    "part": (
        *(TOKENS, "float[b, s, 2] z", "z = Slice (x, starts, ends, two)"),
        ("along_axis", Code.AXIS_NOT_PIT, "operand 'x' is not packed alike", "x"),
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_by_one_rule_where_its_operand_has_the_rows(case: str) -> None:
    inputs, output, body, (rule, code, reason, value) = RULES[case]
    graph, _ = analyse(ir.serde.deserialize_model(parsed(inputs, output, body)), None)
    fact = graph["z"]
    assert fact.shape is not None and fact.expr is not None and fact.producer is not None
    extents = graph["m"].shape or ()
    dims = [fact.shape.index(extent) for extent in extents]
    coords = tuple(Digit(d, ONE, extent) for d, extent in zip(dims, extents, strict=True))
    places = tuple(dim_index(k, extent) for k, extent in enumerate(extents))
    domain = Domain(extents, frozenset([Test("m", places, "nz", False)]))
    fact.dead = graph["x"].dead = [domain.at(coords)]
    found = []
    for paths in (None, Nowhere(graph)):
        context = FormContext(graph, domain, {"z": [coords]}, paths)
        packing = context.packing_at("z", coords)
        assert packing is not None and packing.proof is not None
        found.append(form_of(PackCandidate(context, fact.producer, fact.expr, packing), Tried.DEAD))
    form, refusal = found
    assert isinstance(form, Form) and form.rule == rule, form
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.value) == (code, value), refusal
    assert reason in refusal.reason


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_a_term_is_left_out_only_if_it_is_zero(constant: float) -> None:
    """Whatever else is known of an operand at dead points."""
    body = "t = Transpose <perm = [1, 0]> (x) z = MatMul (t, dy)"
    model = ir.serde.deserialize_model(parsed(SUMMED, "float[6, 5] z", body))
    graph, _ = analyse(model, None)
    fact, extents = graph["z"], graph["dy"].shape
    assert fact.expr is not None and fact.producer is not None and extents is not None
    batch = extents[0]
    dead = Test("m", (dim_index(0, batch),), "nz", False)
    graph["dy"].fills = [FillFact(Region((dead,)), constant)]
    domain, rows = Domain((batch,), frozenset([dead])), (Digit(0, ONE, batch),)
    context = FormContext(graph, domain, {"dy": [rows]})
    (whole,) = context.undivided("z")
    form = form_of(PackCandidate(context, fact.producer, fact.expr, whole), Tried.TERMS)
    if constant == 0:
        assert isinstance(form, Form) and form.terms == domain
    else:
        assert isinstance(form, Refusal) and form.code is Code.NO_FACT
        assert form.reason == "no operand is 0 at dead points"
