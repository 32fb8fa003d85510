"""Train a small encoder to guess hidden words of real texts; a killed run goes on where it was."""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

import pitc
from models.bert import BertConfig, bert
from models.text import docstrings

WORDS, BATCH, LONGEST, EVERY = 200, 64, 24, 50
UNKNOWN, HIDDEN, FIRST = 1, 2, 3  # numbers of words; 0 is padding
RATE, WARM_UP, DECAY, CLIP = 3e-3, 50, 0.01, 1.0
NO_DECAY = ("*bias", "*LayerNorm*")
CONFIG = BertConfig(layers=1, hidden=64, heads=4, ffn=128, vocab=WORDS, head="tokens", labels=WORDS)
Feeds = dict[str, np.ndarray[Any, Any]]


def read_texts(count: int) -> list[list[int]]:
    """The beginnings of texts, as numbers of their words."""
    texts = [re.findall(r"\w+|[^\w\s]", t.lower())[:LONGEST] for t in islice(docstrings(), count)]
    common = Counter(chain.from_iterable(texts)).most_common(WORDS - FIRST)
    number = {word: FIRST + k for k, (word, _) in enumerate(common)}
    return [[number.get(word, UNKNOWN) for word in text] for text in texts]


def draw(texts: list[list[int]], k: int) -> Feeds:
    """The padded batch of step k; only hidden words, about one of seven, have a label."""
    rng = np.random.default_rng(k)  # so that a run that is started again draws the same
    ids = np.zeros((BATCH, LONGEST), np.int64)
    for row, text in enumerate(rng.integers(0, len(texts), BATCH)):
        ids[row, : len(texts[text])] = texts[text]
    hidden = (rng.random(ids.shape) < 0.15) & (ids >= FIRST)
    feeds = {"input_ids": np.where(hidden, HIDDEN, ids), "attention_mask": (ids > 0).astype(int)}
    feeds |= {"token_type_ids": np.zeros_like(ids), "labels": np.where(hidden, ids, -100)}
    return feeds | {"learning_rate": np.float32(RATE * min(1, (k + 1) / WARM_UP))}


def make_trainer() -> pitc.Trainer:
    """The encoder with random weights, and its training step."""
    model, loss = bert(CONFIG, np.random.default_rng(0)), pitc.Loss("cross_entropy", "logits")
    step = pitc.train_step(model, loss, decay=DECAY, no_decay=NO_DECAY, clip=CLIP)
    return pitc.Trainer(pitc.compile(step, padding="attention_mask", suggest=False))


def train(trainer: pitc.Trainer, texts: list[list[int]], steps: int) -> Iterator[tuple[int, float]]:
    """Each step and its loss, from where the trainer is."""
    for k in range(int(trainer.get().get("step", 0)), steps):
        yield k, float(trainer.step(draw(texts, k))["loss"])


def main() -> None:
    """Train, and save a checkpoint now and then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--checkpoint", type=Path, default=Path("encoder.npz"))
    options = parser.parse_args()
    texts, trainer = read_texts(options.texts), make_trainer()
    if options.checkpoint.exists():
        trainer.load(options.checkpoint)
        print(f"{options.checkpoint}: {trainer.get()['step']} steps are done")
    counts = np.bincount(list(chain.from_iterable(texts)), minlength=WORDS)[FIRST:]
    share = counts[counts > 0] / counts.sum()
    print(f"loss of a guess by frequency alone: {-(share * np.log(share)).sum():.4f}")
    losses = []
    for k, loss in train(trainer, texts, options.steps):
        losses.append(loss)
        if (k + 1) % EVERY == 0:
            trainer.save(options.checkpoint)
            print(f"step {k + 1:4d}  loss {np.mean(losses[-EVERY:]):.4f}", flush=True)


if __name__ == "__main__":
    main()
