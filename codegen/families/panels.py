"""panels: b[j, k, i] = a[64 j + i, k], rows of a matrix as columns of panels, in whole squares.

What stands in a column behind the last row of `a` is a row of it once more. The kernel also tells
whether a number that it has copied is infinite or NaN: 0 times it is not 0, so that nothing may be
skipped.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.families.right import NEAR_K, Stored
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.target import CpuLevel

INFINITE = 0x7F800000
"""The bits of infinity; those of NaN, without the sign, are larger."""


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one variant (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `k`.
        target: CPU level.
    """
    if params["k"] < 1:
        raise ValueError(f"no panels kernel for {dict(params)}")
    return tir.prim_func(symbol, lambda: _emit(params["k"], target.vector_lanes))


def _emit(k: int, side: int) -> None:
    rows, panels, tasks = tir.size(), tir.size(), tir.size()
    a = Stored(tir.tensor("a", (rows, k)))
    b = tir.tensor("b", (panels, k, PANEL_WIDTH))
    odd = tir.tensor("odd", (tasks,), "int32")
    task, j, begin, end = tir.scalars("task", "j", "k0", "k1")
    highest = tir.IntVariable(side)
    highest.set(tir.splat_bits(0, side))
    parts = tir.serial(0, (end - begin + NEAR_K - 1) // NEAR_K)
    with parts as part, tir.serial(tir.int64(0), tir.int64(PANEL_WIDTH // side)) as v:
        listed = a.rows(tir.bind(j * PANEL_WIDTH + v * side), side)
        first = tir.hold(begin + part * NEAR_K)
        here = tir.hold(tir.smaller(tir.int64(NEAR_K), end - first))

        def square(at: tir.Expr, lanes: int) -> None:
            for i, vector in enumerate(a.square(listed, at, lanes)[:lanes]):
                magnitude = tir.as_bits(vector) & tir.splat_bits(0x7FFFFFFF, side)
                highest.set(tir.larger(highest.value, magnitude))
                tir.store(b, vector, j, at + i, tir.bind(v * side), width=side)

        with tir.serial(0, here // side) as q:
            square(tir.hold(first + q * side), side)
        if k % side:
            with tir.when(first + here == k):
                square(tir.int64(k // side * side), k % side)
    tir.assign(odd, highest.reach(INFINITE), task)
