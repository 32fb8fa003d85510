"""Rules that are wrong: each is a twin of a right one, and the audit of a small model finds it.

A twin is the rule's own text with one condition dropped, or a function that says yes too often. The
models are as small as they get; what shows the fault is the probes: masks that disagree, sizes of
0, numbers at the ends of their types, scores as large as they are assumed to be.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from models.graph import GraphBuilder
from pitc.ir import index
from pitc.ir.index import Poly
from pitc.ir.region import EVERYWHERE
from pitc.passes.exprs import affine, derive
from pitc.passes.facts import dead, fill, softmax, total, zero_signs
from pitc.passes.rules import sources, values
from tests.branch_models import branch
from tests.fact_check import analysed, built, probed

BS = ("batch", "seq")
Make = Callable[[GraphBuilder], None]


def failures(make: Make, mask: str | None = None, opset: int = 20) -> list[str]:
    """What an audit of a model finds."""
    proto: onnx.ModelProto = built(make, opset)
    graph, given_up = analysed(proto, mask)
    result = probed(proto, graph, given_up, mask)
    assert result.feeds > result.refused // 2
    return result.failures


def twin(monkeypatch: pytest.MonkeyPatch, function: Any, *edits: tuple[str, str]) -> None:
    """Replace a function by one whose text differs, wherever it is known by its name."""
    text = inspect.getsource(function)
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    scope: dict[str, Any] = {}
    code = compile(text, "twin", "exec")
    exec(code, function.__globals__, scope)
    replace(monkeypatch, function, scope[function.__name__])


def replace(monkeypatch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Let every module that has imported a function have another one."""
    for module in [m for n, m in sys.modules.items() if n.startswith("pitc")]:
        if vars(module).get(old.__name__) is old:
            monkeypatch.setattr(module, old.__name__, new)


# --- softmaxes ---


def attention(g: GraphBuilder, *masks: float) -> None:
    """softmax(q @ k + masks), each mask a bool input and a number."""
    z = g.op(
        "MatMul",
        g.input("q", np.float32, ("batch", "rows", 4)),
        g.input("k", np.float32, ("batch", 4, "keys")),
    )
    for n, low in enumerate(masks):
        keep = g.op("Unsqueeze", g.input(f"m{n}", np.bool_, ("batch", "keys")), g.ints(1))
        z = g.op("Add", z, g.op("Where", keep, g.const(0.0), g.const(low)))
    g.output(g.op("Softmax", z, axis=-1), "p", np.float32, ("batch", "rows", "keys"))


def two_masks(g: GraphBuilder) -> None:
    attention(g, -1e4, -2e4)


def weak_mask(g: GraphBuilder) -> None:
    attention(g, -2000.0)


def additive(g: GraphBuilder) -> None:
    """A mask that is an input, as it is."""
    z = g.op(
        "MatMul",
        g.input("q", np.float32, ("batch", "rows", 4)),
        g.input("k", np.float32, ("batch", 4, "keys")),
    )
    z = g.op("Add", z, g.input("mask", np.float32, ("batch", 1, "keys")))
    g.output(g.op("Softmax", z, axis=-1), "p", np.float32, ("batch", "rows", "keys"))


# --- values read twice, or tested by what is computed from them ---


def two_gates(g: GraphBuilder) -> None:
    """x is read where one of the gates is open, and both are computed from it."""
    x = g.op("Tanh", g.input("x", np.float32, BS))
    a, b = (g.op("Greater", x, g.const(at)) for at in (0.1, -0.1))
    inner = g.op("Where", b, x, g.const(0.0))
    g.output(g.op("Where", a, inner, g.const(0.0)), "y", np.float32, BS)


def square(g: GraphBuilder) -> None:
    keep = g.input("mask", np.bool_, BS)
    x = g.op("Where", keep, g.op("Tanh", g.input("x", np.float32, BS)), g.const(0.0))
    g.output(g.op("Mul", x, x), "y", np.float32, BS)


def gram(g: GraphBuilder) -> None:
    """x @ x^T: one value under two names."""
    keep = g.input("mask", np.bool_, BS)
    x = g.op("Where", keep, g.op("Tanh", g.input("x", np.float32, BS)), g.const(0.0))
    g.output(g.op("MatMul", x, g.op("Transpose", x)), "y", np.float32, ("batch", "batch"))


# --- sizes ---


def largest_of_masked(g: GraphBuilder) -> None:
    """The largest of nothing is -inf."""
    keep = g.input("mask", np.bool_, BS)
    x = g.op("Where", keep, g.input("x", np.float32, BS), g.const(0.0))
    g.output(g.reduce("ReduceMax", x, 1, keepdims=0), "y", np.float32, ("batch",))


def clamped(g: GraphBuilder) -> None:
    """Range(5, s), which is empty for fewer."""
    s = g.size(g.input("x", np.float32, BS), 1)
    count = g.op("Range", g.const(5, np.int64), s, g.const(1, np.int64))
    g.output(g.op("Neg", count), "y", np.int64, ("n",))


def past_or_not(g: GraphBuilder) -> None:
    """If(past > 0) { -z } { exp(z) }."""
    x, z = g.input("x", np.float32, ("batch", "past")), g.input("z", np.float32, BS)
    some = g.op("Greater", g.size(x, 1), g.const(0, np.int64))
    y = branch(g, some, lambda b: b.op("Neg", z), lambda b: b.op("Exp", z))
    g.output(y, "y", np.float32, BS)


def at_least_one(p: Poly) -> bool:
    """p >= 0 for sizes of 1 and more."""
    return all(c >= 0 for m, c in p.terms.items() if m) and sum(p.terms.values()) >= 0


# --- integers ---


def wrapping(g: GraphBuilder) -> None:
    """Positions times 100 in 8 bits, compared."""
    count = g.op(
        "Range",
        g.const(0, np.int64),
        g.size(g.input("x", np.float32, BS), 1),
        g.const(1, np.int64),
    )
    places = g.op("Mul", g.op("Cast", count, to=onnx.TensorProto.INT8), g.const(100, np.int8))
    g.output(g.op("Cast", places, to=7), "y", np.int64, ("seq",))


# --- zeros ---


def signed(g: GraphBuilder) -> None:
    keep = g.op("Cast", g.input("mask", np.bool_, BS), to=1)
    x = g.op("Tanh", g.input("x", np.float32, BS))
    y = g.op("Div", g.const(1.0), g.op("Mul", keep, x))
    g.output(y, "y", np.float32, BS)


def inverse(g: GraphBuilder) -> None:
    g.output(g.op("Reciprocal", g.input("x", np.float32, BS)), "y", np.float32, BS)


Patch = Callable[[pytest.MonkeyPatch], None]


def edit(function: Any, *edits: tuple[str, str]) -> Patch:
    return lambda m: twin(m, function, *edits)


def always(function: Any, answer: Any) -> Patch:
    return lambda m: replace(m, function, lambda *_, **__: answer)


OTHERS = (" and view.name(r.operand) != mine", "")
OWN_FACTS = ("if not (rests and r.via & resting)", "if True")
TWINS: dict[str, tuple[Patch, Make]] = {
    "every row keeps a key": (always(softmax.spared_rows, [EVERYWHERE]), two_masks),
    "every term is kept": (always(softmax.is_kept, True), two_masks),
    "kept from -50,000 on": (
        lambda m: m.setattr("pitc.ir.constant.KEPT", -5e4),
        two_masks,
    ),
    "hidden from -575 on": (
        edit(softmax.is_hidden, ("limit: float = HIDDEN", "limit: float = HIDDEN / 10")),
        weak_mask,
    ),
    "a mask that is tested is lower than it is": (
        lambda m: m.setattr("pitc.passes.facts.seeds.NEG", fill.Range(-np.inf, -1e5)),
        additive,
    ),
    "what is tested is smaller than it is": (
        lambda m: m.setattr("pitc.passes.facts.terms.TAME", fill.Range(-500, 500)),
        additive,
    ),
    "tests of what is computed from a value": (
        edit(dead._changes, ("bool(changed & bit)", "False")),
        two_gates,
    ),
    "facts that rest on the value itself": (edit(dead.legal, OWN_FACTS), gram),
    "a value read twice, and its own facts": (
        lambda m: (
            twin(m, dead._annihilated, OTHERS),
            twin(m, dead.legal, OWN_FACTS),
        )[0],
        square,
    ),
    "reductions of nothing": (always(fill.filled, EVERYWHERE), largest_of_masked),
    "reductions of nothing, in their facts": (
        edit(fill._reduced, ("region(r | filled(expr))", "region(r)")),
        largest_of_masked,
    ),
    "every size is at least 0": (always(index.nonneg, True), clamped),
    "Range does not end before it starts": (
        lambda m: (
            twin(m, sources._count, (" and nonneg(steps)", "")),
            twin(m, derive._walk, ("not all(map(nonneg, expr.shape))", "False")),
        )[0],
        clamped,
    ),
    "every size is at least 1": (
        lambda m: m.setattr(values, "nonneg", at_least_one),
        past_or_not,
    ),
    "every integer fits": (always(affine.in_type, True), wrapping),
    "no sign of a zero is seen": (always(zero_signs.signed_zeros, set()), signed),
    "every operator is total": (always(total.is_total, True), inverse),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, make = TWINS[name]
    assert failures(make) == []
    patch(monkeypatch)
    assert failures(make) != []


@pytest.mark.parametrize("make", [square, gram])
def test_a_twin_that_is_right(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its test for a value read twice, `_annihilated` says nothing false.

    What more it finds rests on facts of that value: an operand of which nothing is known ignores
    nothing. Such facts carry the value's bit (but a score's, which is no constant), every step
    keeps it, and `legal` drops them for the value: "facts that rest on the value itself" shows that
    nothing else does. As slack they say "dead" of what the value is computed from only where its
    fact does not rest on that, so there the value stays as it is. The test saves facts that are
    dropped later, and room among the few that are kept.
    """
    twin(monkeypatch, dead._annihilated, OTHERS)
    assert failures(make) == []
