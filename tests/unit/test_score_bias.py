"""How terms of attention scores are read: as [batch, heads, queries, keys]."""

from math import prod

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, Poly, poly, sym
from pitc.ir.target import CPU, CUDA, Target
from pitc.passes.regions.score_bias import TermShape, repeats_turns, shape_of_term

B, S = sym("b"), sym("s")
SIZES = {"b": 3, "s": 5}


def place(dim: int, extent: Poly, stride: Poly = ONE) -> Digit:
    return Digit(dim, stride, extent)


H, G = poly(4), poly(2)
#: extents of scores, and coordinates of queries and of keys
SCORES = {
    "four": ((B, H, S, S), (place(0, B), place(2, S), place(3, S))),
    "merged": ((B * 4, S, S), (place(0, B, H), place(1, S), place(2, S))),
    "each": ((B, H, S, S), (place(0, B), place(1, H), place(2, S), place(3, S))),
    "grouped": ((B, G, G, S, S), (place(0, B), place(3, S), place(4, S))),
    "turned": ((B, S, H, S), (place(0, B), place(1, S), place(3, S))),
    "each of two": (
        (B, H, G, S, S),
        (place(0, B), place(1, H), place(3, S), place(4, S)),
    ),
    "heads first": ((H, B, S, S), (place(1, B), place(0, H), place(2, S), place(3, S))),
    "one": ((ONE, H, S, S), (place(2, S), place(3, S))),
}
#: scores, a term, and how it is read
TERMS = {
    "as it is": ("four", (B, ONE, S, S), (B, ONE, S, S)),
    "of keys": ("four", (S,), (ONE, ONE, ONE, S)),
    "of a size that is checked": ("four", (B, ONE, ONE, sym("t")), (B, ONE, ONE, sym("t"))),
    "merged": ("merged", (B * 4, ONE, S), (B, H, ONE, S)),
    "merged, of pairs": ("merged", (S, S), (ONE, ONE, S, S)),
    "of another merged size": ("merged", (sym("t"), ONE, S), None),
    "of rows of heads": ("each", (B, H, ONE, S), (B * 4, ONE, ONE, S)),
    "of all rows": ("each", (ONE, ONE, S, S), (ONE, ONE, S, S)),
    "in turn": ("each", (ONE, H, S, S), (ONE, H, S, S)),
    "of sequences of heads": ("each", (B, ONE, S, S), None),
    "of two heads": ("grouped", (G, G, ONE, S), (ONE, H, ONE, S)),
    "of half of the heads": ("grouped", (G, ONE, ONE, S), None),
    "of the other half": ("grouped", (ONE, G, ONE, S), None),
    "of turned keys": ("turned", (H, S), (ONE, H, ONE, S)),
    "of turned queries": ("turned", (B, S, ONE, ONE), (B, ONE, S, ONE)),
    "turned": ("turned", (S, H, ONE), None),
    "of a batch of one": ("one", (H, S, S), (ONE, H, S, S)),
    "in turn, of two": ("each of two", (ONE, H, G, S, S), None),
    "of heads first": ("heads first", (H, B, ONE, S), None),
    "of more dimensions": ("merged", (ONE, B * 4, S, S), None),
}


def graph(target: Target = CPU, opset: int = 18) -> Graph:
    text = f"""<ir_version: 9, opset_import: ["": {opset}]>
        g (float[b, s, t] x) => (float[b, s, t] y) {{ y = Neg (x) }}"""
    return Graph(ir.from_proto(onnx.parser.parse_model(text)), target)


def read_as(of: str, term: tuple[Poly, ...], graph: Graph) -> tuple[Poly, ...] | None:
    shape, coords = SCORES[of]
    found = shape_of_term(graph, shape, coords, term)
    return None if found is None else found.extents


@pytest.mark.parametrize("case", TERMS)
def test_shapes(case: str) -> None:
    of, term, want = TERMS[case]
    assert read_as(of, term, graph()) == want


@pytest.mark.parametrize("case", [c for c in TERMS if TERMS[c][2] is not None])
def test_what_is_read_is_what_is_added(case: str) -> None:
    """Of each sequence, head, query and key: the number that broadcasts to the score."""
    of, term, want = TERMS[case]
    shape, coords = SCORES[of]
    assert want is not None

    def sizes(extents: tuple[Poly, ...]) -> list[int]:
        return [int(e.evaluate(SIZES | {"t": 5}, {})) for e in extents]

    x = np.arange(prod(sizes(term))).reshape(sizes(term))
    added = np.broadcast_to(x, sizes(shape))
    read = x.reshape(sizes(want))
    *lead, query, key = coords
    for at in np.ndindex(*added.shape):

        def digit(d: Digit, at: tuple[int, ...] = at) -> int:
            stride, extent = sizes((d.stride, d.extent))
            return at[d.dim] // stride % extent

        batch, heads = 0, 0
        for c in lead:
            batch = batch * sizes((c.extent,))[0] + digit(c)
        for d, n in enumerate(added.shape):
            of_dim = [c for c in coords if c.dim == d]
            if not of_dim:
                heads = heads * n + at[d]
            elif of_dim[0].stride != ONE:
                heads = at[d] % sizes((of_dim[0].stride,))[0]
        if case == "in turn":
            batch, heads = 0, batch % 4
        found = batch, heads, digit(query), digit(key)
        assert (
            added[at] == read[tuple(min(k, n - 1) for k, n in zip(found, read.shape, strict=True))]
        )


def test_what_is_read_in_turn() -> None:
    """Beside what has as many heads it is summed as it is, beside others in as many turns."""
    found = {}
    for case in ("in turn", "of rows of heads", "of all rows", "as it is", "of turned keys"):
        of, term, _ = TERMS[case]
        found[case] = shape_of_term(graph(), SCORES[of][0], SCORES[of][1], term) or TermShape(())
        assert found[case].turns == (B if case == "in turn" else ONE)
    in_turn, of_rows, of_all, as_it_is, of_heads = found.values()
    assert repeats_turns([in_turn, of_all, of_rows])
    assert repeats_turns([in_turn, TermShape((ONE, G, S, S), B * 2)])
    assert not repeats_turns([in_turn, of_all, in_turn])
    assert not repeats_turns([as_it_is, of_heads])


def test_what_needs_lists_or_sizes() -> None:
    in_turn, merged = (TERMS[case] for case in ("in turn", "merged"))
    assert read_as("each", in_turn[1], graph(CUDA)) is None
    assert read_as("merged", merged[1], graph(CUDA)) == merged[2]
    assert read_as("merged", merged[1], graph(opset=13)) is None
    c = sym("c")  # a size of no input
    coords = (place(0, c, H), place(1, S), place(2, S))
    assert shape_of_term(graph(), (c * 4, S, S), coords, (c * 4, ONE, S)) is None
    each = (place(0, c), *SCORES["each"][1][1:])
    assert shape_of_term(graph(), (c, H, S, S), each, in_turn[1]) is None
