"""What a user may ask of a compilation, checked before any work is done."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pitc.errors import UsageError
from pitc.ir.cuda_target import CUDA_ARCHS

Level = Literal["v4", "v3", "neon"]
Kind = Literal["cpu", "cuda"]

#: CPU levels of x86-64 by name, best first.
LEVELS: dict[str, Level] = {"v4": "v4", "v3": "v3"}
TableLevel = Literal["v4_amx", "v4", "v3"]
#: Levels that have prices of their own: `v4_amx` is of products of bfloat16 alone.
TABLE_LEVELS: dict[str, TableLevel] = {"v4_amx": "v4_amx", "v4": "v4", "v3": "v3"}
#: That of 64-bit Arm. One kernel library is of one machine: it goes with no other target.
NEON = "cpu:neon"

PRECISIONS = ("float32", "bf16")
"""What products by constant matrices are computed with on CPUs."""

FORMS = (
    "auto, cpu, cpu:v4, cpu:v3, cuda, cuda:sm_80,sm_90, or several of them: cpu,cuda; or cpu:neon"
)


@dataclass(frozen=True, slots=True)
class Targets:
    """Machines that a model is compiled for.

    Args:
        kinds: Kinds of machine, in the order in which they were named.
        levels: CPU levels of the kernels, best first.
        archs: GPU architectures of the kernels, oldest first.
    """

    kinds: tuple[Kind, ...]
    levels: tuple[Level, ...]
    archs: tuple[str, ...]


def parse_target(text: str) -> Targets:
    """Read a target.

        auto, cpu              v4, v3                   cpu:v3          v3
        cuda                   all architectures        cuda:sm_90      sm_90
        cpu,cuda:sm_80,sm_90   v4, v3; sm_80, sm_90
        cpu:neon               neon

    Raises:
        UsageError: It is none, or names something twice.
    """
    if text == NEON:
        return Targets(("cpu",), ("neon",), ())
    kinds: dict[Kind, None] = {}
    levels: dict[Level, None] = {}
    archs: dict[str, None] = {}
    for part in ("cpu" if text == "auto" else text).split(","):
        kind, colon, name = part.partition(":")
        is_more = kind in CUDA_ARCHS and archs and list(kinds)[-1] == "cuda"
        if kind == "cpu" and kind not in kinds and (name in LEVELS or not colon):
            kinds["cpu"] = None
            levels |= dict.fromkeys([LEVELS[name]] if name else LEVELS.values())
        elif kind == "cuda" and kind not in kinds and (name in CUDA_ARCHS or not colon):
            kinds["cuda"] = None
            archs |= dict.fromkeys([name] if name else CUDA_ARCHS)
        elif is_more and not colon and part not in archs:  # of those behind `cuda:`
            archs[part] = None
        else:
            raise UsageError(f"target {text!r} is not one of {FORMS}", hint=_hint(part))
    ordered = tuple(arch for arch in CUDA_ARCHS if arch in archs)
    return Targets(tuple(kinds), tuple(levels), ordered)


def _hint(part: str) -> str | None:
    known = f"GPU architectures: {', '.join(CUDA_ARCHS)}"
    return known if "sm_" in part else None


def spelled(padding: str | Iterable[str] | None) -> str | None:
    """Padding masks as one text; None for none."""
    if padding is None or isinstance(padding, str):
        return padding
    return ",".join(padding) or None


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options that change the compiled result.

    Args:
        target: What `parse_target` reads.
        padding: Which tokens do not exist (`passes/masks.py`), or None.
        dump_ir: Folder for one file per stage, or None. It does not change the result.
        check: Check the graph's invariants after each stage. It does not change the result.
        suggest: Look for what would help, for the report.
        stop_after: The last stage of the passes to run; "": all of them.
        precision: `float32`, or `bf16`: products round their operands to bfloat16.
    """

    target: str = "auto"
    padding: str | None = None
    dump_ir: Path | None = None
    check: bool = False
    suggest: bool = False
    stop_after: str = ""
    precision: str = "float32"

    def __post_init__(self) -> None:
        parse_target(self.target)
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"unknown precision {self.precision!r}", hint=f"known: {', '.join(PRECISIONS)}"
            )
        if self.precision != PRECISIONS[0] and "cpu" not in self.targets.kinds:
            raise UsageError(
                f"precision {self.precision} is of CPUs, and the target {self.target!r} has none",
                hint="GPUs compute with the types of the model, float32 as tf32",
            )

    @property
    def targets(self) -> Targets:
        """Machines to compile for."""
        return parse_target(self.target)

    def precision_on(self, kind: Kind) -> str:
        """The precision of products on a kind of machine."""
        return self.precision if kind == "cpu" else PRECISIONS[0]
