"""Fat binaries in a shared object: which machine code is for which GPU, and where it lies.

What nvcc puts there, in little-endian words:

    .nvFatBinSegment   a wrapper for each fat binary: magic, version 1, two addresses
    .nv_fatbin         fat binaries one behind the other, zeros between them
    fat binary         magic, version 1, bytes of this head (16), bytes of all entries
    entry              kind (1: PTX, 2: machine code), version 0x101, bytes of this head, bytes of
                       the payload with its filling, .. its own, .. architecture, .. flags, ..
                       bytes when it is decompressed
    payload            an ELF file, or that compressed by zstd

Nothing is guessed: what is not as above is a `LayoutError`.
"""

import ctypes
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

FATBIN, WRAPPER, ZSTD, ELF = (
    b"\x50\xed\x55\xba",
    b"\xb1\x43\x62\x46",
    b"\x28\xb5\x2f\xfd",
    b"\x7fELF",
)
"""What each begins with."""
PTX, MACHINE_CODE = 1, 2
_FATBIN_HEAD, _ENTRY_HEAD = struct.Struct("<4sHHQ"), struct.Struct("<HHIQIIHHIIIQQQ")
_WRAPPER, _SECTION = struct.Struct("<4sIQQ"), struct.Struct("<IIQQQQIIQQ")
_ENTRY_VERSION, _CUDA_MACHINE = 0x101, b"\xbe\x00"
_COMPRESSED, _KNOWN_FLAGS = 0x8000, 0x1 | 0x10 | 0x8000 | 0x100000 | 0x1000000
"""64 bits, Linux, zstd; the last two mark architectures that have a variant of their own."""
_MOST_FILLING, _MOST_LENGTH = 8, 1 << 28


class LayoutError(ValueError):
    """A file is laid out as none that is known here."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Code for one architecture.

    Args:
        kind: `PTX` or `MACHINE_CODE`.
        arch: 90 for sm_90.
        at: Where its payload begins in the file.
        size: Bytes of the payload, with its filling.
        stored: Bytes of it that are compressed; 0: it is as it is.
        length: Bytes when it is decompressed.
    """

    kind: int
    arch: int
    at: int
    size: int
    stored: int
    length: int


def fat_binaries(image: bytes) -> list[tuple[Entry, ...]]:
    """The entries of each fat binary of a shared object.

    Raises:
        LayoutError: It has none, or something in them is not known.
    """
    sections = _sections(image)
    start, size = _only(sections, ".nv_fatbin")
    wrappers, wrapped = _only(sections, ".nvFatBinSegment")
    found = list(_fat_binaries(image, start, start + size))
    for at in range(wrappers, wrappers + wrapped, _WRAPPER.size):
        magic, version, *_ = _taken(_WRAPPER, image, at, wrappers + wrapped)
        _expect(magic == WRAPPER and version == 1, at, "a wrapper of a fat binary")
    if wrapped != len(found) * _WRAPPER.size:
        raise LayoutError(f"{len(found)} fat binaries, {wrapped // _WRAPPER.size} wrappers")
    return found


def kernels(image: bytes, entry: Entry) -> set[str]:
    """Names of the kernels, as they are mangled, in an entry of machine code.

    Raises:
        LayoutError: It is no machine code of a GPU.
    """
    code = image[entry.at : entry.at + (entry.stored or entry.size)]
    if entry.stored:
        code = _decompressed(code, entry.length)
    is_code = code.startswith(ELF) and code[18:20] == _CUDA_MACHINE
    _expect(is_code, entry.at, "machine code of a GPU")
    return {name.decode() for name in re.findall(rb"\0\.text\.([^\0]+)", code)}


def _expect(holds: object, at: int, what: str) -> None:
    if not holds:
        raise LayoutError(f"expected {what} at byte {at}")


def _taken(kind: struct.Struct, image: bytes, at: int, end: int) -> tuple[bytes | int, ...]:
    _expect(at + kind.size <= min(end, len(image)), at, f"{kind.size} more bytes")
    return kind.unpack_from(image, at)


def _sections(image: bytes) -> dict[str, list[tuple[int, int]]]:
    """Offsets and sizes in the file, by name."""
    is_elf = image.startswith(ELF) and image[4:6] == b"\x02\x01"
    _expect(is_elf and len(image) >= 64, 0, "an ELF file of 64 bits, lowest byte first")
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, named = struct.unpack_from("<HHH", image, 58)
    _expect(size == _SECTION.size and named < count, 58, "a table of sections")
    _expect(table + size * count <= len(image), 40, "a table of sections inside of the file")
    heads = [_SECTION.unpack_from(image, table + i * size) for i in range(count)]
    names = heads[named][4]
    found: dict[str, list[tuple[int, int]]] = {}
    for name, kind, _, _, offset, length, *_ in heads:
        end = image.index(b"\0", names + name)
        bits = 0 if kind == 8 else length  # of NOBITS nothing is in the file
        _expect(offset + bits <= len(image), offset, f"{bits} bytes of a section")
        text = image[names + name : end].decode("ascii", "replace")
        found.setdefault(text, []).append((offset, bits))
    return found


def _only(sections: dict[str, list[tuple[int, int]]], name: str) -> tuple[int, int]:
    found = sections.get(name, [])
    if len(found) != 1:
        raise LayoutError(f"expected one section {name}, there are {len(found)}")
    return found[0]


def _fat_binaries(image: bytes, at: int, end: int) -> Iterator[tuple[Entry, ...]]:
    while at < end:
        if image[at : at + 8] == bytes(8):
            at += 8
            continue
        magic, version, head, size = _FATBIN_HEAD.unpack_from(image, at)
        _expect(magic == FATBIN, at, "a fat binary")
        _expect((version, head) == (1, _FATBIN_HEAD.size), at, "a fat binary of version 1")
        _expect(at + head + size <= end, at, f"{size} bytes of entries")
        yield tuple(_entries(image, at + head, at + head + size))
        at += head + size


def _entries(image: bytes, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        fields = _taken(_ENTRY_HEAD, image, at, end)
        kind, version, head, size, stored, _, _, _, arch, *_, flags, _, length = (
            int(field) for field in fields
        )
        _expect(version == _ENTRY_VERSION, at, f"an entry of version {_ENTRY_VERSION:#x}")
        _expect(kind in (PTX, MACHINE_CODE), at, "PTX or machine code")
        _expect(head >= _ENTRY_HEAD.size and not head % 8, at, "the head of an entry")
        _expect(not flags & ~_KNOWN_FLAGS, at, f"known flags, not {flags:#x},")
        payload = at + head
        _expect(payload + size <= end and not size % 8, at, f"{size} bytes of a payload")
        begin = image[payload : payload + 4]
        if flags & _COMPRESSED:
            is_filled = 0 <= size - stored < _MOST_FILLING and stored > 0
            _expect(is_filled and begin == ZSTD, payload, f"{stored} bytes compressed by zstd")
            _expect(length <= _MOST_LENGTH, at, f"at most {_MOST_LENGTH} bytes")
        else:
            _expect(stored == 0, at, "nothing compressed without its flag")
            _expect(kind == PTX or begin == ELF, payload, "machine code")
        yield Entry(kind, arch, payload, size, stored if flags & _COMPRESSED else 0, length)
        at = payload + size


def _zstd() -> ctypes.CDLL:
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    return library


def _decompressed(data: bytes, length: int) -> bytes:
    out = ctypes.create_string_buffer(length)
    written = _zstd().ZSTD_decompress(
        out, ctypes.c_size_t(length), data, ctypes.c_size_t(len(data))
    )
    if written != length:
        raise LayoutError(f"expected {length} bytes when decompressed, got {written}")
    return out.raw
