"""pack and unpack kernels, exact, on both CPU levels, with guarded memory."""

import numpy as np
import pytest

from pitc.codegen import reference
from pitc.codegen.call import KernelLibrary
from pitc.ir.kernel import KernelRequest
from tests.codegen_kernels import LEVELS, guarded, library, untouched

DTYPES = {1: np.int8, 4: np.int32}
REQUESTS = tuple(
    KernelRequest.of(family, word) for family in ("pack", "unpack") for word in ("int8", "int32")
)

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    return library(*REQUESTS)


@pytest.mark.parametrize("word", DTYPES)
@pytest.mark.parametrize("words", [0, 1, 2, 3, 15, 16, 17, 64, 257])
def test_round_trip(kernels: KernelLibrary, level: str, word: int, words: int) -> None:
    rng = np.random.default_rng(words)
    for rows, picked in ((0, 0), (1, 0), (1, 1), (7, 3), (200, 77), (200, 200)):
        x = rng.integers(-100, 100, (rows, words)).astype(DTYPES[word])
        index = np.sort(rng.permutation(rows)[:picked]).astype(np.int32)
        end = bool(rows % 2)
        packed = guarded(np.zeros((picked, words), x.dtype), at_end=end)
        source = guarded(x, at_end=end)
        kernels.call(f"pack_b{word}_{level}", source, guarded(index), packed)
        assert np.array_equal(packed, reference.pack(x, index))
        out = rng.integers(-100, 100, (rows, words)).astype(x.dtype)
        want = reference.unpack(packed, index, out)
        target = guarded(out, at_end=end)
        kernels.call(f"unpack_b{word}_{level}", packed, guarded(index), target)
        assert np.array_equal(target, want)


def test_every_bit_pattern_is_copied(kernels: KernelLibrary, level: str) -> None:
    x = np.array([[0x7FC00001, -1, 0x7F800001, -0x80000000]], np.int64).astype(np.int32)
    out = np.zeros_like(x)
    kernels.call(f"pack_b4_{level}", x, np.zeros(1, np.int32), out)
    assert np.array_equal(out, x)


def test_rows_beyond_two_to_the_31_elements(kernels: KernelLibrary, level: str) -> None:
    rows = 2**31 // 64 + 9
    x = untouched(rows, 64, dtype=np.int32)
    x[rows - 1] = np.arange(64)
    out = np.zeros((1, 64), np.int32)
    index = np.array([rows - 1], np.int32)
    kernels.call(f"pack_b4_{level}", x, index, out)
    assert np.array_equal(out[0], np.arange(64))
    kernels.call(f"unpack_b4_{level}", out + 1, index, x)
    assert np.array_equal(x[rows - 1], np.arange(64) + 1)
