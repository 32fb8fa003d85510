"""What records say of values: functions are the real ones, signs the strongest that are true."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from pitc.ir.constant import Range
from pitc.ir.graph import NodeView
from pitc.passes.rules import signs as signs_of
from pitc.passes.rules.constants import corners
from pitc.passes.rules.laws import Unsettled
from pitc.passes.rules.record import OPERATORS, Elementwise, Key
from pitc.passes.rules.signs import Sign
from tests.record_twin import twin
from tests.rule_proof import Proof
from tests.rule_samples import SAMPLES

Array = Any
TOLERANCE = 2e-3  # of the largest number: erf and tanh are approximations
OPERANDS = {1, 2, 3}
ENDS = (-7.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0)
UNKNOWN = Elementwise(None)
NUMBERS = {
    Sign.ANY: [-np.inf, -3, -1e-45, -0.0, 0, 0.5, 2, np.inf],
    Sign.NONNEGATIVE: [-0.0, 0, 1e-45, 0.5, 2, np.inf],
    Sign.POSITIVE: [1e-45, 0.5, 2, np.inf],
}
AT_ZERO = {"Exp", "Sigmoid", "Softplus"}  # positive at 0 as well: nothing is said of it


def wrong_functions(key: Key, function: Elementwise) -> Iterator[str]:
    """Samples of an operator for which ONNX Runtime computes something else."""
    for sample in (s for s in SAMPLES if (s.domain, s.op) == key and "block_size" not in s.title):
        proof = Proof(sample)
        view = NodeView(proof.graph, proof.graph.nodes[0])
        known = {} if function.parameters is None else function.parameters(view)
        operands = list(proof.values.values())[: function.operands]
        assert known is not None and function.evaluate is not None
        found, want = np.asarray(function.evaluate(*operands, **known)), proof.run({})[0]
        limit = TOLERANCE * max(1.0, float(np.nanmax(np.abs(want.astype(np.float64)))))
        if not np.allclose(found, want, rtol=0, atol=limit, equal_nan=True):
            yield sample.title


FUNCTIONS = [
    k
    for k, row in OPERATORS.items()
    if row.function is not None and row.function.evaluate and "QuantizeLinear" not in k[1]
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("key", FUNCTIONS, ids="::".join)
def test_functions_are_those_of_the_runtime(key: Key) -> None:
    function = OPERATORS[key].function
    assert function is not None
    assert list(wrong_functions(key, function)) == []


def strongest(key: Key, signs: Sequence[Sign]) -> Sign:
    """What holds of the results for all numbers of given signs."""
    function = OPERATORS[key].function
    assert function is not None and function.evaluate is not None
    x, *others = np.meshgrid(*(np.array(NUMBERS[s], np.float32) for s in signs), indexing="ij")
    if key[1] == "Clip":
        if not others:  # bounds that are attributes may be any
            return Sign.ANY
        y = np.minimum(np.maximum(x, others[0]), others[1] if len(others) > 1 else np.inf)
    elif key[1] == "Cast":
        y = function.evaluate(x, to=np.dtype(np.float16))
    else:
        y = function.evaluate(x, *others)
    return Sign(2 - bool((y <= 0).any()) - bool((y < 0).any()))


def wrong_signs(key: Key) -> Iterator[str]:
    """Signs of operands for which a record says more or less than is true."""
    law = OPERATORS[key].sign
    assert law is not None
    for count in {len(s.operands) for s in SAMPLES if (s.domain, s.op) == key} & OPERANDS:
        for signs in product(Sign, repeat=count):
            want = strongest(key, signs)
            if key[1] in AT_ZERO and signs == (Sign.NONNEGATIVE,):
                want = Sign.NONNEGATIVE
            if law(signs) is not want:
                yield f"{key[1]}{signs}: {law(signs)!r}, not {want!r}"


SIGNED = [k for k, row in OPERATORS.items() if row.sign is not None]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("key", SIGNED, ids="::".join)
def test_signs_are_the_strongest_true_ones(key: Key) -> None:
    assert list(wrong_signs(key)) == []


def wrong_boxes(key: Key) -> Iterator[str]:
    """Boxes of operands, of those that the law leaves open, with results that do not lie between
    those at the corners.
    """
    function, law = OPERATORS[key].function, OPERATORS[key].law
    assert function is not None and function.evaluate is not None
    ends = np.array(ENDS, np.float32)
    for sample in (s for s in SAMPLES if (s.domain, s.op) == key):
        proof = Proof(sample)
        operands = list(proof.values.values())[: function.operands]
        view = NodeView(proof.graph, proof.graph.nodes[0])
        known = {} if function.parameters is None else function.parameters(view)
        if known is None or any(x.dtype.kind != "f" for x in operands):
            continue
        for lows in product(range(len(ends) - 3), repeat=len(operands)):
            box = [ends[low : low + 4 : 3] for low in lows]  # two ends, and what lies between them
            ranges = [Range(float(b[0]), float(b[1])) for b in box]
            if law is not None and not isinstance(law(ranges), Unsettled):
                continue
            grid = np.meshgrid(*(ends[low : low + 4] for low in lows), indexing="ij")
            at = np.array(list(corners([tuple(b) for b in box])), np.float32)
            found, y = (function.evaluate(*xs, **known) for xs in (at.T, grid))
            if np.isfinite(found).all() and not (
                (found.min() <= y).all() and (y <= found.max()).all()
            ):
                yield f"{sample.title}: {[list(b) for b in box]}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("key", FUNCTIONS, ids="::".join)
def test_what_is_monotone_is(key: Key) -> None:
    function = OPERATORS[key].function
    assert function is not None
    assert not function.monotone or list(wrong_boxes(key)) == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    twin(monkeypatch, "Tanh", evaluate=np.sin)
    assert list(wrong_functions(("", "Tanh"), OPERATORS["", "Tanh"].function or UNKNOWN))
    twin(monkeypatch, "Exp", sign=signs_of.narrowed)
    assert list(wrong_signs(("", "Exp")))
    twin(monkeypatch, "Mul", sign=signs_of.total)
    assert list(wrong_signs(("", "Mul")))
    assert not list(wrong_boxes(("", "Add"))) and list(wrong_boxes(("", "Abs")))


def test_a_function_is_of_the_only_result() -> None:
    """Engines ask it for every result that is a map."""
    for sample in SAMPLES:
        function = OPERATORS[sample.domain, sample.op].function
        assert sample.outputs == 1 or function is None, sample.title
