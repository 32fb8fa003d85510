"""Claims of records that do not follow from expressions, on every operator that makes them.

Which operators those are is asked when the test runs, so that a wrong entry of the table is judged
by what its operator computes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pitc.ir.graph import NodeView
from pitc.passes.facts.signs import Known
from pitc.passes.rules.record import OPERATORS, Key, Operator, never
from tests.record_twin import twin
from tests.rule_proof import Const, Proof, Sample
from tests.rule_samples import SAMPLES

Array = Any
ROUNDS = 4
HOSTILE = np.array([0.0, -0.0, 0.5, -3.0, 7.0, np.nan, np.inf, -np.inf])
CLEAN = HOSTILE[~(np.isnan(HOSTILE) | np.isposinf(HOSTILE))]
PLAIN = HOSTILE[np.isfinite(HOSTILE)]
Claim = Callable[[Operator, Proof], bool]


def runs(proof: Proof, values: Array) -> Iterator[tuple[list[Array], Array]]:
    """Operands of given values where they are floats and not constant, and the first result: one
    value everywhere, then all of them.
    """
    rng = np.random.default_rng(3)
    for chosen in (*values.reshape(-1, 1), *[values] * ROUNDS):
        changed = {
            i: rng.choice(chosen, x.shape).astype(x.dtype)
            for i, x in proof.values.items()
            if x.dtype.kind == "f" and not isinstance(proof.sample.operands[i], Const)
        }
        yield list((proof.values | changed).values()), proof.run(changed)[0]


def equal(x: Array, y: Array) -> bool:
    """The same numbers, NaN included."""
    if x.shape != y.shape:
        return False
    return bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f" and y.dtype.kind == "f"))


def is_sum(row: Operator, proof: Proof) -> bool:
    return all(
        np.allclose(sum(row.weight(k) * x for k, x in enumerate(xs)), y)
        for xs, y in runs(proof, PLAIN)
    )


def is_product(row: Operator, proof: Proof) -> bool:
    """An operand times -2 gives the result times the same number, or one through it."""
    before = proof.run({})[0]
    for i, x in proof.values.items():
        if i not in proof.constant and x.dtype.kind == "f":  # integers are divided otherwise
            (y,) = proof.run({i: np.asarray(-2 * x, x.dtype)})
            if not np.allclose(y, before * (-2.0) ** row.power(i), rtol=1e-4):
                return False
    return True


def finds_nan(_: Operator, proof: Proof) -> bool:
    return all(equal(np.isnan(xs[0]), y) for xs, y in runs(proof, HOSTILE) if len(xs) == 1)


def chooses(_: Operator, proof: Proof) -> bool:
    if len(proof.values) != 3 or proof.values[0].dtype != np.bool_:
        return False
    return all(equal(np.where(*xs), y) for xs, y in runs(proof, HOSTILE))


def converts(_: Operator, proof: Proof) -> bool:
    return all(equal(xs[0].astype(y.dtype), y) for xs, y in runs(proof, PLAIN))


def reads_no_element(_: Operator, proof: Proof) -> bool:
    before, rng = proof.run({})[0], np.random.default_rng(4)
    free = [i for i in proof.values if not isinstance(proof.sample.operands[i], Const)]
    for _round in range(ROUNDS):
        values = {i: proof.values[i] for i in free}
        changed = {
            i: rng.choice(HOSTILE if x.dtype.kind == "f" else (0, 1), x.shape).astype(x.dtype)
            for i, x in values.items()
        }
        if not equal(proof.run(changed)[0], before):
            return False
    return bool(free)


def is_square(row: Operator, proof: Proof) -> bool:
    view = NodeView(proof.graph, proof.graph.nodes[0])
    if not row.square(Known(view)):
        return True
    return all(bool((y >= 0).all()) for _, y in runs(proof, PLAIN))


def keeps_clean(_: Operator, proof: Proof) -> bool:
    return all(
        y.dtype.kind != "f" or not (np.isnan(y) | np.isposinf(y)).any()
        for _, y in runs(proof, CLEAN)
    )


def is_boolean(_: Operator, proof: Proof) -> bool:
    return bool(proof.result[0].dtype == np.bool_)


def has_few(row: Operator, proof: Proof) -> bool:
    found = row.few and row.few(NodeView(proof.graph, proof.graph.nodes[0]))
    if not found:
        return True
    axis, most = found
    return all(bool((np.count_nonzero(y, axis) <= most).all()) for _, y in runs(proof, HOSTILE))


CLAIMS: dict[str, tuple[Callable[[Operator], bool], Claim]] = {
    "weights": (lambda row: bool(row.weights), is_sum),
    "powers": (lambda row: bool(row.powers), is_product),
    "finds_nan": (lambda row: row.finds_nan, finds_nan),
    "chooses": (lambda row: row.chooses, chooses),
    "converts": (lambda row: row.converts, converts),
    "reads_no_element": (lambda row: row.reads_no_element, reads_no_element),
    "square": (lambda row: row.square is not never, is_square),
    "keeps_clean": (lambda row: row.keeps_clean, keeps_clean),
    "few": (lambda row: row.few is not None, has_few),
    "boolean": (lambda row: row.function is not None and row.function.boolean, is_boolean),
}


def samples_of(key: Key) -> list[Sample]:
    """Samples that a claim about an operator is asked for."""
    return [s for s in SAMPLES if (s.domain, s.op) == key]


def false_claims(column: str) -> list[str]:
    """Operators that claim what a sample refutes, or of which there is none."""
    makes, holds = CLAIMS[column]
    out = []
    for key, row in OPERATORS.items():
        if makes(row):
            samples = samples_of(key)
            out += [s.title for s in samples if not holds(row, Proof(s))]
            out += [] if samples else [key[1]]
    return out


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("column", CLAIMS)
def test_claims_hold(column: str) -> None:
    assert false_claims(column) == []


def test_what_selects_has_a_law_or_is_no_number() -> None:
    """Laws are tested with NaN where they select; a bool is none."""
    for row in OPERATORS.values():
        if row.selects:
            assert row.law is not None or (row.function is not None and row.function.boolean)


TWINS: dict[str, tuple[str, Any]] = {
    "weights": ("Max", (1,)),
    "powers": ("Add", (1,)),
    "finds_nan": ("IsInf", True),
    "chooses": ("Clip", True),
    "converts": ("Round", True),
    "reads_no_element": ("IsInf", True),
    "square": ("Sub", lambda _: True),
    "keeps_clean": ("Mul", True),
    "few": ("Trilu", lambda _: (0, 1)),
    "boolean": ("Sign", True),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("column", TWINS)
def test_a_false_claim_is_found(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, value = TWINS[column]
    twin(monkeypatch, op, **{column: value})
    assert false_claims(column)
