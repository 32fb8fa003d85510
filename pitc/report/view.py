"""What the page shows of one kind of machine: shares of work, refusals, rows of the table."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pitc.ir.report import NodeRecord, Report
from pitc.ir.summary import Summary, slight_refusals, summary_of, ways_of
from pitc.measure.profile import Change
from pitc.report.advice import advice
from pitc.report.boxes import FOLDED
from pitc.report.drawing import Drawing, drawing_of
from pitc.report.text import plural, share

#: How a node runs: a letter beside the colour, which does not tell alone, and what it means.
KINDS = {
    "packed": ("P", "runs on live rows only"),
    "sparse": ("S", "skips zeros, unread channels or copies when the model runs"),
    FOLDED: ("F", "runs inside another node"),
    "dense": ("–", "runs unchanged: no work to skip was found"),
    "refused": ("!", "runs unchanged, although work might be skipped"),
}
GLYPHS = {kind: glyph for kind, (glyph, _) in KINDS.items()}
NO_CHANGE = Change()


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that run alike.

    Args:
        kind: How.
        nodes: How many.
        share: Of the work, 0..1; of the nodes where no work is known.
        text: The same as text.
    """

    kind: str
    nodes: int
    share: float
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One node in the table."""

    record: NodeRecord
    anchor: str
    kind: str
    work: str
    change: Change


@dataclass(frozen=True, slots=True)
class View:
    """One kind of machine."""

    kind: str
    report: Report
    summary: Summary
    parts: tuple[Part, ...]
    rows: tuple[Row, ...]
    drawing: Drawing

    @property
    def advice(self) -> Sequence[str]:
        """What to try where little is gained."""
        return advice(self.report, self.summary)

    @property
    def anchors(self) -> dict[str, str]:
        """The first row of each name."""
        return {row.record.node: row.anchor for row in reversed(self.rows)}

    @property
    def worked(self) -> bool:
        """True where the work of some node is known."""
        return self.summary.all.flops > 0

    @property
    def plumbing(self) -> int:
        """Nodes of shape plumbing."""
        return sum(row.record.is_plumbing for row in self.rows)


def view_of(
    report: Report, changed: Mapping[str, Change], live: Mapping[str, float], *, several: bool
) -> View:
    """What a report shows.

    Args:
        report: The report.
        changed: Times and live shares of nodes, where they were measured, by name.
        live: Live shares that are known otherwise.
        several: There are other reports in the page, so that names of rows tell which.
    """
    summary, ways = summary_of(report), ways_of(report.nodes)
    kinds = [
        FOLDED if r.lowering == FOLDED else way for r, way in zip(report.nodes, ways, strict=True)
    ]
    prefix = f"{report.kind}-" if several else ""
    anchors = [f"{prefix}n{i}" for i in range(len(report.nodes))]
    hosts = hosts_of(report.nodes)
    measured = {n: c.live for n, c in changed.items() if c.live is not None}
    together = {hosts[n]: share for n, share in measured.items() if n in hosts}
    shares = {n: together[host] for n, host in hosts.items() if host in together}
    shares = dict(live) | shares | measured
    together_us: defaultdict[str, float] = defaultdict(float)
    for name, change in changed.items():
        together_us[hosts.get(name, name)] += change.after_us or 0
    total = summary.all.flops
    rows = tuple(
        Row(
            r,
            anchor,
            kind,
            share(r.flops / total) if total and r.flops else "",
            Change(
                changed.get(r.node, NO_CHANGE).before_us,
                together_us.get(r.node) or None,
                shares.get(r.node),
            ),
        )
        for r, anchor, kind in zip(report.nodes, anchors, kinds, strict=True)
    )
    lives = ("packed", "sparse")
    living = {r.node for r, kind in zip(report.nodes, kinds, strict=True) if kind in lives}
    drawn = {name: share for name, share in shares.items() if name in living}
    slight = slight_refusals(report)
    painted = ["dense" if r.node in slight else k for r, k in zip(report.nodes, kinds, strict=True)]
    return View(
        report.kind,
        report,
        summary,
        _parts(report.nodes, kinds, total),
        rows,
        drawing_of(report, painted, GLYPHS, anchors, drawn),
    )


def hosts_of(records: Sequence[NodeRecord]) -> dict[str, str]:
    """Of each node the one that it runs inside, at last; itself where it runs alone.

    Add inside MatMul, MatMul alone    ->    both: MatMul
    """
    inside = {record.node: record.inside for record in records}
    found = {}
    for name in inside:
        host = name
        for _ in inside:
            if not (further := inside.get(host)):
                break
            host = further
        found[name] = host
    return found


def _parts(records: Sequence[NodeRecord], kinds: Sequence[str], total: int) -> tuple[Part, ...]:
    nodes = Counter(kinds)
    work: Counter[str] = Counter()
    for record, kind in zip(records, kinds, strict=True):
        work[kind] += record.flops or 0
    parts = []
    for kind in KINDS:
        part = work[kind] / total if total else nodes[kind] / max(len(records), 1)
        told = f"{share(part)} of the work, " if total else ""
        parts.append(Part(kind, nodes[kind], part, f"{told}{plural(nodes[kind], 'node')}"))
    return tuple(parts)
