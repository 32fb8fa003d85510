"""All probes by name."""

from tests.probes.build import Maker
from tests.probes.integers import INTEGERS
from tests.probes.masks import MASKS
from tests.probes.sizes import SIZES
from tests.probes.softmax import SOFTMAX
from tests.probes.zeros import ZEROS

TABLES = (MASKS, SOFTMAX, SIZES, INTEGERS, ZEROS)
MAKERS: dict[str, Maker] = {name: make for table in TABLES for name, make in table.makers.items()}
SUSPECTS: dict[str, str] = {
    "masks": "passes/facts/softmax.py:spared_rows, passes/facts/fill.py:_note_losses",
    "integers": "passes/facts/affine.py:AFFINE, affine_of_array, learn; passes/facts/values.py:_fits",
    "zeros": "passes/rules/elementwise.py:Reciprocal, Div, Pow; passes/lower/activation.py:_known",
    "sizes": "pitc/ir/index.py:nonneg, passes/normalise.py:fold_known_if, passes/rules/sources.py:_count",
    "softmax": "passes/facts/softmax.py:spared_rows, passes/facts/fill.py:_note_losses",
}
