"""`pitc verify`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc import api
from pitc.artifact.manifest import FALLBACK
from pitc.check.opened import Opened
from pitc.cli import show
from pitc.cli.models import open_model, read_inputs
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.steps import Steps
from pitc.config import resolve
from pitc.errors import PitcError, UsageError, VerificationError

if TYPE_CHECKING:
    from pitc.check.feeds import Case
    from pitc.check.verify import Comparison
    from pitc.config import Settings


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
    from pitc.check.verification import Verification, Verifier

    source = against or (compiled.path / FALLBACK if os.path.isdir(model) else model)
    with warnings_as_lines():
        verifier = Verifier(
            Opened(compiled, source, model.name), given, shapes, seed=seed, tolerance=tolerance
        )
        result = verifier.compare()
    done = Verification(result, tuple(verifier.scaled))
    if not json:
        show.verified(result, verifier.scaled)
    if not result.ok:
        done = replace(done, first_difference=verifier.first_difference(result))
        if not json:
            show.first_difference(done.first_difference)
    if facts:
        audit = verifier.audit()
        done = replace(done, facts=audit)
        if not json:
            show.audited(audit)
    body = done.to_dict()
    if reduce is not None and not result.ok:
        failing = set(result.failed)
        first = [c for c in verifier.chosen if c.title in failing] + verifier.chosen
        settings = resolve(
            {
                "padding": compiled.manifest.options.padding,
                "target": compiled.manifest.options.target,
            }
        )
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
    model: Path,
    given: Mapping[str, np.ndarray],
    shapes: Sequence[str],
    padding: str | None,
    seed: int,
) -> "list[Case]":
    """Inputs of a model that cannot be compiled."""
    from pitc.check.feeds import input_specs
    from pitc.check.verification import filled
    from pitc.passes.masks import padding_masks

    imported = api.import_model(model)[0]
    masks = padding_masks(imported, padding)
    return filled(input_specs(imported, given), given, shapes, masks, seed)


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
