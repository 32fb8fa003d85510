"""Models, artifacts and inputs that commands are given."""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from pitc import api
from pitc.cli.steps import Steps
from pitc.compiled import CompiledModel, load
from pitc.config import resolve
from pitc.errors import UsageError


def open_model(
    model: Path, padding: str | None, target: str | None = None, quiet: bool | None = None
) -> CompiledModel:
    """Load an artifact, or compile a model into a temporary one.

    Options that are None come from the environment or a file.
    """
    if os.path.isdir(model):
        no_options_of_an_artifact(model, padding=padding, target=target)
        return load(model)
    settings = resolve({"padding": padding, "target": target, "quiet": quiet})
    with Steps(api.stages(), quiet=settings.quiet) as steps:
        return api.compile(
            model,
            settings.target,
            settings.text("padding"),
            suggest=False,
            tiles=settings.path("tiles"),
            progress=steps,
            kernel_progress=steps.kernels,
        )


def no_options_of_an_artifact(model: Path, **options: str | None) -> None:
    """Refuse options that an artifact was compiled with, by name."""
    for name, value in options.items():
        if value is not None:
            hint = f"omit --{name}"
            raise UsageError(f"an artifact has its {name} already", path=model, hint=hint)


def read_inputs(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Read `FILE.npz` and `NAME=FILE.npy` words."""
    feeds: dict[str, np.ndarray] = {}
    for text in texts:
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
