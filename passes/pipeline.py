"""The way through the house, top-down: normalise, axes, facts, regions, lower."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from pitc.ir.kernel import KernelRequest
from pitc.ir.report import Report

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LowerOptions:
    """What the user asks of the passes.

    Args:
        padding: Name of the mask input whose zeros are tokens that do not exist, or None.
        dump_dir: Folder for one ONNX file per stage, or None.
    """

    padding: str | None = None
    dump_dir: Path | None = None


@dataclass(slots=True)
class Lowered:
    """A lowered graph: ordinary ONNX between PIT nodes, and the kernels that those need."""

    model: ir.Model
    kernels: tuple[KernelRequest, ...] = ()
    report: Report = field(default_factory=Report)


def run_passes(
    model: ir.Model, options: LowerOptions, progress: Progress | None = None
) -> Lowered:
    """Lower a checked model.

    Args:
        model: The imported model; it is changed in place.
        options: User options.
        progress: Called with the name of each stage as it starts.

    Returns:
        The lowered model, its kernel requests and the report.
    """
    report = Report(padding=options.padding)
    start = time.perf_counter()
    if progress:
        progress("normalise")
    report.stages_ms["normalise"] = (time.perf_counter() - start) * 1e3
    return Lowered(model, (), report)
