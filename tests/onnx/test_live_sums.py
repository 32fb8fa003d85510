"""Sums and scatters of live rows: gradients of biases, norms and tables, where the others are 0."""

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from pitc.passes.audit.packing import wrong_regions
from pitc.passes.regions.choose import Regions, choose_regions
from tests.fact_check import analysed
from tests.lower_support import check, lower
from tests.random_check import lowering_everything

HEAD = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[b, s, 64] x, int64[b, s] ids, int64[b, s] mask) => (OUTPUTS)
<int64[1] last = {-1}, int64[2] tokens = {0, 1}, int64[1] batch = {0}, float zero = {0},
 int64[2] table = {9, 64}, float negative = {-0.0}>
{
    u = Unsqueeze (mask, last) m = Cast <to = 1> (u) g0 = Mul (x, m) h = MatMul (g0, w)
    places = Unsqueeze (ids, last) BODY
}
"""


BATCHES = ((5, 0, 2), (5, 5), (0, 0), (1,), ())


def model(body: str, outputs: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(HEAD.replace("BODY", body).replace("OUTPUTS", outputs))
    w = (np.random.default_rng(0).normal(size=(64, 64)) / 8).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return proto


def chosen(body: str, outputs: str) -> tuple[set[str], Regions]:
    with lowering_everything():
        graph = analysed(model(body, outputs))[0]
        found = choose_regions(graph)
        assert list(wrong_regions(graph, found)) == []
    return {n.outputs[0].name or "" for n in found.forms}, found


def compare(body: str, outputs: str, batches: tuple[tuple[int, ...], ...] = BATCHES) -> None:
    """On ragged, full, empty batches and ones without a live row; ids of dead rows are out of range
    where the model itself looks up no such row.
    """
    proto = model(body, outputs)
    with lowering_everything():
        lowered = lower(proto, sparse=False)
    rng = np.random.default_rng(1)
    for lengths in batches:
        shape = (len(lengths), 5)
        mask = (np.arange(5) < np.array(lengths, int).reshape(-1, 1)).astype(np.int64)
        x = rng.normal(size=(*shape, 64)).astype(np.float32)
        feeds = {"x": x, "ids": rng.integers(0, 9, shape), "mask": mask.reshape(shape)}
        check(proto, lowered, feeds)


SUM = "db = ReduceSum <keepdims = KEEP> (h, tokens)"


@pytest.mark.parametrize(("keep", "shape"), [("0", "64"), ("1", "1, 1, 64")])
def test_a_sum_of_rows_runs_on_live_rows(keep: str, shape: str) -> None:
    body, outputs = SUM.replace("KEEP", keep), f"float[{shape}] db"
    packed, found = chosen(body, outputs)
    assert {"h", "db"} <= packed
    assert set(found.demand.exits) == {"db"}  # h does not come back
    compare(body, outputs)


def test_rows_of_several_dimensions_are_joined() -> None:
    body = """four = Constant <value_ints = [0, 0, 4, 16]> () h4 = Reshape (h, four)
        db = ReduceSum <keepdims = 0> (h4, tokens)"""
    assert "db" in chosen(body, "float[4, 16] db")[0]
    compare(body, "float[4, 16] db")


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize(("axis", "kept"), [("batch", "s"), ("line", "b")])
def test_rows_are_added_to_those_of_one_coordinate(axis: str, kept: str, keep: int) -> None:
    """Sums over a batch, and over the tokens of each sequence (a mean of tokens)."""
    one = ("1, " * keep, "") if axis == "batch" else ("", ", 1" * keep)
    body = f"line = Constant <value_ints = [1]> () db = ReduceSum <keepdims = {keep}> (h, {axis})"
    outputs = f"float[{one[0]}{kept}{one[1]}, 64] db"
    packed, found = chosen(body, outputs)
    assert {"h", "db"} <= packed and set(found.demand.exits) == {"db"}
    compare(body, outputs)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("db = ReduceMean <keepdims = 0> (h, tokens)", "float[64] db"),
        ("db = ReduceMax <keepdims = 0> (h, tokens)", "float[64] db"),
        ("e = Exp (h) db = ReduceSum <keepdims = 0> (e, tokens)", "float[64] db"),
        ("db = ReduceSumSquare <keepdims = 0> (h, tokens)", "float[64] db"),
    ],
    ids=["mean", "largest", "rows of 1", "squares"],
)
def test_other_reductions_take_whole_values(body: str, outputs: str) -> None:
    assert "db" not in chosen(body, outputs)[0]
    compare(body, outputs, BATCHES[:-1])  # of no elements kernels differ


SCATTER = """zeros = Expand (BASE, table) dt = ScatterND <reduction = "MODE"> (zeros, places, h)"""
TABLE = "float[9, 64] dt"


def test_a_scatter_adds_live_rows() -> None:
    body = SCATTER.replace("BASE", "zero").replace("MODE", "add")
    packed, found = chosen(body, TABLE)
    assert {"h", "dt"} <= packed
    assert set(found.demand.exits) == {"dt"}
    compare(body, TABLE)


@pytest.mark.parametrize(("base", "mode"), [("zero", "none"), ("zero", "max")])
def test_other_scatters_take_whole_values(base: str, mode: str) -> None:
    body = SCATTER.replace("BASE", base).replace("MODE", mode)
    assert "dt" not in chosen(body, TABLE)[0]


def test_a_zero_of_the_other_sign_is_changed_by_adding_0() -> None:
    """Where the sign is seen, rows that add 0 to -0.0 may not be left out."""
    body = SCATTER.replace("BASE", "negative").replace("MODE", "add")
    seen = f"{body} y = Reciprocal (dt)"
    assert "dt" not in chosen(seen, "float[9, 64] y")[0]
    unseen = f"{body} y = Tanh (dt)"
    assert "dt" in chosen(unseen, "float[9, 64] y")[0]


def test_rows_that_are_not_0_are_added() -> None:
    body = f"""{SCATTER.replace("BASE", "zero").replace("MODE", "add")}""".replace("h)", "x)")
    assert "dt" not in chosen(body, TABLE)[0]
    compare(body, TABLE)
