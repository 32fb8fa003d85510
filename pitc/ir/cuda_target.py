"""GPUs as data: dense tiles of their kernels, and what the architectures can do.

The runtime has the tiles from a header (`python pitc/ir/cuda_target.py FILE` writes it, so this
module imports nothing of pitc).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SUMS_M, SUMS_N = 16, 8
"""Rows and columns of the sums of an instruction of tensor cores."""
STEP_BYTES = 32
"""Bytes of k that it takes."""


@dataclass(frozen=True, slots=True)
class CudaTile:
    """A dense tile of a thread block, and the pieces that it goes through.

    Args:
        m: Rows.
        n: Columns, a multiple of a panel.
        k_bytes: Bytes of k in a step.
        warps_m: Warps that share the rows.
        warps_n: Warps that share the columns.
        stages: Steps whose operands are in shared memory or on their way there.
        engine: `mma`, or `simt`.
        together: Blocks for which a multiprocessor has registers and shared memory, at least.
    """

    m: int
    n: int
    k_bytes: int
    warps_m: int
    warps_n: int
    stages: int
    engine: str = "mma"
    together: int = 1

    @property
    def name(self) -> str:
        """In symbols and options."""
        return f"{self.engine}{self.m}x{self.n}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps_m * self.warps_n

    @property
    def slot_bytes(self) -> int:
        """Shared memory of a step."""
        return (self.m + self.n) * self.k_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.slot_bytes * self.stages

    @property
    def slot_bytes_loaded(self) -> int:
        """What all warps load of a step: each its rows and its columns."""
        return (self.m * self.warps_n + self.n * self.warps_m) * self.k_bytes


CUDA_TILES = (
    CudaTile(128, 128, 64, 2, 2, 3, together=2),
    CudaTile(64, 128, 64, 2, 2, 4, together=2),
    CudaTile(32, 128, 128, 1, 4, 4),
    CudaTile(16, 128, 128, 1, 4, 4),
    CudaTile(128, 128, 64, 4, 2, 3, "simt"),
    CudaTile(32, 128, 64, 1, 2, 4, "simt", together=2),
)
"""Dense tiles, the largest of each engine first: float32 has both engines, as tf32 and exact."""


@dataclass(frozen=True, slots=True)
class CudaArch:
    """A GPU architecture that kernels are built for, and what its largest device can do.

    Limits are those of the CUDA C++ Programming Guide, "Technical specifications per compute
    capability", rates those of the vendor's data sheets and architecture papers, without the
    doubling by structured sparsity.

    Args:
        name: `sm_80`.
        device: The device that the rates are of.
        shared_bytes: Shared memory of one block, at most.
        processor_shared_bytes: Shared memory of a multiprocessor.
        processors: Multiprocessors.
        clock_mhz: Clock while it computes.
        mma_flops: Of a multiprocessor in a clock, by type of the operands, sums in float32.
        simt_flops: Of a multiprocessor in a clock, float32.
        l2_bytes: From the second-level cache to all multiprocessors in a clock.
        l2_size: Bytes of the second-level cache.
        memory_gbs: From memory, GB/s.
    """

    name: str
    device: str
    shared_bytes: int
    processor_shared_bytes: int
    processors: int
    clock_mhz: int
    mma_flops: Mapping[str, int]
    simt_flops: int
    l2_bytes: int
    l2_size: int
    memory_gbs: int

    @property
    def number(self) -> int:
        """80 of `sm_80`."""
        return int(self.name.removeprefix("sm_"))


def _mma(half: int) -> Mapping[str, int]:
    return {"float16": half, "bfloat16": half, "float32": half // 2}


_KIB, _MIB = 1 << 10, 1 << 20
_ARCHS = (
    # name, device, KiB of a block and of a multiprocessor, multiprocessors, MHz, flops of 16-bit
    # and float32 operands, bytes a clock and MiB of the second-level cache, GB/s of memory
    ("sm_80", "A100 SXM 80 GB", 163, 164, 108, 1410, 2048, 128, 5120, 40, 2039),
    ("sm_86", "RTX A6000", 99, 100, 84, 1800, 1024, 256, 2048, 6, 768),
    ("sm_89", "L40S", 99, 100, 142, 2520, 1024, 256, 4608, 96, 864),
    ("sm_90", "H100 SXM", 227, 228, 132, 1755, 4096, 256, 5632, 50, 3352),
    ("sm_100", "B200", 227, 228, 148, 1850, 8192, 256, 10240, 126, 8000),
    ("sm_120", "RTX PRO 6000", 99, 100, 188, 2600, 1024, 256, 8192, 128, 1792),
)
CUDA_ARCHS: Mapping[str, CudaArch] = {
    name: CudaArch(
        name, device, block * _KIB, whole * _KIB, count, mhz, _mma(half), simt, l2, size * _MIB, gbs
    )
    for name, device, block, whole, count, mhz, half, simt, l2, size, gbs in _ARCHS
}
"""By name, oldest first."""


def header() -> str:
    """The dense tiles for the runtime, as C++."""
    records = "\n".join(
        f'    {{"{t.name}", {str(t.engine == "mma").lower()}, {t.m}, {t.n}, {t.k_bytes},'
        f" {t.shared_bytes}}},"
        for t in CUDA_TILES
    )
    return f"""// Written by pitc/ir/cuda_target.py, which says what it means.
#pragma once

#include <cstdint>

namespace pitc {{

struct CudaTile {{
  const char* name;
  bool mma;  // by tensor cores, else by FMA units
  int64_t m, n, k_bytes;
  int shared_bytes;  // of a block
}};
constexpr CudaTile kCudaTiles[] = {{
{records}
}};

}}  // namespace pitc
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header())
