"""`pitc bench`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pitc.artifact.folder import check_file
from pitc.artifact.manifest import FALLBACK
from pitc.check.opened import Opened
from pitc.cli import command_line, show, show_race
from pitc.cli.models import open_model, read_inputs
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.plot import check_plot, draw
from pitc.cli.steps import Steps
from pitc.config import resolve
from pitc.errors import MachineError, UsageError, VerificationError
from pitc.measure.bench import BASE, OURS, WrongAnswer, chosen_peers
from pitc.measure.benchmark import DIFFERS, Bencher, Benchmark, title_of
from pitc.measure.memory import peak_bytes
from pitc.measure.profile import profiles
from pitc.measure.trace import Contraction, contractions, race_dense
from pitc.measure.trace_channels import Convolution, convolutions
from pitc.report.evidence import Evidence
from pitc.report.write import write_report

STAGES = ("load", "check", "time")


def bench_model(
    model: Path,
    *,
    inputs: Sequence[str],
    padding: str | None,
    target: str | None,
    lengths: str | None,
    mean: int | None,
    shapes: Sequence[str],
    seed: int,
    against: Sequence[str],
    rounds: int,
    seconds: float,
    threads: int,
    streams: int | None,
    tolerance: float | None,
    trace: bool,
    trace_file: Path | None,
    plot: Path | None,
    report: Path | None,
    quiet: bool | None,
    json: bool,
) -> None:
    """`pitc bench`."""
    peers = chosen_peers(against)
    _check_files(plot, report, trace_file)
    if threads > 1 or streams:
        _refuse_beside_threads({"trace": trace, "report": report})
    if streams and plot is not None:
        raise UsageError("--plot shows times, and no throughput", hint="omit --streams or --plot")
    counts = _lengths(lengths)
    if counts and mean is not None:
        raise UsageError("--lengths and --mean exclude each other")
    given = read_inputs(inputs)
    compiled = open_model(model, padding, target, quiet)
    source = compiled.path / FALLBACK if os.path.isdir(model) else model
    with warnings_as_lines():
        bencher = Bencher(
            Opened(compiled, source, model.name),
            given,
            lengths=counts,
            mean=mean,
            shapes=shapes,
            seed=seed,
            threads=threads,
            streams=streams or 0,
        )
    if bencher.on_gpu:
        _refuse_on_gpu(trace, report)
    feeds = bencher.case.feeds
    traced: tuple[list[Contraction], list[Convolution]] | None = None
    known = Evidence(command_line(), compiled.manifest.versions)
    try:
        with (
            warnings_as_lines(),
            Steps(
                (*STAGES, *["trace"] * trace, *["profile"] * (report is not None)),
                quiet=resolve({"quiet": quiet}).quiet,
            ) as steps,
        ):
            progress = partial(steps.kernels, total=rounds, symbol="rounds")
            found = bencher.race(
                peers,
                rounds=rounds,
                seconds=seconds,
                tolerance=tolerance,
                stage=steps,
                progress=progress,
            )
            if trace:
                steps("trace")
                chosen, dense = race_dense(
                    compiled,
                    feeds,
                    rounds=rounds,
                    seconds=seconds,
                    keep=trace_file,
                    progress=progress,
                )
                products = contractions(chosen.products, dense.products)
                traced = products, convolutions(chosen.channels)
                known = replace(
                    known,
                    decisions=chosen.products,
                    contractions=products,
                    convolutions=traced[1],
                )
            if report is not None:
                steps("profile")
                known = _profiled(replace(known, race=found, live=bencher.live), bencher)
    except WrongAnswer as error:
        if json:
            print_json(error.comparison.to_dict())
        else:
            show.verified(error.comparison)
        raise VerificationError(DIFFERS, path=model) from error
    result = bencher.result(found)
    title = title_of(result, on_gpu=bencher.on_gpu)
    _show(result, traced, title, json=json)
    if plot is not None:
        draw(plot, found, title)
    if report is not None:
        write_report(report, list(compiled.reports.values()), replace(known, timed=title))
    if missing_peers := [name for name in against if name in found.left_out]:
        name = missing_peers[0]
        raise MachineError(f"peer {name!r} was not timed: {found.left_out[name]}")


def _check_files(plot: Path | None, report: Path | None, trace_file: Path | None) -> None:
    """Refuse files that cannot be made, before any work is done."""
    if plot is not None:
        check_plot(plot)
    if report is not None:
        check_file(report, (".json", ".html"), "report")
    if trace_file is not None:
        check_file(trace_file, (".jsonl",), "trace")


def _refuse_on_gpu(trace: bool, report: Path | None) -> None:
    if trace:
        hint = "name a file by the session option ep.pitcudaexecutionprovider.trace"
        raise UsageError("--trace shows what CPUs decide, and it runs on a GPU", hint=hint)
    if report is not None:
        text = "--report takes times of nodes and memory on CPUs, and it runs on a GPU"
        raise UsageError(text, hint="omit --report; --json prints what is timed")


def _refuse_beside_threads(options: Mapping[str, object]) -> None:
    """Refuse what shows the times of one thread."""
    for name, value in options.items():
        if value:
            text = f"--{name} shows times of one thread"
            raise UsageError(text, hint="omit --threads and --streams")


def _profiled(known: Evidence, bencher: Bencher) -> Evidence:
    """What is known, with times of nodes and peak memory."""
    compiled, source, feeds = bencher.compiled, bencher.source, bencher.case.feeds
    peaks = {BASE: peak_bytes(source, feeds), OURS: peak_bytes(compiled.path, feeds)}
    return replace(
        known,
        profiles=profiles(compiled, source, feeds),
        memory={name: peak for name, peak in peaks.items() if peak is not None},
    )


def _show(
    result: Benchmark,
    traced: tuple[list[Contraction], list[Convolution]] | None,
    title: str,
    *,
    json: bool,
) -> None:
    if json:
        body = result.to_dict()
        if traced is not None:
            body["contractions"] = [c.to_dict() for c in traced[0]]
            body["convolutions"] = [c.to_dict() for c in traced[1]]
        print_json(body)
        return
    show_race.raced(result.race, title)
    if traced is not None:
        show.decided(*traced)


def _lengths(text: str | None) -> list[int]:
    """Read `12,40,128`."""
    parts = text.split(",") if text is not None else []
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"lengths {text!r} are not N,N,...")
    return [int(part) for part in parts]
