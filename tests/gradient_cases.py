"""Packed sequences for kernels of attention's gradients on the emulated device."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pitc.codegen import reference
from tests.attention_cases import CANARY, NUMBER, Case
from tests.codegen_kernels import Array
from tests.cuda_emulator import Emulated


@dataclass
class GradCase(Case):
    """The same, with the gradient `g` of the result, and heads from the first one on."""

    floor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first = (0, 0, 0)
        self.g = self.normal(len(self.q), self.heads + 2, self.dv)

    def arguments(self) -> tuple[list[Any], tuple[int, ...]]:
        """What both kernels take in front of results, and strides of the bias."""
        found: list[Any] = [self.q, self.k, self.v, self.g, self.q_offsets, self.k_offsets]
        strides: tuple[int, ...] = ()
        if self.bias is not None:
            strides = tuple(
                0 if extent == 1 else int(np.prod(self.bias.shape[axis + 1 :]))
                for axis, extent in enumerate(self.bias.shape)
            )
            found += [self.bias.reshape(-1).astype(np.float32)]
        if self.bias is not None or self.sees is not None:
            found += self.positions
        if self.sees is not None:
            found += self.sees.arguments()
        return found, strides

    def gradients(
        self,
        device: Emulated,
        symbol: str,
        *,
        blocks: int = 3,
        number: int = NUMBER,
        first: bool = False,
    ) -> list[Array]:
        """All of dq, dk and dv; the kernels run if they have the number of the gate.

        Args:
            device: Has them.
            symbol: Their names, but for what they give the gradients of.
            blocks: Of a launch.
            number: Of the kernels.
            first: Only the first one runs.
        """
        dq, dk = (np.full((len(x), self.heads, self.d), CANARY, "f") for x in (self.q, self.k))
        dv = np.full((len(self.k), self.heads, self.dv), CANARY, np.float32)
        numbers = np.full((len(self.q), self.heads, 4), np.nan, np.float32)
        given, strides = self.arguments()
        turns = np.array([NUMBER, 0], np.int32), number, blocks
        floor = -np.inf if self.floor is None else self.floor
        of_rows = self.scale, floor, int(self.no_pairs == "zero")
        device.run(f"{symbol}_queries", *given, dq, numbers, *of_rows, *strides, *turns)
        if first:
            return [dq]
        device.run(f"{symbol}_keys", *given, dk, dv, numbers, self.scale, *strides, *turns)
        return [dq, dk, dv]

    def wanted(self, head: int, sequence: int) -> tuple[Array, ...]:
        """A head's gradients of a sequence, float64."""
        rows, keys, bias = self.heads_of(head, sequence)
        seen = self.seen(sequence)
        if not seen.all():
            bias = np.where(seen, 0.0 if bias is None else bias, -np.inf)
        floor = -np.inf if self.floor is None else self.floor
        read = self.q[rows, head], self.k[keys, head], self.v[keys, head], self.g[rows, head]
        return reference.attention_grad(*read, self.scale, bias, floor, self.no_pairs)

    def check_gradients(self, found: list[Array], precision: float = 1e-5) -> None:
        """Rows of sequences are right, within the largest number of a head, others untouched."""
        for sequence in range(len(self.lengths)):
            for head in range(self.heads):
                rows, keys, _ = self.heads_of(head, sequence)
                wanted = self.wanted(head, sequence)
                for out, part, want in zip(found, (rows, keys, keys), wanted, strict=True):
                    got = out[part, head]
                    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
                    known = ~np.isnan(want)
                    largest = max(1.0, float(np.abs(want[known]).max(initial=0)))
                    error = np.abs(got[known] - want[known]).max(initial=0)
                    assert error <= precision * largest, (sequence, head, error, largest)
        for out, offsets in zip(found, (self.q_offsets, *[self.k_offsets] * 2), strict=True):
            assert (out[offsets[-1] :] == CANARY).all()
