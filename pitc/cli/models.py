"""Models, artifacts and inputs that commands are given."""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from pitc import api
from pitc.check.opened import Opened, opened
from pitc.cli.steps import Steps
from pitc.config import BUILT_IN, Settings, resolve
from pitc.errors import UsageError


def settings_of(options: Any) -> Settings:
    """The compile options in force: those of a command, as far as it has them and they are given,
    else those of the environment or a file.
    """
    return resolve({name: getattr(options, name, None) for name in BUILT_IN})


def open_model(options: Any, against: Path | None = None) -> Opened:
    """Load an artifact, or compile a model into a temporary one.

    Args:
        options: Those of the command.
        against: The source that it is compared with; None: the model itself, or that of the
            artifact.
    """
    model, settings = options.model, settings_of(options)
    if os.path.isdir(model):
        no_options_of_an_artifact(options)
        found = opened(model, None, None)
    else:
        with Steps(api.stages(), quiet=settings.quiet) as steps:
            found = opened(
                model,
                settings.target,
                settings.text("padding"),
                precision=settings.precision,
                tiles=settings.path("tiles"),
                progress=steps,
                kernel_progress=steps.kernels,
            )
    return Opened(found.compiled, against or found.source, model.name)


def no_options_of_an_artifact(options: Any) -> None:
    """Refuse options that an artifact was compiled with."""
    for name in ("padding", "target", "precision"):
        if getattr(options, name, None) is not None:
            text, hint = f"an artifact has its {name} already", f"omit --{name}"
            raise UsageError(text, path=options.model, hint=hint)


def read_inputs(texts: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Read `FILE.npz` and `NAME=FILE.npy` words."""
    feeds: dict[str, np.ndarray] = {}
    for text in texts or ():
        name, equals, file = text.rpartition("=")
        if Path(text).suffix == ".npz" and not os.path.isfile(file):
            name, equals, file = "", "", text
        wanted = ".npy" if equals else ".npz"
        if Path(file).suffix != wanted:
            raise UsageError(f"input {text!r} is neither FILE.npz nor NAME=FILE.npy")
        try:
            feeds |= _arrays_of(Path(file), name if equals else None)
        except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
            raise UsageError(f"inputs cannot be read: {reason}", path=file) from error
    return feeds


def _arrays_of(file: Path, name: str | None) -> dict[str, np.ndarray]:
    """The array of a .npy file under a name, or all of a .npz file under their own."""
    with file.open("rb") as stream:
        found = np.load(stream, allow_pickle=False)
        if isinstance(found, np.ndarray) != (name is not None):
            raise ValueError(f"it is no {file.suffix} file")
        return dict(found) if name is None else {name: found}
