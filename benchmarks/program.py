"""The command line: `python -m benchmarks [CASE ...]`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.cases import CASES, Case, CompileCase, FootprintCase, shortened
from benchmarks.contenders import BASE, CONTENDERS, OURS
from benchmarks.footprint import measure_footprint
from benchmarks.machine import machine_facts, measure_limits
from benchmarks.report import RESULTS, save, table
from benchmarks.run import SCHEMA, TOLERANCE, describe, time_case, time_compile
from pitc.errors import PitcError, UsageError
from pitc.timing import allowed_cores, one_core

COMPILE_ROUNDS = 3


def chosen(names: list[str]) -> list[Case]:
    """The cases of these names, all of them when there is no name.

    Raises:
        UsageError: A name is not a case.
    """
    known = {case.name: case for case in CASES}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no case {name!r}", hint=f"cases: {', '.join(known)}")
    return [known[name] for name in names or known]


def run_cases(
    cases: list[Case], rounds: int, names: list[str], console: Console
) -> list[dict[str, Any]]:
    """Run cases on one core, print a table after each, and return the results."""
    contenders = [c for c in CONTENDERS if not names or c.name in (BASE, OURS, *names)]
    cores, results = allowed_cores(), []

    def say(line: str) -> None:
        console.print(f"  {line}", style="dim", highlight=False)

    with one_core():
        limits = measure_limits()
        facts = machine_facts() | {"limits": limits}
        for case in cases:
            if isinstance(case, CompileCase):
                measured = time_compile(case, min(rounds, COMPILE_ROUNDS), cores, say)
            elif isinstance(case, FootprintCase):
                measured = measure_footprint(case, rounds, cores, say)
            else:
                measured = time_case(case, rounds, limits, contenders, say)
            head = {"schema": SCHEMA, "case": describe(case), "machine": facts}
            results.append(head | measured)
            console.print(table(results[-1]))
    return results


def wrong(result: dict[str, Any]) -> bool:
    """Whether the compiled model's answer is not the model's."""
    return any(
        row["name"] == OURS and (row["error"] is None or row["error"] > TOLERANCE)
        for row in result.get("contenders", [])
    )


def command(
    cases: Annotated[
        list[str] | None, typer.Argument(help="Cases; all of them by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all results of this run to one file.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Encoder layers, for short development runs.")
    ] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="Only this peer beside the baseline; may be repeated.")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Folder of the result files.", show_default="benchmarks/results")
    ] = RESULTS,
) -> None:
    """Time compiled models against their peers, on one pinned thread.

    A full run writes one file per case; runs with --layers or --against are for development and
    write only --json.
    """
    console = Console()
    try:
        picked = chosen(cases or [])
        peers = [c.name for c in CONTENDERS]
        for name in against or []:
            if name not in peers:
                raise UsageError(f"there is no peer {name!r}", hint=f"peers: {', '.join(peers)}")
        if layers is not None:
            picked = [shortened(case, layers) for case in picked]
        found = run_cases(picked, rounds, against or [], console)
    except PitcError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False)
        raise typer.Exit(error.exit_code) from None
    if layers is None and not against:
        for result in found:
            save(result, results)
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if any(map(wrong, found)):
        raise typer.Exit(4)


def main() -> None:
    """Run the command."""
    typer.run(command)
