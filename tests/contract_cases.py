"""Operands, lists and expected values of the contractions over listed micro-tiles."""

import numpy as np

from pitc.codegen import reference
from pitc.codegen.call import KernelLibrary
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count
from pitc.ir.variants import FOLD
from tests.codegen_kernels import Array, guarded, normal

CANARY = np.float32(7.25)


def row_lists(a: Array, width: int) -> tuple[Array, Array, Array]:
    """(values, ks, starts): for each block of k, for each row, the elements that are not 0."""
    rows, k = a.shape
    blocks = -(-k // width)
    row, ks = np.nonzero(a)
    runs = ks // width * rows + row
    order = np.lexsort((ks, runs))
    starts = np.zeros(rows * blocks + 1, np.int32)
    starts[1:] = np.cumsum(np.bincount(runs, minlength=rows * blocks))
    return a[row, ks][order], ks[order].astype(np.int32), starts


def tile_lists(a: Array, group: int) -> tuple[Array, Array, Array]:
    """(values `[Z, group]`, ks, starts) of groups of rows that share a k list."""
    groups = -(-len(a) // group)
    padded = np.zeros((groups * group, a.shape[1]), np.float32)
    padded[: len(a)] = a
    padded = padded.reshape(groups, group, a.shape[1])
    return _lists((padded != 0).any(axis=1), padded.transpose(0, 2, 1))


def block_lists(a: Array, width: int) -> tuple[Array, Array, Array]:
    """(values `[Z, width]`, rows, starts) of k blocks that each have a row list."""
    blocks = -(-a.shape[1] // width)
    padded = np.zeros((len(a), blocks * width), np.float32)
    padded[:, : a.shape[1]] = a
    padded = padded.reshape(len(a), blocks, width).transpose(1, 0, 2)
    return _lists((padded != 0).any(axis=2), padded)


def _lists(live: Array, pieces: Array) -> tuple[Array, Array, Array]:
    starts = np.zeros(len(live) + 1, np.int32)
    starts[1:] = np.cumsum(live.sum(axis=1))
    return np.ascontiguousarray(pieces[live]), np.nonzero(live)[1].astype(np.int32), starts


LISTS = {"contract_row": row_lists, "contract_tile": tile_lists, "contract_block": block_lists}


class ContractCase:
    """One contraction with random operands, its calls and what they must give.

    Args:
        shape: (k, n, activation, residual).
        a: `[T, k]`, with zeros.
        seed: Of everything else.
        spare: Rows of C that are not listed.
        flags: Other parameters of its kernels.
    """

    def __init__(
        self, shape: tuple[int, int, str, int], a: Array, seed: int, spare: int = 5, **flags: int
    ):
        self.k, self.n, self.activation, self.residual = shape
        self.flags = flags
        rng = np.random.default_rng(seed)
        self.a, self.rows = a, len(a)
        self.w = normal(rng, self.k, self.n) / np.float32(np.sqrt(self.k))
        self.bias = np.zeros(panel_count(self.n) * PANEL_WIDTH, np.float32)
        self.bias[: self.n] = normal(rng, self.n)
        self.rows_c = rng.permutation(self.rows + spare)[: self.rows].astype(np.int32)
        self.added = normal(rng, self.rows, self.n)
        self.c = np.full((self.rows + spare, self.n), CANARY)
        self.at_end = rng.random(8) < 0.5

    def expected(self) -> tuple[Array, Array]:
        """Values and tolerances of the listed rows (1.2e-6 of the sum of absolute products)."""
        added = self.added if self.residual else None
        bias, everything = self.bias[: self.n], np.arange(self.rows)
        with np.errstate(all="ignore"):
            want = reference.gather_gemm(self.a, everything, self.w, bias, added, self.activation)
            size = np.abs(self.a) @ np.abs(self.w) + np.abs(bias)
        return want, 1.2e-6 * size + 4e-7 * np.abs(want) + 1e-7

    def request(self, family: str) -> KernelRequest:
        """The kernel of this case in a family."""
        params = {"k": self.k, "n": self.n, "activation": self.activation}
        return KernelRequest.of(family, **params, residual=self.residual, **self.flags)

    def operands(self, lists: tuple[Array, ...]) -> list[Array]:
        """The arrays that a kernel takes: its lists, and what is common to all kernels."""
        residual = [self.added] if self.residual else []
        return [*lists, pack_panels(self.w), self.bias, *residual, self.rows_c, self.c]

    def symbol(self, family: str, level: str) -> str:
        """The kernel's symbol."""
        return f"{self.request(family).symbol}_{level}"

    def run(
        self,
        kernels: KernelLibrary,
        level: str,
        family: str,
        size: int,
        panels: list[tuple[int, int]] | None = None,
    ) -> Array:
        """The whole of C after calling a kernel for each panel range.

        Args:
            kernels: Library that has the kernel.
            level: CPU level.
            family: A key of `LISTS`.
            size: Rows of a group, or k of a block; of rows a divisor of `FOLD`, or all.
            panels: (j0, j1) of every call; one call if missing.
        """
        lists = LISTS[family](self.a, size)
        return self.call(kernels, level, family, lists, self.parts(family, size, panels))

    def parts(
        self, family: str, size: int, panels: list[tuple[int, int]] | None = None
    ) -> list[tuple[int, ...]]:
        """The numbers behind the operands of every call, as `run` takes them."""
        blocks = (-(-self.k // size), max(1, FOLD // size)) if family == "contract_row" else ()
        return [(*blocks, *part) for part in panels or [(0, panel_count(self.n))]]

    def check(self, c: Array) -> None:
        """The listed rows are right, the others untouched."""
        want, tolerance = self.expected()
        assert (np.abs(c[self.rows_c] - want) <= tolerance).all()
        assert (np.delete(c, self.rows_c, axis=0) == CANARY).all()

    def dense(self, kernels: KernelLibrary, level: str) -> Array:
        """The whole of C after the dense kernel of the same library."""
        listed = (self.a, np.arange(self.rows, dtype=np.int32))
        everything = (0, self.rows, 0, panel_count(self.n))
        return self.call(kernels, level, "gather_gemm", listed, [everything])

    def call(
        self,
        kernels: KernelLibrary,
        level: str,
        family: str,
        lists: tuple[Array, ...],
        parts: list[tuple[int, ...]],
    ) -> Array:
        """The whole of C after calling a kernel, in guarded memory, for each part."""
        operands = self.operands(lists)
        memory = [guarded(x, at_end=bool(e)) for x, e in zip(operands, self.at_end, strict=False)]
        for part in parts:
            kernels.call(self.symbol(family, level), *memory, *part)
        for before, after in zip(operands[:-1], memory[:-1], strict=True):
            assert np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
        return memory[-1].copy()


def sparse(rng: np.random.Generator, rows: int, k: int, density: float) -> Array:
    """A matrix whose elements are zero, of both signs, but for a share `density`."""
    a = normal(rng, rows, k)
    a[rng.random((rows, k)) >= density] = 0
    return np.where(rng.random((rows, k)) < 0.1, -a, a)
