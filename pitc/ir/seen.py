"""Which keys a query sees, as the text that names a kernel: steps on a stack of truth values.

    p0p1a        test 0 of positions and test 1 of positions
    e0nk2o       not (equal in table 0), or test 2 of keys

A step is a letter, and of a test its number among those of its kind.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BOTH, EITHER, NEGATE = "a", "o", "n"
"""Steps that join the two on top, or turn the one on top."""
POSITIONS, KEYS, QUERIES, PAIRS = "p", "k", "q", "f"
"""Tests, but for those of tables: `TABLES`."""
TABLES: Mapping[str, int] = {"e": 0, "l": 1, "m": 2}
"""What a test of a table compares by: equal, less, less or equal."""
NO_PAIRS = ("nan", "mean", "zero")
"""What a row that sees none of some keys is: as its softmax; the mean of all values; 0."""
_STEP = re.compile(r"([aon])|([pelmkqf])(\d+)")


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Args:
        op: Its letter.
        number: Of the test among those of its kind; 0 where it is none.
    """

    op: str
    number: int = 0

    @property
    def text(self) -> str:
        """As in the name of a kernel."""
        return self.op if self.op in (BOTH, EITHER, NEGATE) else f"{self.op}{self.number}"


def steps_of(text: str) -> tuple[Step, ...]:
    """The steps that a text says.

    Raises:
        ValueError: It says none, or they do not leave one truth value.
    """
    found = [Step(m[1] or m[2], int(m[3] or 0)) for m in _STEP.finditer(text)]
    depth = 0
    for step in found:
        taken = {BOTH: 2, EITHER: 2, NEGATE: 1}.get(step.op, 0)
        if depth < taken:
            raise ValueError(f"{text!r} is no formula of pairs")
        depth += 1 - taken
    if depth != 1 or "".join(step.text for step in found) != text:
        raise ValueError(f"{text!r} is no formula of pairs")
    return tuple(found)


_SIDES = {KEYS: QUERIES, QUERIES: KEYS}
_OPPOSITE = {"l": "m", "m": "l"}


def turned(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same formula with keys for queries and queries for keys: q < k is not (k <= q)."""
    found: list[Step] = []
    for step in steps:
        if step.op in _OPPOSITE:
            found += [Step(_OPPOSITE[step.op], step.number), Step(NEGATE)]
        else:
            found.append(Step(_SIDES.get(step.op, step.op), step.number))
    return tuple(found)
