"""SHA-256 of bytes, of files, and of several parts: the one place that hashes.

Parts that are hashed one after the other look alike where bytes move from one to the next. So parts
are hashed with their lengths, here and nowhere else.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path


class Digest:
    """The SHA-256 of one file or text that comes piece by piece."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, content: bytes | memoryview) -> None:
        """See the next piece."""
        self._hash.update(content)

    def hexdigest(self) -> str:
        """Of all pieces so far, hexadecimal."""
        return self._hash.hexdigest()


def sha256(content: bytes | str) -> str:
    """Hexadecimal SHA-256 of bytes, or of a text in UTF-8."""
    return hashlib.sha256(_bytes(content)).hexdigest()


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def joint_sha256(parts: Iterable[bytes | str]) -> str:
    """Hexadecimal SHA-256 of several parts, each with its length: other parts have another one."""
    digest = hashlib.sha256()
    for part in map(_bytes, parts):
        digest.update(b"%d\n" % len(part))
        digest.update(part)
    return digest.hexdigest()


def named_sha256(contents: Iterable[tuple[str, bytes | str]]) -> str:
    """Hexadecimal SHA-256 of named parts in order of their names."""
    return joint_sha256(part for pair in sorted(contents, key=lambda p: p[0]) for part in pair)


def of_files(digests: Sequence[str]) -> str:
    """Hexadecimal SHA-256 of one file; of several, that of theirs.

    Args:
        digests: Those of the files.
    """
    return digests[0] if len(digests) == 1 else joint_sha256(digests)


def _bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content
