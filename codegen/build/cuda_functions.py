"""Requests for kernels of GPUs, answered: one TIR function for each dense tile that serves.

gather_gemm_relu_f16    gather_gemm_relu_f16_mma128x128_cuda, .._mma64x128_cuda, ..
attention_d64_v64_f16   attention_d64_v64_f16_cuda
pack_b4                 pack_b16_cuda, pack_b4_cuda, pack_b1_cuda
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pitc.ir.cuda_target import CudaTile
from pitc.ir.gpu_speed import tiles_of
from pitc.ir.kernel import KernelRequest

Emitter = Callable[[str, Mapping[str, Any], CudaTile], Any]


def functions_of(requests: Iterable[KernelRequest]) -> list[Any]:
    """The TIR functions that answer the requests for GPUs among some."""
    return [f for request in requests if request.kind == "cuda" for f in cuda_functions(request)]


def cuda_functions(request: KernelRequest) -> Iterator[Any]:
    """The TIR functions that answer a request.

    Raises:
        ValueError: No family can answer it.
    """
    from pitc.codegen.families import contract_cuda

    tiled: Mapping[str, Emitter] = {
        "gather_gemm": contract_cuda.gather_gemm,
        "contract_tile": contract_cuda.contract_tile,
    }
    params = dict(request.params) | {"dtype": request.dtype}
    if request.family in tiled:
        for tile in tiles_of(request.dtype):
            symbol = f"{request.symbol}_{tile.name}_cuda"
            yield tiled[request.family](symbol, params, tile)
        return
    raise ValueError(f"no CUDA kernel for {request}")
