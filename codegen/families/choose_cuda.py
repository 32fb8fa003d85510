"""The choice of a variant on the device, and where its lists begin: one thread block, one launch.

    1.  totals    sums of the counts of all segments of all groups (`detect_cuda`)
    2.  choice    the variant with the least sum of features times prices (`cuda_variants`)
    3.  places    exclusive sums of that variant's counts: its lists, one behind the other

What is summed up is a stretch of `counts`: `strips` or `squares` by group and segment, or `pieces`
by block of k and group. Each of 32 warps sums up a part; then each goes through its part again from
where those before it end. For example three lists of 3, 0 and 2 entries:

    counts 3 0 2        places 0 3 3 5        (the last one: how many entries there are)

Lane v of each warp has variant v, so there are at most 32. Nobody waits for the host: kernels that
come later find their number in `gate`, or leave.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pitc.codegen import collective, ptx, tir
from pitc.codegen.ptx import Window
from pitc.codegen.tir import Buffer, Expr, T
from pitc.ir.cuda_variants import (
    COLUMNS,
    FEATURES,
    GROUP,
    KINDS,
    SEGMENT,
    TOTALS,
    Arithmetic,
    features_of,
)

WARPS = 32
_THREADS = 32 * WARPS
_RUN = 4
"""Counts that a lane takes at a time."""
_WARP_RUN = 32 * _RUN


def choose(symbol: str, params: Mapping[str, Any]) -> Any:
    """The TIR function of the choice (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `width` of a block of k.
    """
    return tir.prim_func(symbol, lambda: _choose(params["width"]))


def _choose(width: int) -> None:
    variants, groups1 = tir.size("variants"), tir.size("boundaries")
    counts = tir.device_tensor("counts", (tir.size("counted"),), "int32")
    count = tir.device_tensor("count", (1,), "int32")
    table = tir.device_tensor("table", (variants, len(COLUMNS)), "int32")
    prices = tir.device_tensor("prices", (variants, len(FEATURES)), "float32")
    gate = tir.device_tensor("gate", (2,), "int32")
    places = tir.device_tensor("places", (tir.size("lists"),), "int32")
    starts = tir.device_tensor("starts", (groups1,), "int32")
    trace = tir.device_tensor("trace", (tir.size("traced"),), "float32")
    listed, k, n, forced = (T.arg(name, T.int32()) for name in ("listed", "k", "n", "forced"))

    with ptx.launch(T.int32(1), _THREADS, 1) as (_, thread):
        sums = Window(WARPS * len(TOTALS) * 4, addressed=False).view("int32")
        warp, lane = ptx.held(thread // 32, "int32"), ptx.held(thread % 32, "int32")
        groups = ptx.held(ptx.steps(listed, GROUP), "int32")
        segments = ptx.held(ptx.steps(k, SEGMENT), "int32")
        parts = ptx.held(groups * segments, "int32")
        k_blocks = ptx.held(ptx.steps(k, 64) * (64 // width), "int32")
        there = ptx.held(T.min(count[0], listed), "int32")
        line = _Line(table, prices, lane)
        totals = _totals(counts, parts, thread, warp, lane, sums)
        named = dict(zip(TOTALS, totals, strict=True))
        time = line.time(features_of(line.columns, named, (there, k, n), k_blocks, _VALUES))
        with tir.when(tir.both(warp == 0, line.here)):
            tir.assign(trace, time, len(TOTALS) + lane)
        number = T.Select(forced >= 0, forced, _cheapest(time, lane))
        number = ptx.held(T.Select(parts > 0, number, T.int32(0)), "int32")  # or nothing is listed
        with tir.when(thread == 0):
            tir.assign(gate, number, 0)
            tir.assign(gate, there, 1)
            for f, total in enumerate(totals):
                tir.assign(trace, T.Cast("float32", total), f)
        kind = line.kind_of(number)
        of_squares, of_blocks = (kind == KINDS.index(name) for name in ("square", "block"))
        field = T.Select(of_squares, TOTALS.index("squares"), TOTALS.index("strips"))
        first = T.Select(of_blocks, len(TOTALS), field) * parts
        size = T.Select(of_blocks, k_blocks * groups, parts)
        size = ptx.held(T.Select(kind == 0, T.int32(0), size), "int32")
        stretch = counts, ptx.held(first, "int32"), size

        def store(i: Expr, place: Expr) -> None:
            tir.assign(places, place, i)
            with tir.when(tir.both(kind != KINDS.index("block"), T.truncmod(i, segments) == 0)):
                tir.assign(starts, place, T.truncdiv(i, segments))

        ptx.barrier()  # all have read the sums
        _scan(stretch, warp, lane, sums, store)


def _totals(
    counts: Buffer, parts: Expr, thread: Expr, warp: Expr, lane: Expr, sums: Buffer
) -> list[Expr]:
    """The sums of all counts; every thread has them."""
    mine = [ptx.counter() for _ in TOTALS]
    with tir.serial(T.int32(0), ptx.steps(parts, _THREADS)) as turn:
        i = turn * _THREADS + thread
        with tir.when(i < parts):
            for f, total in enumerate(mine):
                total.add(counts[f * parts + i])
    for f, total in enumerate(mine):
        of_warp = collective.total(total.value)
        with tir.when(lane == 0):
            tir.assign(sums, of_warp, f * WARPS + warp)
    ptx.barrier()
    return [collective.total(sums[f * WARPS + lane]) for f in range(len(TOTALS))]


class _Line:
    """A variant for each lane of every warp, the highest numbers being those that are not there."""

    def __init__(self, table: Buffer, prices: Buffer, lane: Expr) -> None:
        self.here = lane < ptx.int32(table.shape[0])
        held = ptx.registers(len(COLUMNS), "int32")
        self._prices = ptx.registers(len(FEATURES), "float32")
        for c in range(len(COLUMNS)):
            tir.assign(held, T.if_then_else(self.here, table[lane, c], T.int32(1)), c)
        for f in range(len(FEATURES)):
            price = T.if_then_else(self.here, prices[lane, f], _infinite())
            tir.assign(self._prices, price, f)
        self.columns = [held[c] for c in range(len(COLUMNS))]

    def time(self, amounts: Sequence[Expr]) -> Expr:
        """What it is predicted to take."""
        time = T.float32(0)
        for f, amount in enumerate(amounts):
            time = time + amount * self._prices[f]
        return ptx.held(time, "float32")

    def kind_of(self, number: Expr) -> Expr:
        """The kind of a variant."""
        return collective.value_of(self.columns[0], number, "int32")


def _chosen(values: Sequence[Expr], number: Expr) -> Expr:
    found, *others = values
    for i, value in enumerate(others, 1):
        found = T.Select(number == i, value, found)
    return found


_VALUES = Arithmetic(
    real=lambda count: T.Cast("float32", count),
    steps=lambda count, by: T.truncdiv(count + by - 1, by),
    least=lambda a, b: T.min(a, b),
    most=lambda a, b: T.max(a, b),
    chosen=_chosen,
    held=lambda value: ptx.held(value, str(value.ty.dtype)),
)
"""Of values of a kernel: counts are int32, what is real is float32."""


def _infinite() -> Expr:
    return tir.from_bits(ptx.held(T.int32(0x7F800000), "int32"))


def _cheapest(time: Expr, lane: Expr) -> Expr:
    """The lane whose time is the least, of equals the lowest; what is no number is not offered."""
    most = _infinite()
    least = ptx.Register("float32", T.Select(time < most, time, most))
    best = ptx.Register("int32", lane)
    for lanes in (1, 2, 4, 8, 16):
        other = collective.exchanged(least.value, lanes, "float32")
        number = collective.exchanged(best.value, lanes, "int32")
        lower = tir.both(other == least.value, number < best.value)
        better = ptx.held(T.Cast("int32", T.Or(other < least.value, lower)), "int32")
        least.set(T.Select(better != 0, other, least.value))
        best.set(T.Select(better != 0, number, best.value))
    return best.value


def _scan(
    stretch: tuple[Buffer, Expr, Expr],
    warp: Expr,
    lane: Expr,
    sums: Buffer,
    store: Callable[[Expr, Expr], None],
) -> None:
    """Call `store` with the number of each list and where it begins, and with the end of all."""
    counts, first, size = stretch
    per_warp = ptx.held(ptx.steps(size, WARPS * _WARP_RUN) * _WARP_RUN, "int32")
    begin = ptx.held(T.min(warp * per_warp, size), "int32")
    end = ptx.held(T.min(begin + per_warp, size), "int32")
    mine = ptx.counter()
    with tir.serial(T.int32(0), ptx.steps(end - begin, 32)) as turn:
        i = begin + turn * 32 + lane
        with tir.when(i < end):
            mine.add(counts[first + i])
    of_warp = collective.total(mine.value)
    with tir.when(lane == 0):
        tir.assign(sums, of_warp, warp)
    ptx.barrier()
    before = ptx.Register("int32", collective.total(T.Select(lane < warp, sums[lane], T.int32(0))))
    with tir.serial(T.int32(0), ptx.steps(end - begin, _WARP_RUN)) as turn:
        at = ptx.held(begin + turn * _WARP_RUN + lane * _RUN, "int32")
        run = ptx.registers(_RUN, "int32")
        for u in range(_RUN):
            here = T.if_then_else(at + u < end, counts[first + at + u], T.int32(0))
            tir.assign(run, here, u)
        total = ptx.held(run[0] + run[1] + run[2] + run[3], "int32")
        up_to = collective.inclusive(total, lane)
        place = ptx.Register("int32", before.value + up_to - total)
        for u in range(_RUN):
            with tir.when(at + u < end):
                store(at + u, place.value)
            place.add(run[u])
        before.add(collective.total(total))
    with tir.when(tir.both(warp == WARPS - 1, tir.both(lane == 0, size > 0))):
        store(size, before.value)
