"""All probes by name."""

from tests.probes import orders, readers, typed
from tests.probes.build import Maker
from tests.probes.deadness import DEADNESS
from tests.probes.forms import FORMS
from tests.probes.integers import INTEGERS
from tests.probes.keyless import KEYLESS
from tests.probes.masks import MASKS
from tests.probes.padding import PADDING
from tests.probes.rows import ROWS
from tests.probes.scopes import SCOPES
from tests.probes.sizes import SIZES
from tests.probes.softmax import SOFTMAX
from tests.probes.sparse import SPARSE
from tests.probes.trips import TRIPS
from tests.probes.zeros import ZEROS

MORE = (orders, readers, typed)  # they add to tables of others
TABLES = (
    MASKS,
    SOFTMAX,
    SIZES,
    INTEGERS,
    ZEROS,
    PADDING,
    SCOPES,
    TRIPS,
    DEADNESS,
    SPARSE,
    FORMS,
    ROWS,
    KEYLESS,
)
MAKERS: dict[str, Maker] = {name: make for table in TABLES for name, make in table.makers.items()}
