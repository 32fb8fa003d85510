"""attention kernels that round scores and weights to steps, against float64.

Scores are exact: small integers times a power of two, so that halves of a step are met and rounded
as they must be. A weight is a quotient of rounded numbers: where float64 has it within a hair of
half a step, it may be a step more or less.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.codegen import reference
from pitc.codegen.call import KernelLibrary
from pitc.codegen.families.attention import ROUNDED_KEY_BLOCK
from pitc.ir.kernel import KernelRequest
from tests.codegen_kernels import NEWEST, Array, bits, normal
from tests.codegen_kernels import newest_library as library
from tests.kernels.test_codegen_attention import Case

KINDS = [k for k in product((0, 1), (0, 1), (0, 1)) if any(k[1:])]  # bias, score and weight steps
WIDTHS = [(5, 7), (64, 64)]
REQUESTS = tuple(
    KernelRequest.of("attention", d=d, dv=dv, bias=bias, score_steps=score, weight_steps=weight)
    for d, dv in WIDTHS
    for bias, score, weight in KINDS
)
HAIR = 1e-3  # of a step
TOLERANCE = 2e-5  # equal scores have equal errors, which a float32 sum of weights adds up
SCORE_STEPS = [(0.25, 128, 127), (0.5, 0, 255), (2.0, 3, 4), (0.0625, 32768, 32767)]
WEIGHT_STEPS = [
    (float(np.float32(step)), zero, high - zero)
    for step, high in ((1 / 255, 255), (1 / 127, 127), (0.01, 255), (0.004, 65535), (0.3, 255))
    for zero in (0, high // 2, high)
]

pytestmark = pytest.mark.parametrize("level", NEWEST)


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    return library(*REQUESTS)


class Rounded(Case):
    """A case whose scores are exact in float32, in steps or not."""

    def __init__(self, widths: tuple[int, int], level: str, queries: int, keys: int) -> None:
        super().__init__(widths, level, queries, keys)
        rng = np.random.default_rng(queries * 1000 + keys)
        for x in (self.q, self.k):
            x[...] = rng.integers(-2, 3, x.shape)
        self.scale = np.float32(0.125)

    def weights(self) -> Array:
        """What the softmax is before it is rounded, `[queries, keys]`, and float64."""
        steps, self.weight_steps = self.weight_steps, None
        keys, self.v = self.v, np.zeros((len(self.v), self.v.shape[1], self.keys), np.float32)
        self.v[self.k0 : self.k0 + self.keys, self.hv] = np.eye(self.keys)
        found = self.expected()
        self.weight_steps, self.v = steps, keys
        return found

    def agrees(self, kernels: KernelLibrary, cuts: tuple[int, ...] = ()) -> bool:
        """Whether the kernel gives what float64 gives, but for weights at half a step."""
        got, want = self.run(kernels, cuts), self.expected()
        if self.weight_steps is None or not self.keys:
            same = np.array_equal(np.isnan(got), np.isnan(want))
            return same and bool(np.nanmax(np.abs(got - want), initial=0) <= TOLERANCE)
        step, _, above = self.weight_steps
        parts = self.weights() / step
        tied = (np.abs(parts % 1 - 0.5) < HAIR) & (parts < above + 1)
        slack = step * (tied @ np.abs(self.heads()[2]).astype(np.float64))
        size = step * np.minimum(np.rint(parts), above) @ np.abs(self.heads()[2])
        return bool(np.all(np.abs(got - want) <= slack + TOLERANCE * (1 + size)))


def biased(case: Rounded) -> None:
    """Give the case a bias of small whole numbers, and one that hides a key of three."""
    bias = np.random.default_rng(7).integers(-2, 3, (len(case.q), len(case.k)))
    numbers = np.where(np.arange(len(case.k)) % 3 == 1, -np.inf, bias)
    numbers[:, case.k0] = 0
    case.bias, case.strides = numbers.astype(np.float32).reshape(-1), (0, len(case.k), 1)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(WIDTHS),
    st.sampled_from(KINDS),
    st.sampled_from([0, 1, 2, 15, 16, 17, 33, 50]),
    st.sampled_from([0, 1, 2, 3, 7, 12, 40, 191, 200, 2 * ROUNDED_KEY_BLOCK + 5]),
    st.sampled_from(SCORE_STEPS),
    st.sampled_from([1.0, 0.125, 3.0, -1.0]),
    st.sampled_from(WEIGHT_STEPS),
)
def test_scores_and_weights_are_whole_numbers_of_steps(
    kernels: KernelLibrary,
    level: str,
    widths: tuple[int, int],
    kind: tuple[int, int, int],
    queries: int,
    keys: int,
    score: reference.Steps,
    scale: float,
    weight: reference.Steps,
) -> None:
    case = Rounded(widths, level, queries, keys)
    has_bias, rounds_scores, rounds_weights = kind
    if has_bias:
        biased(case)
    if rounds_scores:
        case.score_steps, case.score_scale = score, scale
    if rounds_weights:
        case.weight_steps = weight
    assert case.agrees(kernels)


@pytest.mark.parametrize("keys", [1, 192, 193, ROUNDED_KEY_BLOCK, ROUNDED_KEY_BLOCK + 1, 1500])
def test_key_blocks(kernels: KernelLibrary, level: str, keys: int) -> None:
    case = Rounded((64, 64), level, 35, keys)
    biased(case)
    case.weight_steps = (1 / 4096, 0, 65535)
    whole = case.run(kernels)
    assert case.agrees(kernels)
    assert np.array_equal(bits(case.run(kernels, (1, 17, 20))), bits(whole))
    case.score_steps = SCORE_STEPS[0]
    assert case.agrees(kernels)


def row_of(kernels: KernelLibrary, level: str, scores: list[float], **steps: Any) -> Array:
    """What each of some keys weighs for one query, whose scores are given."""
    case = Case((64, 64), level, 1, len(scores))
    case.q[...], case.k[...], case.v[...], case.scale = 0, 0, 0, np.float32(1)
    case.q[case.q0, case.hq, 0] = 1
    keys = slice(case.k0, case.k0 + case.keys)
    case.k[keys, case.hk, 0] = scores
    case.v[keys, case.hv, : case.keys] = np.eye(case.keys)
    for name, value in steps.items():
        setattr(case, name, value)
    return case.run(kernels)[0, : case.keys]


def test_half_a_step_goes_to_the_even_number(kernels: KernelLibrary, level: str) -> None:
    """0.5 / 0.2 is 2.5 in float32, and 0.5 / (1 / 3) is 1.5: both are rounded to 2."""
    for step in (0.2, 1 / 3):
        step = float(np.float32(step))
        got = row_of(kernels, level, [0, 0], weight_steps=(step, 0, 255))
        np.testing.assert_array_equal(got, np.float32(2 * step))
    scores = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 200, -200]
    want = reference.to_steps(np.array(scores), 1.0, 3, 5)
    np.testing.assert_array_equal(want, [0, 2, 2, 0, -2, -2, 5, -3])
    got = row_of(kernels, level, scores, score_steps=(1.0, 3, 5))
    np.testing.assert_allclose(got, np.exp(want) / np.exp(want).sum(), 1e-6)


def test_weights_end_where_the_type_does(kernels: KernelLibrary, level: str) -> None:
    """A weight of 1 is 127 steps of 0.005 in int8, and none where the zero point is the last."""
    got = row_of(kernels, level, [0, -50], weight_steps=(0.005, 128, 127))
    np.testing.assert_allclose(got, [0.635, 0], 1e-6)
    assert not row_of(kernels, level, [0, -50], weight_steps=(0.005, 255, 0)).any()


@pytest.mark.parametrize("to_zero", [False, True])
def test_rows_without_keys_and_nan_softmax(
    kernels: KernelLibrary, level: str, to_zero: bool
) -> None:
    """As without steps: quantisation of NaN is nothing that the compiler lets happen."""
    fill = 0.0 if to_zero else np.nan
    for score, keys in product((None, SCORE_STEPS[0]), (0, 70, 700)):
        case = Rounded((64, 64), level, 40, keys)
        case.nan_to_zero, case.score_steps = to_zero, score
        case.weight_steps = (float(np.float32(1 / 255)), 0, 255)
        clean = case.run(kernels)
        case.q[case.q0 + 11, case.hq, 5] = np.nan
        got = case.run(kernels)
        assert np.array_equal(got[11], np.full(64, fill), equal_nan=True)
        rest = np.arange(40) != 11
        assert np.array_equal(bits(got[rest]), bits(clean[rest]))


def test_dead_keys_weigh_exactly_nothing(kernels: KernelLibrary, level: str) -> None:
    case = Rounded((64, 64), level, 40, 700)
    case.weight_steps = (float(np.float32(1 / 255)), 0, 255)
    case.score_steps, case.strides = SCORE_STEPS[0], (0, len(case.k), 1)
    bias = np.zeros((len(case.q), len(case.k)), np.float32)
    bias[:, case.k0 + 30 :] = np.float32(-1e9)
    case.bias = bias.reshape(-1)
    clean = case.run(kernels)
    case.v[case.k0 + 30 :] = np.float32(1e30)
    assert np.array_equal(bits(case.run(kernels)), bits(clean))


def test_neighbours_of_the_key_range_are_not_read(kernels: KernelLibrary, level: str) -> None:
    case = Rounded((64, 64), level, 33, 650)
    case.v = normal(np.random.default_rng(0), *case.v.shape)
    case.weight_steps = (0.001, 0, 255)
    clean = case.run(kernels)
    for x in (case.k, case.v):
        x[: case.k0] = np.nan
        x[case.k0 + case.keys :] = np.nan
    assert np.array_equal(bits(case.run(kernels)), bits(clean))
