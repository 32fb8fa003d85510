"""Options that several commands share: each is declared once."""

from pathlib import Path
from typing import Annotated

import typer

SPARSITY, OUTPUT, INPUTS = "Sparsity", "Output", "Inputs"

Either = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX model, or an artifact (a folder *.pitc).")
]
Padding = Annotated[
    str | None,
    typer.Option(
        metavar="MASK",
        help="Tokens that do not exist: those where the input MASK is 0 (!MASK: is not 0; IDS:1: "
        "token number 1). Several masks with commas. Outputs with a row per token are 0 there.",
        rich_help_panel=SPARSITY,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        help="auto (the default), cpu (AVX-512 and AVX2 kernels), cpu:v4, cpu:v3; cuda (every "
        "GPU architecture), cuda:sm_80,sm_90; or several: cpu,cuda.",
        autocompletion=lambda: ["auto", "cpu", "cpu:v4", "cpu:v3", "cuda", "cpu,cuda"],
        rich_help_panel=SPARSITY,
    ),
]
Tiles = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Tile table with the costs of sparse contractions; "
        "default: pitc tune's of this machine, else the shipped one.",
        rich_help_panel=SPARSITY,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool | None, typer.Option("--quiet", "-q", help="Show no progress.", rich_help_panel=OUTPUT)
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write a report with all decisions and reasons to a .json or .html file.",
        rich_help_panel=OUTPUT,
    ),
]
Suggest = Annotated[
    bool,
    typer.Option(
        "--suggest/--no-suggest",
        help="If little is skipped, suggest what would help: the analysis tries padding masks.",
        rich_help_panel=SPARSITY,
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="A .npz file, or NAME=FILE.npy; may be repeated. Other inputs are random.",
        rich_help_panel=INPUTS,
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=2x16",
        help="Shape of an input, or size of a named dimension (batch=2). May be repeated.",
        rich_help_panel=INPUTS,
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        help="Largest norm-wise relative error of floats; default: by the model's arithmetic, 1e-5 "
        "for float32."
    ),
]
CustomOps = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="LIBRARY",
        help="Library with the model's own operators (OrtCustomOps); may be repeated.",
        rich_help_panel=INPUTS,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the random inputs.", rich_help_panel=INPUTS)]


def register(libraries: list[Path] | None) -> None:
    """Register libraries of operators with all sessions of the command."""
    if libraries:
        from pitc.ir.custom_ops import register_custom_ops

        for library in libraries:
            register_custom_ops(library)
