"""Which tile table is in force: what was measured on this machine, else what comes with pitc."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from pitc.errors import PitcError
from pitc.host.folders import cache_folder
from pitc.host.machine import LEVEL_FLAGS, builder_versions, cpu_caches, cpu_features, cpu_name
from pitc.ir.tiles import TileTable
from pitc.options import TABLE_LEVELS, TableLevel
from pitc.tiles.file import Machine, Measured, TilesFile, read_file, table_of

SHIPPED = Path(__file__).with_name("shipped")
"""A table for each machine that was measured."""
OVERLAY = "tiles.json"


@dataclass(frozen=True, slots=True)
class TablesInForce:
    """The tables of all CPU levels.

    Args:
        levels: By level.
        origins: By level: `shipped`, or the file.
        notes: Why a file is not used, one line each.
    """

    levels: Mapping[TableLevel, Measured]
    origins: Mapping[TableLevel, str]
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> TileTable:
        """The prices."""
        return TileTable({level: table_of(each) for level, each in self.levels.items()})


def overlay_path() -> Path:
    """The user's own table."""
    return cache_folder() / OVERLAY


def this_machine() -> Machine:
    """What prices measured here hold for."""
    return Machine(device=cpu_name(), features=list(cpu_features()), caches=dict(cpu_caches()))


def shipped() -> TilesFile:
    """The tables that come with pitc: of each level the one of the machine most like this one.

    A level's kernels run where nothing better does. So a machine whose best level it is comes
    before others, then one of the maker of this CPU, whose kernels compare alike.
    """
    found: dict[TableLevel, Measured] = {}
    for level in TABLE_LEVELS.values():
        tables = [each.levels[level] for each in _shipped() if level in each.levels]
        found[level] = min(tables, key=partial(_unlike, level))
    return _shipped()[0].model_copy(update={"levels": found})


@cache
def _shipped() -> tuple[TilesFile, ...]:
    return tuple(read_file(path) for path in sorted(SHIPPED.glob("*.json")))


def _unlike(level: TableLevel, table: Measured) -> tuple[bool, bool]:
    """How a table's machine differs from those that run a level: it has a better one, it is of
    another maker than this CPU, as its name begins.
    """
    there = table.machine
    has_better = frozenset(there.features) != LEVEL_FLAGS[level]
    return has_better, there.device.split()[0] != cpu_name().split()[0]


def tables_in_force(file: Path | None = None) -> TablesInForce:
    """Find the tables that a compilation uses.

    Args:
        file: Take this one, wherever it was measured; None: the user's own, of this machine. Levels
            that it lacks come from the shipped one.

    Raises:
        UsageError: The named file cannot be read.
        ArtifactError: The named file is no tile table, or damaged.
    """
    levels = dict(shipped().levels)
    origins, notes = dict.fromkeys(levels, "shipped"), list[str]()
    path, found = file or overlay_path(), None
    if file is not None:
        found = read_file(file)
    elif path.is_file():
        try:
            found = read_file(path)
        except PitcError as error:
            notes.append(f"tile table not used: {error}")
    for level, measured in found.levels.items() if found else ():
        if file is None and (reason := _foreign(measured)):
            notes.append(f"tile table not used: {path}: {level} {reason}")
            continue
        levels[level], origins[level] = measured, str(path)
    return TablesInForce(levels, origins, tuple(notes))


def _foreign(measured: Measured) -> str:
    """Why prices do not hold here; empty where they do."""
    here = this_machine()
    for name in ("device", "features", "caches"):
        there = getattr(measured.machine, name)
        if there != getattr(here, name):
            return f"was measured on other {name}: {_text(there)}, not {_text(getattr(here, name))}"
    return ""


def outdated(measured: Measured) -> str:
    """What has changed since the kernels were measured; empty where nothing has."""
    now = builder_versions()
    old = {n: v for n, v in measured.versions.items() if n in now and now[n] != v}
    return ", ".join(f"{name} {v}, now {now[name]}" for name, v in old.items())


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return " ".join(value) if isinstance(value, list) else str(value)
