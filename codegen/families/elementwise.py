"""elementwise: what elementwise operators compute together, in one pass (`pitc.ir.formula`).

PIT axes: the row, and the column where nothing is reduced. A row is read once for the result, and
once before for each level of reductions: a sum of what is computed of another sum is of the next
one. What depends on the row alone is computed once for it.

    y = (t - mean(t) - z * mean(t * z)) * s        t = x * w, one level

    for each row:   sums of t and of t * z         in one chain of vectors each
                    y, with both means in every lane

Operators are computed one by one, each rounded, as if they were nodes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pitc.codegen import tir
from pitc.codegen.families.elementwise_steps import FUNCTIONS, truth
from pitc.ir.formula import COLUMN, FLAGS, HALVES, NUMBER, RIGHT, ROW, Formula, Step
from pitc.ir.target import CpuLevel

_FUNCTIONS = {**FUNCTIONS, "Mul": lambda a, b: tir.rounded(a * b)}


def prim_func(symbol: str, params: Mapping[str, Any], target: CpuLevel) -> Any:
    """The TIR function of one kernel (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `kinds`, with commas between them, and `formula`.
        target: CPU level.
    """
    del target
    formula = Formula.of(params["kinds"].split(","), params["formula"])
    return tir.prim_func(symbol, lambda: _Kernel(formula).emit())


class _Kernel:
    """Emits one kernel: its arguments, and the loop over rows."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        rows, self.n, both = tir.size(), tir.size(), tir.size()
        shapes: dict[str, tuple[tir.Expr, ...]] = {ROW: (self.n,), COLUMN: (rows,), NUMBER: (1,)}
        shapes |= dict.fromkeys(HALVES, (rows, both))
        self.operands = [
            tir.tensor(
                f"x{i}", shapes.get(kind, (rows, self.n)), "int8" if kind == FLAGS else "float32"
            )
            for i, kind in enumerate(formula.kinds)
        ]
        self.results = [
            tir.tensor(f"y{i}", (rows,) if column else (rows, self.n))
            for i, column in enumerate(formula.column_results)
        ]
        self.r0, self.r1, self.j0, self.j1 = tir.scalars("r0", "r1", "j0", "j1")

    def emit(self) -> None:
        """Row by row."""
        formula = self.formula
        with tir.rounding(), tir.serial(self.r0, self.r1) as row:
            of_row = dict[str, tir.Expr]()
            for level, reduced in enumerate([*formula.reduced, []]):
                for k in formula.of_columns(level):
                    of_row[f"s{k}"] = self._applied(formula.steps[k], of_row, row)
                if reduced:
                    sums = {f"s{k}": formula.steps[k] for k in reduced}
                    of_row |= self._reduced(sums, of_row, row)
            self._write_columns(of_row, row)
            self._each(lambda at, lanes: self._write(of_row, row, at, lanes))

    def _each(self, part: Callable[[tir.Expr, int | tir.Expr], None]) -> None:
        """Every vector of a row; of the last one only some lanes."""
        count = tir.bind(self.j1 - self.j0)
        whole, rest = count // tir.LANES, count % tir.LANES
        with tir.serial(tir.int64(0), whole) as i:
            part(tir.hold(self.j0 + i * tir.LANES), tir.LANES)
        with tir.when(rest > 0):
            part(tir.hold(self.j0 + whole * tir.LANES), rest)

    def _write(
        self, of_row: Mapping[str, tir.Expr], row: tir.Expr, at: tir.Expr, lanes: int | tir.Expr
    ) -> None:
        known, formula = dict(of_row), self.formula
        for k, result in zip(formula.results, self.results, strict=True):
            if not formula.columns[k]:
                vector = self._value(f"s{k}", known, row, at, lanes)
                tir.store(result, vector, row, at, lanes=lanes)

    def _write_columns(self, of_row: Mapping[str, tir.Expr], row: tir.Expr) -> None:
        formula = self.formula
        for k, result in zip(formula.results, self.results, strict=True):
            if formula.columns[k]:
                lanes = tir.workspace(tir.LANES)
                tir.store(lanes, of_row[f"s{k}"], tir.int64(0))
                tir.assign(result, lanes[tir.int64(0)], row)

    def _reduced(
        self, steps: Mapping[str, Step], of_row: Mapping[str, tir.Expr], row: tir.Expr
    ) -> dict[str, tir.Expr]:
        """Reductions of a row, each in every lane."""
        totals = {name: tir.Variable() for name in steps}
        for total in totals.values():
            total.set(tir.splat(0))

        def add(at: tir.Expr, lanes: int | tir.Expr) -> None:
            known = dict(of_row)
            for name, step in steps.items():
                term = self._value(step.operands[0], known, row, at, lanes)
                if not isinstance(lanes, int):
                    term = tir.select(tir.first_lanes(lanes), term, tir.splat(0))
                totals[name].set(totals[name].value + term)

        self._each(add)
        found = dict[str, tir.Expr]()
        for name, step in steps.items():
            total = totals[name].value
            for distance in (1, 2, 4, 8):
                turned = [i ^ distance for i in range(tir.LANES)]
                total = tir.keep(total + tir.shuffle(total, total, turned))
            if step.op == "ReduceMean":
                total = tir.keep(total / tir.splat(tir.float_of(self.n)))
            found[name] = total
        return found

    def _value(
        self,
        name: str,
        known: dict[str, tir.Expr],
        row: tir.Expr,
        at: tir.Expr,
        lanes: int | tir.Expr,
    ) -> tir.Expr:
        """A vector of a step or operand, computed once."""
        if name not in known:
            if name[0] == "s":
                step = self.formula.steps[int(name[1:])]
                parts = [self._value(x, known, row, at, lanes) for x in step.operands]
                known[name] = tir.keep(_FUNCTIONS[step.op](*parts))
            else:
                known[name] = tir.keep(self._operand(name, row, at, lanes))
        return known[name]

    def _applied(self, step: Step, of_row: dict[str, tir.Expr], row: tir.Expr) -> tir.Expr:
        """A step of numbers of a row, in every lane."""
        zero = tir.int64(0)
        parts = [self._value(x, of_row, row, zero, tir.LANES) for x in step.operands]
        return tir.keep(_FUNCTIONS[step.op](*parts))

    def _operand(self, name: str, row: tir.Expr, at: tir.Expr, lanes: int | tir.Expr) -> tir.Expr:
        """A vector of an operand, or a number in every lane."""
        if name[0] != "x":
            return tir.splat(float.fromhex(name))
        place = int(name[1:])
        operand, kind = self.operands[place], self.formula.kinds[place]
        if kind == FLAGS:
            return truth(tir.flags(operand, row, at, lanes=lanes), tir.LANES)
        if kind in (COLUMN, NUMBER):
            return tir.splat(operand[row if kind == COLUMN else tir.int64(0)])
        if kind == RIGHT:
            at = at + self.n
        return tir.load(operand, *([] if kind == ROW else [row]), at, lanes=lanes)
