"""All probes by name."""

from tests.probes.build import Maker
from tests.probes.masks import MASKS
from tests.probes.softmax import SOFTMAX

TABLES = (MASKS, SOFTMAX)
MAKERS: dict[str, Maker] = {name: make for table in TABLES for name, make in table.makers.items()}
SUSPECTS: dict[str, str] = {
    "masks": "passes/facts/softmax.py:spared_rows, passes/facts/fill.py:_note_losses",
    "softmax": "passes/facts/softmax.py:spared_rows, passes/facts/fill.py:_note_losses",
}
