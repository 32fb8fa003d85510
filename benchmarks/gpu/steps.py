"""The steps of a run, each a process of its own with a limit: one that fails, hangs or loses the
device takes no other with it, and what it has told until then is kept.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Result = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a run.

    Args:
        name: Its name.
        limit_s: Seconds it may take.
    """

    name: str
    limit_s: float


STEPS: tuple[Step, ...] = (
    Step("tests", 150),
    Step("sessions", 90),
    Step("copy", 30),
    Step("spmm", 120),
    Step("detector", 40),
    Step("layer", 40),
    Step("attention", 40),
    Step("bert", 90),
    Step("gemm", 60),
    Step("memcheck", 90),
    Step("racecheck", 90),
)
"""In this order: where time runs out, what is last is left out."""
_LEAST_S = 5.0
_LINES = 12


def run_step(
    step: Step,
    command: Sequence[str],
    environment: Mapping[str, str],
    seconds: float,
    flush: Callable[[list[Result]], None],
) -> Result:
    """Run a step, and hand on what it tells as it tells it.

    Args:
        step: The step.
        command: What runs it; it gets the name of a file, and appends a line for each result.
        environment: Of the process.
        seconds: How long it may take.
        flush: Called with all its results until now.

    Returns:
        How it ended: `ok`, `failed`, `timeout`; and the last lines of what it printed if it is not
        ok.
    """
    with tempfile.TemporaryDirectory() as folder:
        told, log = Path(folder, "results"), Path(folder, "log")
        told.touch()
        start = time.monotonic()
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, str(told)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # so that its children end with it
            )
            size, in_time = 0, True
            while process.poll() is None:
                in_time = time.monotonic() - start < seconds
                if not in_time:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                elif (now := told.stat().st_size) != size:
                    size = now
                    flush(_lines(told))
                time.sleep(0.05)
        flush(_lines(told))
        status = "timeout" if not in_time else "failed" if process.returncode else "ok"
        taken = round(time.monotonic() - start, 2)
        ended: Result = {"name": step.name, "status": status, "seconds": taken}
        if status != "ok":
            ended["log"] = log.read_text(errors="replace").splitlines()[-_LINES:]
        return ended


def _lines(path: Path) -> list[Result]:
    """Whole lines only: one may be under way."""
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Report:
    """The file of a run, written again whenever something is known.

    Args:
        path: The file.
        head: What it starts with.
    """

    def __init__(self, path: Path, head: Result) -> None:
        self.path, self.content = path, {**head, "steps": [], "results": []}
        self.write()

    def write(self) -> None:
        """Write it whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".part")
        fresh.write_text(json.dumps(self.content, indent=1, sort_keys=True) + "\n")
        fresh.replace(self.path)

    def run(
        self,
        steps: Sequence[Step],
        total_s: float,
        environment: Mapping[str, str],
        command: Callable[[str], list[str]],
        say: Say,
    ) -> bool:
        """Run steps while there is time.

        Args:
            steps: Which.
            total_s: Seconds for all of them.
            environment: Of their processes.
            command: Of the step of a name; `run_step` says what it gets besides.
            say: Called with a line for each.

        Returns:
            Whether every one of them ended well.
        """
        end = time.monotonic() + total_s
        for step in steps:
            left = end - time.monotonic()
            if left < _LEAST_S:
                self.content["steps"].append({"name": step.name, "status": "no time"})
                self.write()
                continue
            known = list(self.content["results"])

            def flush(results: list[Result], known: list[Result] = known) -> None:
                self.content["results"] = known + results
                self.write()

            seconds = min(step.limit_s, left)
            ended = run_step(step, command(step.name), environment, seconds, flush)
            self.content["steps"].append(ended)
            self.write()
            say(f"{step.name}: {ended['status']}, {ended['seconds']:.1f} s")
            for line in ended.get("log", []):
                say(f"  {line}")
        return all(s["status"] == "ok" for s in self.content["steps"])
