"""`pitc verify`."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc import api
from pitc.artifact.manifest import FALLBACK
from pitc.cli import show
from pitc.cli.models import given_dims, open_model, read_inputs, specs_of
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.steps import Steps
from pitc.compiled import CompiledModel
from pitc.config import resolve
from pitc.errors import PitcError, UsageError, VerificationError
from pitc.session import run_session

if TYPE_CHECKING:
    from pitc.check.feeds import Case, InputSpec
    from pitc.config import Settings
    from pitc.ir.region import Test


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
    from pitc.check.reference import reference_of
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
    reference, scaled = reference_of(compiled, source)
    chosen = _cases(compiled, reference, given, shapes, seed)
    result = compare(
        lambda feeds: run_session(session, feeds),
        lambda feeds: run_session(reference, feeds),
        chosen,
        padding=padding,
        token_outputs=token_outputs(reference, padding),
        tolerance=tolerance,
    )
    body: dict[str, Any] = result.to_dict() | {"scaled_by_live_tokens": scaled}
    if not json:
        show.verified(result, scaled)
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
    compiled: CompiledModel,
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
    compiled: CompiledModel,
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


def token_outputs(reference: Any, padding: str | None) -> dict[str, int]:
    """Outputs of a session that hold tokens of the padding mask, and along which dimension."""
    from pitc.check.verify import token_axis

    if not padding:
        return {}
    mask = next(v.shape for v in reference.get_inputs() if v.name == padding)
    axes = {o.name: token_axis(mask, o.shape) for o in reference.get_outputs()}
    return {name: axis for name, axis in axes.items() if axis is not None}


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
