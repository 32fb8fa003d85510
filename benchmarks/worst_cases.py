"""Models of which none may cost more than ONNX Runtime, at any size: all exports and the zoo."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx

from models import masked, minilm, per_head, quantised
from models.bert import BERT_BASE, BertConfig, bert
from models.cnn import CnnConfig, cnn
from models.half import half
from models.masked import MlpConfig, masked_mlp
from models.opt import OPT_125M, opt, opt_ffn
from models.per_head import PerHeadConfig
from models.routed import RoutedConfig, routed
from models.t5 import T5_BASE, t5_encoder
from models.tall import TALL
from pitc.errors import UsageError

EXPORTS = Path(__file__).parents[1] / "models" / "export"
EXPORTED = [*EXPORTS.glob("fixtures/*.onnx"), *EXPORTS.glob("fused/*.onnx")]
#: Size of the first named dimension of a model, which is the batch, and of all others.
SIZES: Mapping[str, tuple[int, int]] = {"small": (1, 8), "middle": (4, 64), "large": (16, 256)}
MOST_TIME, MOST_MEMORY = 1.02, 1.25
LAYERS = 3
RNG = np.random.default_rng


def _bert(layers: int = LAYERS) -> onnx.ModelProto:
    return bert(_bert_config(layers), RNG(0))


def _bert_config(layers: int) -> BertConfig:
    return replace(BERT_BASE, layers=layers)


def _static() -> onnx.ModelProto:
    ids = RNG(1).integers(1, BERT_BASE.vocab, (2, 32))
    tokens = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return quantised.static(_bert(), [{**tokens, "token_type_ids": np.zeros_like(ids)}])


ZOO: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "bert": _bert,
    "bert-half": lambda: half(_bert()),
    "bert-dynamic": lambda: quantised.dynamic(_bert()),
    "bert-static": _static,
    "bert-int4": lambda: quantised.int4(_bert()),
    "opt": lambda: opt(replace(OPT_125M, layers=LAYERS), RNG(0)),
    "opt-cached": lambda: opt(replace(OPT_125M, layers=LAYERS), RNG(0), cached=True),
    "opt-ffn": lambda: opt_ffn(replace(OPT_125M, layers=1), RNG(0)),
    "t5": lambda: t5_encoder(replace(T5_BASE, layers=LAYERS), RNG(0)),
    "minilm": lambda: minilm.load(LAYERS).graph(),
    "product": lambda: masked.product(1024, 1024, RNG(0)),
    "masked-mlp": lambda: masked_mlp(MlpConfig((768, 3072, 768)), RNG(0)),
    "cnn": lambda: cnn(CnnConfig(), RNG(0)),
    "cnn-gated": lambda: cnn(CnnConfig(closed=0.5), RNG(0)),
    "routed": lambda: routed(RoutedConfig(hidden=256, ffn=1024), RNG(0)),
    "mask-per-head": lambda: per_head.mask_per_head(PerHeadConfig(), RNG(0)),
    "mask-per-head-deep": lambda: per_head.mask_per_head(PerHeadConfig(6), RNG(0)),
    "pair-bias": lambda: per_head.pair_bias(PerHeadConfig(), RNG(0)),
    "pair-bias-deep": lambda: per_head.pair_bias(PerHeadConfig(6), RNG(0)),
    **{f"tall-{kind}": lambda make=make: make(300) for kind, make in TALL.items()},
}


@dataclass(frozen=True, slots=True)
class WorstCase:
    """A model at all sizes, with all places live and with padding, with and without `--padding`.

    Args:
        model: A key of `ZOO`, or the name of an export without its ending.
        most_time: Of ONNX Runtime's time.
        most_memory: Of its peak memory, both in processes of their own.
        file: Its file; empty for an export or a model of the zoo.
    """

    family: ClassVar[str] = "worst-case"

    model: str
    most_time: float = MOST_TIME
    most_memory: float = MOST_MEMORY
    file: str = ""

    @property
    def name(self) -> str:
        """Name on the command line and of the result file."""
        return f"worst-{self.model}"

    def write(self, folder: Path) -> Path:
        """The model as a file: as it is, or built into a folder."""
        if self.file:
            return Path(self.file)
        if self.model not in ZOO:
            return next(f for f in EXPORTED if f.stem == self.model)
        path = folder / f"{self.model}.onnx"
        onnx.save(ZOO[self.model](), path)
        return path


WORST_CASES = tuple(WorstCase(name) for name in (*ZOO, *sorted(p.stem for p in EXPORTED)))


def cases_of(folder: Path) -> list[WorstCase]:
    """A case for each ONNX file of a folder and its folders, by name.

    Raises:
        UsageError: There is none.
    """
    files = sorted(folder.rglob("*.onnx"))
    if not files:
        raise UsageError(f"there is no ONNX file in {str(folder)!r}")
    return [
        WorstCase("-".join(f.relative_to(folder).with_suffix("").parts), file=str(f)) for f in files
    ]
