"""The committed lists: mutants that are explained, and who kills others."""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from zlib import crc32

PART = 8
HERE = Path(__file__).parent
KILLERS = HERE / "killers.txt"
EQUIVALENT = HERE / "equivalent.toml"


def explained() -> dict[str, str]:
    """Why a mutant that lives on is no gap, by its key."""
    if not EQUIVALENT.exists():
        return {}
    groups = tomllib.loads(EQUIVALENT.read_text("utf-8"))["equivalent"]
    return {key: group["because"] for group in groups for key in group["mutants"]}


def killers() -> dict[str, str]:
    """Which check killed a mutant, by its key."""
    if not KILLERS.exists():
        return {}
    lines = KILLERS.read_text("utf-8").splitlines()
    return dict(line.rsplit(" <- ", 1) for line in lines if line)


def note_killers(found: Mapping[str, str], keys: Collection[str], part: int = PART) -> None:
    """Bring the list of killers up to date: what it names already, and one in `part` of what else
    was found, chosen by the key. Samples are drawn from it, so it need not be whole.
    """
    noted = killers()
    kept = {k: by for k, by in found.items() if k in noted or crc32(k.encode()) % part == 0}
    known = {key: by for key, by in (noted | kept).items() if key in keys}
    KILLERS.write_text("".join(f"{key} <- {by}\n" for key, by in sorted(known.items())), "utf-8")
