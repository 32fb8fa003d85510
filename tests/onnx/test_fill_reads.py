"""Where facts of operands hold of the result (passes/facts/fill.py): exact regions, audited."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import dim_index, poly
from pitc.ir.region import Region, Test, position
from pitc.passes.facts.fill import _over, fill_facts
from tests.fact_check import proven
from tests.fact_texts import fills_of, text_model

COLUMN, ROW = "all d-1: flag[d0, d-1, d2] != 0", "all d-1: flag[d0, d1, d-1] != 0"
WILD = "l = Log (mask) z = Where (flag, nought, l)"  # 0 where the flag is on, perhaps NaN elsewhere
TAME = "l = Tanh (mask) z = Where (flag, nought, l)"

FILLS = {
    # the same value at another place is another factor
    f"{WILD} p = MatMul (z, z)": [],
    f"{TAME} p = MatMul (z, z)": [f"0.0 where {COLUMN}", f"0.0 where {ROW}"],
    f'{WILD} p = Einsum <equation = "abc,abc->abc"> (z, z)': [
        "0.0 where flag[d0, d1, d2] != 0",
    ],
    # what is known of both tells more than a test of lengths
    "j = Cast <to = 7> (flag) p = Less (axis, j)": ["0 where everywhere"],
    "j = Cast <to = 7> (mask) p = Less (axis, j)": [
        "1 where 1 < j[d0, d1, d2]",
        "0 where 1 >= j[d0, d1, d2]",
    ],
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", FILLS)
def test_fill_facts_of_reads(body: str) -> None:
    graph = proven(text_model(body), sizes={"n": 2})
    assert fills_of(graph, "p") == FILLS[body]


def test_a_matrix_times_itself_is_nan_where_it_is_not_finite() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[2, 2] x, bool[2, 2] off) => (float[2, 2] y) <float zero = {0}>
        { l = Log (x) z = Where (off, zero, l) y = MatMul (z, z) }""")
    feed = {
        "x": np.array([[1, 1], [-1, -1]], np.float32),
        "off": np.array([[True, True], [False, False]]),
    }
    run = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.isnan(np.asarray(run.run(None, feed)[0])).all()
    assert fills_of(filled(proto), "y") == []


def filled(proto: onnx.ModelProto) -> Graph:
    """A model's fill facts, of the model as it is."""
    graph = Graph(ir.from_proto(proto))
    fill_facts(graph)
    return graph


def test_zeros_of_a_further_output_are_not_tested() -> None:
    body = """t = Relu (mask) m, o = MaxPool <kernel_shape = [2]> (t) i = Cast <to = 1> (o)
        a = MatMul (m, square3) b = MatMul (i, square3) p = Add (a, b)"""
    proto = text_model(body)
    proto.graph.initializer.append(
        onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "square3")
    )
    graph = filled(proto)
    assert fills_of(graph, "m") == ["0 where m[d0, d1, d2] == 0"]
    assert fills_of(graph, "o") == []


def test_of_whole_lines_of_scattered_zeros_nothing_is_said() -> None:
    graph = filled(text_model("t = Tanh (mask) r = Relu (t) p = MatMul (r, square)"))
    view = NodeView(graph, graph.nodes[-1])
    i, j, k = (dim_index(d, poly(4)) for d in (0, 1, 2))

    def over(*tests: Test) -> str:
        return str(_over(view, Region(tests), range(2, 3)))

    zero = {x: Test(x, (i, j, k), "nz", False) for x in "tr"}
    aside = {x: Test(x, (i, i, j), "nz", False) for x in "tr"}
    assert over() == "everywhere"
    assert over(zero["t"]) == "all d-1: t[d0, d1, d-1] == 0" and over(zero["r"]) == "None"
    assert over(aside["r"]) == "r[d0, d0, d1] == 0"
    assert over(zero["t"], aside["r"]) == ("all d-1: t[d0, d1, d-1] == 0 and r[d0, d0, d1] == 0")
    assert over(zero["r"], aside["t"]) == "None" == over(zero["t"], zero["r"])
    assert over(position(k - 1), aside["r"]) == "None"
    assert over(position(k), aside["r"]) == "r[d0, d0, d1] == 0"


SCATTER = """<ir_version: 8, opset_import: ["" : 18]>
g (bool[t] hit, bool[t] other, float[t, 4] x, float[4, t] wide, bool[t, 4] off, float[u, 4] long)
  => (float[] y)
<float zero = {0}, int64[1] four = {4}, int64[1] couple = {2}, int64[1] one = {1}>
{
    n = NonZero (hit) h = Shape (hit) at = Transpose (n)
    pairs = NonZero (off) all = Transpose (pairs)
    k = Shape <start = 1> (n) rows = Concat <axis = 0> (k, four) lines = Concat <axis = 0> (four, k)
    new = GatherND (x, at) base = Where (off, zero, x) r = Unsqueeze (hit, one)
    each = Expand (at, rows) along = Expand (n, lines) turned = Transpose (base)
    two = Concat <axis = 0> (k, couple) twice = Expand (at, two)
    size = Concat <axis = 0> (h, h) square = ConstantOfShape (size)
    far = Where (r, zero, x) u = Shape (long) none = ConstantOfShape (u) ones = Transpose (new)
    BODY
}"""
MISSED = "0.0 where hit[d0] == 0 and off[d0, d1] != 0"
TURNED = "0.0 where hit[d1] == 0 and off[d1, d0] != 0"
WRITTEN = {
    "y = ScatterND (base, at, new)": [MISSED],
    'y = ScatterND <reduction = "add"> (base, at, new)': [MISSED],
    "y = ScatterElements (base, each, new)": [MISSED],
    "y = ScatterElements <axis = -2> (base, each, new)": [MISSED],
    "y = ScatterElements <axis = 1> (turned, along, ones)": [TURNED],
    "y = ScatterElements <axis = -1> (turned, along, ones)": [TURNED],
    # along an axis that the mask does not go along
    "y = ScatterElements <axis = 1> (base, each, new)": [],
    "y = ScatterElements (turned, along, ones)": [],
    # the base is 0 where it is overwritten
    "y = ScatterND (far, at, new)": [],
    # of another length
    "y = ScatterND (none, at, new)": [],
    # places in two dimensions, or from outside
    "s = GatherND (x, all) y = ScatterND (base, all, s)": [],
    "i = Abs (at) y = ScatterND (base, i, new)": [],
    # zeros are overwritten by zeros
    "s = GatherND (square, twice) y = ScatterND (square, twice, s)": ["0.0 where everywhere"],
}


@pytest.mark.parametrize("body", WRITTEN)
def test_what_is_not_written_stays(body: str) -> None:
    graph = filled(onnx.parser.parse_model(SCATTER.replace("BODY", body)))
    assert [f for f in fills_of(graph, "y") if "y[" not in f] == WRITTEN[body]
    assert all(isinstance(name, str) for name in graph.values)
