"""The documentation as a site: it builds without a warning, and its notebooks run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; `strict` in mkdocs.yml makes broken links, anchors and missing pages errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        made = site / ("index.html" if name.name == "index" else f"{name}/index.html")
        assert made.is_file(), page


def test_references_are_made_from_the_code(site: Path) -> None:
    api = (site / "api" / "index.html").read_text("utf-8")
    for name in ("compile", "load", "CompiledModel", "MachineError", "PitcWarning"):
        assert re.search(rf'id="pitc\.[\w.]*{name}"', api), name
    commands = (site / "cli" / "index.html").read_text("utf-8")
    assert "pitc compile" in commands and "--padding" in commands and "[bold]" not in commands


def test_the_site_needs_no_network(site: Path) -> None:
    """A page loads what lies beside it; links that a reader may click are another thing."""
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        loaded = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(http[^"]*)', text
        )
        assert loaded == [], page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path) -> None:
    """Cell by cell, in a process of their own; they are kept without outputs."""
    cells = [c for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    program = tmp_path / "notebook.py"
    program.write_text("\n\n".join("".join(cell["source"]) for cell in cells), "utf-8")
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
