"""norm kernels against float64, on every level, with guarded memory."""

import functools
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pitc.codegen.build.library import object_code
from pitc.codegen.build.link import Part, link_library
from pitc.codegen.call import KernelLibrary
from pitc.ir.kernel import KernelRequest
from tests.codegen_kernels import Array, bits, guarded, normal
from tests.kernels.test_codegen_bf16 import levels

LEVELS = {x.level: x for x in levels() if not x.multiplies_tiles}
WIDTHS = (1, 5, 16, 63, 64, 70, 130, 768)
FORMS = [(1, 1), (1, 0), (0, 0), (0, 1)]
EPSILON = 1e-5
CANARY = np.float32(7.25)

pytestmark = pytest.mark.parametrize("level", LEVELS)


def request(n: int, form: tuple[int, int]) -> KernelRequest:
    return KernelRequest.of("norm", "bfloat16", n=n, centred=form[0], bias=form[1])


@functools.cache
def kernels(level: str) -> KernelLibrary:
    wanted = [request(n, form) for n in WIDTHS for form in FORMS]
    objects = {f"{r.symbol}_{level}": object_code(r, LEVELS[level]) for r in wanted}
    path = Path(tempfile.mkdtemp(prefix="pitc-test-norm-")) / "kernels.so"
    link_library([Part(objects, ("__TVMBackend*",))], path)
    return KernelLibrary(path)


class Case:
    """Rows, and calls of the kernel."""

    def __init__(self, rows: int, n: int, form: tuple[int, int]) -> None:
        self.form = form
        rng = np.random.default_rng(rows * 1000 + n)
        self.x = normal(rng, rows, n) * 3 + np.float32(1.5)
        self.gamma, self.beta = normal(rng, n), normal(rng, n)

    def run(
        self, level: str, part: tuple[int, int], *, floats: bool = True, halves: bool = True
    ) -> tuple[Array, Array]:
        """Rows of the part as float32 and as bfloat16; other rows must be untouched."""
        x = self.x
        y = guarded(np.full(x.shape if floats else (0, x.shape[1]), CANARY))
        z = guarded(np.full(x.shape if halves else (0, x.shape[1]), 7, np.uint16))
        factors = [self.gamma, *([self.beta] if self.form[1] else [])]
        given = [guarded(a) for a in (x, *factors)]
        symbol = f"{request(x.shape[1], self.form).symbol}_{level}"
        kernels(level).call(symbol, *given, y, z, EPSILON, int(floats), int(halves), *part)
        others = np.delete(y, slice(*part), 0), np.delete(z, slice(*part), 0)
        assert (others[0] == CANARY).all() and (others[1] == 7).all()
        return y[slice(*part)], z[slice(*part)].view(ml_dtypes.bfloat16)

    def expected(self) -> Array:
        x = self.x.astype(np.float64)
        x = x - x.mean(1, keepdims=True) if self.form[0] else x
        y = x / np.sqrt((x * x).mean(1, keepdims=True) + EPSILON) * self.gamma
        return y + self.beta if self.form[1] else y


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_values_of_many_widths(level: str, form: tuple[int, int]) -> None:
    for n in WIDTHS:
        case = Case(9, n, form)
        floats, halves = case.run(level, (0, 9))
        assert np.abs(floats - case.expected()).max() <= 4e-6, n
        np.testing.assert_array_equal(halves, floats.astype(ml_dtypes.bfloat16))


def test_parts_and_outputs(level: str) -> None:
    """The bits of a row depend neither on the rows of a call nor on what else is written."""
    for n in (5, 70, 768):
        case = Case(9, n, (1, 1))
        whole, rounded = case.run(level, (0, 9))
        for part in ((0, 0), (0, 1), (3, 9), (8, 9)):
            floats, halves = case.run(level, part)
            assert np.array_equal(bits(floats), bits(whole[slice(*part)]))
            np.testing.assert_array_equal(halves, rounded[slice(*part)])
            alone, _ = case.run(level, part, halves=False)
            assert np.array_equal(bits(alone), bits(floats))
            _, alone = case.run(level, part, floats=False)
            np.testing.assert_array_equal(alone, halves)
        case.run(level, (2, 5), floats=False, halves=False)


def test_numbers_at_the_ends(level: str) -> None:
    """A row with NaN is NaN, and others are not; one whose numbers are equal is beta."""
    for n in (5, 70):
        case = Case(4, n, (1, 1))
        case.x[1] = np.float32(3.25)
        case.x[2, n - 1] = np.nan
        case.x[3, 0] = np.inf
        floats, _ = case.run(level, (0, 4))
        assert np.isfinite(floats[:2]).all() and np.isnan(floats[2:]).all()
        np.testing.assert_allclose(floats[1], case.beta, atol=1e-6)
        large = Case(2, n, (1, 1))
        large.x += np.float32(1e4)  # no digits are lost to squares of large numbers
        np.testing.assert_allclose(large.run(level, (0, 2))[0], large.expected(), atol=5e-3)
