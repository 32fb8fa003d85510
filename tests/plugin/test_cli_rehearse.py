"""`pitc compile --dry-run` and `--stop-after`: all that is decided, and nothing that is built."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import pitc
from pitc.errors import UsageError

Run = Callable[..., tuple[int, str, str]]
STAGES = ["normalise", "facts", "regions", "lower"]


def told(run: Run, *words: object) -> dict[str, object]:
    code, out, err = run("compile", *words, "--json", "-q")
    assert code == 0, err
    return dict(json.loads(out))


def test_a_dry_run_decides_what_a_compilation_does(
    run: Run, bert_path: Path, tmp_path: Path
) -> None:
    words = (bert_path, "--padding", "attention_mask", "-o", tmp_path / "b.pitc")
    dry = told(run, *words, "--dry-run")
    assert not list(tmp_path.iterdir())
    done = told(run, *words)
    assert (dry["path"], dry["stopped_after"]) == (done["path"], "lower")
    assert isinstance(dry["report"], dict)
    assert isinstance(done["report"], dict)
    for key in ("nodes", "regions", "kernels", "assumptions", "notes"):
        assert dry["report"][key] == done["report"][key]


@pytest.fixture(name="all_stages", scope="module")
def _all_stages(bert_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graphs of a whole compilation."""
    folder = tmp_path_factory.mktemp("stages")
    pitc.compile(bert_path, padding="attention_mask", dump_ir=folder)
    return folder


@pytest.mark.parametrize("last", STAGES)
def test_graphs_up_to_a_stage(
    run: Run, bert_path: Path, all_stages: Path, tmp_path: Path, last: str
) -> None:
    words = (bert_path, "--padding", "attention_mask", "-o", tmp_path / "b.pitc", "--dump-ir")
    told(run, *words, tmp_path / "part", "--stop-after", last)
    assert [path.name for path in tmp_path.iterdir()] == ["part"]
    reached = STAGES[: STAGES.index(last) + 1]
    found = sorted((tmp_path / "part").glob("*.onnx"))
    assert [path.name for path in found] == [f"{i:02d}_{x}.onnx" for i, x in enumerate(reached, 1)]
    for path in found:
        assert path.read_bytes() == (all_stages / path.name).read_bytes()


def test_it_says_how_far_it_went(run: Run, bert_path: Path, tmp_path: Path) -> None:
    words = ("compile", bert_path, "--padding", "attention_mask", "-o", tmp_path / "b.pitc")
    code, out, err = run(*words, "--stop-after", "regions")
    assert code == 0, err
    assert "stopped after regions; --dump-ir DIR writes the graphs" in out
    assert "packed" in out
    assert "kernel" not in out  # none was asked for yet
    assert "[4/4] regions" in err
    code, out, err = run(*words, "--dry-run", "--report", tmp_path / "r.json")
    assert code == 0, err
    assert "1 packed region, " in out
    assert json.loads((tmp_path / "r.json").read_text("utf-8"))["nodes"]


def test_misuse(run: Run, bert_path: Path, tmp_path: Path) -> None:
    output = tmp_path / "b.pitc"
    code, _, err = run("compile", bert_path, "-o", output, "--stop-after", "codegen")
    assert code == 2
    assert "no stage is named 'codegen' (stages: normalise, facts, regions, lower)" in err
    code, _, err = run(
        "compile", bert_path, "-o", output, "--stop-after", "facts", "--report", tmp_path / "r.json"
    )
    assert code == 2
    assert "--dry-run goes through all of them" in err
    output.write_text("a user's file")
    code, _, err = run("compile", bert_path, "-o", output, "--dry-run")
    assert code == 2
    assert "the output exists" in err
    assert run("compile", bert_path, "-o", output, "--stop-after", "facts")[0] == 0
    assert output.read_text() == "a user's file"
    with pytest.raises(UsageError, match="no stage is named 'import'"):
        pitc.explain(bert_path, stop_after="import")
