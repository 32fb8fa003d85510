"""What the README and the docs say, works."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer

import pitc
from pitc import api
from pitc.cli.app import app
from pitc.runtime.library import make_session
from tests.plugin.test_explain import relu_pair

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def test_the_readme_example(
    bert_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(bert_path, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    code, _ = blocks(ROOT / "README.md", "python")  # the second one: tests/integrations
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    outputs = names["outputs"]
    assert isinstance(outputs, dict)
    (hidden,) = outputs.values()
    assert hidden.shape[:2] == (2, 4)
    assert not hidden[1, 2:].any()
    assert hidden[0].all()


def _decisions(folder: Path) -> None:
    """What a ReLU block decided."""
    compiled = api.compile(relu_pair("rows"), suggest=False)
    session = make_session(compiled.graph, None, {"trace": str(folder / "decisions.jsonl")})
    session.run(None, {"x": np.random.default_rng(0).standard_normal((64, 256), np.float32)})


def _table(folder: Path) -> None:
    """A tile table with the points that it was made of."""
    shutil.copyfile(ROOT / "benchmarks/results/tiles/xeon-v4.json", folder / "tiles.json")


def _nothing(folder: Path) -> None:
    """The examples need no more than the model."""


HERE: dict[str, Callable[[Path], None]] = {
    "quickstart.md": _nothing,
    "artifact.md": _nothing,
    "api.md": _nothing,
    "training.md": _nothing,
    "case.md": _nothing,
    "theory.md": _nothing,
    "attention.md": _nothing,
    "experts.md": _nothing,
    "micro-tiles.md": _decisions,
    "tiles.md": _table,
}
"""Pages with examples, and what writes the files that these read."""
ELSEWHERE = {
    "deploy.md": "release/test_docs_deploy.py",
    "cuda.md": "gpu/test_device_bert.py",
    "integrations.md": "integrations/check_docs.py",
    "export.md": "integrations/check_docs.py",
}
"""Pages with examples that other tests run."""


def test_every_example_is_run_by_some_test() -> None:
    pages = {page.name for page in PAGES if blocks(page, "python")} - {"README.md"}
    assert pages == {*HERE, *ELSEWHERE}
    for page, test in ELSEWHERE.items():
        assert f'"{page}"' in (text := (ROOT / "tests" / test).read_text("utf-8")) or (
            f"docs/{page}" in text
        ), (page, test)


@pytest.mark.parametrize("page", HERE)
def test_the_examples_of_the_docs(
    bert_path: Path,
    bert_artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
) -> None:
    shutil.copyfile(bert_path, tmp_path / "model.onnx")
    shutil.copytree(bert_artifact, tmp_path / "model.pitc")
    monkeypatch.chdir(tmp_path)
    HERE[page](tmp_path)
    pitc.register()
    names: dict[str, object] = {"library_path": str(pitc.get_library_path())}
    for code in blocks(ROOT / "docs" / page, "python"):
        code = re.sub(r"^ort\.register.*\n", "", code, flags=re.MULTILINE)  # once per process
        exec(compile(code, page, "exec"), names)


def test_every_command_in_the_docs_exists() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        text = page.read_text("utf-8")
        for name in re.findall(r"(?:^    |`)pitc (\w+)", text, re.MULTILINE):
            assert name in commands, (page, name)
        for name in re.findall(r"(?:^    |`)make (\w+)", text, re.MULTILINE):
            assert f"\n{name}:" in makefile, (page, name)


def test_every_option_in_the_docs_exists() -> None:
    group = typer.main.get_command(app)
    known = {"--update-golden", "--help", "--install-completion", "--show-completion"}
    for command in (group, *group.commands.values()):  # type: ignore[attr-defined]
        known |= {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    for page in PAGES:
        for line in page.read_text("utf-8").splitlines():
            if line.startswith("    pitc ") or "`--" in line:
                for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line):
                    assert word in known, (page, word)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), (page, target)
