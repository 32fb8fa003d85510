"""Attention rows that live although every key is hidden: their weights show how scores round."""

from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from models.graph import GraphBuilder
from pitc.ir import target as targets
from tests.lower_support import check, lower, weight

HIDDEN, HEADS, SIZE = 64, 4, 16


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack wherever it is sound, in small models too."""
    cpu = replace(targets.CPU, flops_per_byte=0, least_extent=1, least_weight=1)
    monkeypatch.setattr(targets, "CPU", cpu)


def positions(g: GraphBuilder) -> str:
    size = g.op("Squeeze", g.op("Slice", g.op("Shape", "x"), g.ints(1), g.ints(2)))
    start, step = (g.const(n, np.int64) for n in (0, 1))
    return g.op("Range", start, size, step)


def relative(g: GraphBuilder) -> str:
    """A bias [1, heads, queries, keys] that a table gives for each distance."""
    table = np.random.default_rng(3).standard_normal((64, HEADS)).astype(np.float32)
    rows, columns = (g.op("Unsqueeze", positions(g), g.ints(axis)) for axis in (0, 1))
    found = g.op("Gather", g.weight("table", table), g.op("Abs", g.op("Sub", rows, columns)))
    return g.op("Unsqueeze", g.op("Transpose", found, perm=[2, 0, 1]), g.ints(0))


def heads(g: GraphBuilder, name: str, perm: tuple[int, ...] = (0, 2, 1, 3)) -> str:
    product = g.op("MatMul", "x", weight(g, name, HIDDEN, HIDDEN))
    return g.op("Transpose", g.op("Reshape", product, g.ints(0, 0, HEADS, SIZE)), perm=list(perm))


def scores(g: GraphBuilder) -> str:
    product = g.op("MatMul", heads(g, "q"), heads(g, "kk", (0, 2, 3, 1)))
    return g.op("Mul", product, g.const(0.25, np.float32))


def causal(g: GraphBuilder, low: float) -> str:
    rows, columns = (g.op("Unsqueeze", positions(g), g.ints(axis)) for axis in (1, 0))
    kept = g.op("LessOrEqual", columns, rows)
    kept = g.op("Unsqueeze", kept, g.ints(0, 1))
    return g.op("Where", kept, *(g.const(n, np.float32) for n in (0, low)))


def mask_of(g: GraphBuilder, low: float) -> str:
    live = g.op("Cast", g.op("Unsqueeze", "mask", g.ints(1, 2)), to=TensorProto.BOOL)
    return g.op("Where", live, *(g.const(n, np.float32) for n in (0, low)))


def model(low: float, terms: str, exposed: bool) -> onnx.ModelProto:
    """One layer whose first row is read, and the others where the mask is not 0.

    Args:
        low: The mask's number.
        terms: In order, what is added to the scores: r for a relative bias, m for the mask, c for a
            causal one.
        exposed: The others are an output as they are.
    """
    g = GraphBuilder("hidden", 17)
    g.input("x", np.float32, ("b", "s", HIDDEN))
    g.input("mask", np.int64, ("b", "s"))
    s = scores(g)
    term_of = {"r": relative, "m": partial(mask_of, low=low), "c": partial(causal, low=low)}
    for term in terms:
        s = g.op("Add", s, term_of[term](g))
    rows = g.op("MatMul", g.op("Softmax", s, axis=-1), heads(g, "vvv"))
    rows = g.op("Reshape", g.op("Transpose", rows, perm=[0, 2, 1, 3]), g.ints(0, 0, HIDDEN))
    h = g.op("MatMul", rows, weight(g, "out", HIDDEN, HIDDEN))
    g.output(g.op("Gather", h, g.const(0, np.int64), axis=1), "first", np.float32, ("b", HIDDEN))
    if not exposed:
        live = g.op("Unsqueeze", g.op("Cast", "mask", to=TensorProto.BOOL), g.ints(2))
        h = g.op("Where", live, h, g.const(0, np.float32))
    g.output(h, "y", np.float32, ("b", "s", HIDDEN))
    return g.model()


def feeds(lengths: list[int], size: int = 8) -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((len(lengths), size, HIDDEN)).astype(np.float32)
    mask = (np.arange(size) < np.array(lengths)[:, None]).astype(np.int64)
    return {"x": x, "mask": mask}


@pytest.mark.parametrize("padding", [None, "mask"])
@pytest.mark.parametrize("low", [-1e4, -65504.0, -1e7, -1e9, -1.1e11, -1e38])
@pytest.mark.parametrize("terms", ["rm", "mr", "mm", "rmr"])
def test_a_row_of_hidden_keys(terms: str, low: float, padding: str | None) -> None:
    """The first row of every sequence lives, of one without live keys too."""
    proto = model(low, terms, exposed=padding is not None)
    lowered = lower(proto, padding, sparse=False)
    given = feeds([0, 5, 8])
    if padding:  # the reference writes what a contract leaves out as ONNX Runtime does not
        given["mask"][1:] = 1
        del proto.graph.output[1]
        outputs = [o for o in lowered.model.graph.outputs if o.name == "first"]
        lowered.model.graph.outputs[:] = outputs
    found = check(proto, lowered, given)
    assert ("attention" in found) == (low < -1e11)


@pytest.mark.parametrize("terms", ["crm", "rcm", "rmc", "ccm"])
@pytest.mark.parametrize("low", [-1e4, -1e7, -1e38])
def test_rows_that_keep_a_key_show_nothing(low: float, terms: str) -> None:
    """Under the contract alone: every row that lives is one of its own keys."""
    proto = model(low, terms, exposed=True)
    del proto.graph.output[0]
    lowered = lower(proto, "mask", sparse=False)
    assert "attention" in check(proto, lowered, feeds([8, 8]))


def test_one_term_is_added_as_it_was() -> None:
    """Not in another order: what is left are the last bits of scores."""
    lowered = lower(model(-1e9, "m", exposed=False), sparse=False)
    assert "attention" in check(model(-1e9, "m", exposed=False), lowered, feeds([0, 5, 8]))


@pytest.mark.parametrize(("shift", "packs"), [(-3.9e3, False), (-90.0, True)])
def test_a_number_that_shifts_whole_rows(shift: float, packs: bool) -> None:
    """Rows keep keys, and none that is not rounded to multiples of 2e-4."""
    g = GraphBuilder("shifted", 17)
    g.input("x", np.float32, ("b", "s", HIDDEN))
    g.input("mask", np.int64, ("b", "s"))
    s = g.op("Add", scores(g), relative(g))
    s = g.op("Add", s, g.const(np.full((1, 1, 1, 1), shift), np.float32))
    s = g.op("Add", s, mask_of(g, -1e38))
    rows = g.op("MatMul", g.op("Softmax", s, axis=-1), heads(g, "vvv"))
    rows = g.op("Reshape", g.op("Transpose", rows, perm=[0, 2, 1, 3]), g.ints(0, 0, HIDDEN))
    h = g.op("MatMul", rows, weight(g, "out", HIDDEN, HIDDEN))
    live = g.op("Unsqueeze", g.op("Cast", "mask", to=TensorProto.BOOL), g.ints(2))
    y = g.op("Where", live, h, g.const(0, np.float32))
    g.output(y, "y", np.float32, ("b", "s", HIDDEN))
    proto = g.model()
    found = check(proto, lower(proto, sparse=False), feeds([1, 5, 8]))
    assert ("attention" in found) == packs
