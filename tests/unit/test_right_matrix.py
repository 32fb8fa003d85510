"""What is taken as a matrix on the right of a product, and as its bias."""

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir
import pytest

from pitc.ir.graph import Graph
from pitc.passes.regions.matrix import Dims, is_vector, right_matrix, same_dims

TEXT = """
<ir_version: 10, opset_import: ["": 20, "other": 1]>
g (float[m, 6] x, float[6, 4] v) => (float[m, n] y)
<int64[2] sizes = {6, 4}> { BODY y = MatMul (x, w) }
"""


def matrix_of(body: str, constant: tuple[int, ...]) -> tuple[str, bool, int, int] | None:
    """Name, transposition and extents of the matrix w; a constant c may be what it is made of."""
    model = onnx.parser.parse_model(TEXT.replace("BODY", body))
    array = onnx.numpy_helper.from_array(np.ones(constant, np.float32), "c")
    model.graph.initializer.append(array)
    graph = Graph(ir.serde.deserialize_model(model))
    node = graph.nodes[-1]
    found = right_matrix(graph, node, node)
    return found and (found.value.name or "", found.transposed, found.k, found.n)


@pytest.mark.parametrize(
    ("body", "constant", "found"),
    [
        ("w = Reshape (c, sizes)", (2, 3, 4), ("c", False, 6, 4)),
        ("w = Transpose <perm = [1, 0]> (c)", (4, 6), ("c", True, 6, 4)),
        ("w = Transpose (c)", (4, 6), ("c", True, 6, 4)),
        ("w = Transpose <perm = [0, 1]> (c)", (6, 4), None),
        # operators of the same names that may do anything
        ("w = other.Reshape (c, sizes)", (2, 3, 4), None),
        ("w = other.Transpose <perm = [1, 0]> (c)", (4, 6), None),
    ],
)
def test_a_constant_matrix(
    body: str, constant: tuple[int, ...], found: tuple[str, bool, int, int] | None
) -> None:
    assert matrix_of(body, constant) == found


@pytest.mark.parametrize(
    ("x", "y", "same"),
    [
        (("m", 4), ("m", 4), True),
        ((), (), True),
        (("m", 4), ("n", 4), False),
        ((None,), (None,), False),
        ((), None, False),
        (None, (), False),
        (None, None, False),
    ],
)
def test_sizes_that_are_known_to_be_equal(x: Dims | None, y: Dims | None, same: bool) -> None:
    assert same_dims(x, y) is same


@pytest.mark.parametrize(
    ("shape", "row"),
    [((4,), True), ((1, 4), True), ((2, 4), False), ((4, 1), False), ((1,), False), ((), False)],
)
def test_a_row_of_numbers(shape: tuple[int, ...], row: bool) -> None:
    numbers = ir.tensor(np.ones(shape, np.float32))
    assert is_vector(ir.Value(name="bias", const_value=numbers), 4) is row
