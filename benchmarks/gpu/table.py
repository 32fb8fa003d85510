"""The results of a run as lines, targets beside what was reached."""

from benchmarks.gpu.journal import Result

_MOST = 5


def line_of(result: Result) -> str:
    """A result in a line, and one more for each failure."""
    failed = result.get("failed", [])
    lines = [failed] if isinstance(failed, str) else list(failed)
    lines += [f"{part}: {why}" for part, why in result.get("failed_parts", {}).items()]
    lines += result.get("complaints", [])
    more = [f"  {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    head = f"{result['case']['name']:34} {_head(result)}"
    return "\n".join([head, *(f"  {line}" for line in lines[:_MOST]), *more])


def _head(result: Result) -> str:
    if "passed" in result:
        return f"{result['passed']} passed, {len(result['failed'])} failed"
    if result.get("contenders"):
        return _times(result)
    if "failed" in result or (result.get("failed_parts") and not result.get("errors")):
        return "failed"
    if "prices" in result:
        return f"error {result['error']:.1%}, of the model {result['error_of_model']:.1%}"
    if "counters" in result:
        return ", ".join(f"{name} {x:g}" for name, x in result["counters"].items())
    if result.get("left_out"):
        return f"left out: {_named(result['left_out'])}"
    errors = result.get("errors", {})
    return f"error {max(errors.values()):.1e}" if errors else "ok"


def _times(result: Result) -> str:
    rows = {row["name"]: row["us"] or row["first_us"] for row in result["contenders"]}
    own = next(iter(rows))
    parts = [f"{own} {rows[own]:.1f} us"]
    rates = [row["tflops"] for row in result["contenders"] if "tflops" in row]
    parts += [f"{rate:.1f} TFLOP/s" for rate in rates[:1]]
    parts += [f"{name} {gain:.2f}x" for name, gain in result.get("speedup", {}).items()]
    parts += [
        f"{name} {result[name]:.2f}"
        for name in ("gbytes_per_s", "of_copy", "share")
        if name in result
    ]
    parts += [f"target {what} {x}" for what, x in targets(result).items()]
    return ", ".join(parts)


def targets(result: Result) -> dict[str, str]:
    """Targets with what was reached; one whose peer was left out has no number."""
    found = {}
    for name, target in result["case"].get("targets", {}).items():
        reached = result.get(name, result.get("speedup", {}).get(name))
        if reached is None:
            found[name] = f"{target}: not measured"
        else:
            found[name] = f"{target}: {'met' if reached >= target else 'missed'}"
    return found


def _named(left_out: dict[str, str]) -> str:
    return "; ".join(f"{name} ({reason})" for name, reason in left_out.items())
