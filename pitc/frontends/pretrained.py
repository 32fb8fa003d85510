"""A folder of a pretrained model: an export, or a checkpoint of transformers, and its tokenizer."""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pitc.api import compile
from pitc.artifact.check import PRETRAINED as ARTIFACT
from pitc.artifact.folder import check_output
from pitc.artifact.onnx_file import check_onnx_file, write_onnx_file
from pitc.compiled import CompiledModel, load
from pitc.errors import ModelError, UsageError
from pitc.frontends.pytorch import export, installed
from pitc.frontends.quiet import quiet
from pitc.frontends.rewrites import added_inputs

if TYPE_CHECKING:
    import onnx_ir as ir

CONFIG = "config.json"
#: Configurations and tokenizers; weights end otherwise.
_KEPT = frozenset({".json", ".txt", ".model", ".jinja", ".spm", ".vocab", ".tiktoken"})
_INDEX = ".index.json"
"""How names of tables of weights end."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def from_pretrained(
    folder: str | Path,
    *,
    output: str | Path | None = None,
    padding: str | Iterable[str] | None = None,
    target: str = "auto",
    file_name: str | None = None,
    verbose: bool = False,
    **options: Any,
) -> CompiledModel:
    """Compile a pretrained model from a local folder; nothing is downloaded.

    Args:
        folder: An export as optimum writes it (`model.onnx` or `onnx/model.onnx`, and beside it
            `config.json` and the tokenizer), or a checkpoint of transformers (`config.json` and
            weights), which torch exports with the inputs that its tokenizer makes, and with
            `global_attention_mask` if it is a Longformer or LED.
        output: A folder to make. It gets the configuration and tokenizer files, and the artifact as
            the folder `onnx` in it, so that optimum, sentence-transformers and fastembed load it.
            None: only the compiled model is made, in a temporary folder until `save`.
        padding: As of `compile`. None keeps every element as ONNX Runtime computes it; nothing is
            guessed.
        target: As of `compile`.
        file_name: The ONNX file, relative to `folder`, if it is neither of the two.
        verbose: As in `from_torch`: show the output of other libraries during the export.
        options: Other options of `compile`.

    Returns:
        The compiled model.

    Raises:
        UsageError: It is not such a folder, or the output exists.
        MachineError: The folder is a checkpoint, and torch or transformers is not installed.
        ModelError: The model cannot be exported, or read.
        PitcError: See `compile`.
    """
    source = _folder(folder)
    file = _onnx_file(source, file_name)
    if output is None:
        return compile(_graph(source, file, verbose), target, padding, **options)
    place = Path(output)
    if os.path.lexists(place):
        raise UsageError("the output exists", path=place)
    check_output(place, force=False)
    fresh = place.absolute().parent / f".{place.name}.{secrets.token_hex(4)}"
    try:
        fresh.mkdir()
        keep_settings(source, fresh)
        artifact = fresh / ARTIFACT
        compile(_graph(source, file, verbose), target, padding, output=artifact, **options)
        os.rename(fresh, place)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return load(place / ARTIFACT)


def keep_settings(source: Path, target: Path) -> None:
    """Copy configuration and tokenizer files from one folder, at any depth, to another."""
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        hidden = any(part.startswith(".") for part in inside.parts)
        wanted = path.suffix in _KEPT and not path.name.endswith(_INDEX) and not hidden
        # an export keeps a copy of its configuration in there too: an artifact holds nothing else
        if wanted and path.is_file() and inside.parts[0] != ARTIFACT:
            copy = target / inside
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    inner = source / ARTIFACT
    if not (target / CONFIG).exists() and (inner / CONFIG).is_file():
        for path in inner.iterdir():
            if path.suffix in _KEPT and path.is_file() and not (target / path.name).exists():
                shutil.copyfile(path, target / path.name)


def _onnx_file(folder: Path, file_name: str | None) -> Path | None:
    """The ONNX file in a folder; None: there is a checkpoint."""
    if file_name is not None:
        return folder / file_name
    for file in (folder / "model.onnx", folder / ARTIFACT / "model.onnx"):
        if file.is_file():
            return file
    found = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.onnx"))
    if found:
        text = f"none of its ONNX files is model.onnx: {', '.join(found)}"
        raise UsageError(text, path=folder, hint="name one with file_name")
    if not (folder / CONFIG).is_file() or not any(any(folder.glob(w)) for w in _WEIGHTS):
        text = "it holds neither model.onnx nor config.json with weights"
        raise UsageError(text, path=folder)
    return None


def _folder(folder: str | Path) -> Path:
    """A local folder.

    Raises:
        UsageError: There is none of this name: it is a hub's, perhaps.
    """
    source = Path(folder)
    if not source.is_dir():
        hint = "download it first, with the hub's own tools: pitc loads local folders only"
        raise UsageError("there is no such folder", path=source, hint=hint)
    return source


def _graph(folder: Path, file: Path | None, verbose: bool) -> "Path | ir.Model":
    return file if file is not None else export_checkpoint(folder, verbose=verbose)


def write_onnx(
    folder: str | Path,
    file: Path,
    *,
    force: bool = False,
    stage: Callable[[str], None] = lambda name: None,
) -> Path | None:
    """Export a checkpoint of transformers to an ONNX file, whole or not at all.

    Args:
        folder: A local folder with `config.json` and weights.
        file: The file to make. Weights that do not fit into it go to `NAME.onnx.data` beside.
        force: Replace a model of that name.
        stage: Called with `load`, `export` and `write`.

    Returns:
        The file with the weights, if there is one.

    Raises:
        UsageError: It is no such folder, an export already, or the output exists.
        MachineError: torch or transformers is not installed, or the disk is full.
        ModelError: The model cannot be exported.
    """
    source = _folder(folder)
    ready = _onnx_file(source, None)
    if ready is not None:
        hint = f"pitc compile {ready}"
        raise UsageError("it is an export already", path=source, hint=hint)
    check_onnx_file(file, force=force)
    model = export_checkpoint(source, stage=stage)
    stage("write")
    return write_onnx_file(model, file)


def export_checkpoint(
    folder: Path,
    *,
    verbose: bool = False,
    stage: Callable[[str], None] = lambda name: None,
) -> "ir.Model":
    """Export a checkpoint of transformers: batch and sequence stay open.

    The class is the one that its configuration names first, the inputs are those that its own
    tokenizer makes, and those that its exported form needs (`added_inputs`).

    Args:
        folder: The checkpoint.
        verbose: As of `from_torch`.
        stage: Called with `load` and `export`.

    Raises:
        MachineError: torch or transformers is not installed.
        ModelError: transformers or torch cannot load or export it.
    """
    stage("load")
    torch, transformers = installed("torch"), installed("transformers")
    named = json.loads((folder / CONFIG).read_text("utf-8")).get("architectures") or ["AutoModel"]
    kind = getattr(transformers, named[0], None)
    if kind is None:
        text = f"transformers {transformers.__version__} has no class {named[0]}"
        raise ModelError(text, path=folder, hint="export it to ONNX first, and pass that folder")
    try:
        with quiet(verbose=verbose):
            module = kind.from_pretrained(folder, local_files_only=True).eval()
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            texts = ["one example that is longer than the other", "an example"]
            inputs = dict(tokenizer(texts, padding=True, return_tensors="pt"))
            inputs |= {name: torch.zeros_like(inputs["input_ids"]) for name in added_inputs(module)}
            module.config.use_cache = False
            with torch.no_grad():
                outputs = module(**inputs)
    except Exception as error:  # of many libraries
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"transformers cannot load it: {said}", path=folder) from error
    batch = torch.export.Dim("batch", min=1, max=65536)
    longest = getattr(module.config, "max_position_embeddings", None) or 65536
    sequence = torch.export.Dim("sequence", min=2, max=longest)
    sizes = {name: {0: batch, 1: sequence} for name in inputs}
    if other := [name for name, value in outputs.items() if not isinstance(value, torch.Tensor)]:
        text = f"{named[0]} returns more than tensors: {', '.join(other)}"
        raise ModelError(text, path=folder, hint="export it to ONNX first, and pass that folder")
    stage("export")
    return export(module, (), inputs, sizes, list(outputs), verbose=verbose)
