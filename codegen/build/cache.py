"""A cache on disk, of compiled kernels and the like, shared by all processes of a user.

An entry is a file named by its key, the digest of all that its content depends on
(`kernel_keys.py`). It is written under another name and then renamed, so that readers see all of it
or nothing; it begins with a digest of key and content, so that a damaged file is no entry. A cache
that cannot be read or written is no error: what is not kept is made again.

What is in it will be executed. It is read only from a folder that belongs to the user and that
nobody else may write to; the folder is looked at once it is open, and entries are opened in it.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pitc.errors import PitcWarning
from pitc.host.folders import VARIABLE, cache_folder, make_private
from pitc.ir.digest import joint_sha256

KERNELS = "kernels"
LIMIT_BYTES = 1 << 30

_MAGIC = b"pitc-cache 3\n"
_DIGEST_BYTES = 32
_NEW = ".new-"
_ENTRY = re.compile("[0-9a-f]{64}")
_OWN = re.compile(rf"{_ENTRY.pattern}|{re.escape(_NEW)}\w+")
"""Names of files that are the cache's own; others are never deleted."""
_OTHERS_WRITE = 0o022


@dataclass(frozen=True, slots=True)
class Held:
    """What a cache holds.

    Args:
        entries: Files.
        bytes: Their sizes, together.
    """

    entries: int
    bytes: int


class Cache:
    """A folder of entries; any number of threads and processes may use it.

    Args:
        folder: Where entries are kept; it is made with the first one.
        limit_bytes: When entries take more, those that were not used for longest are deleted, until
            three quarters of it are left.

    Attributes:
        hits: How many entries were asked for and there.
        misses: How many were not there.
    """

    MEND: ClassVar[str] = f"chmod 700 it, or set {VARIABLE} to a folder of yours"

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._held: int | None = None  # bytes, as far as this process knows
        self._told = False

    def get(self, key: str) -> bytes | None:
        """The content of an entry, or None; a damaged entry is deleted."""
        content = None
        with contextlib.suppress(OSError), self._open() as folder:
            content = _read(folder, key)
        with self._lock:
            self.hits += content is not None
            self.misses += content is None
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep a content."""
        entry = _entry(key, content)
        with contextlib.suppress(OSError), self._open(make=True) as folder:
            _write(folder, key, entry)
            with self._lock:
                self._held = None if self._held is None else self._held + len(entry)
                if self._held is None or self._held > self.limit_bytes:
                    self._held = _shrink(folder, self.limit_bytes)

    def made(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The content of an entry; where there is none, it is made and kept."""
        if (content := self.get(key)) is None:
            content = make()
            self.put(key, content)
        return content

    def held(self) -> Held:
        """What is in it now.

        Raises:
            OSError: The folder cannot be read, or is not to be trusted.
        """
        with self._open() as folder:
            sizes = [size for _, size, name in _files(folder) if _ENTRY.fullmatch(name)]
        return Held(len(sizes), sum(sizes))

    def clear(self) -> Held:
        """Delete all entries; what they were.

        Raises:
            OSError: The folder cannot be read or written, or is not to be trusted.
        """
        held = self.held()
        with self._open() as folder:
            for _, _, name in _files(folder):
                with contextlib.suppress(FileNotFoundError):  # another process deletes, too
                    os.unlink(name, dir_fd=folder)
        return held

    def try_to_write(self) -> None:
        """Write and delete a file, as a new entry would be.

        Raises:
            OSError: That fails.
        """
        with self._open(make=True) as folder:
            _delete(folder, _write_new(folder, _entry("", b"")))

    @contextlib.contextmanager
    def _open(self, *, make: bool = False) -> Iterator[int]:
        """A handle of the folder, after a look at whose it is.

        Raises:
            OSError: There is none, or other users might have written to it.
        """
        if make:
            make_private(self.folder)
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if reason := _foreign(os.lstat(self.folder), os.fstat(handle)):
                self._warn(reason)
                raise PermissionError(errno.EPERM, reason, str(self.folder))
            yield handle
        finally:
            os.close(handle)

    def _warn(self, reason: str) -> None:
        with self._lock:
            first, self._told = not self._told, True
        if first:
            text = f"{self.folder}: the cache is not used: {reason} ({self.MEND})"
            warnings.warn(text, PitcWarning, stacklevel=2)


def kernel_cache() -> Cache:
    """The user's cache of compiled kernels."""
    return Cache(cache_folder() / KERNELS)


def _foreign(link: os.stat_result, found: os.stat_result) -> str:
    """Why the content of a folder may be another user's; empty where it cannot be.

    Args:
        link: Status of what has the folder's name; the same as the folder's where it is no link.
        found: Status of the folder.
    """
    us = os.geteuid()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (us, 0):  # root's are as good as root is
        return f"it is a link of user {link.st_uid}"
    if found.st_uid != us:
        return f"it belongs to user {found.st_uid}"
    mode = stat.S_IMODE(found.st_mode)
    return f"other users may write to it (mode {mode:o})" if mode & _OTHERS_WRITE else ""


def _read(folder: int, key: str) -> bytes | None:
    handle = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    with open(handle, "rb") as file:
        entry = file.read()
    content = entry[len(_MAGIC) + _DIGEST_BYTES :]
    if entry != _entry(key, content):
        _delete(folder, key)
        return None
    with contextlib.suppress(OSError):  # of a folder that must not be written
        os.utime(key, dir_fd=folder)  # used now
    return content


def _write(folder: int, key: str, entry: bytes) -> None:
    new = _write_new(folder, entry)
    try:
        os.replace(new, key, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _delete(folder, new)
        raise


def _write_new(folder: int, entry: bytes) -> str:
    """Write a file under a name that nothing has; its name."""
    name = f"{_NEW}{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        with open(handle, "wb") as file:
            file.write(entry)
    except BaseException:
        _delete(folder, name)
        raise
    return name


def _files(folder: int) -> list[tuple[int, int, str]]:
    """The cache's own files: when each was used last, its size and its name."""
    found = []
    with os.scandir(folder) as files:
        for file in files:
            if _OWN.fullmatch(file.name):
                with contextlib.suppress(OSError):  # another process deletes, too
                    status = file.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, file.name))
    return found


def _shrink(folder: int, limit_bytes: int) -> int:
    """Delete entries if there are too many; the bytes of all that are left."""
    found = _files(folder)
    held = sum(size for _, size, _ in found)
    if held > limit_bytes:
        for _, size, name in sorted(found):
            if held <= limit_bytes * 3 // 4:
                break
            _delete(folder, name)
            held -= size
    return held


def _entry(key: str, content: bytes) -> bytes:
    return _MAGIC + bytes.fromhex(joint_sha256((key, content))) + content


def _delete(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
