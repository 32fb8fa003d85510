"""Files that the docs name exist, and their lists and tables are lists and tables."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def kind_of(line: str) -> str:
    """What a line of Markdown begins or continues."""
    if not line.strip() or re.match(r"<!--.*-->$|:::", line):
        return "gap"
    if line.startswith("|"):
        return "table"
    if re.match(r"\s*([*-]|\d+\.) ", line):
        return "item"
    return "indented" if line.startswith("  ") else "text"


JOINED = {("text", "item"), ("text", "table"), ("item", "table"), ("indented", "table")}
JOINED |= {("table", kind) for kind in ("text", "item", "indented")}
JOINED |= {("item", "text"), ("text", "indented")}
"""Kinds of neighbouring lines of which the second is drawn as a part of the first."""


def joined(page: str) -> list[str]:
    """Lines of a page that are drawn as a part of what stands before them, which they are not.

    They need a blank line in front; a list inside of a list needs four spaces, not two; a block
    of code behind a list needs a line of text between the two.

    Args:
        page: Markdown.
    """
    page = re.sub(r"^( *)```.*?^ *```$", "", page, flags=re.DOTALL | re.MULTILINE)
    lines = page.splitlines()
    kinds = [kind_of(line) for line in lines]
    found = []
    in_list = False
    for before, kind, line in zip(["gap", *kinds], kinds, lines, strict=False):
        code = in_list and before == "gap" and kind == "indented" and line.startswith(" " * 4)
        if (before, kind) in JOINED or code or re.match(r" {1,3}([*-]|\d+\.) ", line):
            found.append(line)
        in_list = kind == "item" or (in_list and kind in ("gap", "indented"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lists_tables_and_code_stand_apart(page: Path) -> None:
    assert joined(page.read_text("utf-8")) == []


def test_what_is_drawn_as_a_part_of_something_else_is_found() -> None:
    table = "| a |\n|---|\n| b |\n"
    assert joined(f"text\n\n{table}\n* one\n  more\n* two\n") == []
    assert joined(f"{table}* one\n* two\n") == ["* one"]
    assert joined(f"{table}text\n") == ["text"]
    assert joined(f"text\n{table}") == ["| a |"]
    assert joined("text\n* one\n") == ["* one"]
    assert joined("* one\ntext\n") == ["text"]
    assert joined("text\n    code\n") == ["    code"]
    assert joined("* one\n\n    code\n") == ["    code"]
    assert joined("* one\n\ntext:\n\n    code\n") == []
    assert joined("* one\n  * two\n") == ["  * two"]
    assert joined("* one\n    * two\n") == []
    assert joined("```\nprint()\n* 2\n```\n") == []
