"""Formulas: what elementwise operators compute together in one pass over some values, as data.

    m = ReduceMean(x * w)                  kinds whole, row; text
    y = x * w - m                          Mul:x0:x1,ReduceMean:s0,Sub:s0:s1;s2;s1

A step is a standard operator without attributes. Its operands are those of the formula (x0, ..),
steps before it (s0, ..) and numbers. Truth values are the numbers 0 and 1. A reduction is one over
the last axis, which stays as an axis of extent 1: its result, and what is computed of such results
and numbers alone, is a column, with one number for each row. The last step is the first result, and
whole; other results are whole or columns.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pitc.ir.digest import sha256

WHOLE, FLAGS, ROW, COLUMN, NUMBER = "whole", "flags", "row", "column", "number"
LEFT, RIGHT = "left", "right"
KINDS = (WHOLE, FLAGS, ROW, COLUMN, NUMBER, LEFT, RIGHT)
"""Operands: as large as the result, of float32 or of bool; one number for each place along the last
axis; one for each row; one for all; the first or the second half of rows that are twice as long."""
HALVES = (LEFT, RIGHT)
REDUCTIONS = ("ReduceMean", "ReduceSum")
MOST_OPERANDS, MOST_RESULTS, MOST_STEPS, LONGEST = 8, 4, 40, 900
"""Of a formula; the last one is of its text."""

_NUMBER = r"-?0x[0-9a-f.]+p[+-][0-9]+"
_STEP = re.compile(rf"[A-Za-z]+(:(x[0-7]|s[0-9]+|{_NUMBER}))+")


@dataclass(frozen=True, slots=True)
class Step:
    """One operator.

    Args:
        op: Its name.
        operands: `x0`, `s0` or a number in C hexadecimal form.
    """

    op: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Formula:
    """A formula.

    Args:
        kinds: Of its operands.
        steps: In order.
        results: Which steps are its results; the last step is the first of them.
    """

    kinds: tuple[str, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    @property
    def text(self) -> str:
        """Its steps and results, as `of` reads them."""
        steps = ",".join(":".join((step.op, *step.operands)) for step in self.steps)
        return ";".join([steps, *(f"s{k}" for k in self.results)])

    @classmethod
    def of(cls, kinds: Sequence[str], text: str) -> "Formula":
        """The formula that a text says.

        Raises:
            ValueError: It says none.
        """
        parts, *results = text.split(";")
        steps, known = list[Step](), {f"x{i}" for i in range(len(kinds))}
        for part in parts.split(","):
            if not _STEP.fullmatch(part):
                raise ValueError(f"{part!r} is no step of a formula")
            op, *operands = part.split(":")
            lacking = [x for x in operands if not re.fullmatch(_NUMBER, x) and x not in known]
            if lacking:
                raise ValueError(f"{part!r} reads {lacking[0]}, which is not there")
            known.add(f"s{len(steps)}")
            steps.append(Step(op, tuple(operands)))
        if results[:1] != [f"s{len(steps) - 1}"] or not known.issuperset(results):
            raise ValueError(f"{results} are no results of {len(steps)} steps")
        return cls(tuple(kinds), tuple(steps), tuple(int(x[1:]) for x in results))

    @property
    def symbol(self) -> str:
        """What kernels of it are called."""
        return f"elementwise_{sha256(f'{self.kinds} {self.text}')[:16]}"

    @cached_property
    def columns(self) -> tuple[bool, ...]:
        """For each step whether it is a column."""
        found = list[bool]()
        for step in self.steps:
            known = [found[int(x[1:])] for x in step.operands if x[0] == "s"]
            given = (self.kinds[int(x[1:])] for x in step.operands if x[0] == "x")
            plain = all(known) and {COLUMN, NUMBER}.issuperset(given)
            found.append(step.op in REDUCTIONS or plain)
        return tuple(found)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each step how many reductions are behind one another before it is known."""
        found = list[int]()
        for step in self.steps:
            known = max((found[int(x[1:])] for x in step.operands if x[0] == "s"), default=0)
            found.append(known + (step.op in REDUCTIONS))
        return tuple(found)

    @property
    def reduced(self) -> list[list[int]]:
        """Steps that reduce rows, by level from the first."""
        return [
            [k for k, s in enumerate(self.steps) if s.op in REDUCTIONS and self.levels[k] == level]
            for level in range(1, max(self.levels) + 1)
        ]

    def of_columns(self, level: int) -> list[int]:
        """Steps that are computed of columns alone, as soon as so many levels are known."""
        plain = ((k, s) for k, s in enumerate(self.steps) if s.op not in REDUCTIONS)
        return [k for k, _ in plain if self.columns[k] and self.levels[k] == level]

    @property
    def column_results(self) -> tuple[bool, ...]:
        """For each result whether it is a column."""
        return tuple(self.columns[k] for k in self.results)

    @property
    def by_rows(self) -> bool:
        """Results depend on which elements are of one row; else all are one long row."""
        rows = {ROW, COLUMN, *HALVES}
        return bool(rows & {*self.kinds}) or any(s.op in REDUCTIONS for s in self.steps)
