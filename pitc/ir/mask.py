"""A mask of the padding contract (`passes/masks.py`): a value that says which tokens are real."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pitc.ir.index import Poly
from pitc.ir.region import Region, Test


@dataclass(frozen=True, slots=True)
class PaddingMask:
    """A mask of the contract.

    Args:
        text: As the user writes it.
        name: The value that is looked at, `[batch, sequence]`.
        live: A token is real where the value is not 0; else where it is 0.
        number: The token number that marks padding; None for a mask, which holds 0 and 1 only.
        source: The input that holds all of it; empty where the model computes it.
    """

    text: str
    name: str
    live: bool = True
    number: int | None = None
    source: str = ""

    def read(self, values: np.ndarray) -> np.ndarray:
        """Which tokens are real, bool, by the values of the source, else by those of the mask."""
        if self.number is not None and self.source:
            return np.asarray(values != self.number)
        return np.asarray((values != 0) == self.live)

    def written(self, real: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Values of the source by which so many tokens are real.

        Args:
            real: Which tokens are, bool `[batch, sequence]`.
            drawn: Other values of the input, kept where it holds token numbers.
        """
        if self.number is None:
            return np.asarray((real == self.live).astype(drawn.dtype))
        other = drawn.dtype.type(1 if self.number != 1 else 2)
        kept = np.where(drawn == self.number, other, drawn)
        return np.asarray(np.where(real, kept, drawn.dtype.type(self.number)))

    def padded(self, place: tuple[Poly, ...]) -> Region:
        """Where tokens do not exist, of a value whose tokens lie at a place of the mask."""
        return Region((Test(self.name, place, "nz", not self.live),))


def of_inputs(padding: str | Sequence[PaddingMask] | None) -> tuple[PaddingMask, ...]:
    """Masks as they are, or the one input that is 0 at padding."""
    if isinstance(padding, str):
        return (PaddingMask(padding, padding, source=padding),)
    return tuple(padding or ())
