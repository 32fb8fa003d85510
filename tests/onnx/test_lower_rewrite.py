"""Pieces of the rewrite by themselves, run in ONNX Runtime."""

from itertools import product

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.ir.graph import Graph
from pitc.ir.index import dim_index, sym
from pitc.ir.region import Test
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.rewrite import Rewriter
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
    rewriter = Rewriter(graph, Builder(graph))
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
