"""What `pitc bench` shows: times or throughput, and what may be said of them."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from pitc.cli.show import console, grouped, text_table

if TYPE_CHECKING:
    from pitc.measure.bench import Race, Timing
    from pitc.measure.throughput import Rate
    from pitc.measure.timing import Latency


def raced(race: "Race", title: str) -> None:
    """The tables of `pitc bench`, and what may be said of them."""
    from pitc.measure.bench import LEAST_ROUNDS

    out = console()
    out.print(escape(title))
    if race.rates:
        _rates(out, race)
    else:
        _times(out, race)
    few = f"it takes {LEAST_ROUNDS} (--rounds, --seconds)"
    rows = race.rates or race.timings
    told = (f"{row.verdict}: {_gain(row) if row.interval else few}" for row in rows[1:])
    for line in dict.fromkeys(told):
        out.print(Text(line))
    for text, outputs in grouped(race.tolerances).items():
        of = "" if len(outputs) == len(race.tolerances) else f" of {', '.join(outputs)}"
        out.print(Text(f"tolerance{of}: {text}"))
    for name, reason in race.left_out.items():
        out.print(Text(f"{name} was left out: {reason}", "yellow"))


def _times(out: Console, race: "Race") -> None:
    """The table of times, and that of single calls."""
    numbers = ("median ms", "p5", "p95", "pitc is", "p5 ", "p95 ", "norm rel")
    table = text_table("", *numbers, right=numbers)
    for i, row in enumerate(race.timings):
        ms = [f"{x:.4g}" for x in (row.ms.median, row.ms.p5, row.ms.p95)]
        gain = (row.speedup.median, row.speedup.p5, row.speedup.p95)
        times = [f"{x:.2f}x" for x in gain] if i and row.interval else ["-"] * 3
        table.add_row(f"{row.name} {row.version}", *ms, *times, f"{row.norm:.1e}")
    out.print(table)
    calls = ("latency of a call, wall ms: p50", "p95", "p99", "calls")
    latencies = text_table("", *calls, right=calls)
    for row in race.timings:
        if row.latency is not None:
            latencies.add_row(row.name, *_latency(row.latency), str(row.latency.calls))
    if latencies.row_count:
        out.print(latencies)


def _rates(out: Console, race: "Race") -> None:
    """The table of throughput, and that of single requests."""
    numbers = ("requests/s", "p5", "p95", "pitc is", "p5 ", "p95 ", "norm rel")
    table = text_table("", *numbers, right=numbers)
    each = ("latency of a request, ms: p50", "p95", "p99", "requests", "wall s")
    latencies = text_table("", *each, right=each)
    for i, row in enumerate(race.rates):
        rate = [f"{x:.4g}" for x in (row.per_second.median, row.per_second.p5, row.per_second.p95)]
        gain = (row.speedup.median, row.speedup.p5, row.speedup.p95)
        times = [f"{x:.2f}x" for x in gain] if i and row.interval else ["-"] * 3
        table.add_row(f"{row.name} {row.version}", *rate, *times, f"{row.norm:.1e}")
        latencies.add_row(row.name, *_latency(row.latency), str(row.requests), f"{row.wall_s:.3g}")
    out.print(table)
    out.print(latencies)


def _latency(found: "Latency") -> list[str]:
    return [f"{x:.4g}" for x in (found.p50, found.p95, found.p99)]


def _gain(row: "Timing | Rate") -> str:
    """How many times faster pitc is, with the interval that carries the claim."""
    low, high = row.interval or (0.0, 0.0)
    return f"{row.speedup.median:.2f}x against {row.name}, 95 % interval {low:.2f}x to {high:.2f}x"
