"""Masks of pairs that tests of attention share, small enough to hide much of a short sequence."""

from models.block_masks import Bars, Blocks, Given
from models.pair_masks import Causal, Documents, Everything, PairMask, Window

MASKS: dict[str, PairMask] = {
    "full": Everything(),
    "causal": Causal(),
    "causal window": Causal(7),
    "window": Window(9),
    "window of one": Window(1),
    "window wider than all": Window(1001),
    "window and integers of global tokens": Window(9, 3),
    "window and flags of global tokens": Window(9, 3, "bool"),
    "documents": Documents(20),
    "bars": Bars(9, (1, 2, 4)),
    "blocks of 32": Blocks(32, 0.3),
    "blocks of 64": Blocks(64, 0.1),
    "blocks that are looked up": Blocks(32, 0.3, lookup=True),
    "pairs": Given(0.3),
    "pairs, and queries of none": Given(0.02),
    "no pair": Given(0.0),
}
LENGTHS = (1, 2, 17, 63, 64, 65, 200)


def lengths(mask: PairMask) -> tuple[int, ...]:
    """Lengths that the model of a mask takes: blocks that are expanded are whole ones."""
    if isinstance(mask, Blocks) and not mask.lookup:
        return tuple(dict.fromkeys(-(-n // mask.size) * mask.size for n in LENGTHS))
    return LENGTHS
