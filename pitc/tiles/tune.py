"""`pitc tune`: what is measured, in which order, and how it goes on after a stop."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from pitc.artifact.folder import new_file
from pitc.errors import ArtifactError, MachineError, UsageError
from pitc.host.machine import builder_versions, installed, runs_level
from pitc.ir.variants import VARIANTS
from pitc.measure.timing import pinned
from pitc.options import TABLE_LEVELS, TableLevel
from pitc.tiles.file import Cost, Measured, Point, TilesFile, point_of, read_file
from pitc.tiles.find import overlay_path, this_machine
from pitc.tiles.fit import Fit, fit_costs
from pitc.tiles.measure import contractions, numbers_of
from pitc.tiles.patterns import PATTERNS, operand

#: Called with points done, points in all, and what is measured.
Progress = Callable[[int, int, str], None]

PROTOCOL = (
    "one thread on one core, weights from beyond the caches, variants interleaved, "
    "time of the node without its detector's samples, first quartile of the runs"
)


MOST_ROWS = 3000
LEAST_DENSITY = 0.005
ALL_LIVE = 0.05
"""Share of the operands that have no zeros."""


@dataclass(frozen=True, slots=True)
class Case:
    """One operand by one matrix.

    Args:
        k: Rows of the matrix.
        n: Its columns.
        rows: Rows of the operand.
        pattern: Shape of its live micro-tiles.
        density: Share of them that is live.
    """

    k: int
    n: int
    rows: int
    pattern: str
    density: float


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured: for each size some operands, whose rows and densities are evenly spread.

    Args:
        sizes: Rows and columns of the matrices.
        cases: Operands for each size.
        most: Multiply-adds of the largest dense product.
        rounds: Rounds of each case.
    """

    sizes: Sequence[tuple[int, int]]
    cases: int
    most: int
    rounds: int

    def plan(self, numbers: int = 1) -> list[Case]:
        """All cases, those of one size together; always the same ones.

        Args:
            numbers: By which the rows of matrices are divided.
        """
        rng = np.random.default_rng(0)
        found: list[Case] = []
        places = spread(len(self.sizes) * self.cases)
        for k, n in self.sizes:
            patterns: list[str] = []
            for _ in range(self.cases):
                patterns = patterns or [str(p) for p in rng.permutation(PATTERNS)]
                row, live = next(places)
                rows = round(max(1, min(MOST_ROWS, self.most // (k * n))) ** row)
                density = min(1.0, LEAST_DENSITY ** (1 - live / (1 - ALL_LIVE)))
                found.append(Case(k + -k % numbers, n, rows, patterns.pop(), density))
        return list(dict.fromkeys(found))


def spread(count: int) -> Iterator[tuple[float, float]]:
    """Points of the unit square that lie evenly, as do the first ones of them."""
    steps = 0.7548776662466927, 0.5698402909980532  # their multiples, modulo 1, lie far apart
    for i in range(1, count + 1):
        yield i * steps[0] % 1, i * steps[1] % 1


def spread_sizes(count: int, low: int = 200, high: int = 8192) -> tuple[tuple[int, int], ...]:
    """Rows and columns of matrices, evenly spread on logarithmic axes; always the same ones."""
    ratio = high / low
    return tuple((round(low * ratio**x), round(low * ratio**y)) for x, y in spread(count))


FULL = Grid(sizes=spread_sizes(64), cases=24, most=1 << 32, rounds=12)
QUICK = Grid(sizes=spread_sizes(12), cases=12, most=1 << 30, rounds=6)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a tuning has found.

    Args:
        path: The file that was written.
        level: CPU level.
        fits: Prices and their errors, by variant.
        points: Points measured now.
        resumed: Points of an interrupted tuning that were used again.
        seconds: What it took.
    """

    path: Path
    level: TableLevel
    fits: dict[str, Fit]
    points: int
    resumed: int
    seconds: float


def tune(
    path: Path,
    level: TableLevel,
    grid: Grid,
    *,
    restart: bool = False,
    progress: Progress | None = None,
) -> Tuned:
    """Measure a grid, fit prices and write them to a file, beside the levels that it has.

    Each point is appended to a file beside it as soon as it is measured. A tuning that was stopped
    goes on from there.

    Args:
        path: The tile table to make or change.
        level: CPU level of the kernels.
        grid: What to measure.
        restart: Forget the points of an interrupted tuning.
        progress: Called before each point.

    Raises:
        MachineError: This CPU does not run the level.
        UsageError: The file cannot be written.
    """
    if not runs_level(level):
        raise MachineError(f"this CPU does not run kernels of level {level}")
    others = _levels_of(path, level)
    start = time.monotonic()
    store = _Store(path, level)
    known = store.open(restart=restart)
    numbers = numbers_of(level)
    plan = [case for case in grid.plan(numbers) if case not in known]
    total = len(plan) + len(known)
    with pinned(1):
        done = len(known)
        for (k, n), group in groupby(plan, key=lambda case: (case.k, case.n)):
            if progress:
                progress(done, total, f"kernels for {k} x {n}")
            with contractions(k, n, level) as products:
                for case in group:
                    if progress:
                        progress(done, total, text_of(case))
                    rng = np.random.default_rng(done)
                    a = operand(rng, (case.rows, k), case.pattern, case.density)
                    timed = products.time(a, VARIANTS, rounds=grid.rounds)
                    point = point_of(n, case.pattern, case.density, timed.work, timed.us)
                    store.append(point)
                    known[case] = point
                    done += 1
    points = list(known.values())
    fits = fit_costs(points)
    measured = Measured(
        machine=this_machine(),
        versions=_versions(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        protocol=PROTOCOL,
        costs={variant: _cost(fit) for variant, fit in fits.items()},
        points=points,
    )
    others[level] = measured
    table = TilesFile(
        levels={name: others[name] for name in TABLE_LEVELS.values() if name in others}
    )
    with new_file(path) as scratch:
        scratch.write_text(table.text(), "utf-8")
    store.remove()
    return Tuned(path, level, fits, len(plan), len(points) - len(plan), time.monotonic() - start)


def text_of(case: Case) -> str:
    """A case in a few words."""
    zeros = f"{case.pattern} at {case.density:.0%}"
    return f"{case.rows} rows, {case.k} x {case.n}, {zeros}"


def _cost(fit: Fit) -> Cost:
    error = round(fit.median, 4), round(fit.p95, 4)
    prices, factors = list(fit.cost.prices), list(fit.cost.factors)
    return Cost(prices=prices, factors=factors or None, error=list(error))


def _versions() -> dict[str, str]:
    return builder_versions() | {"onnxruntime": installed("onnxruntime") or ""}


def _levels_of(path: Path, level: TableLevel) -> dict[TableLevel, Measured]:
    """The other levels of the file, which stay as they are.

    A file that is no table is refused, but for the user's own, which nobody has named.
    """
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot be made: {error.strerror}", path=path.parent) from error
        return {}
    try:
        return {name: each for name, each in read_file(path).levels.items() if name != level}
    except ArtifactError:
        if path != overlay_path():
            raise
        return {}


class _Store:
    """Points of a tuning that is not finished, one line of JSON each behind a head."""

    def __init__(self, path: Path, level: TableLevel) -> None:
        self.numbers = numbers_of(level)
        self.path = path.with_name(f"{path.stem}-{level}.points")
        self.head = json.dumps({"machine": this_machine().model_dump(), "versions": _versions()})

    def open(self, *, restart: bool) -> dict[Case, Point]:
        """The points that are there, of this machine and these versions."""
        lines: list[str] = []
        if self.path.is_file() and not restart:
            lines = self.path.read_text("utf-8", "replace").splitlines()
        if lines[:1] != [self.head]:
            lines = []
        found = {_case_of(point, self.numbers): point for point in _points(lines[1:])}
        with new_file(self.path) as scratch:  # without a line that was cut off
            texts = [self.head, *(p.model_dump_json() for p in found.values())]
            scratch.write_text("\n".join(texts) + "\n", "utf-8")
        return found

    def append(self, point: Point) -> None:
        """Keep one more point."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(point.model_dump_json() + "\n")

    def remove(self) -> None:
        """The tuning is finished."""
        self.path.unlink(missing_ok=True)


def _points(lines: Sequence[str]) -> Iterator[Point]:
    for line in lines:
        try:
            yield Point.model_validate_json(line)
        except ValidationError:
            continue


def _case_of(point: Point, numbers: int) -> Case:
    work = point.counted()
    return Case(work.k * numbers, point.n, work.rows, point.pattern, point.density)
