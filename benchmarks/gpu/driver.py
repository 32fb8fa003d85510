"""NVIDIA's driver from Python, by ctypes: memory, streams, events, graphs. No package is needed.

    device = Device()
    address = device.take(1024)
    device.fill(address, 0xFF, 1024)

Work goes to one stream, `device.stream`. The context is the device's primary one, which other
libraries in the process share: what they allocate may be given to kernels, and back.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LIBRARY = "libcuda.so.1"
MULTIPROCESSORS, L2_BYTES, MAJOR, MINOR, SHARED_BYTES = 16, 38, 75, 76, 97
"""Attributes of a device."""
DYNAMIC_SHARED, CARVEOUT = 8, 9
"""Attributes of a function: most dynamic shared memory, and the percentage of the memory that a
multiprocessor divides between its first-level cache and shared memory."""
USUAL_SHARED = 48 << 10
"""More has to be asked for."""
RING_SHARED, LARGEST_CARVEOUT = 24 << 10, 100
"""For blocks that have more: they stand beside each other only then."""
_RELAXED = 2
"""Mode of a capture: other threads may call what they like."""


class CudaError(RuntimeError):
    """A call of the driver failed.

    Args:
        message: What to say.
        code: The driver's number, 0 where it said none.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Driver:
    """The driver's functions, called by name: `driver.cuInit(0)`.

    Raises:
        CudaError: There is none.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError(f"no NVIDIA driver: {error}") from None

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> None:
            if code := function(*arguments):
                raise CudaError(f"{name}: {self._told(code)}", code)

        setattr(self, name, call)
        return call

    def _told(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {code}"


class Event:
    """A moment in the stream."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self.handle = driver, ctypes.c_void_p()
        driver.cuEventCreate(ctypes.byref(self.handle), 0)

    def ms_since(self, earlier: "Event") -> float:
        """Milliseconds from another moment to this one, when it has come."""
        self._driver.cuEventSynchronize(self.handle)
        found = ctypes.c_float()
        self._driver.cuEventElapsedTime(ctypes.byref(found), earlier.handle, self.handle)
        return found.value


class Device:
    """A GPU with a stream.

    Args:
        number: Which one.

    Raises:
        CudaError: There is none.
    """

    def __init__(self, number: int = 0) -> None:
        self.driver = Driver()
        self.driver.cuInit(0)
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self.driver.cuDeviceGet(ctypes.byref(handle), number)
        self._handle = handle
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
        self._context = context
        self.enter()
        self.stream = ctypes.c_void_p()
        self.driver.cuStreamCreate(ctypes.byref(self.stream), 0)

    def enter(self) -> None:
        """Make its context current in this thread."""
        self.driver.cuCtxSetCurrent(self._context)

    def attribute(self, number: int) -> int:
        """A device attribute."""
        value = ctypes.c_int()
        self.driver.cuDeviceGetAttribute(ctypes.byref(value), number, self._handle)
        return value.value

    @property
    def name(self) -> str:
        """As the driver calls it."""
        text = ctypes.create_string_buffer(256)
        self.driver.cuDeviceGetName(text, len(text), self._handle)
        return text.value.decode()

    @property
    def arch(self) -> int:
        """Compute capability: 90 for 9.0."""
        return 10 * self.attribute(MAJOR) + self.attribute(MINOR)

    @property
    def cuda_version(self) -> int:
        """The newest CUDA that the driver is for: 13000 for 13.0."""
        value = ctypes.c_int()
        self.driver.cuDriverGetVersion(ctypes.byref(value))
        return value.value

    # ---- memory

    def take(self, size: int) -> int:
        """Address of new memory."""
        address = ctypes.c_uint64()
        self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def give_back(self, address: int) -> None:
        """Free memory."""
        self.driver.cuMemFree_v2(ctypes.c_uint64(address))

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set bytes, in the stream."""
        if size:
            size_, value = ctypes.c_size_t(size), ctypes.c_ubyte(byte)
            self.driver.cuMemsetD8Async(ctypes.c_uint64(address), value, size_, self.stream)

    def upload(self, address: int, array: Array) -> None:
        """Copy a contiguous array to the device; it may be changed afterwards."""
        if array.nbytes:
            place, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            target = ctypes.c_uint64(address)
            self.driver.cuMemcpyHtoDAsync_v2(target, place, size, self.stream)
            self.wait()

    def download(self, array: Array, address: int) -> None:
        """Fill a contiguous array from the device."""
        if array.nbytes:
            place, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            source = ctypes.c_uint64(address)
            self.driver.cuMemcpyDtoHAsync_v2(place, source, size, self.stream)
        self.wait()

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy within the device, in the stream."""
        places = ctypes.c_uint64(target), ctypes.c_uint64(source)
        self.driver.cuMemcpyDtoDAsync_v2(*places, ctypes.c_size_t(size), self.stream)

    def wait(self) -> None:
        """Until the stream is done.

        Raises:
            CudaError: Something in it failed; the device works again only in a new process.
        """
        self.driver.cuStreamSynchronize(self.stream)

    def is_lost(self) -> bool:
        """Whether every call fails, so that only a new process has a device."""
        try:
            self.wait()
        except CudaError:
            return True
        return False

    # ---- time

    def event(self) -> Event:
        """A new one, not yet recorded."""
        return Event(self.driver)

    def record(self, event: Event) -> None:
        """The moment at which all that the stream has been told is done."""
        self.driver.cuEventRecord(event.handle, self.stream)

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """Launches of `work` as one graph: calling the result launches all of them.

        Args:
            work: Launches into the stream and does nothing else; done once before.
        """
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.cuStreamBeginCapture_v2(self.stream, _RELAXED)
        try:
            work()
        finally:
            self.driver.cuStreamEndCapture(self.stream, ctypes.byref(graph))
        flags = ctypes.c_ulonglong(0)
        self.driver.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, flags)
        self.driver.cuGraphDestroy(graph)
        return lambda: self.driver.cuGraphLaunch(ready, self.stream)


def contiguous(array: Array) -> Array:
    """The array itself, or a contiguous copy of it, of the same shape."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
