"""NVIDIA's driver and devices, asked through `libcuda.so.1`.

Names and numbers are those of the CUDA driver API's documentation. Asking starts no work on a
device.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitc.errors import MachineError

DRIVER = "libcuda.so.1"

_NO_DEVICE = 100
_MAJOR, _MINOR = 75, 76  # attributes: compute capability
_VENDOR, _DISPLAY = "0x10de", "0x03"
"""PCI: NVIDIA, and the class of display and 3D controllers."""


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One device.

    Args:
        name: As the driver calls it.
        arch: Its architecture, e.g. `sm_90`.
        memory_bytes: Its memory.
    """

    name: str
    arch: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """A driver that answers.

    Args:
        version: The newest CUDA version that it serves, e.g. `(13, 0)`.
        devices: In the driver's order.
    """

    version: tuple[int, int]
    devices: tuple[CudaDevice, ...]


def cuda_driver() -> CudaDriver | None:
    """The driver with its devices; None where it is not installed.

    Raises:
        MachineError: It does not work.
    """
    try:
        library: Any = ctypes.CDLL(DRIVER)
    except OSError:
        return None

    def call(name: str, *arguments: object) -> None:
        if code := getattr(library, name)(*arguments):
            raise MachineError(f"{name}: {_error_name(library, code)}")

    def number(name: str, *arguments: object) -> int:
        found = ctypes.c_int()
        call(name, ctypes.byref(found), *arguments)
        return found.value

    version = number("cuDriverGetVersion")
    code = library.cuInit(0)
    if code not in (0, _NO_DEVICE):
        raise MachineError(f"cuInit: {_error_name(library, code)}")
    devices = []
    for place in range(0 if code else number("cuDeviceGetCount")):
        device = number("cuDeviceGet", place)
        name = ctypes.create_string_buffer(256)
        call("cuDeviceGetName", name, len(name), device)
        memory = ctypes.c_size_t()
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        major, minor = (number("cuDeviceGetAttribute", kind, device) for kind in (_MAJOR, _MINOR))
        text = name.value.decode(errors="replace")
        devices.append(CudaDevice(text, f"sm_{major}{minor}", memory.value))
    return CudaDriver((version // 1000, version % 1000 // 10), tuple(devices))


def _error_name(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(text))
    return f"{(text.value or b'error').decode()} ({code})"


def has_nvidia_gpu(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether Linux lists a GPU of NVIDIA, with a driver or without."""
    for device in devices.glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == _VENDOR and kind.startswith(_DISPLAY):
            return True
    return False
