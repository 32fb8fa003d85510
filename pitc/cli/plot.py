"""`--plot`: of `pitc bench` a bar per contender and a dot per round, of `pitc explain` a dot per
decision of a sparse contraction; one PNG.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from pitc.artifact.folder import check_file, new_file
from pitc.errors import MachineError, UsageError
from pitc.ir.panels import PANEL_WIDTH
from pitc.ir.variants import VARIANTS
from pitc.measure.trace import DENSE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pitc.measure.bench import Race
    from pitc.measure.trace import Decision

BLUE, GREY = "#1f5fa8", "#9aa4b0"
_PALETTE = ("#555555", "#d1495b", "#edae49", "#66a182", "#00798c", "#30638e", "#b8860b", "#7b4b94")
COLOURS = dict(zip(VARIANTS, cycle(_PALETTE), strict=False))
"""Of the dots of each variant."""
FEW_ROWS = 8
"""Up to here the weights' way from memory counts, as in the steps of a decoder; else arithmetic."""
MOST_SIZES = 6
"""Sizes of contractions that have a picture each."""


def check_plot(path: Path) -> None:
    """Refuse a plot that cannot be made, before any work is done.

    Raises:
        UsageError: It does not end in .png, or its folder cannot be written.
        MachineError: matplotlib is not installed.
    """
    check_file(path, (".png",), "plot")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MachineError(
            "a plot needs matplotlib, which is not installed", hint="pip install matplotlib"
        ) from error


def draw(path: Path, race: "Race", title: str) -> None:
    """Write the plot.

    Args:
        path: The PNG file.
        race: What was timed.
        title: Text above the plot.
    """
    rows = race.timings
    figure = _figure(8, 1.4 + 0.55 * len(rows))
    axes = figure.subplots()
    places = list(range(len(rows)))
    medians = [row.ms.median for row in rows]
    around = [
        [row.ms.median - row.ms.p5 for row in rows],
        [row.ms.p95 - row.ms.median for row in rows],
    ]
    colours = [BLUE if i == 0 else GREY for i in places]
    axes.barh(places, medians, 0.6, xerr=around, color=colours, ecolor="#333333", capsize=3)
    for place, row in zip(places, rows, strict=True):
        axes.plot(row.rounds_ms, [place] * len(row.rounds_ms), ".", color="#00000055", ms=3)
        gain = "" if place == 0 else f"  ({row.speedup.median:.2f}x)"
        text = f"  {row.ms.median:.4g} ms{gain}"
        axes.text(max(row.rounds_ms), place, text, va="center", fontsize=8)
    axes.set_yticks(places, [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, max(max(row.rounds_ms) for row in rows) * 1.3)
    axes.set_xlabel("CPU ms of one run: median, 5th to 95th percentile, rounds (gain of pitc)")
    axes.set_title(fill(title, 90), fontsize=10, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def draw_decisions(path: Path, decisions: "Sequence[Decision]", title: str) -> None:
    """Write the plot of a trace: time of a row over density, a colour per variant, a picture per
    size of the constant operand and for few and many rows.

    Args:
        path: The PNG file.
        decisions: What ran.
        title: Text above the plot.

    Raises:
        UsageError: There is no decision.
    """
    if not decisions:
        raise UsageError("there is no decision to draw", hint="is the trace of this model?")
    sizes: dict[tuple[int, int, bool], list[Decision]] = defaultdict(list)
    for decision in decisions:
        work = decision.work
        sizes[work.k, work.panels, work.rows > FEW_ROWS].append(decision)
    shown = sorted(sizes.items(), key=lambda item: -len(item[1]))[:MOST_SIZES]
    if len(sizes) > len(shown):
        title += f": {len(shown)} of {len(sizes)} sizes, those with most decisions"
    across = min(len(shown), 3)
    down = -(-len(shown) // across)
    figure = _figure(1 + 4.2 * across, 1 + 3.2 * down)
    places = figure.subplots(down, across, squeeze=False).reshape(-1)
    for axes, ((k, panels, _), each) in zip(places, shown, strict=False):
        rows = "-".join(map(str, sorted({f([d.work.rows for d in each]) for f in (min, max)})))
        axes.set_title(f"[{rows}, {k}] by [{k}, {panels} x {PANEL_WIDTH}]", fontsize=9)
        _draw_size(axes, each)
    for axes in places[len(shown) :]:
        axes.set_axis_off()
    figure.suptitle(fill(title, 90), fontsize=10, parse_math=False)
    _save(figure, path)


def _draw_size(axes: "Axes", decisions: "Sequence[Decision]") -> None:
    for variant, colour in COLOURS.items():
        ran = [(d.density, d.measured_us / d.work.rows) for d in decisions if d.chosen == variant]
        if ran:
            axes.plot(*zip(*ran, strict=True), ".", color=colour, ms=5, label=variant)
    offered = [d for d in decisions if DENSE in d.predicted_us]
    if offered:
        dense = [(d.density, d.predicted_us[DENSE] / d.work.rows) for d in offered]
        axes.plot(*zip(*dense, strict=True), "_", color=COLOURS[DENSE], label="dense, predicted")
    axes.set_xlim(0, max(1.1 * max(d.density for d in decisions), 0.01))
    axes.set_yscale("log")
    axes.set_xlabel("density: share of elements that are not 0", fontsize=8)
    axes.set_ylabel("us per row", fontsize=8)
    axes.legend(fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(width: float, height: float) -> "Figure":
    """A figure of so many inches that needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: "Figure", path: Path) -> None:
    with new_file(path) as scratch:
        figure.savefig(scratch, dpi=150, metadata={"Software": None})
