"""Every operator's tensor expression, proven on sample nodes in ONNX Runtime."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rule_proof import Proof, Sample
from tests.rule_samples import SAMPLES

SEEDS = st.integers(0, 2**32 - 1)
CASES = [
    pytest.param(s, symbolic, id=f"{s.title}{'-symbolic' * symbolic}")
    for s in SAMPLES
    for symbolic in (False, True)
    if s.symbolic or not symbolic
]


@pytest.mark.parametrize(("sample", "symbolic"), CASES)
def test_expression_is_proven(sample: Sample, symbolic: bool) -> None:
    proof = Proof(sample, symbolic)

    @settings(max_examples=2, deadline=None, derandomize=True, database=None)
    @given(seed=SEEDS)
    def holds(seed: int) -> None:
        assert proof.failures(seed) == []

    holds()
