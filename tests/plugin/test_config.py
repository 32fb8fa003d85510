"""pitc.toml, [tool.pitc], PITC_*: who wins, and what bad values say."""

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from pitc.config import BUILT_IN, find_file, resolve
from pitc.errors import UsageError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder and no PITC_* variables."""
    for name in list(os.environ):
        if name.startswith("PITC_") and name != "PITC_EP_LIBRARY":
            monkeypatch.delenv(name)
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_defaults() -> None:
    found = resolve({"target": None})
    assert {n: s.value for n, s in found.by_name.items()} == BUILT_IN
    assert {s.origin for s in found.by_name.values()} == {"default"}
    assert found.target == "auto" and not found.quiet and found.path("output") is None


def test_flag_before_environment_before_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = here.parent / "pitc.toml"
    file.write_text('target = "cpu"\npadding = "file"\noutput = "out.pitc"\nquiet = true\n')
    monkeypatch.setenv("PITC_TARGET", "cpu:v3")
    monkeypatch.setenv("PITC_QUIET", "0")
    found = resolve({"target": "cpu:v4", "padding": None}).by_name
    assert (found["target"].value, found["target"].origin) == ("cpu:v4", "flag --target")
    assert (found["padding"].value, found["padding"].origin) == ("file", str(file))
    assert (found["quiet"].value, found["quiet"].origin) == (False, "environment PITC_QUIET")
    assert resolve({}).target == "cpu:v3"
    assert resolve({}).path("output") == here.parent / "out.pitc"


def test_an_empty_text_unsets(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "pitc.toml").write_text('padding = "mask"\n')
    assert resolve({"padding": ""}).by_name["padding"].value is None
    monkeypatch.setenv("PITC_PADDING", "")
    found = resolve({}).by_name["padding"]
    assert (found.value, found.origin) == (None, "environment PITC_PADDING")


def test_the_nearest_file_counts(here: Path) -> None:
    (here.parent / "pyproject.toml").write_text('[tool.pitc]\npadding = "p"\n')
    (here / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert find_file(here) == here.parent / "pyproject.toml"
    assert resolve({}).text("padding") == "p"
    (here.parent / "pitc.toml").write_text("")
    assert find_file(here) == here.parent / "pitc.toml"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pitc.toml", "pading = 'x'", "pitc.toml: key 'pading': it is not an option; options:"),
        ("pitc.toml", "dump_ir = 'x'", "key 'dump_ir': it is not an option"),
        (
            "pitc.toml",
            "target = 'gpu'",
            "pitc.toml: key 'target': target 'gpu' is not one of auto, cpu",
        ),
        ("pitc.toml", "padding = 3", "key 'padding': should be a valid string, found 3"),
        ("pitc.toml", "quiet = 'yes'", "key 'quiet': should be a valid boolean, found 'yes'"),
        ("pitc.toml", "target = ", "pitc.toml: is not TOML: "),
        ("pyproject.toml", "tool.pitc.quiet = 1", "pyproject.toml: key 'tool.pitc.quiet': should"),
        ("pyproject.toml", "tool.pitc = 1", "key 'tool.pitc': expected a table"),
    ],
)
def test_bad_files(here: Path, name: str, text: str, message: str) -> None:
    (here / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        resolve({})
    assert str(here / name) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("PITC_TARGET", "gpu", "environment PITC_TARGET: target 'gpu' is not one of auto"),
        ("PITC_QUIET", "maybe", "environment PITC_QUIET: should be a valid boolean"),
    ],
)
def test_bad_variables(monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=message):
        resolve({})


def test_a_file_that_is_no_text(here: Path) -> None:
    (here / "pitc.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not TOML"):
        resolve({})


def test_print_config(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "pitc.toml").write_text('padding = "mask \\"a\\""\n')
    monkeypatch.setenv("PITC_QUIET", "1")
    code, out, err = run("compile", "--print-config", "--target", "cpu:v3")
    assert (code, err) == (0, "")
    lines = {line.split(" =")[0]: line for line in out.splitlines()}
    assert lines["target"].endswith("# flag --target")
    assert lines["padding"].endswith(f"# {here / 'pitc.toml'}")
    assert lines["quiet"].endswith("# environment PITC_QUIET")
    wanted = {"target": "cpu:v3", "padding": 'mask "a"', "precision": "float32", "quiet": True}
    assert tomllib.loads(out) == wanted
    body = json.loads(run("compile", "--print-config", "--json")[1])["config"]
    assert body["dump-ir"] == {"value": None, "origin": "default"}
    (here / "pitc.toml").write_text(out)  # what is printed can be used
    assert resolve({}).text("padding") == 'mask "a"'


def test_commands_use_the_file(run: Run, bert_path: Path, here: Path) -> None:
    (here / "pitc.toml").write_text('padding = "attention_mask"\noutput = "a.pitc"\nquiet = true\n')
    code, out, err = run("compile", bert_path)
    assert (code, err) == (0, "")
    assert "packed region" in out and (here / "a.pitc").is_dir()
    assert json.loads(run("explain", bert_path, "--json")[1])["padding"] == "attention_mask"
    assert json.loads(run("explain", bert_path, "--padding", "", "--json")[1])["padding"] is None
    code, out, _ = run("verify", "a.pitc")  # an artifact has its own
    assert code == 0 and "live" in out


def test_a_bad_file_is_one_line(run: Run, mlp_path: Path, here: Path) -> None:
    (here / "pitc.toml").write_text("colour = 1\n")
    for words in (("compile", mlp_path), ("explain", mlp_path), ("verify", mlp_path)):
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "key 'colour'" in err
