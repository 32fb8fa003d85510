"""`pitc verify`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc import api
from pitc.cli import show
from pitc.cli.models import open_model, read_inputs, settings_of
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.steps import Steps
from pitc.config import resolve
from pitc.errors import PitcError, UsageError, VerificationError

if TYPE_CHECKING:
    from pitc.check.feeds import Case
    from pitc.check.verify import Comparison
    from pitc.cli.options import Verify
    from pitc.config import Settings


def verify_model(options: "Verify") -> None:
    """`pitc verify`."""
    _check_options(options)
    model, json = options.model, options.json
    given, shapes = read_inputs(options.input), options.shape or []
    try:
        source = open_model(options, options.against)
    except PitcError:
        raise
    except Exception:  # a bug in pitc
        if options.reduce is not None:
            settings = settings_of(options)
            found = _crash_cases(options, given, settings.text("padding"))
            show.reduced(_reduce(options, options.reduce, found, settings, options.tolerance))
        raise
    from pitc.check.verification import Verification, Verifier

    with warnings_as_lines():
        verifier = Verifier(source, given, shapes, seed=options.seed, tolerance=options.tolerance)
        result = verifier.compare()
    done = Verification(result, tuple(verifier.scaled))
    if not json:
        show.verified(result, verifier.scaled)
    if not result.ok:
        done = replace(done, first_difference=verifier.first_difference(result))
        if not json:
            show.first_difference(done.first_difference)
    if options.facts:
        audit = verifier.audit()
        done = replace(done, facts=audit)
        if not json:
            show.audited(audit)
    body = done.to_dict()
    if options.reduce is not None and not result.ok:
        failing = set(result.failed)
        first = [c for c in verifier.chosen if c.title in failing] + verifier.chosen
        built = source.compiled.manifest.options
        settings = resolve({"padding": built.padding, "target": built.target})
        limits = (o.tolerance for o in result.outputs if not o.ok)
        limit = max(limits, default=options.tolerance) or options.tolerance
        body["reduced"] = _reduce(options, options.reduce, first, settings, limit)
        if not json:
            show.reduced(body["reduced"])
    if json:
        print_json(body)
    _check_answers(result, model)
    if options.facts:
        _check_facts(body["facts"], model)


def _check_options(options: "Verify") -> None:
    """Refuse options that do not fit a model, or an artifact."""
    model = options.model
    if options.against is not None and not os.path.isdir(model):
        raise UsageError("--against is for artifacts; a model is compared with itself")
    if options.reduce is not None:
        from pitc.check.reduce import check_output

        if os.path.isdir(model):
            raise UsageError("--reduce needs the model, not an artifact", path=model)
        check_output(options.reduce)


def _check_answers(result: "Comparison", model: Path) -> None:
    if not result.ok:
        cases = f"{result.cases} case{'s' * (result.cases != 1)}"
        text = f"the compiled model differs from ONNX Runtime in {len(result.failed)} of {cases}"
        raise VerificationError(text, path=model)
    if not result.cases:
        text = "nothing was checked: ONNX Runtime fails on the source model with random inputs"
        raise VerificationError(text, path=model, hint="give real ones: --input batch.npz")


def _check_facts(found: Mapping[str, Any], model: Path) -> None:
    if found["failures"]:
        raise VerificationError("a fact does not hold", path=model)
    if not found["feeds"]:
        raise VerificationError("no fact was checked: the model takes no input", path=model)


def _crash_cases(
    options: "Verify", given: Mapping[str, np.ndarray], padding: str | None
) -> "list[Case]":
    """Inputs of a model that cannot be compiled."""
    from pitc.check.feeds import cases, input_specs
    from pitc.check.inputs import filled
    from pitc.passes.masks import padding_masks

    imported = api.import_model(options.model)[0]
    make = partial(cases, padding=padding_masks(imported, padding), seed=options.seed)
    return list(filled(input_specs(imported, given), given, options.shape or [], make))


def _reduce(
    options: "Verify",
    output: Path,
    chosen: "Sequence[Case]",
    settings: "Settings",
    tolerance: float | None,
) -> dict[str, Any]:
    """Write the smallest failing part of a model; what is shown of it."""
    from pitc.check.reduce import reduce_model, write_reduced

    with Steps(["reduce"], quiet=settings_of(options).quiet) as steps:
        steps("reduce")
        for case in chosen:
            found = reduce_model(
                options.model,
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
