"""A folder, or a file, that appears whole or not at all.

The new folder is filled under a hidden name beside its target, flushed to the disk, and renamed.
The hidden folder is locked while it is being filled, so that one left by a killed process is told
from one in use, and removed by the next writer.
"""

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pitc.artifact.manifest import FILES, MANIFEST
from pitc.errors import MachineError, PitcError, UsageError

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
#: The file system or kernel does not know the flag.
_UNKNOWN_FLAG = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
#: The disk is full or fails.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def check_output(target: Path, *, force: bool, source: Path | None = None) -> None:
    """Refuse an output that cannot or must not be written, before any work is done.

    Args:
        target: The folder to be made.
        force: An existing artifact may be replaced.
        source: The model that is compiled; it must not lie inside the target.

    Raises:
        UsageError: The output exists, is no artifact, holds the source, or cannot be written.
    """
    _check_name(target)
    if os.path.lexists(target):
        if not force:
            raise UsageError("the output exists", path=target, hint="--force replaces it")
        if source is not None and target.resolve() in [source.resolve(), *source.resolve().parents]:
            raise UsageError("the output would replace the model that is read", path=target)
        if target.is_symlink() or not _is_artifact(target):
            if (other := _foreign(target)) is not None:
                text = f"the output is an artifact, and {other!r} in it is not a file of pitc"
                raise UsageError(text, path=target, hint=f"move {other!r} out of it")
            raise UsageError("the output exists and is not a pitc artifact", path=target)
    parent = _check_parent(target)
    if (parent / MANIFEST).is_file() and _is_artifact(parent):
        text = f"the folder {str(parent)!r} is an artifact, which holds nothing else"
        raise UsageError(text, path=target)


def check_file(path: Path, suffixes: Sequence[str], what: str) -> None:
    """Refuse a file that cannot be written, before any work is done.

    Args:
        path: The file to be made or replaced.
        suffixes: Endings that its name may have.
        what: What it is, for the message.

    Raises:
        UsageError: It has another ending, is a folder, or its folder cannot be written.
    """
    if path.suffix not in suffixes:
        known = " nor ".join(suffixes)
        does = "ends in neither" if len(suffixes) > 1 else "does not end in"
        raise UsageError(f"{what} {path.name!r} {does} {known}")
    _check_name(path)
    if os.path.isdir(path):
        raise UsageError("is a folder, expected a file", path=path)
    _check_parent(path)


def _check_name(path: Path) -> None:
    """ONNX Runtime opens files by names in UTF-8 only."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError("the output's name is not UTF-8", path=path) from None
    if "\0" in str(path):
        raise UsageError("the output's name holds a null character", path=path)


def _check_parent(path: Path) -> Path:
    parent = path.absolute().parent
    if not os.path.isdir(parent):
        raise UsageError(f"the folder {str(parent)!r} does not exist", path=path)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"the folder {str(parent)!r} is not writable", path=path)
    return parent


def _is_artifact(folder: Path) -> bool:
    """A folder with nothing but files of an artifact in it (perhaps damaged, perhaps empty)."""
    try:
        return folder.is_dir() and all(name in FILES for name in os.listdir(folder))
    except OSError:  # it cannot be listed
        return False


def _foreign(folder: Path) -> str | None:
    """The first file that makes a folder with a manifest more than an artifact."""
    if folder.is_symlink() or not (folder / MANIFEST).is_file():
        return None
    return min(set(os.listdir(folder)) - set(FILES), default=None)


@contextmanager
def new_folder(target: Path, *, force: bool = False, lasting: bool = True) -> Iterator[Path]:
    """Fill a folder that takes its name only when the block ends without an exception.

    Args:
        target: The folder to be made; its parent must exist.
        force: An existing artifact is replaced, in one step where the file system can exchange
            names.
        lasting: Wait until it is on the disk; a folder that goes with the process need not be.

    Yields:
        The hidden folder to fill. It is removed when the block raises anything.

    Raises:
        UsageError: The target exists or cannot be written.
        MachineError: The disk is full or fails.
    """
    check_output(target, force=force)
    target = target.absolute()
    scratch, lock = _scratch_name(target), None
    try:
        _remove_stale(target)
        scratch.mkdir()
        lock = _lock(scratch)
        yield scratch
        if lasting:
            _flush(scratch)
        _take_name(scratch, target, force=force)
        if lasting:
            flush_file(target.parent)
    except OSError as error:
        raise _explain(error, target) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Write a file that takes its name, perhaps from an older one, only when the block ends.

    Args:
        path: The file to be made or replaced; through a link, the file behind it.

    Yields:
        The hidden file to write, with the same ending. It is removed when the block raises.

    Raises:
        UsageError: It cannot be written.
        MachineError: The disk is full or fails.
    """
    try:
        target = path.resolve()
        if target.exists() and not (target.is_file() or target.is_dir()):
            raise UsageError("is a device or pipe, which no file replaces", path=path)
        scratch = _scratch_name(target).with_suffix(f".tmp{path.suffix}")
        try:
            yield scratch
            flush_file(scratch)
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise _explain(error, path) from error


def copy_folder(source: Path, target: Path, *, force: bool = False) -> None:
    """Copy an artifact; the copy appears whole or not at all."""
    check_output(target, force=force, source=source)
    with new_folder(target, force=force) as scratch:
        for name in sorted(set(os.listdir(source)) & set(FILES)):
            shutil.copyfile(source / name, scratch / name)


def _take_name(scratch: Path, target: Path, *, force: bool) -> None:
    """Give the filled folder its name; after an exchange, `scratch` names the old folder."""
    if not force or not target.exists():
        try:
            if _rename(scratch, target, _RENAME_NOREPLACE):
                return
            if not target.exists():
                scratch.rename(target)
                return
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        except FileExistsError:
            if not force:
                raise
            # another writer was faster: its artifact is replaced like an older one
    check_output(target, force=True)
    if _rename(scratch, target, _RENAME_EXCHANGE):
        return
    old = scratch.with_name(scratch.name + ".old")  # two steps, undone when the second one fails
    target.rename(old)
    try:
        scratch.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _rename(source: Path, target: Path, flag: int) -> bool:
    """Rename with a flag of renameat2; False where this system does not know the flag."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNKNOWN_FLAG:
        return False
    raise OSError(code, os.strerror(code), str(target))


def _flush(folder: Path) -> None:
    for file in folder.iterdir():
        flush_file(file)
    flush_file(folder)


def flush_file(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _scratch_name(target: Path) -> Path:
    """A hidden name beside the target that nothing has."""
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")


def _lock(scratch: Path) -> int:
    """Lock a hidden folder; it is made again if another writer took it for a stale one before."""
    while True:
        with suppress(FileNotFoundError):
            lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if scratch.exists():
                return lock
            os.close(lock)
        scratch.mkdir()


def _remove_stale(target: Path) -> None:
    """Remove hidden folders of this target that no living process fills."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}\.tmp")
    for name in filter(ours.fullmatch, os.listdir(target.parent)):
        folder = target.parent / name
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(handle)


def _explain(error: OSError, target: Path) -> PitcError:
    reason = error.strerror or str(error)
    if error.errno in FULL:
        return MachineError(f"the output cannot be written: {reason}", path=target)
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return UsageError("the output exists", path=target, hint="--force replaces it")
    return UsageError(f"the output cannot be written: {reason}", path=target)
