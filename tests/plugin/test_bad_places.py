"""Bad outputs, full disks, interruptions, two writers: nothing is half-written."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pitc
from models.bert import BertConfig, bert
from pitc.artifact.check import Verdict, check_artifact
from pitc.artifact.folder import new_file
from pitc.artifact.manifest import FALLBACK, MANIFEST, MODEL, WEIGHTS, parse_manifest
from pitc.cli import main
from pitc.errors import ArtifactError, MachineError, UsageError
from tests.plugin.test_cli import Run

FOREIGN = {".ses"}  # ONNX Runtime's own file in the temporary folder; importing it makes it


def entries(folder: Path) -> set[str]:
    return set(os.listdir(folder)) - FOREIGN


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("mlp.onnx", "the output would replace the model that is read"),
        ("model.pitc/inner.pitc", "is an artifact, which holds nothing else"),
        ("mlp.onnx/a.pitc", "does not exist"),
        ("n" * 300, "File name too long"),
        ("n" * 250, "File name too long"),
        (os.fsdecode(b"a\xff.pitc"), "the output's name is not UTF-8"),
        ("pipe", "is not a pitc artifact"),
    ],
)
def test_outputs_that_are_refused(
    run: Run, mlp_path: Path, tmp_path: Path, output: str, words: str
) -> None:
    if output.startswith("model.pitc"):
        pitc.compile(mlp_path, output=tmp_path / "model.pitc")
    os.mkfifo(tmp_path / "pipe")
    before, payload = entries(tmp_path), mlp_path.read_bytes()
    code, _, err = run("compile", mlp_path, "-q", "-o", tmp_path / output, "--force")
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
    assert entries(tmp_path) == before
    assert mlp_path.read_bytes() == payload


def test_the_models_weights_are_not_replaced(mlp_path: Path, tmp_path: Path) -> None:
    """An old artifact's folder that a model's weights lie in is no artifact to be replaced."""
    folder = tmp_path / "m.pitc"
    folder.mkdir()
    proto = onnx.load(mlp_path)
    onnx.save_model(
        proto, tmp_path / "ext.onnx", save_as_external_data=True, location=WEIGHTS, size_threshold=0
    )
    proto = onnx.load(tmp_path / "ext.onnx", load_external_data=False)
    for tensor in proto.graph.initializer:
        next(e for e in tensor.external_data if e.key == "location").value = f"m.pitc/{WEIGHTS}"
    (tmp_path / "ext.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / WEIGHTS).rename(folder / WEIGHTS)
    with pytest.raises(UsageError, match="would replace the model's weights"):
        pitc.compile(tmp_path / "ext.onnx", output=folder, force=True)
    assert entries(folder) == {WEIGHTS}


@pytest.mark.parametrize(
    ("option", "file", "words"),
    [
        ("--report", "no/r.json", "does not exist"),
        ("--report", "folder.json", "is a folder, expected a file"),
        ("--report", "r.txt", "ends in neither .json nor .html"),
    ],
)
def test_reports_are_checked_before_any_work(
    run: Run, mlp_path: Path, tmp_path: Path, option: str, file: str, words: str
) -> None:
    (tmp_path / "folder.json").mkdir()
    words_given = ("compile", mlp_path, "-o", tmp_path / "a.pitc", option, tmp_path / file)
    code, _, err = run(*words_given)
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
    assert not (tmp_path / "a.pitc").exists()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    (tmp_path / "link.json").symlink_to(path)
    with pytest.raises(MachineError, match="No space left"), new_file(path) as scratch:
        scratch.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "old"
    with new_file(tmp_path / "link.json") as scratch:
        scratch.write_text("new")
    assert path.read_text() == "new" and (tmp_path / "link.json").is_symlink()
    assert entries(tmp_path) == {"r.json", "link.json"}


def test_a_device_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    """Who may write to /dev would lose /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "r.json").symlink_to(tmp_path / "pipe")
    for name in ("r.json", "pipe"):
        with pytest.raises(UsageError, match="is a device or pipe"), new_file(tmp_path / name):
            pass
    assert (tmp_path / "pipe").is_fifo() and entries(tmp_path) == {"r.json", "pipe"}


#: Runs pitc with files that cannot grow beyond a size.
FILES_OF_A_SIZE = """
import resource, sys, threading
from pitc.cli import main
from pitc.codegen.build import lower
def limit(room):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
real, room, one = lower.object_code, int(sys.argv[1]), threading.Lock()
def roomy(*words):  # it is in memory, but the limit holds there, too, and for all threads
    with one:
        limit(resource.RLIM_INFINITY)
        try:
            return real(*words)
        finally:
            limit(room)
lower.object_code = roomy
limit(room)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("room", "words"), [(3_000, "File too large"), (90_000, "the C compiler failed")]
)
def test_no_room_for_kernels(tmp_path: Path, room: int, words: str) -> None:
    """The kernels of a model take 117 kB, its weights 68 kB, which are written meanwhile."""
    model, out = tmp_path / "b.onnx", tmp_path / "b.pitc"
    onnx.save(bert(BertConfig(layers=1, head="none", opset=17), np.random.default_rng(0)), model)
    payload = model.read_bytes()
    arguments = ["compile", model, "-q", "-o", out, "--padding", "attention_mask"]
    arguments += ["--target", "cpu:v3"]
    done = subprocess.run(
        [sys.executable, "-c", FILES_OF_A_SIZE, str(room), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 6, done.stderr
    assert len(done.stderr.splitlines()) == 1 and words in done.stderr
    assert entries(tmp_path) == {"b.onnx"}
    assert model.read_bytes() == payload


@pytest.mark.parametrize("name", [MODEL, FALLBACK, WEIGHTS, MANIFEST, "r.json"])
def test_no_room_for_a_file(
    run: Run, mlp_path: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the file is written when the disk is full."""
    real = Path.open

    def opened(self: Path, *words: Any, **options: Any) -> Any:
        stream = real(self, *words, **options)
        if (self.name == name or self.name.startswith(f".{name}")) and stream.writable():
            stream.write(b"half" if "b" in stream.mode else "half")
            stream.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return stream

    monkeypatch.setattr(Path, "open", opened)
    payload = mlp_path.read_bytes()
    before = entries(tmp_path)
    arguments = ("-q", "-o", tmp_path / "a.pitc", "--report", tmp_path / "r.json")
    code, _, err = run("compile", mlp_path, *arguments)
    assert (code, err.count("\n")) == (6, 1)
    assert "No space left on device" in err
    assert entries(tmp_path) - {"a.pitc"} == before
    assert name == "r.json" or "a.pitc" not in entries(tmp_path)
    assert mlp_path.read_bytes() == payload


def test_no_temporary_folder(
    mlp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(MachineError, match=r"no temporary folder can be made.*TMPDIR"):
        pitc.compile(mlp_path)


STOPPED = """
import os, signal, sys
from pitc import api
from pitc.cli import main
stage, number = sys.argv[1], int(sys.argv[2])
real = api._Steps.__call__
def stop(self, name):
    real(self, name)
    if name == stage:
        os.kill(os.getpid(), number)
api._Steps.__call__ = stop
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(
    ("stage", "number", "text"),
    [
        ("facts", signal.SIGINT, "interrupted"),
        ("codegen", signal.SIGTERM, "terminated"),
        ("lower", signal.SIGHUP, "the terminal has gone"),
    ],
)
def test_signals_leave_nothing(
    bert_path: Path, tmp_path: Path, stage: str, number: signal.Signals, text: str
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ["compile", bert_path, "-q", "-o", tmp_path / "b.pitc", "--padding", "attention_mask"]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, stage, str(int(number)), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"TMPDIR": str(scratch)},
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # `nohup` ignores the hangup
    )
    assert (done.returncode, done.stderr) == (128 + number, f"error: {text}\n")
    assert entries(tmp_path) == {"scratch"} and not entries(scratch)


def test_handlers_of_signals_are_put_back(run: Run) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert run("version")[0] == 0
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_two_compilations_to_one_output(mlp_path: Path, tmp_path: Path) -> None:
    """Both end well; what is there is whole, and nothing else is left."""
    output = tmp_path / "a.pitc"
    words = [sys.executable, "-m", "pitc", "compile", mlp_path, "-q", "-o", output, "--force"]
    both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(p.communicate(timeout=120)[1], p.returncode) for p in both] == [("", 0)] * 2
    assert check_artifact(output).runs
    assert entries(tmp_path) == {"mlp.onnx", "a.pitc"}


def test_force_when_another_writer_was_faster(mlp_path: Path, tmp_path: Path) -> None:
    """Its artifact appears while ours is being written to a place that was free."""
    output, seen = tmp_path / "a.pitc", []

    def meanwhile(stage: str) -> None:
        if stage == "write" and not seen:
            seen.append(stage)
            pitc.compile(mlp_path, output=output)

    pitc.compile(mlp_path, output=output, force=True, progress=meanwhile)
    assert seen and check_artifact(output).runs
    assert entries(tmp_path) == {"mlp.onnx", "a.pitc"}


def test_reports_of_another_version(run: Run, mlp_path: Path, tmp_path: Path) -> None:
    """The artifact runs; only what reads the report says that it cannot."""
    output = tmp_path / "a.pitc"
    pitc.compile(mlp_path, output=output)
    manifest = parse_manifest((output / MANIFEST).read_bytes())
    changes = {
        "reports": {"cpu": {"nodes": [{"colour": "red"}]}},
        "versions": manifest.versions | {"pitc": "9.9.9"},
    }
    (output / MANIFEST).write_text(replace(manifest, **changes).text())
    loaded = pitc.load(output)
    with pytest.warns(pitc.PitcWarning, match="another version"):
        assert loaded.run({"x": np.ones((2, 16), np.float32)})["y"].shape == (2, 32)
    with pytest.raises(ArtifactError, match="not of this version"):
        _ = loaded.report
    code, _, err = run("explain", output)
    assert (code, err.count("\n")) == (5, 1)


def test_an_artifact_that_cannot_be_listed(
    mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pitc.compile(mlp_path, output=tmp_path / "a.pitc")

    def refuse(_: object) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    found = check_artifact(tmp_path / "a.pitc")
    assert (found.verdict, found.found) == (Verdict.DAMAGED, "Permission denied")


@pytest.mark.parametrize("name", ["x.npz", "x=x.npy"])
@pytest.mark.parametrize("damage", ["cut", "other", "text", "pickle"])
def test_input_files_that_are_damaged(
    run: Run, mlp_path: Path, tmp_path: Path, name: str, damage: str, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name.rpartition("=")[2]
    array = np.ones((2, 16), np.float32)
    np.savez_compressed("good.npz", x=array)
    np.save("good.npy", array)
    good = Path("good").with_suffix(file.suffix).read_bytes()
    other = Path("good").with_suffix(".npy" if file.suffix == ".npz" else ".npz").read_bytes()
    if damage == "pickle":
        np.savez("p.npz", x=np.array([{}], object))
        np.save("p.npy", np.array([{}], object))
        good = Path("p").with_suffix(file.suffix).read_bytes()
    content = {"cut": good[: len(good) // 2], "other": other, "text": b"hello", "pickle": good}
    file.write_bytes(content[damage])
    code, _, err = run("run", mlp_path, "--input", name)
    assert (code, err.count("\n")) == (2, 1)
    assert "inputs cannot be read" in err


def test_the_output_may_have_any_name_in_utf8(mlp_path: Path, tmp_path: Path) -> None:
    output = tmp_path / "ü [red] \n'.pitc"
    assert main(["compile", str(mlp_path), "-q", "-o", str(output)]) == 0
    assert main(["run", str(output)]) == 0
    assert json.loads((output / MANIFEST).read_text())["pit_nodes"] == 0
