"""Layers of experts: the form that a model has, and the ones that users could write instead."""

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.attention_cases import NO_TARGETS, Targets
from models.experts import ExpertsConfig
from models.mixtral import MixtralConfig


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


@dataclass(frozen=True, slots=True)
class MixtralCase:
    """A decoder with experts in every layer, on one padded batch.

    Args:
        config: The decoder.
        batch: Sequences.
        length: Longest sequence; one sequence has this length.
        mean: Mean length that the others are drawn to.
        targets: Gains that are to be reached.
        padding: The mask input that pitc is told about.
        seed: Of weights, ids and lengths.
    """

    family: ClassVar[str] = "experts"

    config: MixtralConfig
    batch: int = 8
    length: int = 128
    mean: int = 40
    targets: Targets = NO_TARGETS
    padding: str = "attention_mask"
    seed: int = 0

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        form = self.config.experts.form.replace("_", "-")
        return f"mixtral-{self.config.layers}-{self.batch}x{self.length}-m{self.mean}-{form}"


def _config(
    form: str, tokens: int, experts: int, hidden: int, ffn: int, top: int = 1
) -> ExpertsConfig:
    slots = 2 * tokens * top // experts if form == "capacity" else 0  # so that no token is dropped
    return ExpertsConfig(form, experts, hidden, ffn, top, gated=top > 1, capacity=slots)


_LAYERS = tuple(
    ExpertsCase(_config(form, tokens, *sizes), tokens, Targets(base, peer, limit=1.25))
    for form, sizes, tokens, base, peer in (
        ("all_experts", (8, 768, 3072), 512, 6, 1.05),
        ("capacity", (8, 768, 3072), 512, 2.5, 1.05),
        ("loop", (8, 768, 3072), 512, 1.1, 1.05),
        ("looked_up", (64, 512, 1024), 512, 12, 1.1),
        ("loop", (64, 512, 1024), 512, 1.1, 1.1),
        ("looked_up", (64, 512, 1024), 8, 2, 1),
        ("loop", (64, 512, 1024), 8, 1.3, 1),
        ("looked_up", (128, 512, 512), 512, 7, 1),
        ("looked_up", (8, 512, 1536, 2), 256, 8, 1.03),
        ("loop", (8, 512, 1536, 2), 256, 1.05, 1.03),
        ("index_add", (8, 512, 1536, 2), 256, 1.05, 1.03),
        ("index_add_hits", (8, 512, 1536, 2), 256, 1.05, 1.03),
        ("index_add_hits", (64, 512, 1024), 512, 1.1, 1.1),
        ("looked_up", (32, 512, 384, 4), 64, 9, 1),
        ("operator", (64, 512, 1024), 8, 1, 1),
        ("operator", (8, 512, 1536, 2), 256, 1, 1),
    )
)
EXPERTS_CASES: tuple[ExpertsCase | MixtralCase, ...] = (
    *_LAYERS,
    MixtralCase(MixtralConfig(), targets=Targets(8, 2)),
    MixtralCase(MixtralConfig(_config("all_experts", 0, 8, 512, 1536, 2)), targets=Targets(8, 2)),
)
