"""Tiles of attention's gradients on a multiprocessor: of queries, or of keys.

What a pair has no part in is 0 by p = 0. Numbers of a query that is NaN reach all keys of its
sequence, also in steps that are left out: tiles of keys look for such queries first.
"""

from pitc.codegen import collective, ptx, tir
from pitc.codegen.engines import ring
from pitc.codegen.engines.attend import LOG2_E, Softmax
from pitc.codegen.engines.attend_grad import NUMBERS, Spread, ThreadGradients
from pitc.codegen.families.grad_tiles_cuda import GradTile, Operands, Pass
from pitc.codegen.families.sequences_cuda import TileRows
from pitc.codegen.tir import Expr, T

_PIVOT, _INVERSE, _MEAN, _KEPT = range(NUMBERS)


def _weight(score: Expr, pivot: Expr, inverse: Expr) -> Expr:
    return ptx.held(ptx.exp2((score - pivot) * T.float32(LOG2_E)) * inverse, "float32")


def _lost(inverse: Expr) -> Expr:
    """NaN for NaN, else 0."""
    return T.Select(inverse >= T.float32(0), T.float32(0), inverse)


class QueryTile(GradTile):
    """Queries: two turns over keys, of which the second has the numbers that the first one makes.

    Args:
        operands: The arguments.
        engine: Computes.
        block: Who copies.
        at: The tile's rows.
    """

    def __init__(
        self, operands: Operands, engine: ThreadGradients, block: ring.Block, at: TileRows
    ) -> None:
        super().__init__(operands, engine, block, at)
        self._softmax = Softmax(engine, "e")
        height = len(engine.rows)
        self._numbers = [ptx.registers(height, "float32") for _ in range(NUMBERS)]

    @property
    def slot_bytes(self) -> int:
        """Of a slot."""
        return self.engine.pieces.slot_bytes(numbers=False)

    def emit(self) -> None:
        """All of it."""
        engine = self.engine
        self.prepare()
        self._softmax.clear()
        engine.clear()
        with tir.serial(T.int32(0), T.int32(2)) as turn:
            self.over_steps(
                lambda step: tir.either(turn == 0, self._measure, lambda: self._add(step))
            )
            with tir.when(tir.both(turn == 0, self.here != 0)):
                self._finish()
        ptx.wait(0)  # rows of a tile that sees nothing are still on their way
        with tir.when(self.here != 0):
            self._store()

    def _measure(self) -> None:
        """Make weights of scores, and take them in."""
        engine = self.engine
        self._softmax.step()
        for r in range(len(engine.rows)):
            for c in range(len(engine.keys)):
                at = engine.score(r, c)
                mean = tir.fma(engine.scores[at], engine.others[at], engine.sums[r])
                tir.assign(engine.sums, mean, r)

    def _finish(self) -> None:
        """Find the numbers of each row, and store them."""
        operands, engine, at = self.operands, self.engine, self.at
        assert operands.floor is not None
        zero, one = T.float32(0), T.float32(1)
        to_zero = operands.at["zero"] != 0
        for r, row in enumerate(engine.rows):
            total = ptx.held(self._softmax.total(r), "float32")
            top = ptx.held(self._softmax.top(r), "float32")
            sums = ptx.held(collective.float_sum(engine.sums[r], engine.lanes), "float32")
            pivot = T.Select(top == ptx.lowest(), zero, top)
            none = T.Select(tir.both(to_zero, total == zero), zero, ptx.not_a_number())
            inverse = ptx.held(T.Select(total > zero, one / total, none), "float32")
            is_softmax = tir.both(total >= zero, top < operands.floor)
            found = pivot, inverse, sums * inverse, T.Select(is_softmax, zero, one)
            for number, value in zip(self._numbers, found, strict=True):
                tir.assign(number, value, r)
            with tir.when(tir.both(engine.leads, row < at.left)):
                place = T.Cast("int64", at.first + row) * operands.heads
                place = (place + T.Cast("int64", at.head)) * NUMBERS
                ptx.store_run(operands.numbers, [x[r] for x in self._numbers], place)

    def _add(self, step: Pass) -> None:
        """Add what keys of a step give."""
        engine, numbers = self.engine, self._numbers
        for r in range(len(engine.rows)):
            kept = ptx.held(T.Cast("int32", numbers[_KEPT][r] > T.float32(0)), "int32")
            for c in range(len(engine.keys)):
                at = engine.score(r, c)
                weight = _weight(engine.scores[at], numbers[_PIVOT][r], numbers[_INVERSE][r])
                weight = weight * (engine.others[at] - numbers[_MEAN][r])
                tir.assign(engine.scores, T.Select(kept != 0, weight, T.float32(0)), at)
        engine.add_scored(engine.scores, step.slot)

    def _store(self) -> None:
        """Store dq: that of a row without a softmax is NaN, but where there are no keys."""
        numbers, zero, fills = self._numbers, T.float32(0), list[Expr]()
        for r in range(len(self.engine.rows)):
            kept = tir.both(numbers[_KEPT][r] > zero, self.count > 0)
            fill = T.Select(kept, _lost(numbers[_INVERSE][r]), zero)
            fills.append(ptx.held(fill, "float32"))

        def value(total: Expr, r: int) -> Expr:
            return tir.fma(total, self.operands.scale, fills[r])

        self.store(self.operands.results[0], self.engine.of_scored, value)


class KeyTile(GradTile):
    """Keys: one turn over queries, with their numbers."""

    @property
    def slot_bytes(self) -> int:
        """Of a slot."""
        return self.engine.pieces.slot_bytes(numbers=True)

    def emit(self) -> None:
        """All of it."""
        operands, engine = self.operands, self.engine
        self.prepare()
        engine.clear()
        self.over_steps(self._add)
        ptx.wait(0)  # rows of a tile that sees nothing are still on their way
        with tir.when(self.here != 0):
            of_scored, of_weighed = self._lost()
            to_k, to_v = operands.results
            assert to_v is not None and engine.of_weighed is not None
            self.store(to_k, engine.of_scored, lambda x, _: tir.fma(x, operands.scale, of_scored))
            self.store(to_v, engine.of_weighed, lambda x, _: x + of_weighed)

    def feeds(self) -> list[ring.Feed]:
        """The copies of steps, with numbers of queries."""
        n, numbers = self.engine.tile.n, self.operands.numbers
        source = self.source(numbers, (n, self.first, self.count), self.sight)
        piece = self.engine.pieces.numbers
        return [*super().feeds(), ring.Feed(self.block, piece, Spread(source, n))]

    def _add(self, step: Pass) -> None:
        """Add what queries of a step give."""
        engine = self.engine
        for c in range(len(engine.keys)):
            numbers = engine.numbers(c, step.slot)
            kept = ptx.held(T.Cast("int32", numbers[_KEPT] > T.float32(0)), "int32")
            for r in range(len(engine.rows)):
                at = engine.score(r, c)
                weight = _weight(engine.scores[at], numbers[_PIVOT], numbers[_INVERSE])
                tir.assign(engine.scores, weight, at)
                weight = weight * (engine.others[at] - numbers[_MEAN])
                tir.assign(engine.others, T.Select(kept != 0, weight, T.float32(0)), at)
        engine.add_weighed(engine.scores, step.slot)
        engine.add_scored(engine.others, step.slot)

    def _lost(self) -> tuple[Expr, Expr]:
        """NaN if some query of the sequence has no softmax, and a gradient; else 0: for dk and dv.

        Without a formula each query is in some step, and its NaN is in the sums.
        """
        zero = T.float32(0)
        if self.sight is None:
            return zero, zero
        found = [ptx.Register("float32", zero) for _ in range(2)]
        heads, lane = self.operands.heads, self.block.thread % 32
        with tir.serial(T.int32(0), ptx.steps(self.count, 32)) as i:
            query = self.first + T.min(i * 32 + lane, self.count - 1)
            start = T.Cast("int64", query) * heads + T.Cast("int64", self.at.head)
            numbers = ptx.load_run(self.operands.numbers, start * NUMBERS, NUMBERS)
            lost = ptx.held(_lost(numbers[_INVERSE]), "float32")
            found[0].add(T.Select(numbers[_KEPT] > zero, lost, zero))
            found[1].add(lost)
        of_scored, of_weighed = (ptx.held(collective.float_sum(x.value), "float32") for x in found)
        return of_scored, of_weighed
