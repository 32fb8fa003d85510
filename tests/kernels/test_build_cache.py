"""The cache of compiled kernels: entries are whole or absent, the user's own, shared, bounded."""

import errno
import hashlib
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pitc.codegen.build.cache import Cache, Held
from pitc.errors import PitcWarning
from pitc.host.folders import cache_folder


def name_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


KEY, OTHER = name_of("one"), name_of("two")
NOBODY = 65534


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    cache = Cache(folder)
    assert cache.get(KEY) is None
    for content in (b"", b"content", bytes(range(256)) * 1000):
        cache.put(KEY, content)
        assert cache.get(KEY) == content == Cache(folder).get(KEY)
    assert cache.get(OTHER) is None
    assert os.listdir(folder) == [KEY]
    assert (cache.hits, cache.misses) == (3, 2)


def test_it_is_made_once(tmp_path: Path) -> None:
    made = []

    def make() -> bytes:
        made.append(1)
        return b"content"

    assert [Cache(tmp_path).made(KEY, make) for _ in range(3)] == [b"content"] * 3
    assert len(made) == 1


@pytest.mark.parametrize(
    "damage", ["cut", "empty", "longer", "byte", "head", "other", "folder", "link"]
)
def test_a_damaged_entry_is_none(tmp_path: Path, damage: str) -> None:
    cache, path = Cache(tmp_path), tmp_path / KEY
    cache.put(KEY, b"content of an entry")
    cache.put(OTHER, b"content of another one")
    entry = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "link":
        (tmp_path / "whole").write_bytes(entry)
        path.symlink_to("whole")
    else:
        changed = {
            "cut": entry[:-3],
            "empty": b"",
            "longer": entry + b"\0",
            "byte": entry[:-1] + b"X",
            "head": b"X" + entry[1:],
            "other": (tmp_path / OTHER).read_bytes(),  # whole, but of another key
        }
        path.write_bytes(changed[damage])
    assert cache.get(KEY) is None
    assert path.exists() == (damage in ("folder", "link"))
    cache.put(KEY, b"made again")
    assert cache.get(KEY) == (None if damage == "folder" else b"made again")
    assert cache.get(OTHER) == b"content of another one"


def test_every_bit_of_an_entry_counts(tmp_path: Path) -> None:
    cache, path = Cache(tmp_path), tmp_path / KEY
    cache.put(KEY, b"code")
    entry = path.read_bytes()
    for place in range(len(entry) * 8):
        flipped = bytearray(entry)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert cache.get(KEY) is None


def test_entries_of_an_older_form_are_none(tmp_path: Path) -> None:
    older = b"pitc-cache 2\n" + hashlib.sha256(KEY.encode() + b"content").digest() + b"content"
    (tmp_path / KEY).write_bytes(older)
    assert Cache(tmp_path).get(KEY) is None and not (tmp_path / KEY).exists()


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    size, keys = 1000, [name_of(str(i)) for i in range(12)]
    cache = Cache(tmp_path, limit_bytes=10 * (size + 100))
    foreign = tmp_path / "notes.txt"
    foreign.write_bytes(bytes(100_000))
    for age, key in enumerate(keys[:9]):
        cache.put(key, bytes(size))
        then = time.time() - 1000 + age
        os.utime(tmp_path / key, (then, then))
    assert cache.get(keys[0]) is not None  # used now
    for key in keys[9:]:
        cache.put(key, bytes(size))
    left = [key for key in keys if cache.get(key) is not None]
    assert left == [keys[0], *keys[-len(left) + 1 :]] and 7 <= len(left) < 11
    assert foreign.exists()


def test_an_entry_larger_than_all_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=500)
    cache.put(KEY, bytes(1000))
    assert cache.get(KEY) is None and os.listdir(tmp_path) == []


def test_left_over_files_count_and_go(tmp_path: Path) -> None:
    """A process that was killed while it wrote leaves a file under another name."""
    leftover = tmp_path / ".new-abcd1234"
    leftover.write_bytes(bytes(5000))
    os.utime(leftover, (1, 1))
    cache = Cache(tmp_path, limit_bytes=4000)
    cache.put(KEY, bytes(100))
    assert cache.get(KEY) is not None and not leftover.exists()


def test_what_it_holds_and_its_end(tmp_path: Path) -> None:
    cache, folder = Cache(tmp_path / "kernels"), tmp_path / "kernels"
    for look in (cache.held, cache.clear):
        with pytest.raises(FileNotFoundError):
            look()
    cache.put(KEY, bytes(10))
    cache.put(OTHER, bytes(20))
    held = Held(2, sum(path.stat().st_size for path in folder.iterdir()))
    (folder / ".new-abcd1234").write_bytes(bytes(30))
    (folder / "notes.txt").write_bytes(bytes(40))
    assert cache.held() == held == cache.clear()
    assert os.listdir(folder) == ["notes.txt"] and cache.held() == Held(0, 0)


def test_a_folder_that_is_none_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    for folder in (blocked, blocked / "below"):
        cache = Cache(folder)
        cache.put(KEY, b"content")
        assert cache.get(KEY) is None
        with pytest.raises(OSError, match=r"exists|Not a directory"):
            cache.try_to_write()
    assert blocked.read_text() == "no folder"


READ_ONLY = """
import os, shutil, sys, tempfile
from pathlib import Path
from pitc.codegen.build.cache import Cache
if not os.getuid():  # root may write everywhere
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
key, other = sys.argv[1:]
folder = Path(tempfile.mkdtemp(prefix="pitc-read-only-"))
cache = Cache(folder)
cache.put(key, b"content")
folder.chmod(0o500)
cache.put(other, b"content")
print(cache.get(key), cache.get(other))
try:
    cache.try_to_write()
except PermissionError as error:
    print(error.strerror)
folder.chmod(0o700)
shutil.rmtree(folder)
"""


def test_a_folder_that_must_not_be_written_is_read() -> None:
    command = [sys.executable, "-c", READ_ONLY, KEY, OTHER]
    environment = {name: x for name, x in os.environ.items() if name != "TMPDIR"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "b'content' None\nPermission denied\n"


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "kernels"
    Cache(folder).put(KEY, b"content")
    folder.chmod(mode)
    cache = Cache(folder)
    with pytest.warns(PitcWarning, match=f"other users may write to it .mode {mode:o}.*chmod 700"):
        assert cache.get(KEY) is None
    cache.put(OTHER, b"content")  # the warning comes once: pytest makes errors of more
    assert os.listdir(folder) == [KEY]
    folder.chmod(0o755)
    assert cache.get(KEY) == b"content"


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kernels"
    Cache(folder).put(KEY, b"content")
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with pytest.warns(PitcWarning, match=f"it belongs to user {us} "):
        assert Cache(folder).get(KEY) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a link away")
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    folder, link = tmp_path / "real", tmp_path / "kernels"
    Cache(folder).put(KEY, b"content")
    link.symlink_to(folder)
    assert Cache(link).get(KEY) == b"content"  # a link of one's own
    os.lchown(link, NOBODY, NOBODY)
    with pytest.warns(PitcWarning, match=f"it is a link of user {NOBODY} "):
        assert Cache(link).get(KEY) is None


def test_new_folders_are_the_users_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        Cache(tmp_path / "kernels").put(KEY, b"content")
    finally:
        os.umask(old)
    assert (tmp_path / "kernels").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "kernels" / KEY).stat().st_mode & 0o777 == 0o600


def test_an_entry_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is written, but under another name, when the disk turns out to be full."""
    cache = Cache(tmp_path)
    cache.put(KEY, b"old")
    written = []

    def full(source: str, _target: str, **_: int) -> None:
        written.append((tmp_path / source).stat().st_size)
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        cache.put(KEY, bytes(100_000))
    assert written[0] > 100_000 and os.listdir(tmp_path) == [KEY]
    assert cache.get(KEY) == b"old"


def test_a_disk_that_is_full_in_the_middle(tmp_path: Path) -> None:
    """A file cannot grow beyond 4096 bytes: part of the entry is written."""
    cache = Cache(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        cache.put(KEY, bytes(100_000))
        cache.put(OTHER, b"small")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == [OTHER] and cache.get(KEY) is None


WORKER = """
import hashlib, random, sys
from pathlib import Path
from pitc.codegen.build.cache import Cache
cache = Cache(Path(sys.argv[1]), limit_bytes=400_000)
draw = random.Random(int(sys.argv[2]))
found = 0
for _ in range(300):
    name = str(draw.randrange(40))
    key, content = hashlib.sha256(name.encode()), hashlib.sha256(name.encode()).digest() * 500
    kept = cache.get(key.hexdigest())
    assert kept in (None, content), name
    found += kept is not None
    cache.put(key.hexdigest(), content)
print(found)
"""


def test_processes_share_it(tmp_path: Path) -> None:
    """40 entries of 16 KB, of which 25 have room: all the time some are deleted."""

    def work(seed: int) -> int:
        command = [sys.executable, "-c", WORKER, str(tmp_path), str(seed)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(done.stdout)

    with ThreadPoolExecutor(4) as pool:
        assert all(found > 0 for found in pool.map(work, range(4)))
    entries = list(tmp_path.iterdir())
    assert all(len(path.name) == 64 for path in entries)  # nothing half written is left
    # Each process counts what it wrote itself, from what it saw when it last looked.
    assert 10 < len(entries) <= 40
    name = next(str(i) for i in range(40) if (tmp_path / name_of(str(i))).exists())
    assert Cache(tmp_path).get(name_of(name)) == hashlib.sha256(name.encode()).digest() * 500


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("PITC_CACHE_DIR", raising=False)
    for shared in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
        assert cache_folder() == Path("/home/someone/.cache/pitc")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_folder() == Path("/shared/pitc")
    monkeypatch.setenv("PITC_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("PITC_CACHE_DIR", "relative")
    assert cache_folder() == Path.cwd() / "relative"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("PITC_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder().name == f"pitc-{os.geteuid()}"
