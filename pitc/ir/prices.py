"""What sparse contractions cost, as far as the passes care: fields of their plans."""

from collections.abc import Mapping
from typing import Protocol

from pitc.ir.plan import Field


class Prices(Protocol):
    """Prices of the variants of contractions: measured (`tiles.py`), or of a model
    (`gpu_speed.py`).
    """

    def fields(self, dtype: str) -> Mapping[str, Field]:
        """The plan fields that say them for operands of a type."""
        ...
