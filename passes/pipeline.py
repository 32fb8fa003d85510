"""The way through the house, top-down: normalise, facts, regions, lower."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import onnx_ir as ir

from pitc.ir.inference import infer
from pitc.ir.kernel import KernelRequest
from pitc.ir.prices import Prices
from pitc.ir.report import Report
from pitc.ir.target import CPU, Target
from pitc.passes.analysis import Analysis, analyse, analysis
from pitc.passes.annotate import annotate, annotate_facts
from pitc.passes.audit.stages import Stages
from pitc.passes.audit.wiring import Types
from pitc.passes.control.branches import close_branches
from pitc.passes.effect import Effect, padding_effect
from pitc.passes.fixed_counts import count_notes
from pitc.passes.idle_guards import drop_idle_guards
from pitc.passes.live_lists import keep_live_places
from pitc.passes.live_scales import scale_by_live_tokens, scale_notes
from pitc.passes.loops import LoweredBodies, lower_bodies
from pitc.passes.lower.panels import Panels
from pitc.passes.lower.steps import lower
from pitc.passes.normalise import normalise
from pitc.passes.padding import padding_notes, token_places
from pitc.passes.quirks.early_quantise import quantise_early
from pitc.passes.readers import readers_of, whole_reader
from pitc.passes.records import node_records, packed_nodes, rewritten, with_host_copies
from pitc.passes.regions.choose import Regions, choose_regions
from pitc.passes.siblings import join_siblings
from pitc.passes.suggest import suggestions
from pitc.passes.widen import narrow_constants

Progress = Callable[[str], None]
__all__ = ["LowerOptions", "Lowered", "Progress", "analyse", "run_passes"]


@dataclass(frozen=True, slots=True)
class LowerOptions:
    """What the user asks of the passes.

    Args:
        padding: The padding masks (`masks.py`), or None.
        dump_dir: Folder for one ONNX file per stage, or None.
        prices: Of sparse contractions on the target; None: all contractions stay dense.
        check: Check the graph's invariants after each stage.
        target: What it is lowered for; None: CPUs.
        suggest: Look for what would help.
        stop_after: The last stage to run; "": all.
    """

    padding: str | None = None
    dump_dir: Path | None = None
    prices: Prices | None = None
    check: bool = False
    target: Target | None = None
    suggest: bool = False
    stop_after: str = ""


@dataclass(slots=True)
class Lowered:
    """A lowered graph: ordinary ONNX between PIT nodes, and the kernels that those need."""

    model: ir.Model
    kernels: tuple[KernelRequest, ...] = ()
    report: Report = field(default_factory=Report)
    panels: Panels = field(default_factory=Panels)


def run_passes(model: ir.Model, options: LowerOptions, progress: Progress | None = None) -> Lowered:
    """Lower a checked model.

    Args:
        model: The imported model; it is changed in place.
        options: User options.
        progress: Called with the name of each stage (`STAGES`) as it starts.

    Returns:
        The lowered model, its kernel requests and the report; or what is known of them behind the
        stage to stop after.

    Raises:
        UsageError: A padding mask is no value that can be one (`analysis`).
        StageError: An invariant does not hold after a stage; a bug in pitc.
    """
    state = _Compilation(model, options)
    for number, stage in enumerate(PIPELINE, 1):
        if progress:
            progress(stage.name)
        start = time.perf_counter()
        stage.run(state)
        state.report.stages_ms[stage.name] = (time.perf_counter() - start) * 1e3
        if options.dump_dir is not None:
            stage.describe(state)
            _dump(model, options.dump_dir, f"{number:02d}_{stage.name}")
        if options.stop_after == stage.name:
            break
    return state.lowered


class _Compilation:
    """What the stages of one compilation hand on; each changes the model in place."""

    types: Types
    known: Analysis
    bodies: LoweredBodies
    regions: Regions

    def __init__(self, model: ir.Model, options: LowerOptions) -> None:
        self.model, self.options = model, options
        self.target = options.target or CPU
        self.report = Report(padding=options.padding, kind=self.target.kind)
        self.checks = Stages(model, options.check)
        self.scaled: list[str] = []
        self.lowered = Lowered(model, report=self.report)

    def annotate(self, nodes: Iterable[ir.Node]) -> None:
        """Write what became of the source graph's nodes into some nodes."""
        # records of bodies come behind those of the graph's nodes
        annotate(nodes, dict(zip(self.known.graph.nodes, self.report.nodes, strict=False)))


def _normalise(state: _Compilation) -> None:
    state.scaled = scale_by_live_tokens(state.model, state.options.padding)
    normalise(state.model, state.target)
    join_siblings(state.model, state.options.padding, state.target)
    state.types = cache(partial(infer, state.model))
    state.checks.normalised(state.types)


def _facts(state: _Compilation) -> None:
    options = state.options

    def analysed() -> Analysis:
        return analysis(state.model, options.padding, options.target, state.types())

    state.known = analysed()
    for change in (drop_idle_guards, keep_live_places):
        if change(state.model, state.known.graph):
            assumptions = state.known.graph.assumptions
            state.types = cache(partial(infer, state.model))
            state.known = analysed()
            state.known.graph.assumptions |= assumptions
    state.checks.analysed(state.known.graph)


def _regions(state: _Compilation) -> None:
    graph, known, options, report = state.known.graph, state.known, state.options, state.report
    state.bodies = lower_bodies(graph, options.prices, state.checks.packed)
    given_up = known.given_up if options.prices is not None else None
    state.regions = regions = choose_regions(graph, given_up)
    state.checks.chosen(graph, regions)
    readers = readers_of(graph)
    report.nodes = node_records(graph, regions, readers)
    report.whole_reader = whole_reader(readers, report.nodes)
    report.assumptions = sorted(graph.assumptions)
    report.notes = count_notes(graph) + padding_notes(graph, known.masks, known.given_up)
    report.tokens = token_places(known.tokens)
    is_packed = bool(packed_nodes(regions) or regions.skips or state.bodies.kernels)
    effect = Effect(options.padding, is_packed, len(state.scaled), tries=options.suggest)
    report.notes += padding_effect(known, report, effect)
    if options.suggest:
        report.suggestions = suggestions(graph, report)


def _lower(state: _Compilation) -> None:
    model, graph, report, bodies = state.model, state.known.graph, state.report, state.bodies
    low = lower(
        graph,
        state.regions,
        state.known.given_up,
        prices=state.options.prices,
        check=state.checks.packed,
    )
    packed = low.packed
    report.nodes = rewritten(report.nodes, graph.nodes, packed.log) + bodies.nodes
    report.regions = with_host_copies(state.regions, low.forms) + bodies.regions
    report.host_copies = sum(map(low.forms.host_copies, low.forms.detected)) + bodies.host_copies
    report.notes += map(str, packed.log.refused)
    close_branches(model)
    quantise_early(model, graph)
    narrow_constants(model)
    state.annotate(model.graph.all_nodes())
    kernels = tuple(packed.kernels | bodies.kernels)
    report.kernels = [k.symbol for k in kernels]
    if kernels or report.regions:  # else it is the source that runs
        report.notes += scale_notes(state.scaled)
    state.checks.lowered(report.kernels)
    bodies.panels.add(packed.panels)
    state.lowered = Lowered(model, kernels, report, bodies.panels)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the way: what it does, its checks at the end, and what a dump says of nodes."""

    name: str
    run: Callable[[_Compilation], None]
    describe: Callable[[_Compilation], None] = lambda _: None


PIPELINE = (
    Stage("normalise", _normalise),
    Stage("facts", _facts, lambda state: annotate_facts(state.known.graph)),
    Stage("regions", _regions, lambda state: state.annotate(state.known.graph.nodes)),
    Stage("lower", _lower),
)
"""The stages in order: those that `STAGES` names."""


def _dump(model: ir.Model, folder: Path | None, name: str) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    ir.save(model, folder / f"{name}.onnx", external_data=f"{name}.bin")
