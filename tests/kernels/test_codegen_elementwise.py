"""elementwise kernels: operators as numpy computes them, each step rounded, rows of any length."""

from collections.abc import Callable

import numpy as np
import pytest

import pitc.passes.rules  # noqa: F401  (fills the records)
from pitc.codegen.families.elementwise import FUNCTIONS
from pitc.ir.formula import REDUCTIONS, Formula
from pitc.ir.kernel import KernelRequest
from pitc.passes.rules.record import OPERATORS
from tests.codegen_kernels import LEVELS, Array, bits, guarded, library, normal

#: Rows and elements of each: part of a vector, one, several, and a part behind them.
SIZES = [(1, 1), (3, 15), (2, 16), (4, 33), (1, 100), (5, 64)]
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
EXACT = ("Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "Sqrt", "Relu", *COMPARISONS)
LIBRARY = ("Exp", "Erf", "Tanh", "Sigmoid")
#: Of them, what takes two numbers.
BINARY = ("Add", "Sub", "Mul", "Div", *COMPARISONS)
SPECIAL = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-42, 3e38, -3e38], np.float32)

#: Truth values, on the way.
FLAGGED = "Not:x0,And:s0:x1,Or:s1:x0,Cast:s2,Where:x1:s3:x2,Add:s4:s3;s5"
#: A gradient of a norm: two levels of reductions, a column among the results.
NORM = (
    "ReduceMean:x0,Sub:x0:s0,Mul:s1:s1,ReduceMean:s2,Add:s3:0x1.4f8b588e368f1p-17,Sqrt:s4,"
    "Reciprocal:s5,Mul:s1:s6,Mul:x1:x2,Mul:s8:s7,ReduceSum:s9,Mul:s7:s10,Sub:s8:s11,Add:s12:x3,"
    "Mul:s13:x4;s14;s6;s7"
)
#: A product is rounded before something is added.
ROUNDED = "Mul:x0:x1,Sub:s0:x2;s1"


def request(kinds: str, formula: str) -> KernelRequest:
    return KernelRequest.of("elementwise", kinds=kinds, formula=formula)


def one(op: str) -> KernelRequest:
    """One operator, of one or two operands, and once more of its result."""
    kinds, operands = ("whole,whole", "x0:x1") if op in BINARY else ("whole", "x0")
    return request(kinds, f"{op}:{operands};s0")


FLAGS = request("flags,flags,whole", FLAGGED)
OF_NORM = request("whole,whole,row,column,number", NORM)
PRODUCT = request("whole,whole,whole", ROUNDED)
ITSELF = request(
    "whole", "Sub:x0:x0,Equal:x0:x0,LessOrEqual:x0:x0,GreaterOrEqual:x0:x0,Add:s1:s2;s4;s0;s1;s3"
)
ALL = (*map(one, (*EXACT, *LIBRARY)), FLAGS, OF_NORM, PRODUCT, ITSELF)


class Call:
    """A call with all memory between pages that nobody may touch."""

    def __init__(self, wanted: KernelRequest, operands: list[Array], rows: int, n: int) -> None:
        text = dict(wanted.params)
        formula = Formula.of(str(text["kinds"]).split(","), str(text["formula"]))
        at_end = bool(n % 2)
        self.symbol, self.operands = wanted.symbol, [guarded(x, at_end=at_end) for x in operands]
        self.results = [
            guarded(np.full(rows if column else (rows, n), 7, np.float32), at_end=at_end)
            for column in formula.column_results
        ]
        self.whole = (0, rows, 0, n)

    def run(self, level: str, part: tuple[int, int, int, int] | None = None) -> list[Array]:
        """The results; what is not computed is 7."""
        arguments = (*self.operands, *self.results, *(part or self.whole))
        library(*ALL).call(f"{self.symbol}_{level}", *arguments)
        return [x.copy() for x in self.results]


def known(op: str) -> Callable[..., Array]:
    """What the operator's record says that it computes."""
    function = OPERATORS["", op].function
    assert function is not None and function.evaluate is not None
    return function.evaluate


def numbers(rows: int, n: int, seed: int) -> Array:
    """Of all sizes, special ones among them."""
    rng = np.random.default_rng(seed)
    found = normal(rng, rows, n) * np.float32(4)
    places = rng.random((rows, n)) < 0.3
    found[places] = rng.choice(SPECIAL, places.sum())
    return found


def test_records_name_what_kernels_compute() -> None:
    """A square is a product; reductions are none of an element."""
    named = {op for (_, op), record in OPERATORS.items() if "elementwise" in record.kernels}
    assert named == {*FUNCTIONS, *REDUCTIONS, "Pow"}
    assert {*EXACT, *LIBRARY, "Not", "And", "Or", "Cast", "Where"} == {*FUNCTIONS}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", EXACT)
def test_operators_that_round_once_have_the_bits_of_numpy(op: str, level: str) -> None:
    for rows, n in SIZES:
        operands = [numbers(rows, n, seed) for seed in range(1 + (op in BINARY))]
        with np.errstate(all="ignore"):
            want = np.asarray(known(op)(*operands), np.float32)
        (got,) = Call(one(op), operands, rows, n).run(level)
        wrong = np.isnan(want)
        assert np.array_equal(np.isnan(got), wrong)
        assert np.array_equal(got[~wrong], want[~wrong]), op
        if op != "Relu":  # which zero it gives is nobody's business
            assert np.array_equal(bits(got)[~wrong], bits(want)[~wrong])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", LIBRARY)
def test_functions_of_the_library(op: str, level: str) -> None:
    for rows, n in SIZES:
        x = numbers(rows, n, 3)
        with np.errstate(all="ignore"):
            want = np.asarray(known(op)(x.astype(np.float64)), np.float64).astype(np.float32)
        (got,) = Call(one(op), [x], rows, n).run(level)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("level", LEVELS)
def test_truth_values(level: str) -> None:
    rng = np.random.default_rng(5)
    for rows, n in SIZES:
        a, b = (rng.random((rows, n)) < 0.5 for _ in range(2))
        x = numbers(rows, n, 1)
        either = ((~a & b) | a).astype(np.float32)
        want = np.where(b, either, x) + either
        (got,) = Call(FLAGS, [a.view(np.int8), b.view(np.int8), x], rows, n).run(level)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("level", LEVELS)
def test_a_product_is_rounded_before_something_is_added(level: str) -> None:
    """A multiply-add would leave the rest of the product."""
    rng = np.random.default_rng(7)
    a, b = normal(rng, 4, 50), normal(rng, 4, 50)
    (got,) = Call(PRODUCT, [a, b, a * b], 4, 50).run(level)
    assert not got.any()


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_no_number_differs_from_itself(level: str) -> None:
    x = numbers(3, 50, 4)
    with np.errstate(all="ignore"):
        same, rest = (x == x).astype(np.float32), x - x
    for mine, theirs in zip(
        Call(ITSELF, [x], 3, 50).run(level), (same + same, rest, same, same), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("rows", "n"), SIZES)
def test_reductions_of_rows(rows: int, n: int, level: str) -> None:
    rng = np.random.default_rng(rows + n)
    x, g = normal(rng, rows, n), normal(rng, rows, n)
    w, s, number = normal(rng, n), normal(rng, rows), normal(rng, 1)
    got = Call(OF_NORM, [x, g, w, s, number], rows, n).run(level)
    centred = x.astype(np.float64) - x.mean(1, keepdims=True, dtype=np.float64)
    scale = 1 / np.sqrt((centred**2).mean(1) + 1e-5)
    z = centred * scale[:, None]
    t = g.astype(np.float64) * w
    want = (t - z * (t * z).sum(1, keepdims=True) + s[:, None]) * number
    limit = {"rtol": 1e-3, "atol": 1e-3} if n == 1 else {"rtol": 1e-4, "atol": 1e-4}
    for mine, theirs in zip(got, (want, scale, z), strict=True):
        np.testing.assert_allclose(mine, theirs, **limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", LEVELS)
def test_a_call_for_a_part_leaves_the_rest(level: str) -> None:
    rng = np.random.default_rng(2)
    operands = [normal(rng, 5, 70), normal(rng, 5, 70)]
    (whole,) = Call(one("Add"), operands, 5, 70).run(level)
    for part in ((0, 2, 0, 70), (2, 5, 0, 70), (4, 4, 0, 70), (0, 5, 16, 48), (1, 5, 48, 70)):
        want = np.full_like(whole, 7)
        inside = slice(*part[:2]), slice(*part[2:])
        want[inside] = whole[inside]
        (got,) = Call(one("Add"), operands, 5, 70).run(level, part)
        assert np.array_equal(got, want), part


@pytest.mark.parametrize("level", LEVELS)
def test_rows_of_no_elements(level: str) -> None:
    """Their sums are 0, and their means NaN."""
    found = request("whole", "ReduceSum:x0,ReduceMean:x0,Sub:x0:s0;s2;s0;s1")
    x = np.zeros((3, 0), np.float32)
    y, total, mean = np.zeros((3, 0), np.float32), np.ones(3, np.float32), np.ones(3, np.float32)
    library(found).call(f"{found.symbol}_{level}", x, y, total, mean, 0, 3, 0, 0)
    assert not total.any() and np.isnan(mean).all()
