"""Elementwise operators of one pass on a device: emulated, against the plan's reference."""

import functools

import numpy as np
import pytest

from pitc.codegen.families import elementwise_cuda
from pitc.ir.formula import COLUMN, FLAGS, NUMBER, ROW, Formula
from tests.cuda_emulator import Emulated
from tests.detect_reference import Array
from tests.plan_reference import elementwise

#: Each operator, of special numbers too. Where a step is a truth value, the next ones read it so.
FLAT = {
    "arithmetic": (
        "whole,whole",
        "Add:x0:x1,Sub:x0:x1,Mul:s0:s1,Div:s2:x1,Neg:s3,Relu:s4;s5;s2;s4",
    ),
    "by numbers": ("whole,number", "Mul:x0:0x0.0p+0,Add:s0:x1,Mul:x1:0x1.8p+1,Sub:s1:s2;s3;s0"),
    "of the same": (
        "whole",
        "Sub:x0:x0,Div:x0:x0,Equal:x0:x0,LessOrEqual:x0:x0,Add:s0:s1,Sub:s4:s4,Where:s3:s2:x0"
        ";s6;s0;s1;s5",
    ),
    "roots": ("whole", "Sqrt:x0,Reciprocal:x0,Add:s0:s1;s2;s1;s0"),
    "comparisons": (
        "whole,whole,whole",
        "Less:x0:x1,LessOrEqual:x0:x1,Greater:x1:x0,GreaterOrEqual:x0:x1,Equal:x0:x1,Equal:x0:x0,"
        "Or:s0:s4,And:s1:s3,Where:s6:x2:x0,Where:s7:x1:s8,Where:s2:s9:x2,Not:s5,Where:s11:x2:s10"
        ";s12;s9;s8",
    ),
    "flags": (
        "flags,flags,whole",
        "Not:x0,And:s0:x1,Or:s1:x0,Cast:s2,Where:x1:s3:x2,Add:s4:s3;s5",
    ),
    "a product is rounded": ("whole,whole,whole", "Mul:x0:x1,Sub:s0:x2;s1;s0"),
}
LIBRARY = ("whole", "Exp:x0,Erf:x0,Tanh:x0,Sigmoid:x0,Mul:s0:s1,Sub:s4:s2,Add:s5:s3;s6;s3;s2;s1")
#: A gradient of a norm: two levels of sums, and columns among the results.
NORM = (
    "whole,whole,row,column,number",
    "ReduceMean:x0,Sub:x0:s0,Mul:s1:s1,ReduceMean:s2,Add:s3:0x1.4f8b58p-17,Sqrt:s4,"
    "Reciprocal:s5,Mul:s1:s6,Mul:x1:x2,Mul:s8:s7,ReduceSum:s9,Mul:s7:s10,Sub:s8:s11,Add:s12:x3,"
    "Mul:s13:x4;s14;s6;s7",
)


def _crowded() -> str:
    """Eight operands, sums of eight products of them, and four results."""
    products = [f"Mul:x{i}:x{(i + 1) % 8}" for i in range(8)]
    sums = [f"ReduceSum:s{i}" for i in range(8)]
    scaled = [f"Mul:s{i}:s{i + 8}" for i in range(8)]
    total = ["Add:s16:s17", *(f"Add:s{24 + i}:s{18 + i}" for i in range(6))]
    return ",".join([*products, *sums, *scaled, *total]) + ";s30;s16;s17;s18"


CROWDED = ",".join(["whole"] * 8), _crowded()
ROWS = {
    "norm": NORM,
    "no sums": ("whole,row,column,flags", "Mul:x0:x1,Add:s0:x2,Where:x3:s1:x0;s2"),
    "a sum of flags": ("flags,whole", "Cast:x0,ReduceSum:s0,Mul:x1:s1;s2;s1"),
    "crowded": CROWDED,
    "a sum alone": ("whole,whole", "ReduceSum:x0,Add:x1:s0;s1;s0"),
}
#: Rows, and elements of each: warps of a row are 1, 2, 4, 8; all of it is kept, or a part.
SIZES = [(1, 1), (3, 17), (5, 64), (2, 129), (9, 260), (4, 1024), (3, 2047), (2, 5000), (1, 20_004)]
SPECIAL = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-42, 3e38, -3e38], np.float32)


def formula_of(case: tuple[str, str]) -> Formula:
    return Formula.of(case[0].split(","), case[1])


@functools.cache
def kernel(case: tuple[str, str]) -> Emulated:
    params = {"kinds": case[0], "formula": case[1]}
    return Emulated([elementwise_cuda.elementwise("k", params)])


def operands(formula: Formula, rows: int, n: int, share: float = 0) -> list[Array]:
    """Numbers, of which a share is special."""
    rng = np.random.default_rng([rows, n])
    shapes = {ROW: (n,), COLUMN: (rows, 1), NUMBER: (1,)}
    found = list[Array]()
    for kind in formula.kinds:
        shape = shapes.get(kind, (rows, n))
        x = rng.standard_normal(shape, np.float32)
        places = rng.random(shape) < share
        x[places] = rng.choice(SPECIAL, int(places.sum()))
        found.append(x > 0 if kind == FLAGS else x)
    return found


def run(case: tuple[str, str], given: list[Array], rows: int, n: int, blocks: int) -> list[Array]:
    """All results; of all elements as one row, where nothing depends on rows."""
    formula = formula_of(case)
    if not formula.by_rows:
        rows, n = 1, rows * n
    pairs = zip(given, formula.kinds, strict=True)
    shapes = {ROW: (n,), COLUMN: (rows,), NUMBER: (1,)}
    arguments = [
        (x.view(np.int8) if kind == FLAGS else x).reshape(shapes.get(kind, (rows, n)))
        for x, kind in pairs
    ]
    columns = formula.column_results
    results = [np.full(rows if column else (rows, n), 77, np.float32) for column in columns]
    kernel(case).run("k", *arguments, *results, blocks)
    return results


def expected(case: tuple[str, str], given: list[Array]) -> tuple[Array, ...]:
    return elementwise({"kinds": case[0], "formula": case[1]}, *given)


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("blocks", [1, 3])
def test_steps_have_the_bits_of_numpy(name: str, blocks: int) -> None:
    for rows, n in [*SIZES, (0, 5)]:
        given = operands(formula_of(FLAT[name]), rows, n, 0.3)
        want = expected(FLAT[name], given)
        for mine, theirs in zip(run(FLAT[name], given, rows, n, blocks), want, strict=True):
            theirs = np.asarray(theirs, np.float32).reshape(mine.shape)
            np.testing.assert_array_equal(mine, theirs)
            if name != "arithmetic":  # which zero Relu gives is nobody's business
                known = ~np.isnan(theirs)
                assert (np.signbit(mine) == np.signbit(theirs))[known].all()


def test_halves_of_rows_are_for_cpus() -> None:
    with pytest.raises(ValueError, match="halves of rows have no kernel on GPUs"):
        elementwise_cuda.elementwise("gated", {"kinds": "left,right", "formula": "Mul:x0:x1;s0"})


def test_functions_of_the_library() -> None:
    for rows, n in SIZES:
        given = operands(formula_of(LIBRARY), rows, n, 0.1)
        with np.errstate(all="ignore"):
            want = expected(LIBRARY, given)
        for mine, theirs in zip(run(LIBRARY, given, rows, n, 2), want, strict=True):
            np.testing.assert_allclose(mine, theirs.reshape(mine.shape), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("rows", "n"), SIZES)
def test_rows_of_any_length(name: str, rows: int, n: int) -> None:
    given = operands(formula_of(ROWS[name]), rows, n)
    got = run(ROWS[name], given, rows, n, 2)
    limit = 1e-3 if n == 1 or name == "crowded" else 1e-4
    for mine, theirs in zip(got, expected(ROWS[name], given), strict=True):
        theirs = np.asarray(theirs, np.float32).reshape(mine.shape)
        np.testing.assert_allclose(mine, theirs, rtol=limit, atol=limit)
    for blocks in (1, 7):
        again = run(ROWS[name], given, rows, n, blocks)
        assert all(np.array_equal(x, y) for x, y in zip(got, again, strict=True))
    with kernel(ROWS[name]).backwards():
        again = run(ROWS[name], given, rows, n, 2)
    assert all(np.array_equal(x, y) for x, y in zip(got, again, strict=True))


@pytest.mark.parametrize("n", [96, 97, 1500])
def test_a_row_that_is_no_number_leaves_the_others(n: int) -> None:
    given = operands(formula_of(NORM), 4, n)
    want = run(NORM, given, 4, n, 2)
    for special in (np.nan, np.inf):
        given[0][2, n // 2] = special
        for mine, theirs in zip(run(NORM, given, 4, n, 2), want, strict=True):
            assert np.array_equal(np.delete(mine, 2, 0), np.delete(theirs, 2, 0))
            assert np.isnan(mine[2]).any()


def test_rows_of_no_elements() -> None:
    """Their sums are 0, and their means NaN."""
    case = "whole", "ReduceSum:x0,ReduceMean:x0,Sub:x0:s0;s2;s0;s1"
    y, total, mean = run(case, [np.zeros((3, 0), np.float32)], 3, 0, 2)
    assert y.size == 0 and not total.any() and np.isnan(mean).all()
