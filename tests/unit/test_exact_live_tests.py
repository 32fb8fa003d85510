"""Which tests can be computed before a region runs, and where they look."""

import onnx.parser
import onnx_ir as ir
import pytest

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, ZERO, Digit, Poly, atom, dim_index, poly, sym
from pitc.ir.region import SOME, Test, position
from pitc.ir.since import Since
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.live_tests import can_compute

b, s, z = sym("b"), sym("s"), sym("z")
B, S = dim_index(0, b), dim_index(1, s)
EVERY, ANY = (atom(Digit(d, ONE, s)) for d in (-1, SOME - 1))


def graph_of(opset: int, domain: str = "") -> Graph:
    """Masks of several shapes; z is a size of none of them."""
    text = f"""
        <ir_version: 8, opset_import: ["{domain}" : {opset}]>
        g (bool[b, s] m, bool[b, 1] column, bool[1, s] row, bool[1] one, bool[1, 1] corner,
           bool flag, int64[b] n)
        => (bool y) {{ y = {domain + "." if domain else ""}Identity (flag) }}"""
    return Graph(ir.serde.deserialize_model(onnx.parser.parse_model(text)))


GRAPH = graph_of(20)


def nz(name: str, *idx: Poly) -> Test:
    return Test(name, idx, "nz", False)


LENGTH = Test("n", (B, S), "below", False)


@pytest.mark.parametrize(
    ("extents", "tests", "possible"),
    [
        ((b, s), [nz("m", B, S)], True),
        ((b, s), [LENGTH], True),
        ((), [nz("one", ZERO)], True),
        ((b, poly(5)), [nz("m", B, dim_index(1, poly(5)))], True),
        # sizes of no input: of the points, of places that are looked up, of digits in them
        ((z,), [nz("m", dim_index(0, z), EVERY)], False),
        ((b, z), [nz("m", B, EVERY)], False),
        ((b, s * z), [LENGTH], False),
        ((b, s), [nz("m", B, S + z)], False),
        ((b, s), [nz("m", B, atom(Digit(1, z, s)))], False),
        ((b, s), [nz("m", B, atom(Digit(1, s, z)))], False),
        ((b, s), [nz("m", B, atom(Digit(1, s, b)))], True),
        ((b, s), [position(S * z - 1)], False),
        ((b, s), [nz("m", B, S), position(S - s + 1)], True),
        ((b, s), [nz("m", B, S), position(S - z)], False),
    ],
    ids=str,
)
def test_live_points_are_computed_from_sizes_of_inputs(
    extents: tuple[Poly, ...], tests: list[Test], possible: bool
) -> None:
    assert can_compute(GRAPH, Domain(extents, frozenset(tests))) == possible


@pytest.mark.parametrize(
    ("test", "oldest"),
    [
        (nz("m", B, S), Since.LIVE_TESTS),
        (LENGTH, Since.LOOK_UPS),
        (position(S - 1), Since.LOOK_UPS),
    ],
)
def test_operators_that_live_points_need(test: Test, oldest: int) -> None:
    assert (Since.LIVE_TESTS, Since.LOOK_UPS) == (9, 11)
    domain = Domain((b, s), frozenset([test]))
    assert [can_compute(graph_of(n), domain) for n in range(7, 14)] == [
        n >= oldest for n in range(7, 14)
    ]
    assert not can_compute(graph_of(20, "other"), domain)
    both = Domain((b, s), frozenset([nz("m", B, S), LENGTH]))
    assert [can_compute(graph_of(n), both) for n in (10, 11)] == [False, True]
