"""What sparse contractions cost, as far as the passes care: fields of their plans."""

from typing import Protocol

from pitc.ir.plans.base import Table


class Prices(Protocol):
    """Prices of the variants of contractions: measured (`tiles.py`), or of a model
    (`gpu_speed.py`).
    """

    def table(self, dtype: str) -> Table:
        """The lines of plans that say them for operands of a type."""
        ...
