"""How tests are evaluated: over what they mention only, against their numeric meaning, and in
memory that is bounded by the tested value and the coordinates.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, Poly, atom, dim_index, poly, sym
from pitc.ir.region import SOME, Region, Test, position
from pitc.ir.target import CUDA
from pitc.passes.audit.points import where
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import live_points
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.live_tests import bytes_touched, can_compute, why_not
from pitc.passes.regions.reading import (
    Ask,
    Cut,
    Drop,
    Pick,
    Place,
    Split,
    Take,
    Turn,
    at_most,
    reading_of,
)

Array = np.ndarray
b, s, q, z = sym("b"), sym("s"), sym("q"), sym("z")
B, S, Q = dim_index(0, b), dim_index(1, s), dim_index(2, q)


def every(n: int, extent: Poly, stride: Poly = ONE) -> Poly:
    return atom(Digit(-n, stride, extent))


def some(n: int, extent: Poly, stride: Poly = ONE) -> Poly:
    return atom(Digit(SOME - n, stride, extent))


HEAD = every(2, poly(4), poly(64))  # the head of each column of a width of 256
DECLARED = """
    bool[b, s] m, bool[b, 1] column, float[b, 4, s, s] heads, float[b, s, s, 4] pairs,
    bool[b, 4, q, s] keys, float[s, 3, s] apart, int64[b] n, int32[s] lengths, bool[4] four,
    float[6] six, bool[s, s] square, bool[1] one, bool flag"""


def graph_of(opset: int = 20, inputs: str = DECLARED) -> Graph:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g ({inputs}) => (bool y) {{ y = Identity ({inputs.split()[-1]}) }}"""
    return Graph(ir.from_proto(onnx.parser.parse_model(text)))


GRAPH = graph_of()


def nz(name: str, *idx: Poly) -> Test:
    return Test(name, idx, "nz", False)


def axes_of(test: Test) -> list[object] | None:
    reading = reading_of(GRAPH, test, (b, s, q))
    return (
        None if reading is None else [a if isinstance(a, Place) else str(a) for a in reading.axes]
    )


STEPS = [
    (nz("m", B, S), (Ask,), ["d0", "d1"]),
    (nz("m", dim_index(1, b), dim_index(0, s)), (Pick, Ask), ["d1", "d0"]),
    (nz("m", B, every(1, s)), (Ask,), ["d0", "d-1"]),
    (nz("column", B, poly(0)), (Drop, Ask), ["d0"]),
    (nz("one", poly(0)), (Drop, Ask), []),
    (nz("flag"), (Ask,), []),
    # a digit of a bound dimension is a line by itself, however wide the dimension is
    (nz("heads", B, HEAD, every(1, s), S), (Ask,), ["d0", "(d-2//64%4)", "d-1", "d1"]),
    # places
    (nz("four", poly(2)), (Take, Ask), []),
    (nz("m", B, s - 1), (Cut, Ask), ["d0", Place(1)]),
    # a diagonal is as long as its line, and it is taken before the predicate
    (nz("pairs", B, every(1, s), every(1, s), HEAD), (Pick, Ask), ["d0", "d-1", "(d-2//64%4)"]),
    (nz("heads", B, HEAD, S, S), (Pick, Ask), ["d0", "(d-2//64%4)", "d1"]),
    # but dimensions that lie apart are brought side by side as flags
    (nz("apart", S, every(1, poly(3)), S), (Ask, Turn, Pick), ["d1", "d-1"]),
    # lines inside one another are what a Reshape sees
    (nz("six", 2 * every(1, poly(3)) + every(2, poly(2))), (Split, Ask), ["d-1", "d-2"]),
    (nz("m", B, s - 1 - every(1, s)), (Pick, Ask), ["d0", "d-1"]),
    (nz("m", B, S + z), (Pick, Ask), ["d0", "d1"]),
    # two tables, each of one dimension
    (
        nz("heads", B, HEAD, s - 1 - S, s - 1 - every(1, s)),
        (Pick, Pick, Ask),
        ["d0", "(d-2//64%4)", "d1", "d-1"],
    ),
]


@pytest.mark.parametrize(("test", "steps", "axes"), STEPS, ids=lambda x: str(x)[:40])
def test_steps(test: Test, steps: tuple[type, ...], axes: list[object]) -> None:
    reading = reading_of(GRAPH, test, (b, s, q))
    assert reading is not None
    assert tuple(map(type, reading.steps)) == steps
    assert axes_of(test) == axes
    assert reading.looks_up == any(step not in (Drop, Ask) for step in steps)


# bytes: of bool, float32 and int64 values, of flags, bytes and index tables
TOUCHED = [
    (nz("m", B, S), poly(0)),
    (nz("flag"), poly(0)),
    (Test("n", (B,), "nz", False), b * (8 + 1)),
    (Test("heads", (B, HEAD, S, S), "neg", True), 4 * b * s * (2 * 4 + 4 + 1 + 5) + 24 * s),
    (Test("six", (poly(1),), "small", True), poly(2 * 4 + 2 * 4 + 5)),
    (Test("lengths", (S,), "small", True), s * (4 + 4 + 2 * 4 + 5)),  # compared as float32
    (Test("lengths", (S,), "neg", True), s * (4 + 4 + 4 + 1)),
    # to bytes, turned, reduced
    (nz("m", B, every(1, s)), b * s * (2 + 1)),
    (nz("m", every(1, b), S), b * s * (2 + 2 + 1)),
    (Test("m", (every(1, b), some(1, s)), "nz", True), b * s * (2 + 1) + b),
    (Test("m", (some(1, b), every(1, s)), "nz", True), b * s * (2 + 2 + 1) + s),
    # one place, and one of a dimension that may be empty
    (nz("four", poly(2)), poly(2)),
    (nz("m", B, s - 1), 2 * b + b * (2 + 1)),
    # a comparison reads and makes flags over a table of its own lines
    (Test("n", (B, S), "below", True), 2 * b * s + 24 * s),
    (position(B - S), 2 * b * s + 24 * b * s),
    # side by side as flags
    (nz("apart", S, every(1, poly(3)), S), 15 * s * s + 6 * s * s + 24 * s + 6 * s + 9 * s),
    # one more element for each sequence, of flags
    (nz("m", B, S + z), 24 * s + 2 * b * s),
    (nz("column", B, S), 24 * s + 2 * b * s),
]


@pytest.mark.parametrize(("test", "touched"), TOUCHED, ids=lambda x: str(x)[:40])
def test_bytes(test: Test, touched: Poly) -> None:
    reading = reading_of(GRAPH, test, (b, s))
    assert reading is not None and reading.touched == touched


def test_bytes_of_all_tests() -> None:
    """Flags of each test meet over all points, are turned round and spread; on a GPU, and in old
    operator sets, they are counted as int32.
    """
    both = Domain((b, s), frozenset([nz("m", B, S), Test("n", (B, S), "below", True)]))
    assert bytes_touched(GRAPH, both) == (2 * b * s + 24 * s) + 2 * 3 * b * s + 2 * b * s
    counted = nz("m", B, every(1, s))
    cuda = graph_of()
    cuda.target = CUDA
    for graph in (graph_of(11), cuda):
        reading = reading_of(graph, counted, (b, s))
        assert reading is not None and reading.touched == b * s * (2 * 4 + 3)
    assert reading_of(graph_of(12), counted, (b, s)).touched == b * s * 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "test",
    [
        nz("m", B, every(1, s) + every(2, q)),  # more places than there are elements
        nz("m", some(1, b) + B, S),  # any two sequences
        nz("four", every(1, s)),
        nz("m", B),
        nz("unknown", B),
        Test("n", (B, every(1, s) * S), "below", True),  # which place decides is not known
        position(every(1, s) * every(2, s) - S),
        position(S - (every(1, s) - every(2, q)) * B),
    ],
    ids=str,
)
def test_what_takes_more_than_it_looks_at(test: Test) -> None:
    assert reading_of(GRAPH, test, (b, s, q)) is None
    assert str(test) in why_not(GRAPH, Domain((b, s, q), frozenset([test])))
    assert not can_compute(GRAPH, Domain((b, s, q), frozenset([test])))


@pytest.mark.parametrize(
    ("less", "more", "known"),
    [
        (s, s, True),
        (s, s * s, True),  # both are 0, or the factor is not
        (b * s, b * s * s, True),
        (s - 1, s, True),
        (4 * s, 3 * s, False),
        (4 * s, 3 * s + 2 * s * s, True),
        (5 * s, 3 * s + s * s, False),
        (s, b * s, False),  # there may be no sequence
        (b * s, s, False),
        (poly(1), s, False),
        (s * s, s, False),
        (2 * s + 2 * b, 3 * s * s + b * b, False),
        (s + s * s, 2 * s * s, True),
        (b * b * s, b * s * s, False),
        (s + s * s, s * s * s, False),  # no term is enough for two
        (B, s, False),
    ],
)
def test_sizes_that_are_at_most_others(less: Poly, more: Poly, known: bool) -> None:
    assert at_most(less, more) == known
    for n in range(4) if known else ():
        for k in range(4):
            sizes = {"b": n, "s": k}
            assert less.evaluate(sizes, {}) <= more.evaluate(sizes, {})


# against the numbers

SIZES = [(2, 3, 4), (1, 1, 1), (3, 0, 2), (0, 4, 2), (2, 3, 0), (1, 5, 1)]
CASES: dict[str, tuple[tuple[Poly, ...], Test]] = {
    "heads": ((b, s), Test("heads", (B, HEAD, every(1, s), S), "neg", True)),
    "a head": ((b, s), Test("heads", (B, some(2, poly(4), poly(64)), every(1, s), S), "neg", True)),
    "no head": ((b, s), Test("heads", (B, HEAD, every(1, s), S), "small", False)),
    "keys": ((b, s), nz("keys", B, HEAD, every(1, q), S)),
    "some keys": ((b, s), Test("keys", (B, HEAD, some(1, q), S), "nz", True)),
    "rows": ((b,), Test("keys", (B, HEAD, every(1, q), some(1, s)), "nz", True)),
    "diagonal": ((b, s), Test("heads", (B, HEAD, S, S), "small", True)),
    "bound diagonal": ((b,), Test("pairs", (B, every(1, s), every(1, s), HEAD), "small", True)),
    "diagonal that lies apart": ((b, s), Test("apart", (S, every(1, poly(3)), S), "neg", True)),
    "last": ((b,), nz("m", B, s - 1)),
    "not the last": ((b,), Test("m", (B, s - 1), "nz", True)),
    "some last": ((), Test("m", (some(1, b), s - 1), "nz", True)),
    "all last": ((), Test("m", (every(1, b), s - 1), "nz", False)),
    "third": ((), nz("four", poly(2))),
    "split": ((b,), Test("six", (2 * every(1, poly(3)) + every(2, poly(2)),), "neg", True)),
    "turned": ((b, s), Test("m", (B, s - 1 - S), "nz", False)),
    "an empty width": ((b, s), nz("four", every(2, poly(4), q))),
    "some of an empty width": ((b, s), Test("four", (some(2, poly(4), q),), "nz", True)),
    "digits that overlap": (
        (b,),
        Test("square", (every(1, s), atom(Digit(-1, ONE, s * s))), "nz", False),
    ),
    "length of all": ((b, s), Test("n", (B, S + every(1, q)), "below", False)),
    "length of some": ((b, s), Test("n", (B, S - some(1, q)), "below", True)),
    "length of all below": ((b, s), Test("n", (B, S + every(1, q)), "below", True)),
    "lengths of their own": ((b,), Test("lengths", (every(1, s), every(1, s)), "below", True)),
    "all positions": ((b, s), position(B + S - every(1, q))),
    "some position": ((b, s), position(some(1, q) - B - S)),
    "no position": ((b, s), position(every(1, q) - B)),
    "three coordinates": ((b, s, q), position(B - S + Q - 1)),
}


def computed(opset: int, extents: tuple[Poly, ...], test: Test) -> onnx.ModelProto:
    """A model that computes the live points of a domain and gives all values on the way."""
    graph = graph_of(opset)
    domain = Domain(extents, frozenset([test]))
    assert why_not(graph, domain) == ""
    live = live_points(Builder(graph), graph, domain)
    graph.model.graph.sort()
    made = [o for n in graph.model.graph for o in n.outputs if o.name != "y" and o is not live]
    graph.model.graph.outputs[:] = [live, *made]
    proto = ir.to_proto(graph.model)
    for value in proto.graph.output:
        value.ClearField("type")
    return onnx.shape_inference.infer_shapes(proto)


def fed(sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
    feeds: dict[str, Array] = {}
    for value in graph_of().model.graph.inputs:
        assert value.shape is not None and value.dtype is not None and value.name is not None
        shape = [sizes[str(d)] if not isinstance(d, int) else d for d in value.shape]
        kept = [-5e4, 2e3, 0.0, 1.0, np.nan] if value.dtype == ir.DataType.FLOAT else [0, 1, 2]
        chance = rng.choice([0.05, 0.5, 0.95])
        some = rng.choice(kept, shape)
        array = np.where(rng.random(shape) < chance, rng.choice(kept), some)
        feeds[value.name] = array.astype(value.dtype.numpy())
    return feeds


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def runs(
    model: onnx.ModelProto, rounds: int = 3
) -> Iterator[tuple[dict[str, int], dict[str, Array], dict[str, Array]]]:
    """Sizes, feeds and all values of runs at all sizes."""
    rng, session = np.random.default_rng(4), session_of(model)
    names = [o.name for o in session.get_outputs()]
    for sizes in (dict(zip("bsq", n, strict=True)) for n in SIZES):
        for _ in range(rounds):
            feeds = fed(sizes, rng)
            found = map(np.asarray, session.run(None, feeds))
            yield sizes, feeds, dict(zip(names, found, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize("case", CASES)
def test_numbers(case: str, opset: int) -> None:
    extents, test = CASES[case]
    for sizes, feeds, values in runs(computed(opset, extents, test)):
        shape = tuple(int(e.evaluate(sizes, {})) for e in extents)
        got = next(iter(values.values()))
        assert got.shape == shape and got.dtype == bool
        if 0 not in feeds.get(test.src, np.ones(1)).shape:  # else no reader asks
            np.testing.assert_array_equal(got, ~where(Region([test]), shape, sizes, feeds))


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("case", CASES)
def test_memory(case: str, opset: int) -> None:
    """No value on the way has more elements than the tested one or than the coordinates, however
    wide what the test does not mention is; an index table has no more than what it looks at.
    """
    extents, test = CASES[case]
    for sizes, feeds, values in runs(computed(opset, extents, test), rounds=1):
        check_memory(opset, extents, test, sizes, feeds, values)


def check_memory(
    opset: int,
    extents: tuple[Poly, ...],
    test: Test,
    sizes: Mapping[str, int],
    feeds: Mapping[str, Array],
    values: Mapping[str, Array],
) -> None:
    """Of the live points only the last value has coordinates that the test does not mention. A
    dimension that may be empty may get one more element; a row of an index table has as many
    numbers as the value has dimensions, in old operator sets.
    """
    looked = np.prod([n + 1 for n in feeds[test.src].shape]) if test.src else 0
    points = np.prod([extents[d].evaluate(sizes, {}) for d in test.dims() if d >= 0])
    most = max(int(looked), int(points), 16) * (1 if opset >= 14 else 4)
    for name, x in list(values.items())[1:]:
        assert x.size <= most, (name, x.shape)


INDICES = [B, S, poly(0), s - 1, every(1, s), some(1, s), HEAD, some(2, poly(4), poly(64))]


@settings(max_examples=60, deadline=None)
@given(
    src=st.sampled_from(["heads", "pairs", "m", "keys", "apart"]),
    picked=st.lists(st.sampled_from(INDICES), min_size=4, max_size=4),
    pred=st.sampled_from(["nz", "neg", "small"]),
    yes=st.booleans(),
    opset=st.sampled_from([12, 17, 21]),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_test_that_is_evaluated_is_right(src, picked, pred, yes, opset):
    shape = GRAPH[src].shape or ()
    test = Test(src, tuple(picked[: len(shape)]), pred, yes)
    if not can_compute(graph_of(opset), Domain((b, s), frozenset([test]))):
        return
    for sizes, feeds, values in runs(computed(opset, (b, s), test), rounds=1):
        if 0 in feeds[src].shape:
            continue
        points = (sizes["b"], sizes["s"])
        got = next(iter(values.values()))
        np.testing.assert_array_equal(got, ~where(Region([test]), points, sizes, feeds))
        check_memory(opset, (b, s), test, sizes, feeds, values)
