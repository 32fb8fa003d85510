"""Requests for kernels of GPUs, answered: one TIR function for each dense tile that serves.

gather_gemm_relu_f16    gather_gemm_relu_f16_mma128x128_cuda, .._mma64x128_cuda, ..
contract_block_relu_f16 contract_block_relu_f16_mma64x64_r128_cuda, .._r256_cuda, .._r512_cuda
detect_f16, choose_f16  detect_f16_cuda, choose_f16_cuda
lists_f16               lists_f16_h32_cuda, lists_f16_h16_cuda
attention_d64_v64_f16   attention_d64_v64_f16_cuda
attention_d64_v64_f32   attention_d64_v64_f32_mma_cuda, attention_d64_v64_f32_simt_cuda
attention_grad_d64_v64_f32
                        attention_grad_d64_v64_f32_queries_cuda, .._keys_cuda
pack_b4                 pack_b16_cuda, pack_b4_cuda
pack_b1                 pack_b16_cuda, pack_b4_cuda, pack_b2_cuda, pack_b1_cuda
live_points             live_counts_cuda, live_points_cuda
group_rows              group_counts_cuda, group_rows_cuda
elementwise_HASH        elementwise_HASH_cuda
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pitc.ir.cuda_target import CudaTile
from pitc.ir.cuda_variants import GROUP_HEIGHTS, SUMMED_ROWS, block_width, offers_of
from pitc.ir.kernel import KernelRequest
from pitc.ir.variants import ITEM_BYTES

Emitter = Callable[[str, Mapping[str, Any], CudaTile], Any]


def functions_of(requests: Iterable[KernelRequest]) -> list[Any]:
    """The TIR functions that answer the requests for GPUs among some, each once."""
    made = (f for request in requests if request.kind == "cuda" for f in cuda_functions(request))
    return list({str(f.attrs["global_symbol"]): f for f in made}.values())


def cuda_functions(request: KernelRequest) -> Iterator[Any]:
    """The TIR functions that answer a request.

    Raises:
        ValueError: No family can answer it.
    """
    from pitc.codegen.families import choose_cuda, contract_cuda, detect_cuda, lists_cuda
    from pitc.codegen.families.contract_block_cuda import contract_block
    from pitc.codegen.families.elementwise_cuda import elementwise

    tiled: Mapping[str, Emitter] = {
        "gather_gemm": contract_cuda.gather_gemm,
        "contract_tile": contract_cuda.contract_tile,
        "contract_square": contract_cuda.contract_square,
    }
    family, symbol = request.family, request.symbol
    if family in ("group_rows", "live_points", "pack", "unpack"):
        yield from _of_points(request)
        return
    params = dict(request.params) | {"dtype": request.dtype}
    if family == "elementwise":
        yield elementwise(f"{symbol}_cuda", params)
        return
    tiles = [o.tile for o in offers_of(request.dtype) if o.variant.family == family]
    width = {"width": block_width(request.dtype)}
    if family in tiled:
        for tile in tiles:
            yield tiled[family](f"{symbol}_{tile.name}_cuda", params, tile)
    elif family == "contract_block":
        for tile in tiles:
            for rows in SUMMED_ROWS:
                yield contract_block(f"{symbol}_{tile.name}_r{rows}_cuda", params, tile, rows)
    elif family == "detect":
        of_bits = {"dtype": "bits"} if params.get("bits") else {}
        yield detect_cuda.detect(f"{symbol}_cuda", params | width | of_bits)
    elif family == "choose":
        yield choose_cuda.choose(f"{symbol}_cuda", width)
    elif family == "lists":
        for height in GROUP_HEIGHTS:
            own = params | width | {"height": height}
            yield lists_cuda.lists(f"{symbol}_h{height}_cuda", own)
    elif family in ("attention", "attention_grad"):
        yield from _of_heads(request, params)
    else:
        raise ValueError(f"no CUDA kernel for {request}")


def _of_heads(request: KernelRequest, params: Mapping[str, Any]) -> Iterator[Any]:
    """Functions of heads of queries and keys."""
    from pitc.codegen.families.attention_cuda import attention
    from pitc.codegen.families.attention_grad_cuda import ROLES, attention_grad

    if request.family == "attention_grad":
        for role in ROLES:
            yield attention_grad(f"{request.symbol}_{role}_cuda", params, role)
        return
    engines = ("mma", "simt") if request.dtype == "float32" else ("mma",)
    for engine in engines:
        suffix = f"_{engine}" if len(engines) > 1 else ""
        yield attention(f"{request.symbol}{suffix}_cuda", params, engine)


def _of_points(request: KernelRequest) -> Iterator[Any]:
    """Functions that do not depend on what numbers there are."""
    from pitc.codegen.families import group_rows_cuda, live_points_cuda, pack_cuda

    family = request.family
    if family == "group_rows":
        yield group_rows_cuda.group_counts("group_counts_cuda")
        yield group_rows_cuda.group_rows("group_rows_cuda")
        return
    if family == "live_points":
        yield live_points_cuda.live_counts("live_counts_cuda")
        yield live_points_cuda.live_points("live_points_cuda")
        return
    emit = pack_cuda.pack_func if family == "pack" else pack_cuda.unpack_func
    for size in sorted(pack_cuda.WORDS, reverse=True):  # whole words of the plan's, and wider
        if size >= ITEM_BYTES[request.dtype]:
            yield emit(f"{family}_b{size}_cuda", {"bytes": size})
