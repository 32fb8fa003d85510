"""Commands and options. Nothing but typer and rich is imported before a command runs."""

from pathlib import Path
from typing import Annotated

import typer

from pitc.cli.command import Command
from pitc.cli.explain_options import Facts, NodePattern, Refused, Whole
from pitc.cli.log import log_to

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


def _show_version(value: bool) -> None:
    if value:
        version()
        raise typer.Exit


@app.callback(help=app.info.help, epilog=app.info.epilog)
def common(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            help="Log to stderr what is done; -vv: all of it. Also behind a command.",
        ),
    ] = 0,
    log_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append all of the log to a file. Also behind a command."
        ),
    ] = None,
) -> None:
    """The options of every command."""
    log_to(verbose=verbose, log_file=log_file)


SPARSITY, OUTPUT, INPUTS = "Sparsity", "Output", "Inputs"

Either = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX model, or an artifact (a folder *.pitc).")
]
Padding = Annotated[
    str | None,
    typer.Option(
        metavar="MASK",
        help="Tokens that do not exist: where the input MASK is 0; !MASK where it is not 0; IDS:1 "
        "where token numbers are 1. Several with commas. Outputs of tokens are 0 there.",
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
        help="Write what is done and why to a .json or .html file.",
        rich_help_panel=OUTPUT,
    ),
]
Suggest = Annotated[
    bool,
    typer.Option(
        "--suggest/--no-suggest",
        help="Where little is skipped, look for what would help: "
        "padding masks are tried in the analysis.",
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


@app.command(
    cls=Command, epilog="Example: pitc compile model.onnx -o model.pitc --padding attention_mask"
)
def compile(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL.onnx", help="The ONNX model.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The artifact to make; default: MODEL.pitc here."
        ),
    ] = None,
    target: Target = None,
    padding: Padding = None,
    tiles: Tiles = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing artifact.")] = False,
    dump_ir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the graph after each stage.", rich_help_panel=OUTPUT
        ),
    ] = None,
    custom_ops: CustomOps = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check the graph after each stage; a violation is a bug in pitc.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache", help="Compile every kernel, and keep none: see pitc cache --help."
        ),
    ] = False,
    report: ReportFile = None,
    suggest: Suggest = True,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Decide everything and say it; build no kernel, make no artifact."
        ),
    ] = False,
    stop_after: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE",
            help="A dry run that ends behind normalise, facts, regions or lower; "
            "--dump-ir takes what was reached.",
            autocompletion=lambda: ["normalise", "facts", "regions", "lower"],
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config",
            help="Print every option with its origin, as a pitc.toml, and compile nothing.",
        ),
    ] = False,
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    r"""Compile a model to an artifact, a folder that ONNX Runtime loads.

    Defaults come from PITC_* variables, then from pitc.toml or \[tool.pitc] of pyproject.toml.
    """
    from pitc.cli import compile as action
    from pitc.config import resolve

    register(custom_ops)
    settings = resolve(
        {
            "target": target,
            "padding": padding,
            "tiles": tiles,
            "output": output,
            "dump_ir": dump_ir,
            "report": report,
            "quiet": quiet,
        }
    )
    if print_config:
        action.print_config(settings, json=json)
    elif dry_run or stop_after is not None:
        action.rehearse(
            model, settings, stop_after, force=force, check=check, suggest=suggest, json=json
        )
    else:
        action.compile_model(
            model,
            settings,
            force=force,
            check=check,
            suggest=suggest,
            cache=not no_cache,
            json=json,
        )


@app.command(cls=Command, epilog="Example: pitc run model.pitc --input batch.npz --save out.npz")
def run(
    model: Either,
    input: Inputs = None,
    shape: Shape = None,
    seed: Seed = 0,
    padding: Padding = None,
    custom_ops: CustomOps = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Write the outputs.", rich_help_panel=OUTPUT),
    ] = None,
    json: Json = False,
) -> None:
    """Run a model once, on given or random inputs."""
    from pitc.cli import run as action

    register(custom_ops)
    action.run_model(model, input or [], shape or [], seed, padding, save, json=json)


@app.command(cls=Command, epilog="Example: pitc verify model.onnx --padding attention_mask --facts")
def verify(
    model: Either,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.onnx",
            help="Reference for an artifact; default: the source graph inside it.",
        ),
    ] = None,
    input: Inputs = None,
    padding: Padding = None,
    target: Target = None,
    facts: Annotated[
        bool, typer.Option("--facts", help="Also audit every fact that was proven.")
    ] = False,
    custom_ops: CustomOps = None,
    tolerance: Tolerance = None,
    reduce: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.onnx",
            help="On failure, write the smallest part of the model that still fails, "
            "and its inputs to OUT.npz.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    shape: Shape = None,
    seed: Seed = 0,
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    """Compare the compiled model with ONNX Runtime on random and padded inputs."""
    from pitc.cli import verify as action

    register(custom_ops)
    action.verify_model(
        model,
        against,
        inputs=input or [],
        padding=padding,
        target=target,
        facts=facts,
        tolerance=tolerance,
        reduce=reduce,
        shapes=shape or [],
        seed=seed,
        quiet=quiet,
        json=json,
    )


@app.command(
    cls=Command, epilog="Example: pitc bench model.onnx --padding attention_mask --lengths 9,40,128"
)
def bench(
    model: Either,
    input: Inputs = None,
    padding: Padding = None,
    target: Target = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Live tokens of each sequence; the mask is padded on the right.",
            rich_help_panel=INPUTS,
        ),
    ] = None,
    mean: Annotated[
        int | None,
        typer.Option(
            min=1, help="Mean of random lengths; one sequence is full.", rich_help_panel=INPUTS
        ),
    ] = None,
    shape: Shape = None,
    seed: Seed = 0,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PEER",
            help="Only this peer: onnxruntime or openvino; may be repeated. "
            "Default: every installed one.",
            autocompletion=lambda: ["onnxruntime", "openvino"],
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 20,
    seconds: Annotated[
        float, typer.Option(min=0, help="No round starts after this much time.")
    ] = 60.0,
    custom_ops: CustomOps = None,
    tolerance: Tolerance = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Also show what each sparse contraction decided, predicted and took, "
            "and what it takes when it is dense.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    trace_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Keep these decisions for pitc explain; implies --trace.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", help="Draw the result; needs matplotlib.", rich_help_panel=OUTPUT
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a report with times of nodes before and after, and memory, "
            "to a .json or .html file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    """Race the compiled model against ONNX Runtime and other installed peers.

    Answers are compared first. Then: one pinned thread, CPU time, interleaved rounds whose order
    rotates.
    """
    from pitc.cli import bench as action

    register(custom_ops)
    action.bench_model(
        model,
        inputs=input or [],
        padding=padding,
        target=target,
        lengths=lengths,
        mean=mean,
        shapes=shape or [],
        seed=seed,
        against=against or [],
        rounds=rounds,
        seconds=seconds,
        tolerance=tolerance,
        trace=trace or trace_file is not None,
        trace_file=trace_file,
        plot=plot,
        report=report,
        quiet=quiet,
        json=json,
    )


@app.command(
    cls=Command, epilog="Example: pitc explain model.onnx --padding attention_mask --node 'MatMul*'"
)
def explain(
    model: Either,
    padding: Padding = None,
    target: Target = None,
    node: NodePattern = None,
    whole: Whole = False,
    refused: Refused = False,
    facts: Facts = False,
    suggest: Suggest = True,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Also show what sparse contractions decided when the model ran: "
            "a file made by PITC_TRACE or pitc bench.",
        ),
    ] = None,
    report: ReportFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Draw time over density of the decisions; needs matplotlib.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show how much of the work is skipped, what stops the rest, and what becomes of each node."""
    from pitc.cli import explain as action

    action.explain_model(
        model,
        padding,
        target,
        node,
        whole=whole,
        refused=refused,
        facts=facts,
        suggest=suggest,
        trace=trace,
        output=report,
        plot=plot,
        json=json,
    )


@app.command(cls=Command, epilog="Example: pitc inspect model.pitc --ep")
def inspect(
    artifact: Annotated[
        Path | None, typer.Argument(metavar="ARTIFACT", help="A folder *.pitc.")
    ] = None,
    ep: Annotated[
        bool,
        typer.Option(
            "--ep", help="Also load it, and show which execution provider runs which nodes."
        ),
    ] = False,
    tiles: Annotated[
        bool, typer.Option("--tiles", help="Show the tile table in force instead of an artifact.")
    ] = False,
    json: Json = False,
) -> None:
    """Show what an artifact is, what is in it, and whether it runs here."""
    if tiles:
        from pitc.cli.tiles import inspect_tiles

        inspect_tiles(artifact, json=json)
    else:
        from pitc.cli.inspect import inspect_artifact

        inspect_artifact(artifact, ep=ep, json=json)


@app.command(cls=Command, epilog="Example: pitc tune --quick")
def tune(
    level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="CPU level of the kernels, v4 or v3; default: the best that runs here.",
            autocompletion=lambda: ["v4", "v3"],
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure fewer points, in about a minute.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what an interrupted tuning has measured.")
    ] = False,
    tiles: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Tile table to make or change; default: the user's own, in the cache folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    """Measure what sparse contractions cost on this machine.

    Takes minutes, on one core. Ctrl-C stops it; the next start goes on where it was.
    """
    from pitc.cli import tiles as action

    action.tune_machine(level, tiles, quick=quick, restart=restart, quiet=quiet, json=json)


cache_app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Show or delete compiled kernels; PITC_CACHE_DIR names another folder for them.",
    epilog="Example: pitc cache info",
)
app.add_typer(cache_app, name="cache")


@cache_app.command(cls=Command, name="info", epilog="Example: pitc cache info --json")
def cache_info(json: Json = False) -> None:
    """Show where compiled kernels are kept, how many, and how much room they take."""
    from pitc.cli import cache as action

    action.cache_info(json=json)


@cache_app.command(cls=Command, name="clear", epilog="Example: pitc cache clear")
def cache_clear(json: Json = False) -> None:
    """Delete all compiled kernels; the next compilation makes its own again."""
    from pitc.cli import cache as action

    action.clear_cache(json=json)


@app.command(cls=Command, epilog="Example: pitc doctor")
def doctor(json: Json = False) -> None:
    """Check this machine and installation."""
    from pitc.cli import inspect as action

    action.doctor(json=json)


@app.command(cls=Command)
def version() -> None:
    """Print the version."""
    from pitc.version import __version__

    print(f"pitc {__version__}")
