"""SWrite of a contraction: from finished sums to the rows of C, one panel at a time.

The contractions over listed micro-tiles have their last arguments in common. Their sums arrive in a
scratch array, where the epilogue reads them, so that its code exists once per kernel.

A C of `STREAM_BYTES` or more is stored past the caches: whoever reads it later finds little of it
there anyhow, and an ordinary store would read every line of C before it writes it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pitc.codegen import tir
from pitc.codegen.families.gather_gemm import ACTIVATIONS
from pitc.ir.panels import PANEL_WIDTH, panel_count

STREAM_BYTES = 8 << 20
_ITEM_BYTES = 4


class SWrite:
    """Declares b, bias, (residual), rows_c, c, `scalars`, j0 and j1; emits loop and stores."""

    def __init__(self, params: Mapping[str, Any], *scalars: str) -> None:
        k, self.n = params["k"], params["n"]
        if k < 1 or self.n < 1 or params["activation"] not in ACTIVATIONS:
            raise ValueError(f"no contraction kernel for {dict(params)}")
        self.activation = ACTIVATIONS[params["activation"]]
        panels = panel_count(self.n)
        self.rows, rows_of_c = tir.size(), tir.size()
        self.b = tir.tensor("b", (panels, k, PANEL_WIDTH))
        self.bias = tir.tensor("bias", (panels * PANEL_WIDTH,))
        self.residual = tir.tensor("residual", (self.rows, self.n)) if params["residual"] else None
        self.rows_c = tir.tensor("rows_c", (self.rows,), "int32")
        self.c = tir.tensor("c", (rows_of_c, self.n))
        *self.scalars, self.j0, self.j1 = tir.scalars(*scalars, "j0", "j1")
        self.streamed = None
        if self.n % tir.LANES == 0:
            large = rows_of_c * (self.n * _ITEM_BYTES) >= STREAM_BYTES
            self.streamed = tir.bind(tir.both(large, tir.aligned(self.c)))

    @contextmanager
    def panels(self, step: int = 1) -> Iterator[tir.Expr]:
        """Open the loop over every `step`-th panel of the call, which is the context value."""
        groups = (self.j1 - self.j0 + step - 1) // step
        if self.streamed is None:
            with tir.serial(tir.int64(0), groups) as g:
                yield tir.bind(self.j0 + g * step)
            return
        with tir.streaming():
            with tir.serial(tir.int64(0), groups) as g:
                yield tir.bind(self.j0 + g * step)
            with tir.when(self.streamed):
                tir.end_stream()

    def write(
        self, j: tir.Expr, first: tir.Expr, count: tir.Expr, sums: tir.Buffer, at: tir.Expr
    ) -> None:
        """Finish and store `count` listed rows of panel `j`.

        Args:
            j: Panel.
            first: The first of the rows, a place in the row list.
            count: Rows.
            sums: Scratch array, a row of `PANEL_WIDTH` floats after the other.
            at: Element where the sums of row `first` begin.
        """
        full, rest = divmod(self.n, PANEL_WIDTH)
        with tir.serial(0, count) as r:
            row = tir.bind(first + r)
            row_c = tir.index_of(self.rows_c, row)

            def put(start: tir.Expr, lanes: int) -> None:
                column = tir.bind(j * PANEL_WIDTH + start)
                x = tir.load(sums, at + r * PANEL_WIDTH + start) + tir.load(self.bias, column)
                x = self.activation(tir.keep(x))
                if self.residual is not None:
                    x = x + tir.load(self.residual, row, column, lanes=lanes)
                self._store(tir.keep(x), row_c, column, lanes)

            if rest == 0:
                tir.chunks(PANEL_WIDTH, put)
            elif full == 0:
                tir.chunks(rest, put)
            else:
                tir.either(
                    j < full,
                    lambda: tir.chunks(PANEL_WIDTH, put),
                    lambda: tir.chunks(rest, put),
                )

    def _store(self, x: tir.Expr, row: tir.Expr, column: tir.Expr, lanes: int) -> None:
        if self.streamed is None:
            tir.store(self.c, x, row, column, lanes=lanes)
        else:
            tir.either(
                self.streamed,
                lambda: tir.stream(self.c, x, row, column),
                lambda: tir.store(self.c, x, row, column),
            )
