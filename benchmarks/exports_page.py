"""Writes the table of exports into docs/export.md: `python -m benchmarks.exports_page`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.export_cases import WHY
from benchmarks.readme import updated
from benchmarks.report import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "export.md"
FILE = RESULTS / "exports.json"
BEGIN, END = "<!-- exports -->", "<!-- /exports -->"
ENOUGH = 0.9  # of the work: where less runs packed, the page says why
Row = Mapping[str, Any]


def results() -> dict[str, Any]:
    """The committed result."""
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def best(row: Row) -> float:
    """The larger share of an export's work that runs packed."""
    return max(float(row["packed"]), float(row.get("packed_with_padding", 0.0)))


def block(found: Mapping[str, Any]) -> str:
    """The table as Markdown.

    Args:
        found: As `benchmarks.exports` wrote it.
    """
    return "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| architecture | exporter | nodes | packed | with `--padding` | suggested |"
    yield "|---|---|---|---|---|---|"
    rows = found["rows"]
    for row in rows:
        padding = f"{row['packed_with_padding']:.1%}" if "padding" in row else "-"
        said = row["suggestion"]
        option = f"`{said['option']}`" if said else "no"
        yield (
            f"| {row['architecture']} | {row['exporter']} | {row['nodes']:,} | "
            f"{row['packed']:.1%} | {padding} | {option} |".replace("%", " %")
        )
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    checks = [row[key] for row in rows for key in ("answers", "answers_with_padding") if key in row]
    cases = sum(check["cases"] for check in checks)
    yield ""
    yield (
        f"{sum(check['right'] for check in checks)} of {len(checks)} compiled models were right in "
        f"all of their {cases:,} cases. Two layers, hidden size 256; {packages}."
    )
    why = [row["architecture"] for row in rows if best(row) < ENOUGH]
    yield ""
    for name in dict.fromkeys(why):
        yield f"* **{name}**: {WHY[name]}."


if __name__ == "__main__":
    page = updated(PAGE.read_text("utf-8"), block(results()), BEGIN, END)
    PAGE.write_text(page, "utf-8")
