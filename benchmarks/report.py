"""Results as a table for people and as JSON for everything else."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

RESULTS = Path(__file__).with_name("results")


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def compile_table(result: dict[str, Any]) -> Table:
    """The table of a compile case."""
    table = Table(title=result["case"]["name"], caption="all cores, medians")
    for heading in ("wall s", "CPU s", "rounds"):
        table.add_column(heading, justify="right")
    row = (_number(result["wall_s"]), _number(result["cpu_s"]), str(len(result["rounds_wall_s"])))
    table.add_row(*row)
    return table


def batch_table(result: dict[str, Any]) -> Table:
    """The table of a batch case; speed-ups of pitc are medians of the rounds' ratios."""
    facts, speedup = result["workload"], result.get("speedup", {})
    shapes = ", ".join("x".join(map(str, shape)) for shape in facts["batches"])
    share = f"{facts['tokens']} tokens, live share {facts['live_share']:.2f}"
    table = Table(
        title=f"{result['case']['name']}: {shapes}, {share}",
        caption="one thread, CPU time; gain: median of the rounds' ratios; * best peer",
    )
    for heading in ("contender", "ms per batch", "pitc's gain", "times limit", "error"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    limit = result["limit_ms"]
    for row in result["contenders"]:
        ms, name, error = row["ms"], row["name"], row["error"]
        table.add_row(
            f"{name} *" if name == result["best_peer"] else name,
            _number(ms) if ms is not None else "wrong answer",
            f"{speedup[name]:.2f}" if name in speedup else "-",
            f"{ms / limit:.2f}" if ms is not None and limit else "-",
            f"{error:.1e}" if error is not None else "not finite",
        )
    if limit:
        table.add_row("limit of the core", _number(limit), "-", "1.00", "-")
    return table


def footprint_table(result: dict[str, Any]) -> Table:
    """The table of a footprint case."""
    table = Table(
        title=result["case"]["name"],
        caption=f"medians; `pitc --help` takes {result['help_s']:.2f} s",
    )
    for heading in ("", "load s", "peak MB", "disk MB", "second thread"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in result["footprint"].items():
        gain = row["two_threads"]
        table.add_row(
            name,
            _number(row["load_s"], 2),
            _number(row["peak_bytes"] / 1e6),
            _number(row["disk_bytes"] / 1e6),
            "-" if gain is None else f"{gain:.2f}x",
        )
    shares = (f"{result['ratios'][key]:.2f}" for key in ("load_s", "peak_bytes", "disk_bytes"))
    table.add_row("ratio", *shares, "-")
    return table


def table(result: dict[str, Any]) -> Table:
    """The table of a result."""
    if "footprint" in result:
        return footprint_table(result)
    return batch_table(result) if "contenders" in result else compile_table(result)


def save(result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result to `<case>.json` in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['case']['name']}.json"
    path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return path
