"""SWrite of a contraction: from finished sums to the rows of C.

The contractions over listed micro-tiles have their last arguments in common. Their sums arrive in a
scratch array, where the epilogue reads them, so that its code exists once per kernel.

A C of `STREAM_BYTES` or more is stored past the caches: whoever reads it later finds little of it
there anyhow, and an ordinary store would read every line of C before it writes it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pitc.codegen import tir
from pitc.codegen.engines.pairs import step_count
from pitc.codegen.families.epilogue import ACTIVATIONS, Epilogue
from pitc.ir.panels import PANEL_WIDTH, panel_count

STREAM_BYTES = 8 << 20
FAR_BYTES = 256 << 10
"""A smaller C stays in a near cache."""
PANEL_VECTORS = PANEL_WIDTH // tir.LANES
_ITEM_BYTES = 4


class Stores:
    """The way of finished vectors into C; made after the last argument is declared.

    Args:
        epilogue: What finishes them.
        c: f32 `[M, n]`.
    """

    def __init__(self, epilogue: Epilogue, c: tir.Buffer) -> None:
        self.epilogue, self.c = epilogue, c
        self.bytes = c.shape[0] * (epilogue.n * _ITEM_BYTES)
        self.streamed = None
        if epilogue.n % tir.LANES == 0:
            self.streamed = tir.bind(tir.both(self.bytes >= STREAM_BYTES, tir.aligned(c)))

    def are_far(self) -> tir.Expr:
        """Whether a store waits for its line, which comes from a far cache or from memory."""
        large = self.bytes >= FAR_BYTES
        return large if self.streamed is None else tir.both(large, tir.negated(self.streamed))

    def ask(self, row_c: tir.Expr, column: tir.Expr, last: tir.Expr) -> None:
        """Ask for the lines of one row of a panel.

        Args:
            row_c: Row of C.
            column: Where the panel begins in C.
            last: The last column that is asked for.
        """
        starts = [v * tir.LANES for v in range(PANEL_VECTORS)]
        ends = [PANEL_WIDTH - 1] if self.epilogue.n % tir.LANES else []
        for at in [*starts, *ends]:
            tir.prefetch(self.c, row_c, tir.smaller(column + at, last), far=True)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Statements that may use `put`."""
        if self.streamed is None:
            yield
            return
        with tir.streaming():
            yield
            with tir.when(self.streamed):
                tir.end_stream()

    def put(
        self, x: tir.Expr, row: tir.Expr, row_c: tir.Expr, column: tir.Expr, lanes: int
    ) -> None:
        """Finish and store a vector.

        Args:
            x: Sums.
            row: Place of the row in the row list.
            row_c: Row of C.
            column: Column of both, a multiple of `LANES`.
            lanes: How many lanes lie in C.
        """
        x = tir.keep(self.epilogue.finish(x, row, column, lanes))
        if self.streamed is None:
            tir.store(self.c, x, row_c, column, lanes=lanes)
        else:
            tir.either(
                self.streamed,
                lambda: tir.stream(self.c, x, row_c, column),
                lambda: tir.store(self.c, x, row_c, column),
            )


class SWrite:
    """Declares b, bias, (residual), rows_c, c, `scalars`, j0 and j1; emits loop and stores.

    Args:
        params: `k`, `n`, `activation`, `residual`, `dtype`. Of bfloat16 values and b are words of
            two numbers, and what is said of k is said of words.
        scalars: Names of numbers.
    """

    def __init__(self, params: Mapping[str, Any], *scalars: str) -> None:
        k, self.n = params["k"], params["n"]
        self.steps = step_count(params)
        if k < 1 or self.n < 1 or params["activation"] not in ACTIVATIONS:
            raise ValueError(f"no contraction kernel for {dict(params)}")
        panels = panel_count(self.n)
        self.rows, rows_of_c = tir.size(), tir.size()
        self.b = tir.tensor("b", (panels, self.steps, PANEL_WIDTH))
        bias = tir.tensor("bias", (panels * PANEL_WIDTH,))
        residual = tir.tensor("residual", (self.rows, self.n)) if params["residual"] else None
        self.rows_c = tir.tensor("rows_c", (self.rows,), "int32")
        c = tir.tensor("c", (rows_of_c, self.n))
        *self.scalars, self.j0, self.j1 = tir.scalars(*scalars, "j0", "j1")
        self.stores = Stores(Epilogue(params["activation"], self.n, bias, residual), c)

    @contextmanager
    def panels(self, step: int = 1) -> Iterator[tir.Expr]:
        """Open the loop over every `step`-th panel of the call, which is the context value."""
        groups = (self.j1 - self.j0 + step - 1) // step
        with self.stores.used(), tir.serial(tir.int64(0), groups) as g:
            yield tir.bind(self.j0 + g * step)

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
                x = tir.load(sums, at + r * PANEL_WIDTH + start)
                self.stores.put(x, row, row_c, column, lanes)

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
