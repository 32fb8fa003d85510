"""Rows of groups on a multiprocessor: a counting sort, of whole dense tiles.

    group of each point   1 0 1 1          tiles of 2 rows
    counts                1 3
    rows of a and of c    1 1   0 2   3 3   group of each tile  0 1 1      gate  0 6

One launch counts the points of each group. In the next one a thread block sums up the tiles of the
groups in front, and lists the rows of its points, in their order; where a tile is not full, its
last row stands in for those behind it, which are computed and stored once more. A point may have
several rows. There is no atomic, and no order that matters; what is no number of a group is listed
nowhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pitc.codegen import collective, ptx, tir
from pitc.codegen.tir import Expr, T

_THREADS = 32 * collective.BlockSums.WARPS
_TOGETHER = 4
"""Thread blocks of a multiprocessor."""


def group_counts(symbol: str) -> Any:
    """The TIR function that counts the points of each group (arguments: `docs/plans.md`)."""
    return tir.prim_func(symbol, _group_counts)


def group_rows(symbol: str) -> Any:
    """The TIR function that lists the rows of each group (arguments: `docs/plans.md`)."""
    return tir.prim_func(symbol, _group_rows)


def _group_counts() -> None:
    points = _Points()
    counts = tir.device_tensor("counts", (points.groups,), "int32")
    with points.of_groups() as (group, thread):
        mine = ptx.counter()
        with points.turns(group) as (_, hit):
            mine.add(T.Cast("int32", hit))
        _, total = points.sums.of(mine.value)
        with tir.when(thread == 0):
            tir.assign(counts, total, group)


def _group_rows() -> None:
    points = _Points()
    counts = tir.device_tensor("counts", (points.groups,), "int32")
    room = tir.size("room")
    rows_a, rows_c = (tir.device_tensor(name, (room,), "int32") for name in ("rows_a", "rows_c"))
    of_tile = tir.device_tensor("of_tile", (tir.size("tiles"),), "int32")
    gate = tir.device_tensor("gate", (2,), "int32")
    each, sharing, unit = (T.arg(name, T.int32()) for name in ("each", "sharing", "unit"))

    def tiles_of(group: Expr) -> Expr:
        return T.truncdiv(counts[group] * each + unit - 1, unit)

    with points.of_groups() as (group, thread):
        front = ptx.counter()
        with tir.serial(T.int32(0), ptx.steps(group, _THREADS)) as turn:
            other = turn * _THREADS + thread
            with tir.when(other < group):
                front.add(tiles_of(other))
        _, tiles = points.sums.of(front.value)
        begin = ptx.held(tiles * unit, "int32")
        place = ptx.Register("int32", begin)
        with points.turns(group) as (point, hit):
            lanes = collective.ballot(hit)
            warps, total = points.sums.of(T.Cast("int32", hit))
            with tir.when(hit):
                before = warps + collective.before(lanes, points.sums.lane)
                first = ptx.held(place.value + before * each, "int32")
                with tir.serial(T.int32(0), each) as r:
                    tir.assign(rows_a, T.truncdiv(point, sharing) * each + r, first + r)
                    tir.assign(rows_c, point * each + r, first + r)
            place.add(total * each)
        mine = ptx.held(tiles_of(group), "int32")
        end = ptx.held(begin + mine * unit, "int32")
        ptx.barrier()  # the last row is written
        with tir.when(place.value + thread < end):
            for rows in (rows_a, rows_c):
                last = ptx.held(rows[place.value - 1], "int32")
                with tir.serial(T.int32(0), ptx.steps(end - place.value - thread, _THREADS)) as k:
                    tir.assign(rows, last, place.value + thread + k * _THREADS)
        with tir.serial(T.int32(0), ptx.steps(mine, _THREADS)) as k:
            tile = k * _THREADS + thread
            with tir.when(tile < mine):
                tir.assign(of_tile, group, tiles + tile)
        with tir.when(tir.both(group == ptx.int32(points.groups) - 1, thread == 0)):
            tir.assign(gate, T.int32(0), 0)
            tir.assign(gate, end, 1)


class _Points:
    """The way of a thread block through the points, for one group after the other."""

    def __init__(self) -> None:
        self.groups = tir.size("groups")
        self._group = tir.device_tensor("group", (tir.size("points"),), "int64")
        self.sums: collective.BlockSums

    @contextmanager
    def of_groups(self) -> Iterator[tuple[Expr, Expr]]:
        """Open the kernel; the context value is a group and the number of the thread."""
        blocks = T.arg("blocks", T.int32())
        with ptx.launch(blocks, _THREADS, _TOGETHER) as (number, thread):
            self.sums = collective.BlockSums(thread)
            self._thread = thread
            with ptx.turns(number, blocks, ptx.int32(self.groups)) as group:
                yield group, thread

    @contextmanager
    def turns(self, group: Expr) -> Iterator[tuple[Expr, Expr]]:
        """Open a loop over all points; the context value is this thread's, and whether it is of the
        group: below 0 they count from the end.
        """
        points = ptx.held(ptx.int32(self._group.shape[0]), "int32")
        with tir.serial(T.int32(0), ptx.steps(points, _THREADS)) as turn:
            point = ptx.held(turn * _THREADS + self._thread, "int32")
            there = T.min(point, points - 1)
            given = ptx.held(self._group[there], "int64")
            of = T.Cast("int64", group)
            same = T.Or(given == of, given + T.Cast("int64", self.groups) == of)
            yield point, ptx.held(T.Cast("int32", tir.both(point < points, same)), "int32") != 0
