"""What the timed cases of a process share: the device, its kernels, and who competes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.driver import L2_BYTES, Array, Device
from benchmarks.gpu.journal import Result, Telling
from benchmarks.gpu.peers import Torch, find_torch
from benchmarks.gpu.products import Machine, Operands, Work
from benchmarks.gpu.timing import Contender, Make, operand_sets, time_contenders

OURS = "pitc"
DTYPE = "float16"
ITEM = 2


@dataclass(slots=True)
class Run:
    """What the cases share.

    Args:
        machine: The device and its kernels.
        rounds: Rounds that count.
        small: Sizes for a device that is emulated.
    """

    machine: Machine
    rounds: int = 15
    small: bool = False
    left_out: dict[str, str] = field(default_factory=dict)
    _torch: Torch | None = None
    _has_looked: bool = False

    @property
    def device(self) -> Device:
        """The device."""
        return self.machine.device

    @property
    def torch(self) -> Torch | None:
        """PyTorch, which is imported by the first case that has peers there: that takes seconds."""
        if not self._has_looked:
            self._has_looked = True
            self._torch = find_torch(self.device, self.left_out)
        return self._torch

    def peers(self, makers: Callable[[Torch], Mapping[str, Make]]) -> Mapping[str, Make]:
        """Contenders of PyTorch, if it is there."""
        return makers(self.torch) if self.torch else {}

    def timed(
        self, telling: Telling, makers: Mapping[str, Make], set_bytes: int, sets: int
    ) -> Result:
        """Times, who was left out, and whether operands came from memory.

        Args:
            telling: Gets what is known of each contender at once.
            makers: The contenders, ours first.
            set_bytes: Of all operands of a call.
            sets: Of operands, which take turns.
        """
        ours = next(iter(makers))
        times = time_contenders(self.device, makers, ours, self.rounds, telling)
        cache = self.device.attribute(L2_BYTES)
        operands = {"sets": sets, "set_bytes": set_bytes, "l2_bytes": cache}
        return {
            **times,
            "operands": operands | {"warm": sets * set_bytes <= cache},
            "left_out": dict(self.left_out),
        }

    def own(self, works: Sequence[Work], **facts: Any) -> Contender:
        """A contender of ours, with a work for each set of operands."""
        return Contender(works, self.device.captured, facts)

    def operands(self, a: Array, w: Array) -> list[Operands]:
        """Sets of operands of a product, as many as take turns."""
        sets = operand_sets(self.device, product_bytes(a, w))
        return [Operands.of(self.device, a, w, DTYPE) for _ in range(sets)]


def product_bytes(a: Array, w: Array) -> int:
    """A, W and C, once each."""
    return ITEM * (a.size + w.size + len(a) * w.shape[1])
