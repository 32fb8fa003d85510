"""From a case to files and arrays: the model on disk, the batches, and what they cost at least."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.cases import EncoderCase, ModelConfig, TextCase
from benchmarks.cost import flops
from models import minilm, text
from models.bert import BertConfig, bert
from models.opt import OptConfig, opt
from models.t5 import T5Config, t5_encoder
from pitc.feeds import draw_lengths

Feeds = dict[str, npt.NDArray[Any]]

MASK = "attention_mask"


@dataclass(frozen=True, slots=True)
class Workload:
    """One model and the batches of one call.

    Args:
        model: The ONNX file.
        config: The encoder in it.
        batches: Inputs by name; the mask is 1 at tokens, padding is on one side.
        padding: The mask input that pitc is told about, or None.
    """

    model: Path
    config: ModelConfig
    batches: tuple[Feeds, ...]
    padding: str | None

    @property
    def lengths(self) -> list[int]:
        """Tokens of every sequence of every batch."""
        return [int(n) for feeds in self.batches for n in feeds[MASK].sum(1)]

    @property
    def padded_lengths(self) -> list[int]:
        """Places, tokens and padding, of every sequence of every batch."""
        return [size for f in self.batches for size in [f[MASK].shape[1]] * f[MASK].shape[0]]

    def facts(self) -> dict[str, Any]:
        """The sparsity that is really there, and the work with and without it."""
        useful, padded = flops(self.config, self.lengths), flops(self.config, self.padded_lengths)
        return {
            "batches": [list(feeds[MASK].shape) for feeds in self.batches],
            "tokens": sum(self.lengths),
            "places": sum(self.padded_lengths),
            "live_share": sum(self.lengths) / max(sum(self.padded_lengths), 1),
            "useful_gflop": useful / 1e9,
            "padded_gflop": padded / 1e9,
            "useful_share": useful / max(padded, 1),
        }


def bert_batch(case: EncoderCase, rng: np.random.Generator) -> Feeds:
    """One batch of random ids; padding holds id 0."""
    lengths = draw_lengths(rng, case.batch, case.length, case.mean)
    mask = np.arange(case.length)[None] < np.array(lengths)[:, None]
    if case.side == "left":
        mask = mask[:, ::-1]
    ids = rng.integers(1, case.config.vocab, mask.shape) * mask
    feeds = {"input_ids": ids, MASK: mask.astype(np.int64)}
    if isinstance(case.config, BertConfig):
        feeds["token_type_ids"] = np.zeros_like(ids)
    return feeds


def build(config: ModelConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """The model of a case, with random weights."""
    if isinstance(config, OptConfig):
        return opt(config, rng)
    if isinstance(config, T5Config):
        return t5_encoder(config, rng)
    return bert(config, rng)


def make_workload(case: EncoderCase | TextCase, folder: Path) -> Workload:
    """Build the case's model into a folder and draw its batches."""
    path = folder / "model.onnx"
    if isinstance(case, EncoderCase):
        rng = np.random.default_rng(case.seed)
        onnx.save(build(case.config, rng), path)
        return Workload(path, case.config, (bert_batch(case, rng),), case.padding)
    model = minilm.load(case.layers)
    onnx.save(model.graph(), path)
    drawn = text.batches(model.tokenizer, case.batches, case.batch, model.max_tokens)
    return Workload(path, model.config, tuple(batch.feeds() for batch in drawn), case.padding)
