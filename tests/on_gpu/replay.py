"""A plug-in of pytest: kernels of tests run on the machine's GPU.

Memory of a device lies between guard zones, which are looked at after each launch; what nobody has
written holds bytes that no test expects.

Where a journal is named, each test is told there when it begins and when it ends, and tests that
are done are left out: a test that ends the process costs that test alone.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

for _module in ("", ".script", ".script.ir_builder", ".tirx", ".tirx.script"):
    sys.modules[f"tvm{_module}"] = MagicMock()  # families are imported, and make nothing

from benchmarks.gpu.driver import Device, contiguous  # noqa: E402 - TVM's place is taken first
from benchmarks.gpu.journal import LOST, Journal, Record  # noqa: E402
from benchmarks.gpu.kernel_tests import JOURNAL, STEP  # noqa: E402
from benchmarks.gpu.library import CudaLibrary  # noqa: E402
from pitc.codegen.call import DeviceTensor  # noqa: E402
from tests import on_gpu  # noqa: E402

Array = np.ndarray[Any, Any]
ZONE = int(os.environ.get("PITC_GPU_GUARDS", "4096"))
"""Bytes on both sides; 0 where somebody else looks for accesses out of bounds."""
GUARD, UNWRITTEN = 0xA5, 0xFB
"""What zones hold, and what memory holds in the beginning."""
RIGHT = "the answer is right"
_devices: list[Device] = []


def _device() -> Device:
    if not _devices:
        _devices.append(Device())
    return _devices[0]


class Memory:
    """An array in device memory."""

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self._bytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self._start = _device().take(self._bytes + 2 * ZONE)
        self.address = self._start + ZONE
        self._live = True
        _device().fill(self._start, GUARD, self._bytes + 2 * ZONE)
        _device().fill(self.address, UNWRITTEN, self._bytes)

    def write(self, array: Array) -> None:
        """Copy an array of the same shape and type to the device."""
        assert (array.shape, array.dtype) == (self.shape, self.dtype)
        _device().upload(self.address, contiguous(array))

    def numpy(self) -> Array:
        """A copy of the contents."""
        array = np.empty(self.shape, self.dtype)
        _device().download(array, self.address)
        return array

    def check(self) -> None:
        """Nobody has written beside it."""
        for start in (self._start, self.address + self._bytes):
            zone = np.empty(ZONE, np.uint8)
            _device().download(zone, start)
            assert (zone == GUARD).all(), f"written beside {self.dtype}{list(self.shape)}"

    def free(self) -> None:
        """Give it back."""
        if self._live:
            _device().give_back(self._start)
        self._live = False

    def __del__(self) -> None:
        if getattr(self, "_live", False):
            self.free()


class OnDevice:
    """Kernels that run on the device, in place of `tests.cuda_emulator.Emulated`."""

    def __init__(self, functions: Sequence[str]) -> None:
        path = on_gpu.library_of(functions)
        assert path.is_file(), f"not built: {', '.join(functions)}"
        self._library = CudaLibrary(_device(), path)

    def device(self, array: Array, _: str = "") -> Memory:
        """Device memory with the contents of an array."""
        memory = Memory(array.shape, array.dtype)
        memory.write(array)
        return memory

    def empty(self, shape: Sequence[int], dtype: Any, _: str = "") -> Memory:
        """Device memory that nobody has written yet."""
        return Memory(shape, dtype)

    def run(self, symbol: str, *arguments: Any) -> None:
        """Call a function; arrays are changed in place."""
        with self._uploaded(arguments) as given:
            self._library.run(
                symbol,
                *(
                    DeviceTensor(a.address, a.shape, a.dtype) if isinstance(a, Memory) else a
                    for a in given
                ),
            )
            _device().wait()

    @contextmanager
    def _uploaded(self, arguments: Sequence[Any]) -> Iterator[list[Any]]:
        copies: dict[int, tuple[Array, Memory]] = {}
        given: list[Any] = []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                place = argument.ctypes.data
                if place not in copies:
                    copies[place] = argument, self.device(argument)
                argument = copies[place][1]
            given.append(argument)
        yield given
        for memory in given:
            if isinstance(memory, Memory) and memory._live:
                memory.check()
        for array, memory in copies.values():
            if array.flags.writeable:
                array[...] = memory.numpy()
            memory.free()

    @property
    def launches(self) -> Any:
        """What launches did: only the emulator counts it."""
        pytest.skip(f"{RIGHT}; a device does not count what it did")

    def backwards(self) -> Any:
        """A device has an order of its own."""
        return nullcontext()

    def shuffled(self, _: int) -> Any:
        """A device has an order of its own."""
        return nullcontext()


on_gpu.intercept(lambda text, _: text)
on_gpu.stand_in(OnDevice, Memory)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here, and what is done."""
    on_gpu.leave_out(items)
    done = {record.name for record in _told.records() if record.done} if _told else set()
    config.hook.pytest_deselected(items=[i for i in items if _name(i.nodeid) in done])
    items[:] = [i for i in items if _name(i.nodeid) not in done]


_told = Journal(Path(os.environ[JOURNAL])) if JOURNAL in os.environ else None
_reports: list[pytest.TestReport] = []


def _name(nodeid: str) -> str:
    """Of a test, within its file."""
    return nodeid.partition("::")[2]


def _tell(nodeid: str, **known: Any) -> None:
    if _told:
        _told.write(Record(os.environ[STEP], _name(nodeid), **known))


def pytest_runtest_logstart(nodeid: str) -> None:
    """It begins."""
    _reports.clear()
    _tell(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A phase of it has ended."""
    _reports.append(report)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """It has ended: tell how, and end the process if no other test can have the device."""
    broken = [_why(report) for report in _reports if report.failed]
    failed = {"": "; ".join(broken)} if broken else {}
    skipped = any(r.skipped and not _why(r).startswith(RIGHT) for r in _reports)
    outcome = "skipped" if skipped else "passed"
    _tell(nodeid, done=True, failed=failed, result={} if failed else {"outcome": outcome})
    if _told and failed and _devices and _devices[0].is_lost():
        sys.stdout.flush()
        os._exit(LOST)


def _why(report: pytest.TestReport) -> str:
    """The message of a failure, or why a test was skipped."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return " ".join(text.split())[:300]
