"""Rules on drawn shapes and attributes: 0, 1 and odd extents, negative and far bounds."""

from itertools import product
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.graph import Graph
from pitc.passes.exprs.derive import derive
from tests.fact_check import proven as facts_proven
from tests.rule_proof import Const, Proof, Sample, analysed

SETTINGS = settings(max_examples=15, deadline=None, derandomize=True, database=None)
EXTENTS = st.sampled_from([0, 1, 2, 3, 5])
SHAPES = st.lists(EXTENTS, min_size=1, max_size=4)
FULL_SHAPES = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=4)
SEEDS = st.integers(0, 2**32 - 1)
FAR = 1 << 40


def values(shape: Any, seed: int = 0) -> Any:
    return np.asarray(np.random.default_rng(seed).normal(size=tuple(shape)), np.float32)


def ints(*numbers: int) -> Const:
    return Const(np.array(numbers, np.int64))


def proven(sample: Sample, seed: int, symbolic: bool = False) -> None:
    assert Proof(sample, symbolic).failures(seed, tight=False) == [], sample.title


@SETTINGS
@given(data=st.data(), shape=SHAPES, seed=SEEDS, symbolic=st.booleans())
def test_slice(data: st.DataObject, shape: list[int], seed: int, symbolic: bool) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    near = st.sampled_from([0, 1, 2, 4, 7, -1, -2, -4, -7, FAR, -FAR])
    count: dict[str, Any] = {"min_size": len(axes), "max_size": len(axes)}
    starts, ends = data.draw(st.lists(near, **count)), data.draw(st.lists(near, **count))
    steps = data.draw(st.lists(st.sampled_from([1, 1, 2, 3, -1, -2]), **count))
    axes = [a - len(shape) * data.draw(st.integers(0, 1)) for a in axes]
    operands = values(shape), ints(*starts), ints(*ends), ints(*axes), ints(*steps)
    proven(Sample("Slice", operands), seed, symbolic)


@SETTINGS
@given(data=st.data(), factors=FULL_SHAPES, seed=SEEDS)
def test_reshape(data: st.DataObject, factors: list[int], seed: int) -> None:
    def grouped() -> list[int]:
        dims: list[int] = []
        for n in factors:
            if dims and data.draw(st.booleans()):
                dims[-1] *= n
            else:
                dims.append(n)
        return dims

    shape, target = grouped(), grouped()
    hidden = data.draw(st.integers(-1, len(target) - 1))
    wanted = [-1 if k == hidden else n for k, n in enumerate(target)]
    if data.draw(st.booleans()) and shape[0] == target[0] and hidden != 0:
        wanted[0] = 0
    proven(Sample("Reshape", (values(shape), ints(*wanted))), seed)


@SETTINGS
@given(data=st.data(), shape=SHAPES, seed=SEEDS)
def test_broadcast(data: st.DataObject, shape: list[int], seed: int) -> None:
    def squeezed() -> list[int]:
        dims = [data.draw(st.sampled_from([n, n, 1])) for n in shape]
        return dims[data.draw(st.integers(0, len(dims))) :]

    a, b, c = (squeezed() for _ in range(3))
    proven(Sample("Where", (np.asarray(values(a) > 0), values(b), values(c, 1))), seed)
    proven(Sample("Expand", (values(b), ints(*shape))), seed)


@SETTINGS
@given(data=st.data(), shape=SHAPES, seed=SEEDS, symbolic=st.booleans())
def test_concat_and_split(data: st.DataObject, shape: list[int], seed: int, symbolic: bool) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts = data.draw(st.lists(EXTENTS, min_size=1, max_size=3))

    def part(n: int) -> list[int]:
        return [n if d == axis % len(shape) else e for d, e in enumerate(shape)]

    operands = tuple(values(part(n), n) for n in parts)
    proven(Sample("Concat", operands, {"axis": axis}), seed, symbolic)
    whole = values(part(sum(parts)))
    split = Sample("Split", (whole, ints(*parts)), {"axis": axis}, outputs=len(parts))
    proven(split, seed)


@SETTINGS
@given(data=st.data(), shape=FULL_SHAPES, seed=SEEDS, symbolic=st.booleans())
def test_pad_and_tile(data: st.DataObject, shape: list[int], seed: int, symbolic: bool) -> None:
    pads = [data.draw(st.integers(-1 if n > 2 else 0, 3)) for n in shape + shape]
    proven(Sample("Pad", (values(shape), ints(*pads))), seed, symbolic)
    repeats = [data.draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    proven(Sample("Tile", (values(shape), ints(*repeats))), seed, symbolic)


@SETTINGS
@given(data=st.data(), seed=SEEDS)
def test_einsum(data: st.DataObject, seed: int) -> None:
    # no extent 0: ONNX Runtime's Einsum then divides by zero
    drawn = data.draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=5, max_size=5))
    extents = dict(zip("abcde", drawn, strict=True))
    labels = st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True)
    terms = data.draw(st.lists(labels, min_size=1, max_size=3))
    used = sorted({label for term in terms for label in term})
    out = data.draw(st.lists(st.sampled_from(used), max_size=3, unique=True))
    operands = tuple(values([extents[n] for n in t], k) for k, t in enumerate(terms))
    equation = ",".join("".join(t) for t in terms) + "->" + "".join(out)
    proven(Sample("Einsum", operands, {"equation": equation}), seed)


@SETTINGS
@given(data=st.data(), shape=FULL_SHAPES, seed=SEEDS, symbolic=st.booleans())
def test_reduce_and_normalise(
    data: st.DataObject, shape: list[int], seed: int, symbolic: bool
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    opset = data.draw(st.sampled_from([11, 13]))
    proven(Sample("Softmax", (values(shape),), {"axis": axis}, opset=opset), seed, symbolic)
    reduce = Sample("ReduceSum", (values(shape), ints(axis)), {"keepdims": opset % 2})
    proven(reduce, seed, symbolic)
    scale = values(shape[axis % len(shape) :], 1)
    proven(Sample("LayerNormalization", (values(shape), scale), {"axis": axis}), seed, symbolic)


@SETTINGS
@given(data=st.data(), shape=FULL_SHAPES, seed=SEEDS)
def test_gather(data: st.DataObject, shape: list[int], seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    n = shape[axis]
    places = data.draw(st.lists(st.integers(-n, n - 1), max_size=4))
    index = np.array(places, np.int64)
    for operand in (index, Const(index)):
        proven(Sample("Gather", (values(shape), operand), {"axis": axis}), seed)


@SETTINGS
@given(
    sizes=st.lists(st.integers(4, 7), min_size=1, max_size=2),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    group=st.sampled_from([1, 2]),
    seed=SEEDS,
)
def test_conv(
    sizes: list[int],
    kernel: int,
    stride: int,
    dilation: int,
    pads: list[int],
    group: int,
    seed: int,
) -> None:
    n = len(sizes)
    attributes = {
        "strides": [stride] * n,
        "dilations": [dilation] * n,
        "pads": pads[:n] + pads[2 : 2 + n],
        "group": group,
    }
    operands = values([2, 4, *sizes]), values([6, 4 // group, *[kernel] * n], 1)
    proven(Sample("Conv", operands, attributes), seed)


MOST = (1 << 31) - 1  # the longest extent


@pytest.mark.parametrize(
    ("start", "end", "step", "extent"),
    [
        (0, MOST, 1, "n3"),
        (0, MOST - 1, 1, ""),
        (-MOST, MOST, 1, "n3"),
        (1 - MOST, MOST, 1, ""),
        (MOST, -MOST - 1, -1, "n3"),
        (MOST - 1, -MOST - 1, -1, ""),
        (MOST, -MOST, -1, ""),
    ],
)
def test_a_slice_to_the_end_of_the_longest_line(
    start: int, end: int, step: int, extent: str
) -> None:
    sample = Sample("Slice", (values([3]), ints(start), ints(end), ints(0), ints(step)))
    expr = analysed(sample, symbolic=True)["y0"].expr
    assert expr is not None
    assert str(expr.shape[0]) == extent or (not extent and "?" in str(expr.shape[0]))


LAST = """
<ir_version: 8, opset_import: ["" : 18]>
last (float[a, b] x) => (y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] top = {9223372036854775807}>
{
    size = Shape <start = 1> (x)
    n = Neg (size)
    BODY
}
"""


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (
            "y = Slice (x, n, top, one)",
            "a b",
        ),  # the bias of T5, of which a cache needs the last rows
        ("y = Slice (x, n, size, one)", "a b"),
        ("m = Sub (n, two) y = Slice (x, m, top, one)", "a b"),
        ("m = Add (n, one) y = Slice (x, m, top, one)", "a ?"),  # of 1 place: from 0 on
        ("y = Slice (x, n, top, zero)", "? b"),  # of 0 columns all rows, of 1 the last
        ("y = Slice (x, n, top, one, two)", "a ?"),
    ],
)
@pytest.mark.parametrize("b", [0, 1, 3])
def test_a_slice_of_the_last_n_of_n_places(body: str, shape: str, b: int) -> None:
    graph = facts_proven(
        onnx.parser.parse_model(LAST.replace("BODY", body)), sizes={"a": 2, "b": b}
    )
    found = graph["y"].shape
    assert found is not None
    assert " ".join("?" if "?" in str(e) else str(e) for e in found) == shape


BESIDE_0 = """
<ir_version: 8, opset_import: ["" : 18]>
reshaped (float[b, s] x) => (y)
<int64[2] times = {6, 1}, int64[1] six = {6}, int64[1] three = {3}, int64[1] rest = {-1}>
{
    long = Tile (x, times)
    b = Shape <start = 0, end = 1> (x)
    s = Shape <start = 1> (x)
    n = Shape <end = 1> (long)
    size = Concat <axis = 0> (SIZE)
    y = Reshape <allowzero = 1> (long, size)
}
"""


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ("b, six, rest, s", "b 6 1 s"),  # the mask of torch's encoder layers, one for each head
        ("n, rest, s", "6*b 1 s"),
        ("b, rest, s", "b ? s"),  # without rows 1, else 6
        ("b, three, rest, s", "b 3 2 s"),
        ("s, rest, b", "s ? b"),
        ("s, six, b, rest", "s 6 b 1"),
    ],
)
def test_what_remains_of_a_reshape_beside_sizes_of_0(size: str, shape: str) -> None:
    model = onnx.parser.parse_model(BESIDE_0.replace("SIZE", size))
    graph, options = Graph(ir.from_proto(model)), ort.SessionOptions()
    derive(graph)
    found = graph["y"].shape
    assert found is not None
    assert " ".join("?" if "?" in str(e) else str(e) for e in found) == shape
    options.log_severity_level = 4
    session, runs = ort.InferenceSession(model.SerializeToString(), options), 0
    for b, s in product((0, 1, 2, 3), repeat=2):
        try:
            (y,) = session.run(None, {"x": np.zeros((b, s), np.float32)})
        except Exception:  # ONNX Runtime refuses what leaves a rest
            continue
        runs += 1
        for extent, real in zip(found, np.asarray(y).shape, strict=True):
            assert "?" in str(extent) or extent.evaluate({"b": b, "s": s}, {}) == real
    assert runs >= 9
