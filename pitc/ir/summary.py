"""A report in a few numbers: how much of a model's work runs packed, skips zeros, or is refused,
and what the refusals cost.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pitc.ir.refusal import Code
from pitc.ir.report import NodeRecord, Report

Way = Literal["packed", "sparse", "dense", "refused"]

WAYS: tuple[Way, ...] = ("packed", "sparse", "dense", "refused")
MOST = 5  # refusals that are told


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
        reason: The violated condition.
        value: The value that stopped them; empty where the nodes themselves did.
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
    alike: defaultdict[tuple[str, str, str, str], list[NodeRecord]] = defaultdict(list)
    for record in refused:
        r = record.refusal
        if r is not None:
            alike[r.code.id, r.reason, r.value, r.code.hint].append(record)
    found = [
        Cost(*key, work=_share(records, total), first=records[0].node)
        for key, records in alike.items()
    ]
    return tuple(sorted(found, key=lambda c: (-c.work.flops, -c.work.nodes))[:MOST])
