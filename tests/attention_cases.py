"""Packed sequences for attention kernels on the emulated device, and what they should give."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.codegen import reference
from pitc.ir.seen import NO_PAIRS, Step, steps_of
from tests.codegen_kernels import Array
from tests.cuda_emulator import Emulated

BFLOAT16 = ir.DataType.BFLOAT16.numpy()
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": BFLOAT16, "float32": np.dtype(np.float32)}
CANARY = 7
NUMBER = 5
"""Of the kernel that the gate lets run."""


def words(x: Array) -> Array:
    """An array as kernels take it: numbers of bfloat16 as uint16."""
    return x.view(np.uint16) if x.dtype == BFLOAT16 else x


@dataclass
class Sees:
    """Which queries see which keys: a formula (`pitc.ir.seen`), and what its tests look at.

    Args:
        text: The formula.
        positions: int64 `[tests, 3]`.
        tables: Of queries and of keys, int64 `[tests, sequences, extent]` each.
        keys: int8 `[tests, sequences, extent]`.
        queries: The same of queries.
        flags: int8 `[tests, sequences, extent of queries, extent of keys]`.
    """

    text: str
    positions: Array | None = None
    tables: tuple[Array, Array] | None = None
    keys: Array | None = None
    queries: Array | None = None
    flags: Array | None = None

    def arguments(self) -> list[Array]:
        """As a kernel takes them: sequences and tests are rows."""
        found = [] if self.positions is None else [self.positions]
        of_tests = *(self.tables or ()), self.keys, self.queries, self.flags
        return found + [x.reshape(-1, *x.shape[2:]) for x in of_tests if x is not None]

    def pairs(self, s: int, q: Array, k: Array) -> Array:
        """Which queries of a sequence see which keys, at some positions."""
        stack: list[Array] = []
        for step in steps_of(self.text):
            if step.op == "n":
                stack.append(~stack.pop())
            elif step.op in ("a", "o"):
                y, x = stack.pop(), stack.pop()
                stack.append(x & y if step.op == "a" else x | y)
            else:
                found = self._test(step, s, q, k)
                stack.append(np.broadcast_to(found, (len(q), len(k))))
        return stack[0]

    def _test(self, step: Step, s: int, q: Array, k: Array) -> Array:
        n, column = step.number, q[:, None].astype(np.int64)
        if step.op == "p":
            assert self.positions is not None
            x, y, z = self.positions[n]
            return np.asarray(x * column + y * k + z >= 0)
        if step.op == "k":
            assert self.keys is not None
            return self.keys[n, s][k] == 0
        if step.op == "q":
            assert self.queries is not None
            return self.queries[n, s][column] == 0
        if step.op == "f":
            assert self.flags is not None
            return self.flags[n, s][column, k] == 0
        assert self.tables is not None
        compare = {"e": np.equal, "l": np.less, "m": np.less_equal}[step.op]
        of_q, of_k = (x[n, s] for x in self.tables)
        return np.asarray(compare(of_q[column], of_k[k]))


@dataclass
class Case:
    """Queries and keys of some sequences, with unused rows behind them, and other heads beside.

    Args:
        lengths: Queries and keys of each sequence.
        d: Columns of q and k.
        dv: Columns of v.
        dtype: Of the elements.
        heads: How many.
        seed: Of the numbers.
    """

    lengths: list[tuple[int, int]]
    d: int
    dv: int
    dtype: str
    heads: int = 2
    seed: int = 0
    nan_to_zero: bool = False
    no_keys_to_zero: bool = False
    scale: float = field(init=False)
    bias: Array | None = None
    """`[sequences or 1, heads or 1, queries or 1, keys or 1]`, by positions."""
    sees: Sees | None = None
    no_pairs: str = "nan"

    def __post_init__(self) -> None:
        queries, keys = (np.array(x, int) for x in zip(*self.lengths, strict=True))
        self.rng = np.random.default_rng([self.seed, self.d, self.dv, len(self.lengths)])
        self.q_offsets = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
        self.k_offsets = np.concatenate([[0], np.cumsum(keys)]).astype(np.int32)
        self.first = (1, 2, 0)  # heads of q, k and v
        tq, tk = self.q_offsets[-1] + 3, self.k_offsets[-1] + 2
        self.q = self.normal(tq, self.heads + 1, self.d)
        self.k = self.normal(tk, self.heads + 2, self.d)
        self.v = self.normal(tk, self.heads + 1, self.dv)
        self.scale = float(np.float32(self.d**-0.5))
        self.positions = self._positions(queries, tq), self._positions(keys, tk)

    def normal(self, *shape: int) -> Array:
        """Random numbers of the type."""
        return self.rng.standard_normal(shape).astype(DTYPES[self.dtype])

    def _positions(self, lengths: Array, rows: int) -> Array:
        """Ascending ones in each sequence, with gaps between them."""
        room = self.room(lengths)
        found = [np.sort(self.rng.permutation(room)[:count]) for count in lengths]
        return np.concatenate([*found, np.zeros(rows - sum(lengths), int)]).astype(np.int32)

    @staticmethod
    def room(lengths: Array) -> int:
        """How many positions there are."""
        return int(max(lengths)) + 3

    def bias_shape(self, *broadcast: int) -> tuple[int, ...]:
        """Of a bias; extents of the given axes are 1."""
        queries, keys = (np.array(x, int) for x in zip(*self.lengths, strict=True))
        full = (len(self.lengths), self.heads, self.room(queries), self.room(keys))
        return tuple(1 if axis in broadcast else n for axis, n in enumerate(full))

    def heads_of(self, head: int, sequence: int) -> tuple[slice, slice, Array | None]:
        """Rows of queries, rows of keys, and the bias `[queries, keys]`."""
        rows = slice(*self.q_offsets[sequence : sequence + 2])
        keys = slice(*self.k_offsets[sequence : sequence + 2])
        if self.bias is None:
            return rows, keys, None
        shape = self.bias.shape
        plane = self.bias[sequence % shape[0], head % shape[1]].astype(np.float64)
        at_q = self.positions[0][rows] if shape[2] > 1 else np.zeros(rows.stop - rows.start, int)
        at_k = self.positions[1][keys] if shape[3] > 1 else np.zeros(keys.stop - keys.start, int)
        return rows, keys, plane[np.ix_(at_q, at_k)]

    def expected(self, head: int, sequence: int) -> tuple[Array, Array]:
        """A head's rows of a sequence, and what errors of weights weigh: the same with |v|."""
        rows, keys, bias = self.heads_of(head, sequence)
        seen = self.seen(sequence)
        if not seen.all():
            bias = np.where(seen, 0.0 if bias is None else bias, -np.inf)
        q, k, v = (
            x[part, head + first].astype(np.float64)
            for x, part, first in zip(
                (self.q, self.k, self.v), (rows, keys, keys), self.first, strict=True
            )
        )
        to_zero = self.nan_to_zero or (self.no_keys_to_zero and not len(k))
        out, weight = (
            reference.attention(q, k, x, self.scale, bias, to_zero) for x in (v, np.abs(v))
        )
        blind = ~seen.any(axis=1)
        if self.no_pairs == "mean" and len(k) and blind.any():
            out[blind], weight[blind] = v.mean(axis=0), np.abs(v).mean(axis=0)
        if self.no_pairs == "zero" and len(k):
            out[blind], weight[blind] = 0, 0
        return out, weight

    def seen(self, sequence: int) -> Array:
        """Which of a sequence's queries see which of its keys."""
        rows, keys = (slice(*x[sequence : sequence + 2]) for x in (self.q_offsets, self.k_offsets))
        places = self.positions[0][rows], self.positions[1][keys]
        if self.sees is None:
            return np.ones(tuple(map(len, places)), bool)
        return self.sees.pairs(sequence, *places)

    def run(self, device: Emulated, symbol: str, *, blocks: int = 3, number: int = NUMBER) -> Array:
        """All of out; the kernel runs if it has the number of the gate."""
        out = np.full((len(self.q), self.heads, self.dv), CANARY, DTYPES[self.dtype])
        arguments: list[Any] = [words(x) for x in (self.q, self.k, self.v)]
        arguments += [self.q_offsets, self.k_offsets]
        strides: tuple[int, ...] = ()
        if self.bias is not None:
            strides = tuple(
                0 if extent == 1 else int(np.prod(self.bias.shape[axis + 1 :]))
                for axis, extent in enumerate(self.bias.shape)
            )
            arguments += [self.bias.reshape(-1).astype(np.float32)]
        if self.bias is not None or self.sees is not None:
            arguments += self.positions
        if self.sees is not None:
            arguments += self.sees.arguments()
            strides += (NO_PAIRS.index(self.no_pairs),)
        arguments += [words(out), self.scale, int(self.nan_to_zero), int(self.no_keys_to_zero)]
        gate = np.array([NUMBER, 0], np.int32)
        device.run(symbol, *arguments, *self.first, *strides, gate, number, blocks)
        return out

    def check(self, out: Array, precision: float, scores: float = 0) -> None:
        """Rows of sequences are right, others untouched.

        Args:
            out: What a kernel wrote.
            precision: Relative error of weights, and of what is stored.
            scores: Relative error of the products that scores are sums of.
        """
        for sequence in range(len(self.lengths)):
            for head in range(self.heads):
                want, weight = self.expected(head, sequence)
                rows, keys, _ = self.heads_of(head, sequence)
                q = np.abs(self.q[rows, head + self.first[0]].astype(np.float64))
                k = np.abs(self.k[keys, head + self.first[1]].astype(np.float64))
                got = out[rows, head].astype(np.float64)
                np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
                with np.errstate(invalid="ignore"):  # of rows with infinities
                    wrong = (q @ k.T).max(axis=1, initial=0)[:, None] * abs(self.scale) * scores
                    bound = (np.abs(want) + weight) * precision + 2 * weight * wrong
                    share = np.where(got == want, 0, np.abs(got - want) / bound)
                assert np.nanmax(share, initial=0) <= 1
        assert (out[self.q_offsets[-1] :] == CANARY).all()
