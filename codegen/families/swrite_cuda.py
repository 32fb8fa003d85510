"""SWrite of a contraction on a multiprocessor: from sums in registers to the rows of C.

Contractions have their last arguments in common: bias, (residual), rows_c, c, (bits), gate, number,
blocks. A kernel runs if `gate[0]` is its `number`, on the first `gate[1]` rows of its list.
"""

from collections.abc import Mapping
from typing import Any

from pitc.codegen import ptx, tir
from pitc.codegen.engines.multiprocessor import Engine, Run
from pitc.codegen.families.epilogue import ACTIVATIONS
from pitc.codegen.tir import Expr, T
from pitc.ir.panels import PANEL_WIDTH

_WORD = 32


class SWrite:
    """Declares the last arguments; stores what an engine has summed up.

    Args:
        params: `dtype`, `activation`, `residual`; `bits` and `loose`, 0 if not there.
        rows: Length of the list of rows.
        n: Columns of C, a multiple of 8 unless `loose`.
    """

    def __init__(self, params: Mapping[str, Any], rows: Expr, n: Expr) -> None:
        self.n = n
        self._dtype, self._activation = params["dtype"], params["activation"]
        self._rows, self._loose = rows, bool(params.get("loose"))
        if self._activation not in ACTIVATIONS:
            raise ValueError(f"no contraction kernel for {dict(params)}")
        self._bias = tir.device_tensor("bias", (tir.size("padded"),), "float32")
        self._residual = None
        if params["residual"]:
            self._residual = tir.device_tensor("residual", (rows, n), self._dtype)
        self._rows_c = tir.device_tensor("rows_c", (rows,), "int32")
        self._c = tir.device_tensor("c", (tir.size("stored"), n), self._dtype)
        self._bits = None
        if params.get("bits"):
            self._bits = tir.device_tensor("bits", (rows, tir.size("words")), "uint32")
        self._gate = tir.device_tensor("gate", (2,), "int32")
        self._number, self.blocks = T.arg("number", T.int32()), T.arg("blocks", T.int32())

    def count(self) -> Expr:
        """Rows that are computed, int32: none where another kernel was chosen."""
        listed = T.min(self._gate[1], ptx.int32(self._rows))
        return ptx.held(T.Select(self._gate[0] == self._number, listed, T.int32(0)), "int32")

    def write(self, engine: Engine, first: Expr, count: Expr, j: Expr) -> None:
        """Finish and store a dense tile.

        Args:
            engine: Has its sums.
            first: Its first row, a place in the list.
            count: Rows of the list.
            j: Its first panel.
        """

        def row(at: Expr, runs: list[Run]) -> None:
            i = ptx.held(first + at, "int32")
            here = ptx.held(T.Cast("int32", i < count), "int32")
            words = ptx.registers(engine.words, "uint32") if self._bits is not None else None
            for w in range(engine.words if words is not None else 0):
                tir.assign(words, ptx.uint32(0), w)
            with tir.when(here != 0):
                row_c = ptx.held(T.Cast("int64", self._rows_c[i]), "int64")
                for run in runs:
                    column = ptx.held(j * PANEL_WIDTH + run.column, "int32")
                    with tir.when(column < ptx.int32(self.n)):
                        live = self._store(i, row_c, column, run)
                        if words is not None:
                            found = words[run.word] | live << ptx.uint32(run.bit)
                            tir.assign(words, found, run.word)
            if words is not None:
                self._note(engine, i, here, j, words)

        engine.rows(row)

    def _store(self, i: Expr, row_c: Expr, column: Expr, run: Run) -> Expr:
        """Store a run of columns of a row; the bits that say which are not zero."""
        count = len(run.sums)
        there = ptx.held(ptx.int32(self.n) - column, "int32") if self._loose else None
        bias = ptx.load_run(self._bias, T.Cast("int64", column), count)  # as long as all panels
        sums = [tir.keep(x + b) for x, b in zip(run.sums, bias, strict=True)]
        y = [ACTIVATIONS[self._activation](x) for x in sums]
        if self._residual is not None:
            added = ptx.load_run(self._residual, self._element(i, column), count, there)
            y = [tir.keep(x + T.Cast("float32", r)) for x, r in zip(y, added, strict=True)]
        stored = [ptx.held(T.Cast(self._dtype, x), self._dtype) for x in y]
        ptx.store_run(self._c, stored, self._element(row_c, column), there)
        bits = ptx.uint32(0)
        for u, x in enumerate(stored):
            live = T.Cast("float32", x) != T.float32(0)
            if there is not None:
                live = tir.both(there > u, live)
            bits = bits | T.Cast("uint32", live) << ptx.uint32(u)
        return bits

    def _element(self, row: Expr, column: Expr) -> Expr:
        """Its number in a matrix of `n` columns."""
        return T.Cast("int64", row) * self.n + T.Cast("int64", column)

    def _note(self, engine: Engine, i: Expr, here: Expr, j: Expr, words: tir.Buffer) -> None:
        """Write which elements of a row are not zero; lanes that share a row put bits together."""
        bits = self._bits
        assert bits is not None
        for w in range(engine.words):
            word = engine.joined(words[w])
            at = j * (PANEL_WIDTH // _WORD) + engine.column // _WORD + w
            inside = tir.both(here != 0, at < ptx.int32(bits.shape[1]))
            with tir.when(tir.both(engine.leads, inside)):
                tir.assign(bits, word, i, at)
