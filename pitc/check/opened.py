"""A model to be checked or timed: compiled, with the source graph that it is compared with."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pitc import api
from pitc.artifact.manifest import FALLBACK
from pitc.compiled import CompiledModel, load
from pitc.errors import UsageError

if TYPE_CHECKING:
    from pitc.importer.memory import AnyModel


@dataclass(frozen=True, slots=True)
class Opened:
    """A compiled model and its source.

    Args:
        compiled: The compiled model.
        source: The file with the source graph.
        name: What messages call it.
    """

    compiled: CompiledModel
    source: Path
    name: str


def opened(
    model: "AnyModel | CompiledModel",
    target: str | None,
    padding: str | Iterable[str] | None,
    **options: Any,
) -> Opened:
    """Take a compiled model, load an artifact, or compile a model into a temporary one.

    Args:
        model: A compiled model, the folder of an artifact, or what `pitc.compile` takes.
        target: As of `pitc.compile`; None for `auto`.
        padding: As of `pitc.compile`.
        options: Others of `pitc.compile`.

    Raises:
        UsageError: A target or padding for what is compiled already.
        PitcError: It cannot be compiled, or loaded.
    """
    is_folder = isinstance(model, str | Path) and os.path.isdir(model)
    if isinstance(model, CompiledModel) or is_folder:
        for name, value in {"target": target, "padding": padding}.items():
            if value is not None:
                raise UsageError(f"it is compiled: it has its {name} already", hint=f"omit {name}")
        compiled = model if isinstance(model, CompiledModel) else load(Path(str(model)))
        return Opened(compiled, compiled.path / FALLBACK, compiled.manifest.source.name)
    assert not isinstance(model, CompiledModel)
    compiled = api.compile(model, target or "auto", padding, suggest=False, **options)
    is_file = isinstance(model, str | Path)
    source = Path(str(model)) if is_file else compiled.path / FALLBACK
    return Opened(compiled, source, compiled.manifest.source.name)
