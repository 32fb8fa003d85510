"""The results of a run as lines, targets beside what was reached."""

from collections.abc import Iterator, Sequence
from typing import Any

Result = dict[str, Any]


def table(results: Sequence[Result]) -> Iterator[str]:
    """A line for each result."""
    for result in results:
        name = result["case"]["name"]
        if "passed" in result:
            failed = result["failed"]
            yield f"{name:34} {result['passed']} passed, {len(failed)} failed"
            yield from (f"  {line}" for line in [*failed, *result.get("complaints", [])][:5])
        elif "contenders" in result:
            yield f"{name:34} {_times(result)}"
        elif "left_out" in result:
            yield f"{name:34} left out: {_first(result['left_out'])}"
        else:
            yield f"{name:34} error {result['error']:.1e}"


def _times(result: Result) -> str:
    rows = {row["name"]: row["us"] for row in result["contenders"]}
    if not rows:
        return f"left out: {_first(result['left_out'])}"
    own = next(iter(rows))
    parts = [f"{own} {rows[own]:.1f} us"]
    parts += [f"{name} {gain:.2f}x" for name, gain in result["speedup"].items()]
    parts += [
        f"{name} {result[name]:.2f}" for name in ("gbytes_per_s", "of_copy") if name in result
    ]
    parts += [f"target {what} {x}" for what, x in targets(result).items()]
    return ", ".join(parts)


def targets(result: Result) -> dict[str, str]:
    """Targets with what was reached; one whose peer was left out has no number."""
    found = {}
    for name, target in result["case"].get("targets", {}).items():
        if target is None:
            continue
        reached = result.get(name, result.get("speedup", {}).get(name))
        if reached is None:
            found[name] = f"{target}: not measured"
        else:
            found[name] = f"{target}: {'met' if reached >= target else 'missed'}"
    return found


def _first(left_out: dict[str, str]) -> str:
    return "; ".join(f"{name} ({reason})" for name, reason in left_out.items())
