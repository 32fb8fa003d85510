"""How good the selector's choices are: `python -m benchmarks.selector`.

Random contractions, none of which a tile table was measured on, run with every variant by force.
The regret of a choice is the time of the chosen variant over that of the best one in hindsight.
"""

import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_facts
from benchmarks.report import RESULTS
from pitc.host.machine import cpu_level
from pitc.ir.tiles import TileTable
from pitc.ir.variants import VARIANTS
from pitc.measure.timing import pinned
from pitc.options import TABLE_LEVELS
from pitc.tiles.find import tables_in_force
from pitc.tiles.measure import contractions
from pitc.tiles.patterns import PATTERNS, operand
from pitc.tiles.tune import Case, text_of

SCHEMA = 1
GOOD, GOAL = 1.05, 0.95  # a regret, and the share of points that are to have none larger
CASES_PER_SIZE = 4
EXTENTS = (200, 6000)
MOST_STEPS = 1 << 32  # multiply-adds of the dense product


@dataclass(frozen=True, slots=True)
class Outcome:
    """One point.

    Args:
        case: What ran.
        chosen: The selector's variant.
        best: The fastest one.
        regret: Time of the first over time of the second.
        us: Microseconds by variant.
        predicted_us: By variant.
    """

    case: Case
    chosen: str
    best: str
    regret: float
    us: dict[str, float]
    predicted_us: dict[str, float]


def random_cases(points: int, seed: int) -> list[list[Case]]:
    """Cases by size; sizes, rows and densities are log-uniform."""
    rng = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    found: list[list[Case]] = []
    while sum(map(len, found)) < points:
        k, n = (round(between(*EXTENTS)) for _ in range(2))
        most = min(3000.0, MOST_STEPS / (k * n))
        if most < 1:
            continue
        group = [
            Case(k, n, round(between(1, most)), str(rng.choice(PATTERNS)), between(0.005, 1.0))
            for _ in range(min(CASES_PER_SIZE, points - sum(map(len, found))))
        ]
        found.append(group)
    return found


def measure(
    cases: list[Case], level: str, rounds: int, table: TileTable, threads: int
) -> list[Outcome]:
    """Run cases of one size with every variant; the table predicts."""
    found = []
    with contractions(cases[0].k, cases[0].n, level, table, threads=threads) as products:
        for i, case in enumerate(cases):
            shape = (case.rows, case.k)
            a = operand(np.random.default_rng(i), shape, case.pattern, case.density)
            timed = products.time(a, VARIANTS, rounds)
            predicted = dict(timed.decision.predicted_us)
            chosen = min(predicted, key=lambda v: predicted[v])
            best = min(timed.us, key=lambda v: timed.us[v])
            regret = timed.us[chosen] / timed.us[best]
            found.append(Outcome(case, chosen, best, regret, dict(timed.us), predicted))
    return found


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Shares of good choices, and what is lost in the mean over all points."""
    regrets = sorted(o.regret for o in outcomes)
    best, chosen = (sum(o.us[getattr(o, which)] for o in outcomes) for which in ("best", "chosen"))
    return {
        "points": len(regrets),
        "share": sum(r <= GOOD for r in regrets) / len(regrets),
        "share_within_10_percent": sum(r <= 1.1 for r in regrets) / len(regrets),
        "goal": GOAL,
        "median_regret": median(regrets),
        "time_weighted_regret": chosen / best,
        "mean_regret": float(np.exp(np.mean(np.log(regrets)))),
        "worst_regret": regrets[-1],
        "share_of_always_dense": sum(o.us["dense"] <= GOOD * o.us[o.best] for o in outcomes)
        / len(regrets),
    }


def show(outcomes: list[Outcome], worst: int = 10) -> Table:
    """The worst choices."""
    table = Table(title="worst choices")
    for heading in ("regret", "chosen", "best", "us", "best us", "predicted", "of best", "case"):
        table.add_column(heading)
    for o in sorted(outcomes, key=lambda o: -o.regret)[:worst]:
        names = (o.chosen, o.best)
        times = [f"{t[v]:.1f}" for t in (o.us, o.predicted_us) for v in names]
        table.add_row(f"{o.regret:.2f}", *names, *times, text_of(o.case))
    return table


def command(
    points: Annotated[int, typer.Option(min=1, help="Random contractions.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Undisturbed runs of each variant.")] = 48,
    level: Annotated[str, typer.Option(help="CPU level of the kernels.")] = "",
    seed: Annotated[int, typer.Option(help="Of the contractions.")] = 1,
    tiles: Annotated[
        Path | None, typer.Option(help="Tile table.", show_default="the one in force")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="That share each product.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="The result.", show_default="benchmarks/results")
    ] = None,
) -> None:
    """Compare the selector's choices with the best ones in hindsight."""
    console = Console()
    chosen = TABLE_LEVELS[level or cpu_level() or "v3"]
    tables = tables_in_force(tiles)
    outcomes: list[Outcome] = []
    with pinned(1) if threads == 1 else nullcontext():
        for group in random_cases(points, seed):
            console.print(f"  {len(outcomes)}/{points} {group[0].k} x {group[0].n}", style="dim")
            outcomes += measure(group, chosen, rounds, tables.table, threads)
    told = summary(outcomes)
    console.print(show(outcomes))
    console.print(told)
    case = {"name": "selector", "level": chosen, "seed": seed, "threads": threads}
    body = {"schema": SCHEMA, "case": case}
    body |= {"machine": machine_facts(), "tiles": tables.origins[chosen], "summary": told}
    body |= {"outcomes": [asdict(o) for o in outcomes]}
    name = "selector.json" if threads == 1 else f"selector-threads-{threads}.json"
    (json_file or RESULTS / name).write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    typer.run(command)
