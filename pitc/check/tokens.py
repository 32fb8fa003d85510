"""Which outputs hold tokens of a padding mask, by declared sizes, and which of these tokens live.

mask [b, s]        y [b, s, 5]              along 1
mask [b, p + s]    keys [b, h, p + s, d]    along 2
y [b, s, 5]              along 1: the last s of the mask
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Sizes = Sequence[Any]
"""A declared shape: sizes, or names of dynamic sizes, or None."""


@dataclass(frozen=True, slots=True)
class TokenAxis:
    """Where an output holds tokens.

    Args:
        axis: The dimension that they lie along.
        may_be_last: The mask covers a past, too, so there may be fewer than it has: its last ones.
    """

    axis: int
    may_be_last: bool = False


Tokens = tuple[np.ndarray, TokenAxis] | None
"""Where a mask is set, and where an output holds tokens; None where it holds none."""


def token_axes(mask: Sizes, outputs: Mapping[str, Sizes]) -> dict[str, TokenAxis]:
    """Where outputs hold tokens, those that hold any.

    Args:
        mask: The mask's declared shape.
        outputs: Those of the outputs, by name.
    """
    covers_past = len(mask) == 2 and len(_terms(mask[1])) > 1
    found = {name: token_axis(mask, sizes) for name, sizes in outputs.items()}
    return {n: TokenAxis(axis, covers_past) for n, axis in found.items() if axis is not None}


def token_axis(mask: Sizes, output: Sizes) -> int | None:
    """The dimension of an output that its tokens lie along; None where it holds none.

    Keys of a cache have the mask's size at another place, logits have that of what is appended:

        mask [b, p + s]     keys [b, h, p + s, d] -> 2     logits [b, s, n] -> 1

    Args:
        mask: The mask's declared shape.
        output: That of the output.
    """
    if len(mask) == 2 and output[:1] == mask[:1] and isinstance(mask[1], str):
        whole, sizes = _terms(mask[1]), [_terms(size) for size in output]
        for wanted in ([whole], [[name] for name in whole]):
            axes = [a for a in range(1, len(sizes)) if sizes[a] in wanted]
            if axes:
                return axes[0] if len(axes) == 1 else None
    return 1 if _token_shaped(mask, output) else None


def _terms(size: Any) -> list[str]:
    """What a declared size is the sum of, in order of their names; none of a number."""
    return sorted(part.strip() for part in size.split("+")) if isinstance(size, str) else []


def _token_shaped(mask: Sizes, output: Sizes) -> bool:
    """True when the leading dimensions of an output may be those of the mask: exporters give one
    size several names.
    """
    head = output[: len(mask)]
    if not mask or len(head) < len(mask):
        return False
    return all(
        m == o
        if isinstance(m, int) and isinstance(o, int)
        else isinstance(m, int) == isinstance(o, int)
        for m, o in zip(mask, head, strict=True)
    )


def by_tokens(
    a: np.ndarray, b: np.ndarray, tokens: Tokens
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Two values of one shape with their tokens in the second dimension, and which of these live;
    None for that where the sizes show that they are no tokens, and the values as they were.
    """
    if tokens is None or tokens[1].axis >= b.ndim:
        return a, b, None
    mask, place = tokens
    c, d = np.moveaxis(a, place.axis, 1), np.moveaxis(b, place.axis, 1)
    live = mask[:, max(0, mask.shape[1] - d.shape[1]) :] if place.may_be_last else mask
    return (c, d, live) if live.shape == d.shape[:2] else (a, b, None)
