"""`pitc bench`."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pitc.artifact.folder import check_file
from pitc.artifact.manifest import FALLBACK
from pitc.check.double import run_in_double
from pitc.check.feeds import Case, parse_shapes
from pitc.check.reference import contract_of, reference_session
from pitc.check.tokens import LiveTokens, token_axes
from pitc.check.tolerance import arithmetic_of, arithmetic_on
from pitc.cli import command_line, show
from pitc.cli.models import given_dims, open_model, read_inputs, specs_of
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.plot import check_plot, draw
from pitc.cli.steps import Steps
from pitc.compiled import CompiledModel
from pitc.config import resolve
from pitc.errors import MachineError, UsageError, VerificationError
from pitc.host.machine import cpu_level, cpu_name, installed
from pitc.importer import load_model
from pitc.ir.plan import CUDA_EP_NAME
from pitc.measure.bench import (
    BASE,
    OURS,
    PEERS,
    Contender,
    Race,
    WrongAnswer,
    chosen_peers,
    make_case,
    of_session,
    race,
    session_options,
    unoptimised_options,
)
from pitc.measure.memory import peak_bytes
from pitc.measure.profile import profiles
from pitc.measure.timing import CPU_TIME, WALL_TIME
from pitc.measure.trace import Contraction, contractions, race_dense
from pitc.measure.trace_channels import Convolution, convolutions
from pitc.report.evidence import Evidence
from pitc.report.write import write_report
from pitc.session import plain_session, run_session

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
    counts = _lengths(lengths)
    if counts and mean is not None:
        raise UsageError("--lengths and --mean exclude each other")
    given = read_inputs(inputs)
    compiled = open_model(model, padding, target, quiet)
    padding, contract = compiled.manifest.options.padding, contract_of(compiled)
    source = compiled.path / FALLBACK if os.path.isdir(model) else model
    reference, live = plain_session(source), LiveTokens(source, padding)
    names = [value.name for value in reference.get_inputs()]
    if given and all(name in given for name in names):
        if counts or mean is not None or shapes:
            raise UsageError("--lengths, --mean and --shape have no effect: every input is given")
        case = Case("given", {}, given)
    else:
        specs = specs_of(compiled, given)
        dims = given_dims(specs, given) | parse_shapes(shapes, specs)
        missing = [s for s in specs if s.name not in given]
        made = make_case(missing, dims, padding=live.masks, lengths=counts, mean=mean, seed=seed)
        case = Case(made.pattern, made.dims, made.feeds | given)
    counts_of_live = _live(case, live)
    try:
        run_session(reference, case.feeds)
    except UsageError as error:
        if not case.dims or shapes:
            raise
        sizes = ", ".join(f"{name}={size}" for name, size in case.dims.items())
        raise UsageError(error.message, hint=f"sizes were {sizes}; choose by --shape") from error
    with warnings_as_lines():
        session = compiled.session(session_options())
    run_session(session, case.feeds)  # what is wrong with the inputs is told as such
    on_gpu = CUDA_EP_NAME in session.get_providers()
    if on_gpu:
        _refuse_on_gpu(trace, report)
    contenders = [
        Contender(BASE, BASE, lambda: of_session(plain_session(source, session_options()))),
        Contender(OURS, "pitc", lambda: of_session(session)),
        *(Contender(name, name, lambda name=name: PEERS[name](source)) for name in peers),  # type: ignore[misc]
    ]
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
            found = race(
                contenders,
                case,
                rounds=rounds,
                seconds=seconds,
                padding=live,
                token_outputs=token_axes(compiled.report),
                tolerance=tolerance,
                arithmetic=arithmetic_on(session, arithmetic_of(load_model(source))),
                double=lambda: run_in_double(load_model(source), unoptimised_options),
                plain=lambda: partial(
                    run_session, reference_session(source, contract, unoptimised_options())[0]
                ),
                expected=partial(run_session, reference_session(source, contract)[0]),
                clock=WALL_TIME if on_gpu else CPU_TIME,
                stage=steps,
                progress=progress,
            )
            if trace:
                steps("trace")
                chosen, dense = race_dense(
                    compiled,
                    case.feeds,
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
                known = replace(known, race=found, live=counts_of_live)
                known = _profiled(known, compiled, source, case)
    except WrongAnswer as error:
        if json:
            print_json(error.comparison.to_dict())
        else:
            show.verified(error.comparison)
        text = "the compiled model differs from ONNX Runtime; nothing was timed"
        raise VerificationError(text, path=model) from error
    where = ", peers on the CPU" if on_gpu else ""
    rounds_done = len(found.timings[0].rounds_ms)
    counted = f"{rounds_done} round{'s' * (rounds_done != 1)}"
    title = f"{_title(model, case, counts_of_live)}; one thread, {found.clock}{where}, {counted}"
    _show(found, traced, model, case, padding, counts_of_live, title, json=json)
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


def _profiled(known: Evidence, compiled: CompiledModel, source: Path, case: Case) -> Evidence:
    """What is known, with times of nodes and peak memory."""
    peaks = {BASE: peak_bytes(source, case.feeds), OURS: peak_bytes(compiled.path, case.feeds)}
    return replace(
        known,
        profiles=profiles(compiled, source, case.feeds),
        memory={name: peak for name, peak in peaks.items() if peak is not None},
    )


def _show(
    found: Race,
    traced: tuple[list[Contraction], list[Convolution]] | None,
    model: Path,
    case: Case,
    padding: str | None,
    live: tuple[int, int] | None,
    title: str,
    *,
    json: bool,
) -> None:
    if not json:
        show.raced(found, title)
        if traced is not None:
            show.decided(*traced)
        return
    body: dict[str, Any] = {
        "model": model.name,
        "padding": padding,
        "inputs": {name: list(x.shape) for name, x in case.feeds.items()},
        "tokens": live and {"live": live[0], "places": live[1]},
        "rounds": len(found.timings[0].rounds_ms),
        "machine": {
            "cpu": cpu_name(),
            "level": cpu_level(),
            "onnxruntime": installed("onnxruntime"),
            "threads": 1,
        },
    }
    if traced is not None:
        products, gated = traced
        body["contractions"] = [c.to_dict() for c in products]
        body["convolutions"] = [c.to_dict() for c in gated]
    print_json(body | found.to_dict())


def _live(case: Case, live: LiveTokens) -> tuple[int, int] | None:
    """Live and all tokens, where masks are known."""
    real = live(case.feeds).values()
    return (sum(int(x.sum()) for x in real), sum(x.size for x in real)) if real else None


def _title(model: Path, case: Case, counts: tuple[int, int] | None) -> str:
    """What was timed, in one line."""
    shapes = " ".join(f"{n}={'x'.join(map(str, x.shape))}" for n, x in case.feeds.items())
    tokens = f", {counts[0]} of {counts[1]} tokens live" if counts else ""
    return f"{model.name}: {shapes}{tokens}"


def _lengths(text: str | None) -> list[int]:
    """Read `12,40,128`."""
    parts = text.split(",") if text is not None else []
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"lengths {text!r} are not N,N,...")
    return [int(part) for part in parts]
