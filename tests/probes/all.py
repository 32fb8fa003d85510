"""All probes by name."""

from tests.probes.build import Maker
from tests.probes.masks import MASKS
from tests.probes.sizes import SIZES
from tests.probes.softmax import SOFTMAX

TABLES = (MASKS, SOFTMAX, SIZES)
MAKERS: dict[str, Maker] = {name: make for table in TABLES for name, make in table.makers.items()}
SUSPECTS: dict[str, str] = {
    "masks": "passes/facts/softmax.py:spared_rows, passes/facts/fill.py:_note_losses",
    "sizes": "pitc/ir/index.py:nonneg, passes/normalise.py:fold_known_if, passes/rules/sources.py:_count",
    "softmax": "passes/facts/softmax.py:spared_rows, passes/facts/fill.py:_note_losses",
}
