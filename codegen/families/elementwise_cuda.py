"""elementwise on a multiprocessor: what elementwise operators compute together, in one pass.

PIT axes: the row, and the column where nothing is reduced. Threads side by side have elements side
by side, four each, or one each where rows begin anywhere.

* Where nothing depends on rows, all elements are one long row, and all threads take it in turns.
* Else a row is of 1, 2, 4 or 8 warps: as few as have room in shared memory for what they need of it
  twice, so that it comes from memory once. What a longer row has behind that is read again for each
  level of reductions (`elementwise`). How many warps, and so the order of a sum, follows from the
  length of a row alone.

    y = x - mean(x), 2 warps:   sums of each thread, of 32 threads, of both warps; then x once more

Operators are computed one by one, each rounded, as if they were nodes: no compiler of kernels makes
a multiply-add of a product and a sum (`codegen/build/cuda_compiler.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pitc.codegen import collective, ptx, tir
from pitc.codegen.families.elementwise_operands import RUN, THREADS, Known, Operands, Run
from pitc.codegen.families.elementwise_steps import FUNCTIONS
from pitc.codegen.ptx import Window
from pitc.codegen.tir import Expr, T
from pitc.ir.formula import FLAGS, HALVES, WHOLE, Formula

_WARPS = THREADS // 32
_FEW = 4
"""Operands as large as the result: of more, registers are kept for two blocks alone."""


def elementwise(symbol: str, params: Mapping[str, Any]) -> Any:
    """The TIR function of one kernel (arguments: `docs/plans.md`).

    Args:
        symbol: Name of the kernel.
        params: `kinds`, with commas between them, and `formula`.
    """
    formula = Formula.of(params["kinds"].split(","), params["formula"])
    if {*HALVES} & {*formula.kinds}:
        raise ValueError("halves of rows have no kernel on GPUs")
    return tir.prim_func(symbol, lambda: _Kernel(formula).emit())


class _Kernel:
    """Emits one kernel: its arguments, and what a thread does."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.rows, self.n = tir.size("rows"), tir.size("n")
        self.operands = Operands(formula, self.rows, self.n)
        self.results = [
            tir.device_tensor(f"y{i}", (self.rows,) if column else (self.rows, self.n), "float32")
            for i, column in enumerate(formula.column_results)
        ]
        self.blocks = T.arg("blocks", T.int32())
        self.reduced = [k for level in formula.reduced for k in level]
        self.window: Window | None = None

    def emit(self) -> None:
        """Rows in turns, or the elements of all."""
        large = sum(kind in (WHOLE, FLAGS) for kind in self.formula.kinds)
        together = 4 if large <= _FEW else 2
        with ptx.launch(self.blocks, THREADS, together) as (number, self.thread):
            if self.reduced:
                size = self.operands.bytes + 2 * len(self.reduced) * _WARPS * 4
                self.window = Window(size, addressed=False)
            known = self.operands.of_all()
            if not self.formula.by_rows:
                self._all(number, known)
                return
            tir.either(
                self.n % RUN == 0,
                lambda: self._rows(number, known, RUN),
                lambda: self._rows(number, known, 1),
            )

    def _all(self, number: Expr, known: Known) -> None:
        end, none = self.rows * self.n, T.int32(0)
        self._of_columns(0, known)
        first = ptx.held(T.Cast("int64", number * THREADS + self.thread), "int64")
        self._write_columns(known, tir.int64(0), first == 0)
        at = ptx.Register("int64", first * RUN)
        with ptx.repeated(at.value + RUN <= end):
            place = ptx.held(at.value, "int64")
            self._write(known, Run(RUN, place, place, none))
            at.add(T.Cast("int64", self.blocks * (THREADS * RUN)))
        last = ptx.held(end // RUN * RUN + first, "int64")
        with tir.when(last < end):
            self._write(known, Run(1, last, last, none))

    def _rows(self, number: Expr, of_all: Known, width: int) -> None:
        rows, runs = ptx.int32(self.rows), ptx.held(ptx.int32(self.n // width), "int32")
        wanted = ptx.held(ptx.steps(runs, 32 * self.operands.turns * RUN // width), "int32")
        warps = T.int32(1)
        for fewer in (1, 2, 4):
            warps = T.Select(wanted > fewer, T.int32(2 * fewer), warps)
        warps = ptx.held(warps, "int32")
        threads, together = ptx.held(32 * warps, "int32"), T.truncdiv(T.int32(_WARPS), warps)
        together = ptx.held(together, "int32")
        lane = ptx.held(T.truncmod(self.thread, threads), "int32")
        turns = ptx.held(T.truncdiv(rows + together - 1, together), "int32")
        side = ptx.counter()
        with ptx.turns(number, self.blocks, turns) as turn:
            row = ptx.held(turn * together + T.truncdiv(self.thread, threads), "int32")
            here = ptx.held(T.Cast("int32", row < rows), "int32")
            count = T.Select(here != 0, runs, T.int32(0))
            of_lane = ptx.held(T.truncdiv(count - lane + threads - 1, threads), "int32")
            begin = ptx.held(T.Cast("int64", row) * self.n, "int64")

            def each(part: Callable[[Run], None]) -> None:
                with tir.serial(T.int32(0), of_lane) as i:
                    column = ptx.held(T.Cast("int64", lane + i * threads) * width, "int64")
                    part(Run(width, ptx.held(begin + column, "int64"), column, i))

            known = of_all | self.operands.of_row(row, here)
            self.operands.known.clear()
            for level, reduced in enumerate(self.formula.reduced):
                self._of_columns(level, known)
                sums = self._sums(reduced, known, width, each)
                known |= self._joined(sums, warps, side.value)
            self._of_columns(len(self.formula.reduced), known)
            side.set(len(self.reduced) * _WARPS - side.value)
            self._write_columns(known, row, tir.both(here != 0, lane == 0))
            each(lambda run: self._write(known, run))

    def _of_columns(self, level: int, known: Known) -> None:
        """Steps of a row alone, as soon as so many levels of reductions are known."""
        for k in self.formula.of_columns(level):
            step = self.formula.steps[k]
            parts = (known[x][0] for x in step.operands)
            known[f"s{k}"] = [tir.keep(FUNCTIONS[step.op](*parts))]

    def _sums(
        self,
        reduced: Sequence[int],
        known: Known,
        width: int,
        each: Callable[[Callable[[Run], None]], None],
    ) -> dict[int, Expr]:
        """What the elements of a warp add up to, in every lane, by step."""
        totals = {k: ptx.registers(width, "float32") for k in reduced}
        for total in totals.values():
            for u in range(width):
                tir.assign(total, tir.float32(0), u)

        def add(run: Run) -> None:
            of_run = dict(known)
            for k, total in totals.items():
                terms = self._values(self.formula.steps[k].operands[0], of_run, run)
                for u in range(width):
                    tir.assign(total, total[u] + terms[u % len(terms)], u)

        each(add)
        found = dict[int, Expr]()
        for k, total in totals.items():
            parts = [total[u] for u in range(width)]
            while len(parts) > 1:
                parts = [tir.keep(a + b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            found[k] = collective.float_sum(parts[0])
        return found

    def _joined(self, sums: Mapping[int, Expr], warps: Expr, side: Expr) -> Known:
        """Sums of rows, or means, from those of their warps, by step.

        Args:
            sums: Of the warp.
            warps: Of a row.
            side: Where the block keeps them: not where others may still read.
        """
        assert self.window is not None
        shared, known = self.window.view("float32"), Known()
        warp = ptx.held(self.thread // 32, "int32")
        mine = ptx.held(T.truncdiv(warp, warps) * warps, "int32")
        places = {k: self.operands.bytes // 4 + self.reduced.index(k) * _WARPS for k in sums}
        with tir.when(warps > 1):
            for k, total in sums.items():
                with tir.when(self.thread % 32 == 0):
                    tir.assign(shared, total, side + places[k] + warp)
            ptx.barrier()
        for k, total in sums.items():
            found = ptx.Register("float32", total)
            with tir.when(warps > 1):
                found.set(tir.float32(0))
                with tir.serial(T.int32(0), warps) as i:
                    found.add(shared[side + places[k] + mine + i])
            if self.formula.steps[k].op == "ReduceMean":
                found.set(found.value / tir.float_of(self.n))
            known[f"s{k}"] = [found.value]
        return known

    def _values(self, name: str, known: Known, run: Run) -> list[Expr]:
        """A step or operand for each element of a run, computed once."""
        if name not in known and name[0] == "s":
            step = self.formula.steps[int(name[1:])]
            parts = [self._values(x, known, run) for x in step.operands]
            each = ([x[u % len(x)] for x in parts] for u in range(run.width))
            known[name] = [tir.keep(FUNCTIONS[step.op](*operands)) for operands in each]
        elif name not in known:
            known[name] = self.operands.read(name, run, self.thread, self.window)
        return known[name]

    def _write(self, known: Known, run: Run) -> None:
        """Results of a run."""
        of_run = dict(known)
        for k, result in zip(self.formula.results, self.results, strict=True):
            if not self.formula.columns[k]:
                values = self._values(f"s{k}", of_run, run)
                if run.width > 1:
                    ptx.store_run(result, values, run.first)
                else:
                    tir.assign(tir.flat(result), values[0], run.first)

    def _write_columns(self, known: Known, row: Expr, leads: Expr) -> None:
        """Results of a row, by one of its threads."""
        for k, result in zip(self.formula.results, self.results, strict=True):
            if self.formula.columns[k]:
                with tir.when(leads):
                    tir.assign(result, known[f"s{k}"][0], row)
