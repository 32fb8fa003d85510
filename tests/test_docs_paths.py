"""Files that the docs name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])
ROOMS = (
    "pitc",
    "passes",
    "codegen",
    "runtime",
    "models",
    "benchmarks",
    "tests",
    "docs",
    "examples",
    "tools",
)
SOURCES = {
    path.name for room in ROOMS for path in (ROOT / room).rglob("*.*") if path.suffix != ".pyc"
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_files_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    linked = set(re.findall(r"\]\(([\w./-]+)\)", text))
    assert [name for name in linked if not (page.parent / name).exists()] == []
    # a path has a folder; a bare name of a source file stands in some room
    named = set(re.findall(r"`([\w./-]+\.(?:py|cc|h|md))`", text))
    missing = [n for n in named if not (ROOT / n).exists() and n not in SOURCES]
    assert missing == []
    folders = [n for n in re.findall(r"`([\w./-]+/)`", text) if n.startswith(ROOMS)]
    assert [name for name in folders if not (ROOT / name).is_dir()] == []
