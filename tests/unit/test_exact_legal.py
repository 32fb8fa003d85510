"""Which packed forms stay beside each other: forms made by hand, over small graphs."""

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Digit, dim_index, poly, sym
from pitc.ir.nodes import node_name
from pitc.ir.refusal import Code
from pitc.ir.region import Region, Test
from pitc.passes.regions.demand import demand
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import (
    BiasOperand,
    BiasTerm,
    Form,
    GatheredOperand,
    OffsetsOperand,
    Operand,
    PackedOperand,
    Packing,
    WholeOperand,
)
from pitc.passes.regions.layout import layout_of
from pitc.passes.regions.legal import MOVABLE, is_movable, unsound_forms
from pitc.passes.regions.score_bias import TermShape
from tests.fact_check import analysed

# where the mask is 0 nothing of x, p, q and their like is read
TEXT = """
<ir_version: 10, opset_import: ["": 20]>
g (float[b, s, 4] x, bool[b, s] mask, float[4] line, float c) => (float[b, s, 4] y)
<int64[1] last = {-1}, float zero = {0}, float[4, 4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}>
{
    live = Unsqueeze (mask, last)
    BODY
    y = Where (live, z, zero)
}
"""
B, S = sym("b"), sym("s")
DOMAIN = Domain((B, S), frozenset([Test("mask", (dim_index(0, B), dim_index(1, S)), "nz", False)]))
OTHER = Domain((B, S), frozenset([Test("m2", (dim_index(0, B), dim_index(1, S)), "nz", False)]))
ROWS: Coords = (Digit(0, ONE, B), Digit(1, ONE, S))
MIXED: Coords = (Digit(0, ONE, B), Digit(2, ONE, poly(2)))


def graph_of(body: str) -> Graph:
    return analysed(onnx.parser.parse_model(TEXT.replace("BODY", body)))[0]


def packing(name: str, coords: Coords = ROWS, via: int = 0, rank: int = 3) -> Packing:
    shape = (B, S, poly(4))[:rank]
    layout = layout_of(shape, coords)
    assert layout is not None
    return Packing(name, DOMAIN, coords, layout, Region(DOMAIN.at(coords), via))


def rows(name: str, coords: Coords = ROWS, domain: Domain = DOMAIN) -> PackedOperand:
    return PackedOperand(name, domain, coords)


def refused(graph: Graph, made: Mapping[str, Form]) -> dict[str, Code]:
    """The codes of the forms that must not stay, by their nodes."""
    forms = {graph[name].producer: form for name, form in made.items()}
    known = {node: form for node, form in forms.items() if node is not None}
    found = unsound_forms(graph, known, demand(graph, known))
    assert all(refusal.node == node_name(node) for node, refusal in found.items())
    return {node.outputs[0].name or "": refusal.code for node, refusal in found.items()}


def form(name: str, *operands: Operand | None, out: Packing | None = None, via: int = 0) -> Form:
    """A form of one output that rests on some bits."""
    rests = (Region(), Region(via=via)) if via else ()
    return Form((None, out or packing(name)), operands, "Any", rests_on=rests)


PRODUCT = "p = MatMul (x, w)  q = Tanh (p)  z = Identity (q)"


def test_forms_that_stay() -> None:
    graph = graph_of(PRODUCT)
    p, q = form("p", rows("x"), WholeOperand("w")), form("q", rows("p"))
    assert refused(graph, {"p": p, "q": q}) == {}
    assert refused(graph, {"p": p}) == {} and refused(graph, {"q": q}) == {}
    assert refused(graph, {}) == {}


@pytest.mark.parametrize(
    ("operand", "stays"),
    [
        (rows("x"), True),
        (rows("x", MIXED), False),  # its dimensions mix digits
        (rows("x", (Digit(2, ONE, poly(3)), ROWS[0])), False),  # digits that do not tile
        (rows("c", ()), False),  # no dimension is dropped
        (rows("text"), False),
        (GatheredOperand("line", DOMAIN, ("r",)), True),
        (GatheredOperand("text", DOMAIN, ("c0", "c1", "r")), False),
        (WholeOperand("text"), True),
        (OffsetsOperand(DOMAIN, "offsets"), True),
        (None, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", [0, 1])
def test_operands_that_enter(operand: Operand, stays: bool, place: int) -> None:
    graph = graph_of(PRODUCT)
    graph["text"].shape, graph["text"].dtype = graph["x"].shape, np.dtype("O")
    operands = [WholeOperand("w"), WholeOperand("w")]
    made = form("p", *operands[:place], operand, *operands[place:])
    assert refused(graph, {"p": made}) == ({} if stays else {"p": Code.LAYOUT})


def test_an_operand_that_is_computed_packed_enters_as_it_is() -> None:
    graph = graph_of(PRODUCT)
    p, q = form("p", rows("x"), out=packing("p", MIXED)), form("q", rows("p", MIXED))
    assert refused(graph, {"p": p, "q": q}) == {}
    assert refused(graph, {"p": form("p", rows("x")), "q": q}) == {"q": Code.LAYOUT}
    assert refused(graph, {"q": q}) == {"q": Code.LAYOUT}


def test_what_comes_back_whole_has_a_packing_that_can() -> None:
    graph = graph_of(PRODUCT)
    assert refused(graph, {"p": Form((packing("q"), None), (), "Any")}) == {"p": Code.NO_FACT}
    assert refused(graph, {"p": form("p", out=packing("p", MIXED))}) == {"p": Code.LAYOUT}
    for dtype, movable in ((np.dtype("O"), False), (None, False), (np.dtype("i1"), True)):
        graph["p"].dtype = dtype
        made = {"p": form("p", rows("x"))}
        assert refused(graph, made) == ({} if movable else {"p": Code.LAYOUT})
        assert refused(graph, {**made, "q": form("q", rows("p"))}) == {}  # only q comes back


def test_skipped_terms_do_not_rest_on_what_is_overwritten() -> None:
    graph = graph_of("p = MatMul (x, w)  q = Tanh (p)  r = Neg (q)  z = Identity (r)")
    p, q, r = (graph.note_bit(name) for name in "pqr")
    assert len({1, p, q, r}) == 4  # the first bit is that of another value
    makes = {"p": (rows("x"),), "q": (rows("p"),)}
    for on, found in (
        (0, None),
        (1, None),
        (p, None),
        (q, Code.JOINT),
        (p | q, Code.JOINT),
        (r, None),
    ):
        first = {"p": form("p", *makes["p"], via=on), "q": form("q", *makes["q"])}
        assert refused(graph, first) == ({} if found is None else {"p": found})
        last = {"p": form("p", *makes["p"]), "q": form("q", out=packing("q", via=on))}
        assert refused(graph, last) == ({} if found is None else {"q": found})
    # both come back whole
    both = {"p": form("p", *makes["p"], via=q), "q": form("q", WholeOperand("p"), via=p)}
    assert refused(graph, both) == {"p": Code.JOINT, "q": Code.JOINT}


DIVIDED = "p = MatMul (x, w)  t = Tanh (p)  q = Div (x, t)  z = Add (q, x)"
MASKED = "p = MatMul (x, w)  q = Div (x, p)  r = Tanh (p)  m = Add (q, r)  z = Identity (m)"


@pytest.mark.parametrize(
    ("body", "made", "found"),
    [
        (DIVIDED, {"p": form("p", rows("x"))}, {"p": Code.NOT_TOTAL}),
        (DIVIDED, {"t": form("t", rows("p"))}, {"t": Code.NOT_TOTAL}),
        (DIVIDED, {"q": form("q", rows("x"), rows("t"))}, {}),
        # rows of it that are live are no zeros
        (
            DIVIDED,
            {"p": form("p", rows("x")), "t": form("t", rows("p")), "q": form("q", rows("t"))},
            {},
        ),
        (MASKED, {"p": form("p", rows("x")), "q": form("q", rows("x"), rows("p"))}, {}),
        # they are, where they are gathered from what came back
        *(
            (
                MASKED,
                {"p": form("p", rows("x")), "q": form("q", operand)},
                {"p": Code.NOT_TOTAL},
            )
            for operand in (
                rows("p", domain=OTHER),
                rows("p", (ROWS[1], ROWS[0])),
                GatheredOperand("p", DOMAIN, ("c0", "c1", "r")),
                BiasOperand(tuple(BiasTerm(x, TermShape(())) for x in "xp")),
                WholeOperand("p"),
            )
        ),
        # nobody runs the division
        ("p = MatMul (x, w)  q = Div (x, p)  z = Tanh (p)", {"p": form("p", rows("x"))}, {}),
        # what comes back is refused for itself first
        (DIVIDED, {"t": form("t", out=packing("t", MIXED))}, {"t": Code.LAYOUT}),
        # one of several
        (
            "p = MatMul (x, w)  t = Neg (x)  q = Div (x, p)  z = Add (q, t)",
            {"p": form("p", rows("x")), "t": form("t", rows("x"))},
            {"p": Code.NOT_TOTAL},
        ),
    ],
)
def test_readers_of_zeros(body: str, made: Mapping[str, Form], found: Mapping[str, Code]) -> None:
    graph = graph_of(body)
    assert graph["p"].dead
    assert refused(graph, made) == found


INTEGERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
MOVED = ("?", "f2", "f4", "f8", *INTEGERS, ml_dtypes.bfloat16)
NOT_MOVED = (ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.uint4, "O", "U3", "c8", "c16")


def test_types_that_are_moved() -> None:
    graph = graph_of(PRODUCT)
    for kind in MOVED:
        graph["x"].dtype = np.dtype(kind)
        assert is_movable(graph, "x")
    for other in NOT_MOVED:
        graph["x"].dtype = np.dtype(other)
        assert not is_movable(graph, "x")
    graph["x"].dtype = None
    assert not is_movable(graph, "x")
    assert len(MOVABLE) == len(MOVED) and not is_movable(graph, "nothing")


def test_nodes_are_told_by_name() -> None:
    graph = graph_of(PRODUCT)
    node = graph["p"].producer
    assert node is not None
    node.name = "product"
    assert refused(graph, {"p": form("p", out=packing("p", MIXED))}) == {"p": Code.LAYOUT}
