"""All probes by name."""

from tests.probes.build import Maker
from tests.probes.deadness import DEADNESS
from tests.probes.integers import INTEGERS
from tests.probes.masks import MASKS
from tests.probes.padding import PADDING
from tests.probes.scopes import SCOPES
from tests.probes.sizes import SIZES
from tests.probes.softmax import SOFTMAX
from tests.probes.sparse import SPARSE
from tests.probes.zeros import ZEROS

TABLES = (MASKS, SOFTMAX, SIZES, INTEGERS, ZEROS, PADDING, SCOPES, DEADNESS, SPARSE)
MAKERS: dict[str, Maker] = {name: make for table in TABLES for name, make in table.makers.items()}
SUSPECTS: dict[str, str] = {
    "masks": "passes/facts/softmax.py:spared_rows, passes/facts/fill.py:_note_losses",
    "integers": "passes/facts/affine.py:AFFINE, affine_of_array, learn; passes/facts/values.py:_fits",
    "padding": "passes/pipeline.py:_given_up, passes/lower/rewrite.py:_zero_given_up, _spread",
    "scopes": "passes/lower/rows.py:only_reader, gemm.py; passes/control",
    "deadness": "passes/rules/constants.py:_add, _relu, _comparison; passes/facts/dead.py",
    "sparse": "passes/facts/finite.py; passes/regions/sparse.py; passes/lower/sparse.py",
    "zeros": "passes/rules/elementwise.py:Reciprocal, Div, Pow; passes/lower/activation.py:_known",
    "sizes": "pitc/ir/index.py:nonneg, passes/normalise.py:fold_known_if, passes/rules/sources.py:_count",
    "softmax": "passes/facts/softmax.py:spared_rows, passes/facts/fill.py:_note_losses",
}
