"""Pieces of the rewrite by themselves, run in ONNX Runtime."""

from itertools import product

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.ir.graph import Graph
from pitc.ir.index import dim_index, poly, sym
from pitc.ir.region import Test
from pitc.ir.target import CPU, CUDA, Target
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.gather_quantised import dequantisation
from pitc.passes.lower.heads import unsplit_heads
from pitc.passes.lower.packed import Packed
from pitc.passes.lower.rewrite import Rewriter
from pitc.passes.lower.rows import ahead
from pitc.passes.regions.domain import Domain

B = sym("b")
MASKS = {"m": "int64", "n": "float", "k": "int32"}
NUMBERS = {"m": [0, 1, 2, -1], "n": [0.0, -0.0, 1.0, 0.5, np.nan], "k": [0, 1, 7]}


@pytest.mark.parametrize("names", ["m", "mn", "mnk"])
def test_a_detector_looks_at_every_mask(names: str) -> None:
    """What it asks to hold 0 and 1 only does so where all masks of the contract do."""
    inputs = ", ".join(f"{MASKS[x]}[b] {x}" for x in names)
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (int64[b] y)'
    model = ir.from_proto(onnx.parser.parse_model(text + " { y = Identity (m) }"))
    graph = Graph(model)
    graph.only_01 = frozenset(names)
    dead = frozenset(Test(x, (dim_index(0, B),), "nz", False) for x in names)
    rewriter = Rewriter(Packed(graph, Builder(graph)))
    detector = rewriter.detect(Domain((B,), dead)).rows.producer()
    assert detector is not None and len(detector.inputs) == 2
    flags = detector.inputs[1]
    assert flags is not None
    if names == "m":
        assert flags is graph.model.graph.inputs[0]
        return
    flags.type, flags.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape(["b"])
    model.graph.outputs[:] = [flags]
    model.graph.remove(detector)
    model.graph.sort()
    rows = list(product(*(NUMBERS[x] for x in names)))
    dtypes = {"int64": np.int64, "float": np.float32, "int32": np.int32}
    feeds = {
        x: np.array([row[k] for row in rows]).astype(dtypes[MASKS[x]]) for k, x in enumerate(names)
    }
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    found = np.asarray(session.run(None, feeds)[0])
    want = [all(number in (0, 1) for number in row) for row in rows]
    np.testing.assert_array_equal(np.isin(found, [0, 1]), want)


@pytest.mark.parametrize(
    ("mask", "target", "copies"),
    [("m", CUDA, 0), ("known", CUDA, 0), ("c", CUDA, 1), ("m", CPU, 0), ("c", CPU, 0)],
)
def test_a_mask_that_is_computed_on_a_gpu_is_copied(mask: str, target: Target, copies: int) -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]> g (float[4] m) => (float[4] y)
            <bool[4] known = {0, 1, 1, 0}> { c = Sqrt (m) y = Where (known, m, c) }"""
        )
    )
    graph = Graph(model, target)
    four = poly(4)
    for name in ("m", "known", "c"):
        dtype = np.dtype(np.bool_ if name == "known" else np.float32)
        graph.values[name].shape, graph.values[name].dtype = (four,), dtype
    domain = Domain((four,), frozenset([Test(mask, (dim_index(0, four),), "nz", False)]))
    rewriter = Rewriter(Packed(graph, Builder(graph)))
    assert rewriter.host_copies(domain) == 0  # nothing is detected yet
    rewriter.detect(domain)
    assert rewriter.host_copies(domain) == copies


# nodes from x [t, 24] to y, and the number of its first head, of 4 numbers; None: no part of x
SPLITS = {
    "part": ("a, y, c = Split <axis = 1> (x, thirds)", 2),
    "first part": ("y, b, c = Split <axis = 1> (x, thirds)", 0),
    "heads": ("a, b, c = Split <axis = 1> (x, thirds) y = Reshape (c, pairs)", 4),
    "not what is split": ("a, b, c = Split <axis = 1> (x, thirds) y = Relu (b)", None),
    "another Reshape": ("a, b, c = Split <axis = 1> (x, thirds) y = other.Reshape (b)", None),
    "another Split": ("a, y, c = other.Split <axis = 1> (x)", None),
    "rows": ("a, y = Split <axis = 0> (x, halves)", None),
    "inside a head": ("a, y = Split <axis = 1> (x, uneven)", None),
    "whole": ("y = Relu (x)", None),
}


def lists(**arrays: list[int]) -> str:
    return ", ".join(
        f"int64[{len(x)}] {name} = {{{', '.join(map(str, x))}}}" for name, x in arrays.items()
    )


@pytest.mark.parametrize("case", SPLITS)
def test_heads_of_a_joint_projection(case: str) -> None:
    body, first = SPLITS[case]
    known = lists(thirds=[8, 8, 8], halves=[1, 1], uneven=[2, 22], pairs=[0, 2, 4])
    dims = {"a": "t, 8", "b": "t, 8", "c": "t, 8", "y": "t, 8"}
    if case == "inside a head":
        dims |= {"a": "t, 2", "y": "t, 22"}
    if case in ("heads", "another Reshape"):
        dims["y"] = "t, 2, 4"
    declared = ", ".join(f"float[{text}] {name}" for name, text in dims.items() if name != "y")
    model = ir.from_proto(
        onnx.parser.parse_model(
            f"""<ir_version: 9, opset_import: ["": 17, "other": 1]> g (float[t, 24] x)
            => (float[{dims["y"]}] y) <{known}, {declared}> {{ {body} }}"""
        )
    )
    (rows,) = model.graph.outputs
    build = Builder(Graph(model))
    found, head = unsplit_heads(build, rows, 4)
    if first is None:
        assert (found, head) == (rows, 0)
        return
    assert head == first
    producer = found.producer()
    assert producer is not None and producer.op_type == "Reshape"
    assert producer.inputs[0] is model.graph.inputs[0]
    target = producer.inputs[1]
    assert target is not None and target.const_value is not None
    assert list(target.const_value.numpy()) == [0, 6, 4]


def test_operators_of_other_domains_are_none_of_these() -> None:
    """Whatever they are called."""
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 9, opset_import: ["": 17, "other": 1]>
            g (float[t, 4] x, uint8[t, 4] q) => (float[t, 4] z)
            <float scale = {0.5}, float[t, 4] y, float[t, 4] d> {
            y = other.Reshape (x) d = other.DequantizeLinear (q, scale) z = Add (y, d) }"""
        )
    )
    graph = Graph(model)
    values = {v.name: v for node in model.graph for v in node.outputs}
    for name in ("y", "d"):
        graph.values[name].shape = graph.values["x"].shape
    assert ahead(graph, model.graph.inputs[0]) is model.graph.inputs[0]
    assert dequantisation(graph, values["d"]) is None
