"""Which constants are affine functions of their index (passes/exprs/affine.py)."""

from itertools import product

import numpy as np
import pytest

from pitc.ir.nodes import Array
from pitc.passes.exprs.affine import affine_of_array

NUMBERS = (-(2**63), 0, 1, 2, 2**62, -(2**62), -1, 2**63 - 1)
SHAPES = ((1,), (2,), (3,), (1, 2), (2, 2), (2, 1, 2))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8, np.uint8, np.int32])
@pytest.mark.parametrize("shape", SHAPES)
def test_constants(shape: tuple[int, ...], dtype: type) -> None:
    """A function gives each of the numbers; of small ones it is found where there is one."""
    count = int(np.prod(shape))
    for values in product(NUMBERS[: 8 if count < 4 else 5], repeat=count):
        x = np.array(values).reshape(shape).astype(dtype)
        found, exact = affine_of_array(x), x.astype(object)
        small = bool((abs(exact) < 100).all())
        if found is not None:
            index = dict(enumerate(np.indices(shape).astype(object)))
            assert np.array_equal(np.broadcast_to(found.evaluate({}, index), shape), exact)
        elif small:
            assert any((np.diff(exact, 2, d) != 0).any() for d in range(x.ndim)) or crossed(exact)


def crossed(x: Array) -> bool:
    """What one dimension adds depends on the place in another."""
    steps = [np.diff(x, 1, d) for d in range(x.ndim)]
    return any((np.diff(s, 1, e) != 0).any() for d, s in enumerate(steps) for e in range(x.ndim))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 1, 1, 1), (2, 2, 2, 2), (2, 1, 1, 1, 1)])
def test_ranks_of_constants(shape: tuple[int, ...]) -> None:
    """Of nothing nothing is said, nor of five dimensions."""
    x = np.arange(int(np.prod(shape))).reshape(shape)
    known = x.size > 0 and x.ndim < 5
    found = affine_of_array(x)
    assert (found is not None) is known
    if found is not None and x.ndim == 4 and x.size > 1:
        assert str(found) == "8*d0+4*d1+2*d2+d3"
