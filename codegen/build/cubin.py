"""What a kernel uses of a device, read from its cubin: registers, shared memory, stack, spills.

A cubin is an ELF file. The section `.nv.info` holds records of the form (format, attribute, size,
payload); where the payload is (symbol, number), it tells the registers or the stack of a function.
`.nv.info.KERNEL` holds records of one kernel, `.nv.shared.KERNEL` is as large as its static shared
memory, `.text.KERNEL` is its code, 16 bytes an instruction. The numbers below were found by
compiling kernels whose `ptxas -v` report is known; the tests compare them again where nvcc is
installed.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_REGISTERS, _STACK, _THREADS = 0x2F, 0x12, 0x05
"""Attributes: registers; stack with that of called functions; most threads of a block, x, y, z."""

_WITH_PAYLOAD = 4
"""Format of a record that a payload follows; others hold their value in place of the size."""

_STORE_TO_STACK, _LOAD_FROM_STACK = 0x387, 0x983
"""Low 12 bits of instructions that move registers to and from the stack."""

_RESERVED, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024
"""Where a cubin has this section, all shared sections count what the driver keeps for itself."""

_MOVED_BYTES = (1, 1, 2, 2, 4, 8, 16, 0)
"""By bits 73-75 of such an instruction."""


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What one kernel uses.

    Args:
        kernel: Its name.
        registers: Of a thread.
        shared_bytes: Static shared memory of a block.
        stack_bytes: Of a thread, in local memory. A register that is spilled and an array whose
            indices are not constant lie there: with an empty stack there is no spill.
        stored_bytes: What the code's instructions store to the stack, each counted once: ptxas's
            "spill stores" of a kernel without such an array.
        loaded_bytes: What they load from it: "spill loads".
        max_threads: Most threads of a block; 0 where the kernel does not say.
        code_bytes: Machine code.
    """

    kernel: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    stored_bytes: int
    loaded_bytes: int
    max_threads: int
    code_bytes: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    content: bytes
    size: int
    link: int


def kernel_resources(cubin: bytes) -> tuple[KernelResources, ...]:
    """What each kernel of a cubin uses, by name.

    Raises:
        ValueError: The bytes are no cubin.
    """
    try:
        sections = _sections(cubin)
        return tuple(_kernels({s.name: s for s in sections}, sections))
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"not a cubin, or one of an unknown form: {error}") from error


def _sections(cubin: bytes) -> list[_Section]:
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("not a cubin: no ELF file of 64 bits")
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    entry, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * entry) for i in range(count)]
    names = cubin[heads[names_at][4] :]
    no_bits = 8
    return [
        _Section(_name(names, name), b"" if kind == no_bits else cubin[at : at + size], size, link)
        for name, kind, _, _, at, size, link, *_ in heads
    ]


def _name(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()


def _records(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _WITH_PAYLOAD:
            yield attribute, content[at : at + size]
            at += size


def _kernels(named: dict[str, _Section], sections: list[_Section]) -> Iterator[KernelResources]:
    info = named[".nv.info"]
    symbols, names = sections[info.link].content, sections[sections[info.link].link].content
    found: dict[tuple[int, str], int] = {}
    for attribute, payload in _records(info.content):
        if attribute in (_REGISTERS, _STACK):
            symbol, number = struct.unpack("<II", payload)
            (name,) = struct.unpack_from("<I", symbols, 24 * symbol)
            found[attribute, _name(names, name)] = number
    reserved = _RESERVED_BYTES if _RESERVED in named else 0
    for section in sorted(named):
        if not section.startswith(".nv.info."):
            continue
        kernel = section.removeprefix(".nv.info.")
        shared = named.get(f".nv.shared.{kernel}")
        code = named[f".text.{kernel}"].content
        sizes = [p for a, p in _records(named[section].content) if a == _THREADS]
        x, y, z = struct.unpack("<III", sizes[0]) if sizes else (0, 0, 0)
        yield KernelResources(
            kernel=kernel,
            registers=found[_REGISTERS, kernel],
            shared_bytes=shared.size - reserved if shared else 0,
            stack_bytes=found[_STACK, kernel],
            stored_bytes=_moved(code, _STORE_TO_STACK),
            loaded_bytes=_moved(code, _LOAD_FROM_STACK),
            max_threads=x * y * z,
            code_bytes=len(code),
        )


def _moved(code: bytes, operation: int) -> int:
    words = struct.iter_unpack("<QQ", code)
    return sum(_MOVED_BYTES[high >> 9 & 7] for low, high in words if low & 0xFFF == operation)
