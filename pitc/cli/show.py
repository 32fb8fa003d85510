"""Tables and text for people, on stdout; colour only on a terminal that wants it."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pitc.artifact.check import Check
from pitc.artifact.manifest import Manifest
from pitc.check.verify import Comparison
from pitc.host.doctor import Finding
from pitc.ir.report import Report
from pitc.ir.summary import summary_of
from pitc.ir.words import named_counts
from pitc.options import Kind

if TYPE_CHECKING:
    from pitc.host.placement import Placement
    from pitc.measure.trace import Contraction
    from pitc.measure.trace_channels import Convolution
    from pitc.measure.trace_groups import GroupedProduct
    from pitc.measure.trace_pairs import Attention
    from pitc.passes.audit.engine import AuditResult
    from pitc.report.evidence import Evidence

D = TypeVar("D", "Contraction", "Convolution", "Attention", "GroupedProduct")

#: Width of tables in pipes and files, where there is no window to ask.
PIPE_COLUMNS = 140
SKIPS_SHOWN = 3
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def console() -> Console:
    """A console on stdout."""
    columns = os.environ.get("COLUMNS", "")
    wide = None if sys.stdout.isatty() or columns.isdecimal() else PIPE_COLUMNS
    return Console(width=wide, highlight=False, soft_wrap=False)


def size(count: int) -> str:
    """Bytes for people, e.g. `86.7 MB`."""
    steps = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((f"{count / s:.1f} {unit}" for s, unit in steps if count >= s), f"{count} B")


def print_table(
    out: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    right: Sequence[str] = (),
) -> None:
    """Print a table without lines.

    Args:
        out: Where.
        columns: Their heads; none is shown where all are empty.
        rows: Their cells.
        right: Columns that are aligned there.
    """
    shown = any(columns)
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=shown)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    out.print(table)


def summary(report: Report) -> str:
    """One line on how much of the work is skipped where it can be, and what was made for that."""
    regions = f"{len(report.regions)} packed region" + "s" * (len(report.regions) != 1)
    kernels = f"{len(report.kernels)} kernel" + "s" * (len(report.kernels) != 1)
    found = summary_of(report)
    share = found.packed.share + found.sparse.share
    return f"{100 * share:.0f} % of the work packed or sparse; {ways(report)}; {regions}, {kernels}"


def ways(report: Report) -> str:
    """How many nodes run in which way."""
    counts = Counter(record.lowering for record in report.nodes)
    total = sum(counts.values())
    changed = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if name != "ordinary")
    return f"{total} nodes: {changed or 'all ordinary'}"


def waits(report: Report) -> str:
    """What a run waits for because a mask is not on the host."""
    n = report.host_copies
    return (
        f"a run copies {n} mask{'s' * (n != 1)} from the GPU to the host, and waits each time; a "
        "mask that is a bool input is already on the host"
    )


def cached(report: Report) -> str:
    """What was made before; empty where the cache was not asked."""
    asked = report.cache_hits + report.cache_misses
    return f"machine code: {report.cache_hits} of {asked} pieces from the cache" if asked else ""


def compiled(folder: str, manifest: Manifest, reports: Sequence[Report]) -> None:
    """What `pitc compile` made."""
    said = size(sum(f.bytes for f in manifest.files.values()))
    console().print(f"[bold]{escape(folder)}[/bold]  {said}")
    _print_reports(reports)


def rehearsed(
    folder: Path, reports: Sequence[Report], stopped_after: str, stages: Path | None
) -> None:
    """What `pitc compile` would make."""
    out = console()
    graphs = f"graphs are in {stages}" if stages else "--dump-ir DIR writes the graphs"
    out.print(f"[bold]nothing built, stopped after {stopped_after}[/bold]; {escape(graphs)}")
    if any(report.nodes for report in reports):
        _print_reports(reports, summary if stopped_after == "lower" else ways)
    out.print(f"  the artifact would be {escape(str(folder))}")


def _print_reports(reports: Sequence[Report], counted: Callable[[Report], str] = summary) -> None:
    """What became of the nodes, on what assumptions, and what would help."""
    out = console()
    for report in reports:
        title = f"{report.kind}: " if len(reports) > 1 else ""
        out.print(f"  {title}{escape(counted(report))}")
        if not report.changed:
            text = "no work to skip was found: the model runs unchanged (pitc explain says why)"
            out.print(f"  {title}{text}")
        reason = summary_of(report).reason
        if reason is not None:
            out.print(f"  {title}{escape(reason.line)}")
        for suggestion in report.suggestions:
            out.print(f"  {title}suggestion: {escape(suggestion.text)}")
    if found := cached(reports[0]):
        out.print(f"  {escape(found)}")
    for text in dict.fromkeys(text for report in reports for text in report.assumptions):
        out.print(f"  assumption: {escape(text)}")
    for text in dict.fromkeys(text for report in reports for text in report.notes):
        out.print(f"  note: {escape(text)}")


def _number(x: float | None, unit: str = "") -> str:
    return "-" if x is None else f"{x:.2f}{unit}"


#: Columns of the table of sparse contractions, and their cells.
CONTRACTIONS: "dict[str, Callable[[Contraction], str]]" = {
    "node": lambda c: c.node,
    "rows x k": lambda c: f"{'-'.join(map(str, sorted(set(c.rows))))} x {c.k}",
    "density": lambda c: f"{c.density:.2%}",
    "variant": lambda c: named_counts(c.variants, c.decisions),
    "predicted\nus": lambda c: f"{c.predicted_us:.4g}",
    "measured\nus": lambda c: f"{c.measured_us:.4g}",
    "predicted/\nmeasured": lambda c: _number(c.predicted_over_measured),
    "predicted\ngain": lambda c: _number(c.predicted_gain, "x"),
}
#: The same of gated convolutions.
CONVOLUTIONS: "Mapping[str, Callable[[Convolution], str]]" = {
    "node": lambda c: c.node,
    "live\nchannels": lambda c: f"{c.live_channels:.2%} of {c.channels}",
    "live\nfilters": lambda c: f"{c.live_filters:.2%} of {c.filters}",
    "live\npairs": lambda c: f"{c.live_pairs:.2%}",
    "live of all\ntogether": lambda c: f"{c.live_work:.2%}",
    "pays\nup to": lambda c: f"{c.limit:.2%}",
    "chosen": lambda c: named_counts(c.choices, c.decisions),
}
#: The same of attention under masks.
ATTENTIONS: "Mapping[str, Callable[[Attention], str]]" = {
    "node": lambda a: a.node,
    "live\npairs": lambda a: f"{a.live_pairs:.2%}",
    "keys\nof a tile": lambda a: f"{a.tile_keys:.1f} of {a.all_keys:.1f}",
    "share\nof keys": lambda a: f"{a.live_keys:.2%}",
}


#: The same of grouped products.
GROUPED: "Mapping[str, Callable[[GroupedProduct], str]]" = {
    "node": lambda g: g.node,
    "matrices\nwith rows": lambda g: f"{g.hit_groups:.1f} of {g.groups}",
    "rows\nof each": lambda g: f"{g.rows:.1f}",
    "at\nmost": lambda g: f"{g.most_rows}",
    "read\nin a run": lambda g: f"{size(round(g.read_bytes))} of {size(g.all_bytes)}",
}


def decided(known: "Evidence", sparse: Mapping[str, str] | None = None) -> None:
    """The tables of what a trace tells, as far as there are any; `sparse` tells of nodes where they
    may be 0.
    """
    from pitc.measure.bench import LEAST_ROUNDS

    def gain(c: "Contraction") -> str:
        return _number(c.measured_gain if c.decisions >= LEAST_ROUNDS else None, "x")

    out, found = console(), known.contractions or ()
    if not (found or known.convolutions or known.attentions or known.grouped):
        out.print("\nno contraction has skipped zeros")
    if found:
        out.print(f"\nsparse contractions; measured us: {found[0].clock}\n")
        raced = any(c.measured_gain is not None for c in found)
        _print_decisions(
            out, found, CONTRACTIONS | ({"measured\ngain": gain} if raced else {}), sparse
        )
    if known.convolutions:
        out.print()
        _print_decisions(out, known.convolutions, CONVOLUTIONS, sparse)
    if known.attentions:
        out.print()
        _print_decisions(out, known.attentions, ATTENTIONS, None)
    if known.grouped:
        out.print()
        _print_decisions(out, known.grouped, GROUPED, None)


def _print_decisions(
    out: Console,
    found: Sequence[D],
    columns: Mapping[str, Callable[[D], str]],
    sparse: Mapping[str, str] | None,
) -> None:
    if sparse is not None:
        columns = {**columns, "zeros": lambda x: sparse.get(x.node, "-")}
    right = [name for name in columns if name not in ("node", "variant", "chosen", "zeros")]
    print_table(out, list(columns), [[cell(x) for cell in columns.values()] for x in found], right)


def outputs(found: Mapping[str, np.ndarray]) -> None:
    """Outputs of `pitc run`."""
    numbers = ("min", "mean", "max")
    rows = [
        (name, str(x.dtype), str([*x.shape]), *(f"{v:.6g}" for v in statistics(x).values()))
        for name, x in found.items()
    ]
    rows = [row if len(row) > len(numbers) else (*row, "-", "-", "-") for row in rows]
    print_table(console(), ("output", "type", "shape", *numbers), rows, numbers)


def statistics(array: np.ndarray) -> dict[str, float]:
    """Smallest, mean and largest value of numbers; empty for anything else."""
    if array.size == 0 or array.dtype.kind not in "biuf":
        return {}
    wide = array.astype(np.float64)
    return {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}


def verified(result: Comparison, scaled: Sequence[str] = ()) -> None:
    """The table of `pitc verify`.

    Args:
        result: The comparison.
        scaled: Nodes whose scales leave padding out, in both models.
    """
    out = console()
    numbers = ("max abs", "max rel", "norm rel", "tolerance")
    rows: list[tuple[str | Text, ...]] = []
    for o in result.outputs:
        values = (f"{v:.2e}" for v in (o.max_abs, o.max_rel, o.norm, o.tolerance))
        failed = f"FAILED in {len(o.failed)} of {result.cases}, worst {(o.failed or [o.worst])[0]}"
        text = f"{failed}: {o.problem}" if o.problem else failed
        verdict = Text("ok", "green") if o.ok else Text(text, "red")
        rows.append((o.output, o.dtype, o.rows, *values, verdict))
    if result.cases:
        print_table(out, ("output", "type", "rows", *numbers, "result"), rows, numbers)
    print_tolerances(out, {o.output: o.why for o in result.outputs})
    for title, reason in list(result.skipped.items())[:SKIPS_SHOWN]:
        out.print(
            Text(f"skipped {title}: ONNX Runtime fails on the source model: {reason}", "yellow")
        )
    if len(result.skipped) > SKIPS_SHOWN:
        out.print(f"skipped {len(result.skipped) - SKIPS_SHOWN} more")
    if scaled:
        out.print(
            f"compared with ONNX Runtime with {len(scaled)} dynamic scales of real tokens only, as "
            "--padding says"
        )
    out.print(Text(_outcome(result)))


def print_tolerances(out: Console, texts: Mapping[str, str]) -> None:
    """Where the tolerances of outputs come from, what is alike in one line."""
    found: dict[str, list[str]] = {}
    for name, text in texts.items():
        found.setdefault(text, []).append(name)
    for text, outputs in found.items():
        of = "" if len(outputs) == len(texts) else f" of {', '.join(outputs)}"
        out.print(Text(f"tolerance{of}: {text}"))


def _outcome(result: Comparison) -> str:
    """The last line of `pitc verify`: how many cases, and which is worst."""
    cases = f"{result.cases} case{'s' * (result.cases != 1)}"
    skips = ""
    if result.skipped:
        skips = f", {len(result.skipped)} skipped: give real inputs by --input"
    worst = result.worst
    if worst is not None:
        output, title = worst
        text = f"worst: {output.output} in {title}"
        return f"FAILED: {len(result.failed)} of {cases}{skips}; {text}"
    return f"{'PASSED' if result.cases else 'NOT CHECKED'}: {cases}{skips}"


def first_difference(found: Mapping[str, Any]) -> None:
    """Where the compiled model first differs, as `pitc verify` tells it."""
    if "none" in found:
        console().print(Text(f"first difference: none is named, {found['none']}"))
        return
    text = (
        f"first difference: node {found['node']!r} ({found['op_type']}), value {found['value']!r}: "
        f"{found['norm']:.1e} in {found['case']}; {found['shared']} inner values of both graphs "
        "were compared"
    )
    console().print(Text(text))


def audited(found: "AuditResult") -> None:
    """What `pitc verify --facts` found."""
    out = console()
    for text in found.failures:
        out.print(Text(f"fact FAILED: {text}", "red"))
    verdict = "FAILED" if found.failures else "PASSED" if found.feeds else "NOT CHECKED"
    left = [f"{found.refused} refused by the model"] if found.refused else []
    left += [f"{found.assumed} beyond an assumption"] if found.assumed else []
    left += [f"{found.faults} runs stopped"] if found.faults else []
    out.print(
        f"{verdict}: {found.feeds} inputs checked{''.join(f', {text}' for text in left)}; "
        f"{found.fill_checks} fill facts checked, "
        f"{found.dead_checks} values overwritten where dead ({found.tight} matter elsewhere)"
    )


def reduced(found: Mapping[str, Any]) -> None:
    """What `pitc verify --reduce` found."""
    out = console()
    operators = ", ".join(found["operators"][:8]) + (" ..." if found["nodes"] > 8 else "")
    padding = f" --padding {found['padding']}" if found["padding"] else ""
    out.print(
        f"reduced from {found['nodes_before']} to {found['nodes']} nodes in {found['tries']} "
        f"tries: {escape(operators)}"
    )
    words = f"  pitc verify {found['model']} --input {found['inputs']}{padding}"
    out.print(words, markup=False, soft_wrap=True)


def inspected(check: Check, pit_nodes: Mapping[Kind, Mapping[str, int]]) -> None:
    """What `pitc inspect` tells.

    Args:
        check: The artifact.
        pit_nodes: Of each kind of machine, by operation.
    """
    rows: list[tuple[str | Text, ...]] = [
        ("artifact", str(check.folder)),
        ("state", Text(check.verdict.value, "green" if check.runs else "red")),
    ]
    if check.problem:
        rows.append(("", check.line()))
    m = check.manifest
    if m is not None:
        rows += [
            ("source", f"{m.source.name}  sha256 {m.source.sha256}"),
            (
                "options",
                f"target {m.options.target}, padding {m.options.padding or 'none'}, "
                f"precision {m.options.precision}",
            ),
            ("versions", ", ".join(f"{k} {v}" for k, v in m.versions.items())),
        ]
        kernels = m.kernels
        if kernels:
            built = [*kernels.levels, *kernels.archs]
            where = f"{kernels.system} {kernels.machine}: {', '.join(built)}"
            rows.append(("kernels", f"{len(kernels.symbols)} for {where}"))
            rows += [("", symbol) for symbol in kernels.symbols]
        for kind, counts in pit_nodes.items():
            title = f"PIT nodes, {kind}" if len(pit_nodes) > 1 else "PIT nodes"
            by_operation = ", ".join(f"{n} {name}" for name, n in counts.items())
            told = f"{sum(counts.values())}{by_operation and ': '}{by_operation}"
            rows.append((title, told))
        files = m.files.items()
        rows += [(name, f"{size(x.bytes):>10}  sha256 {x.sha256}") for name, x in files]
    print_table(console(), ("", ""), rows)


def placed(found: "Sequence[Placement]") -> None:
    """Which execution provider runs which nodes."""
    out = console()
    out.print()
    rows = []
    for provider, group in groupby(found, key=lambda p: p.provider):
        counts = Counter(p.op_type for p in group)
        text = ", ".join(f"{n} {op}" for op, n in sorted(counts.items()))
        rows.append((provider, str(sum(counts.values())), text))
    print_table(out, ("execution provider", "nodes", "operators"), rows, ("nodes",))


def findings(found: list[Finding]) -> None:
    """The list of `pitc doctor`."""
    rows = []
    for f in found:
        detail = Text(f.detail)
        if f.fix:
            detail.append(f"\nfix: {f.fix}", style="bold")
        rows.append((Text(f.status, COLOURS[f.status]), f.name, detail))
    print_table(console(), ("", "", ""), rows)
