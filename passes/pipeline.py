"""The way through the house, top-down: normalise, facts, regions, lower."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from pitc.ir.kernel import KernelRequest
from pitc.ir.prices import Prices
from pitc.ir.report import Report
from pitc.ir.target import CPU, Target
from pitc.passes import STAGES
from pitc.passes.analysis import analyse, analysis
from pitc.passes.annotate import annotate, annotate_facts
from pitc.passes.audit.stages import Stages
from pitc.passes.control.branches import close_branches
from pitc.passes.effect import Effect, padding_effect
from pitc.passes.live_scales import scale_by_live_tokens, scale_notes
from pitc.passes.loops import lower_bodies
from pitc.passes.lower.channels.skips import ChannelSkips, channel_skips
from pitc.passes.lower.early_quantise import quantise_early
from pitc.passes.lower.rewrite import rewrite
from pitc.passes.lower.sparse import SparseContractions, sparse_contractions
from pitc.passes.lower.weight import Panels
from pitc.passes.normalise import normalise
from pitc.passes.padding import padding_notes, token_places
from pitc.passes.readers import readers_of, whole_reader
from pitc.passes.records import node_records, packed_nodes, rewritten, with_host_copies
from pitc.passes.regions.choose import choose_regions
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
    report = Report(padding=options.padding, kind=(options.target or CPU).kind)
    stages = Stages(model, options.check)

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        if progress:
            progress(name)
        start = time.perf_counter()
        yield
        report.stages_ms[name] = (time.perf_counter() - start) * 1e3
        if options.dump_dir is not None and name == "facts":
            annotate_facts(graph)
        elif options.dump_dir is not None and name == "regions":
            annotate(graph.nodes, dict(zip(graph.nodes, report.nodes, strict=True)))
        _dump(model, options.dump_dir, f"{1 + STAGES.index(name):02d}_{name}")

    with stage("normalise"):
        scaled = scale_by_live_tokens(model, options.padding)
        normalise(model, options.target or CPU)
        stages.normalised()
    if options.stop_after == "normalise":
        return Lowered(model, report=report)
    with stage("facts"):
        known = analysis(model, options.padding, options.target)
        graph, outputs = known.graph, known.given_up
        stages.analysed(graph)
    if options.stop_after == "facts":
        return Lowered(model, report=report)
    with stage("regions"):
        bodies = lower_bodies(graph)
        regions = choose_regions(graph)
        stages.chosen(graph, regions)
        sparse, channels = SparseContractions(), ChannelSkips()
        if options.prices is not None:
            sparse = sparse_contractions(graph)
            if graph.target.skips_channels:
                channels = channel_skips(graph, regions, outputs)
        readers = readers_of(graph)
        report.nodes = node_records(graph, regions, sparse, channels, readers)
        report.whole_reader = whole_reader(readers, report.nodes)
        report.assumptions = sorted(graph.assumptions)
        report.notes = padding_notes(graph, known.masks, outputs)
        report.tokens = token_places(known.tokens)
        runs = bool(packed_nodes(regions) or sparse.nodes or channels.nodes or bodies.kernels)
        effect = Effect(options.padding, runs, len(scaled), tries=options.suggest)
        report.notes += padding_effect(known, report, effect)
        if options.suggest:
            report.suggestions = suggestions(graph, report)
    if options.stop_after == "regions":
        return Lowered(model, report=report)
    with stage("lower"):
        state = rewrite(
            graph,
            regions,
            outputs,
            sparse=sparse.nodes,
            channels=channels.nodes.values(),
            prices=options.prices,
        )
        report.nodes = rewritten(report.nodes, graph.nodes, state) + bodies.nodes
        report.regions = with_host_copies(regions, state) + bodies.regions
        report.host_copies = sum(map(state.host_copies, state.detected)) + bodies.host_copies
        report.notes += map(str, state.refused)
        close_branches(model)
        quantise_early(model, graph)
        narrow_constants(model)
        records = dict(zip(graph.nodes, report.nodes, strict=False))  # those of bodies come behind
        annotate(model.graph.all_nodes(), records)
    kernels = tuple(state.kernels | bodies.kernels)
    report.kernels = [k.symbol for k in kernels]
    if kernels or report.regions:  # else it is the source that runs
        report.notes += scale_notes(scaled)
    stages.lowered(report.kernels)
    return Lowered(model, kernels, report, Panels({**bodies.panels.made, **state.panels.made}))


def _dump(model: ir.Model, folder: Path | None, name: str) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    ir.save(model, folder / f"{name}.onnx", external_data=f"{name}.bin")
