"""Contractions over lists of words of two bfloat16 numbers: the bits of the dense kernel."""

import functools
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pitc.codegen import reference
from pitc.codegen.build.library import object_code
from pitc.codegen.build.link import Part, link_library
from pitc.codegen.call import KernelLibrary
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, pair_panels, panel_count
from pitc.ir.target import CpuLevel
from pitc.ir.variants import FOLD
from tests.codegen_kernels import Array, guarded, normal
from tests.contract_cases import LISTS
from tests.kernels.test_codegen_bf16 import levels, near, words

Shape = tuple[int, int, str, int]
#: k, n, activation, residual: less than a word of columns, blocks of sums, an odd k
SHAPES: list[Shape] = [
    *((2, 1, "relu", 0), (33, 70, "none", 1), (192, 130, "gelu", 0)),
    *((2 * FOLD + 2, 64, "none", 1), (4 * FOLD + 90, 66, "none", 0)),
]
SIZES = {"contract_row": (1 << 20, 64), "contract_tile": (8,), "contract_block": (16, 64)}
FAMILIES = ("gather_gemm", *SIZES)


def request(family: str, shape: Shape) -> KernelRequest:
    k, n, activation, residual = shape
    flags = {"left_words": 1} if family == "gather_gemm" else {}
    sizes = {"k": k, "n": n, "activation": activation, "residual": residual}
    return KernelRequest.of(family, "bfloat16", **sizes, **flags)


@functools.cache
def kernels() -> KernelLibrary:
    wanted = [
        (request(f, s), level)
        for f in FAMILIES
        for s in SHAPES
        for level in levels()
        if f == "gather_gemm" or not level.multiplies_tiles
    ]
    objects = {f"{r.symbol}_{level.level}": object_code(r, level) for r, level in wanted}
    path = Path(tempfile.mkdtemp(prefix="pitc-test-words-")) / "kernels.so"
    link_library([Part(objects, ("__TVMBackend*",))], path)
    return KernelLibrary(path)


class Case:
    """A product whose left operand is words, with zeros: `share` of its numbers live."""

    def __init__(self, shape: Shape, rows: int, share: float) -> None:
        self.shape, (k, n, _, residual) = shape, shape
        rng = np.random.default_rng(rows)
        self.a = near(normal(rng, rows, k) * (rng.random((rows, k)) < share))
        self.a[rows // 2] = 0
        self.w = normal(rng, k, n) / np.float32(np.sqrt(k))
        self.bias = np.zeros(panel_count(n) * PANEL_WIDTH, np.float32)
        self.bias[:n] = normal(rng, n)
        self.added = normal(rng, rows, n) if residual else None
        padded = np.zeros((rows, k + k % 2), ml_dtypes.bfloat16)
        padded[:, :k] = self.a
        self.words = padded.view(np.uint32).view(np.float32)
        self.rows_c = rng.permutation(rows + 2)[:rows].astype(np.int32)

    def run(self, level: CpuLevel, family: str, size: int) -> Array:
        c = np.full((len(self.a) + 2, self.shape[1]), np.float32(7.25))
        rows, panels = len(self.a), panel_count(self.shape[1])
        added = [] if self.added is None else [self.added]
        shared = [words(self.w), self.bias, *added, self.rows_c, c]
        if family == "gather_gemm":
            every = [self.words, np.arange(rows, dtype=np.int32), *shared]
            numbers = (0, rows, 0, panels)
        else:
            every = [*LISTS[family](self.words, size), *shared]
            blocks = -(-self.words.shape[1] // size)
            numbers = (0, panels)
            if family == "contract_row":
                numbers = (blocks, max(1, FOLD // size), *numbers)
        memory = [guarded(x, at_end=bool(i % 2)) for i, x in enumerate(every)]
        kernels().call(f"{request(family, self.shape).symbol}_{level.level}", *memory, *numbers)
        return memory[-1].copy()

    def check(self, c: Array) -> None:
        """The listed rows are sums of rounded numbers, the others untouched."""
        every, w, bias = np.arange(len(self.a)), near(self.w), self.bias[: self.shape[1]]
        want = reference.gather_gemm(self.a, every, w, bias, self.added, self.shape[2])
        size = np.abs(self.a) @ np.abs(w) + np.abs(bias)
        found = c[self.rows_c]
        assert (np.abs(found - want) <= 2e-6 * size + 4e-7 * np.abs(want) + 1e-7).all()
        assert (np.delete(c, self.rows_c, axis=0) == np.float32(7.25)).all()


@pytest.mark.parametrize("level", levels(), ids=lambda x: x.level)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_list_gives_the_bits_of_the_dense_kernel(shape: Shape, level: CpuLevel) -> None:
    for rows in (1, 7, 45):
        for share in (0.0, 0.1, 0.6, 1.0):
            case = Case(shape, rows, share)
            dense = case.run(level, "gather_gemm", 0)
            case.check(dense)
            if level.multiplies_tiles:  # which have no lists, and sum in another order
                continue
            for family, sizes in SIZES.items():
                for size in sizes:
                    found = case.run(level, family, size)
                    same = found.view(np.uint32) == dense.view(np.uint32)
                    assert same.all(), (family, size, rows, share)


def test_words_are_pairs_of_rows() -> None:
    """Numbers of even k stand in the low halves, and 0 behind an odd row."""
    w = np.arange(3 * 2, dtype=np.float32).reshape(3, 2)
    halves = pair_panels(w).view(np.uint16).reshape(2, PANEL_WIDTH, 2)
    first = near(w).astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(halves[0, :2], np.stack([first[0], first[1]], 1))
    assert np.array_equal(halves[1, :2], np.stack([first[2], np.zeros(2, np.uint16)], 1))
