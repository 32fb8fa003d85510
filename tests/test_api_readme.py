"""What the README and the docs say, works."""

import re
import shutil
from pathlib import Path

import pytest
import typer

import pitc
from pitc.cli.app import app

ROOT = Path(__file__).parents[1]
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
    (code,) = blocks(ROOT / "README.md", "python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    outputs = names["outputs"]
    assert isinstance(outputs, dict)
    (hidden,) = outputs.values()
    assert hidden.shape[:2] == (2, 4)
    assert not hidden[1, 2:].any()
    assert hidden[0].all()


@pytest.mark.parametrize("page", ["quickstart.md", "artifact.md"])
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
    pitc.register()
    names: dict[str, object] = {"library_path": str(pitc.get_library_path())}
    for code in blocks(ROOT / "docs" / page, "python"):
        code = re.sub(r"^ort\.register.*\n", "", code, flags=re.MULTILINE)  # once per process
        exec(compile(code, page, "exec"), names)
    assert "session" in names


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
    for command in group.commands.values():  # type: ignore[attr-defined]
        known |= {word for option in command.params for word in option.opts}
    for page in PAGES:
        for line in page.read_text("utf-8").splitlines():
            if line.startswith("    pitc ") or "`--" in line:
                for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line):
                    assert word in known, (page, word)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), (page, target)
