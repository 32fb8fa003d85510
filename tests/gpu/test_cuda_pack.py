"""Rows packed and unpacked on a device: emulated, against NumPy."""

from typing import Any

import numpy as np
import pytest

from pitc.codegen.families import pack_cuda
from tests.cuda_emulator import Emulated
from tests.detect_reference import Array

TYPES = {1: np.int8, 2: np.int16, 4: np.int32, 16: np.int32}


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> Emulated:
    functions: list[Any] = []
    for size in pack_cuda.WORDS:
        functions.append(pack_cuda.pack_func(f"pack_b{size}_cuda", {"bytes": size}))
        functions.append(pack_cuda.unpack_func(f"unpack_b{size}_cuda", {"bytes": size}))
    return Emulated(functions)


def rows_of(rng: np.random.Generator, size: int, count: int, words: int) -> Array:
    numbers = words * size // np.dtype(TYPES[size]).itemsize
    return rng.integers(-128, 128, (count, numbers)).astype(TYPES[size])


@pytest.mark.parametrize("size", TYPES)
@pytest.mark.parametrize("blocks", [1, 3])
def test_rows_move(kernels: Emulated, size: int, blocks: int) -> None:
    rng = np.random.default_rng(size)
    shapes = [(7, 5, 3), (50, 40, 1), (3, 0, 4), (0, 0, 5), (4, 3, 0), (9, 9, 300), (600, 599, 2)]
    for stored, count, words in shapes:
        x = rows_of(rng, size, stored, words)
        index = rng.permutation(stored)[:count].astype(np.int32)
        packed = np.full((count, x.shape[1]), 77, x.dtype)
        kernels.run(f"pack_b{size}_cuda", x, index, packed, blocks)
        np.testing.assert_array_equal(packed, x[index])
        out = np.full_like(x, 77)
        kernels.run(f"unpack_b{size}_cuda", packed, index, out, blocks)
        want = np.full_like(x, 77)
        want[index] = x[index]
        np.testing.assert_array_equal(out, want)


def test_a_row_may_be_packed_twice(kernels: Emulated) -> None:
    x = rows_of(np.random.default_rng(1), 4, 3, 5)
    index = np.array([2, 0, 2], np.int32)
    packed = np.zeros_like(x)
    with kernels.backwards():
        kernels.run("pack_b4_cuda", x, index, packed, 2)
    np.testing.assert_array_equal(packed, x[index])
