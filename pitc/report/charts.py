"""Times before and after, and densities over time, as rows, bars and lines."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from pitc.measure.profile import PIT, Profile
from pitc.report.evidence import Evidence
from pitc.report.text import plural, share, time
from pitc.report.view import View, hosts_of

MOST_NODES, MOST_OPERATORS = 20, 12
#: Points of a line; more decisions are put together.
POINTS = 120
#: PIT nodes that belong to no node of the source graph.
MOVES = "finding live rows, moving them"
_FEW = 2  # decisions of a product that make a line


def times_chart(before: Profile, after: Profile, view: View) -> dict[str, Any]:
    """Times by operator, and of the nodes that took most; nodes that run inside another one in the
    compiled model count with it, before and after.

    Args:
        before: ONNX Runtime on the source graph.
        after: The compiled model.
        view: What the page shows of it.
    """
    hosts = hosts_of(view.report.nodes)
    operators = {record.node: record.op_type for record in view.report.nodes}
    by_node: defaultdict[str, list[float | None]] = defaultdict(lambda: [None, None])
    by_operator: defaultdict[str, list[float | None]] = defaultdict(lambda: [None, None])
    for i, profile in enumerate((before, after)):
        for node in profile.nodes:
            name = hosts.get(node.node, node.node) if node.known else node.node
            operator = operators.get(name, node.op_type)
            for times in (by_node[name], by_operator[operator]):
                times[i] = (times[i] or 0) + node.us
    inside = Counter(hosts.values())
    totals = [time(sum(node.us for node in profile.nodes)) for profile in (before, after)]
    labels = {n: f"{n} and {inside[n] - 1} inside" for n in by_node if inside[n] > 1}
    found = sorted(by_operator.items(), key=_most)
    shown = found[:MOST_OPERATORS]
    rest = [sum(times[i] or 0 for _, times in found[MOST_OPERATORS:]) for i in (0, 1)]
    shown += [("all others", [*rest])] if any(rest) else []
    return {
        "operators": _pair_rows(shown, {}, {PIT: MOVES}),
        "nodes": _pair_rows(sorted(by_node.items(), key=_most)[:MOST_NODES], view.anchors, labels),
        "told": (
            "Wall time from ONNX Runtime's profiler, for each node the smallest of "
            f"{plural(before.runs, 'run')}, in turns, on one thread. The sums are {totals[0]} "
            f"before and {totals[1]} after, including the profiler's own work. A fused node counts "
            "for the node that contains it; a dash: no such node."
        ),
    }


def _most(item: tuple[str, Sequence[float | None]]) -> float:
    return -max(x or 0 for x in item[1])


def _pair_rows(
    pairs: Sequence[tuple[str, Sequence[float | None]]],
    anchors: Mapping[str, str],
    labels: Mapping[str, str],
) -> list[dict[str, Any]]:
    most = max((x or 0 for _, pair in pairs for x in pair), default=0) or 1
    return [
        {
            "name": name,
            "label": labels.get(name, name),
            "anchor": anchors.get(name, ""),
            "before": time(before),
            "after": time(after),
            "before_width": round(100 * (before or 0) / most, 2),
            "after_width": round(100 * (after or 0) / most, 2),
        }
        for name, (before, after) in pairs
    ]


def density_chart(known: Evidence, sparse: Mapping[str, str]) -> dict[str, Any] | None:
    """What a trace tells: a line for each product over time, and the tables of all decisions.

    Args:
        known: The trace.
        sparse: Of nodes of the source graph, where their operand may be 0.
    """
    contractions = known.contractions
    others = known.convolutions, known.attentions, known.grouped
    if contractions is None and not any(others):
        return None
    each: defaultdict[str, list[float]] = defaultdict(list)
    for decision in known.decisions:
        each[decision.node].append(decision.density)
    lines = {node: _binned(found) for node, found in each.items() if len(found) >= _FEW}
    most = max((max(found) for found in lines.values()), default=0.0)
    top = next((t for t in (0.02, 0.05, 0.1, 0.2, 0.5) if most <= t), 1.0)
    middle = _middle(list(lines.values())) if len(lines) > _FEW else []
    count = max(map(len, each.values()), default=0)
    return {
        "lines": [{"node": n, "path": _line(found, top)} for n, found in lines.items()],
        "middle": _line(middle, top) if middle else "",
        "ticks": [share(top * part) for part in (1, 0.75, 0.5, 0.25, 0)],
        "label": f"Density of {plural(len(lines), 'product')} over {plural(count, 'decision')}",
        "told": _density_told(len(lines), count, bool(middle)),
        "products": contractions or (),
        "sparks": {node: _line(found, top, 100, 24) for node, found in lines.items()},
        "raced": any(c.measured_gain is not None for c in contractions or ()),
        "convolutions": known.convolutions,
        "attentions": known.attentions,
        "grouped": known.grouped,
        "sparse": sparse,
    }


def _density_told(lines: int, count: int, middle: bool) -> str:
    told = f"Share of elements that are not zero: {plural(lines, 'product')}, a line each, over "
    told += f"{plural(count, 'decision')} from left to right"
    return told + ("; the thick line is the median of all." if middle else ".")


def _binned(found: Sequence[float]) -> list[float]:
    """At most so many points, each the mean of neighbours."""
    points = min(len(found), POINTS)
    ends = [len(found) * i // points for i in range(points + 1)]
    return [fmean(found[a:b]) for a, b in pairwise(ends)]


def _middle(lines: Sequence[Sequence[float]]) -> list[float]:
    """The median of lines of other lengths, place by place."""
    points = max(map(len, lines))
    return [median(line[i * len(line) // points] for line in lines) for i in range(points)]


def _line(found: Sequence[float], top: float, width: float = 600, height: float = 200) -> str:
    step = width / max(len(found) - 1, 1)
    places = (f"{i * step:.1f} {height * (1 - x / top):.1f}" for i, x in enumerate(found))
    return f"M{'L'.join(places)}"
