"""Constants through elementwise operators: exactly what numbers give, and all of it in numpy."""

from itertools import product
from math import inf, nan
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pitc.ir.constant import NEG, NZ, SCORE, TAME, TOP, ZN, Constant, Range, is_number
from pitc.ir.graph import NodeView
from pitc.passes.rules import arithmetic
from pitc.passes.rules.constants import evaluate_constants, ignores
from pitc.passes.rules.record import OPERATORS
from tests.constant_views import BELOW, F2, F4, I1, I4, I8, U1, B, filled, retyped, same, view
from tests.exhaustive_laws import allowed
from tests.exhaustive_values import stands_for
from tests.rule_proof import Sample, analysed


def test_a_fill_is_its_number() -> None:
    for value, known in ((7, 7), (-0.5, -0.5), (nan, TOP), (True, 1), (2j, TOP), (-inf, -inf)):
        found = evaluate_constants("ConstantOfShape", (), node=filled(value))
        assert same(found, known), value
    assert evaluate_constants("ConstantOfShape", ()) is TOP
    assert evaluate_constants("Sum", (), node=view("Sum", F4)) is TOP


NUMBERS: list[tuple[NodeView | str, tuple[Constant, ...], Constant]] = [
    (view("Add", F4, F4), (0.1, 0.2), float(np.float32(0.1) + np.float32(0.2))),
    (view("Add", F4, F4), (1.0, 2.0, 3.0), TOP),  # which has no third operand
    (view("Add", I1, I1), (100, 100), -56),
    (view("Add", I1, I1), (100, 200), TOP),  # which is no number of the type
    (view("Add", I4, I4), (1, 0.5), TOP),
    (view("Div", I4, I4), (7, 2), 3),
    (view("Div", F4, F4), (1.0, 0.0), TOP),  # of either zero
    (view("Mul", F4, F4), (0.0, -1.0), 0),
    (view("Mul", F4, F4), (inf, 0.0), TOP),
    (view("BitwiseNot", U1), (0,), 255),
    (view("Xor", B, B), (0, 1), 1),
    (view("Xor", B, B), (0, 0), 0),
    (view("IsInf", F4, detect_positive=0), (inf,), 0),
    (view("IsInf", F4, detect_positive=0), (-inf,), 1),
    (view("Mod", I8, I8, fmod=1), (-7, 3), -1),
    (view("Mod", I8, I8), (-7, 3), 2),
    (view("Exp", F4), (0.0,), 1),
    (view("Exp", F4), (1.0,), TOP),
    (view("BitCast", F4, opset=26, to=6), (1.0,), TOP),
    (view("LeakyRelu", F4, alpha=0.5), (-2.0,), -1.0),
    (view("Clip", F4, bounds=(-2.0, 0.75)), (3.0,), 0.75),
    (view("Clip", I8, bounds=(-2, 3)), (-7,), -2),
    ("Add", (1.0, 2.0), 3.0),
    ("Add", (1e30, 1e30), 2e30),
    ("Add", (3e38, 3e38), inf),
    ("IsInf", (inf,), TOP),
    ("LeakyRelu", (-2.0,), TOP),
    ("Gelu", (0.0,), 0),  # by either formula
    ("BitwiseNot", (0,), TOP),
    ("Div", (7.0, 2.0), TOP),
    ("Mod", (7.0, 2.0), TOP),
    ("Less", (1.0, 2.0), 1),
    ("Nothing", (1.0, 2.0), TOP),
]


@pytest.mark.parametrize(("at", "constants", "known"), NUMBERS)
def test_numbers(at: NodeView | str, constants: tuple[Constant, ...], known: Constant) -> None:
    op, node = (at, None) if isinstance(at, str) else (at.op, at)
    found = evaluate_constants(op, constants, node=node)
    if is_number(known) and is_number(found) and known not in (0, inf, -inf):
        assert found == pytest.approx(known, rel=1e-7)
    else:
        assert same(found, known)


def test_a_scale_that_numpy_does_not_know_has_no_number() -> None:
    brain = np.dtype(ml_dtypes.bfloat16)
    node = retyped("DequantizeLinear", I1, F4, place="x1", dtype=brain, axis=0)
    assert evaluate_constants("DequantizeLinear", (3, 2.0), node=node) is TOP
    node = retyped("DequantizeLinear", I1, F4, place="x1", dtype=np.dtype(F2), axis=0)
    assert evaluate_constants("DequantizeLinear", (3, 2.0), node=node) == 6.0


def test_a_clip_by_a_bound_that_is_not_known_has_no_number() -> None:
    graph = analysed(Sample("Clip", (np.ones(2, F4), np.array(0.5, F4))))
    assert evaluate_constants("Clip", (3.0,), node=NodeView(graph, graph.nodes[0])) is TOP


# --- which operands do not matter ---

IGNORED: list[tuple[str, int, tuple[Constant, ...], bool]] = [
    *(("Where", 1, (c, 5.0, 6.0), c == 0) for c in (0, 1, NZ, TOP)),
    *(("Where", 2, (c, 5.0, 6.0), c in (1, NZ)) for c in (0, 1, NZ, TOP)),
    *(("Where", 1, (c, 5.0, 5.0), c == 0) for c in (0, 1, TOP)),
    *(("Where", 1, (c, TOP, TOP), c == 0) for c in (0, 1, TOP)),
    ("Where", 0, (1, 5.0, 5.0), True),
    ("Where", 0, (TOP, 5.0, 5.0), True),
    ("Where", 0, (1, 5.0, 6.0), False),
    ("Where", 0, (1, TOP, TOP), False),
    ("Where", 0, (1, NZ, NZ), False),
    ("Where", 0, (1, ZN, ZN), False),
    ("Mul", 0, (5.0, 0.0), True),
    ("Mul", 1, (0.0, 5.0), True),
    ("Mul", 0, (5.0, ZN), True),
    ("Mul", 0, (0.0, 5.0), False),
    ("Mul", 0, (0.0, NZ), False),
    ("Div", 1, (0.0, 5.0), False),  # 0 / 0 is NaN
    ("Add", 1, (-inf, 5.0), True),
    ("Add", 0, (-inf, 5.0), False),
    ("And", 1, (0, 1), True),
    ("And", 1, (1, 1), False),
    ("Or", 0, (0, 1), True),
    ("Relu", 0, (0.0,), False),
    ("Less", 0, (1.0, -inf), True),
    ("Less", 0, (1.0, 2.0), False),
    ("Max", 0, (TOP, inf), True),
]


@pytest.mark.parametrize(("op", "j", "constants", "ignored"), IGNORED)
def test_ignored(op: str, j: int, constants: tuple[Constant, ...], ignored: bool) -> None:
    assert ignores(op, j, constants) is ignored
    types = [B if op in ("And", "Or") else F4] * len(constants)
    if op == "Where":
        types[0] = B
    assert ignores(op, j, constants, view(op, *types)) is ignored


# --- all of it against numpy ---

SAMPLES = np.array([-inf, -2e4, -1e4, -1e3, -1.5, -0.0, 0.0, 0.25, 1, 2, 1e3, inf], np.float32)
POOL: tuple[Constant, ...] = (
    *(
        NEG,
        TAME,
        SCORE,
        BELOW,
        Range(-1.5, 1.0),
        Range(0.25, 2.0),
        Range(-inf, -inf),
        Range(0.0, inf),
        NZ,
        ZN,
        TOP,
    ),
    *(0.0, 1.0, -1.5, -inf, inf),
)
PURE = {
    op: row
    for (domain, op), row in OPERATORS.items()
    if not domain and row.function and row.function.evaluate and not row.function.typed
    if row.function.parameters is None and op not in ("Where", "BitwiseAnd")
}
BOOLS = ("And", "Or", "Xor", "Not")


@pytest.mark.parametrize("op", [op for op in PURE if not op.startswith("Bit") and op not in BOOLS])
def test_what_is_claimed_holds_in_numpy(op: str) -> None:
    row = PURE[op]
    function = row.function
    assert function is not None
    assert function.evaluate is not None
    count = 2 if op in TWO else 1
    for constants in product(POOL, repeat=count):
        claim = evaluate_constants(op, constants)
        if claim is TOP:
            continue
        operands = np.meshgrid(*(values(c, op, k) for k, c in enumerate(constants)))
        with np.errstate(all="ignore"):
            got = np.asarray(function.evaluate(*operands))
        good = stands_for(claim, got)
        assert good.all(), (constants, claim, got[~good][:3])


COMPARED = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
TWO = {*("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Sum", "Max", "Min", "Mean"), *COMPARED}


def values(c: Constant, op: str, k: int) -> Any:
    """What an operand may be."""
    x = np.append(SAMPLES, np.float32(nan))
    return x[stands_for(c, x) & allowed(OPERATORS["", op], k, c, x)]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_nothing_is_shifted_by_all_its_bits(dtype: Any, direction: str) -> None:
    """What comes of it differs between machines."""
    x, bits = np.array([1, 200], dtype), 8 * np.dtype(dtype).itemsize
    last = arithmetic.shift(x, np.array(bits - 1, dtype), direction)
    shifted = (int(n) << bits - 1 if direction == "LEFT" else int(n) >> bits - 1 for n in x)
    assert last.tolist() == [n % (1 << bits) for n in shifted]
    for n in (bits, bits + 1):
        with pytest.raises(ArithmeticError):
            arithmetic.shift(x, np.array(n, dtype), direction)
