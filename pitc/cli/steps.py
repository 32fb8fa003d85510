"""Numbered progress on stderr: a live bar on a terminal, plain lines in pipes."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Steps:
    """Shows `[3/8] facts ... 12 ms` for each stage.

    Args:
        stages: All stages in order.
        quiet: Show nothing.
    """

    def __init__(self, stages: Sequence[str], *, quiet: bool = False) -> None:
        self._stages = list(stages)
        self._quiet = quiet
        self._name, self._start = "", 0.0
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not quiet:
            columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24)
            console = Console(stderr=True, highlight=False)
            self._bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)

    def __enter__(self) -> "Steps":
        if self._bar:
            self._bar.start()
            self._bar.add_task("", total=len(self._stages))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._end()
        elif self._name and not self._bar:
            self._write("\n")
        if self._bar:
            self._bar.stop()

    def __call__(self, name: str) -> None:
        """Start a stage; the one before has ended."""
        self._end()
        self._name, self._start = name, time.perf_counter()
        if self._bar:
            self._show(self._line())
        else:
            self._write(self._line())

    def kernels(self, done: int, total: int, symbol: str) -> None:
        """Show how many kernels are built; on a terminal only."""
        if self._bar:
            self._show(f"{self._line()}{done}/{total} {symbol}")

    def _line(self) -> str:
        place = self._stages.index(self._name) + 1 if self._name in self._stages else "-"
        return f"[{place}/{len(self._stages)}] {self._name} ... "

    def _show(self, text: str) -> None:
        if self._bar:
            done = self._stages.index(self._name) if self._name in self._stages else 0
            self._bar.update(self._bar.task_ids[0], description=text, completed=done)

    def _end(self) -> None:
        if not self._name:
            return
        took = f"{(time.perf_counter() - self._start) * 1e3:.0f} ms"
        if self._bar:
            self._bar.console.print(f"{self._line()}{took}", markup=False)
        else:
            self._write(f"{took}\n")
        self._name = ""

    def _write(self, text: str) -> None:
        if not self._quiet:
            sys.stderr.write(text)
            sys.stderr.flush()
