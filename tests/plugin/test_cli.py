"""The command line: exit codes, one-line errors, golden texts, nothing left behind."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer

from pitc import api
from pitc.check.feeds import PATTERNS
from pitc.cli import main
from pitc.cli.app import app
from pitc.cli.steps import Steps
from pitc.version import __version__

Golden = Callable[[str, str], None]
Run = Callable[..., tuple[int, str, str]]


def test_help_lists_every_command_and_option(golden: Golden, run: Run) -> None:
    """The golden text is made from the declarations, not from how help is drawn."""
    command: Any = typer.main.get_command(app)
    lines = [command.help]
    commands = dict(command.commands)
    for name, group in command.commands.items():
        commands |= {f"{name} {each}": sub for each, sub in getattr(group, "commands", {}).items()}
    for name, sub in commands.items():
        _, shown, _ = run(*name.split(), "--help")
        lines += ["", f"pitc {name}: {sub.help}"]
        for option in sub.params:
            words = [w for w in (*option.opts, *option.secondary_opts) if w != "--help"]
            help_text = getattr(option, "help", None)
            if words and help_text:
                lines.append(f"  {' '.join(words)} {option.metavar or ''}".rstrip())
                lines.append(f"      {help_text}")
                assert not words[0].startswith("-") or words[0] in shown
        if sub.epilog:
            lines.append(f"  {sub.epilog}")
            assert sub.epilog.split()[1] == "pitc"
    golden("help.txt", "\n".join(lines) + "\n")


def test_every_command_is_quiet_by_one_option() -> None:
    command: Any = typer.main.get_command(app)
    commands = dict(command.commands)
    groups = [commands.pop(name) for name in list(commands) if hasattr(commands[name], "commands")]
    for group in groups:
        commands |= group.commands
    assert {"compile", "explain", "run", "inspect", "doctor", "clear"} <= commands.keys()
    told = {
        (tuple(option.opts), option.help)
        for each in commands.values()
        for option in each.params
        if "-q" in option.opts
    }
    assert all(any("-q" in option.opts for option in each.params) for each in commands.values())
    assert told == {(("--quiet", "-q"), "Show no progress.")}


def test_run_shows_progress_unless_it_is_quiet(run: Run, mlp_path: Path) -> None:
    assert "[1/7] import" in run("run", mlp_path)[2]
    assert run("run", mlp_path, "-q")[2] == run("doctor", "-q")[2] == ""


@pytest.mark.parametrize("words", [["--help"], ["compile", "--help"], ["-h"], ["version"]])
def test_help_succeeds(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert "pitc" in out


def test_version(run: Run) -> None:
    assert run("version") == (0, f"pitc {__version__}\n", "")


def test_compile_and_inspect(run: Run, bert_path: Path, tmp_path: Path) -> None:
    output = tmp_path / "b.pitc"
    code, out, err = run("compile", bert_path, "-o", output, "--padding", "attention_mask")
    assert code == 0
    lines = err.splitlines()
    stages = api.stages()
    for i, (stage, line) in enumerate(zip(stages, lines, strict=True), 1):
        assert re.fullmatch(rf"\[{i}/{len(stages)}\] {stage} \.\.\. \d+ ms", line)
    assert str(output) in out
    assert "packed region" in out
    code, out, err = run("inspect", output)
    assert (code, err) == (0, "")
    assert "supported" in out
    assert "padding attention_mask" in out


def test_the_default_output_is_here(
    run: Run, mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert run("compile", mlp_path, "-q")[::2] == (0, "")
    assert os.listdir(here) == ["mlp.pitc"]


def test_json(run: Run, bert_path: Path, tmp_path: Path) -> None:
    output = tmp_path / "b.pitc"
    words = ("--padding", "attention_mask", "--json")
    made = json.loads(run("compile", bert_path, "-q", "-o", output, *words)[1])
    assert made["schema"] == 1
    assert made["path"] == str(output)
    assert made["pit_nodes"] > 0
    assert made["report"]["regions"]
    looked = json.loads(run("inspect", output, "--json")[1])
    assert looked["state"] == "supported"
    assert looked["manifest"]["files"] == made["files"]
    explained = json.loads(run("explain", bert_path, *words)[1])
    assert len(explained["nodes"]) == len(made["report"]["nodes"]) > 0
    assert json.loads(run("run", output, "--json")[1])["outputs"]
    assert json.loads(run("verify", output, "--json")[1])["ok"] is True
    assert json.loads(run("doctor", "--json")[1])["findings"]


@pytest.mark.parametrize("suffix", ["json", "html"])
def test_reports(run: Run, bert_path: Path, tmp_path: Path, suffix: str) -> None:
    report = tmp_path / f"report.{suffix}"
    words = ("-q", "-o", tmp_path / "b.pitc", "--padding", "attention_mask", "--report", report)
    assert run("compile", bert_path, *words)[0] == 0
    text = report.read_text()
    if suffix == "json":
        body = json.loads(text)
        assert body["padding"] == "attention_mask"
        assert set(body["stages_ms"]) == set(api.stages())
    else:
        assert text.startswith("<!doctype html>")
        assert "region0" in text
        assert f"--padding attention_mask --report {report}" in re.sub("<wbr>|\u2060", "", text)


def test_dumps(run: Run, bert_path: Path, tmp_path: Path) -> None:
    dump = tmp_path / "stages"
    words = ("-q", "-o", tmp_path / "b.pitc", "--dump-ir", dump)
    assert run("compile", bert_path, *words)[0] == 0
    models = sorted(dump.glob("*.onnx"))
    assert models
    assert all(onnx.load(path, load_external_data=False).graph.node for path in models)


def errors(bert: Path, mlp: Path, folder: Path) -> list[tuple[Sequence[object], int]]:
    """Commands that fail, and their exit codes."""
    artifact, damaged = folder / "mlp.pitc", folder / "damaged.pitc"
    main(["compile", "-q", str(mlp), "-o", str(artifact)])
    main(["compile", "-q", str(mlp), "-o", str(damaged)])
    (damaged / "weights.bin").write_bytes(b"")
    (folder / "text.onnx").write_text("this is no model")
    (folder / "photos").mkdir()
    (folder / "photos" / "cat.png").write_text("cat")
    np.savez(folder / "bad.npz", x=np.ones((2, 3), np.float32))
    return [
        (["colour"], 2),
        (["compile"], 2),
        (["compile", mlp, "--colour"], 2),
        (["compile", mlp, "--target", "gpu", "-o", folder / "x.pitc"], 2),
        (["compile", mlp, "-o", artifact], 2),
        (["compile", mlp, "-o", folder / "photos", "--force"], 2),
        (["compile", mlp, "-o", folder / "no" / "x.pitc"], 2),
        (["compile", mlp, "-o", folder / "x.pitc", "--report", folder / "r.txt"], 2),
        (["compile", bert, "-q", "-o", folder / "x.pitc", "--padding", "attention_maks"], 2),
        (["compile", mlp, "-q", "-o", folder / "x.pitc", "--dump-ir", folder / "text.onnx"], 2),
        (["compile", folder / "none.onnx", "-q", "-o", folder / "x.pitc"], 3),
        (["compile", folder / "text.onnx", "-q", "-o", folder / "x.pitc"], 3),
        (["run", artifact, "--input", folder / "none.npz"], 2),
        (["run", artifact, "--input", folder / "bad.npz"], 2),
        (["run", artifact, "--input", "x"], 2),
        (["run", artifact, "--shape", "x=2"], 2),
        (["run", artifact, "--shape", "z=2"], 2),
        (["run", artifact, "--padding", "x"], 2),
        (["run", damaged], 5),
        (["verify", artifact, "--against", folder / "text.onnx"], 3),
        (["verify", mlp, "--against", mlp], 2),
        (["verify", artifact, "--target", "cpu"], 2),
        (["verify", artifact, "--reduce", folder / "small.onnx"], 2),
        (["verify", mlp, "-q", "--reduce", mlp], 2),
        (["bench", mlp, "--lengths", "many"], 2),
        (["bench", mlp, "--against", "torch"], 2),
        (["bench", mlp, "-q", "--mean", "3"], 2),
        (["bench", mlp, "--plot", folder / "race.pdf"], 2),
        (["bench", damaged], 5),
        (["explain", mlp, "--node", "Conv*"], 2),
        (["inspect", folder / "none.pitc"], 2),
        (["inspect", damaged], 5),
    ]


def test_every_error_is_one_line_and_has_its_exit_code(
    golden: Golden, run: Run, bert_path: Path, mlp_path: Path, tmp_path: Path
) -> None:
    """The golden text holds every message; paths are cut."""
    lines = []
    before = None
    for words, code in errors(bert_path, mlp_path, tmp_path):
        before = before or sorted(os.listdir(tmp_path))
        found, _, err = run(*words)
        text = " ".join(map(str, words))
        assert found == code, (text, err)
        errors_shown = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(errors_shown) == 1, err
        assert err.endswith(errors_shown[0] + "\n")
        assert "Traceback" not in err
        shown = f"$ pitc {text}\n{code}: {errors_shown[0]}\n"
        shown = re.sub(r"(ONNX Runtime cannot load it: ).*", r"\1...", shown)
        for path, name in ((tmp_path, "DIR"), (bert_path.parent, "BERT")):
            shown = shown.replace(str(path), name)
        lines.append(shown)
    assert sorted(os.listdir(tmp_path)) == before
    golden("errors.txt", "\n".join(lines))


def test_explain(golden: Golden, run: Run, mlp_path: Path) -> None:
    code, out, err = run("explain", mlp_path)
    assert (code, err) == (0, "")
    golden("explain_mlp.txt", "".join(f"{line.rstrip()}\n" for line in out.splitlines()))


def test_explain_filters_and_reads_artifacts(
    run: Run, bert_path: Path, bert_artifact: Path
) -> None:
    code, direct, _ = run("explain", bert_path, "--padding", "attention_mask")
    assert code == 0
    assert run("explain", bert_artifact)[1] == direct
    code, some, _ = run("explain", bert_artifact, "--node", "MatMul", "--json")
    assert code == 0
    assert {n["op_type"] for n in json.loads(some)["nodes"]} == {"MatMul"}


def test_run_reads_and_writes_files(run: Run, mlp_path: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    np.save(tmp_path / "x.npy", x)
    results = []
    for i, word in enumerate((tmp_path / "in.npz", f"x={tmp_path / 'x.npy'}")):
        out = tmp_path / f"out{i}.npz"
        code, text, _ = run("run", mlp_path, "--input", word, "--save", out)
        assert code == 0
        assert "[4, 32]" in text
        results.append(np.load(out)["y"])
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(mlp_path).graph.initializer}
    np.testing.assert_allclose(results[0], x @ weights["w"] + weights["b"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("shape", ["x=7x16", "batch=7"])
def test_run_makes_inputs(run: Run, mlp_path: Path, shape: str) -> None:
    code, out, _ = run("run", mlp_path, "--shape", shape)
    assert code == 0
    assert "[7, 32]" in out


def test_verify_passes(run: Run, bert_path: Path, bert_artifact: Path) -> None:
    for words in (
        (bert_path, "-q"),
        (bert_path, "-q", "--padding", "attention_mask", "--facts"),
        (bert_artifact,),
        (bert_artifact, "--against", bert_path, "--shape", "batch=2"),
    ):
        code, out, err = run("verify", *words)
        assert (code, err) == (0, ""), out
        assert "PASSED" in out
    body = json.loads(run("verify", bert_artifact, "--json")[1])
    assert body["cases"] >= len(PATTERNS)
    assert body["outputs"][0]["rows"] == "live"
    facts = json.loads(run("verify", bert_artifact, "--facts", "--json")[1])["facts"]
    assert facts["dead_checks"] > 0
    assert facts["failures"] == []


def test_verify_fails_on_another_model(
    run: Run, bert_artifact: Path, bert_path: Path, tmp_path: Path
) -> None:
    other = onnx.load(bert_path)
    for tensor in other.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.ndim == 2 and array.dtype == np.float32:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1.01), tensor.name))
            break
    onnx.save(other, tmp_path / "other.onnx")
    code, out, err = run("verify", bert_artifact, "--against", tmp_path / "other.onnx")
    assert code == 4
    assert "FAILED" in out
    assert err.count("\n") == 1
    assert "differs from ONNX Runtime" in err


def test_doctor(run: Run) -> None:
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    names = ("onnxruntime", "cpu", "C compiler", "CUDA compiler", "CUDA driver")
    for name in (*names, "execution provider"):
        assert name in out


def test_doctor_shows_what_limits_the_level(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pitc.host.machine.machine_level", lambda: "v4_bf16")
    monkeypatch.setattr("pitc.host.doctor.machine_level", lambda: "v4_bf16")

    def found(level: str, code: int) -> dict[str, str]:
        monkeypatch.setenv("PITC_CPU", level)
        status, out, _ = run("doctor", "--json")
        assert status == code
        return {f["name"]: f"{f['status']} {f['detail']}" for f in json.loads(out)["findings"]}

    assert "PITC_CPU" not in found("", 0) | found("v4_bf16", 0)
    limited = found("v3", 0)
    wanted = "warn the CPU has v4_bf16, but kernels of v3 at best are used"
    assert limited["PITC_CPU"] == wanted
    assert "level v3 (AVX2 and FMA)" in limited["cpu"]
    assert found("v5", 6)["cpu"].startswith("fail ")


def test_doctor_names_what_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("pitc.codegen.build.link._PACKAGED", "pitc_absent")
    code, out, err = run("doctor")
    assert code == 6
    assert "apt-get install gcc" in out
    assert err == "error: not usable: C compiler\n"


def test_a_bug_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr("pitc.host.doctor.examine", broken)
    code, _, err = run("doctor")
    assert code == 1
    assert "ZeroDivisionError: deep inside" in err
    assert err.endswith("error: this is a bug in pitc; please report it with the text above\n")


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt, 130), (MemoryError, 6), (EOFError, 130)]
)
def test_interruptions(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], code: int
) -> None:
    def stop() -> None:
        raise error

    monkeypatch.setattr("pitc.host.doctor.examine", stop)
    found, _, err = run("doctor")
    assert found == code
    assert err.strip().count("\n") == 0
    assert err.strip().startswith("error: ")


def pitc_process(*words: object, **options: Any) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    arguments = [sys.executable, "-m", "pitc", *map(str, words)]
    return subprocess.Popen(arguments, **(pipes | options))


@pytest.mark.parametrize("stage", ["import", "codegen", "write"])
def test_ctrl_c_leaves_nothing(bert_path: Path, tmp_path: Path, stage: str) -> None:
    """The signal comes in the middle of a stage that waits for it."""
    code = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
from pitc import api
from pitc.cli import main
real = api._Steps.__call__
def slow(self, name):
    real(self, name)
    if name == {stage!r}:
        print("now", flush=True)
        time.sleep(60)
api._Steps.__call__ = slow
sys.exit(main(sys.argv[1:]))
"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = [sys.executable, "-c", code, "compile", str(bert_path), "-o", str(tmp_path / "b.pitc")]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "error: interrupted"
    assert set(os.listdir(scratch)) <= {".ses"}  # made by importing ONNX Runtime
    assert os.listdir(tmp_path) == ["scratch"]


def test_a_reader_that_leaves_is_no_error(bert_artifact: Path) -> None:
    with pitc_process("explain", bert_artifact, "--json") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_no_colour_in_pipes(mlp_path: Path) -> None:
    with pitc_process("explain", mlp_path) as process:
        out, err = process.communicate()
    assert process.returncode == 0
    assert "\x1b" not in out + err


@pytest.mark.parametrize("no_color", [False, True])
def test_progress_on_a_terminal(mlp_path: Path, tmp_path: Path, no_color: bool) -> None:
    main_end, other_end = os.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"}
    env |= {"NO_COLOR": "1"} if no_color else {}
    words = ("compile", mlp_path, "-o", tmp_path / "a.pitc")
    with pitc_process(*words, stderr=other_end, env=env) as process:
        os.close(other_end)
        seen = b""
        while True:
            try:
                chunk = os.read(main_end, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            seen += chunk
        assert process.wait() == 0
    os.close(main_end)
    assert b"write ..." in seen
    assert bool(re.search(rb"\x1b\[[0-9;]*3[0-9]", seen)) != no_color


def test_steps_end_their_line_on_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), Steps(["one", "two"]) as steps:
        steps("one")
        steps("two")
        raise ValueError
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("[1/2] one ... ")
    assert first.endswith(" ms")
    assert second == "[2/2] two ... "


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [("pitc ver", {"verify", "version"}), ("pitc compile --target cpu:", {"cpu:v4", "cpu:v3"})],
)
def test_completion(shell: str, words: str, expected: set[str]) -> None:
    """What a shell gets when the user presses Tab."""
    env = os.environ | {
        "_PITC_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,  # bash
        "COMP_CWORD": str(len(words.split()) - 1),
        "_TYPER_COMPLETE_ARGS": words,  # zsh and fish
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    with pitc_process(env=env) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    shown = out.replace("\\", "")  # zsh quotes the colon
    assert all(word in shown for word in expected)
    assert "doctor" not in shown and "auto" not in shown


def test_completion_script() -> None:
    """Of the shell that started it, which waits for it here and does not become it."""
    line = shlex.join([sys.executable, "-m", "pitc", "--show-completion"]) + "; exit $?"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "_PITC_COMPLETE=complete_bash" in done.stdout
