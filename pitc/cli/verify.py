"""`pitc verify`."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
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
from pitc.errors import PitcError, UsageError, VerificationError, one_line
from pitc.session import run_session

if TYPE_CHECKING:
    from pitc.check.feeds import Case, InputSpec
    from pitc.check.tokens import LiveTokens
    from pitc.check.verify import Comparison
    from pitc.config import Settings
    from pitc.ir.mask import PaddingMask
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
    from pitc.check.reference import contract_of, reference_session
    from pitc.check.tokens import LiveTokens
    from pitc.check.verify import audit_facts

    _check_options(model, against, reduce)
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
    reference, scaled = reference_session(source, contract_of(compiled))
    live = LiveTokens(source, padding)
    chosen = _cases(compiled, reference, given, shapes, live.masks, seed)
    result = _compared(compiled, source, reference, chosen, live, tolerance, skips=not given)
    body: dict[str, Any] = {**result.to_dict(), "scaled_by_live_tokens": scaled}
    if not json:
        show.verified(result, scaled)
    if not result.ok:
        body["first_difference"] = _first_difference(result, source, compiled, padding, chosen)
        if not json:
            show.first_difference(body["first_difference"])
    if facts:
        audit = audit_facts(
            api.import_model(source)[0],
            padding,
            [case.feeds for case in chosen],
            lambda tests: _probes(compiled, given, shapes, live.masks, seed, tests),
        )
        body["facts"] = asdict(audit)
        if not json:
            show.audited(audit)
    if reduce is not None and not result.ok:
        failing = set(result.failed)
        first = [case for case in chosen if case.title in failing] + chosen
        settings = resolve({"padding": padding, "target": compiled.manifest.options.target})
        limit = max((o.tolerance for o in result.outputs if not o.ok), default=tolerance)
        body["reduced"] = _reduce(reduce, model, first, settings, limit or tolerance, quiet)
        if not json:
            show.reduced(body["reduced"])
    if json:
        print_json(body)
    _check_answers(result, model)
    if facts:
        _check_facts(body["facts"], model)


def _check_options(model: Path, against: Path | None, reduce: Path | None) -> None:
    """Refuse options that do not fit a model, or an artifact."""
    if against is not None and not os.path.isdir(model):
        raise UsageError("--against is for artifacts; a model is compared with itself")
    if reduce is not None:
        from pitc.check.reduce import check_output

        if os.path.isdir(model):
            raise UsageError("--reduce needs the model, not an artifact", path=model)
        check_output(reduce)


def _compared(
    compiled: CompiledModel,
    source: Path,
    reference: Any,
    chosen: "Sequence[Case]",
    live: "LiveTokens",
    tolerance: float | None,
    *,
    skips: bool,
) -> "Comparison":
    """The compiled model against the source, by the tolerances of its arithmetic."""
    from pitc.check.double import run_in_double
    from pitc.check.reference import contract_of, reference_session
    from pitc.check.tokens import token_axes
    from pitc.check.tolerance import arithmetic_of, arithmetic_on
    from pitc.check.verify import compare
    from pitc.importer import load_model
    from pitc.measure.bench import unoptimised_options

    contract = contract_of(compiled)
    with warnings_as_lines():
        session = compiled.session()
    return compare(
        lambda feeds: run_session(session, feeds),
        lambda feeds: run_session(reference, feeds),
        chosen,
        padding=live,
        token_outputs=token_axes(compiled.report),
        tolerance=tolerance,
        arithmetic=arithmetic_on(session, arithmetic_of(load_model(source))),
        double=lambda: run_in_double(load_model(source), unoptimised_options),
        plain=lambda: partial(
            run_session, reference_session(source, contract, unoptimised_options())[0]
        ),
        skips=skips,
    )


def _check_answers(result: "Comparison", model: Path) -> None:
    if not result.ok:
        cases = f"{result.cases} case{'s' * (result.cases != 1)}"
        text = f"the compiled model differs from ONNX Runtime in {len(result.failed)} of {cases}"
        raise VerificationError(text, path=model)
    if not result.cases:
        text = "nothing was checked: ONNX Runtime fails on the source model with random inputs"
        raise VerificationError(text, path=model, hint="give real ones: --input batch.npz")


def _first_difference(
    result: "Comparison",
    source: Path,
    compiled: CompiledModel,
    padding: str | None,
    chosen: "Sequence[Case]",
) -> dict[str, Any]:
    """The first inner value that differs, in the case that is worst; or why none is named."""
    from pitc.check.first_difference import FirstDifference, first_difference

    worst = result.worst
    if worst is None:
        return {"none": "no output differs in a single case"}
    output, title = worst
    feeds = next(case.feeds for case in chosen if case.title == title)
    try:
        imported = api.import_model(source)[0]
        found = first_difference(imported, compiled, padding, feeds, output.tolerance)
    except Exception as error:  # what is looked for is a bug: it may hit whoever looks, too
        return {"none": f"the inner values cannot be compared: {one_line(str(error))}"}
    if isinstance(found, FirstDifference):
        return found.to_dict() | {"case": title}
    if not found:
        return {"none": "both graphs share no inner value that can be compared"}
    return {"none": f"{found} inner values that both graphs have agree"}


def _check_facts(found: Mapping[str, Any], model: Path) -> None:
    if found["failures"]:
        raise VerificationError("a fact does not hold", path=model)
    if not found["feeds"]:
        raise VerificationError("no fact was checked: the model takes no input", path=model)


def _probes(
    compiled: CompiledModel,
    given: Mapping[str, np.ndarray],
    shapes: Sequence[str],
    masks: "Sequence[PaddingMask]",
    seed: int,
    tests: "Iterable[Test]",
) -> "Iterator[Case]":
    """Further inputs of `pitc verify --facts`, for what is not given."""
    from pitc.check.feeds import Case, parse_shapes
    from pitc.check.probes import probes

    specs = specs_of(compiled, given)
    missing = [s for s in specs if s.name not in given]
    dims = given_dims(specs, given) | parse_shapes(shapes, specs)
    for case in probes(missing, tests, dims, masks, seed):
        yield Case(case.pattern, case.dims, case.feeds | dict(given))


def _cases(
    compiled: CompiledModel,
    reference: Any,
    given: Mapping[str, np.ndarray],
    shapes: Sequence[str],
    masks: "Sequence[PaddingMask]",
    seed: int,
) -> "list[Case]":
    """The inputs of `pitc verify`: those of files, and random ones for the rest."""
    from pitc.check.feeds import Case

    known = {value.name for value in reference.get_inputs()}
    if given and known <= given.keys():
        if shapes:
            raise UsageError("--shape has no effect when every input is given")
        return [Case("given", {}, dict(given))]
    return _filled(specs_of(compiled, given), given, shapes, masks, seed)


def _filled(
    specs: "Sequence[InputSpec]",
    given: Mapping[str, np.ndarray],
    shapes: Sequence[str],
    masks: "Sequence[PaddingMask]",
    seed: int,
) -> "list[Case]":
    """Random inputs for those that are not given."""
    from pitc.check.feeds import Case, cases, parse_shapes

    missing = [s for s in specs if s.name not in given]
    dims = given_dims(specs, given) | parse_shapes(shapes, specs)
    made = cases(missing, dims, masks, seed)
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
    from pitc.passes.masks import padding_masks

    imported = api.import_model(model)[0]
    masks = padding_masks(imported, padding)
    return _filled(input_specs(imported, given), given, shapes, masks, seed)


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
