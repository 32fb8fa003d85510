"""pack: out[i] = x[index[i]]; unpack: out[index[i]] = packed[i]. On a multiprocessor.

PIT axis: the row; the micro-tile is one row. Threads take words in turns, whichever row these are
of: a row of two words wastes as little as one of a thousand. A thread divides once; from word to
word it goes on by a fixed number of rows and words. Four loads are on their way at a time.

    rows of 3 words, 5 threads:    thread 4 has (1, 1), then (1, 1) + (1, 2) = (3, 0), ..
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import ptx, tir
from pitc.codegen.tir import Expr, T
from pitc.ir.kernel import MOVED_BYTES

_THREADS, _TOGETHER = 256, 4
WORDS: Mapping[int, str] = dict(
    zip(MOVED_BYTES, ("int8", "int16", "int32", "int32x4"), strict=True)
)
"""Type of a word, by its bytes."""


def pack_func(symbol: str, params: Mapping[str, Any]) -> Any:
    """The TIR function of `pack` (arguments: `docs/plans.md`); `params`: `bytes` of a word."""
    return tir.prim_func(symbol, lambda: _copy_rows(params["bytes"], gather=True))


def unpack_func(symbol: str, params: Mapping[str, Any]) -> Any:
    """The TIR function of `unpack` (arguments: `docs/plans.md`); `params`: `bytes` of a word."""
    return tir.prim_func(symbol, lambda: _copy_rows(params["bytes"], gather=False))


def _copy_rows(size: int, gather: bool) -> None:
    many, few, numbers = tir.size("rows"), tir.size("listed"), tir.size("numbers")
    item = min(size, 4)
    dtype, wide = f"int{8 * item}", size // item
    source = tir.device_tensor(
        "x" if gather else "packed", (many if gather else few, numbers), dtype
    )
    index = tir.device_tensor("index", (few,), "int32")
    out = tir.device_tensor("out", (few if gather else many, numbers), dtype)
    blocks = T.arg("blocks", T.int32())
    with ptx.launch(blocks, _THREADS, 4) as (number, thread):
        read, written = (ptx.seen_as(x, WORDS[size]) for x in (source, out))
        words = ptx.held(tir.larger(numbers // wide, tir.int64(1)), "int64")
        listed = ptx.held(T.Select(numbers > 0, few, tir.int64(0)), "int64")
        stride = ptx.held(T.Cast("int64", blocks) * _THREADS, "int64")
        down = ptx.held(T.truncdiv(stride, words), "int64")
        across = ptx.held(stride - down * words, "int64")
        first = T.Cast("int64", number) * _THREADS + T.Cast("int64", thread)
        row = ptx.Register("int64", T.truncdiv(first, words))
        word = ptx.Register("int64", first - row.value * words)
        with ptx.repeated(row.value < listed):
            places = ptx.registers(2 * _TOGETHER, "int64")
            values = ptx.registers(_TOGETHER, WORDS[size])
            for u in range(_TOGETHER):
                tir.assign(places, row.value, u)
                tir.assign(places, word.value, _TOGETHER + u)
                row.add(down)
                word.add(across)
                with tir.when(word.value >= words):
                    row.add(T.int64(1))
                    word.add(-words)

            def at(u: int, scattered: bool) -> Expr:
                listed_row = T.Cast("int64", index[places[u]]) if scattered else places[u]
                return listed_row * words + places[_TOGETHER + u]

            for u in range(_TOGETHER):
                with tir.when(places[u] < listed):
                    tir.assign(values, read[at(u, gather)], u)
            for u in range(_TOGETHER):
                with tir.when(places[u] < listed):
                    tir.assign(written, values[u], at(u, not gather))
