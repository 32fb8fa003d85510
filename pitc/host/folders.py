"""The user's cache folder: tile tables that were measured here, and compiled kernels."""

import os
import tempfile
from pathlib import Path

VARIABLE = "PITC_CACHE_DIR"


def cache_folder() -> Path:
    """`$PITC_CACHE_DIR`, else `pitc` in `$XDG_CACHE_HOME`, else `~/.cache/pitc`.

    For a user without a home: `pitc-UID` in the folder of temporary files.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # others are to be ignored, says the specification
        return Path(shared) / "pitc"
    try:
        return Path.home() / ".cache" / "pitc"
    except RuntimeError:
        return Path(tempfile.gettempdir(), f"pitc-{os.geteuid()}")


def make_private(folder: Path) -> None:
    """Make a folder that its user alone may enter, where there is none.

    Raises:
        OSError: It cannot be made, or something else has its name.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
