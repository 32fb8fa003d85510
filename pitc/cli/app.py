"""Commands and options. Nothing but typer and rich is imported before a command runs."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="pitc",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile ONNX graphs for dynamic sparsity: "
    "zeros and unread values whose place is known only when the model runs.",
    epilog="Example: [bold]pitc compile model.onnx --padding attention_mask[/bold]. "
    "Exit codes: 0 ok, 1 bug, 2 usage, 3 model, 4 verification, 5 artifact, 6 machine.",
)

SPARSITY, OUTPUT, INPUTS = "Sparsity", "Output", "Inputs"

Model = Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX model.")]
Either = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX model, or an artifact (a folder *.pitc).")
]
Padding = Annotated[
    str | None,
    typer.Option(
        metavar="INPUT",
        help="Mask input whose zeros are tokens that do not exist; "
        "outputs shaped like tokens are 0 there.",
        rich_help_panel=SPARSITY,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="TARGET",
        help="auto, cpu (AVX-512 and AVX2 kernels), cpu:v4 or cpu:v3.",
        rich_help_panel=SPARSITY,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no progress.", rich_help_panel=OUTPUT)
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=2x16",
        help="Shape of an input, or size of a named dimension (batch=2). May be repeated.",
        rich_help_panel=INPUTS,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the random inputs.", rich_help_panel=INPUTS)]


@app.command(epilog="Example: pitc compile model.onnx -o model.pitc --padding attention_mask")
def compile(
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The artifact to make; default: MODEL.pitc here."
        ),
    ] = None,
    target: Target = "auto",
    padding: Padding = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing artifact.")] = False,
    dump_ir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the graph after each stage.", rich_help_panel=OUTPUT
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what was done and why to a .json or .html file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compile a model to an artifact, a folder that ONNX Runtime loads."""
    from pitc.cli import actions

    actions.compile_model(
        model,
        output,
        target=target,
        padding=padding,
        force=force,
        dump_ir=dump_ir,
        report=report,
        quiet=quiet,
        json=json,
    )


@app.command(epilog="Example: pitc run model.pitc --input batch.npz --save out.npz")
def run(
    model: Either,
    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A .npz file, or NAME=FILE.npy; may be repeated. Other inputs are random.",
            rich_help_panel=INPUTS,
        ),
    ] = None,
    shape: Shape = None,
    seed: Seed = 0,
    padding: Padding = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Write the outputs.", rich_help_panel=OUTPUT),
    ] = None,
    json: Json = False,
) -> None:
    """Run a model once, on given or random inputs."""
    from pitc.cli import actions

    actions.run_model(model, input or [], shape or [], seed, padding, save, json=json)


@app.command(epilog="Example: pitc verify model.onnx --padding attention_mask --facts")
def verify(
    model: Either,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.onnx",
            help="Reference for an artifact; default: the source graph inside it.",
        ),
    ] = None,
    padding: Padding = None,
    target: Target = "auto",
    facts: Annotated[
        bool, typer.Option("--facts", help="Also audit every fact that was proven.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest norm-wise relative error of floats; default: 1e-5 for float32."),
    ] = None,
    shape: Shape = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compare the compiled model with ONNX Runtime on random and padded inputs."""
    from pitc.cli import actions

    actions.verify_model(
        model,
        against,
        padding=padding,
        target=target,
        facts=facts,
        tolerance=tolerance,
        shapes=shape or [],
        seed=seed,
        quiet=quiet,
        json=json,
    )


@app.command(epilog="Example: pitc explain model.onnx --padding attention_mask --node 'MatMul*'")
def explain(
    model: Either,
    padding: Padding = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="Only nodes whose name or operator fits, e.g. 'MatMul*'."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show, node by node, what is done and why, or why not."""
    from pitc.cli import actions

    actions.explain_model(model, padding, node, json=json)


@app.command(epilog="Example: pitc inspect model.pitc")
def inspect(
    artifact: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="A folder *.pitc.")],
    json: Json = False,
) -> None:
    """Show what an artifact is, and whether it runs here."""
    from pitc.cli import actions

    actions.inspect_artifact(artifact, json=json)


@app.command(epilog="Example: pitc doctor")
def doctor(json: Json = False) -> None:
    """Check this machine and installation."""
    from pitc.cli import actions

    actions.doctor(json=json)


@app.command()
def version() -> None:
    """Print the version."""
    from pitc.version import __version__

    print(f"pitc {__version__}")
