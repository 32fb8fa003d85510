"""Constants through elementwise operators, against ONNX Runtime on operands filled with them."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from pitc.ir.branch import CHOOSE, DOMAIN
from pitc.ir.constant import NEG, NZ, SCORE, TAME, TOP, ZN, Constant, Range, is_number
from pitc.ir.graph import NodeView
from pitc.passes.rules.constants import evaluate_constants, ignores
from pitc.passes.rules.elementwise import function_of
from pitc.passes.rules.record import OPERATORS
from tests.rule_proof import Const, Proof, Sample

N = 8  # elements per operand
F32_MIN = float(np.finfo(np.float32).min)
FLOATS = (0.0, 1.0, -1.0, 2.0, 0.5, 0.1, -3.0, -1e4, -1e9, 1e30, F32_MIN, -np.inf, np.inf)
INTS = (0, 1, -1, 2, 7, -7, 2**31 - 1, -(2**31))
SPECIALS = (NEG, TAME, SCORE, Range(-7e3, -6e3), ZN, NZ, TOP)
SPACE: dict[str, tuple[Constant, ...]] = {
    "f": (*FLOATS, *SPECIALS),
    "i": (*INTS, NZ, TOP),
    "u": (0, 1, 3, 255, NZ, TOP),
    "b": (0, 1, NZ, TOP),
}
MAX_COMBINATIONS = 400


def filled(c: Constant, dtype: Any, rng: np.random.Generator) -> Any:
    """An operand of which the constant is true."""
    if is_number(c):
        return np.full(N, c).astype(dtype)
    if isinstance(c, Range):
        return rng.uniform(max(c.lo, -1e6), min(c.hi, 1e6), N).astype(dtype)
    if c is ZN:
        return np.where(rng.random(N) < 0.5, 0, np.nan).astype(dtype)
    if dtype.kind == "b":
        return np.ones(N, bool) if c is NZ else rng.random(N) < 0.5
    if dtype.kind in "iu":
        return rng.integers(1 if c is NZ else 0, 9, N).astype(dtype)
    x = rng.normal(size=N).astype(dtype)
    return np.where(x == 0, np.ones_like(x), x) if c is NZ else x


def agrees(x: Any, c: Constant) -> bool:
    """Is the claim true of every element?"""
    if isinstance(c, Range):
        return bool(np.all((c.lo <= x) & (x <= c.hi)))
    if c is ZN:
        return bool(np.all((x == 0) | np.isnan(x)))
    if c is NZ:
        return bool(np.all(x != 0))
    if c is TOP:
        return True
    with np.errstate(all="ignore"):
        return bool(np.all(x == np.array(c).astype(x.dtype)))


def traps(op: str, operands: list[Any]) -> bool:
    """Integer divisions that stop the process."""
    if op not in ("Div", "Mod") or operands[0].dtype.kind not in "iu":
        return False
    return bool(np.any(operands[1] == 0) or np.any((operands[1] == -1) & (operands[0] < -9)))


def node(op: str, *dtypes: str, **attributes: Any) -> Any:
    """One case: an operator on vectors of the given types."""
    domain = attributes.pop("domain", "")
    opset = attributes.pop("opset", 21)
    extra = attributes.pop("extra", ())
    operands = (*(np.ones(N, d) for d in dtypes), *extra)
    sample = Sample(op, operands, attributes, domain, opset)
    text = ",".join(f"{k}={v}" for k, v in attributes.items())
    return pytest.param(sample, len(dtypes), id=f"{domain[:3]}{op}({','.join(dtypes)}){text}")


F, D, I4, I8, U, B = "float32", "float64", "int32", "int64", "uint8", "bool"
UNARY = (
    *("Abs", "Neg", "Ceil", "Floor", "Round", "Sign", "Sqrt", "Reciprocal", "Relu", "LeakyRelu"),
    *("ThresholdedRelu", "Shrink", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "HardSigmoid", "Mish"),
    *("HardSwish", "Softplus", "Softsign", "Elu", "Celu", "Selu", "Gelu", "Sin", "Cos", "Tan"),
    *("Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "IsNaN", "IsInf"),
)
BOUND = Const(np.float32(0.25))
CASES = [
    *(node(op, F) for op in UNARY),
    *(node(op, D) for op in ("Abs", "Sqrt", "Exp", "Tanh", "Sigmoid", "Relu", "Neg")),
    *(node(op, I8) for op in ("Abs", "Neg", "Sign")),
    node("LeakyRelu", F, alpha=0.3),
    node("Gelu", F, approximate="tanh"),
    node("IsInf", F, detect_positive=0),
    node("Clip", F),
    node("Clip", F, opset=6, min=-2.0, max=0.75),
    node("Clip", F, extra=(BOUND,)),
    node("Clip", F, extra=(Const(np.float32(-1e4)), BOUND)),
    node("Clip", I8, extra=(Const(np.int64(-1)), Const(np.int64(3)))),
    node("Swish", F, opset=24),
    node("BitCast", F, opset=26, to=6),
    node("Not", B),
    node("BitwiseNot", U),
    *(node(op, t, t) for op in ("Add", "Sub", "Mul", "Div") for t in (F, D, I4, I8)),
    *(node(op, t, t) for op in ("Sum", "Max", "Min") for t in (F, D)),
    *(node(op, F, F) for op in ("Mean", "PRelu", "Pow")),
    *(node(op, I8, I8) for op in ("Max", "Min", "Mod")),
    node("Mod", F, F, fmod=1),
    node("Mod", I4, I4, fmod=1),
    *(node(op, F, F, F) for op in ("Sum", "Max", "Min", "Mean")),
    *(node(op, B, B) for op in ("And", "Or", "Xor", "Equal")),
    *(
        node(op, t, t)
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
        for t in (F, I4)
    ),
    *(node(op, U, U) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    node("BitShift", U, U, direction="RIGHT"),
    *(node("Where", B, t, t) for t in (F, I8)),
    *(node("Cast", F, to=t) for t in (1, 6, 7, 9, 10, 11, 2)),
    *(node("Cast", D, to=t) for t in (1, 9)),
    *(node("Cast", I8, to=t) for t in (1, 2, 6, 9, 11)),
    node("Cast", B, to=1),
    node("Cast", U, to=7),
    node("CastLike", F, extra=(np.ones(1, bool),)),
    node("CastLike", I8, extra=(np.ones(1, np.float32),)),
    *(
        node(op, first, F, U, domain=domain, axis=0)
        for op, first in (("QuantizeLinear", F), ("DequantizeLinear", U))
        for domain in ("", "com.microsoft")
    ),
    node("DequantizeLinear", I4, F, axis=0),
    node("Gelu", F, domain="com.microsoft"),
    node("BiasGelu", F, F, domain="com.microsoft"),
    node("FastGelu", F, F, domain="com.microsoft"),
    node("QuickGelu", F, domain="com.microsoft"),
]


def combinations(dtypes: list[Any]) -> Iterator[tuple[Constant, ...]]:
    """All combinations of constants, or a spread of them."""
    every = list(product(*(SPACE[d.kind] for d in dtypes)))
    step = max(1, len(every) // MAX_COMBINATIONS)
    return iter(every[:: step + (step % 2 == 0)])


@pytest.mark.parametrize(("sample", "count"), CASES)
def test_constants_are_what_the_runtime_computes(sample: Sample, count: int) -> None:
    proof, rng = Proof(sample), np.random.default_rng(3)
    view = NodeView(proof.graph, proof.graph.nodes[0])
    dtypes = [proof.values[i].dtype for i in range(count)]
    to_bool = proof.result[0].dtype.kind == "b"
    for cs in combinations(dtypes):
        operands = [filled(c, d, rng) for c, d in zip(cs, dtypes, strict=True)]
        if traps(sample.op, operands):
            continue
        got = proof.run(dict(enumerate(operands)))[0]
        claim = evaluate_constants(sample.op, cs, to_bool, view)
        assert agrees(got, claim), f"{cs} gives {got}, not {claim}"
        if all(d == np.float32 for d in dtypes):
            claim = evaluate_constants(sample.op, cs, to_bool)
            assert agrees(got, claim), f"without the node {cs} gives {got}, not {claim}"
        for j in range(count):
            if not ignores(sample.op, j, cs, view):
                continue
            changed = [filled(TOP, d, rng) if k == j else operands[k] for k, d in enumerate(dtypes)]
            if not traps(sample.op, changed):
                again = proof.run(dict(enumerate(changed)))[0]
                finite = np.isfinite(operands[j].astype(np.float64))
                assert np.array_equal(got[finite], again[finite], equal_nan=True), (cs, j)


def test_every_elementwise_operator_has_a_case() -> None:
    tested = {(c.values[0].domain, c.values[0].op) for c in CASES}
    choice = (DOMAIN, CHOOSE)  # as Where, on whole tensors: tests/onnx/test_control_flow.py
    assert {key for key, row in OPERATORS.items() if row.function} == {*tested, choice}


@pytest.mark.parametrize(
    ("op", "constants", "expected"),
    [
        ("Mul", (0.0, TOP), 0),
        ("Mul", (ZN, TOP), ZN),
        ("Mul", (0.0, ZN), ZN),
        ("Mul", (0.0, np.inf), TOP),
        ("Mul", (NEG, 2.0), Range(-np.inf, -2e4)),
        ("Mul", (NEG, 0.5), Range(-np.inf, -5e3)),
        ("Mul", (SCORE, TAME), Range(-1e6, 1e6, True)),
        ("Mul", (TAME, TOP), TOP),
        ("Div", (0.0, TOP), ZN),
        ("Add", (-np.inf, TOP), -np.inf),
        ("Add", (-1e9, TOP), TOP),
        ("Add", (NEG, TOP), TOP),
        ("Add", (NEG, NEG), Range(-np.inf, -2e4)),
        ("Add", (NEG, SCORE), Range(-np.inf, -9e3, True)),
        ("Add", (NEG, 1e9), TOP),
        ("Add", (-np.inf, NEG), -np.inf),
        ("Add", (-1e9, ZN), TOP),
        ("Add", (F32_MIN, F32_MIN), -np.inf),
        ("Sub", (TOP, 1e9), TOP),
        ("Sub", (TAME, Range(1e4, np.inf)), Range(-np.inf, -9e3)),
        ("Sub", (1.0, 1.0), 0),
        ("Where", (1, 0.0, TOP), 0),
        ("Where", (TOP, 0.0, ZN), ZN),
        ("Where", (TOP, -1e9, NEG), NEG),
        ("Where", (TOP, -np.inf, NEG), NEG),
        ("Where", (TOP, 0.0, NEG), TOP),
        ("And", (0, TOP), 0),
        ("Or", (NZ, TOP), 1),
        ("Not", (NZ,), 0),
        ("Equal", (NZ, 0), 0),
        ("Relu", (NEG,), 0),
        ("Reciprocal", (0.0,), TOP),
        ("Div", (1.0, -0.0), TOP),
        ("Less", (NEG, 0.0), 1),
        ("Less", (NEG, TOP), TOP),
        ("Equal", (NEG, TAME), 0),
        ("Min", (TOP, NEG), NEG),
        ("Tanh", (TOP,), Range(-1.001, 1.001)),
        ("Exp", (0.0,), 1),
        ("Exp", (0.3,), TOP),
        ("Tanh", (0.0,), 0),
        ("Max", (0.0, TOP), TOP),
    ],
)
def test_laws(op: str, constants: tuple[Constant, ...], expected: Constant) -> None:
    function = function_of("", op)
    assert function is not None
    assert evaluate_constants(op, constants, function.boolean) == expected


def test_integer_arithmetic_uses_the_node() -> None:
    """7 / 2 is 3 for integers, 3.5 for floats, and unknown when the type is."""
    ints, floats = (
        Proof(Sample("Div", (np.full(N, 7, t), np.full(N, 2, t)))) for t in (np.int32, np.float32)
    )
    views = [NodeView(p.graph, p.graph.nodes[0]) for p in (ints, floats)]
    assert evaluate_constants("Div", (7, 2), node=views[0]) == 3
    assert evaluate_constants("Div", (7, 2), node=views[1]) == 3.5
    assert evaluate_constants("Div", (-7, 2), node=views[0]) == -3
    assert evaluate_constants("Div", (7, 0), node=views[0]) is TOP
    assert evaluate_constants("Div", (7, 2)) is TOP
