"""A refusal: why a rule did not apply, as a value."""

from dataclasses import dataclass
from enum import Enum


class Code(Enum):
    """Every reason to leave a node as it was: (stable code, what would help)."""

    NO_RULE = ("PIT001", "the operator has no tensor expression; its operands count as fully read")
    NO_FACT = ("PIT002", "nothing proves that a part of this value is unread or zero")
    NON_FINITE_WEIGHT = ("PIT003", "the weight holds Inf or NaN, so a skipped product is not 0")
    NO_LOWERING = ("PIT010", "the operator has no packed form yet")
    AXIS_NOT_PIT = (
        "PIT011",
        "the operator reads the packed axis at a derived index, or uses its positions",
    )
    LAYOUT = (
        "PIT012",
        "the dimensions of the value split the packed axis, and no packed layout keeps that",
    )
    ORDERED = ("PIT013", "the operator depends on the order along the packed axis")
    JOINT = ("PIT014", "the fact depends on a value that packing would overwrite")
    NOT_TOTAL = ("PIT015", "a reader of the unpacked value is not defined at 0")
    NO_GAIN = ("PIT016", "moving the data costs more than the skipped work saves")
    SUBGRAPH = ("PIT017", "the value is used inside a control-flow body")
    DYNAMIC_DIM = ("PIT018", "an unpacked dimension has no static size")
    NO_KERNEL = ("PIT019", "the live part is known, but no kernel computes only that part")
    ROWS_ON_HOST = (
        "PIT020",
        "live rows are found on the host, which waits for the device once in each run",
    )
    LIVE_TEST = (
        "PIT021",
        "finding live rows costs more than it saves, or is not possible in advance; "
        "a mask with one value per token costs least",
    )
    NOT_NEEDED = (
        "PIT022",
        "no matrix product beside it runs packed, so packing it alone would save nothing",
    )

    @property
    def id(self) -> str:
        """The stable code, e.g. `PIT012`."""
        return self.value[0]

    @property
    def hint(self) -> str:
        """One sentence on the cause, and on what would help."""
        return self.value[1]


#: The reason of `NO_FACT`; the refusal's value says by which output of the graph.
ALL_READ = "every part of it is read"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node stays ordinary.

    Args:
        code: The kind of refusal.
        node: Name of the node (its first output's name when it has none).
        reason: The violated condition, with the values in it.
        value: The value that stopped it: the operand, or the one whose missing fact; empty where
            the node itself did.
        also: Of a node that could have had another form: why it has not that one either.
    """

    code: Code
    node: str
    reason: str
    value: str = ""
    also: "Refusal | None" = None

    def __str__(self) -> str:
        return f"{self.code.id} {self.node}: {self.reason} ({self.code.hint})"
