"""Cases of attention under masks that are known at run time, as data."""

from dataclasses import dataclass, replace
from typing import ClassVar

from benchmarks.sparse_cases import Targets
from models.attention import AttentionConfig, StepConfig
from models.block_masks import Bars, Blocks
from models.longformer import LongformerConfig
from models.modern_bert import ModernBertConfig
from models.pair_masks import Causal, Documents, Everything, PairMask, Window

#: Most time over what the multiply-adds of live pairs need.
LIMIT = 1.7
NO_TARGETS = Targets()
SHORT = 512  # tokens, for development


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Attention of one sequence under a mask of pairs; queries, keys and values are inputs.

    Args:
        name: Name on the command line and of the result file.
        mask: Which keys a query sees.
        length: Tokens.
        targets: What is to be reached.
        heads: Heads of 64, which share the mask.
        seed: Of all inputs.
    """

    family: ClassVar[str] = "attention"

    name: str
    mask: PairMask
    length: int
    targets: Targets = NO_TARGETS
    heads: int = 12
    seed: int = 0

    @property
    def config(self) -> AttentionConfig:
        """The model."""
        return AttentionConfig(self.mask, self.heads)


@dataclass(frozen=True, slots=True)
class StepCase:
    """Attention of one new token to a cache that it is appended to.

    Args:
        name: Name on the command line and of the result file.
        config: The model.
        past: Tokens in the cache.
        targets: What is to be reached.
        seed: Of all inputs.
    """

    family: ClassVar[str] = "attention"

    name: str
    config: StepConfig
    past: int
    targets: Targets = NO_TARGETS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LayersCase:
    """Whole layers of an encoder with local attention, on one sequence without padding.

    Args:
        name: Name on the command line and of the result file.
        config: The model; its weights are random.
        length: Tokens.
        targets: What is to be reached.
        seed: Of weights and ids.
    """

    family: ClassVar[str] = "attention"

    name: str
    config: ModernBertConfig | LongformerConfig
    length: int
    targets: Targets = NO_TARGETS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class AttentionMemoryCase:
    """What one call of a long sequence needs beyond its inputs and its output.

    Args:
        name: Name on the command line and of the result file.
        mask: Which keys a query sees.
        length: Tokens.
        heads: Heads of 64, which share the mask.
        most_bytes: What it may need.
        seed: Of all inputs.
    """

    family: ClassVar[str] = "attention"

    name: str
    mask: PairMask
    length: int
    heads: int
    most_bytes: int = 64 << 20
    seed: int = 0

    @property
    def config(self) -> AttentionConfig:
        """The model."""
        return AttentionConfig(self.mask, self.heads)


TimedAttention = AttentionCase | StepCase | LayersCase

#: Mask, tokens, and gains over ONNX Runtime, the best library, and the best by hand.
_ROWS: tuple[tuple[PairMask, int, float, float, float | None], ...] = (
    (Window(257, globals=16), 2048, 8.0, 5.5, 1.9),
    (Window(513, globals=16), 4096, 9.0, 6.5, 1.9),
    (Causal(257), 2048, 8.0, 2.4, 1.8),
    (Documents(400), 4096, 10.0, 2.9, 1.7),
    (Bars(128), 4096, 6.0, 6.0, None),
    (Blocks(32, 0.1), 4096, 9.0, 2.5, None),
    (Blocks(64, 0.05), 4096, 12.0, 2.4, None),
    (Causal(), 512, 2.5, 1.6, None),
    (Causal(), 2048, 2.5, 1.3, None),
    (Causal(), 4096, 2.5, 1.25, None),
    (Everything(), 512, 1.1, 1.0, None),
    (Everything(), 2048, 1.1, 1.0, None),
)
ATTENTION_CASES: tuple[TimedAttention, ...] = (
    *(
        AttentionCase(
            f"attention-{length}-{mask.label}", mask, length, Targets(base, peer, hand, LIMIT)
        )
        for mask, length, base, peer, hand in _ROWS
    ),
    LayersCase("longformer-4096", LongformerConfig(), 4096, Targets(4.0, 2.5)),
    LayersCase("modern-bert-2048", ModernBertConfig(), 2048, Targets(1.8, 1.3)),
    LayersCase("modern-bert-4096", ModernBertConfig(), 4096, Targets(2.5, 1.7)),
    StepCase("attention-step-4095", StepConfig(window=512), 4095, Targets(5.0, 2.3)),
)
MEMORY_CASES = tuple(
    AttentionMemoryCase(
        f"attention-memory-32768-heads-{heads}", Window(513, globals=16), 32768, heads
    )
    for heads in (1, 12)
)


def _with_layers(
    config: ModernBertConfig | LongformerConfig, layers: int
) -> ModernBertConfig | LongformerConfig:
    if isinstance(config, LongformerConfig):
        return replace(config, layers=layers)
    return replace(config, masks=config.masks[:layers])


def shorter(
    case: TimedAttention | AttentionMemoryCase, layers: int
) -> TimedAttention | AttentionMemoryCase:
    """The case with a short sequence and few layers, for development."""
    if isinstance(case, StepCase):
        return replace(case, past=SHORT - 1)
    if isinstance(case, LayersCase):
        return replace(case, config=_with_layers(case.config, layers), length=SHORT)
    return replace(case, length=SHORT)
