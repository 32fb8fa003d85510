"""`pitc inspect` and `pitc export`: their options. What they do is in modules of these names."""

from pathlib import Path
from typing import Annotated

import typer

from pitc.cli.options import Json, Quiet


def inspect(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="An ONNX model, or an artifact (a folder *.pitc)."),
    ] = None,
    ep: Annotated[
        bool,
        typer.Option(
            "--ep",
            help="For an artifact: also load it, and show which execution provider runs which "
            "nodes.",
        ),
    ] = False,
    tiles: Annotated[
        bool, typer.Option("--tiles", help="Show the tile table in use instead of a file.")
    ] = False,
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    """Show the state and the content of an artifact, or the content of a model.

    Of an ONNX model: inputs, outputs, operators, weights. Nothing is compiled.
    """
    if tiles:
        from pitc.cli.tiles import inspect_tiles

        inspect_tiles(file, json=json)
    else:
        from pitc.cli.inspect import inspect_file

        inspect_file(file, ep=ep, json=json)


def export(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A local checkpoint of transformers: config.json and weights."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.onnx",
            help="The model to make; default: FOLDER.onnx here.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    """Export a checkpoint of transformers to ONNX, as `pitc.from_pretrained` does.

    It needs torch, onnxscript and transformers, and downloads nothing. `pitc compile` takes the
    model.
    """
    from pitc.cli import export as action

    action.export_folder(folder, output, force=force, quiet=quiet, json=json)
