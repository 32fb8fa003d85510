"""The command line: `python -m benchmarks [CASE|FAMILY ...]`."""

import json
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.attention_cases import AttentionMemoryCase
from benchmarks.attention_memory import measure_memory
from benchmarks.cases import (
    CASES,
    Case,
    CompileCase,
    FootprintCase,
    TallCase,
    ThreadsCase,
    shortened,
    source,
)
from benchmarks.compiling import time_compile, time_tall
from benchmarks.contenders import CONTENDERS, OURS
from benchmarks.footprint import measure_footprint
from benchmarks.machine import machine_facts, measure_limits
from benchmarks.report import RESULTS, save, table, with_verdicts
from benchmarks.run import SCHEMA, Say, describe, time_case, tolerance_of
from benchmarks.threads import measure_threads
from benchmarks.workload import Shared
from benchmarks.worst import beyond, measure_worst
from benchmarks.worst_cases import WorstCase, cases_of
from pitc.errors import PitcError, UsageError
from pitc.measure.timing import allowed_cores, pinned

COMPILE_ROUNDS = 3


def chosen(names: list[str]) -> list[Case]:
    """The cases of these names and families, all of them when there is no name.

    Raises:
        UsageError: A name is neither a case nor a family.
    """
    families = list(dict.fromkeys(case.family for case in CASES))
    known = [case.name for case in CASES]
    for name in names:
        if name not in (*families, *known):
            few = [n for n in known if n.startswith(name.split("-")[0])] or known[:9]
            hint = f"families: {', '.join(families)}; cases: {', '.join(few)}"
            raise UsageError(f"there is no case {name!r}", hint=hint)
    return [case for case in CASES if not names or {case.name, case.family} & set(names)]


def run_case(
    case: Case,
    rounds: int,
    names: list[str],
    limits: dict[str, float],
    cores: set[int],
    say: Say,
    shared: Shared,
) -> dict[str, Any]:
    """Measure one case of any kind; `names` are the peers, all of them when empty."""
    if isinstance(case, CompileCase):
        return time_compile(case, min(rounds, COMPILE_ROUNDS), cores, say)
    if isinstance(case, TallCase):
        return time_tall(case, min(rounds, COMPILE_ROUNDS), cores, say)
    if isinstance(case, FootprintCase):
        return measure_footprint(case, rounds, cores, say)
    if isinstance(case, WorstCase):
        return _worst(case, rounds, cores, say)
    if isinstance(case, AttentionMemoryCase):
        return measure_memory(case, cores, say)
    if isinstance(case, ThreadsCase):
        return measure_threads(case, rounds, cores, say)
    table = CONTENDERS[type(case)]
    contenders = [c for c in table if not names or c is table[0] or c.name in (OURS, *names)]
    return time_case(case, rounds, limits, contenders, say, shared)


def _of_folder(names: list[str], folder: Path) -> list[Case]:
    """Cases of the ONNX files of a folder: all, or those of these names.

    Raises:
        UsageError: There is none, or a name is none of them.
    """
    cases = {case.name: case for case in cases_of(folder)}
    if unknown := [n for n in names if n != WorstCase.family and n not in cases]:
        hint = f"cases: {', '.join(cases)}"
        raise UsageError(f"there is no case {unknown[0]!r}", hint=hint)
    return [cases[n] for n in names if n in cases] or list(cases.values())


def _worst(case: WorstCase, rounds: int, cores: set[int], say: Say) -> dict[str, Any]:
    """Measure a model at all sizes; one that fails does not end the others."""
    try:
        return measure_worst(case, rounds, cores, say)
    except (PitcError, MemoryError) as error:
        return {"worst": [], "skipped": [], "failed": " ".join(str(error).split())}


def run_cases(
    cases: list[Case], rounds: int, names: list[str], console: Console
) -> Iterator[dict[str, Any]]:
    """Run cases on one core, print a table after each, and yield the results."""
    cores = allowed_cores()

    def say(line: str) -> None:
        console.print(f"  {line}", style="dim", highlight=False)

    with pinned(1):
        limits = measure_limits()
        facts = machine_facts() | {"limits": limits}
        for _, group in groupby(cases, key=source):
            with tempfile.TemporaryDirectory() as folder:
                shared = Shared(Path(folder))
                for case in group:
                    measured = run_case(case, rounds, names, limits, cores, say, shared)
                    head = {"schema": SCHEMA, "case": describe(case), "machine": facts}
                    result = with_verdicts(head | measured)
                    console.print(table(result))
                    yield result


def wrong(result: dict[str, Any]) -> bool:
    """Whether the compiled model's answer is not the model's."""
    limit = tolerance_of(result.get("case", {}))
    if any(row["wrong"] for row in result.get("worst", [])):
        return True
    return any(
        row["name"] == OURS and (row["error"] is None or row["error"] > limit)
        for row in result.get("contenders", [])
    )


def command(
    cases: Annotated[
        list[str] | None, typer.Argument(help="Cases or families; all of them by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all results of this run to one file.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of the models, for short development runs.")
    ] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="Only this peer beside the baseline; may be repeated.")
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="Run the ONNX files of this folder, each as a case of worst-case."),
    ] = None,
    times: Annotated[
        bool, typer.Option(help="Without times, worst-case tells answers and memory only.")
    ] = True,
    results: Annotated[
        Path, typer.Option(help="Folder of the result files.", show_default="benchmarks/results")
    ] = RESULTS,
) -> None:
    """Time compiled models against their peers, on one pinned thread.

    Ends with 4 where an answer is wrong, and with 1 where a model of the family worst-case takes
    more time or memory than it may. A full run writes one file per case; runs with --layers,
    --against, --models or --no-times write only --json.
    """
    console, found = Console(), []
    try:
        picked = chosen(cases or []) if models is None else _of_folder(cases or [], models)
        if not times and not all(isinstance(case, WorstCase) for case in picked):
            raise UsageError("--no-times is for cases of the family worst-case")
        peers = list(dict.fromkeys(c.name for table in CONTENDERS.values() for c in table))
        for name in against or []:
            if name not in peers:
                raise UsageError(f"there is no peer {name!r}", hint=f"peers: {', '.join(peers)}")
        if layers is not None:
            picked = [shortened(case, layers) for case in picked]
        for result in run_cases(picked, rounds if times else 0, against or [], console):
            found.append(result)
            if layers is None and not against and models is None and times:
                save(result, results)
    except PitcError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False)
        raise typer.Exit(error.exit_code) from None
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if any(map(wrong, found)):
        raise typer.Exit(4)
    if any(map(beyond, found)):
        raise typer.Exit(1)


def main() -> None:
    """Run the command."""
    typer.run(command)
