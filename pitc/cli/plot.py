"""`pitc bench --plot`: one PNG, a bar per contender, a dot per round."""

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from pitc.artifact.folder import check_file, new_file
from pitc.errors import MachineError

if TYPE_CHECKING:
    from pitc.bench import Race

BLUE, GREY = "#1f5fa8", "#9aa4b0"


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
            "a plot needs matplotlib, which is not installed", hint="pip install 'pitc[report]'"
        ) from error


def draw(path: Path, race: "Race", title: str) -> None:
    """Write the plot.

    Args:
        path: The PNG file.
        race: What was timed.
        title: Text above the plot.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = race.timings
    figure = Figure(figsize=(8, 1.4 + 0.55 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
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
    with new_file(path) as scratch:
        figure.savefig(scratch, dpi=150, metadata={"Software": None})
