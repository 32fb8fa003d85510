"""`pitc bench`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pitc.artifact.folder import check_file
from pitc.cli import command_line, show, show_race
from pitc.cli.models import open_model, read_inputs, settings_of
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.plot import check_plot, draw
from pitc.cli.steps import Steps
from pitc.errors import MachineError, UsageError, VerificationError
from pitc.measure.bench import BASE, OURS, WrongAnswer, chosen_peers
from pitc.measure.benchmark import DIFFERS, Bencher, Benchmark, title_of
from pitc.measure.memory import peak_bytes
from pitc.measure.profile import profiles
from pitc.measure.trace import contractions, race_dense
from pitc.measure.trace_channels import convolutions
from pitc.measure.trace_groups import grouped_products
from pitc.measure.trace_pairs import attentions
from pitc.report.evidence import Evidence
from pitc.report.write import write_report

if TYPE_CHECKING:
    from pitc.cli.options import Bench

STAGES = ("load", "check", "time")


def bench_model(options: "Bench") -> None:
    """`pitc bench`."""
    peers, trace = chosen_peers(options.against or []), _traces(options)
    _check_files(options)
    if options.threads > 1 or options.streams:
        _refuse_beside_threads({"trace": trace, "report": options.report})
    if options.streams and options.plot is not None:
        raise UsageError("--plot shows times, and no throughput", hint="omit --streams or --plot")
    counts = _lengths(options.lengths)
    if counts and options.mean is not None:
        raise UsageError("--lengths and --mean exclude each other")
    given = read_inputs(options.input)
    opened = open_model(options)
    compiled = opened.compiled
    with warnings_as_lines():
        bencher = Bencher(
            opened,
            given,
            lengths=counts,
            mean=options.mean,
            shapes=options.shape or [],
            seed=options.seed,
            threads=options.threads,
            streams=options.streams or 0,
        )
    if bencher.on_gpu:
        _refuse_on_gpu(options)
    known = Evidence(command_line(), compiled.manifest.versions)
    try:
        known = _measured(options, bencher, peers, known)
    except WrongAnswer as error:
        if options.json:
            print_json(error.comparison.to_dict())
        else:
            show.verified(error.comparison)
        raise VerificationError(DIFFERS, path=options.model) from error
    assert known.race is not None
    result = bencher.result(known.race)
    title = title_of(result, on_gpu=bencher.on_gpu)
    _show(result, known, title, json=options.json)
    if options.plot is not None:
        draw(options.plot, known.race, title)
    if options.report is not None:
        write_report(options.report, list(compiled.reports.values()), replace(known, timed=title))
    left_out = known.race.left_out
    if missing_peers := [name for name in options.against or [] if name in left_out]:
        name = missing_peers[0]
        raise MachineError(f"peer {name!r} was not timed: {left_out[name]}")


def _traces(options: "Bench") -> bool:
    return options.trace or options.trace_file is not None


def _measured(
    options: "Bench", bencher: Bencher, peers: Sequence[str], known: Evidence
) -> Evidence:
    """What is known, with all that is measured."""
    compiled, feeds = bencher.compiled, bencher.case.feeds
    stages = *STAGES, *["trace"] * _traces(options), *["profile"] * (options.report is not None)
    quiet = settings_of(options).quiet
    with warnings_as_lines(), Steps(stages, quiet=quiet) as steps:
        progress = partial(steps.kernels, total=options.rounds, symbol="rounds")
        limits: Any = {"rounds": options.rounds, "seconds": options.seconds}
        found = bencher.race(
            peers, **limits, tolerance=options.tolerance, stage=steps, progress=progress
        )
        known = replace(known, race=found, live=bencher.live)
        if _traces(options):
            steps("trace")
            keep = options.trace_file
            chosen, dense = race_dense(compiled, feeds, **limits, keep=keep, progress=progress)
            known = replace(
                known,
                decisions=chosen.products,
                contractions=contractions(chosen.products, dense.products),
                convolutions=convolutions(chosen.channels),
                attentions=attentions(chosen.pairs),
                grouped=grouped_products(chosen.groups),
            )
        if options.report is not None:
            steps("profile")
            sides = {BASE: bencher.source, OURS: compiled.path}
            peaks = {name: peak_bytes(side, feeds) for name, side in sides.items()}
            known = replace(
                known,
                profiles=profiles(compiled, bencher.source, feeds),
                memory={name: peak for name, peak in peaks.items() if peak is not None},
            )
    return known


def _check_files(options: "Bench") -> None:
    """Refuse files that cannot be made, before any work is done."""
    if options.plot is not None:
        check_plot(options.plot)
    if options.report is not None:
        check_file(options.report, (".json", ".html"), "report")
    if options.trace_file is not None:
        check_file(options.trace_file, (".jsonl",), "trace")


def _refuse_on_gpu(options: "Bench") -> None:
    if _traces(options):
        hint = "name a file by the session option ep.pitcudaexecutionprovider.trace"
        raise UsageError("--trace shows what CPUs decide, and it runs on a GPU", hint=hint)
    if options.report is not None:
        text = "--report takes times of nodes and memory on CPUs, and it runs on a GPU"
        raise UsageError(text, hint="omit --report; --json prints what is timed")


def _refuse_beside_threads(options: Mapping[str, object]) -> None:
    """Refuse what shows the times of one thread."""
    for name, value in options.items():
        if value:
            text = f"--{name} shows times of one thread"
            raise UsageError(text, hint="omit --threads and --streams")


def _show(result: Benchmark, known: Evidence, title: str, *, json: bool) -> None:
    if json:
        body = result.to_dict()
        if known.contractions is not None:
            body["contractions"] = [asdict(c) for c in known.contractions]
            body["convolutions"] = [asdict(c) for c in known.convolutions]
            body["attentions"] = [asdict(a) for a in known.attentions]
            body["grouped"] = [asdict(g) for g in known.grouped]
        print_json(body)
        return
    show_race.raced(result.race, title)
    if known.contractions is not None:
        show.decided(known)


def _lengths(text: str | None) -> list[int]:
    """Read `12,40,128`."""
    parts = text.split(",") if text is not None else []
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"lengths {text!r} are not N,N,...")
    return [int(part) for part in parts]
