"""Budgets of the kernels of GPUs, as data: what each may use of a multiprocessor.

No kernel may spill, on any architecture. Registers are the most with which as many blocks run side
by side as are meant to. Shared memory is what a launch asks for. What memory may have to do is
planned in `tests/cuda_traffic.py`: a kernel may touch a tenth more sectors, and take a tenth more
wavefronts than its bytes need.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

REGISTERS = 65536
"""Of a multiprocessor, on every architecture that there is."""
MOST = 1.1
"""Sectors, and wavefronts, per planned one."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a kernel may use.

    Args:
        kernels: Pattern of symbols.
        threads: Of a block.
        together: Blocks that must have registers side by side.
        registers: Of a thread.
        shared_bytes: Of a block; -1: it depends on the head's width, tests say which.
    """

    kernels: str
    threads: int
    together: int
    registers: int
    shared_bytes: int


BUDGETS = (
    Budget("gather_gemm_*_mma128x128_cuda", 128, 2, 255, 49152),
    Budget("gather_gemm_*_mma64x128_cuda", 128, 2, 255, 49152),
    Budget("gather_gemm_*_mma32x128_cuda", 128, 1, 255, 81920),
    Budget("gather_gemm_*_mma16x128_cuda", 128, 1, 255, 73728),
    Budget("gather_gemm_*_simt128x128_cuda", 256, 1, 255, 49152),
    Budget("gather_gemm_*_simt32x128_cuda", 64, 2, 255, 40960),
    Budget("contract_tile_*_mma32x128_cuda", 128, 6, 85, 30720),
    Budget("contract_tile_*_mma16x128_cuda", 128, 1, 255, 73728),
    Budget("contract_tile_*_simt32x128_cuda", 64, 2, 255, 40960),
    Budget("contract_square_*_mma32x128_cuda", 128, 6, 85, 30720),
    Budget("contract_square_*_simt32x128_cuda", 64, 2, 255, 40960),
    Budget("contract_block_*_mma64x64_r128_cuda", 128, 2, 255, 82688),
    Budget("contract_block_*_mma64x64_r256_cuda", 128, 2, 255, 115456),
    Budget("contract_block_*_mma64x64_r512_cuda", 128, 2, 255, 180992),
    Budget("contract_block_*_simt64x64_r128_cuda", 256, 2, 128, 82688),
    Budget("contract_block_*_simt64x64_r256_cuda", 256, 2, 128, 115456),
    Budget("contract_block_*_simt64x64_r512_cuda", 256, 2, 128, 180992),
    Budget("attention_*16_cuda", 128, 2, 255, -1),
    Budget("attention_*_f32_mma_cuda", 128, 2, 255, -1),
    Budget("attention_*_f32_simt_cuda", 128, 2, 255, -1),
    Budget("attention_grad_*_queries_cuda", 128, 2, 255, -1),
    Budget("attention_grad_*_keys_cuda", 128, 2, 255, -1),
    Budget("detect_*_cuda", 256, 4, 64, 1184),
    Budget("choose_*_cuda", 1024, 1, 64, 640),
    Budget("lists_*16_*_cuda", 256, 4, 64, 18496),
    Budget("lists_*f32_*_cuda", 256, 4, 64, 34880),
    Budget("pack_b*_cuda", 256, 4, 64, 0),
    Budget("unpack_b*_cuda", 256, 4, 64, 0),
    Budget("live_*_cuda", 256, 4, 64, 32),
    Budget("group_*_cuda", 256, 4, 64, 32),
    Budget("elementwise_*_cuda", 256, 2, 128, 35328),
)


def budget_of(symbol: str) -> Budget:
    """The one budget of a kernel.

    Raises:
        LookupError: There is none, or more than one.
    """
    found = [b for b in BUDGETS if fnmatchcase(symbol, b.kernels)]
    if len(found) != 1:
        raise LookupError(f"{symbol} has {len(found)} budgets")
    return found[0]
