"""What kernels are to reach on a GPU: shares of what no kernel can exceed there.

The *floor* of a product is the longer one of two times: its operations at the fastest rate of the
tensor cores, and A, B and C once through memory. Where zeros are looked for all of A is read, so
what is not live saves operations alone. A goal is a share, floor / time, so it says the same of
each GPU; a multiple of cuBLAS does not, and may be more than memory allows:

    4096 x 4096 x 4096, float16, 99 % empty      H100      H200
    floor, of memory                             33.6 us   23.4 us
    cuBLAS, at 650 to 750 TFLOP/s                183 to 211 us
    so at most                                   5.8 x     8.4 x     of 196 us
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gpu.model import memory_us
from pitc.ir.cuda_target import CUDA_DEVICES, CudaArch
from pitc.ir.variants import ITEM_BYTES

Sizes = tuple[int, int, int]
"""Rows, k and n."""

DRIVER_NAMES: Mapping[str, str] = {
    "A100-SXM4-80GB": "A100 SXM 80 GB",
    "H100 80GB HBM3": "H100 SXM",
    "H200": "H200 SXM",
}
"""Devices that goals are stated for, by what the driver calls them behind the maker's name."""
DETECTOR_GOAL = 0.6
"""Of the bandwidth of a copy, by the detector."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What no kernel can go below, microseconds.

    Args:
        compute_us: Operations, by the fastest instruction.
        memory_us: A, B and C once.
    """

    compute_us: float
    memory_us: float

    @property
    def us(self) -> float:
        """The longer one."""
        return max(self.compute_us, self.memory_us)

    @property
    def limit(self) -> str:
        """Which that is."""
        return "compute" if self.compute_us >= self.memory_us else "memory"


@dataclass(frozen=True, slots=True)
class Goal:
    """A case, and the share of its floor that it is to reach on each device.

    Args:
        case: As results name it, `spmm-4096-32x1-90`.
        sizes: Rows, k and n.
        live: Share of A that is not zero.
        shares: By device.
    """

    case: str
    sizes: Sizes
    live: float
    shares: Mapping[str, float]

    def floor(self, device: str) -> Floor:
        """Its floor on a device, in float16."""
        return floor_of(device, *self.sizes, "float16", self.live)

    def us(self, device: str) -> float:
        """The time that reaches the goal."""
        return self.floor(device).us / self.shares[device]


def _shares(*shares: float) -> Mapping[str, float]:
    return dict(zip(DRIVER_NAMES.values(), shares, strict=True))


_SIDE = (4096, 4096, 4096)
_PRODUCTS = (
    # sizes, shares on an A100, an H100 and an H200: mma.sync can reach 0.62 of Hopper's operations
    (_SIDE, _shares(0.85, 0.5, 0.5)),
    ((1280, 768, 3072), _shares(0.6, 0.35, 0.35)),
    ((1280, 3072, 768), _shares(0.55, 0.3, 0.3)),
)
_EMPTY = (
    # percent of empty micro-tiles, shares: less where the fixed part of the chain weighs more
    (50, _shares(0.45, 0.35, 0.35)),
    (90, _shares(0.4, 0.4, 0.3)),
    (95, _shares(0.5, 0.45, 0.35)),
    (99, _shares(0.75, 0.6, 0.5)),
)
MICRO_TILES = ("32x1", "1x64", "32x32")
GOALS: Mapping[str, Goal] = {
    goal.case: goal
    for goal in (
        *(
            Goal("gemm-" + "x".join(map(str, sizes)), sizes, 1, shares)
            for sizes, shares in _PRODUCTS
        ),
        *(
            Goal(f"spmm-{_SIDE[0]}-{micro}-{percent}", _SIDE, 1 - percent / 100, shares)
            for micro in MICRO_TILES
            for percent, shares in _EMPTY
        ),
    )
}
"""By case."""


def device_of(name: str) -> str | None:
    """The device of a driver's name for it, `NVIDIA H200`; None where there are no goals for it."""
    return DRIVER_NAMES.get(name.removeprefix("NVIDIA "))


def floor_of(
    device: str | CudaArch,
    m: int,
    k: int,
    n: int,
    dtype: str = "float16",
    live: float = 1,
    *,
    exact: bool = False,
) -> Floor:
    """What a product can take at least.

    Args:
        device: A name of `CUDA_DEVICES`, or a record like those.
        m: Rows of A.
        k: Columns of A.
        n: Columns of C.
        dtype: Of A, B and C.
        live: Share of A that is not zero: operations are done with that alone.
        exact: float32 by FMA units, not as tf32.

    Raises:
        KeyError: No such device.
    """
    arch = CUDA_DEVICES[device] if isinstance(device, str) else device
    rate = arch.simt_flops if exact else arch.peak_flops[dtype]
    return Floor(
        2 * m * k * n * live / (rate * arch.processors * arch.clock_mhz),
        memory_us(ITEM_BYTES[dtype] * (m * k + k * n + m * n), arch),
    )
