"""The first ten seconds on a device: one small kernel is loaded and launched, and its answer read.

A driver that refuses the code refuses all of it, so a run ends there with one line.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.gpu.arrays import download, empty, upload
from benchmarks.gpu.driver import CudaError
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.products import Machine
from pitc.ir.kernel import KernelRequest

REFUSALS = {
    209: "the pack has no code for this architecture",
    218: "the driver cannot compile the pack's PTX",
    222: "the pack was compiled by a newer toolkit than the driver is for",
}
"""What the driver says of code that it does not take, by its number."""
SYMBOL = KernelRequest.of_cuda("pack", "float32").symbol


def smoke_cases(machine: Machine) -> Iterator[Case]:
    """One launch of the smallest kernel."""
    yield Case("smoke", {"kernel": SYMBOL}, partial(_smoke, machine))


def _smoke(machine: Machine, telling: Telling) -> Result:
    device = machine.device
    x = np.arange(35, dtype=np.int32).reshape(5, 7)
    index = np.array([4, 0, 2], np.int32)
    packed = empty(device, (3, 7), np.int32)
    places = upload(device, x), upload(device, index), packed
    try:
        machine.library.run(f"{SYMBOL}_cuda", *places, 1)
        device.wait()
    except CudaError as error:
        if error.code in REFUSALS:
            telling.tell(refused=f"{REFUSALS[error.code]} ({error})")
        raise
    if not np.array_equal(download(device, packed), x[index]):
        raise AssertionError("rows that were packed are not those that were asked for")
    return {"right": True}
