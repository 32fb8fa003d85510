"""Operands of contractions on the emulated device, and what they should give."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.codegen import reference
from pitc.ir.cuda_target import CudaTile
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count
from tests.codegen_kernels import Array
from tests.cuda_emulator import Emulated

CANARY = 7
BFLOAT16 = ir.DataType.BFLOAT16.numpy()
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": BFLOAT16, "float32": np.dtype(np.float32)}
SMALL = 4
"""Largest number of operands whose products and sums are exact in every type."""


def words(x: Array) -> Array:
    """An array as kernels take it: numbers of bfloat16 as uint16."""
    return x.view(np.uint16) if x.dtype == BFLOAT16 else x


def integers(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, share: float = 1
) -> Array:
    """Small whole numbers, which no rounding changes; a share of them is not 0."""
    x = rng.integers(-SMALL, SMALL + 1, shape) * (rng.random(shape) < share)
    return x.astype(DTYPES[dtype])


@dataclass
class Product:
    """Operands of C[rows_c] = act(A[rows_a] @ W + bias) + residual.

    Args:
        rows: Length of the list.
        k: Columns of A.
        n: Columns of C.
        dtype: Of the operands.
        activation: One of those of `docs/plans.md`.
        residual: Whether there is one.
        seed: Of the numbers.
    """

    rows: int
    k: int
    n: int
    dtype: str
    activation: str = "none"
    residual: bool = False
    seed: int = 0
    a: Array = field(init=False)
    w: Array = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.seed, self.rows, self.k, self.n])
        self.a = integers(rng, (self.rows + 3, self.k), self.dtype)
        self.w = integers(rng, (self.k, self.n), self.dtype)
        self.bias = np.zeros(panel_count(self.n) * PANEL_WIDTH, np.float32)
        self.bias[: self.n] = rng.integers(-SMALL, SMALL + 1, self.n)
        self.added = integers(rng, (self.rows, self.n), self.dtype)
        self.rows_a = rng.permutation(self.rows + 3)[: self.rows].astype(np.int32)
        self.rows_c = rng.permutation(self.rows + 5)[: self.rows].astype(np.int32)

    @property
    def panels(self) -> Array:
        """W as kernels read it."""
        return pack_panels(self.w, DTYPES[self.dtype])

    def expected(self) -> Array:
        """The listed rows of C."""
        a, w, added = (x.astype(np.float64) for x in (self.a, self.w, self.added))
        residual = added if self.residual else None
        return reference.gather_gemm(
            a, self.rows_a, w, self.bias[: self.n], residual, self.activation
        )

    def run(
        self,
        launch: Callable[..., None],
        *,
        count: int | None = None,
        chosen: bool = True,
        blocks: int = 3,
        bits: Array | None = None,
    ) -> Array:
        """Call `launch` with the last arguments of every contraction; all of C."""
        c = np.full((self.rows + 5, self.n), CANARY, DTYPES[self.dtype])
        gate = np.array([0 if chosen else 1, self.rows if count is None else count], np.int32)
        last = [self.bias, *([words(self.added)] if self.residual else []), self.rows_c, words(c)]
        launch(*last, *([] if bits is None else [bits]), gate, 0, blocks)
        return c

    def check(self, c: Array, count: int | None = None) -> None:
        """Listed rows are right, others untouched; only the first `count` rows are listed."""
        listed = self.rows_c[: self.rows if count is None else count]
        want = self.expected()[: len(listed)]
        got = c[listed].astype(np.float64)
        if self.activation in ("none", "relu"):
            np.testing.assert_array_equal(got, want.astype(DTYPES[self.dtype]).astype(np.float64))
        else:
            scale = float(ir.DataType.from_numpy(DTYPES[self.dtype]).itemsize)
            bound = {4.0: 1e-5, 2.0: 8e-3}[scale]
            np.testing.assert_allclose(got, want, rtol=bound, atol=bound)
        others = np.delete(c.astype(np.float64), listed, axis=0)
        assert (others == CANARY).all()


def emulated(emit: Callable[..., Any], tile: CudaTile, **variants: dict[str, Any]) -> Emulated:
    """Kernels of one family and tile, by symbol."""
    return Emulated([emit(name, params, tile) for name, params in variants.items()])
