"""A new folder appears whole or not at all."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pitc.artifact import folder as module
from pitc.artifact.folder import check_output, copy_folder, new_folder
from pitc.artifact.manifest import MANIFEST, MODEL
from pitc.errors import MachineError, UsageError


def fill(folder: Path, text: str = "new") -> None:
    (folder / MANIFEST).write_text(text)


def content(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir()}


def test_the_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "a.pitc"
    with new_folder(target) as scratch:
        fill(scratch)
        assert not target.exists()
        assert scratch.parent == tmp_path
    assert content(target) == {MANIFEST: "new"}
    assert os.listdir(tmp_path) == ["a.pitc"]
    assert target.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, MemoryError])
@pytest.mark.parametrize("force", [False, True])
def test_an_exception_leaves_everything_as_it_was(
    tmp_path: Path, error: type[BaseException], force: bool
) -> None:
    target = tmp_path / "a.pitc"
    if force:
        target.mkdir()
        fill(target, "old")
    with pytest.raises(error), new_folder(target, force=force) as scratch:
        fill(scratch)
        raise error
    assert os.listdir(tmp_path) == (["a.pitc"] if force else [])
    assert not force or content(target) == {MANIFEST: "old"}


def test_an_existing_output_is_refused_and_force_replaces_it(tmp_path: Path) -> None:
    target = tmp_path / "a.pitc"
    target.mkdir()
    fill(target, "old")
    (target / MODEL).write_text("old")
    with pytest.raises(UsageError, match=r"exists.*--force"), new_folder(target):
        pytest.fail("entered")
    with new_folder(target, force=True) as scratch:
        fill(scratch)
        assert content(target)[MANIFEST] == "old"
    assert content(target) == {MANIFEST: "new"}
    assert os.listdir(tmp_path) == ["a.pitc"]


def test_force_replaces_nothing_but_an_artifact(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.png").write_text("cat")
    file = tmp_path / "file"
    file.write_text("text")
    link = tmp_path / "link"
    link.symlink_to(photos)
    for target in (photos, file, link):
        with pytest.raises(UsageError, match="not a pitc artifact"):
            check_output(target, force=True)
    assert content(photos) == {"cat.png": "cat"}


def test_one_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "a.pitc"
    with pytest.raises(UsageError, match="exists"), new_folder(target) as scratch:
        fill(scratch)
        target.mkdir()  # empty: an ordinary rename would replace it
    assert content(target) == {}
    assert os.listdir(tmp_path) == ["a.pitc"]


@pytest.mark.parametrize("force", [False, True])
def test_file_systems_without_exchange(
    tmp_path: Path, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_rename", lambda *_: False)
    target = tmp_path / "a.pitc"
    if force:
        target.mkdir()
        fill(target, "old")
    with new_folder(target, force=force) as scratch:
        fill(scratch)
    assert content(target) == {MANIFEST: "new"}
    assert os.listdir(tmp_path) == ["a.pitc"]


def test_a_failed_second_rename_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.pitc"
    target.mkdir()
    fill(target, "old")
    monkeypatch.setattr(module, "_rename", lambda *_: False)
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise OSError(errno.EIO, "broken")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(MachineError, match="broken"), new_folder(target, force=True) as scratch:
        fill(scratch)
    assert content(target) == {MANIFEST: "old"}
    assert os.listdir(tmp_path) == ["a.pitc"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from pathlib import Path
        from pitc.artifact.folder import new_folder
        from pitc.errors import MachineError
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            with new_folder(Path(sys.argv[1])) as scratch:
                (scratch / "weights.bin").write_bytes(bytes(10000))
        except MachineError as error:
            print(error)
    """
    target = tmp_path / "a.pitc"
    done = run_python(code, str(target))
    assert "cannot be written" in done.stdout
    assert os.listdir(tmp_path) == []


def test_a_killed_writer_leaves_no_output_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from pitc.artifact.folder import new_folder
        with new_folder(Path(sys.argv[1])) as scratch:
            (scratch / "model.onnx").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    target = tmp_path / "a[1].pitc"
    done = run_python(code, str(target), code=-signal.SIGKILL)
    assert done.stdout == ""
    assert not target.exists()
    assert len(os.listdir(tmp_path)) == 1
    other = tmp_path / ".a[1].pitc.notes.tmp"
    other.mkdir()
    with new_folder(target) as scratch:
        fill(scratch)
    assert sorted(os.listdir(tmp_path)) == [other.name, "a[1].pitc"]


def test_a_living_writer_is_not_disturbed(tmp_path: Path) -> None:
    target = tmp_path / "a.pitc"
    with pytest.raises(UsageError, match="exists"), new_folder(target) as first:
        fill(first, "first")
        with new_folder(target) as second:
            fill(second, "second")
        assert content(first) == {MANIFEST: "first"}
    assert content(target) == {MANIFEST: "second"}


def run_python(script: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        check_output(tmp_path / "no" / "a.pitc", force=False)
    source = tmp_path / "a.pitc" / "model.onnx"
    source.parent.mkdir()
    source.write_text("model")
    for target in (source, source.parent, tmp_path):
        with pytest.raises(UsageError, match="replace the model"):
            check_output(target, force=True, source=source)


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UsageError, match="not writable"):
        check_output(tmp_path / "a.pitc", force=False)


def test_copies(tmp_path: Path) -> None:
    source = tmp_path / "a.pitc"
    source.mkdir()
    fill(source)
    copy_folder(source, tmp_path / "b.pitc")
    assert content(tmp_path / "b.pitc") == {MANIFEST: "new"}
    with pytest.raises(UsageError, match="exists"):
        copy_folder(source, tmp_path / "b.pitc")
    with pytest.raises(UsageError, match="replace the model"):
        copy_folder(source, source, force=True)
