"""norm: y = x / sqrt(mean of x^2 + epsilon) * gamma + beta of rows, as float32 and as bfloat16.

PIT axis: the row. A row is read three times, from the first-level cache but for the first time:

    mean    = sum of x / n                    (centred; else 0)
    spread  = sum of (x - mean)^2 / n
    y       = (x - mean) * 1 / sqrt(spread + epsilon) * gamma + beta

Each sum is four chains of vectors, added at the end, whatever is beside the row. A row with NaN or
infinity is NaN, but where nothing is subtracted.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pitc.codegen import pairs, tir
from pitc.codegen.engines.pairs import instructions
from pitc.ir.target import CpuLevel

CHAINS = 4


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one kernel (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `n`, `centred`, `bias`.
        target: CPU level.
    """

    def emit() -> None:
        kernel = _Kernel(params)
        with instructions({**params, "rounds_result": 1}, target):
            kernel.emit()

    return tir.prim_func(symbol, emit)


class _Kernel:
    """Emits one kernel: its arguments, and the loop over rows."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.n, self.centred = params["n"], params["centred"]
        rows, wide, narrow = (tir.size() for _ in range(3))
        self.x = tir.tensor("x", (rows, self.n))
        self.gamma = tir.tensor("gamma", (self.n,))
        self.beta = tir.tensor("beta", (self.n,)) if params["bias"] else None
        self.y = tir.tensor("y", (wide, self.n))
        self.halves = tir.tensor("halves", (narrow, self.n), "uint16")
        self.epsilon = tir.float_scalar("epsilon")
        names = ("writes_floats", "writes_halves", "i0", "i1")
        self.writes_floats, self.writes_halves, self.i0, self.i1 = tir.scalars(*names)

    def emit(self) -> None:
        """Rows, one by one."""
        count = tir.splat(self.n)
        with tir.serial(self.i0, self.i1) as row:
            mean = tir.splat(0)
            if self.centred:
                mean = tir.keep(self.sum(row, lambda x: x) / count)
            spread = self.sum(row, lambda x: self.square(x, mean))
            spread = tir.keep(tir.keep(spread / count) + tir.splat(self.epsilon))
            factor = tir.keep(tir.splat(1) / tir.root(spread))
            floats, halves = self.writes_floats != 0, self.writes_halves != 0
            ways = {
                (True, True): tir.both(floats, halves),
                (True, False): tir.both(floats, tir.negated(halves)),
                (False, True): tir.both(halves, tir.negated(floats)),
            }
            for written, wanted in ways.items():
                with tir.when(wanted):
                    self.write(row, mean, factor, *written)

    def square(self, x: tir.Expr, mean: tir.Expr) -> tir.Expr:
        """What numbers add to the spread."""
        centred = tir.keep(x - mean) if self.centred else x
        return centred * centred

    def sum(self, row: tir.Expr, term: Callable[[tir.Expr], tir.Expr]) -> tir.Expr:
        """The sum of terms of a row, in every lane."""
        chains = [tir.Variable() for _ in range(CHAINS)]
        for chain in chains:
            chain.set(tir.splat(0))

        def add(chain: tir.Variable, start: tir.Expr, lanes: int) -> None:
            x = tir.keep(term(tir.keep(tir.load(self.x, row, start, lanes=lanes))))
            if lanes < tir.LANES:
                x = tir.select(tir.first_lanes(lanes), x, tir.splat(0))
            chain.set(chain.value + x)

        step = CHAINS * tir.LANES
        whole, rest = divmod(self.n, step)
        if whole:
            with tir.serial(tir.int64(0), tir.int64(whole)) as i:
                for number, chain in enumerate(chains):
                    add(chain, i * step + number * tir.LANES, tir.LANES)
        for number in range(0, rest, tir.LANES):
            start = tir.int64(whole * step + number)
            add(chains[number // tir.LANES], start, min(tir.LANES, rest - number))
        first, second, third, fourth = (chain.value for chain in chains)
        total = tir.keep((first + second) + (third + fourth))
        for distance in (1, 2, 4, 8):
            turned = [i ^ distance for i in range(tir.LANES)]
            total = tir.keep(total + tir.shuffle(total, total, turned))
        return total

    def write(
        self, row: tir.Expr, mean: tir.Expr, factor: tir.Expr, floats: bool, halves: bool
    ) -> None:
        """Write the norm of a row, as float32, as bfloat16, or as both."""

        def part(start: tir.Expr, lanes: int) -> None:
            x = tir.keep(tir.load(self.x, row, start, lanes=lanes))
            scaled = tir.keep((x - mean if self.centred else x) * factor)
            y = scaled * tir.load(self.gamma, start, lanes=lanes)
            if self.beta is not None:
                y = tir.keep(y) + tir.load(self.beta, start, lanes=lanes)
            y = tir.keep(y)
            if floats:
                tir.store(self.y, y, row, start, lanes=lanes)
            if halves:
                pairs.store_halves(self.halves, y, row, start, lanes=lanes)

        tir.chunks(self.n, part)
