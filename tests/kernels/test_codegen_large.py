"""Kernels on tensors of more than 2^31 elements: in the last rows, results are as everywhere."""

from typing import Any

import numpy as np
import pytest

from pitc.codegen.call import KernelLibrary
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH
from tests.codegen_kernels import NEWEST, Array, bits, normal, untouched
from tests.codegen_kernels import newest_library as library

FEW = 9
WIDE, MANY = 1 << 16, (1 << 15) + FEW
"""So many columns, and rows of them: the last `FEW` begin at element 2^31."""
LIST_K = 8
HEADS = 512


def gemm(family: str, k: int, n: int, **params: int | str) -> KernelRequest:
    return KernelRequest.of(family, k=k, n=n, activation="none", **{"residual": 0, **params})


LEFT = gemm("gather_gemm", WIDE, PANEL_WIDTH)
WRITTEN = gemm("gather_gemm", 1, WIDE, residual=1)
COLUMNS = (1 << 15) + PANEL_WIDTH
STORED = {
    order: gemm("gather_gemm", WIDE, COLUMNS, stored=order, factor=1) for order in ("kn", "nk")
}
LISTED = {
    family: gemm(f"contract_{family}", LIST_K, WIDE, residual=1)
    for family in ("row", "tile", "block")
}
PANELS = KernelRequest.of("panels", k=WIDE)
ATTENTION = KernelRequest.of("attention", d=64, dv=64, bias=0)

pytestmark = pytest.mark.parametrize("level", NEWEST)


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    return library(LEFT, WRITTEN, *STORED.values(), *LISTED.values(), PANELS, ATTENTION)


def grown(rows: Array) -> Array:
    """The same rows at the end of an array of more than 2^31 elements."""
    width = int(np.prod(rows.shape[1:]))
    large = untouched((1 << 31) // width + len(rows), *rows.shape[1:])
    large[-len(rows) :] = rows
    return large


def zeros(*shape: int, dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


def numbers(begin: int, end: int) -> Array:
    return np.arange(begin, end, dtype=np.int32)


@pytest.mark.parametrize("rows", [1, 2, FEW])
def test_left_operand(kernels: KernelLibrary, level: str, rows: int) -> None:
    rng = np.random.default_rng(0)
    a, b = normal(rng, rows, WIDE), normal(rng, 1, WIDE, PANEL_WIDTH)
    bias, place = zeros(PANEL_WIDTH), numbers(0, rows)

    def run(left: Array) -> Array:
        c = zeros(rows, PANEL_WIDTH)
        listed = place + np.int32(len(left) - rows)
        kernels.call(f"{LEFT.symbol}_{level}", left, listed, b, bias, place, c, 0, rows, 0, 1)
        return c

    large = grown(a)
    assert large.size > 1 << 31
    assert run(a).any()
    assert np.array_equal(bits(run(large)), bits(run(a)))


def test_product_and_residual(kernels: KernelLibrary, level: str) -> None:
    rng = np.random.default_rng(1)
    a, b, bias = normal(rng, FEW, 1), normal(rng, WIDE // PANEL_WIDTH, 1, PANEL_WIDTH), zeros(WIDE)
    residual = normal(rng, FEW, WIDE)

    def run(added: Array, c: Array) -> Array:
        rows = len(added)
        listed = np.maximum(numbers(0, rows) - np.int32(rows - FEW), 0)
        last = (rows - FEW, rows, 0, WIDE // PANEL_WIDTH)
        symbol = f"{WRITTEN.symbol}_{level}"
        kernels.call(symbol, a, listed, b, bias, added, numbers(0, rows), c, *last)
        return c[-FEW:]

    want = run(residual, zeros(FEW, WIDE))
    assert want.any()
    assert np.array_equal(bits(run(grown(residual), untouched(MANY, WIDE))), bits(want))


@pytest.mark.parametrize("order", STORED)
def test_stored_right_operand(kernels: KernelLibrary, level: str, order: str) -> None:
    """Of the last panel, columns or rows of S whose last elements are not 0."""
    shape = (WIDE, COLUMNS) if order == "kn" else (COLUMNS, WIDE)
    s, factor = untouched(*shape), untouched(*shape)
    assert s.size > 1 << 31
    s[-FEW:, -PANEL_WIDTH:] = np.arange(PANEL_WIDTH) % 7 - 3
    factor[-FEW:, -PANEL_WIDTH:] = 2
    a, bias = np.full((FEW, WIDE), 3, np.float32), zeros(COLUMNS)
    for rows in (1, FEW):
        c, place, j = zeros(FEW, COLUMNS), numbers(0, FEW), COLUMNS // PANEL_WIDTH - 1
        symbol = f"{STORED[order].symbol}_{level}"
        kernels.call(symbol, a, place, s, factor, bias, place, c, 0, rows, j, j + 1)
        corner = s[-FEW:, -PANEL_WIDTH:] if order == "kn" else s[-FEW:, -PANEL_WIDTH:].T
        want = zeros(FEW, PANEL_WIDTH)
        want[:rows, -corner.shape[1] :] = 6 * corner.sum(0)
        assert want.any()
        assert np.array_equal(c[:, -PANEL_WIDTH:], want)


@pytest.mark.parametrize("family", LISTED)
def test_product_of_lists(kernels: KernelLibrary, level: str, family: str) -> None:
    """Only the last rows have entries: each element of them."""
    rng = np.random.default_rng(2)
    a, residual = normal(rng, 8, LIST_K), normal(rng, 8, WIDE)
    panels = WIDE // PANEL_WIDTH
    b, bias = normal(rng, panels, LIST_K, PANEL_WIDTH), zeros(WIDE)

    def run(added: Array, c: Array) -> Array:
        rows = len(added)
        ks = np.tile(numbers(0, LIST_K), 8 if family == "row" else 1)
        if family == "row":
            entries, starts = 8 * LIST_K, zeros(rows + 1, dtype=np.int32)
            starts[-9:] = numbers(0, 9) * LIST_K
            lists = (a.reshape(entries), ks, starts)
        elif family == "tile":
            starts = zeros(rows // 8 + 1, dtype=np.int32)
            starts[-1] = LIST_K
            lists = (np.ascontiguousarray(a.T), ks, starts)
        else:
            values = zeros(8, 16)
            values[:, :LIST_K] = a
            lists = (values, numbers(rows - 8, rows), numbers(0, 2) * np.int32(8))
        blocks = (1, 1) if family == "row" else ()
        symbol, place = f"{LISTED[family].symbol}_{level}", numbers(0, rows)
        part = (*blocks, panels - 1, panels)
        kernels.call(symbol, *lists, b, bias, added, place, c, *part)
        return c[-8:]

    want = run(residual, zeros(8, WIDE))
    assert want[:, -PANEL_WIDTH:].any()
    many = (1 << 15) + 8
    assert np.array_equal(bits(run(grown(residual), untouched(many, WIDE))), bits(want))


def test_panels(kernels: KernelLibrary, level: str) -> None:
    a = grown(normal(np.random.default_rng(3), FEW, WIDE))
    panels = -(-len(a) // PANEL_WIDTH)
    b, odd = untouched(panels, WIDE, PANEL_WIDTH), zeros(1, dtype=np.int32)
    assert b.size > 1 << 31
    part = (WIDE - PANEL_WIDTH, WIDE)
    kernels.call(f"{PANELS.symbol}_{level}", a, b, odd, 0, panels - 1, *part)
    assert np.array_equal(b[-1, slice(*part), :FEW], a[-FEW:, slice(*part)].T)
    assert not odd.any()


def test_attention(kernels: KernelLibrary, level: str) -> None:
    rng = np.random.default_rng(4)
    q, k, v = (zeros(FEW, HEADS, 64) for _ in range(3))
    for x in (q, k, v):
        x[:, -1] = normal(rng, FEW, 64)

    def run(*operands: Array) -> Array:
        q, _, _, out = operands
        last = (len(q) - FEW, len(q))
        heads = (HEADS - 1,) * 4
        kernels.call(f"{ATTENTION.symbol}_{level}", *operands, 0.125, 0, *heads, *last, *last)
        return np.ascontiguousarray(out[-FEW:, -1])

    want = run(q, k, v, zeros(FEW, HEADS, 64))
    assert want.any()
    large = [grown(x) for x in (q, k, v)]
    assert np.array_equal(bits(run(*large, untouched(*large[0].shape))), bits(want))
