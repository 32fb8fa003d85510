"""What every contraction does with finished sums, vector by vector.

y = activation(sums + bias) + residual          bits: which elements of y are not zero
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pitc.codegen import tir
from pitc.codegen.vector_math import gelu, gelu_quick, gelu_tanh, relu, silu
from pitc.ir.panels import PANEL_WIDTH

ACTIVATIONS: Mapping[str, Callable[[tir.Expr], tir.Expr]] = {
    "none": lambda x: x,
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_quick": gelu_quick,
    "silu": silu,
}


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The steps of one kernel; a step without its buffer is left out.

    Args:
        activation: A key of `ACTIVATIONS`.
        n: Columns of y.
        bias: f32, as long as all panels.
        residual: f32 `[listed rows, n]`.
        bits: int16 `[listed rows, PANEL_WIDTH / LANES * panels]`.
    """

    activation: str
    n: int
    bias: tir.Buffer | None = None
    residual: tir.Buffer | None = None
    bits: tir.Buffer | None = None

    def finish(self, sums: tir.Expr, row: tir.Expr, column: tir.Expr, lanes: int) -> tir.Expr:
        """The elements of y that a vector of sums becomes, to be kept.

        Args:
            sums: The vector.
            row: Place of its row in the row list.
            column: Its first column, a multiple of `LANES`.
            lanes: How many lanes lie in y.
        """
        if self.bias is not None:
            sums = sums + tir.load(self.bias, column)
        x = ACTIVATIONS[self.activation](tir.keep(sums))
        return x if self.residual is None else x + tir.load(self.residual, row, column, lanes=lanes)

    def note(self, y: tir.Expr, row: tir.Expr, column: tir.Expr, lanes: int) -> None:
        """Write the bits of a vector of y; the one that ends y also clears the rest of a word."""
        if self.bits is None:
            return
        piece = column // tir.LANES
        tir.assign(self.bits, tir.nonzero_mask(y, lanes), row, piece)
        ends = -(-self.n // tir.LANES)
        rest = -ends % (PANEL_WIDTH // tir.LANES)
        if rest:
            with tir.when(piece == ends - 1):
                for i in range(rest):
                    tir.assign(self.bits, tir.no_bits(), row, tir.int64(ends + i))
