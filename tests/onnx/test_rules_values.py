"""Small integer tensors as symbols: each operator against numpy, for all sizes that are tried."""

from collections.abc import Sequence
from itertools import product
from math import trunc
from typing import Any

import numpy as np
import onnx
import pytest

from pitc.ir.graph import Array, NodeView
from pitc.ir.index import Poly, poly, sym
from pitc.ir.nodes import poly_array
from pitc.passes.rules import values
from pitc.passes.rules.record import OPERATORS
from pitc.passes.rules.values import Unknown
from tests.rule_proof import Const, Sample, analysed

a, b = sym("a"), sym("b")
SIZES = [{"a": m, "b": n} for m in (0, 1, 2, 9) for n in (0, 1, 2, 8)]


def table(x: Any) -> Array:
    """Nested lists of numbers and sizes as an array of polynomials."""
    return poly_array(np.array(x, object))


def node(op: str, *operands: Any, to: Any = None, opset: int = 21, **attributes: Any) -> NodeView:
    """A node whose operands have values in symbols; constants are as they are, None is absent."""
    tables = [x if x is None or isinstance(x, Const) else table(x) for x in operands]
    given = [np.ones(t.shape, np.int64) if isinstance(t, np.ndarray) else t for t in tables]
    graph = analysed(Sample(op, tuple(given), attributes, opset=opset))
    for i, t in enumerate(tables):
        if isinstance(t, np.ndarray):
            graph[f"x{i}"].ints = t
    if to is not None:
        graph["y0"].dtype = np.dtype(to)
    return NodeView(graph, graph.nodes[0])


def shown(x: Any) -> Any:
    """Nested lists of polynomials as text."""
    return x if isinstance(x, str) else np.vectorize(str, otypes=[object])(table(x)).tolist()


def value(view: NodeView, shape: Sequence[int] = ()) -> Any:
    """What the column says, as text; "?" where it says nothing."""
    rule = OPERATORS[view.domain, view.op].value
    assert rule is not None
    try:
        return shown(rule(view, tuple(shape)))
    except Unknown:
        return "?"


def at(sizes: dict[str, int], x: Any) -> Any:
    """Nested lists of polynomials as an array of numbers."""
    return np.vectorize(lambda p: poly(p).evaluate(sizes, {}), otypes=[np.int64])(table(x))


# --- of two numbers ---

NUMBERS = range(-7, 8)
LINEAR = [poly(n) for n in (-2, -1, 0, 1, 2)] + [a, a + 1, a - 1, -a, -a - 1, b, b + 1, a + b + 2]


def test_integers_are_divided_towards_zero() -> None:
    for x, y in product(NUMBERS, repeat=2):
        known = trunc(x / y) if y else "?"
        assert value(node_of("Div", x, y)) == shown(known)
        assert value(node_of("Mod", x, y)) == shown(x % y if x >= 0 and y > 0 else "?")


def node_of(op: str, x: Any, y: Any) -> NodeView:
    """One node for all operands."""
    if op not in NODES:
        NODES[op] = node(op, 1, 1)
    graph = NODES[op].graph
    graph["x0"].ints, graph["x1"].ints = table(x), table(y)
    return NODES[op]


NODES: dict[str, NodeView] = {}


def test_sizes_are_divided_where_nothing_is_left() -> None:
    for x, y, known in ((4 * a * b, 2 * b, 2 * a), (a, a, 1), (a * b + b, b, a + 1)):
        assert value(node_of("Div", x, y)) == shown(known)
    for x, y in ((a, 2), (a, b), (a, 0), (2, a), (a + 1, a)):
        assert value(node_of("Div", x, y)) == "?"
        assert value(node_of("Mod", x, y)) == "?"


COMPARED = {
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
}


@pytest.mark.parametrize("op", COMPARED)
def test_comparisons_are_known_where_all_sizes_agree(op: str) -> None:
    for x, y in product(LINEAR, repeat=2):
        found = {bool(COMPARED[op](at(s, x), at(s, y))) for s in SIZES}
        signs = {int(np.sign(at(s, x) - at(s, y))) for s in SIZES}
        # that they differ is seen of those in order
        decided = len(found) == 1 and not {1, -1} <= signs
        assert value(node_of(op, x, y)) == shown(int(*found) if decided else "?"), (x, y)


@pytest.mark.parametrize(("op", "function"), [("Max", np.maximum), ("Min", np.minimum)])
def test_the_larger_one_is_known_where_it_always_is(op: str, function: Any) -> None:
    for x, y in product(LINEAR, repeat=2):
        always = [p for p in (x, y) if all(function(at(s, x), at(s, y)) == at(s, p) for s in SIZES)]
        assert value(node_of(op, x, y)) == shown(always[0] if always else "?"), (x, y)


@pytest.mark.parametrize(
    ("op", "known"),
    [
        ("Add", [2 * a + 1, b + 2]),
        ("Sub", [poly(-1), b - 2]),
        ("Mul", [a * a + a, 2 * b]),
    ],
)
def test_arithmetic(op: str, known: list[Poly]) -> None:
    assert value(node(op, [a, b], [a + 1, 2])) == shown(known)
    assert value(node(op, [[a], [b]], [1, 2])) == value(node(op, [[a, a], [b, b]], [[1, 2]] * 2))


def test_truth_values() -> None:
    for x, y in product((0, 1), repeat=2):
        assert value(node_of("And", x, y)) == str(x and y)
        assert value(node_of("Or", x, y)) == str(x or y)
    assert value(node_of("And", a, 1)) == value(node_of("Or", 0, b)) == "?"
    assert value(node("Not", [0, 1]), [2]) == ["1", "0"]
    assert value(node("Not", [a]), [1]) == "?"
    assert value(node("Neg", [a, 2 - b]), [2]) == shown([-a, b - 2])


def test_of_several_operands_all_count() -> None:
    assert value(node("Max", [a], [a + 2], [a + 1])) == shown([a + 2])
    assert value(node("Max", [a + 3], [a + 2], [a + 1])) == shown([a + 3])
    assert value(node("Min", [a + 3], [a + 2], [a + 1])) == shown([a + 1])
    assert value(node("Max", [a])) == shown([a])
    assert value(node("Max", [a], [a], [b])) == "?"


# --- of tables ---

TABLE = [[a, b, 1], [2, a + b, a * b]]
X = table(TABLE)


@pytest.mark.parametrize(
    ("view", "shape", "known"),
    [
        (node("Reshape", TABLE, Const(np.array([3, 2]))), (3, 2), X.reshape(3, 2)),
        (node("Flatten", TABLE, axis=0), (1, 6), X.reshape(1, 6)),
        (node("Cast", TABLE, to="int32"), (2, 3), X),
        (node("Expand", TABLE[0], Const(np.array([2, 3]))), (2, 3), np.stack([X[0], X[0]])),
        (node("Gather", TABLE, [1, -1, 0]), (), X[[1, -1, 0]]),
        (node("Gather", TABLE, [[2, -1]], axis=1), (), X[:, [[2, -1]]]),
        (node("Concat", TABLE, [[7, 8, b]], axis=0), (), np.r_[X, table([[7, 8, b]])]),
        (node("Concat", TABLE, [[7], [b]], opset=1), (), np.c_[X, table([[7], [b]])]),
        (node("Concat", [a], [b], [a], axis=-1), (), [a, b, a]),
        (node("Transpose", TABLE), (), X.T),
        (node("Transpose", TABLE, perm=[0, 1]), (), X),
        (node("Transpose", [TABLE], perm=[1, 0, 2]), (), X[:, None]),
        (node("Where", [[1], [0]], TABLE, b), (), [TABLE[0], [b, b, b]]),
        (node("ReduceProd", TABLE), (1, 1), [[2 * a * a * b * b * (a + b)]]),
        (node("ReduceProd", [a]), (), a),
        (node("ReduceProd", TABLE[0], Const(np.array([0]))), (1,), [a * b]),
        (node("ReduceProd", np.ones((0,), object)), (1,), [1]),
        (node("ReduceProd", TABLE), (2, 1), "?"),
        (node("ReduceProd", TABLE), (0,), "?"),
        (node("Size", TABLE), (), 6),
        (node("Where", [a], [1], [2]), (), "?"),
        (node("Gather", TABLE, [a]), (), "?"),
    ],
)
def test_tables(view: NodeView, shape: tuple[int, ...], known: Any) -> None:
    assert value(view, shape) == shown(known)


def test_a_bool_is_whether_a_number_is_not_0() -> None:
    assert value(node("Cast", [0, 1, -2], to=bool), [3]) == ["0", "1", "1"]
    assert value(node("Cast", [a], to=bool), [1]) == "?"
    view = node("Cast", [a, b])
    view.graph["y0"].dtype = None
    assert value(view, [1, 2]) == [["a", "b"]]


def test_sizes_of_an_operand() -> None:
    extents = (a, b, poly(3))
    for start, end in product((None, *range(-4, 5)), repeat=2):
        given = {k: n for k, n in (("start", start), ("end", end)) if n is not None}
        view = node("Shape", np.ones((1, 1, 1)), **given)
        view.graph["x0"].shape = extents
        assert value(view) == shown(extents[start:end])
    view = node("Size", np.ones((1, 1, 1)))
    view.graph["x0"].shape = (*extents, a)
    assert value(view, ()) == shown(3 * a * a * b)


@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_pieces(step: int) -> None:
    for start, end in product((0, 1, -1, -2, 5, -9), repeat=2):
        known = shown(X[:, start:end:step])
        for axis in (1, -1):
            given = (Const(np.array([n])) for n in (start, end, axis, step))
            assert value(node("Slice", TABLE, *given)) == known
        if step == 1:
            one, two = Const(np.array([start])), Const(np.array([end]))
            assert value(node("Slice", TABLE, one, two)) == shown(X[start:end])
            assert value(node("Slice", TABLE, one, two, None, Const(np.array([1])))) == (
                shown(X[start:end])
            )
            old = node("Slice", TABLE, starts=[start], ends=[end], axes=[1], opset=9)
            assert value(old) == known


def test_pieces_of_several_axes() -> None:
    given = [Const(np.array(n)) for n in ([0, 1], [1, 3])]
    assert value(node("Slice", TABLE, *given)) == shown(X[0:1, 1:3])
    given += [Const(np.array(n)) for n in ([1, 0], [2, -1])]
    assert value(node("Slice", TABLE, *given)) == shown(X[1:3:-1, 0:1:2])


def test_ends_without_starts_are_refused() -> None:
    given = [Const(np.array(n)) for n in ([0, 1], [1])]
    with pytest.raises(ValueError, match="zip"):
        value(node("Slice", TABLE, *given))


def test_without_ends_there_is_no_piece() -> None:
    for given in ({"starts": [0]}, {"ends": [1]}):
        assert value(node("Slice", TABLE, axes=[0], opset=9, **given)) == "?"


@pytest.mark.parametrize("axis", [None, 0, 1, -1, -2])
def test_one_hot(axis: int | None) -> None:
    depth, places = 3, [-4, -3, -1, 0, 2, 3]
    more = {} if axis is None else {"axis": axis}
    view = node("OneHot", places, depth, [a, b], **more)
    hit = [[-depth <= n < depth and n % depth == k for k in range(depth)] for n in places]
    known = table([[b if yes else a for yes in row] for row in hit])
    first = axis in (0, -2)
    shape = known.T.shape if first else known.shape
    assert value(view, shape) == shown(known.T if first else known)


def filled(number: Any) -> NodeView:
    return node("ConstantOfShape", [2], value=tensor(number))


def tensor(number: Any) -> Any:
    return onnx.numpy_helper.from_array(np.array(number))


def test_a_fill_is_one_number() -> None:
    assert values.fill_of(node("ConstantOfShape", [2])) == 0
    assert values.fill_of(filled([7])) == 7
    assert value(filled([7]), [2]) == ["7", "7"]
    assert values.fill_of(filled([1, 2])) is None
    assert value(filled([1, 2]), [2]) == "?"
