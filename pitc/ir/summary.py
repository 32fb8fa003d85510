"""A report in a few numbers: how much of a model's work runs packed, skips zeros, or is refused,
and what the refusals cost.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pitc.ir.naming import shortened
from pitc.ir.refusal import Code, Refusal
from pitc.ir.report import NodeRecord, Report

Way = Literal["packed", "sparse", "dense", "refused"]

WAYS: tuple[Way, ...] = ("packed", "sparse", "dense", "refused")
MOST = 5  # refusals that are told

_QUOTED = re.compile(r"'[^']*'")
_MEANING: Mapping[Way, str] = {
    "packed": "run on live rows only",
    "sparse": "skip zeros or channels when the model runs",
    "dense": "run whole; nothing in them was found to leave out",
    "refused": "run whole, though something may be left out",
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
class Summary:
    """Shares of a model's nodes and work.

    Args:
        all: All nodes.
        packed: Run on gathered rows.
        sparse: Skip zeros or unread channels when the model runs.
        dense: Run whole, and nothing to leave out was found in them.
        refused: Run whole although something might have been left out, or nobody knows.
        unknown: Nodes whose operations are not known; they count as none.
        costs: The refusals that cost most, most first.
    """

    all: Share
    packed: Share
    sparse: Share
    dense: Share
    refused: Share
    unknown: int
    costs: tuple[Cost, ...] = ()


def summary_of(report: Report) -> Summary:
    """The summary of a report."""
    groups: defaultdict[str, list[NodeRecord]] = defaultdict(list)
    for record, way in zip(report.nodes, ways_of(report.nodes), strict=True):
        groups[way].append(record)
    total = _flops(report.nodes)
    shares = {way: _share(groups[way], total) for way in WAYS}
    return Summary(
        all=_share(report.nodes, total),
        **shares,
        unknown=sum(record.flops is None for record in report.nodes),
        costs=_costs(groups["refused"], total),
    )


def summary_text(report: Report) -> str:
    """The summary of a report for people, with what would help."""
    found = summary_of(report)
    unknown = f", {found.unknown} of them of unknown work" if found.unknown else ""
    lines = [
        f"{report.model or 'model'} on {report.kind}, padding {report.padding or 'none'}: "
        f"{found.all.nodes} nodes{unknown}",
    ]
    for way in WAYS:
        part: Share = getattr(found, way)
        if part.nodes:
            lines.append(
                f"  {_percent(part.share)} of the work, {part.nodes:>4} nodes {_MEANING[way]}"
            )
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


def _costs(refused: Iterable[NodeRecord], total: int) -> tuple[Cost, ...]:
    """The groups of refusals with most work; at equal work those of most nodes."""
    alike: defaultdict[tuple[Code, str], list[tuple[NodeRecord, Refusal]]] = defaultdict(list)
    for record in refused:
        if record.refusal is not None:
            text = _QUOTED.sub("'..'", record.refusal.reason)
            alike[record.refusal.code, text].append((record, record.refusal))
    found = []
    for (code, text), each in alike.items():
        records, refusals = zip(*each, strict=True)
        reasons = {r.reason for r in refusals}
        reason = reasons.pop() if len(reasons) == 1 else text
        work = _share(list(records), total)
        value = next((r.value for r in refusals if r.value), "")
        found.append(Cost(code.id, reason, value, code.hint, work, records[0].node))
    return tuple(sorted(found, key=lambda c: (-c.work.flops, -c.work.nodes))[:MOST])
