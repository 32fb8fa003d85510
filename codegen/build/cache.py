"""A cache of compiled images on disk, shared by all processes of a user.

An entry is a file named by its key, the digest of all that its content depends on. It is written
under another name and then renamed, so that readers see all of it or nothing; it begins with a
digest of key and content, so that a damaged file is no entry. A cache that cannot be written is no
error: what is not kept is made again.
"""

import contextlib
import hashlib
import os
import re
import tempfile
import threading
from pathlib import Path

VARIABLE = "PITC_CACHE_DIR"
LIMIT_BYTES = 1 << 30

_MAGIC = b"pitc-cache 1\n"
_DIGEST_BYTES = 32
_NEW = ".new-"
_OWN = re.compile(rf"[0-9a-f]{{64}}|{re.escape(_NEW)}\w+")
"""Names of files that are the cache's own; others are never deleted."""


def cache_folder() -> Path | None:
    """`$PITC_CACHE_DIR`, else `pitc` in `$XDG_CACHE_HOME`, else `~/.cache/pitc`.

    None for a user without a home.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # others are to be ignored, says the specification
        return Path(shared) / "pitc"
    try:
        return Path.home() / ".cache" / "pitc"
    except RuntimeError:
        return None


def key_of(*texts: str) -> str:
    """The key of what depends on these texts."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(f"{len(content)}\n".encode() + content)
    return digest.hexdigest()


class Cache:
    """A folder of entries; any number of threads and processes may use it.

    Args:
        folder: Where entries are kept; it is made with the first one. None keeps nothing.
        limit_bytes: When entries take more, those that were not used for longest are deleted, until
            three quarters of it are left.
    """

    def __init__(self, folder: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder, self._limit = folder, limit_bytes
        self._lock = threading.Lock()
        self._held: int | None = None  # bytes, as far as this process knows

    def get(self, key: str) -> bytes | None:
        """The content of an entry, or None; a damaged entry is deleted."""
        if self._folder is None:
            return None
        path = self._folder / key
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        content = entry[len(_MAGIC) + _DIGEST_BYTES :]
        if entry != _entry(key, content):
            _delete(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep a content."""
        if self._folder is None:
            return
        entry = _entry(key, content)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=_NEW, delete=False) as file:
                try:
                    file.write(entry)
                    file.flush()
                    os.replace(file.name, self._folder / key)
                except BaseException:
                    _delete(Path(file.name))
                    raise
        except OSError:
            return
        with self._lock:
            self._held = None if self._held is None else self._held + len(entry)
            if self._held is None or self._held > self._limit:
                self._held = self._shrink(self._folder)

    def _shrink(self, folder: Path) -> int:
        """Delete entries if there are too many; the bytes of all that are left."""
        found: list[tuple[float, int, str]] = []
        with contextlib.suppress(OSError), os.scandir(folder) as files:
            for file in files:
                if not _OWN.fullmatch(file.name):
                    continue
                with contextlib.suppress(OSError):  # another process deletes, too
                    status = file.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, file.path))
        held = sum(size for _, size, _ in found)
        if held > self._limit:
            for _, size, path in sorted(found):
                if held <= self._limit * 3 // 4:
                    break
                _delete(Path(path))
                held -= size
        return held


def _entry(key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + content)
    return _MAGIC + digest.digest() + content


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
