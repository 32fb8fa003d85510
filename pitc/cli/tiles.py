"""`pitc tune` and `pitc inspect --tiles`."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pitc.cli import show
from pitc.cli.models import settings_of
from pitc.cli.output import print_json
from pitc.config import resolve
from pitc.errors import MachineError, UsageError
from pitc.host.machine import cpu_level
from pitc.ir.variants import FEATURES, VARIANTS
from pitc.options import TABLE_LEVELS
from pitc.tiles import tune as tuning
from pitc.tiles.file import Measured
from pitc.tiles.find import TablesInForce, outdated, overlay_path, tables_in_force

if TYPE_CHECKING:
    from pitc.cli.options import Tune

SECONDS_BETWEEN_LINES = 10.0
GO_ON = "measurements are kept: the same command continues from there, and --restart begins again"


def tune_machine(options: "Tune") -> None:
    """`pitc tune`."""
    settings, level = settings_of(options), options.level
    chosen = TABLE_LEVELS.get(level or cpu_level() or "")
    if chosen is None and level is not None:
        raise UsageError(f"level {level!r} is not one of {', '.join(TABLE_LEVELS)}")
    if chosen is None:
        raise MachineError(
            "this CPU has neither AVX-512 nor AVX2: pitc has no sparse kernels for it"
        )
    grid = tuning.QUICK if options.quick else tuning.FULL
    target = settings.path("tiles") or overlay_path()
    try:
        with _bar(quiet=settings.quiet) as progress:
            found = tuning.tune(target, chosen, grid, restart=options.restart, progress=progress)
    except KeyboardInterrupt:
        print(GO_ON, file=sys.stderr)
        raise
    if options.json:
        body = {"path": str(found.path), "level": found.level, "points": found.points}
        body |= {"resumed": found.resumed, "seconds": found.seconds}
        print_json(body | {"fits": {name: asdict(fit) for name, fit in found.fits.items()}})
        return
    out = show.console()
    fits = found.fits.items()
    rows = [(name, str(x.points), f"{x.median:.1%}", f"{x.p95:.1%}") for name, x in fits]
    show.print_table(out, ("variant", "points", "median error", "95 %"), rows, ("points",))
    count = f"{found.points} points in {found.seconds:.0f} s"
    if found.resumed:
        count += f", {found.resumed} from before"
    out.print(f"{found.path}: level {found.level}, {count}", markup=False, soft_wrap=True)


@contextmanager
def _bar(*, quiet: bool) -> Iterator[tuning.Progress]:
    """Progress on stderr: a bar on a terminal, now and then a line in a pipe."""
    if quiet:
        yield lambda done, total, text: None
    elif sys.stderr.isatty():
        columns = (
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(24),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        console = Console(stderr=True, highlight=False)
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda done, total, text: bar.update(
                task, completed=done, total=total, description=text
            )
    else:
        last = -SECONDS_BETWEEN_LINES

        def line(done: int, total: int, text: str) -> None:
            nonlocal last
            if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)

        yield line


def inspect_tiles(artifact: Path | None, *, json: bool) -> None:
    """`pitc inspect --tiles`."""
    if artifact is not None:
        raise UsageError("--tiles shows the tile table of this machine: omit the artifact")
    found = tables_in_force(resolve({}).path("tiles"))
    if json:
        print_json(_body(found))
        return
    out = show.console()
    for note in found.notes:
        out.print(note, style="yellow", markup=False, soft_wrap=True)
    for level, measured in found.levels.items():
        _print_level(level, measured, found.origins[level])


def _body(found: TablesInForce) -> Mapping[str, Any]:
    levels = {
        level: measured.model_dump(mode="json", exclude={"points", "fitted"})
        | {"origin": found.origins[level], "points": measured.point_count}
        for level, measured in found.levels.items()
    }
    return {"features": FEATURES, "levels": levels, "notes": found.notes}


def _print_level(level: str, measured: Measured, origin: str) -> None:
    from pitc.ir.target import cpu_level_of

    out, target = show.console(), cpu_level_of(level)
    machine = measured.machine
    versions = ", ".join(f"{name} {v}" for name, v in measured.versions.items())
    caches = ", ".join(f"{name} {v}" for name, v in machine.caches.items())
    out.print(f"[bold]{level}[/bold]  {origin}")
    for text in (
        f"{machine.device}; {caches}; {measured.date}; {measured.point_count} points",
        versions,
        measured.protocol,
    ):
        out.print(f"  {text}", markup=False)
    if changed := outdated(measured):
        out.print(f"  measured with {changed}; pitc tune measures again", style="yellow")
    errors = ("median error", "95 %")
    heads = ("variant", "micro-tile", "PIT axis", "dense tile", *errors)
    variants = []
    for name, cost in measured.costs.items():
        variant = VARIANTS[name]
        tile = target.listed_tile if variant.pit_axis else target.gemm_tile
        told = [f"{e:.1%}" for e in cost.error] if cost.error else ["-", "-"]
        cut = (str(variant.micro_tile()), variant.pit_axis) if variant.pit_axis else ("-", "-")
        variants.append((name, *cut, f"{tile[0]} x {tile[1]}", *told))
    show.print_table(out, heads, variants, errors)
    out.print()
    prices = [(name, *map(duration, cost.prices)) for name, cost in measured.costs.items()]
    show.print_table(out, ("variant", *FEATURES), prices, FEATURES)
    out.print()


def duration(femtoseconds: int) -> str:
    """A price for people, e.g. `1.5 ps`."""
    units = ((10**9, "us"), (10**6, "ns"), (10**3, "ps"), (1, "fs"))
    for size, unit in units:
        if femtoseconds >= size:
            value = femtoseconds / size
            return f"{value:.0f} {unit}" if value >= 9.95 else f"{value:.1f} {unit}"
    return "-"
