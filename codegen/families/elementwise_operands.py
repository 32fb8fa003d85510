"""Operands of elementwise kernels on a multiprocessor: how a thread reads them, and keeps them.

What is read in several passes over a row (a sum of it, then what is computed of the sum) is kept in
shared memory by the thread that has read it, as far as there is room: nobody else looks at it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pitc.codegen import ptx, tir
from pitc.codegen.families.elementwise_steps import truth
from pitc.codegen.ptx import Window
from pitc.codegen.tir import Expr, T
from pitc.ir.formula import COLUMN, FLAGS, NUMBER, ROW, WHOLE, Formula

THREADS = 256
"""Of a block."""
RUN = 4
"""Neighbours that a thread takes at a time; 1 where rows begin anywhere."""
_KEPT = 8
"""Runs that a thread keeps, of all operands together."""
_SLOT_BYTES = RUN * 4 * THREADS
"""Of a run of each thread."""
_TYPES = {
    FLAGS: {RUN: "uint32", 1: "uint8"},
    ROW: {RUN: "float32x4", 1: "float32"},
    WHOLE: {RUN: "float32x4", 1: "float32"},
}
"""Of a run, by how many elements it has."""

Known = dict[str, list[Expr]]
"""What steps and operands are for each element of a run; one value: for all of the row."""


@dataclass(frozen=True, slots=True)
class Run:
    """Elements side by side.

    Args:
        width: How many.
        first: The first one among all of a matrix, int64, a multiple of the width.
        column: The same in its row.
        turn: How many runs of the row its thread had before, int32.
    """

    width: int
    first: Expr
    column: Expr
    turn: Expr


class Operands:
    """Declares operands; reads them, and keeps what is read twice for a row in shared memory.

    Args:
        formula: Whose operands.
        rows: How many rows there are.
        n: Elements of each.
    """

    def __init__(self, formula: Formula, rows: Expr, n: Expr) -> None:
        self.formula = formula
        shapes = {ROW: (n,), COLUMN: (rows,), NUMBER: (1,)}
        types = {FLAGS: "int8"}
        self._operands = [
            tir.device_tensor(f"x{i}", shapes.get(kind, (rows, n)), types.get(kind, "float32"))
            for i, kind in enumerate(formula.kinds)
        ]
        passes = [[formula.steps[k].operands[0] for k in level] for level in formula.reduced]
        passes.append([f"s{k}" for k in formula.results])
        read = Counter(x for names in passes for x in self._behind(names))
        self.kept = sorted(x for x, times in read.items() if times > 1)
        self.turns = _KEPT // max(len(self.kept), 1)  # that are kept of each
        self.bytes = len(self.kept) * self.turns * _SLOT_BYTES
        self.known = set[str]()
        """What earlier passes over the row have read."""

    def _behind(self, names: Sequence[str]) -> set[str]:
        """Operands as large as the result that steps and operands are computed from."""
        found = set[str]()
        for name in names:
            place = int(name[1:]) if name[0] in "xs" else 0
            if name[0] == "x" and self.formula.kinds[place] in (WHOLE, FLAGS):
                found.add(name)
            elif name[0] == "s" and not self.formula.columns[place]:
                found |= self._behind(self.formula.steps[place].operands)
        return found

    def of_all(self) -> Known:
        """Numbers, those of the formula among them.

        They are held: TVM would make 0 of a product by 0.
        """
        kinds, steps = self.formula.kinds, self.formula.steps
        numbers = {x for step in steps for x in step.operands if x[0] not in "xs"}
        found = {x: tir.float32(float.fromhex(x)) for x in sorted(numbers)}
        found |= {f"x{i}": self._operands[i][0] for i, kind in enumerate(kinds) if kind == NUMBER}
        return {name: [ptx.held(value, "float32")] for name, value in found.items()}

    def of_row(self, row: Expr, here: Expr) -> Known:
        """Numbers of a row, if it is there; int32."""
        known = Known()
        for i, kind in enumerate(self.formula.kinds):
            if kind == COLUMN:
                number = T.if_then_else(here != 0, self._operands[i][row], T.float32(0))
                known[f"x{i}"] = [ptx.held(number, "float32")]
        return known

    def read(self, name: str, run: Run, thread: Expr, window: Window | None) -> list[Expr]:
        """The elements of a run."""
        place = int(name[1:])
        kind = self.formula.kinds[place]
        dtype = _TYPES[kind][run.width]
        first = run.column if kind == ROW else run.first
        number = first >> T.int64(run.width.bit_length() - 1)
        memory = ptx.seen_as(self._operands[place], dtype)[number]
        found = ptx.registers(1, dtype)
        if name not in self.kept or window is None:
            tir.assign(found, memory, 0)
        else:
            own = run.turn < self.turns * RUN // run.width
            begin = self.kept.index(name) * self.turns * _SLOT_BYTES // tir.item_bytes(dtype)
            slots, slot = window.view(dtype), begin + run.turn * THREADS + thread
            if name in self.known:
                tir.either(
                    own,
                    lambda: tir.assign(found, slots[slot], 0),
                    lambda: tir.assign(found, memory, 0),
                )
            else:
                tir.assign(found, memory, 0)
                with tir.when(own):
                    tir.assign(slots, found[0], slot)
                self.known.add(name)
        if kind == FLAGS:
            bits = (found[0] & T.Cast(dtype, 0xFF << 8 * u) for u in range(run.width))
            return [tir.keep(truth(x != T.Cast(dtype, 0), 1)) for x in bits]
        if run.width == 1:
            return [found[0]]
        return [tir.keep(T.Shuffle([found[0]], [T.int32(u)])) for u in range(run.width)]
