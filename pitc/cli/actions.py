"""What each command does. Heavy libraries are imported where they are used."""

import fnmatch
import json as jsonlib
import os
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from pitc import api
from pitc.artifact.check import check_artifact
from pitc.artifact.folder import check_file, new_file
from pitc.artifact.manifest import FALLBACK
from pitc.cli import show
from pitc.cli.steps import Steps
from pitc.config import resolve
from pitc.errors import (
    MachineError,
    PitcError,
    UsageError,
    VerificationError,
)
from pitc.ir.report import NodeRecord, Report
from pitc.session import arrays, plain_session, run_session

if TYPE_CHECKING:
    from pitc.check.feeds import Case, InputSpec
    from pitc.config import Settings
    from pitc.ir.region import Test
    from pitc.measure.trace import Trace

#: Version of what `--json` prints.
JSON_SCHEMA = 1


def print_json(body: Mapping[str, Any]) -> None:
    """One JSON object on stdout. NaN and infinities, which JSON lacks, become null."""
    print(jsonlib.dumps({"schema": JSON_SCHEMA} | _finite(dict(body)), indent=1))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Show pitc's own warnings as one line each on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", api.PitcWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, api.PitcWarning):
            print(f"warning: {warning.message}", file=sys.stderr)


def print_config(settings: "Settings", *, json: bool) -> None:
    """`pitc compile --print-config`."""
    if json:
        from pitc.config import key_of

        print_json({"config": {key_of(n): asdict(v) for n, v in settings.by_name.items()}})
    else:
        print(settings.toml(), end="")


def compile_model(
    model: Path | None, settings: "Settings", *, force: bool, check: bool, json: bool
) -> None:
    """`pitc compile`."""
    if model is None:
        raise UsageError("Missing argument 'MODEL.onnx'", hint="see pitc compile --help")
    folder = settings.path("output") or Path(f"{model.stem}.pitc")
    report = settings.path("report")
    if report is not None:
        check_file(report, (".json", ".html"), "report")
    with Steps(api.stages(), quiet=settings.quiet) as steps:
        made = api.compile(
            model,
            settings.target,
            settings.text("padding"),
            output=folder,
            force=force,
            dump_ir=settings.path("dump_ir"),
            check=check,
            tiles=settings.path("tiles"),
            progress=steps,
            kernel_progress=steps.kernels,
        )
    if report is not None:
        from pitc.cli.page import write_report

        write_report(report, list(made.reports.values()))
    if json:
        body = made.manifest.model_dump(mode="json", exclude={"reports"})
        told = {kind: report.to_dict() for kind, report in made.reports.items()}
        print_json(body | {"path": str(folder), "report": made.report.to_dict(), "reports": told})
    else:
        show.compiled(str(folder), made.manifest, list(made.reports.values()))


def open_model(
    model: Path, padding: str | None, target: str | None = None, quiet: bool | None = True
) -> api.CompiledModel:
    """Load an artifact, or compile a model into a temporary one.

    Options that are None come from the environment or a file.
    """
    if os.path.isdir(model):
        _no_options_of_an_artifact(model, padding=padding, target=target)
        return api.load(model)
    settings = resolve({"padding": padding, "target": target, "quiet": quiet})
    with Steps(api.stages(), quiet=settings.quiet) as steps:
        return api.compile(
            model,
            settings.target,
            settings.text("padding"),
            tiles=settings.path("tiles"),
            progress=steps,
            kernel_progress=steps.kernels,
        )


def _no_options_of_an_artifact(model: Path, **options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            hint = f"omit --{name}"
            raise UsageError(f"an artifact has its {name} already", path=model, hint=hint)


def run_model(
    model: Path,
    inputs: Sequence[str],
    shapes: Sequence[str],
    seed: int,
    padding: str | None,
    save: Path | None,
    *,
    json: bool,
) -> None:
    """`pitc run`."""
    from pitc.check.feeds import cases, parse_shapes

    if save is not None:
        check_file(save, (".npz",), "outputs file")
    feeds = read_inputs(inputs)
    compiled = open_model(model, padding)
    specs = specs_of(compiled, feeds)
    missing = [s for s in specs if s.name not in feeds]
    if missing:
        given = given_dims(specs, feeds) | parse_shapes(shapes, specs)
        feeds = next(cases(missing, given, compiled.manifest.options.padding, seed)).feeds | feeds
    elif shapes:
        raise UsageError("--shape has no effect when every input is given")
    with warnings_as_lines():
        found = arrays(compiled.run(feeds))
    if save is not None:
        with new_file(save) as scratch:
            np.savez(scratch, allow_pickle=False, **found)
    if json:
        listed = {
            name: {"dtype": str(a.dtype), "shape": list(a.shape), **show.statistics(a)}
            for name, a in found.items()
        }
        print_json({"outputs": listed, "random_inputs": [s.name for s in missing]})
    else:
        show.outputs(found)


def read_inputs(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Read `FILE.npz` and `NAME=FILE.npy` words."""
    feeds: dict[str, np.ndarray] = {}
    for text in texts:
        name, equals, file = text.rpartition("=")
        if Path(text).suffix == ".npz" and not os.path.isfile(file):
            name, equals, file = "", "", text
        wanted = ".npy" if equals else ".npz"
        if Path(file).suffix != wanted:
            raise UsageError(f"input {text!r} is neither FILE.npz nor NAME=FILE.npy")
        try:
            feeds |= _arrays_of(Path(file), name if equals else None)
        except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
            raise UsageError(f"inputs cannot be read: {reason}", path=file) from error
    return feeds


def _arrays_of(file: Path, name: str | None) -> dict[str, np.ndarray]:
    """The array of a .npy file under a name, or all of a .npz file under their own."""
    with file.open("rb") as stream:
        found = np.load(stream, allow_pickle=False)
        if isinstance(found, np.ndarray) != (name is not None):
            raise ValueError(f"it is no {file.suffix} file")
        return dict(found) if name is None else {name: found}


def given_dims(specs: "Sequence[InputSpec]", feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Sizes of named dimensions, as far as the given inputs fix them."""
    dims: dict[str, int] = {}
    for spec in specs:
        if spec.name in feeds and feeds[spec.name].ndim == len(spec.shape):
            pairs = zip(spec.shape, feeds[spec.name].shape, strict=True)
            dims |= {dim: size for dim, size in pairs if isinstance(dim, str)}
    return dims


def specs_of(compiled: api.CompiledModel, given: Mapping[str, np.ndarray]) -> "list[InputSpec]":
    """The inputs of a compiled model; those that are given need no description."""
    import onnx_ir as ir

    from pitc.check.feeds import input_specs

    return input_specs(ir.load(compiled.path / FALLBACK), given)


def verify_model(
    model: Path,
    against: Path | None,
    *,
    inputs: Sequence[str],
    padding: str | None,
    target: str | None,
    facts: bool,
    tolerance: float | None,
    reduce: Path | None,
    shapes: Sequence[str],
    seed: int,
    quiet: bool | None,
    json: bool,
) -> None:
    """`pitc verify`."""
    from pitc.check.verify import audit_facts, compare, tolerance_on

    if against is not None and not os.path.isdir(model):
        raise UsageError("--against is for artifacts; a model is compared with itself")
    if reduce is not None:
        from pitc.check.reduce import check_output

        if os.path.isdir(model):
            raise UsageError("--reduce needs the model, not an artifact", path=model)
        check_output(reduce)
    given = read_inputs(inputs)
    try:
        compiled = open_model(model, padding, target, quiet)
    except PitcError:
        raise
    except Exception:  # a bug in pitc
        if reduce is not None:
            settings = resolve({"padding": padding, "target": target})
            found = _crash_cases(model, given, shapes, settings.text("padding"), seed)
            show.reduced(_reduce(reduce, model, found, settings, tolerance, quiet))
        raise
    padding = compiled.manifest.options.padding
    source = against or (compiled.path / FALLBACK if os.path.isdir(model) else model)
    with warnings_as_lines():
        session = compiled.session()
    tolerance = tolerance_on(session, tolerance)
    reference = plain_session(source)
    chosen = _cases(compiled, reference, given, shapes, seed)
    result = compare(
        lambda feeds: run_session(session, feeds),
        lambda feeds: run_session(reference, feeds),
        chosen,
        padding=padding,
        token_outputs=token_outputs(reference, padding),
        tolerance=tolerance,
    )
    body = result.to_dict()
    if not json:
        show.verified(result)
    if facts:
        audit = audit_facts(
            api.import_model(source)[0],
            padding,
            [case.feeds for case in chosen],
            lambda tests: _probes(compiled, given, shapes, seed, tests),
        )
        body["facts"] = asdict(audit)
        if not json:
            show.audited(audit)
    if reduce is not None and not result.ok:
        failing = {output.worst for output in result.outputs if not output.ok}
        first = [case for case in chosen if case.title in failing] + chosen
        settings = resolve({"padding": padding, "target": compiled.manifest.options.target})
        body["reduced"] = _reduce(reduce, model, first, settings, tolerance, quiet)
        if not json:
            show.reduced(body["reduced"])
    if json:
        print_json(body)
    if not result.ok:
        raise VerificationError("the compiled model differs from ONNX Runtime", path=model)
    if facts:
        _check_facts(body["facts"], model)


def _check_facts(found: Mapping[str, Any], model: Path) -> None:
    if found["failures"]:
        raise VerificationError("a fact does not hold", path=model)
    if not found["feeds"]:
        raise VerificationError("no fact was checked: the model takes no input", path=model)


def _probes(
    compiled: api.CompiledModel,
    given: Mapping[str, np.ndarray],
    shapes: Sequence[str],
    seed: int,
    tests: "Iterable[Test]",
) -> "Iterator[Case]":
    """Further inputs of `pitc verify --facts`, for what is not given."""
    from pitc.check.feeds import Case, parse_shapes
    from pitc.check.probes import probes

    specs = specs_of(compiled, given)
    missing = [s for s in specs if s.name not in given]
    dims = given_dims(specs, given) | parse_shapes(shapes, specs)
    for case in probes(missing, tests, dims, compiled.manifest.options.padding, seed):
        yield Case(case.pattern, case.dims, case.feeds | dict(given))


def _cases(
    compiled: api.CompiledModel,
    reference: Any,
    given: Mapping[str, np.ndarray],
    shapes: Sequence[str],
    seed: int,
) -> "list[Case]":
    """The inputs of `pitc verify`: those of files, and random ones for the rest."""
    from pitc.check.feeds import Case

    known = {value.name for value in reference.get_inputs()}
    if given and known <= given.keys():
        if shapes:
            raise UsageError("--shape has no effect when every input is given")
        return [Case("given", {}, dict(given))]
    return _filled(
        specs_of(compiled, given), given, shapes, compiled.manifest.options.padding, seed
    )


def _filled(
    specs: "Sequence[InputSpec]",
    given: Mapping[str, np.ndarray],
    shapes: Sequence[str],
    padding: str | None,
    seed: int,
) -> "list[Case]":
    """Random inputs for those that are not given."""
    from pitc.check.feeds import Case, cases, parse_shapes

    missing = [s for s in specs if s.name not in given]
    dims = given_dims(specs, given) | parse_shapes(shapes, specs)
    made = cases(missing, dims, padding, seed)
    return [Case(case.pattern, case.dims, case.feeds | dict(given)) for case in made]


def _crash_cases(
    model: Path,
    given: Mapping[str, np.ndarray],
    shapes: Sequence[str],
    padding: str | None,
    seed: int,
) -> "list[Case]":
    """Inputs of a model that cannot be compiled."""
    from pitc.check.feeds import input_specs

    return _filled(input_specs(api.import_model(model)[0], given), given, shapes, padding, seed)


def token_outputs(reference: Any, padding: str | None) -> frozenset[str]:
    """Outputs of a session whose leading dimensions are those of the padding mask."""
    from pitc.check.verify import token_shaped

    if not padding:
        return frozenset()
    mask = next(v.shape for v in reference.get_inputs() if v.name == padding)
    return frozenset(o.name for o in reference.get_outputs() if token_shaped(mask, o.shape))


def _reduce(
    output: Path,
    model: Path,
    chosen: "Sequence[Case]",
    settings: "Settings",
    tolerance: float | None,
    quiet: bool | None,
) -> dict[str, Any]:
    """Write the smallest failing part of a model; what is shown of it."""
    from pitc.check.reduce import reduce_model, write_reduced

    with Steps(["reduce"], quiet=resolve({"quiet": quiet}).quiet) as steps:
        steps("reduce")
        for case in chosen:
            found = reduce_model(
                model,
                case.feeds,
                padding=settings.text("padding"),
                target=settings.target,
                tolerance=tolerance,
                progress=lambda tries, nodes: steps.kernels(tries, tries, f"{nodes} nodes"),
            )
            if found is not None:
                break
        else:
            raise VerificationError("it fails in no single case, so it cannot be reduced")
    inputs = write_reduced(output, found)
    return {
        "model": str(output),
        "inputs": str(inputs),
        "padding": found.padding,
        "nodes_before": found.nodes_before,
        "nodes": found.nodes,
        "operators": [node.op_type for node in found.model.graph.node],
        "tries": found.tries,
    }


def explain_model(
    model: Path,
    padding: str | None,
    target: str | None,
    pattern: str | None,
    *,
    trace: Path | None,
    output: Path | None,
    plot: Path | None,
    json: bool,
) -> None:
    """`pitc explain`."""
    from pitc.cli.page import body_of, write_report
    from pitc.cli.plot import check_plot, draw_decisions
    from pitc.measure.trace import contractions
    from pitc.measure.trace_channels import convolutions

    if output is not None:
        check_file(output, (".json", ".html"), "report")
    if plot is not None:
        if trace is None:
            raise UsageError("--plot shows decisions", hint="name a trace by --trace")
        check_plot(plot)
    lines = _traced(trace)
    reports = _reports(model, padding, target)
    shown = reports
    if pattern is not None:
        shown = [replace(x, nodes=[r for r in x.nodes if _fits(r, pattern)]) for x in reports]
        if not any(x.nodes for x in shown):
            raise UsageError(f"no node fits {pattern!r}", path=model)
    kept = {r.node for x in shown for r in x.nodes}
    decisions = [d for d in lines.products if pattern is None or d.node in kept]
    gated = convolutions([d for d in lines.channels if pattern is None or d.node in kept])
    traced = None if trace is None else contractions(decisions)
    if json:
        print_json(body_of(shown, traced, gated))
    else:
        for report, each in zip(reports, shown, strict=True):
            show.explained(report, each.nodes, titled=len(reports) > 1)
        if traced is not None:
            show.decided(traced, gated, reports[0].sparse)
    if output is not None:
        write_report(output, reports, traced, gated)
    if plot is not None:
        draw_decisions(plot, decisions, reports[0].model)


def _traced(trace: Path | None) -> "Trace":
    from pitc.measure.trace import Trace, read_lines

    return Trace([], []) if trace is None else read_lines(trace)


def _reports(model: Path, padding: str | None, target: str | None) -> list[Report]:
    """The reports of a model or an artifact, one for each kind of machine."""
    if os.path.isdir(model):
        _no_options_of_an_artifact(model, padding=padding, target=target)
        return list(api.read_reports(check_artifact(model, hashes=False)).values())
    settings = resolve({"padding": padding, "target": target})
    tiles, mask = settings.path("tiles"), settings.text("padding")
    return list(api.explain(model, settings.target, mask, tiles=tiles).values())


def _fits(record: NodeRecord, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for text in (record.node, record.op_type))


def inspect_artifact(artifact: Path | None, *, ep: bool, json: bool) -> None:
    """`pitc inspect`."""
    if artifact is None:
        raise UsageError("Missing argument 'ARTIFACT'", hint="see pitc inspect --help")
    from pitc.host.placement import Placement, pit_nodes, placement

    check = check_artifact(artifact)
    nodes = pit_nodes(check) if check.runs else {}
    placed: list[Placement] | None = None
    problem: PitcError | None = None
    if ep and check.runs:
        try:
            with warnings_as_lines():
                placed = placement(api.load(artifact, hashes=False))
        except MachineError as error:  # what is in it can be shown all the same
            problem = error
    if json:
        manifest = check.manifest.model_dump(mode="json") if check.manifest else None
        words = {name: getattr(check, name) for name in ("problem", "expected", "found", "mend")}
        body = {"state": check.verdict.value, "graph": check.graph, **words, "manifest": manifest}
        body |= {"pit_nodes": nodes}
        if placed is not None:
            body["placement"] = [asdict(p) for p in placed]
        print_json(body)
    else:
        show.inspected(check, nodes)
        if placed is not None:
            show.placed(placed)
    if not check.runs:
        raise check.error()
    if problem is not None:
        raise problem


def doctor(*, json: bool) -> None:
    """`pitc doctor`."""
    from pitc.host.doctor import examine

    found = examine()
    if json:
        print_json({"findings": [asdict(f) for f in found]})
    else:
        show.findings(found)
    failed = [f.name for f in found if f.status == "fail"]
    if failed:
        raise MachineError(f"not usable: {', '.join(failed)}")
