"""The bias of scores on a multiprocessor, whose rows may be queries or keys."""

from dataclasses import dataclass

from pitc.codegen import ptx, tir
from pitc.codegen.engines.attend import Scored
from pitc.codegen.tir import Buffer, Expr, T


@dataclass(frozen=True, slots=True)
class Places:
    """Where rows, or keys of steps, lie in a bias.

    Args:
        positions: Of all rows, int32.
        first: The first row, int32.
        stride: Elements between two positions, int32.
    """

    positions: Buffer
    first: Expr
    stride: Expr


class Bias:
    """Adds the bias of a tile to scores.

    Args:
        engine: Has the scores.
        bias: As a vector.
        base: Its first element, of the sequence and head, int32.
        rows: Where rows of the tile lie, and how many there are, int32.
        keys: Where those of steps lie.
        scale: Of scores.
    """

    def __init__(
        self,
        engine: Scored,
        bias: Buffer,
        base: Expr,
        rows: tuple[Places, Expr],
        keys: Places,
        scale: Expr,
    ) -> None:
        self._engine, self._bias, self._keys, self._scale = engine, bias, keys, scale
        of_rows, left = rows
        base = ptx.held(base, "int32")
        self._last = ptx.held(ptx.uint32(bias.shape[0] - 1), "uint32")
        self._rows = ptx.registers(len(engine.rows), "int32")
        for r, row in enumerate(engine.rows):
            position = of_rows.positions[of_rows.first + T.min(row, left - 1)]
            tir.assign(self._rows, base + position * of_rows.stride, r)

    def add(self, before: Expr, after: Expr) -> None:
        """Make scores scale * score + bias.

        Args:
            before: Keys of the steps before, int32.
            after: Keys of the sequence from there on, int32, at least one.
        """
        engine, keys = self._engine, self._keys
        first = ptx.held(keys.first + before, "int32")
        for c, key in enumerate(engine.keys):
            position = keys.positions[first + T.min(engine.key + key, after - 1)]
            column = ptx.held(position * keys.stride, "int32")
            for r in range(len(engine.rows)):
                # In bounds whatever positions say.
                element = T.min(ptx.uint32(self._rows[r] + column), self._last)
                bias = self._bias[T.Cast("int64", element)]
                at = engine.score(r, c)
                tir.assign(engine.scores, tir.fma(engine.scores[at], self._scale, bias), at)
