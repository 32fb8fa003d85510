"""Values that are the same along a dimension: a test of them looks at one place of it."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, Poly, atom, dim_index, sym
from pitc.ir.region import SOME, Region, Test
from pitc.passes.audit.points import where
from pitc.passes.facts.fill import fill_facts
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import live_points
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.reading import Cut, reading_of
from pitc.passes.regions.same_along import is_same_along

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
    g (bool[b, s] m, bool[b, q, s] form, float[q] steps, float[b, q, s] x) => (bool y) {
      axis = Constant <value_ints=[1]> ()
      line = Unsqueeze (m, axis)
      shape = Shape (form)
      wide = Expand (line, shape)
      turned = Transpose <perm=[0, 2, 1]> (wide)
      hidden = Not (turned)
      mixed = Or (wide, form)
      number = Cast <to=1> (wide)
      turned_number = Cast <to=1> (turned)
      top = Constant <value_float=0.5> ()
      capped = Clip (number, , top)
      uncapped = Clip (x, , top)
      stepped = Add (turned_number, steps)
      summed = CumSum (number, axis)
      joined = Concat <axis=1> (wide, wide)
      soft = Softmax <axis=1> (number)
      y = Identity (hidden)
    }"""
b, s, q = sym("b"), sym("s"), sym("q")
B, S = dim_index(0, b), dim_index(1, s)
SAME = [
    *(("wide", 1), ("number", 1), ("capped", 1)),
    *(("turned", 2), ("hidden", 2), ("turned_number", 2)),
]
OTHER = [
    ("wide", 0),
    ("wide", 2),
    ("hidden", 1),
    ("mixed", 1),  # also of a value that is not
    ("stepped", 2),
    ("summed", 1),  # positions count
    ("joined", 1),  # pieces of other sizes
    ("soft", 1),  # computed from other places
    ("form", 1),
    ("uncapped", 1),  # the operand in front of one that is left out
    ("m", 0),
]


def analysed() -> Graph:
    graph = Graph(ir.from_proto(onnx.parser.parse_model(MODEL)))
    fill_facts(graph, [])
    return graph


def bound(n: int, extent: Poly) -> Poly:
    return atom(Digit(n, ONE, extent))


@pytest.mark.parametrize(("name", "dim"), SAME)
def test_what_is_spread_is_the_same(name: str, dim: int) -> None:
    assert is_same_along(analysed(), name, dim)


@pytest.mark.parametrize(("name", "dim"), OTHER)
def test_what_depends_on_the_place_is_not(name: str, dim: int) -> None:
    assert not is_same_along(analysed(), name, dim)


@pytest.mark.parametrize("dim", [-1, SOME - 1])
@pytest.mark.parametrize("yes", [False, True])
@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 1, 1), (2, 3, 0), (0, 3, 2), (2, 0, 3)])
def test_one_place_tells_and_none_where_there_is_none(
    dim: int, yes: bool, sizes: tuple[int, int, int]
) -> None:
    graph = analysed()
    test = Test("hidden", (B, S, bound(dim, q)), "nz", yes)
    reading = reading_of(graph, test, (b, s))
    assert reading is not None and Cut in map(type, reading.steps)
    live = live_points(Builder(graph), graph, Domain((b, s), frozenset([test])))
    graph.model.graph.sort()
    producer = graph["hidden"].producer
    assert producer is not None
    graph.model.graph.outputs[:] = [live, producer.outputs[0]]
    proto = ir.to_proto(graph.model)
    for value in proto.graph.output:
        value.ClearField("type")
    named = dict(zip("bsq", sizes, strict=True))
    rng = np.random.default_rng(3)
    feeds = {
        "m": rng.random((named["b"], named["s"])) < 0.5,
        "form": np.zeros((named["b"], named["q"], named["s"]), bool),
        "steps": np.zeros(named["q"], np.float32),
        "x": np.zeros((named["b"], named["q"], named["s"]), np.float32),
    }
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    got, hidden = map(np.asarray, session.run(None, feeds))
    points = (named["b"], named["s"])
    want = ~where(Region([test]), points, named, {**feeds, "hidden": hidden})
    np.testing.assert_array_equal(got, want)


def test_a_place_that_is_looked_at_twice_is_no_place_of_its_own() -> None:
    """m[d0, j, j]: which place along the other dimension decides, too."""
    graph = analysed()
    every = bound(-1, s)
    test = Test("square", (every, every), "nz", False)
    assert reading_of(graph, test, (b, s)) is None  # no such value
    paired = Test("hidden", (B, bound(-1, q), bound(-1, q)), "nz", False)
    reading = reading_of(graph, paired, (b, s))
    assert reading is None or Cut not in map(type, reading.steps)


def test_its_bytes_do_not_grow_with_the_dimension() -> None:
    graph = analysed()
    for name, grows in (("hidden", False), ("mixed", True)):
        index = (B, S, bound(-1, q)) if name == "hidden" else (B, bound(-1, q), S)
        reading = reading_of(graph, Test(name, index, "nz", False), (b, s))
        assert reading is not None
        assert ("q" in str(reading.touched)) == grows
