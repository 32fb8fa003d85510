"""GPUs as data: dense tiles of their kernels, and what the architectures can do."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
        together: Blocks for which a multiprocessor has registers, at least.
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
    capability". A data sheet tells `processors`, `clock_mhz`, `peak_flops`, `simt_flops`, `l2_size`
    and `memory_gbs`, without the doubling by structured sparsity. What is *reached* stands in
    `mma_flops` and `l2_bytes`, and `reached` says who has seen that.

    Args:
        name: `sm_80`.
        device: The device that the rates are of.
        shared_bytes: Shared memory of one block, at most.
        processor_shared_bytes: Shared memory of a multiprocessor.
        processors: Multiprocessors.
        clock_mhz: Clock while it computes.
        mma_flops: Of a multiprocessor in a clock by `mma.sync`, which is what the kernels issue, by
            type of the operands, sums in float32.
        simt_flops: Of a multiprocessor in a clock, float32.
        l2_bytes: From the second-level cache to all multiprocessors in a clock.
        l2_size: Bytes of the second-level cache.
        memory_gbs: From memory, GB/s.
        peak_flops: Like `mma_flops`, by whichever instruction is the fastest.
        reached: Where `mma_flops` and `l2_bytes` are from.
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
    peak_flops: Mapping[str, int]
    reached: str = ""

    @property
    def number(self) -> int:
        """80 of `sm_80`."""
        return int(self.name.removeprefix("sm_"))


def _by_type(half: int) -> Mapping[str, int]:
    return {"float16": half, "bfloat16": half, "float32": half // 2}


_KIB, _MIB = 1 << 10, 1 << 20
_ARCHS = (
    # name, device, KiB of a block and of a multiprocessor, multiprocessors, MHz, flops of 16-bit
    # operands by mma.sync and at most, and of float32, bytes a clock and MiB of the second-level
    # cache, GB/s of memory
    ("sm_80", "A100 SXM 80 GB", 163, 164, 108, 1410, 2048, 2048, 128, 3830, 40, 2039),
    ("sm_86", "RTX A6000", 99, 100, 84, 1800, 1024, 1024, 256, 2048, 6, 768),
    ("sm_89", "L40S", 99, 100, 142, 2520, 1024, 1024, 256, 2080, 96, 864),
    ("sm_90", "H100 SXM", 227, 228, 132, 1755, 2560, 4096, 256, 3500, 50, 3352),
    ("sm_100", "B200", 227, 228, 148, 1850, 2560, 8192, 256, 10240, 126, 8000),
    ("sm_120", "RTX PRO 6000", 99, 100, 188, 2600, 1024, 1024, 256, 8192, 128, 1792),
)
_SHEET = "mma.sync: the data sheet's rate; "
_REACHED = {
    "sm_80": f"{_SHEET}cache: 5.4 TB/s measured on an A100 (its makers say 5120 bytes a clock)",
    "sm_86": f"{_SHEET}cache: an estimate, no measurement",
    "sm_89": f"{_SHEET}cache: 5.2 TB/s measured on an L40",
    "sm_90": "mma.sync: about 0.62 of the data sheet's rate, which is wgmma's, measured on an "
    "H800; cache: 6.1 TB/s, between 5.5 and 7 measured on H100s (9.7 on one H200)",
    "sm_100": "mma.sync: taken as Hopper's, the data sheet's rate is tcgen05's; cache: an "
    "estimate, no measurement",
    "sm_120": f"{_SHEET}cache: an estimate, no measurement",
}
"""Measured by others: caches by the open benchmark suite gpu-benches (`gpu-l2-cache`) and by Chips
and Cheese (H100), mma.sync by Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture, arXiv 2402.13499."""
CUDA_ARCHS: Mapping[str, CudaArch] = {
    name: CudaArch(
        name,
        device,
        block * _KIB,
        whole * _KIB,
        count,
        mhz,
        _by_type(mma),
        simt,
        l2,
        size * _MIB,
        gbs,
        _by_type(peak),
        _REACHED[name],
    )
    for name, device, block, whole, count, mhz, mma, peak, simt, l2, size, gbs in _ARCHS
}
"""By name, oldest first."""

_HOPPER = CUDA_ARCHS["sm_90"]
CUDA_DEVICES: Mapping[str, CudaArch] = {
    device.device: device
    for device in (
        *CUDA_ARCHS.values(),
        replace(_HOPPER, device="H200 SXM", l2_size=60 * _MIB, memory_gbs=4800),
    )
}
"""Devices by name: the largest of each architecture, and others whose memory is not its."""
