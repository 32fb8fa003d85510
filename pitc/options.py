"""What a user may ask of a compilation, checked before any work is done."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pitc.errors import UsageError

Level = Literal["v4", "v3"]

#: CPU levels by name, best first.
LEVELS: dict[str, Level] = {"v4": "v4", "v3": "v3"}

#: Target name -> CPU levels that the kernels are built for, best first.
TARGETS: dict[str, tuple[Level, ...]] = {
    "auto": ("v4", "v3"),
    "cpu": ("v4", "v3"),
    "cpu:v4": ("v4",),
    "cpu:v3": ("v3",),
}


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options that change the compiled result.

    Args:
        target: A key of `TARGETS`.
        padding: Name of the mask input whose zeros are tokens that do not exist, or None.
        dump_ir: Folder for one file per stage, or None. It does not change the result.
        check: Check the graph's invariants after each stage. It does not change the result.
    """

    target: str = "auto"
    padding: str | None = None
    dump_ir: Path | None = None
    check: bool = False

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise UsageError(f"target {self.target!r} is not one of {', '.join(TARGETS)}")

    @property
    def levels(self) -> tuple[Level, ...]:
        """CPU levels to build kernels for."""
        return TARGETS[self.target]
