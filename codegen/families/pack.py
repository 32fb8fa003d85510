"""pack: out[i] = x[index[i]]; unpack: out[index[i]] = packed[i]. SRead and SWrite of a region.

PIT axis: the row; the micro-tile is one row. LLVM makes a block copy of the loop over its words.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import tir
from pitc.ir.target import CpuLevel


def _copy_rows(params: Mapping[str, Any], gather: bool) -> None:
    dtype = params["dtype"]
    many, few, words = tir.size(), tir.size(), tir.size()
    source = tir.tensor("x" if gather else "packed", (many if gather else few, words), dtype)
    index = tir.tensor("index", (few,), "int32")
    out = tir.tensor("out", (few if gather else many, words), dtype)
    with tir.serial(0, few) as i:
        listed = tir.index_of(index, i)
        read, written = (listed, i) if gather else (i, listed)
        with tir.serial(0, words) as w:
            tir.assign(out, source[read, w], written, w)


def pack_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of `pack` (arguments: `docs/plans.md`); `params`: `dtype`."""
    return tir.prim_func(symbol, lambda: _copy_rows(params, gather=True))


def unpack_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of `unpack` (arguments: `docs/plans.md`); `params`: `dtype`."""
    return tir.prim_func(symbol, lambda: _copy_rows(params, gather=False))
