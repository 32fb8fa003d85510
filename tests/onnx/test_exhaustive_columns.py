"""The columns beside the laws, by evaluation: trusted, total, signs, clean, finite at zero."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from pitc.ir.branch import CHOOSE
from pitc.passes.facts.total import is_total
from pitc.passes.rules import signs as signs_of
from pitc.passes.rules.record import OPERATORS, Elementwise, Operator, always, never, trust_all
from pitc.passes.rules.signs import Sign
from tests.exhaustive_laws import FLOATS, Case, Grid, by_operator, cases, grids, running
from tests.exhaustive_values import every
from tests.record_twin import twin
from tests.rule_proof import Const, Proof, Sample
from tests.rule_samples import SAMPLES

Array = Any
BY_OPERATOR = by_operator()
CASES = cases()
MODEST = 8.0  # overflow aside: between numbers of this size nothing overflows
LARGE = 1000.0  # the same for sums


def record(case: Case) -> Operator:
    """The record of a case's operator."""
    return OPERATORS[case.domain, case.op]


def grouped(wanted: Callable[[Case], object]) -> dict[str, list[Case]]:
    """Cases that are wanted, by operator."""
    chosen = {op: [c for c in found if wanted(c)] for op, found in BY_OPERATOR.items()}
    return {op: found for op, found in chosen.items() if found}


def numbers(grid: Grid) -> list[Array]:
    """The operands of a grid, broadcast to its points."""
    rank = len(grid.values)
    open_ = [
        x.reshape([-1 if d == k else 1 for d in range(rank)]) for k, x in enumerate(grid.values)
    ]
    return [np.broadcast_to(x, grid.result.shape) for x in open_]


def untrusted(case: Case) -> Iterator[str]:
    """Points at which `evaluate` is trusted and not what ONNX Runtime computes."""
    row = record(case).function
    if row is None or row.evaluate is None:
        return
    for grid, _ in grids(case):
        known = row.parameters(grid.view) if row.parameters is not None else {}
        wanted = grid.view.out_dtype(0)
        if known is None or any(v is None for v in known.values()) or wanted is None:
            return
        trusted = [_trusted(row, x) for x in grid.values]
        operands = [x[np.ix_(*trusted)] for x in numbers(grid)]
        real = grid.result[np.ix_(*trusted)]
        said, some = _evaluated(row, operands, known, wanted)
        bad = some & (said != real)
        if bad.any():
            at = tuple(np.argwhere(bad)[0])
            xs = ", ".join(str(x[at]) for x in operands)
            yield f"{case.title}: f({xs}) = {real[at]}, not {said[at]}"


def _trusted(row: Elementwise, x: Array) -> Array:
    if row.trusted is trust_all:
        return np.arange(x.size)
    return np.flatnonzero([row.trusted(v) for v in x.tolist()])


def _evaluated(
    row: Elementwise, operands: list[Array], known: dict[str, Any], wanted: Any
) -> tuple[Array, Array]:
    """What the table says, and where it says something: no NaN, nothing out of range."""
    assert row.evaluate is not None
    with np.errstate(all="ignore"):
        try:
            said = np.asarray(row.evaluate(*operands, **known)).astype(wanted)
            return said, said == said
        except (ArithmeticError, ValueError):
            pass
        said, some = np.zeros(operands[0].shape, wanted), np.zeros(operands[0].shape, bool)
        spread = [np.unique(np.r_[0 : n : max(1, n // 60), : min(n, 8)]) for n in said.shape]
        for at in product(*(s.tolist() for s in spread)):
            try:
                said[at] = np.asarray(row.evaluate(*(x[at] for x in operands), **known))
                some[at] = said[at] == said[at]
            except (ArithmeticError, ValueError):
                continue
    return said, some


@pytest.mark.parametrize("op", BY_OPERATOR)
def test_trusted_arithmetic_is_exact(op: str) -> None:
    assert [text for case in running(BY_OPERATOR[op]) for text in untrusted(case)] == []


# --- total ---

POLES = {  # partial operators without a finite float at which they are not finite
    "BitCast": "the bits of other numbers",
    "Celu": "only where alpha is 0 or less",
}


def _not_finite(case: Case, limit: float) -> Array:
    """Operand values, one row per finite point below a limit whose result is not finite."""
    found = []
    for grid, _ in grids(case):
        if grid.result.dtype.kind != "f":
            continue
        operands = numbers(grid)
        ok = ~np.isfinite(grid.result)
        for x in operands:
            ok &= np.isfinite(x) & (np.abs(x.astype(np.float64)) <= limit)
        found += [np.array([x[ok] for x in operands], np.float64).T]
    return np.concatenate(found) if found else np.zeros((0, 1))


def _of_floats(case: Case) -> bool:
    return set(case.types) <= {*FLOATS, "bool", "uint8", "int8"}


FLOAT_CASES = [case for case in CASES if _of_floats(case)]
TOTAL = grouped(lambda c: _of_floats(c) and record(c).finite is always)


@pytest.mark.parametrize("op", TOTAL)
def test_a_total_operator_is_finite(op: str) -> None:
    found = [(case.title, _not_finite(case, MODEST)) for case in running(TOTAL[op])]
    assert [
        f"{title}: {len(bad)} points, such as {bad[0]}" for title, bad in found if len(bad)
    ] == []


PARTIAL = [op for (_, op), row in OPERATORS.items() if row.function and row.finite is not always]


@pytest.mark.parametrize("op", PARTIAL)
def test_a_partial_operator_has_a_pole(op: str) -> None:
    found = running(case for case in FLOAT_CASES if case.op == op)
    bad = [len(_not_finite(case, np.inf)) for case in found]
    assert (max(bad, default=0) > 0) == (op not in POLES)


# --- clean: neither NaN nor +inf ---


def _not_clean(case: Case) -> Iterator[str]:
    """Points of clean operands at which the result is NaN or +inf."""
    for grid, _ in grids(case):
        if grid.result.dtype.kind != "f":
            continue
        ok = np.ones(grid.result.shape, bool)
        for x in numbers(grid):
            if x.dtype.kind == "f":
                ok &= (np.abs(x) <= LARGE) | np.isneginf(x)
        bad = np.argwhere(ok & (np.isnan(grid.result) | np.isposinf(grid.result)))
        if len(bad):
            xs = ", ".join(str(x[n]) for x, n in zip(grid.values, bad[0], strict=True))
            yield f"{case.title}: f({xs}) = {grid.result[tuple(bad[0])]}"


CLEAN = grouped(lambda c: _of_floats(c) and record(c).keeps_clean)


@pytest.mark.parametrize("op", CLEAN)
def test_clean_operands_give_clean_results(op: str) -> None:
    assert [text for case in running(CLEAN[op]) for text in _not_clean(case)] == []


def test_what_keeps_clean_is_tested() -> None:
    clean = {op for (_, op), row in OPERATORS.items() if row.keeps_clean}
    tested = {c.op for found in CLEAN.values() for c in running(found)}
    assert tested == clean - {CHOOSE, "Pad"}  # which is no function of one element


# --- signs ---

TESTS = {
    Sign.ANY: lambda x: np.ones(x.shape, bool),
    Sign.NONNEGATIVE: lambda x: ~(x < 0),
    Sign.POSITIVE: lambda x: ~(x <= 0),
}


def wrong_signs(case: Case) -> Iterator[str]:
    """Points at which a law of signs does not hold."""
    law = record(case).sign
    assert law is not None
    for grid, _ in grids(case):
        if grid.result.dtype.kind != "f":
            continue
        for signs in product(Sign, repeat=len(grid.values)):
            places = [np.flatnonzero(TESTS[s](x)) for s, x in zip(signs, grid.values, strict=True)]
            y, said = grid.result[np.ix_(*places)], law(signs)
            if not TESTS[said](y).all():
                yield f"{case.title}: {signs} give {y[~TESTS[said](y)][0]}, not {said!r}"


SIGNED = grouped(lambda c: record(c).sign and set(c.types) <= set(FLOATS))


@pytest.mark.parametrize("op", [op for op in SIGNED if op != "Clip"])
def test_signs(op: str) -> None:
    assert [text for case in running(SIGNED[op]) for text in wrong_signs(case)] == []


def test_the_sign_of_a_clip_is_that_of_its_bounds() -> None:
    x = every("float16")
    bounds = np.array([-2, -1, -0.0, 0, 6e-8, 1, 2], np.float16)
    proof = Proof(Sample("Clip", (x, np.zeros((), np.float16), np.ones((), np.float16))))
    for low, high in product(bounds, repeat=2):
        (y,) = proof.run({1: np.asarray(low), 2: np.asarray(high)})
        for signs in product(Sign, repeat=3):
            bounded = all(
                TESTS[s](np.asarray(b)) for s, b in zip(signs[1:], (low, high), strict=True)
            )
            said = signs_of.clip(signs)
            assert not bounded or TESTS[said](y[TESTS[signs[0]](x)]).all(), (low, high, signs)


def test_every_sign_is_tested() -> None:
    signed = {op for (_, op), row in OPERATORS.items() if row.sign is not None}
    tested = {c.op for found in SIGNED.values() for c in running(found)}
    assert tested | {"Clip", "Where"} == signed  # these in test_signs.py


@pytest.mark.parametrize(("op", "exponent"), [("Mul", None), *(("Pow", n) for n in (2, 4, -2, 0))])
def test_squares_are_not_negative(op: str, exponent: int | None) -> None:
    x = every("float16").astype(np.float32)
    second = x if exponent is None else Const(np.array(exponent, np.float32))
    (y,) = Proof(Sample(op, (x, second))).run({})
    assert not (y < 0).any()


# --- what stays finite behind rows that come back as 0 ---


def _is_plain(sample: Sample) -> bool:
    return any(o.dtype == np.float32 for o in sample.operands if isinstance(o, np.ndarray))


def not_total(sample: Sample) -> Iterator[str]:
    """Operands of which any finite numbers are said to be right, and are not."""
    proof, rng = Proof(sample), np.random.default_rng(0)
    node = proof.graph.nodes[0]
    for i, x in proof.values.items():
        if isinstance(sample.operands[i], Const) or x.dtype != np.float32:
            continue
        if not is_total(proof.graph, node, {f"x{i}"}):
            continue
        for case in _finite_values(x, rng):
            results = [y for y in proof.run({i: case}) if y.dtype.kind == "f"]
            if not all(np.isfinite(y).all() for y in results):
                yield f"{sample.title}: operand {i} as {case.reshape(-1)[:4]}"
                break


def _finite_values(x: Array, rng: np.random.Generator) -> Iterator[Array]:
    yield np.zeros_like(x)
    yield np.asarray(-np.zeros_like(x))
    least = np.finfo(np.float32).smallest_subnormal
    for values in ((0.0, 1.0), (0.0, -3.0, 3.0), (-0.0, 50.0), (least, 0.0), (-1.0,)):
        yield np.asarray(rng.choice(np.array(values, np.float32), x.shape))


PLAIN: dict[str, list[Sample]] = defaultdict(list)
for _sample in SAMPLES:
    if _is_plain(_sample):
        PLAIN[f"{_sample.domain[:3]}{_sample.op}"].append(_sample)


@pytest.mark.parametrize("op", PLAIN)
def test_what_is_is_total_is(op: str) -> None:
    assert [text for sample in PLAIN[op] for text in not_total(sample)] == []


def test_the_lists_of_finite_operators_have_samples() -> None:
    tested = {s.op for s in SAMPLES if _is_plain(s)}
    listed = {op for (_, op), row in OPERATORS.items() if not row.function}
    listed -= {op for (_, op), row in OPERATORS.items() if row.finite is never}
    quantised = {op for op in listed if op.startswith(("QLinear", "QGemm", "MatMulInteger"))}
    # Float operands that run (scales of samples are constants), or any sample at all.
    assert listed - tested - quantised == {"ConvInteger", "Range", "QMoE"}


# --- wrong twins ---


def _case(op: str, first: str = "float16") -> Case:
    return next(c for c in running(c for c in CASES if c.op == op) if c.types[0] == first)


@pytest.mark.parametrize("op", ["Exp", "Sigmoid", "Softplus", "Div", "Log", "Gelu"])
def test_too_much_trust_is_found(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if op == "Div":
        twin(monkeypatch, op, evaluate=np.floor_divide)
    else:
        twin(monkeypatch, op, trusted=trust_all)
    assert any(any(untrusted(_case(op, t))) for t in ("float16", "float32"))


@pytest.mark.parametrize(("op", "other"), [("Div", "Mul"), ("Min", "Max"), ("Add", "Max")])
def test_a_wrong_law_of_signs_is_found(
    op: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin(monkeypatch, op, sign=OPERATORS["", other].sign)
    assert any(wrong_signs(_case(op)))


def test_a_wrong_list_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = next(s for s in SAMPLES if s.op == "ReduceLogSum")
    assert list(not_total(sample)) == []
    twin(monkeypatch, sample.op, finite=always)
    assert list(not_total(sample))


def test_a_norm_without_epsilon_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((2, 4), np.float32)
    sample = Sample("LayerNormalization", (x, x[0], x[0]), {"epsilon": 0.0})
    assert list(not_total(sample)) == []
    twin(monkeypatch, sample.op, finite=always)
    assert list(not_total(sample))
