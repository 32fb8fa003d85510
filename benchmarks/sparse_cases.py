"""Cases whose zeros are known only at run time, as data: products, ReLU blocks, masked weights."""

from dataclasses import dataclass, replace
from typing import ClassVar

from models.cnn import CnnConfig
from models.masked import MlpConfig
from models.opt import OPT_1_3B, OPT_125M, OPT_350M, OptConfig
from models.sparsity import Sparsity
from models.t5 import T5_BASE, T5Config

Block = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Targets:
    """What a case is to reach.

    Args:
        base: Gain over the model in ONNX Runtime.
        peer: Gain over the best library, the model in ONNX Runtime among them.
        hand: Gain over the best that is written by hand for this one kind of case.
        limit: Most time over the limit of the core.
    """

    base: float | None = None
    peer: float | None = None
    hand: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class ProductCase:
    """A sparse square matrix, known at run time, times a constant one.

    Args:
        size: Rows and columns of both.
        block: Rows and columns of the blocks that are zero as a whole.
        zeros: Share of blocks that are zero.
        targets: What is to be reached.
        seed: Of the model and the pattern.
    """

    family: ClassVar[str] = "spmm"

    size: int
    block: Block
    zeros: float
    targets: Targets = Targets()
    seed: int = 0

    @property
    def series(self) -> str:
        """The name without the share of zeros."""
        return f"spmm-{self.size}-{self.block[0]}x{self.block[1]}"

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        return _named(self.series, self.zeros)

    @property
    def source(self) -> object:
        """What the model is made from; cases of the same source share one."""
        return "product", self.size, self.seed


@dataclass(frozen=True, slots=True)
class BlocksCase:
    """Feed-forward blocks with ReLU, one behind the other, on random tokens.

    Args:
        label: Begin of the name.
        config: The model; `layers` blocks with weights of their own.
        tokens: Tokens of the one sequence.
        zeros: Share of zeros behind ReLU.
        targets: What is to be reached.
        seed: Of weights and tokens.
        precision: As of `EncoderCase`.
    """

    family: ClassVar[str] = "ffn"

    label: str
    config: OptConfig | T5Config
    tokens: int
    zeros: float
    targets: Targets = Targets()
    seed: int = 0
    precision: str = "float32"

    @property
    def sparse_config(self) -> OptConfig | T5Config:
        """The model with these zeros."""
        return replace(self.config, sparsity=Sparsity(self.zeros))

    @property
    def series(self) -> str:
        """The name without the share of zeros."""
        suffix = "-bf16" if self.precision == "bf16" else ""
        return f"{self.label}-ffn-{self.tokens}{suffix}"

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        return _named(self.series, self.zeros)

    @property
    def source(self) -> object:
        """What the model is made from."""
        return self.sparse_config, self.seed, self.precision


@dataclass(frozen=True, slots=True)
class MaskedCase:
    """A multi-layer perceptron whose weights are masked by inputs, as in sparse training.

    Args:
        config: The model and its masks.
        rows: Rows of its input.
        targets: What is to be reached.
        seed: Of weights, masks and input.
    """

    family: ClassVar[str] = "ffn"

    config: MlpConfig
    rows: int
    targets: Targets = Targets()
    seed: int = 0

    @property
    def zeros(self) -> float:
        """Share of zeros in the masks."""
        return self.config.zeros

    @property
    def series(self) -> str:
        """The name without the share of zeros."""
        return f"masked-mlp-{self.rows}-{self.config.block[0]}x{self.config.block[1]}"

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        return _named(self.series, self.zeros)

    @property
    def source(self) -> object:
        """What the model is made from: not the masks."""
        return "masked", self.config.widths, self.seed


@dataclass(frozen=True, slots=True)
class GradientCase:
    """The gradient of a masked weight: a product of two matrices, wanted where a mask is not 0.

    Args:
        tokens: Extent that is summed over.
        shape: Rows and columns of the weight.
        block: Rows and columns of the blocks that the mask keeps or drops.
        zeros: Share of blocks that it drops.
        targets: What is to be reached.
        seed: Of operands and mask.
    """

    family: ClassVar[str] = "spmm"

    tokens: int
    shape: tuple[int, int]
    block: Block
    zeros: float
    targets: Targets = Targets()
    seed: int = 0

    @property
    def series(self) -> str:
        """The name without the share of zeros."""
        sizes = f"{self.tokens}-{self.shape[0]}x{self.shape[1]}"
        return f"gradient-{sizes}-{self.block[0]}x{self.block[1]}"

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        return _named(self.series, self.zeros)

    @property
    def source(self) -> object:
        """What the model is made from: not the mask."""
        return "gradient", self.shape


@dataclass(frozen=True, slots=True)
class ImageCase:
    """A ReLU CNN on random images: zeros between convolutions, where little can be skipped, or
    gates that close whole channels.

    Args:
        config: The model.
        batch: Images.
        targets: What is to be reached.
        seed: Of weights and images.
    """

    family: ClassVar[str] = "ffn"

    config: CnnConfig
    batch: int
    targets: Targets = Targets()
    seed: int = 0

    @property
    def zeros(self) -> float:
        """Share of closed gates, else of zeros behind ReLU."""
        closed = self.config.closed
        return self.config.sparsity.zeros if closed is None else closed

    @property
    def series(self) -> str:
        """The name without the share of zeros."""
        gated = "" if self.config.closed is None else "gated-"
        return f"{gated}cnn-{self.batch}x{self.config.size}"

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        return _named(self.series, self.zeros)

    @property
    def source(self) -> object:
        """What the model is made from: not the gates."""
        return replace(self.config, closed=self.config.closed and 0.0), self.seed


SparseCase = ProductCase | BlocksCase | MaskedCase | GradientCase | ImageCase


def _named(series: str, zeros: float) -> str:
    return f"{series}-{round(100 * zeros)}"


DENSE = Targets(base=0.98)  # little to skip: as fast as the ordinary model

#: Of the product of size 2048: blocks -> share of zeros -> targets.
PRODUCT_TARGETS: dict[Block, dict[float, Targets]] = {
    (1, 1): {
        0.8: Targets(1.8, 1.8),
        0.9: Targets(3.6, 1.8),
        0.95: Targets(6.0, 4.0),
        0.99: Targets(18.0, 4.0),
    },
    (1, 32): {0.9: Targets(4.0, 4.0), 0.95: Targets(7.0, 4.0), 0.99: Targets(25.0, 4.0)},
    (32, 1): {0.9: Targets(4.0, 4.0), 0.95: Targets(8.0, 4.0), 0.99: Targets(28.0, 4.0)},
    (1, 64): {0.9: Targets(4.0, 4.0), 0.95: Targets(7.0, 4.0), 0.99: Targets(25.0, 4.0)},
    (32, 32): {0.9: Targets(7.5, 2.0), 0.95: Targets(14.0, 2.0), 0.99: Targets(45.0, 2.0)},
}
#: Size of the product -> blocks and shares of zeros. Without zeros all blocks are alike.
PRODUCT_GRID: dict[int, tuple[tuple[Block, ...], tuple[float, ...]]] = {
    1024: (tuple(PRODUCT_TARGETS), (0.5, 0.6, 0.8, 0.9, 0.95, 0.99)),
    2048: (tuple(PRODUCT_TARGETS), (0.5, 0.6, 0.8, 0.9, 0.95, 0.99)),
    4096: (((1, 1), (32, 32)), (0.95, 0.99)),
}
#: Tokens of a ReLU block -> targets at 95 % zeros.
BLOCK_TARGETS = {512: Targets(1.7, 1.6), 8: Targets(1.6, 1.4), 1: Targets(1.9, 1.3)}
BLOCK_ZEROS = (0.0, 0.5, 0.6, 0.8, 0.9, 0.95)
MASKED_ZEROS = (0.0, 0.5, 0.8, 0.9, 0.95)
#: Label -> model and blocks of its stack for few tokens, whose weights must not stay in a cache.
STACKS = {"opt-125m": (OPT_125M, 6), "opt-350m": (OPT_350M, 6), "opt-1.3b": (OPT_1_3B, 2)}


def _product(size: int, block: Block, zeros: float) -> ProductCase:
    known = PRODUCT_TARGETS[block].get(zeros, Targets()) if size == 2048 else Targets()
    return ProductCase(size, block, zeros, DENSE if zeros <= 0.6 else known)


def _blocks(label: str, config: OptConfig, tokens: int, zeros: float) -> BlocksCase:
    known = BLOCK_TARGETS[tokens] if zeros == 0.95 else Targets()
    return BlocksCase(label, config, tokens, zeros, DENSE if zeros <= 0.6 else known)


def _masked(block: Block, zeros: float) -> MaskedCase:
    config = MlpConfig((768, 3072, 768), block, zeros)
    return MaskedCase(config, 512, DENSE if zeros <= 0.6 else Targets())


PRODUCT_CASES = tuple(
    _product(size, block, zeros)
    for size, (blocks, shares) in PRODUCT_GRID.items()
    for block, zeros in (((1, 1), 0.0), *((b, z) for b in blocks for z in shares))
)
#: Blocks of a masked weight -> share of zeros -> targets.
GRADIENT_TARGETS: dict[Block, dict[float, Targets]] = {
    (32, 64): {0.9: Targets(4.5, 1)},
    (32, 32): {0.9: Targets(4, 1)},
    (32, 1): {0.9: Targets(2.5, 1)},
    (1, 1): {0.9: Targets(1.5, 1)},
}
GRADIENT_CASES = tuple(
    GradientCase(
        *(512, (768, 3072), block, zeros),
        DENSE if zeros <= 0.6 else targets.get(zeros, Targets()),
    )
    for block, targets in GRADIENT_TARGETS.items()
    for zeros in (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
    if zeros or block == (1, 1)
)
#: Share of closed gates -> targets.
GATE_TARGETS = {0.0: DENSE, 0.25: DENSE, 0.5: Targets(), 0.75: Targets()}
BLOCK_CASES: tuple[SparseCase, ...] = (
    *(
        _blocks(label, replace(config, layers=layers), tokens, zeros)
        for label, (config, stack) in STACKS.items()
        for zeros in BLOCK_ZEROS
        for tokens, layers in ((512, 1), (8, stack), (1, stack))
    ),
    BlocksCase("t5-base", replace(T5_BASE, layers=1), 512, 0.95),
    *(
        replace(_blocks("opt-125m", replace(OPT_125M, layers=n), tokens, zeros), precision="bf16")
        for tokens, n in ((512, 1), (1, STACKS["opt-125m"][1]))
        for zeros in (0.0, 0.5, 0.9)
    ),
    *(_masked(block, zeros) for block in ((1, 1), (32, 32)) for zeros in MASKED_ZEROS),
    ImageCase(CnnConfig((64, 128, 256)), 16, DENSE),
    *(
        ImageCase(CnnConfig((64, 128, 256), size=56, closed=zeros), batch, targets)
        for batch in (1, 8)
        for zeros, targets in GATE_TARGETS.items()
    ),
)
