"""Layers of experts: the form that a model has, and the ones that users could write instead."""

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.attention_cases import NO_TARGETS, Targets
from models.experts import ExpertsConfig


@dataclass(frozen=True, slots=True)
class ExpertsCase:
    """A layer of experts on random tokens.

    Args:
        config: The layer, and how it is written.
        tokens: Rows of its input.
        targets: Gains that are to be reached: over ONNX Runtime on the same form, and over the best
            peer on its best form; the limit is the core's, or the memory's.
        seed: Of weights and tokens.
    """

    family: ClassVar[str] = "experts"

    config: ExpertsConfig
    tokens: int
    targets: Targets = NO_TARGETS
    seed: int = 0

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        c = self.config
        sizes = f"e{c.experts}-{c.hidden}-{c.ffn}-top{c.top}"
        return f"experts-{sizes}-{self.tokens}-{c.form.replace('_', '-')}"


def _config(form: str, experts: int, hidden: int, ffn: int, top: int = 1) -> ExpertsConfig:
    return ExpertsConfig(form, experts, hidden, ffn, top, gated=top > 1)


EXPERTS_CASES = tuple(
    ExpertsCase(_config(form, *sizes), tokens, Targets(base, peer, limit=1.25))
    for form, sizes, tokens, base, peer in (
        ("all_experts", (8, 768, 3072), 512, 6, 1.05),
        ("loop", (8, 768, 3072), 512, 1.1, 1.05),
        ("looked_up", (64, 512, 1024), 512, 12, 1.1),
        ("loop", (64, 512, 1024), 512, 1.1, 1.1),
        ("looked_up", (64, 512, 1024), 8, 2, 1),
        ("loop", (64, 512, 1024), 8, 1.3, 1),
        ("looked_up", (128, 512, 512), 512, 7, 1),
        ("looked_up", (8, 512, 1536, 2), 256, 8, 1.03),
        ("loop", (8, 512, 1536, 2), 256, 1.05, 1.03),
        ("looked_up", (32, 512, 384, 4), 64, 9, 1),
    )
)
