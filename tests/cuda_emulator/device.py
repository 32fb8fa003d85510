"""Emulated kernels without host code, the memory they work on, and what they are seen to do."""

import ctypes
import functools
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from tests.cuda_emulator import build
from tests.cuda_emulator.build import EmulationError
from tests.cuda_emulator.text import kernels

Array = np.ndarray[Any, Any]
_NUMBERS = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "int": ctypes.c_int32,
    "uint": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
}
_SHOWN = 200
"""Characters of a source line in a message."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a launch, or one line of it, did.

    A *request* is one instruction of a warp. Global memory answers in sectors of 32 bytes; `bytes`
    are those that were asked for, `unique` ones are of sectors, each once: the least traffic with
    DRAM. Shared memory needs a *wavefront* per 8 lanes of a 16-byte access, 16 of an 8-byte one, 32
    else, and one more for each further word in a bank. `rewritten` counts writes of what stood
    there already, by a thread that is not ordered after the other writer.
    """

    load_requests: int
    load_sectors: int
    load_bytes: int
    store_requests: int
    store_sectors: int
    store_bytes: int
    shared_requests: int
    shared_wavefronts: int
    shared_ideal: int
    barriers: int
    mma_flops: int
    fmas: int
    async_bytes: int
    atomics: int
    rewritten: int
    blocks: int
    unique_read: int
    unique_written: int

    def __add__(self, other: "Counts") -> "Counts":
        names = (f.name for f in fields(self))
        return Counts(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel; `shared_bytes` is what it asks for beside static shared memory."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    counts: Counts
    _places: tuple[tuple[int, Counts], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Line:
    """What a line of the CUDA source did in the last run."""

    number: int
    text: str
    counts: Counts


@functools.cache
def _run_time() -> Any:
    library = ctypes.CDLL(str(build.run_time()))
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    library.emulator_alloc.restype = pointer
    library.emulator_alloc.argtypes = (size, text)
    library.emulator_free.argtypes = (pointer,)
    library.emulator_name.argtypes = (pointer, text)
    library.emulator_copy.argtypes = (pointer, pointer, size)
    library.emulator_launch.restype = text
    library.emulator_counts.restype = text
    assert library.emulator_counts().decode().split() == [f.name for f in fields(Counts)]
    return library


class DeviceMemory:
    """An array in device memory, from `Emulated.device` or `Emulated.empty`, until it is freed."""

    def __init__(self, shape: Sequence[int], dtype: Any, name: str) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self._bytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.address: int = _run_time().emulator_alloc(self._bytes, name.encode())
        if not self.address:
            raise MemoryError("the emulated device has no memory left")
        self._live = True

    def write(self, array: Array) -> None:
        """Copy an array of the same shape and type to the device."""
        if (array.shape, array.dtype) != (self.shape, self.dtype):
            raise ValueError(f"{array.dtype}{array.shape} into {self.dtype}{self.shape}")
        array = np.ascontiguousarray(array)
        _run_time().emulator_copy(self.address, array.ctypes.data, self._bytes)

    def numpy(self) -> Array:
        """A copy of the contents."""
        array = np.empty(self.shape, self.dtype)
        _run_time().emulator_copy(array.ctypes.data, self.address, self._bytes)
        return array

    def free(self) -> None:
        """Free it; a kernel that is given it from now on is wrong."""
        if self._live:
            _run_time().emulator_free(self.address)
        self._live = False

    def __del__(self) -> None:
        if getattr(self, "_live", False):
            self.free()


class EmulatedText:
    """A CUDA source whose kernels run on the CPU.

    Args:
        source: The text.

    Raises:
        EmulationError: The emulator does not know something in it.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.launches: tuple[Launch, ...] = ()
        self._kinds = {kernel.name: kernel.kinds for kernel in kernels(source)}
        self._order = 0
        _run_time()
        self._path = build.module(source)
        self._kernels = ctypes.CDLL(str(self._path))

    def device(self, array: Array, name: str = "device memory") -> DeviceMemory:
        """Device memory with the contents of an array, which stays for several runs."""
        memory = self.empty(array.shape, array.dtype, name)
        memory.write(array)
        return memory

    def empty(self, shape: Sequence[int], dtype: Any, name: str = "device memory") -> DeviceMemory:
        """Device memory that nobody has written yet; to read it before is an error."""
        return DeviceMemory(shape, dtype, name)

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        *arguments: Any,
        shared: int = 0,
    ) -> Counts:
        """Run a kernel; arrays are changed in place.

        Args:
            kernel: Its name.
            grid: Blocks along x, y and z.
            block: Threads along x, y and z.
            arguments: Arrays, `DeviceMemory`, integers and floats, in the order of the kernel.
            shared: Bytes of dynamic shared memory.

        Raises:
            EmulationError: The kernel is wrong.
        """
        self.launches = ()
        names = (f"argument {i}" for i in range(len(arguments)))
        with self._uploaded(arguments, names) as given:
            plain = [a.address if isinstance(a, DeviceMemory) else a for a in given]
            return self._launched(kernel, (*grid, 1, 1)[:3], (*block, 1, 1)[:3], plain, shared)

    @contextmanager
    def _uploaded(self, arguments: Sequence[Any], names: Iterable[str]) -> Iterator[list[Any]]:
        """The arguments with device memory in place of arrays, which are read back in the end."""
        copies: dict[int, tuple[Array, DeviceMemory]] = {}
        given: list[Any] = []
        try:
            for argument, name in zip(arguments, names, strict=True):
                if isinstance(argument, np.ndarray):
                    place = argument.ctypes.data
                    if place not in copies:
                        copies[place] = argument, self.device(argument)
                    argument = copies[place][1]
                if isinstance(argument, DeviceMemory):
                    _run_time().emulator_name(argument.address, name.encode())
                given.append(argument)
            yield given
        finally:
            for array, memory in copies.values():
                if array.flags.writeable:
                    array[...] = memory.numpy()
                memory.free()

    def _launched(
        self,
        kernel: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: Sequence[Any],
        shared: int,
    ) -> Counts:
        """Run a kernel with numbers and addresses."""
        kinds = self._kinds[kernel]
        slots = [_NUMBERS.get(k, ctypes.c_uint64)(a) for k, a in zip(kinds, arguments, strict=True)]
        pointers = (ctypes.c_void_p * len(slots))(*map(ctypes.addressof, slots))
        counts = (ctypes.c_int64 * len(fields(Counts)))()
        error = _run_time().emulator_launch(
            getattr(self._kernels, f"emulated_{kernel}"),
            pointers,
            (ctypes.c_uint * 6)(*grid, *block),
            ctypes.c_size_t(shared),
            self._order,
            counts,
        )
        launch = Launch(kernel, grid, block, shared, Counts(*counts), tuple(_places()))
        self.launches += (launch,)
        if error:
            raise EmulationError(f"{kernel}: {self._with_lines(error.decode())}")
        return launch.counts

    def _with_lines(self, text: str) -> str:
        """Replace places in the module by lines of the source."""
        mark = re.compile(r" at \+0x([0-9a-f]+)")
        places = [int(found, 16) for found in mark.findall(text)]
        lines = dict(zip(places, self._lines(places), strict=True))

        def line(found: re.Match[str]) -> str:
            number = lines[int(found[1], 16)]
            return f" at line {number}: {self._text(number)[:_SHOWN]}"

        return mark.sub(line, text)

    def _text(self, line: int) -> str:
        return self.source.splitlines()[line - 1].strip() if line else "?"

    def _lines(self, places: Sequence[int]) -> list[int]:
        """The lines of places in the module, those in kernels rather than in what they call."""
        if not places:
            return []
        command = ["addr2line", "-a", "-i", "-e", str(self._path), *map(hex, places)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        stacks = re.split(r"^0x[0-9a-f]+\n", told, flags=re.MULTILINE)[1:]
        found = [re.findall(r"kernel\.cu:(\d+)", stack) for stack in stacks]
        return [int(numbers[-1]) if numbers else 0 for numbers in found]

    def lines(self) -> tuple[Line, ...]:
        """What each line of the source did in the last run, in order of lines."""
        places = [place for launch in self.launches for place in launch._places]
        numbers = self._lines([offset for offset, _ in places])
        found: dict[int, Counts] = {}
        for number, (_, counts) in zip(numbers, places, strict=True):
            found[number] = found[number] + counts if number in found else counts
        return tuple(Line(n, self._text(n), counts) for n, counts in sorted(found.items()))

    def losses(self) -> list[tuple[int, int, int, str]]:
        """Where the last run lost: (line, further wavefronts, wasted bytes of sectors, text).

        The worst come first; a wavefront counts as much as a sector.
        """
        lost = []
        for line in self.lines():
            c = line.counts
            wavefronts = c.shared_wavefronts - c.shared_ideal
            waste = max(0, 32 * c.load_sectors - c.load_bytes)
            waste += max(0, 32 * c.store_sectors - c.store_bytes)
            if wavefronts or waste:
                lost.append((line.number, wavefronts, waste, line.text))
        return sorted(lost, key=lambda row: -row[1] - row[2] / 32)

    @contextmanager
    def backwards(self) -> Iterator[None]:
        """Launches in which lanes, warps and blocks take turns the other way round."""
        with self._ordered(1):
            yield

    @contextmanager
    def shuffled(self, seed: int) -> Iterator[None]:
        """Launches in which they take turns in some order."""
        with self._ordered(2 + seed):
            yield

    @contextmanager
    def _ordered(self, order: int) -> Iterator[None]:
        before, self._order = self._order, order
        try:
            yield
        finally:
            self._order = before


def _places() -> Iterator[tuple[int, Counts]]:
    offset, counts = ctypes.c_size_t(), (ctypes.c_int64 * len(fields(Counts)))()
    number = 0
    while _run_time().emulator_site(number, ctypes.byref(offset), counts):
        yield offset.value, Counts(*counts)
        number += 1
