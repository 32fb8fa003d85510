"""Results as a table for people and as JSON for everything else."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.contenders import OURS

RESULTS = Path(__file__).with_name("results")
SWEEPS = ("spmm", "ffn")  # families of cases with zeros
FOLDERS = (
    *SWEEPS,
    "compile-time",
    "threads",
    "worst-case",
    "attention",
    "experts",
)  # families whose results have a folder of their own
WORST_HEADINGS = (
    *("size", "pattern", "padding", "packed", "ms", "time", "interval", "peak MB", "memory"),
)
SHARES = {"live_share": "live share", "zeros": "zeros", "live_columns": "live columns"}


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def compile_table(result: dict[str, Any]) -> Table:
    """The table of a compile case."""
    table = Table("", title=result["case"]["name"], caption="all cores, medians")
    for heading in ("wall s", "CPU s", "rounds"):
        table.add_column(heading, justify="right")
    for name in ("first", "sibling"):
        row = result if name == "first" else result[name]
        numbers = (_number(row["wall_s"]), _number(row["cpu_s"]), str(len(row["rounds_wall_s"])))
        table.add_row(name, *numbers)
    return table


def tall_table(result: dict[str, Any]) -> Table:
    """The table of a graph of several sizes; the targets are those of the largest."""
    targets, last = result["case"]["targets"], result["sizes"][-1]
    met = all(last[key] < most for key, most in targets.items())
    limits = f"{targets['cpu_s']:.0f} CPU s and {_number(targets['peak_bytes'] / 1e6, 0)} MB"
    caption = f"all cores, least of all rounds\ntarget: {limits}, {'met' if met else 'short'}"
    table = Table(title=result["case"]["name"], caption=caption)
    for heading in ("nodes", "CPU s", "wall s", "peak MB", "CPU ms per node"):
        table.add_column(heading, justify="right")
    for row in result["sizes"]:
        table.add_row(
            _number(row["nodes"], 0),
            _number(row["cpu_s"]),
            _number(row["wall_s"]),
            _number(row["peak_bytes"] / 1e6, 0),
            _number(row["cpu_s"] / row["nodes"] * 1e3, 2),
        )
    return table


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target of a case and what was measured.

    Args:
        over: The contender that the gain is over.
        gain: Median of the rounds' ratios; None: pitc's or the contender's answer is wrong.
        target: What was to be reached, or None.
        most: The gain is a time, as a multiple, and may be at most the target.
    """

    over: str
    gain: float | None
    target: float | None
    most: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is reached, as far as there is one."""
        if self.target is None or self.gain is None:
            return self.target is None
        return self.gain <= self.target if self.most else self.gain >= self.target


def verdicts(result: dict[str, Any]) -> tuple[Verdict, ...]:
    """The gains over the reference and over the best peer, beside their targets; where a target is
    set also over what is written by hand, and the time over the limit of the core.
    """
    targets, speedup = result["case"].get("targets", {}), result.get("speedup", {})
    base, best = result["contenders"][0]["name"], result["best_peer"]
    found = [
        Verdict(base, speedup.get(base), targets.get("base")),
        Verdict(best, speedup.get(best), targets.get("peer")),
    ]
    if targets.get("hand") is not None:
        hand = result.get("best_by_hand")
        found.append(Verdict(hand or "by hand", speedup.get(hand), targets["hand"]))
    if targets.get("limit") is not None:
        found.append(Verdict(LIMIT, over_limit(result), targets["limit"], most=True))
    return tuple(found)


LIMIT = "limit of the core"


def over_limit(result: dict[str, Any]) -> float | None:
    """Pitc's time over what the useful work needs on the core, where both are known."""
    limit = result.get("limit_ms")
    ours = next((row["ms"] for row in result["contenders"] if row["name"] == OURS), None)
    return ours / limit if limit and ours is not None else None


def with_verdicts(result: dict[str, Any]) -> dict[str, Any]:
    """A result of attention or of experts with its targets, and whether they are met."""
    if result["case"]["family"] not in ("attention", "experts") or "contenders" not in result:
        return result
    told = [asdict(v) | {"met": v.met} for v in verdicts(result)]
    return result | {"over_limit": over_limit(result), "verdicts": told}


def _caption(result: dict[str, Any]) -> Iterator[str]:
    yield "one thread, CPU time; gain: median of the rounds' ratios; * best peer"
    for verdict, kind in zip(verdicts(result), ("", ", the best peer", "", ""), strict=False):
        if verdict.target is not None:
            word = "met" if verdict.met else "short"
            over = "at most, over the" if verdict.most else "over"
            yield f"target {over} {verdict.over}{kind}: {verdict.target:.2f}x, {word}"


def batch_table(result: dict[str, Any]) -> Table:
    """The table of a batch case; speed-ups of pitc are medians of the rounds' ratios."""
    facts, speedup = result["workload"], result.get("speedup", {})
    shapes = ", ".join("x".join(map(str, shape)) for shape in facts["batches"])
    shares = [f"{text} {facts[key]:.3f}" for key, text in SHARES.items() if key in facts]
    tokens = [f"{facts['tokens']} tokens"] if "tokens" in facts else []
    table = Table(
        title=", ".join([f"{result['case']['name']}: {shapes}", *tokens, *shares]),
        caption="\n".join(_caption(result)),
    )
    table.add_column("contender", overflow="fold")
    for heading in ("ms per batch", "pitc's gain", "times limit", "error"):
        table.add_column(heading, justify="right")
    limit = result["limit_ms"]
    digits = 3 if min((r["ms"] for r in result["contenders"] if r["ms"]), default=10) < 10 else 1
    for row in result["contenders"]:
        ms, name, error = row["ms"], row["name"], row["error"]
        table.add_row(
            f"{name} *" if name == result["best_peer"] else name,
            _number(ms, digits) if ms is not None else "wrong answer",
            f"{speedup[name]:.2f}" if name in speedup else "-",
            f"{ms / limit:.2f}" if ms is not None and limit else "-",
            f"{error:.1e}" if error is not None else "not finite",
        )
    if limit:
        table.add_row(LIMIT, _number(limit, digits), "-", "1.00", "-")
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


def threads_table(result: dict[str, Any]) -> Table:
    """The table of a case of two threads."""
    target, rows = result["case"]["target"], result["threads"]
    word = "met" if rows["pitc"]["gain"] >= target else "short"
    many = ", ".join(f"{n} threads {x['gain']:.1f}x" for n, x in result["replayed"].items())
    caption = f"wall time, medians of turns; target: {target:.2f}x, {word}; replayed: {many}"
    table = Table(title=result["case"]["name"], caption=caption)
    for heading in ("", "one thread ms", "two threads ms", "gain"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in rows.items():
        table.add_row(
            name, _number(row["one_ms"], 2), _number(row["two_ms"], 2), f"{row['gain']:.2f}x"
        )
    return table


def worst_table(result: dict[str, Any]) -> Table:
    """The table of a model at all sizes; what is over a limit is marked."""
    case = result["case"]
    limits = f"{case['most_time']:.2f} of the time, {case['most_memory']:.2f} of the memory"
    caption = f"medians of ratios to ONNX Runtime's; may be {limits}; ! over"
    wrong = [
        f"{row['size']}, {row['pattern']}: {row['wrong']}"
        for row in result["worst"]
        if row["wrong"]
    ]
    told = [caption, *result["skipped"], *wrong]
    if result.get("failed"):
        told.append(f"failed: {result['failed']}")
    table = Table(title=case["name"], caption="\n".join(told))
    for heading in WORST_HEADINGS:
        table.add_column(heading, justify="right")
    for row in result["worst"]:
        known, over = row["interval"], "" if row["ok"] else " !"
        table.add_row(
            f"{row['size']} {'x'.join(map(str, row['dims'].values()))}{over}",
            row["pattern"],
            row["padding"] or "-",
            f"{row.get('packed', 0):.0%}",
            _number(row["ms"] and row["ms"]["pitc"], 3),
            _number(row["time"], 3),
            "-" if known is None else f"{known[0]:.3f}-{known[1]:.3f}",
            _number(row["peak_bytes"]["pitc"] / 1e6, 0),
            _number(row["memory"], 3),
        )
    return table


def memory_table(result: dict[str, Any]) -> Table:
    """The table of a call of a long sequence."""
    case, found = result["case"], result["memory"]
    caption = found["failed"] or f"error of some rows: {found['error']:.1e}"
    table = Table(title=case["name"], caption=caption)
    for heading in ("", "MiB beyond inputs and output"):
        table.add_column(heading, justify="right" if heading else "left")
    met = "met" if found["met"] else "short"
    peak = found["peak_bytes"]
    table.add_row("pitc", _number(None if peak is None else peak / 2**20))
    table.add_row(f"target, {met}", _number(case["most_bytes"] / 2**20))
    table.add_row("dense scores alone", _number(found["dense_bytes"] / 2**20))
    return table


def table(result: dict[str, Any]) -> Table:
    """The table of a result."""
    if "memory" in result:
        return memory_table(result)
    if "worst" in result:
        return worst_table(result)
    if "footprint" in result:
        return footprint_table(result)
    if "threads" in result:
        return threads_table(result)
    if "sizes" in result:
        return tall_table(result)
    return batch_table(result) if "contenders" in result else compile_table(result)


def save(result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result to `<case>.json` in a folder, or in its family's folder there."""
    family = result["case"].get("family")
    folder = folder / family if family in FOLDERS else folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['case']['name']}.json"
    path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return path
