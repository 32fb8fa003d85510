"""Which outputs hold tokens of a padding mask, as declared sizes tell, before anything is compiled.

mask [b, s]        y [b, s, 5]              along 1
mask [b, p + s]    keys [b, h, p + s, d]    along 2
y [b, s, 5]              along 1: the last s of the mask
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pitc.check.tokens import Live
from pitc.ir.report import TokenPlace

Sizes = Sequence[Any]
"""A declared shape: sizes, or names of dynamic sizes, or None."""


def live_of(padding: str | None) -> Live | None:
    """Which tokens are real by an input that is 0 at padding; it stands for outputs of any mask."""
    return None if padding is None else lambda feeds: {"": feeds[padding] != 0}


def token_axes(mask: Sizes, outputs: Mapping[str, Sizes]) -> dict[str, TokenPlace]:
    """Where outputs hold tokens, those that hold any.

    Args:
        mask: The mask's declared shape.
        outputs: Those of the outputs, by name.
    """
    covers_past = len(mask) == 2 and len(_terms(mask[1])) > 1
    found = {name: token_axis(mask, sizes) for name, sizes in outputs.items()}
    return {
        n: TokenPlace("", 0, axis, covers_past) for n, axis in found.items() if axis is not None
    }


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
