"""The cache of compiled images: entries are whole or absent, shared, and bounded."""

import errno
import hashlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pitc.codegen.build.cache import Cache, cache_folder, key_of

KEY, OTHER = key_of("one"), key_of("two")


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    cache = Cache(folder)
    assert cache.get(KEY) is None
    for content in (b"", b"content", bytes(range(256)) * 1000):
        cache.put(KEY, content)
        assert cache.get(KEY) == content == Cache(folder).get(KEY)
    assert cache.get(OTHER) is None
    assert os.listdir(folder) == [KEY]


def test_keys_tell_texts_apart() -> None:
    texts = [("a", "b"), ("ab",), ("", "ab"), ("ab", ""), ("a", "b", ""), ("b", "a"), ("a\nb",)]
    assert len({key_of(*text) for text in texts}) == len(texts)
    assert key_of("a", "é") == key_of("a", "é") and len(key_of("")) == 64


@pytest.mark.parametrize("damage", ["cut", "empty", "longer", "byte", "head", "other", "folder"])
def test_a_damaged_entry_is_none(tmp_path: Path, damage: str) -> None:
    cache, path = Cache(tmp_path), tmp_path / KEY
    cache.put(KEY, b"content of an entry")
    cache.put(OTHER, b"content of another one")
    entry = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
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
    assert path.exists() == (damage == "folder")
    cache.put(KEY, b"made again")
    assert cache.get(KEY) == (None if damage == "folder" else b"made again")
    assert cache.get(OTHER) == b"content of another one"


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    size, keys = 1000, [key_of(str(i)) for i in range(12)]
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


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    for folder in (blocked, blocked / "below", None):
        cache = Cache(folder)
        cache.put(KEY, b"content")
        assert cache.get(KEY) is None
    assert blocked.read_text() == "no folder"


def test_an_entry_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is written, but under another name, when the disk turns out to be full."""
    cache = Cache(tmp_path)
    cache.put(KEY, b"old")
    written = []

    def full(source: str, _target: Path) -> None:
        written.append(Path(source).stat().st_size)
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        cache.put(KEY, bytes(100_000))
    assert written[0] > 100_000 and os.listdir(tmp_path) == [KEY]
    assert cache.get(KEY) == b"old"


WORKER = """
import hashlib, random, sys
from pathlib import Path
from pitc.codegen.build.cache import Cache, key_of
cache = Cache(Path(sys.argv[1]), limit_bytes=400_000)
draw = random.Random(int(sys.argv[2]))
found = 0
for _ in range(300):
    name = str(draw.randrange(40))
    content = hashlib.sha256(name.encode()).digest() * 500
    kept = cache.get(key_of(name))
    assert kept in (None, content), name
    found += kept is not None
    cache.put(key_of(name), content)
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
    name = next(str(i) for i in range(40) if (tmp_path / key_of(str(i))).exists())
    assert Cache(tmp_path).get(key_of(name)) == hashlib.sha256(name.encode()).digest() * 500


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
