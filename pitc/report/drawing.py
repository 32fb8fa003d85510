"""The drawing of a model: boxes coloured by how they run, with the live share of their rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pitc.ir.report import NodeRecord, Report
from pitc.report import layout
from pitc.report.boxes import boxes_of, kind_of, label_of
from pitc.report.text import middle_out, plural, share

_TITLES = 4  # nodes that a box names
_BAR = layout.BOX_WIDTH - 25 - 38


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """One box.

    Args:
        x: Left, pixels.
        y: Top, pixels.
        kind: How its nodes run.
        glyph: A letter for it.
        label: Operators.
        title: Its nodes: what becomes of them, and why.
        nodes: Their places, separated by spaces.
        anchor: The row of its first node.
        share: Live share of its rows, where it is known.
        bar: The same in pixels.
    """

    x: int
    y: int
    kind: str
    glyph: str
    label: str
    title: str
    nodes: str
    anchor: str
    share: float | None
    bar: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing, in pixels; `told` says what it leaves out.

    Args:
        boxes: Its boxes, in the order of the graph.
        lines: One path of all lines.
        map: A path of all boxes of a kind, for each kind.
        told: What is drawn, and what is not.
        shares: True where some box has a live share.
    """

    boxes: tuple[DrawnBox, ...]
    lines: str
    map: tuple[tuple[str, str], ...]
    told: str
    width: int
    height: int
    shares: bool
    box_width: int = layout.BOX_WIDTH
    box_height: int = layout.BOX_HEIGHT
    bar_width: int = _BAR


def drawing_of(
    report: Report,
    kinds: Sequence[str],
    glyphs: Mapping[str, str],
    anchors: Sequence[str],
    live: Mapping[str, float],
) -> Drawing:
    """Draw the nodes of a report.

    Args:
        report: The report.
        kinds: How each node runs.
        glyphs: A letter for each kind.
        anchors: Of each node, the row of the table that tells of it.
        live: Live share of the rows of nodes, where it is known, by name.
    """
    boxes = boxes_of(report.nodes, kinds)
    placed = layout.layout_of(boxes.graph)
    drawn = []
    for i, nodes in enumerate(boxes.nodes):
        x, y = placed.places[i]
        shares = [live[report.nodes[n].node] for n in nodes if report.nodes[n].node in live]
        mean = fmean(shares) if shares else None
        kind = kind_of(nodes, kinds)
        room = 20 if mean is None else 19
        drawn.append(
            DrawnBox(
                x,
                y,
                kind,
                glyphs[kind],
                middle_out(label_of(nodes, report.nodes), room),
                _title([report.nodes[n] for n in nodes], mean),
                " ".join(map(str, nodes)),
                anchors[nodes[0]],
                mean,
                round(_BAR * (mean or 0), 1),
            )
        )
    told = [f"{plural(len(report.nodes), 'node')} in {len(drawn)} box{'es' * (len(drawn) != 1)}"]
    told += [f"{boxes.hidden} of shape plumbing left out"] * (boxes.hidden > 0)
    told += [f"{plural(len(placed.long), 'long line')} left out"] * bool(placed.long)
    told += [f"the last {plural(boxes.left_out, 'node')} left out"] * (boxes.left_out > 0)
    return Drawing(
        tuple(drawn),
        " ".join(map(_path, placed.lines)),
        tuple(
            (
                kind,
                "".join(
                    f"M{b.x} {b.y}h{layout.BOX_WIDTH}v{layout.BOX_HEIGHT}h-{layout.BOX_WIDTH}z"
                    for b in drawn
                    if b.kind == kind
                ),
            )
            for kind in dict.fromkeys(b.kind for b in drawn)
        ),
        ", ".join(told) + ".",
        placed.width,
        placed.height,
        any(b.share is not None for b in drawn),
    )


def _path(points: Sequence[tuple[int, int]]) -> str:
    """A smooth line from the top down."""
    (x, y), *rest = points
    parts = [f"M{x} {y}"]
    for nx, ny in rest:
        middle = (y + ny) // 2
        parts.append(f"L{nx} {ny}" if nx == x else f"C{x} {middle} {nx} {middle} {nx} {ny}")
        x, y = nx, ny
    return "".join(parts)


def _title(records: Sequence[NodeRecord], live: float | None) -> str:
    lines = []
    for record in records[:_TITLES]:
        text = f"{record.node} ({record.op_type}): {record.outcome}"
        if record.refusal is not None:
            text += f", {record.refusal.code.id}: {record.refusal.reason}"
        engine = record.runs.partition("\n")[0]
        lines.append(text if engine in ("-", "onnxruntime") else f"{text}; {engine}")
    if len(records) > _TITLES:
        lines.append(f"and {plural(len(records) - _TITLES, 'more node')}")
    if live is not None:
        lines.append(f"{share(live)} of what it reads or makes is live")
    return "\n".join(lines)
