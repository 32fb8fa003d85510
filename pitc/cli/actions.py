"""What each command does. Heavy libraries are imported where they are used."""

import fnmatch
import json as jsonlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc import api
from pitc.artifact.check import check_artifact
from pitc.artifact.manifest import FALLBACK, report_from_dict
from pitc.cli import show
from pitc.cli.steps import Steps
from pitc.errors import ArtifactError, MachineError, ModelError, UsageError, VerificationError
from pitc.ir.report import NodeRecord, Report
from pitc.options import CompileOptions

if TYPE_CHECKING:
    from pitc.feeds import InputSpec

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
def _warnings_as_lines() -> Iterator[None]:
    """Show pitc's own warnings as one line each on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", api.PitcWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, api.PitcWarning):
            print(f"warning: {warning.message}", file=sys.stderr)


def compile_model(
    model: Path,
    output: Path | None,
    *,
    target: str,
    padding: str | None,
    force: bool,
    dump_ir: Path | None,
    report: Path | None,
    quiet: bool,
    json: bool,
) -> None:
    """`pitc compile`."""
    folder = output or Path(f"{model.stem}.pitc")
    if report is not None and report.suffix not in (".json", ".html"):
        raise UsageError(f"report {report.name!r} ends in neither .json nor .html")
    with Steps(api.stages(), quiet=quiet) as steps:
        made = api.compile(
            model,
            target,
            padding,
            output=folder,
            force=force,
            dump_ir=dump_ir,
            progress=steps,
            kernel_progress=steps.kernels,
        )
    if report is not None:
        from pitc.cli.page import write_report

        write_report(report, made.report)
    if json:
        body = made.manifest.model_dump(mode="json", exclude={"report"})
        print_json(body | {"path": str(folder), "report": made.report.to_dict()})
    else:
        show.compiled(str(folder), made.manifest, made.report)


def _open(
    model: Path, padding: str | None, target: str = "auto", *, quiet: bool = True
) -> api.CompiledModel:
    """Load an artifact, or compile a model into a temporary one."""
    if model.is_dir():
        if padding is not None:
            raise UsageError(
                "an artifact has its padding already", path=model, hint="omit --padding"
            )
        return api.load(model)
    with Steps(api.stages(), quiet=quiet) as steps:
        return api.compile(model, target, padding, progress=steps, kernel_progress=steps.kernels)


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
    from pitc.feeds import cases, parse_shapes

    if save is not None:
        if save.suffix != ".npz":
            raise UsageError(f"outputs file {save.name!r} does not end in .npz")
        if not save.absolute().parent.is_dir():
            raise UsageError("its folder does not exist", path=save)
    feeds = _read_inputs(inputs)
    compiled = _open(model, padding)
    specs = _specs(compiled)
    missing = [s for s in specs if s.name not in feeds]
    if missing:
        given = _given_dims(specs, feeds) | parse_shapes(shapes, specs)
        feeds = next(cases(missing, given, compiled.manifest.options.padding, seed)).feeds | feeds
    elif shapes:
        raise UsageError("--shape has no effect when every input is given")
    with _warnings_as_lines():
        found = compiled.run(feeds)
    if save is not None:
        try:
            np.savez(save, allow_pickle=False, **found)
        except OSError as error:
            raise MachineError(
                f"cannot be written: {error.strerror or error}", path=save
            ) from error
    if json:
        listed = {
            name: {"dtype": str(a.dtype), "shape": list(a.shape), **show.statistics(a)}
            for name, a in found.items()
        }
        print_json({"outputs": listed, "random_inputs": [s.name for s in missing]})
    else:
        show.outputs(found)


def _read_inputs(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Read `FILE.npz` and `NAME=FILE.npy` words."""
    feeds: dict[str, np.ndarray] = {}
    for text in texts:
        name, equals, file = text.rpartition("=")
        if Path(text).suffix == ".npz" and not Path(file).is_file():
            name, equals, file = "", "", text
        wanted = ".npy" if equals else ".npz"
        if Path(file).suffix != wanted:
            raise UsageError(f"input {text!r} is neither FILE.npz nor NAME=FILE.npy")
        try:
            found = np.load(file, allow_pickle=False)
            feeds.update({name: found} if equals else dict(found))
        except (OSError, ValueError, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
            raise UsageError(f"inputs cannot be read: {reason}", path=file) from error
    return feeds


def _given_dims(specs: "Sequence[InputSpec]", feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Sizes of named dimensions, as far as the given inputs fix them."""
    dims: dict[str, int] = {}
    for spec in specs:
        if spec.name in feeds and feeds[spec.name].ndim == len(spec.shape):
            pairs = zip(spec.shape, feeds[spec.name].shape, strict=True)
            dims |= {dim: size for dim, size in pairs if isinstance(dim, str)}
    return dims


def _specs(compiled: api.CompiledModel) -> "list[InputSpec]":
    import onnx_ir as ir

    from pitc.feeds import input_specs

    return input_specs(ir.load(compiled.path / FALLBACK))


def verify_model(
    model: Path,
    against: Path | None,
    *,
    padding: str | None,
    target: str,
    facts: bool,
    tolerance: float | None,
    shapes: Sequence[str],
    seed: int,
    quiet: bool,
    json: bool,
) -> None:
    """`pitc verify`."""
    from pitc.feeds import cases, parse_shapes
    from pitc.verify import audit_facts, compare, token_shaped

    if against is not None and not model.is_dir():
        raise UsageError("--against is for artifacts; a model is compared with itself")
    compiled = _open(model, padding, target, quiet=quiet)
    padding = compiled.manifest.options.padding
    source = against or (compiled.path / FALLBACK if model.is_dir() else model)
    specs = _specs(compiled)
    with _warnings_as_lines():
        session = compiled.session()
    reference = _reference_session(source)
    shapes_of = {v.name: v.shape for v in (*reference.get_inputs(), *reference.get_outputs())}
    names = [o.name for o in reference.get_outputs()]
    tokens = frozenset(
        n for n in names if padding and token_shaped(shapes_of[padding], shapes_of[n])
    )
    chosen = list(cases(specs, parse_shapes(shapes, specs), padding, seed))
    result = compare(
        lambda feeds: api.run_session(session, feeds),
        lambda feeds: api.run_session(reference, feeds),
        chosen,
        padding=padding,
        token_outputs=tokens,
        tolerance=tolerance,
    )
    body = result.to_dict()
    if not json:
        show.verified(result)
    if facts:
        found = audit_facts(api.import_model(source)[0], padding, [case.feeds for case in chosen])
        body["facts"] = asdict(found)
        if not json:
            show.audited(found)
    if json:
        print_json(body)
    if not result.ok:
        raise VerificationError("the compiled model differs from ONNX Runtime", path=model)
    if facts and body["facts"]["failures"]:
        raise VerificationError("a fact does not hold", path=model)


def _reference_session(source: Path) -> Any:
    try:
        return api.plain_session(source)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "onnxruntime":
            raise
        text = f"ONNX Runtime cannot load it: {error}"
        raise ModelError(text, path=source) from error


def explain_model(model: Path, padding: str | None, pattern: str | None, *, json: bool) -> None:
    """`pitc explain`."""
    report = _report(model, padding)
    records = report.nodes
    if pattern is not None:
        records = [r for r in records if _fits(r, pattern)]
        if not records:
            raise UsageError(f"no node fits {pattern!r}", path=model)
    if json:
        kept = {r.node for r in records}
        body = report.to_dict()
        print_json(body | {"nodes": [n for n in body["nodes"] if n["node"] in kept]})
    else:
        show.explained(report, records)


def _report(model: Path, padding: str | None) -> Report:
    if not model.is_dir():
        imported, source = api.import_model(model)
        report = api.lower(imported, CompileOptions(padding=padding)).report
        report.model = source.name
        return report
    if padding is not None:
        raise UsageError("an artifact has its padding already", path=model, hint="omit --padding")
    check = check_artifact(model, hashes=False)
    if check.manifest is None:
        raise check.error()
    try:
        return report_from_dict(check.manifest.report)
    except ValueError as error:
        raise ArtifactError(str(error), path=model) from error


def _fits(record: NodeRecord, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for text in (record.node, record.op_type))


def inspect_artifact(artifact: Path, *, json: bool) -> None:
    """`pitc inspect`."""
    check = check_artifact(artifact)
    if json:
        manifest = check.manifest.model_dump(mode="json") if check.manifest else None
        words = {name: getattr(check, name) for name in ("problem", "expected", "found", "mend")}
        print_json(
            {"state": check.verdict.value, "graph": check.graph, **words, "manifest": manifest}
        )
    else:
        show.inspected(check)
    if not check.runs:
        raise check.error()


def doctor(*, json: bool) -> None:
    """`pitc doctor`."""
    from pitc.doctor import examine

    found = examine()
    if json:
        print_json({"findings": [asdict(f) for f in found]})
    else:
        show.findings(found)
    failed = [f.name for f in found if f.status == "fail"]
    if failed:
        raise MachineError(f"not usable: {', '.join(failed)}")
