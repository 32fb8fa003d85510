"""The commands. Nothing but typer and rich is imported before one of them runs."""

from pathlib import Path
from typing import Annotated

import typer

from pitc.cli import options
from pitc.cli.command import Command, declare
from pitc.cli.log import log_to

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="pitc",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=HELP_NAMES,
    help="Compile ONNX graphs for dynamic sparsity: "
    "zeros and unread values whose positions are known only when the model runs.",
    epilog="Example: [bold]pitc compile model.onnx --padding attention_mask[/bold]. "
    "Exit codes: 0 ok, 1 bug, 2 usage, 3 model, 4 verification, 5 artifact, 6 machine.",
)
cache = typer.Typer(
    no_args_is_help=True,
    context_settings=HELP_NAMES,
    help="Show or delete compiled kernels; PITC_CACHE_DIR names another folder for them.",
    epilog="Example: pitc cache info",
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


for command, action in (
    (options.Compile, "compile.compile_model"),
    (options.Run, "run.run_model"),
    (options.Verify, "verify.verify_model"),
    (options.Bench, "bench.bench_model"),
    (options.Explain, "explain.explain_model"),
    (options.Inspect, "inspect.inspect_file"),
    (options.Export, "export.export_folder"),
    (options.Gradient, "gradient.make_gradient"),
    (options.Tune, "tiles.tune_machine"),
    (options.Doctor, "inspect.doctor"),
):
    declare(app, command.__name__.lower(), command, action)
app.add_typer(cache, name="cache")
declare(cache, "info", options.CacheInfo, "cache.cache_info")
declare(cache, "clear", options.CacheClear, "cache.clear_cache")


@app.command(cls=Command)
def version(quiet: options.Quiet = None) -> None:
    """Print the version."""
    from pitc.version import __version__

    print(f"pitc {__version__}")
