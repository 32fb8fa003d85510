"""Operands of shapes and values that their operators do not take: never a traceback.

ONNX Runtime loads many such models, and stops when it comes to the node, if it ever does.
"""

import os
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import pitc
from pitc.errors import PitcError, UsageError
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.rule_proof import Const, Sample, array_of, node_model
from tests.rule_samples import SAMPLES

LAST = -3  # lines of a traceback that are shown: its end
LARGEST = 64  # elements of a run-time operand that becomes a constant
MOST = None if "PITC_THOROUGH" in os.environ else 40  # of an operator's models, spread evenly

BY_OPERATOR: dict[str, list[Sample]] = defaultdict(list)
for _sample in SAMPLES:
    BY_OPERATOR[_sample.op].append(_sample)


def wrong(x: Any) -> Iterator[Any]:
    """Arrays that are no such operand, most of them."""
    flat = x.reshape(-1)
    one = flat[:1] if flat.size else np.ones(1, x.dtype)
    longer = np.concatenate([flat, one, one])
    yield from (flat[:0], one, one.reshape(()), longer, longer.reshape(1, -1), flat[:0, None])
    if x.dtype.kind in "iu":
        ends = np.iinfo(x.dtype)
        yield from (np.full_like(x, ends.max), np.full_like(x, ends.min))
    if x.dtype.kind == "f":
        yield from (np.full_like(x, np.nan), np.zeros_like(x))


def other_operands(op: str) -> Iterator[tuple[Sample, bool]]:
    """Samples with a wrong constant, and whether the others' extents are symbols."""
    for sample in BY_OPERATOR[op]:
        for i, operand in enumerate(sample.operands):
            small = operand is not None and array_of(operand).size <= LARGEST
            if not small and not isinstance(operand, Const):
                continue
            for x in wrong(array_of(operand)):
                others = sample.operands
                yield replace(sample, operands=(*others[:i], Const(x), *others[i + 1 :])), False
                free = [None if o is None else array_of(o) for o in others]
                free[i] = Const(x)
                yield replace(sample, operands=tuple(free)), True


def traceback_of(model: onnx.ModelProto, title: str) -> list[str]:
    """What the passes stop at, if they do and it is no refusal."""
    try:
        run_passes(ir.from_proto(model), LowerOptions())
    except PitcError:
        return []
    except Exception:
        return [f"{title}: {traceback.format_exc(LAST)}"]
    return []


@pytest.mark.parametrize("op", BY_OPERATOR)
def test_a_constant_that_is_no_operand(op: str) -> None:
    seen, found = set[bytes](), list[str]()
    of_op = list(other_operands(op))
    every = 1 if MOST is None else len(of_op) // MOST | 1  # odd: both of each two
    for sample, symbolic in of_op[::every]:
        constant = [i for i, o in enumerate(sample.operands) if isinstance(o, Const)]
        model = node_model(sample, constant, symbolic)
        data = model.SerializeToString(deterministic=True)
        if data not in seen:  # samples of the same shapes have the same symbols
            seen.add(data)
            found += traceback_of(model, f"{sample.title}, {constant}, {symbolic}")
    assert found == []


def computed(sample: Sample, place: int, sizes: int, squeezed: bool) -> onnx.ModelProto:
    """The sample's node with an operand that is computed from the sizes of another input."""
    constant = [i for i, o in enumerate(sample.operands) if isinstance(o, Const)]
    model = node_model(sample, constant, symbolic=True)
    graph, name = model.graph, f"x{place}"
    for value in [v for v in graph.input if v.name == name]:
        graph.input.remove(value)
    for tensor in [t for t in graph.initializer if t.name == name]:
        graph.initializer.remove(tensor)
    dims = [f"size{k}" for k in range(sizes)]
    graph.input.append(helper.make_tensor_value_info("sized", TensorProto.FLOAT, dims))
    made = [helper.make_node("Shape", ["sized"], ["sizes" if squeezed else name])]
    if squeezed:
        made.append(helper.make_node("Squeeze", ["sizes"], [name]))
    nodes = [*made, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _computed(op: str) -> Iterator[tuple[Sample, int, int, bool]]:
    for sample in BY_OPERATOR[op][:4]:
        for place, operand in enumerate(sample.operands):
            if operand is not None and array_of(operand).dtype == np.int64:
                for sizes, squeezed in ((0, False), (1, False), (3, False), (1, True), (3, True)):
                    yield sample, place, sizes, squeezed


SIZED = [op for op in BY_OPERATOR if any(_computed(op))]


@pytest.mark.parametrize("op", SIZED)
def test_sizes_that_are_no_operand(op: str) -> None:
    found = []
    for sample, place, sizes, squeezed in _computed(op):
        title = f"{sample.title}, {place}, {sizes}, {squeezed}"
        found += traceback_of(computed(sample, place, sizes, squeezed), title)
    assert found == []


STARTS = {
    "two": "start = Constant <value = int64[2] {0, 0}> ()",
    "one": "start = Constant <value = int64[1] {0}> ()",
    "none": "start = Constant <value = int64[0] {}> ()",
    "sizes": "start = Shape (x)",
    "some sizes": "start = Slice (shape, zero, two)",
}


@pytest.mark.parametrize("case", STARTS)
def test_a_range_from_a_vector(case: str) -> None:
    """The model compiles; a run is ONNX Runtime's."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[b, s, 64] x) => (float[b, s, 64] y)
        <int64 at = {{1}}, int64 step = {{1}}, int64[1] zero = {{0}}, int64[1] two = {{2}},
         int64[1] column = {{1}}> {{
            shape = Shape (x)  limit = Gather (shape, at)
            {STARTS[case]}
            r = Range (start, limit, step)  f = Cast <to = 1> (r)  t = Unsqueeze (f, column)
            y = Add (x, t)
        }}""")
    made, x = pitc.compile(model), np.ones((2, 5, 64), np.float32)
    if case == "one":
        want = x + np.arange(5, dtype=np.float32)[:, None]
        np.testing.assert_array_equal(made.run({"x": x})["y"], want)
        return
    with pytest.raises(UsageError, match="should be scalar"):
        made.run({"x": x})
