"""The cases, as data."""

from dataclasses import dataclass, replace
from typing import ClassVar

from benchmarks.attention_cases import (
    ATTENTION_CASES,
    MEMORY_CASES,
    AttentionMemoryCase,
    TimedAttention,
    shorter,
)
from benchmarks.experts_cases import EXPERTS_CASES, ExpertsCase, MixtralCase
from benchmarks.sparse_cases import (
    BLOCK_CASES,
    GRADIENT_CASES,
    PRODUCT_CASES,
    Block,
    BlocksCase,
    MaskedCase,
    SparseCase,
)
from benchmarks.worst_cases import WORST_CASES, WorstCase
from models.bert import BERT_BASE, BertConfig
from models.masked import MlpConfig
from models.opt import OPT_125M, OptConfig
from models.t5 import T5_BASE, T5Config
from models.tall import TALL

ModelConfig = BertConfig | OptConfig | T5Config


@dataclass(frozen=True, slots=True)
class EncoderCase:
    """A model with random weights on one batch of random ids.

    Args:
        name: Name on the command line and of the result file.
        config: The model.
        batch: Sequences.
        length: Longest sequence; one sequence has this length.
        mean: Mean length that the others are drawn to.
        padding: The mask input that pitc is told about, or None.
        seed: Of weights, ids and lengths.
        side: Where the padding is: `right`, or `left` as for decoders.
        bits: Of products by weights: `dynamic` and `static` (8) or `int4`, functions of
            `models.quantised`; empty: 32.
        dtype: What the model computes in, `float32` or `float16`.
        precision: What pitc is asked to compute products in: `float32`, or `bf16`, then OpenVINO
            computes as it does without being asked, in bfloat16 where the CPU can.
    """

    family: ClassVar[str] = "padding"

    name: str
    config: ModelConfig
    batch: int
    length: int
    mean: int
    padding: str | None = "attention_mask"
    seed: int = 0
    side: str = "right"
    bits: str = ""
    dtype: str = "float32"
    precision: str = "float32"


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """Loss and gradients on one batch: of a BERT that labels tokens, or of a decoder that guesses
    the next one; padded tokens have no label.

    Args:
        name: Name on the command line and of the result file.
        config: The model.
        batch: Sequences.
        length: Longest sequence; one sequence has this length.
        mean: Mean length that the others are drawn to.
        side: Where padding is.
        padding: The mask input that pitc is told about.
        seed: Of weights, ids, labels, lengths and masks.
        block: Weights of feed-forward blocks are masked by blocks of so many rows and columns.
        zeros: Share of blocks that these masks drop.
    """

    family: ClassVar[str] = "training"

    name: str
    config: BertConfig | OptConfig
    batch: int
    length: int
    mean: int
    side: str = "right"
    padding: str = "attention_mask"
    seed: int = 0
    block: Block | None = None
    zeros: float = 0.0


@dataclass(frozen=True, slots=True)
class MlpStepCase:
    """Loss and gradients of a multi-layer perceptron whose weights are masked by inputs.

    Args:
        config: The model and its masks.
        rows: Rows of its input.
        seed: Of weights, masks, input and labels.
    """

    family: ClassVar[str] = "training"

    config: MlpConfig
    rows: int = 512
    seed: int = 0

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        rows, columns = self.config.block
        return f"train-mlp-{self.rows}-{rows}x{columns}-{round(100 * self.config.zeros)}"


@dataclass(frozen=True, slots=True)
class CachedCase:
    """One call of a decoder with a cache, with random weights, ids and past.

    Args:
        name: Name on the command line and of the result file.
        config: The model.
        batch: Sequences.
        length: Tokens that the call appends to each.
        past: Length of the past.
        mean: Mean number of tokens, past and new, that sequences are drawn to; one has all. They
            are padded on the left.
        padding: The mask input that pitc is told about.
        seed: Of weights, ids, lengths and past.
    """

    family: ClassVar[str] = "padding"

    name: str
    config: OptConfig
    batch: int
    length: int
    past: int
    mean: int
    padding: str = "attention_mask"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TextCase:
    """all-MiniLM-L6-v2 with its real weights on batches of real text.

    Args:
        name: Name on the command line and of the result file.
        batch: Texts per batch.
        batches: Batches per call.
        layers: Encoder layers, or None for all.
        padding: The mask input that pitc is told about, or None.
        precision: What pitc is asked to compute products in; peers compute as they come then.
    """

    family: ClassVar[str] = "padding"

    name: str
    batch: int
    batches: int
    layers: int | None = None
    padding: str | None = None
    precision: str = "float32"


@dataclass(frozen=True, slots=True)
class CompileCase:
    """How long the compiler takes, start of the interpreter included.

    Args:
        name: Name on the command line and of the result file.
        config: The model to compile.
        padding: The mask input that pitc is told about, or None.
        seed: Of the weights.
    """

    family: ClassVar[str] = "cost"

    name: str
    config: ModelConfig
    padding: str | None = "attention_mask"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TallCase:
    """How time and memory of the compiler grow with the nodes of a graph.

    Args:
        kind: What the graph is made of, a key of `models.tall.TALL`.
        sizes: How many nodes it has.
        padding: The mask input that pitc is told about, or None.
    """

    family: ClassVar[str] = "compile-time"

    kind: str
    sizes: tuple[int, ...] = (1_000, 3_000, 10_000)
    padding: str | None = None

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        return f"tall-{self.kind}"

    @property
    def targets(self) -> dict[str, float]:
        """What the largest graph may take."""
        return {"cpu_s": 30.0, "peak_bytes": 2e9}


@dataclass(frozen=True, slots=True)
class FootprintCase:
    """What a compiled model costs besides its time: loading, memory, disk; two threads.

    Args:
        batch: One batch of this case is run.
    """

    family: ClassVar[str] = "cost"

    batch: EncoderCase

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        return f"footprint-{self.batch.name}"


PaddedCase = EncoderCase | CachedCase | TextCase
TimedExperts = ExpertsCase | MixtralCase
TimedCase = PaddedCase | TrainingCase | MlpStepCase | SparseCase | TimedAttention | TimedExperts


@dataclass(frozen=True, slots=True)
class ThreadsCase:
    """What a second thread gains.

    Args:
        batch: One batch of this case is run.
        target: Gain in wall time that is to be reached.
    """

    family: ClassVar[str] = "threads"

    batch: TimedCase
    target: float = 1.9

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        return f"threads-{self.batch.name}"


Case = (
    TimedCase
    | AttentionMemoryCase
    | CompileCase
    | TallCase
    | FootprintCase
    | ThreadsCase
    | WorstCase
)

SECOND_THREAD = frozenset(
    {
        *("bert-32x128-m40", "opt-8x128-m40", "opt-125m-ffn-512-95", "masked-mlp-512-1x1-95"),
        *("spmm-2048-1x1-95", "spmm-2048-32x32-95"),
    }
)
ATTENTION_THREADS = frozenset({"attention-4096-window-513-global-16", "attention-2048-causal"})
# Results of few bits move with the order of sums, and dynamic ones with what shares a scale: ONNX
# Runtime's own differ by some percent between a batch and its sequences one by one.
FEW_BITS_TOLERANCE = 0.1
BERT_3 = replace(BERT_BASE, layers=3)
FEW_BITS = tuple(
    EncoderCase(f"bert3-{bits}-16x128-{name}", BERT_3, 16, 128, mean, bits=bits)
    for bits in ("dynamic", "static", "int4")
    for name, mean in (("m40", 40), ("full", 128))
)
CACHED = tuple(
    CachedCase(f"opt-{name}", OPT_125M, 8, length, past, mean)
    for name, length, past, mean in (
        ("prompt-8x128-m40", 128, 0, 40),
        ("prompt-8x128-full", 128, 0, 128),
        ("step-8x128-m40", 1, 127, 40),
        ("step-8x128-full", 1, 127, 128),
        ("step-8x512-full", 1, 511, 512),
    )
)
MASKED_128 = MaskedCase(MlpConfig((768, 3072, 768), (1, 1), 0.95), 128)
BERT_32 = EncoderCase("bert-32x128-m40", BERT_BASE, batch=32, length=128, mean=40)

BERT_TOKENS = BertConfig(
    layers=2, hidden=512, heads=8, ffn=2048, vocab=30522, positions=512, head="tokens"
)
TRAINING = (
    TrainingCase("train-bert-8x128-m57", BERT_TOKENS, batch=8, length=128, mean=57),
    TrainingCase("train-bert-8x128-full", BERT_TOKENS, batch=8, length=128, mean=128),
    TrainingCase("train-opt-8x128-m40", OPT_125M, batch=8, length=128, mean=40, side="left"),
    TrainingCase(
        *("train-bert-8x128-full-32x64-90", BERT_TOKENS, 8, 128, 128), block=(32, 64), zeros=0.9
    ),
    TrainingCase(
        *("train-bert-8x128-m57-32x64-90", BERT_TOKENS, 8, 128, 57), block=(32, 64), zeros=0.9
    ),
    *(
        MlpStepCase(MlpConfig((768, 3072, 768), block, zeros))
        for block in ((32, 64), (32, 1), (1, 1))
        for zeros in (0.9, 0.0)
        if zeros or block == (1, 1)
    ),
)

EXPERTS_THREADS = (
    "experts-e8-512-1536-top2-256-looked-up",
    "experts-e64-512-1024-top1-512-looked-up",
    "experts-e64-512-1024-top1-8-looked-up",
)
TIMED_CASES: tuple[TimedCase, ...] = (
    TextCase("minilm-64", batch=64, batches=3),
    TextCase("minilm-64-bf16", batch=64, batches=3, precision="bf16"),
    BERT_32,
    EncoderCase("bert-16x256-m100", BERT_BASE, batch=16, length=256, mean=100),
    EncoderCase("bert-8x384-m150", BERT_BASE, batch=8, length=384, mean=150),
    EncoderCase("bert-8x384-m150-whole", BERT_BASE, batch=8, length=384, mean=150, padding=None),
    EncoderCase("bert-4x128-full", BERT_BASE, batch=4, length=128, mean=128),
    EncoderCase("bert-32x128-m40-bf16", BERT_BASE, 32, length=128, mean=40, precision="bf16"),
    EncoderCase("bert-8x384-m150-bf16", BERT_BASE, 8, length=384, mean=150, precision="bf16"),
    EncoderCase("bert-4x128-full-bf16", BERT_BASE, 4, length=128, mean=128, precision="bf16"),
    EncoderCase("bert-32x128-m40-half", BERT_BASE, 32, length=128, mean=40, dtype="float16"),
    EncoderCase("bert-4x128-full-half", BERT_BASE, 4, length=128, mean=128, dtype="float16"),
    EncoderCase("opt-8x128-m40", OPT_125M, batch=8, length=128, mean=40, side="left"),
    EncoderCase("t5-8x128-m40", T5_BASE, batch=8, length=128, mean=40),
    *CACHED,
    *TRAINING,
    *FEW_BITS,
    *PRODUCT_CASES,
    *GRADIENT_CASES,
    *BLOCK_CASES,
    *ATTENTION_CASES,
    *EXPERTS_CASES,
)
CASES: tuple[Case, ...] = (
    *TIMED_CASES,
    CompileCase("compile-bert", BERT_BASE),
    FootprintCase(BERT_32),
    *(ThreadsCase(case) for case in TIMED_CASES if case.name in SECOND_THREAD),
    ThreadsCase(MASKED_128),
    *(ThreadsCase(case, 1.85) for case in ATTENTION_CASES if case.name in ATTENTION_THREADS),
    *(ThreadsCase(case, 1.85) for case in EXPERTS_CASES if case.name in EXPERTS_THREADS),
    TallCase("transformer", padding="attention_mask"),
    *(TallCase(kind) for kind in TALL if kind != "transformer"),
    *MEMORY_CASES,
    *WORST_CASES,
)


def source(case: Case) -> object:
    """What its model is made from; neighbours of the same source are run on one model."""
    return case.source if isinstance(case, SparseCase) else case.name


def shortened(case: Case, layers: int) -> Case:
    """The case with fewer layers, or a short sequence of attention, for development."""
    if isinstance(case, TallCase):
        return replace(case, sizes=case.sizes[:1])
    if isinstance(case, TextCase):
        return replace(case, layers=layers)
    if isinstance(case, TimedAttention | AttentionMemoryCase):
        return shorter(case, layers)
    if isinstance(case, FootprintCase | ThreadsCase):
        return replace(case, batch=shortened(case.batch, layers))
    if isinstance(case, EncoderCase | TrainingCase | CompileCase | BlocksCase):
        return replace(case, config=replace(case.config, layers=layers))
    return case
