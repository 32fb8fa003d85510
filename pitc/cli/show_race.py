"""What `pitc bench` shows: times or throughput, and what may be said of them."""

from rich.markup import escape
from rich.text import Text

from pitc.cli.show import console, print_table, print_tolerances
from pitc.measure.bench import LEAST_ROUNDS, Race, Timing
from pitc.measure.throughput import Rate

CALLS = ("latency of a call, wall ms: p50", "p95", "p99", "calls")
REQUESTS = ("latency of a request, ms: p50", "p95", "p99", "requests", "wall s")


def raced(race: Race, title: str) -> None:
    """The tables of `pitc bench`, and what may be said of them."""
    out = console()
    out.print(escape(title))
    rows = race.rates or race.timings
    measured = "requests/s" if race.rates else "median ms"
    numbers = (measured, "p5", "p95", "pitc is", "p5 ", "p95 ", "norm rel")
    print_table(out, ("", *numbers), [_figures(row, first=row is rows[0]) for row in rows], numbers)
    if calls := [_latency(row) for row in rows if row.latency is not None]:
        heads = REQUESTS if race.rates else CALLS
        print_table(out, ("", *heads), calls, heads)
    few = f"it takes {LEAST_ROUNDS} (--rounds, --seconds)"
    told = (f"{row.verdict}: {_gain(row) if row.interval else few}" for row in rows[1:])
    for line in dict.fromkeys(told):
        out.print(Text(line))
    print_tolerances(out, race.tolerances)
    for name, reason in race.left_out.items():
        out.print(Text(f"{name} was left out: {reason}", "yellow"))


def _figures(row: Timing | Rate, *, first: bool) -> list[str]:
    """The cells of a contender; the first one is pitc itself."""
    figure = row.per_second if isinstance(row, Rate) else row.ms
    shown = [f"{x:.4g}" for x in (figure.median, figure.p5, figure.p95)]
    gain = (row.speedup.median, row.speedup.p5, row.speedup.p95)
    times = [f"{x:.2f}x" for x in gain] if not first and row.interval else ["-"] * 3
    return [f"{row.name} {row.version}", *shown, *times, f"{row.norm:.1e}"]


def _latency(row: Timing | Rate) -> list[str]:
    found = row.latency
    assert found is not None
    times = [f"{x:.4g}" for x in (found.p50, found.p95, found.p99)]
    wall = [f"{row.wall_s:.3g}"] if isinstance(row, Rate) else []
    return [row.name, *times, str(found.calls), *wall]


def _gain(row: Timing | Rate) -> str:
    """How many times faster pitc is, with the interval that carries the claim."""
    low, high = row.interval or (0.0, 0.0)
    return f"{row.speedup.median:.2f}x against {row.name}, 95 % interval {low:.2f}x to {high:.2f}x"
