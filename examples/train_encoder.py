"""Train a small encoder to guess hidden words of real text; a killed run goes on where it was."""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

import pitc
from models.bert import BertConfig, bert
from models.text import docstrings

WORDS, BATCH, LONGEST, UNKNOWN, HIDDEN, FIRST = 1000, 16, 32, 1, 2, 3
Ids = npt.NDArray[np.int64]


def read_texts(count: int) -> list[list[int]]:
    """Texts as numbers of their words: 0 is padding, 1 any rare word, 2 stands for a hidden one."""
    texts = [text.lower().split()[:LONGEST] for text in islice(docstrings(), count)]
    words, counts = np.unique([word for text in texts for word in text], return_counts=True)
    common = words[np.argsort(-counts, kind="stable")[: WORDS - FIRST]]
    number = {str(word): FIRST + k for k, word in enumerate(common)}
    return [[number.get(word, UNKNOWN) for word in text] for text in texts]


def draw(texts: list[list[int]], rng: np.random.Generator) -> dict[str, Ids]:
    """One padded batch; every seventh word or so is hidden, and only hidden ones are labels."""
    ids = np.zeros((BATCH, LONGEST), np.int64)
    for row, k in enumerate(rng.integers(0, len(texts), BATCH)):
        ids[row, : len(texts[k])] = texts[k]
    hidden = (rng.random(ids.shape) < 0.15) & (ids >= FIRST)
    feeds = {"input_ids": np.where(hidden, HIDDEN, ids), "attention_mask": (ids > 0).astype(int)}
    feeds["labels"] = np.where(hidden, ids, -100)
    return feeds | {"token_type_ids": np.zeros_like(ids)}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, default=Path("encoder.npz"))
    options = parser.parse_args()
    config = BertConfig(hidden=64, heads=4, ffn=128, vocab=WORDS, head="tokens", labels=WORDS)
    loss = pitc.Loss("cross_entropy", "logits")
    step = pitc.train_step(
        bert(config, np.random.default_rng(0)), loss, learning_rate=3e-3, decay=0.01, clip=1.0
    )
    trainer = pitc.Trainer(pitc.compile(step, padding="attention_mask", suggest=False))
    if options.checkpoint.exists():
        trainer.load(options.checkpoint)
    texts = read_texts(2000)
    done = int(trainer.get().get("step", 0))
    print(f"{len(texts)} texts; {done} steps are done")
    losses = []
    for k in range(done, options.steps):
        found = trainer.step(draw(texts, np.random.default_rng(k)))  # the same after a restart
        losses.append(float(found["loss"]))
        if (k + 1) % 20 == 0:
            print(f"step {k + 1:4d}  loss {np.mean(losses[-20:]):.4f}")
            trainer.save(options.checkpoint)


main()
