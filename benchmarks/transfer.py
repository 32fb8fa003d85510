"""How well prices of one machine choose on another: `python -m benchmarks.transfer`.

Measured points of each machine (`results/tiles`) are replayed under the tile table of the other
one: as it is; with five constants of the machine (call, core, latency, memory, multiply-adds)
that fit best; with those of each variant; each fitted to all points, and to a few,
when the others are judged. The regret of a choice is its time over that of the best variant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy.optimize import least_squares

from benchmarks.report import RESULTS
from pitc.ir.tiles import COMPUTED, FACTOR_UNIT, FACTORS, FEMTOSECONDS, STREAMED, VariantCost
from pitc.ir.variants import FEATURES, VARIANTS
from pitc.options import TABLE_LEVELS
from pitc.tiles.factors import factors_at
from pitc.tiles.file import Point, read_file
from pitc.tiles.fit import fit_costs
from pitc.tiles.selector import features_of

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

CONSTANTS: tuple[tuple[str, ...], ...] = (
    ("launch",),
    ("listed", "written", "visits"),
    ("runs",),
    ("scanned", "streamed"),
    ("steps",),
)
"""Features whose prices a constant of the machine multiplies."""
FEW = 24
TRIALS = 8


@dataclass(frozen=True, slots=True)
class Replay:
    """Points of one machine, priced by another one's table.

    Args:
        us: Measured microseconds [points, variants], NaN where a variant was not timed.
        parts: What each feature is priced at, microseconds [points, variants, features].
        factors: By the shape of what lives [points, variants].
    """

    us: Array
    parts: Array
    factors: Array

    def predicted(self, scale: Array) -> Array:
        """Microseconds where features' prices are multiplied by `scale` [variants, features]."""
        parts = self.parts * scale
        streamed, computed = parts[..., STREAMED], parts[..., COMPUTED].sum(-1)
        waits = np.array([v.waits for v in VARIANTS.values()])
        both = np.where(waits, streamed + computed, np.hypot(streamed, computed))
        found: Array = self.factors * (parts[..., :STREAMED].sum(-1) + both)
        return found

    def regret(self, scale: Array, places: Places | slice = slice(None)) -> float:
        """Time of the choices over that of the best ones."""
        us, predicted = self.us[places], self.predicted(scale)[places]
        chosen = np.where(np.isnan(us), np.inf, predicted).argmin(axis=1)
        return float(us[np.arange(len(us)), chosen].sum() / np.nanmin(us, axis=1).sum())

    def fitted(self, each_variant: bool, places: Places) -> Array:
        """Scales by constants of the machine, or of each variant, that fit the times of points."""
        groups = np.array([[f in names for f in FEATURES] for names in CONSTANTS], float)
        us = self.us[places]
        there = ~np.isnan(us)
        near = np.nanmin(us, axis=1, keepdims=True) / np.where(there, us, np.inf)
        rows, variants = len(CONSTANTS), len(VARIANTS) if each_variant else 1

        def scale(x: Array) -> Array:
            found: Array = np.exp(x.reshape(variants, rows) @ groups)
            return np.broadcast_to(found, (len(VARIANTS), len(FEATURES)))

        def errors(x: Array) -> Array:
            left = np.log(self.predicted(scale(x))[places] / np.where(there, us, 1.0))
            mean = x.reshape(variants, rows).mean(axis=0)
            apart = (x.reshape(variants, rows) - mean).reshape(-1)  # variants differ by little
            return np.concatenate([(near**2 * left)[there] / 0.1, apart])

        start = np.full(
            variants * rows,
            float(
                np.median(
                    np.log(us / self.predicted(scale(np.zeros(variants * rows)))[places])[there]
                )
            ),
        )
        return scale(least_squares(errors, start, loss="soft_l1").x)


def replay(points: Sequence[Point], table: dict[str, VariantCost]) -> Replay:
    """Price points by a table."""
    work = [p.counted() for p in points]
    prices = np.array([table[v].prices for v in VARIANTS])
    features, shapes = features_of(work)
    amounts = np.stack([features[v] for v in VARIANTS], axis=1)
    plain = (FACTOR_UNIT,) * FACTORS
    factors = [factors_at(shapes, table[v].factors or plain) for v in VARIANTS]
    us = [[p.us.get(v, np.nan) for v in VARIANTS] for p in points]
    return Replay(np.array(us), amounts * prices / FEMTOSECONDS, np.stack(factors, axis=1))


def few(found: Replay, each_variant: bool) -> float:
    """Mean regret of points that constants from some others choose for."""
    rng, regrets = np.random.default_rng(0), []
    for _ in range(TRIALS):
        places = rng.permutation(len(found.us))
        scale = found.fitted(each_variant, places[:FEW])
        regrets.append(found.regret(scale, places[FEW:]))
    return float(np.mean(regrets))


def main() -> None:
    """Replay every machine's points under the tables of all."""
    console = Console()
    for level in TABLE_LEVELS.values():
        files = sorted((RESULTS / "tiles").glob(f"*-{level}.json"))
        points = {_machine(f): read_file(f).levels[level].points for f in files}
        costs = {m: {v: f.cost for v, f in fit_costs(p).items()} for m, p in points.items()}
        table = Table(title=f"{level}: time of the choices over that of the best")
        for heading in (
            "prices of",
            "points of",
            "as they are",
            "5 constants",
            f"of {FEW} points",
            "5 of each variant",
            f"of {FEW} points",
        ):
            table.add_column(heading)
        for source, prices in costs.items():
            for machine, measured in points.items():
                found, every = replay(measured, prices), np.arange(len(measured))
                one = np.ones((len(VARIANTS), len(FEATURES)))
                row = [found.regret(one)]
                if source != machine:
                    for each in (False, True):
                        row += [found.regret(found.fitted(each, every)), few(found, each)]
                table.add_row(source, f"{machine} ({len(measured)})", *(f"{x:.4f}" for x in row))
        console.print(table)


def _machine(file: Path) -> str:
    return file.stem.rsplit("-", 1)[0]


if __name__ == "__main__":
    main()
