"""A trial of Hopper's `wgmma`: is a tile of its sums right on silicon, and how fast is it?

It is `gather_gemm` with this project's SRead, ring, panels and SWrite; only the step differs. Its
operands are read from shared memory through descriptors: with 128 bytes of k in a step, the swizzle
of a piece (`engines/ring.py`: chunk xor row % 8) is the 128-byte swizzle of the PTX manual, rows of
A are its K-major layout, a panel of B is its MN-major one.

    descriptor     bits 0-13 address / 16, 16-29 leading offset / 16, 32-45 stride / 16, 62-63 = 1
    A, 64 rows     stride 1024 (8 rows of 128 bytes); 16 k are 32 bytes on
    B, 64 columns  leading offset 8192 (the next panel), stride 1024 (8 k); 16 k are 2048 bytes on

A trial is no engine: no plan asks for it. What it tells decides whether one is built.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gpu.answers import checked, free, normal
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.library import CudaLibrary
from benchmarks.gpu.peers import product_peers
from benchmarks.gpu.product_cases import GEMMS
from benchmarks.gpu.products import dense_on
from benchmarks.gpu.run import DTYPE, Run, product_bytes
from benchmarks.gpu.timing import Contender, Make
from pitc.ir.cuda_target import CudaTile

if TYPE_CHECKING:
    from pitc.codegen.tir import Expr

FILE, FAMILY = "wgmma.so", "gather_gemm_wgmma"
TILES = (
    CudaTile(128, 128, 128, 8, 1, 3, "wgmma"),
    CudaTile(128, 256, 128, 8, 1, 4, "wgmma"),
)
"""A warpgroup has 64 rows and all columns."""
UNALIGNED = (300, 200, 264)
"""Rows, k and n that no tile divides."""
_ROWS, _STEP_K = 64, 16
_SWIZZLE_128 = 1 << 62


@dataclass(frozen=True, slots=True)
class Descriptor:
    """How an operand of `wgmma` lies in shared memory.

    Args:
        leading: Bytes between pieces of 64 columns of an MN-major operand.
        stride: Bytes between pieces of 8 rows, or 8 k.
        step: Bytes between pieces of 16 k.
    """

    leading: int
    stride: int
    step: int

    @property
    def bits(self) -> int:
        """All of it but the address."""
        return self.leading >> 4 << 16 | self.stride >> 4 << 32 | _SWIZZLE_128


A_ROWS, B_PANELS = Descriptor(16, 1024, 32), Descriptor(8192, 1024, 2048)


def build(out: Path, arch: str) -> None:
    """Write the library of the trial, for one architecture alone."""
    from benchmarks.gpu.own_kernels import compile_functions
    from pitc.codegen.build import cuda_library
    from pitc.codegen.build.find_cuda import find_cuda_compiler
    from pitc.codegen.build.link import link_library
    from pitc.codegen.families.contract_cuda import gather_gemm

    params = {"dtype": DTYPE, "activation": "none", "residual": 0}
    compiler = _Alone(find_cuda_compiler())
    with _engine():
        functions = [gather_gemm(f"{FAMILY}_{t.name}_cuda", params, t) for t in TILES]
        modules, images = compile_functions(functions, [arch], compiler)
    link_library([cuda_library.part_of(modules, images, compiler)], out)


class _Alone:
    """A compiler that makes code of `sm_XXa`, which runs on that architecture alone."""

    def __init__(self, compiler: Any) -> None:
        self._compiler = compiler
        self.version, self.path, self.archs = compiler.version, compiler.path, compiler.archs
        self.fingerprint = f"{compiler.fingerprint}\na"

    def compile(self, source: str, target: str) -> Any:
        """As the compiler does."""
        return self._compiler.compile(source, f"{target}a")


@contextmanager
def _engine() -> Iterator[None]:
    """Meanwhile contractions have the engine, and copies are seen by tensor cores."""
    from pitc.codegen import ptx
    from pitc.codegen.engines import ring
    from pitc.codegen.engines.mma import Fragments
    from pitc.codegen.engines.multiprocessor import Load
    from pitc.codegen.families import contract_cuda
    from pitc.codegen.tir import T

    class WarpGroups(Fragments):
        """Sums of warpgroups, which have the registers of four warps' fragments."""

        def __init__(self, tile: CudaTile, dtype: str, block: ring.Block) -> None:
            super().__init__(tile, dtype, block)
            self._group = ptx.held(block.thread // 128, "int32")

        def step(self, slot: "Expr", load_a: Load, load_b: Load) -> None:
            """Add the products of a slot: four instructions of 16 k."""
            wgmma, n = T.ptx.wgmma, self._tile.n
            T.evaluate(wgmma.fence.sync.aligned())
            rows = slot + self._group * (_ROWS * self._tile.k_bytes)
            a = described(A_ROWS, self._window.address(rows))
            b = described(B_PANELS, self._window.address(slot + self._tile.m * self._tile.k_bytes))
            multiply = getattr(wgmma.mma_async.sync.aligned, f"m64n{n}k16").f32.f16.f16
            sums = [self._sums[i] for i in range(n // 2)]
            for kk in range(self.step_k // _STEP_K):
                places = a + T.uint64(kk * A_ROWS.step >> 4), b + T.uint64(kk * B_PANELS.step >> 4)
                T.evaluate(multiply(*sums, *places, T.bool(True), 1, 1, 0, 1))
            T.evaluate(wgmma.commit_group.sync.aligned())
            T.evaluate(wgmma.wait_group.sync.aligned(0))

    def described(descriptor: Descriptor, address: "Expr") -> "Expr":
        start = T.Cast("uint64", (address & ptx.uint32(0x3FFFF)) >> ptx.uint32(4))
        return ptx.held(start | T.uint64(descriptor.bits), "uint64")

    engines, wait = contract_cuda.ENGINES, ptx.wait

    def wait_and_fence(pending: int) -> None:
        wait(pending)
        T.evaluate(T.ptx.fence.proxy.async_.shared__cta())  # before the barrier

    contract_cuda.ENGINES = {**engines, "wgmma": WarpGroups}
    ring.ptx.wait = wait_and_fence
    try:
        yield
    finally:
        contract_cuda.ENGINES, ring.ptx.wait = engines, wait


def wgmma_cases(run: Run, pack: Path) -> Iterator[Case]:
    """The trial beside the tensor-core engine that there is, and cuBLAS."""
    for sizes in [(40, 64, 64)] if run.small else (*GEMMS, UNALIGNED):
        facts: Mapping[str, Any] = {"dtype": DTYPE, "sizes": list(sizes)}
        name = f"wgmma-{'x'.join(map(str, sizes))}"
        yield Case(name, dict(facts), partial(_trial, run, pack, sizes))


def _trial(run: Run, pack: Path, sizes: tuple[int, int, int], telling: Telling) -> Result:
    t, k, n = sizes
    rng = np.random.default_rng(0)
    a, w = normal(rng, t, k), normal(rng, k, n)
    sets = run.operands(a, w)

    def in_tile(tile: CudaTile) -> Contender:
        library = CudaLibrary(run.device, pack / FILE)
        symbol = f"{FAMILY}_{tile.name}_cuda"
        works = [dense_on(library, run.machine, operands, tile, symbol) for operands in sets]
        error = checked(run.device, sets[0], works[0], a, w)
        return run.own(works, error=error)

    makers: dict[str, Make] = {tile.name: partial(in_tile, tile) for tile in TILES}
    makers |= run.peers(lambda torch: product_peers(torch, a, w, 0, len(sets)))
    result = run.timed(telling, makers, product_bytes(a, w), len(sets))
    for row in result["contenders"]:
        row["tflops"] = 2e-6 * t * k * n / row["us"]
    free(run.device, sets)
    return result
