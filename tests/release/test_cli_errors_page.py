"""docs/errors.md says what the code says."""

import signal
from pathlib import Path

import pytest

from pitc import errors
from pitc.cli import STOPS
from pitc.ir.refusal import Code

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
START = "<!-- generated: tests/release/test_cli_errors_page.py, pytest --update-golden -->\n"
END = "<!-- /generated -->\n"


def tables() -> str:
    """The generated part of the page."""
    classes = [
        errors.UsageError,
        errors.ModelError,
        errors.VerificationError,
        errors.ArtifactError,
        errors.MachineError,
    ]
    lines = ["## Exit codes", "", "| code | Python | means |", "|---|---|---|"]
    lines += ["| 0 | | success |", "| 1 | any other exception | a bug in pitc |"]
    for kind in classes:
        text = (kind.__doc__ or "").split(" (exit code")[0]
        lines.append(f"| {kind.exit_code} | `pitc.{kind.__name__}` | {text} |")
    for number, text in STOPS.items():
        kind = "`KeyboardInterrupt`" if number == signal.SIGINT else ""
        lines.append(f"| {128 + number} | {kind} | {number.name}, {text}; nothing is left behind |")
    lines.append("")
    lines += ["## Refusals", "", "| code | name | meaning, and what would help |", "|---|---|---|"]
    lines += [f"| {code.id} | `{code.name}` | {code.hint} |" for code in Code]
    return "\n".join(lines) + "\n"


def test_the_page_is_what_the_code_says(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text("utf-8")
    head, rest = text.split(START)
    found, tail = rest.split(END)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(head + START + tables() + END + tail, "utf-8")
        return
    assert found == tables(), "pytest --update-golden tests/release/test_cli_errors_page.py"


def test_every_user_error_has_its_own_exit_code() -> None:
    kinds = errors.PitcError.__subclasses__()
    codes = [kind.exit_code for kind in kinds]
    assert sorted(codes) == [2, 3, 4, 5, 6]


def test_codes_are_unique_and_never_reused() -> None:
    ids = [code.id for code in Code]
    assert len(set(ids)) == len(ids)
    assert all(i.startswith("PIT") and len(i) == 6 and i[3:].isdigit() for i in ids)
