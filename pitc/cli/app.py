"""Commands and options. Nothing but typer and rich is imported before a command runs."""

from pathlib import Path
from typing import Annotated

import typer

from pitc.cli.app_check import bench, run, verify
from pitc.cli.app_files import export, inspect
from pitc.cli.command import Command
from pitc.cli.explain_options import Facts, NodePattern, Refused, Whole
from pitc.cli.log import log_to
from pitc.cli.options import (
    OUTPUT,
    CustomOps,
    Either,
    Json,
    Padding,
    Quiet,
    ReportFile,
    Suggest,
    Target,
    Tiles,
    register,
)

app = typer.Typer(
    name="pitc",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile ONNX graphs for dynamic sparsity: "
    "zeros and unread values whose positions are known only when the model runs.",
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
            help="Log the steps to stderr; -vv: everything. Also after the command.",
        ),
    ] = 0,
    log_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append the whole log to a file. Also after the command."
        ),
    ] = None,
) -> None:
    """The options of every command."""
    log_to(verbose=verbose, log_file=log_file)


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
            metavar="DIR",
            help="Write the graph after each stage, and the sources of kernels.",
            rich_help_panel=OUTPUT,
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
        typer.Option("--dry-run", help="Print all decisions; build no kernel and no artifact."),
    ] = False,
    stop_after: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE",
            help="A dry run that ends after normalise, facts, regions or lower; "
            "--dump-ir writes the graphs up to there.",
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


app.command(cls=Command, epilog="Example: pitc run model.pitc --input batch.npz --save out.npz")(
    run
)
app.command(cls=Command, epilog="Example: pitc verify model.onnx --padding attention_mask --facts")(
    verify
)
app.command(
    cls=Command, epilog="Example: pitc bench model.onnx --padding attention_mask --lengths 9,40,128"
)(bench)


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
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    """Show how much of the work is skipped, what stops the rest, and how each node runs."""
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


app.command(cls=Command, epilog="Example: pitc inspect model.pitc --ep")(inspect)
app.command(cls=Command, epilog="Example: pitc export my-checkpoint -o model.onnx")(export)


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
        bool, typer.Option("--restart", help="Discard the measurements of an interrupted tuning.")
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

    Takes minutes, on one core. Ctrl-C stops it; the next start continues from there.
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
def cache_info(quiet: Quiet = None, json: Json = False) -> None:
    """Show where compiled kernels are kept, how many, and how much room they take."""
    from pitc.cli import cache as action

    action.cache_info(json=json)


@cache_app.command(cls=Command, name="clear", epilog="Example: pitc cache clear")
def cache_clear(quiet: Quiet = None, json: Json = False) -> None:
    """Delete all compiled kernels; the next compilation builds them again."""
    from pitc.cli import cache as action

    action.clear_cache(json=json)


@app.command(cls=Command, epilog="Example: pitc doctor")
def doctor(quiet: Quiet = None, json: Json = False) -> None:
    """Check this machine and installation."""
    from pitc.cli import inspect as action

    action.doctor(json=json)


@app.command(cls=Command)
def version(quiet: Quiet = None) -> None:
    """Print the version."""
    from pitc.version import __version__

    print(f"pitc {__version__}")
