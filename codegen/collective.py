"""Warps: what 32 lanes that run together tell each other.

Every lane of a warp must reach each of these, so that they never stand under a condition on the
lane. Words are uint32, counts int32.
"""

from collections.abc import Sequence

from pitc.codegen import ptx, tir
from pitc.codegen.ptx import Register, Window
from pitc.codegen.tir import Expr, T

WARP = (1, 2, 4, 8, 16)
"""The bits in which numbers of lanes differ."""
_ALL = 0xFFFFFFFF


def _collective(dtype: str, name: str, *arguments: Expr) -> Expr:
    # A register: an expression might be computed twice, or under a condition.
    return ptx.held(T.call_extern(dtype, name, T.uint32(_ALL), *arguments), dtype)


def ballot(condition: Expr) -> Expr:
    """The uint32 whose bit i says whether the condition holds in lane i; all lanes get it."""
    return _collective("uint32", "__ballot_sync", condition)


def total(value: Expr) -> Expr:
    """The sum of an int32 over all lanes; all lanes get it."""
    return _collective("int32", "__reduce_add_sync", value)


def union(word: Expr) -> Expr:
    """The bits that a uint32 has in some lane; all lanes get it."""
    return _collective("uint32", "__reduce_or_sync", word)


def value_of(value: Expr, lane: Expr, dtype: str) -> Expr:
    """The value that a lane has; each lane may ask for another one."""
    return _collective(dtype, "__shfl_sync", value, lane)


def exchanged(value: Expr, lanes: int, dtype: str) -> Expr:
    """The value of the lane whose number differs in the bits of `lanes`."""
    return _collective(dtype, "__shfl_xor_sync", value, T.int32(lanes))


def float_sum(part: Expr, lanes: Sequence[int] = WARP) -> Expr:
    """The sum of a float32 over lanes; all lanes that share it get it, and ask at once.

    Args:
        part: What a lane has of it.
        lanes: In which bits their numbers differ.
    """
    for lane in lanes:
        part = tir.keep(part + exchanged(part, lane, "float32"))
    return part


def inclusive(value: Expr, lane: Expr) -> Expr:
    """The sum of an int32 over the lanes up to and with this one."""
    result = Register("int32", value)
    for distance in WARP:
        other = _collective("int32", "__shfl_up_sync", result.value, T.int32(distance))
        result.add(T.Select(lane >= distance, other, T.int32(0)))
    return result.value


def population(word: Expr) -> Expr:
    """How many bits of a uint32 are set, as int32."""
    return T.Cast("int32", T.popcount(word))


def bit(word: Expr, lane: Expr) -> Expr:
    """Whether bit `lane` of a uint32 is set."""
    return (word >> T.Cast("uint32", lane)) & T.uint32(1) != T.uint32(0)


def before(word: Expr, lane: Expr) -> Expr:
    """How many bits of a uint32 below bit `lane` are set, as int32."""
    below = (T.uint32(1) << T.Cast("uint32", lane)) - T.uint32(1)
    return population(word & below)


class BlockSums:
    """Sums over the warps of a thread block, which all of its threads ask for at once.

    Args:
        thread: Number of the thread, int32.

    Attributes:
        warp, lane: Numbers of its warp, and of the thread in it.
    """

    WARPS = 8

    def __init__(self, thread: Expr) -> None:
        self._sums = Window(self.WARPS * 4, addressed=False).view("int32")
        self.warp, self.lane = ptx.held(thread // 32, "int32"), ptx.held(thread % 32, "int32")

    def of(self, mine: Expr) -> tuple[Expr, Expr]:
        """A number of each thread: its sums over the warps in front, and over all; int32."""
        of_warp = total(mine)
        ptx.barrier()  # all have read the sums before
        with tir.when(self.lane == 0):
            tir.assign(self._sums, of_warp, self.warp)
        ptx.barrier()
        there = T.if_then_else(self.lane < self.WARPS, self._sums[self.lane], T.int32(0))
        sums = ptx.held(there, "int32")
        return total(T.Select(self.lane < self.warp, sums, T.int32(0))), total(sums)
