"""A tile of attention's gradients on a multiprocessor: rows, steps, and scores of both.

A tile has rows of one side, and goes over steps of the other side:

    s = scale * q k^T + bias         d = g v^T            of the pairs of a tile and a step
    p = e^(s - pivot) * inverse      w = p * (d - mean)   dq = scale * w k   dk = scale * w^T q
                                                          dv = p^T g
    pivot     the highest score of a query; 0 where all are -inf
    inverse   1 / total; NaN where there is no softmax, or 0 where rows that see nothing give 0
    mean      the sum over keys of p * d

Which of these a tile makes, and how, is in `grad_sides_cuda`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines import ring
from pitc.codegen.engines.attend import STAGES, hide_behind
from pitc.codegen.engines.attend_grad import ThreadGradients
from pitc.codegen.families import pair_tests_cuda, sight_cuda, sread
from pitc.codegen.families.bias_cuda import Bias, Places
from pitc.codegen.families.pair_tests_cuda import CHUNK, NOWHERE, SOMEWHERE
from pitc.codegen.families.sequences_cuda import TileRows, part
from pitc.codegen.ptx import CHUNK_BYTES
from pitc.codegen.tir import Buffer, Expr, T


@dataclass(frozen=True, slots=True)
class Side:
    """Queries, or keys.

    Args:
        tensors: q and g, or k and v: `[rows, heads, columns]`.
        offsets: Where sequences begin.
        positions: Of rows, if somebody asks for them.
        stride: Of positions in the bias, int32.
    """

    tensors: tuple[Buffer, Buffer]
    offsets: Buffer
    positions: Buffer | None
    stride: Expr | None


@dataclass(frozen=True, slots=True)
class Operands:
    """The arguments of a kernel.

    Args:
        rows: The side of tiles.
        steps: The side of steps.
        bias: As a vector.
        tests: Of pairs.
        results: By the columns of q and k, and by those of v where rows are keys.
        numbers: Of each query and head.
        heads: How many, int64.
        scale: Of scores.
        floor: Rows of queries with lower scores alone have no gradient.
        at: Scalars, int32.
    """

    rows: Side
    steps: Side
    bias: Buffer | None
    tests: pair_tests_cuda.Tests | None
    results: tuple[Buffer, Buffer | None]
    numbers: Buffer
    heads: Expr
    scale: Expr
    floor: Expr | None
    at: Mapping[str, Expr]


@dataclass(frozen=True, slots=True)
class Pass:
    """A step where it is computed.

    Args:
        slot: The first byte of its slot, int32.
        before: Rows of steps before it, int32.
        after: Rows of the sequence from there on, int32.
    """

    slot: Expr
    before: Expr
    after: Expr


class GradTile(ABC):
    """Emits one tile.

    Args:
        operands: The arguments.
        engine: Computes.
        block: Who copies.
        at: The tile's rows.
    """

    def __init__(
        self, operands: Operands, engine: ThreadGradients, block: ring.Block, at: TileRows
    ) -> None:
        self.operands, self.engine, self.block, self.at = operands, engine, block, at
        steps = operands.steps
        self.first, self.count = part(steps.offsets, at.s, steps.tensors[0].shape[0])
        self.sight: sight_cuda.Sight | None = None

    @abstractmethod
    def emit(self) -> None:
        """All of it."""

    @property
    @abstractmethod
    def slot_bytes(self) -> int:
        """Of a slot."""

    def prepare(self) -> None:
        """Look at the tile's rows, and start copying them; all threads of the block come here."""
        operands, engine, at = self.operands, self.engine, self.at
        rows, steps = operands.rows, operands.steps
        if operands.tests is None:
            ptx.barrier()  # whoever used the tile before has done so
        else:
            assert rows.positions is not None and steps.positions is not None
            first_byte = engine.pieces.rows[1].end + STAGES * self.slot_bytes
            places = operands.tests.places(first_byte, engine.tile.m)
            keys = steps.positions, self.first, self.count
            self.sight = sight_cuda.Sight(operands.tests, engine, self.block, places, keys)
            self.sight.rows.prepare(at.s, rows.positions, at.first, at.left)
        for i, piece in enumerate(engine.pieces.rows):
            feed = self._feed(rows.tensors[i], piece, (engine.tile.m, at.first, at.left))
            feed.start()
            feed.copy(T.int32(0), T.int32(0))
        ptx.commit()
        self.here = ptx.held(T.Cast("int32", engine.first < at.left), "int32")
        self.steps = ptx.held(ptx.steps(self.count, engine.tile.n), "int32")
        self.bias = self._bias()

    def over_steps(self, compute: Callable[[Pass], None]) -> None:
        """Emit a loop over the steps that some row of the tile sees; those that one of the warp's
        rows sees are computed.
        """
        feeds = self.feeds()
        if self.sight is None:
            done = ptx.counter()

            def simple(slot: Expr) -> None:
                with tir.when(self.here != 0):  # of the whole warp
                    self._score(slot, done.value, None, compute)
                done.add(T.int32(1))

            ring.run(feeds, self.slot_bytes, STAGES, self.steps, simple)
            return
        sight = self.sight
        with tir.serial(T.int32(0), ptx.steps(self.steps, CHUNK)) as chunk:
            entry = ptx.counter()
            listed = sight.steps.fill(chunk * CHUNK, self.steps, T.bool(False))

            def seen(slot: Expr) -> None:
                where = ptx.held(sight.steps.seen(entry.value), "int32")
                with tir.when(tir.both(self.here != 0, where != NOWHERE)):
                    step = ptx.held(sight.steps.step_of(entry.value), "int32")
                    word = ptx.Register("uint32", ptx.uint32(sight_cuda.ALL))
                    with tir.when(where == SOMEWHERE):
                        word.set(sight.bits(step))
                    lanes = collective.ballot(word.value != T.uint32(0))
                    with tir.when(lanes != T.uint32(0)):
                        self._score(slot, step, (where == SOMEWHERE, word.value), compute)
                entry.add(T.int32(1))

            ring.run(feeds, self.slot_bytes, STAGES, listed, seen)

    def feeds(self) -> list[ring.Feed]:
        """The copies of steps."""
        engine, steps = self.engine, self.operands.steps
        rows = engine.tile.n, self.first, self.count
        return [
            self._feed(steps.tensors[i], piece, rows, self.sight)
            for i, piece in enumerate(engine.pieces.steps)
        ]

    def source(
        self, tensor: Buffer, rows: tuple[int, Expr, Expr], sight: sight_cuda.Sight | None
    ) -> ring.Source:
        """Rows of the head: of a step, the first one, and how many there are."""
        columns = int(tensor.shape[2])
        given = tir.flat(tensor), tensor.shape[1], columns, rows[0], self.at.head, *rows[1:]
        if sight is None:
            return sread.HeadRows(*given)
        return sread.SeenRows(*given, sight.steps.step_of)

    def _feed(
        self,
        tensor: Buffer,
        piece: ring.Piece,
        rows: tuple[int, Expr, Expr],
        sight: sight_cuda.Sight | None = None,
    ) -> ring.Feed:
        loose = is_loose(int(tensor.shape[2]))
        return ring.Feed(self.block, piece, self.source(tensor, rows, sight), loose=loose)

    def _bias(self) -> Bias | None:
        operands, at = self.operands, self.at
        if operands.bias is None:
            return None
        places = list[Places]()
        for side, first in ((operands.rows, at.first), (operands.steps, self.first)):
            assert side.positions is not None and side.stride is not None
            places.append(Places(side.positions, first, side.stride))
        base = at.s * operands.at["bias_sequence"] + at.head * operands.at["bias_head"]
        rows, keys = places
        return Bias(self.engine, operands.bias, base, (rows, at.left), keys, operands.scale)

    def _score(
        self,
        slot: Expr,
        step: Expr,
        seen: tuple[Expr, Expr] | None,
        compute: Callable[[Pass], None],
    ) -> None:
        """Make scores and weights' gradients of a step: scores of pairs that have none are -inf."""
        engine, n = self.engine, self.engine.tile.n
        before = ptx.held(step * n, "int32")
        after = ptx.held(self.count - before, "int32")
        engine.both_products(slot)
        if self.bias is not None:
            self.bias.add(before, after)
        else:
            scores = engine.scores
            for i in range(int(scores.shape[0])):
                tir.assign(scores, scores[i] * self.operands.scale, i)
        if seen is not None:
            assert self.sight is not None
            hides, word = seen
            with tir.when(hides):
                self.sight.hide(word, T.bool(False))
        with tir.when(after < n):
            hide_behind(engine, after)
        compute(Pass(slot, before, after))

    def store(self, to: Buffer, sums: Buffer, value: Callable[[Expr, int], Expr]) -> None:
        """Store sums of the tile's rows.

        Args:
            to: `[rows, heads, columns]`.
            sums: Registers.
            value: What is stored of a sum of the thread's row.
        """
        engine, at, width = self.engine, self.at, int(to.shape[2])
        for r, row in enumerate(engine.rows):
            start = T.Cast("int64", at.first + row) * self.operands.heads
            start = ptx.held((start + T.Cast("int64", at.head)) * width, "int64")
            for columns in engine.columns_of_sums(r, sums):
                values = [ptx.held(value(sums[x], r), "float32") for x in columns.places]
                there = ptx.held(width - columns.column, "int32")
                with tir.when(tir.both(row < at.left, there > 0)):
                    element = start + T.Cast("int64", columns.column)
                    ptx.store_run(to, values, element, there if is_loose(width) else None)


def is_loose(columns: int) -> bool:
    """Whether rows of so many columns start anywhere."""
    return columns * tir.item_bytes("float32") % CHUNK_BYTES != 0
