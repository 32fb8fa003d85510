"""A report in a few numbers: how much of a model's work runs packed, skips zeros, or is refused,
what the refusals cost, and why the largest share that runs whole does.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pitc.ir.naming import shortened
from pitc.ir.refusal import Code, Refusal
from pitc.ir.report import NodeRecord, Report

Way = Literal["packed", "sparse", "dense", "refused"]

WAYS: tuple[Way, ...] = ("packed", "sparse", "dense", "refused")
MOST = 5  # refusals that are told
LEAST = 0.01  # of the work: refusals that cost less are not told

_QUOTED = re.compile(r"'[^']*'")
_MEANING: Mapping[Way, str] = {
    "packed": "run on live rows only",
    "sparse": "skip zeros, channels or copies when the model runs",
    "dense": "run unchanged; no work to skip was found",
    "refused": "run unchanged, though work might be skipped",
}


@dataclass(frozen=True, slots=True)
class Share:
    """Some of a model's nodes.

    Args:
        nodes: How many.
        flops: Their operations at example sizes, as far as they are known.
        share: Of all operations that are known, 0..1.
    """

    nodes: int = 0
    flops: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Refusals that are alike, and the work that stays dense for them.

    Args:
        code: The code, e.g. `PIT012`.
        reason: The violated condition; where several values stopped several nodes, without them.
        value: The value that stopped them, or the first one; empty where the nodes themselves did.
        hint: What would help.
        work: The nodes.
        first: Name of the first one.
    """

    code: str
    reason: str
    value: str
    hint: str
    work: Share
    first: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why most of what runs whole does.

    Args:
        share: Of the work that it is the reason for, 0..1.
        text: One sentence.
    """

    share: float
    text: str

    @property
    def line(self) -> str:
        """Both for people."""
        return f"not packed, {_percent(self.share).strip()} of the work: {self.text}"


@dataclass(frozen=True, slots=True)
class Summary:
    """Shares of a model's nodes and work.

    Args:
        all: All nodes.
        packed: Run on gathered rows.
        sparse: Skip zeros or unread channels when the model runs.
        dense: Run whole, and nothing to leave out was found in them.
        refused: Run whole although something might have been left out, or nobody knows.
        unknown: Nodes whose operations are not known; they count as none.
        costs: The refusals that cost most, most first; none that is under `LEAST`.
        reason: Why the largest share that runs whole for one reason does, where it is no less.
    """

    all: Share
    packed: Share
    sparse: Share
    dense: Share
    refused: Share
    unknown: int
    costs: tuple[Cost, ...] = ()
    reason: Reason | None = None


def summary_of(report: Report) -> Summary:
    """The summary of a report."""
    groups: defaultdict[str, list[NodeRecord]] = defaultdict(list)
    for record, way in zip(report.nodes, ways_of(report.nodes), strict=True):
        groups[way].append(record)
    total = _flops(report.nodes)
    shares: dict[Way, Share] = {way: _share(groups[way], total) for way in WAYS}
    costs = _costs(groups["refused"], total)
    return Summary(
        all=_share(report.nodes, total),
        **shares,
        unknown=sum(record.flops is None for record in report.nodes),
        costs=costs,
        reason=_reason(report, costs),
    )


def _reason(report: Report, costs: Sequence[Cost]) -> Reason | None:
    """Who reads all of what most work would be left out of, or its dearest refusal: whichever is
    the reason for more.
    """
    reader = report.whole_reader
    if reader is not None and (not costs or reader.share >= costs[0].work.share):
        return Reason(reader.share, reader.text)
    if not costs or costs[0].work.share < LEAST:
        return None
    cost = costs[0]
    at = f" at '{shortened(cost.value)}'" if cost.value else ""
    return Reason(cost.work.share, f"{cost.reason}: {cost.hint} ({cost.code}{at})")


def summary_text(report: Report) -> str:
    """The summary of a report for people, with what would help."""
    found = summary_of(report)
    unknown = f", {found.unknown} of them of unknown work" if found.unknown else ""
    rounds = f", precision {report.precision}" if report.precision != "float32" else ""
    lines = [
        f"{report.model or 'model'} on {report.kind}, padding {report.padding or 'none'}{rounds}: "
        f"{found.all.nodes} nodes{unknown}",
    ]
    for way in WAYS:
        part: Share = getattr(found, way)
        if part.nodes:
            lines.append(
                f"  {_percent(part.share)} of the work, {part.nodes:>4} nodes {_MEANING[way]}"
            )
    lines += [found.reason.line] if found.reason is not None else []
    if found.costs:
        lines.append("refusals that cost most:")
    for cost in found.costs:
        value = f", at '{shortened(cost.value)}'" if cost.value else ""
        nodes = f"{cost.work.nodes} node{'s' * (cost.work.nodes != 1)}"
        lines.append(
            f"  {_percent(cost.work.share)} of the work, {nodes} (first '{shortened(cost.first)}')"
            f"{value}: {cost.code} {cost.reason} ({cost.hint})"
        )
    lines += [f"suggestion: {suggestion.text}" for suggestion in report.suggestions]
    return "\n".join(lines)


def _percent(share: float) -> str:
    """Three digits at most; what is there is never 0."""
    return "under 0.1 %" if 0 < share < 0.001 else f"{share:6.1%}".replace("%", " %")


def ways_of(records: Iterable[NodeRecord]) -> list[Way]:
    """How each node runs, in their order."""
    known = list(records)
    hosts = {record.node: record for record in known}
    return [_way(record, hosts) for record in known]


def _way(record: NodeRecord, hosts: Mapping[str, NodeRecord]) -> Way:
    if record.lowering == "folded":  # inside a node on packed rows, or beside a product's zeros
        host = hosts.get(record.inside)
        return "packed" if host is not None and _is_packed(host) else "dense"
    if record.lowering != "ordinary":
        return "packed" if _is_packed(record) else "sparse"
    refusal = record.refusal
    nothing = refusal is None or (refusal.code is Code.NO_FACT and not record.dead)
    return "dense" if nothing or record.is_plumbing else "refused"


def _is_packed(record: NodeRecord) -> bool:
    return record.lowering in ("packed", "attention")


def _flops(records: Iterable[NodeRecord]) -> int:
    return sum(record.flops or 0 for record in records)


def _share(records: list[NodeRecord], total: int) -> Share:
    flops = _flops(records)
    return Share(len(records), flops, flops / total if total else 0.0)


def slight_refusals(report: Report) -> set[str]:
    """Names of nodes whose refusals cost too little, all that are alike together, to be told."""
    total = _flops(report.nodes)
    refused = (
        r for r, way in zip(report.nodes, ways_of(report.nodes), strict=True) if way == "refused"
    )
    groups = (records for records, _ in alike(refused).values() if not _is_told(records, total))
    return {record.node for records in groups for record in records}


def _costs(refused: Iterable[NodeRecord], total: int) -> tuple[Cost, ...]:
    """The groups of refusals with most work; at equal work those of most nodes."""
    found = []
    for (code, text), (records, refusals) in alike(refused).items():
        if not _is_told(records, total):
            continue
        reasons = {r.reason for r in refusals}
        reason = reasons.pop() if len(reasons) == 1 else text
        value = next((r.value for r in refusals if r.value), "")
        work = _share(records, total)
        found.append(Cost(code.id, reason, value, code.hint, work, records[0].node))
    return tuple(sorted(found, key=lambda c: (-c.work.flops, -c.work.nodes))[:MOST])


def alike(
    refused: Iterable[NodeRecord],
) -> dict[tuple[Code, str], tuple[list[NodeRecord], list[Refusal]]]:
    """Refused nodes by code and reason, names in it left out."""
    found: dict[tuple[Code, str], tuple[list[NodeRecord], list[Refusal]]] = {}
    for record in refused:
        if record.refusal is not None:
            text = _QUOTED.sub("'..'", record.refusal.reason)
            records, refusals = found.setdefault((record.refusal.code, text), ([], []))
            records.append(record)
            refusals.append(record.refusal)
    return found


def _is_told(records: Sequence[NodeRecord], total: int) -> bool:
    """False where refused nodes are known to take next to none of the work."""
    opaque = any(r.flops is None and r.refusal and r.refusal.code is Code.NO_RULE for r in records)
    return opaque or _flops(records) >= LEAST * total
