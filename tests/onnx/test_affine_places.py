"""Integers as functions of positions (passes/exprs/affine.py): exactly, and in every small run."""

import pytest

from pitc.ir.constant import Constant
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ZERO, dim_index, sym
from pitc.ir.region import describe
from pitc.passes.audit.points import sizes_of
from pitc.passes.audit.symbols import wrong_symbols
from pitc.passes.exprs.affine import _widens, before_moves
from tests.exhaustive_integers import wrong_fills
from tests.guard_worlds import graph_of
from tests.place_worlds import model_of, runs_of

AFFINE = {
    "v = Identity (i)": "d0",
    "v = Range (one, rows, two)": "2*d0+1",
    "v = Range (rows, zero, minus)": "-d0+a",
    "t = Gather (lengths, zero) v = Range (t, rows, one)": None,
    "v = Neg (i)": "-d0",
    "v = Abs (i)": None,
    "v = Add (i, two)": "d0+2",
    "v = Identity (d)": "d0-d1",
    "v = Mul (i, two)": "2*d0",
    "v = Mul (i, i)": None,
    "v = Mul (i, rows)": "d0*a",
    "v = Add (i, lengths)": None,
    "v = Add (lengths, i)": None,
    "v = Max (i, zero)": "d0",
    "v = Min (i, minus)": "-1",
    "v = Cast <to = 6> (i)": None,
    "v = Cast <to = 3> (seven)": "7",
    "v = Cast <to = 2> (minus)": None,
    "v = Cast <to = 1> (i)": None,
    "v = Cast <to = 7> (weights)": None,
    "v = Sub (tiny, tiny)": "0",
    "v = Neg (tiny)": None,
    "v = Add (byte, byte)": "6",
    "v = Neg (d)": "-d0+d1",
    "v = Transpose (d)": "-d0+d1",
    "v = Slice (i, last, top)": "d0+1",
    "v, w = Split <num_outputs = 2> (four)": "d0",
    "w, v = Split <num_outputs = 2> (four)": None,
    "v = Pad (i, both)": None,
    "v = Gather (line, i)": "2*d0+5",
    "v = Gather (i, i)": "d0",
    "v = Gather (i, lengths)": None,
    "v = Gather (seventh, lengths)": "7",
    "v = Expand (i, size)": None,
    "v = Expand (c, size)": "d0",
    "v = Identity (line)": "2*d0+5",
    "v = Identity (bent)": None,
    "v = Identity (grid)": "10*d0+d1",
    "v = ConstantOfShape <value = int64[1] {7}> (size)": "7",
    "v = ConstantOfShape <value = float[1] {7}> (size)": None,
    "v = Gather (size, front)": "a",
    "v = Identity (size)": None,
    "v = ReduceProd (size)": "a*b",
    "v = ReduceProd <keepdims = 0> (size)": "a*b",
    "v = Div (two, two)": "1",
    "v = Div (rows, rows)": "1",
    "e = Equal (two, two) v = Cast <to = 7> (e)": "1",
    "v = other.Op (i)": None,
    "v = Where (flags, i, i)": None,
    "v = CastLike (i, seven)": None,
    "v = Expand (seven, size)": "7",
    "v = Mul (two, d)": "2*d0-2*d1",
    "v = Sub (seven, two)": "5",
    "v = Identity (large)": None,
    "v = Identity (falling)": "-2*d0+3",
    "v = Identity (deep)": "d0+3*d2",
}
VECTORS = {
    "v = Concat <axis = 0> (i, i)": None,
    "v = Concat <axis = 0> (i)": None,
    "v = Concat <axis = -1> (c, c)": "d0 d0",
    "v = Concat <axis = 1> (c, n)": "d0 None",
    "v = Concat <axis = 1> (n, n)": None,
    "v = Concat <axis = 0> (c, c)": None,
    "v = Concat <axis = 1> (c, d)": None,
    "v = Concat <axis = 1> (d, c)": None,
    "v = Concat <axis = 0> (front, last)": "0 1",
    "v = Concat (column, column)": "d0+4 d0+4",
    "v = Concat <axis = 0> (column, column)": None,
}
LIVE_PLACES = {
    "r = Range (two, one, one) v = Concat <axis = 0> (r, r)": None,  # of nothing
    "v = NonZero (weights)": "weights",
    "v = NonZero (flags)": "flags",
    "v = NonZero (table)": None,
    "t = NonZero (flags) v = Squeeze (t, front)": "flags",
    "t = NonZero (flags) v = Transpose (t)": "flags",
    "t = NonZero (flags) v = Cast <to = 6> (t)": "flags",
    "t = NonZero (flags) v = Cast <to = 3> (t)": None,
    "t = NonZero (flags) v = Cast <to = 13> (t)": None,
    "t = NonZero (flags) v = Cast <to = 1> (t)": None,
    "t = NonZero (flags) v = Add (t, zero)": None,
    "t = NonZero (flags) v = Concat <axis = 1> (t, t)": None,
    "t = NonZero (flags) v = Gather (table, t)": None,
    "t = NonZero (flags) s = Squeeze (t, front) v = Gather (i, s)": None,
    "o = other.Op (x) v = NonZero (o)": None,
}
COMPARED = {  # where it is 1, and where 0
    "v = Less (i, two)": ("-d0+1 >= 0", "d0-2 >= 0"),
    "v = Less (c, j)": ("-d0+d1-1 >= 0", "d0-d1 >= 0"),
    "v = LessOrEqual (c, j)": ("-d0+d1 >= 0", "d0-d1-1 >= 0"),
    "v = Greater (c, j)": ("d0-d1-1 >= 0", "-d0+d1 >= 0"),
    "v = GreaterOrEqual (c, j)": ("d0-d1 >= 0", "-d0+d1-1 >= 0"),
    "v = Equal (c, j)": ("-d0+d1 >= 0 and d0-d1 >= 0", "-d0+d1-1 >= 0; d0-d1-1 >= 0"),
    "v = Equal (i, seven)": ("-d0+7 >= 0 and d0-7 >= 0", "-d0+6 >= 0; d0-8 >= 0"),
    "v = Less (i, huge)": ("-d0+4611686018427387904 >= 0", "d0-4611686018427387905 >= 0"),
    "v = Less (huge, i)": ("4611686018427387905 < i[d0]", "4611686018427387905 >= i[d0]"),
    "v = Greater (rows, two)": ("a-3 >= 0", "-a+2 >= 0"),
    "v = Less (j, n)": ("d1 < lengths[d0]", "d1 >= lengths[d0]"),
    "v = Less (n, j)": ("d1-1 >= lengths[d0]", "d1-1 < lengths[d0]"),
    "v = LessOrEqual (j, n)": ("d1-1 < lengths[d0]", "d1-1 >= lengths[d0]"),
    "v = LessOrEqual (n, j)": ("d1 >= lengths[d0]", "d1 < lengths[d0]"),
    "v = Greater (j, n)": ("d1-1 >= lengths[d0]", "d1-1 < lengths[d0]"),
    "v = Greater (n, j)": ("d1 < lengths[d0]", "d1 >= lengths[d0]"),
    "v = GreaterOrEqual (j, n)": ("d1 >= lengths[d0]", "d1 < lengths[d0]"),
    "v = GreaterOrEqual (n, j)": ("d1-1 < lengths[d0]", "d1-1 >= lengths[d0]"),
    "v = Equal (j, n)": None,
    "v = Less (n, far)": None,
    "v = Less (least, lengths)": (
        "-9223372036854775808 < lengths[d0]",
        "-9223372036854775808 >= lengths[d0]",
    ),
    "v = LessOrEqual (least, lengths)": None,
    "v = Less (lengths, least)": None,
    "s = Cast <to = 7> (short) v = Less (i, s)": ("d0 < short[d0]", "d0 >= short[d0]"),
    "s = Cast <to = 6> (lengths) k = Cast <to = 6> (seven) v = Less (k, s)": (
        "7 < s[d0]",
        "7 >= s[d0]",
    ),
    "s = Cast <to = 7> (long) v = Less (i, s)": ("d0 < s[d0]", "d0 >= s[d0]"),
    "u = Cast <to = 13> (seven) v = Less (u, long)": None,
    "s = Cast <to = 7> (flags) v = Less (i, s)": ("d0 < s[d0]", "d0 >= s[d0]"),
    "s = Cast <to = 7> (weights) v = Less (i, s)": ("d0 < s[d0]", "d0 >= s[d0]"),
    "o = other.Op (x) s = Cast <to = 7> (o) v = Less (i, s)": ("", ""),
    "o = other.Op (x) v = Less (seven, o)": ("", ""),
    "s = Add (lengths, one) v = Less (i, s)": ("d0 < s[d0]", "d0 >= s[d0]"),
    "s = Transpose (table) v = Less (i, s)": ("d1 < table[d1, d0]", "d1 >= table[d1, d0]"),
    "s = Concat <axis = 0> (lengths, lengths) v = Less (two, s)": ("2 < s[d0]", "2 >= s[d0]"),
    "s = Pad (lengths, both) v = Less (two, s)": ("2 < s[d0]", "2 >= s[d0]"),
    "s = Slice (lengths, last, top) v = Less (two, s)": ("2 < lengths[d0+1]", "2 >= lengths[d0+1]"),
    "s = Expand (lengths, size) v = Less (j, s)": None,
    "s = Unsqueeze (n, front) t = Squeeze (s, front) v = Less (j, t)": (
        "d1 < lengths[d0]",
        "d1 >= lengths[d0]",
    ),
    "s = Gather (lengths, lengths) v = Less (two, s)": ("2 < s[d0]", "2 >= s[d0]"),
    "s = Gather (lengths, i) v = Less (i, s)": ("d0 < lengths[d0]", "d0 >= lengths[d0]"),
    """k = Shape <start = 0, end = 1> (x) s = ConstantOfShape <value = int64[1] {7}> (k)
       v = Less (s, far)""": None,
    "v = Less (c, table)": ("d0 < table[d0, d1]", "d0 >= table[d0, d1]"),
    "v = Less (j, table)": ("d1 < table[d0, d1]", "d1 >= table[d0, d1]"),
    "w = Cast <to = 1> (i) v = Less (w, weights)": None,
    "v = And (flags, flags)": ("flags[d0] != 0", "flags[d0] == 0"),
    "p = Abs (d) v = LessOrEqual (p, two)": (
        "-d0+d1+2 >= 0 and d0-d1+2 >= 0",
        "-d0+d1-3 >= 0; d0-d1-3 >= 0",
    ),
    "p = Abs (d) v = Less (p, two)": (
        "-d0+d1+1 >= 0 and d0-d1+1 >= 0",
        "-d0+d1-2 >= 0; d0-d1-2 >= 0",
    ),
    "p = Abs (d) v = Greater (p, two)": (
        "-d0+d1-3 >= 0; d0-d1-3 >= 0",
        "-d0+d1+2 >= 0 and d0-d1+2 >= 0",
    ),
    "p = Abs (d) v = GreaterOrEqual (p, two)": (
        "-d0+d1-2 >= 0; d0-d1-2 >= 0",
        "-d0+d1+1 >= 0 and d0-d1+1 >= 0",
    ),
    "p = Abs (d) v = LessOrEqual (two, p)": (
        "-d0+d1-2 >= 0; d0-d1-2 >= 0",
        "-d0+d1+1 >= 0 and d0-d1+1 >= 0",
    ),
    "p = Abs (d) v = Less (two, p)": (
        "-d0+d1-3 >= 0; d0-d1-3 >= 0",
        "-d0+d1+2 >= 0 and d0-d1+2 >= 0",
    ),
    "p = Abs (d) v = Greater (two, p)": (
        "-d0+d1+1 >= 0 and d0-d1+1 >= 0",
        "-d0+d1-2 >= 0; d0-d1-2 >= 0",
    ),
    "p = Abs (d) v = GreaterOrEqual (two, p)": (
        "-d0+d1+2 >= 0 and d0-d1+2 >= 0",
        "-d0+d1-3 >= 0; d0-d1-3 >= 0",
    ),
    "p = Abs (d) v = Equal (p, two)": None,
    "p = Abs (d) v = Less (p, n)": None,
    "p = Abs (d) v = Less (p, j)": ("-d0+2*d1-1 >= 0 and d0-1 >= 0", "-d0 >= 0; d0-2*d1 >= 0"),
    "p = Abs (d) v = Less (j, p)": ("d0-2*d1-1 >= 0", "-d0+2*d1 >= 0"),
    "p = Neg (n) v = Less (p, two)": ("1 >= p[d0, 0]", "1 < p[d0, 0]"),
    "p = Abs (n) v = Less (p, two)": ("1 >= p[d0, 0]", "1 < p[d0, 0]"),
    "p = Abs (tiny) v = Less (p, tiny)": ("", "everywhere"),
    "p = Abs (byte) v = Less (p, byte)": ("", "everywhere"),
    "p = Abs (tiny) v = LessOrEqual (p, tiny)": ("everywhere", ""),
    "p = Abs (i) v = Less (p, edge)": (
        "4611686018427387903 >= p[d0]",
        "4611686018427387903 < p[d0]",
    ),
    "p = Mul (d, n) v = Less (p, two)": ("1 >= p[d0, d1]", "1 < p[d0, d1]"),
    "s = Trilu (table) v = Less (j, s)": ("d1 < s[d0, d1]", "d1 >= s[d0, d1]"),
    "s = Expand (lengths, size) v = Less (two, s)": ("2 < s[d0, d1]", "2 >= s[d0, d1]"),
    "s = CastLike (short, seven) v = Less (i, s)": ("d0 < short[d0]", "d0 >= short[d0]"),
    "s = CastLike (long, seven) v = Less (i, s)": ("d0 < s[d0]", "d0 >= s[d0]"),
    "p = Abs (least) v = Less (p, two)": ("everywhere", ""),
    "p = Abs (d) q = Abs (c) v = Less (p, q)": None,
    "p = other.Abs (d) v = Less (p, two)": ("", ""),
    "p = Abs (d) v = Less (p, huge)": (
        "4611686018427387904 >= p[d0, d1]",
        "4611686018427387904 < p[d0, d1]",
    ),
    "v = Less (byte, byte)": ("", "everywhere"),
}

TABLES = (AFFINE, VECTORS, LIVE_PLACES, COMPARED)
BODIES = [body for table in TABLES for body in table]
REFUSED = ("other.", "Concat (column")  # by ONNX Runtime


@pytest.mark.parametrize("body", AFFINE)
def test_affine_functions(body: str) -> None:
    found = graph_of(model_of(body))["v"].affine
    assert (None if found is None else str(found)) == AFFINE[body]


@pytest.mark.parametrize("body", VECTORS)
def test_coordinates(body: str) -> None:
    found = graph_of(model_of(body))["v"].vectors
    assert (None if found is None else " ".join(map(str, found))) == VECTORS[body]


@pytest.mark.parametrize("body", LIVE_PLACES)
def test_live_places(body: str) -> None:
    assert graph_of(model_of(body))["v"].live_places_of == LIVE_PLACES[body]


def where(graph: Graph, constant: Constant) -> str:
    return "; ".join(describe(f.region) for f in graph["v"].fills if f.constant == constant)


@pytest.mark.parametrize("body", COMPARED)
def test_comparisons(body: str) -> None:
    graph = graph_of(model_of(body))
    by_position = not any(t.src == "v" for f in graph["v"].fills for t in f.region)
    found = (where(graph, 1), where(graph, 0))
    assert (found if by_position else None) == COMPARED[body]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", [b for b in BODIES if not any(r in b for r in REFUSED)])
def test_no_run_refutes_what_is_said(body: str) -> None:
    model = model_of(body)
    graph, runs = graph_of(model), 0
    for values in runs_of(model):
        runs += 1
        sizes, _ = sizes_of(graph, values)
        assert [*wrong_symbols(graph, values, sizes), *wrong_fills(graph, values, sizes)] == []
    assert runs


def test_a_cast_of_who_knows_what_widens_nothing() -> None:
    graph = graph_of(model_of("v = Cast <to = 7> (short)"))
    view = NodeView(graph, graph.nodes[-1])
    assert _widens(view)
    graph["short"].dtype = None
    assert not _widens(view)


def test_an_output_that_is_not_wanted_is_not_noted() -> None:
    model = model_of("w, v = Split <num_outputs = 2> (four)")
    model.graph.node[-1].output[0] = ""
    graph = graph_of(model)
    assert graph[""].affine is None and graph[""].ints is None


@pytest.mark.parametrize(
    ("body", "name", "steps"),
    [
        ("v = Neg (lengths)", "v", ""),
        ("v = Identity (lengths)", "lengths", "v"),
        ("t = Cast <to = 7> (short) v = Unsqueeze (t, last)", "short", "t v"),
    ],
)
def test_values_on_the_way_of_a_moved_element(body: str, name: str, steps: str) -> None:
    graph = graph_of(model_of(body))
    row = dim_index(0, sym("a"))
    shape = graph["v"].shape
    assert shape is not None
    found, place, moved = before_moves(graph, "v", (row, ZERO)[: len(shape)])
    assert (found, place) == (name, (row,))
    assert {n for n in graph.noted if moved & graph[n].bit} == set(steps.split())
    assert moved.bit_count() == len(steps.split())
