"""Prune a network while it is trained: blocks of the smallest weights go, step by step.

The masks are inputs, so their pattern changes without a new compilation.
"""

import argparse
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import pitc
from models.graph import GraphBuilder

WIDTHS, ROWS, RATE, EVERY = (64, 512, 512, 10), 64, 1e-3, 20
PRUNED = ("w0", "w1")
Feeds = dict[str, npt.NDArray[Any]]


def network() -> onnx.ModelProto:
    """Layers with a Relu between them."""
    g, rng = GraphBuilder("network"), np.random.default_rng(0)
    x = g.input("x", np.float32, ("rows", WIDTHS[0]))
    for k, (size_in, size_out) in enumerate(pairwise(WIDTHS)):
        x = g.op("Relu", x) if k else x
        drawn = rng.normal(0, (2 / size_in) ** 0.5, (size_in, size_out)).astype(np.float32)
        x = g.op("MatMul", x, g.weight(f"w{k}", drawn))
        x = g.op("Add", x, g.weight(f"b{k}", np.zeros(size_out, np.float32)))
    g.output(g.op("Identity", x), "scores", np.float32, ("rows", WIDTHS[-1]))
    return g.model()


def largest(weight: npt.NDArray[Any], block: tuple[int, int], kept: float) -> npt.NDArray[np.bool_]:
    """A mask that keeps this share of blocks: those of the largest sums of squares."""
    tiles = [-(-n // b) for n, b in zip(weight.shape, block, strict=True)]
    padded = np.zeros([t * b for t, b in zip(tiles, block, strict=True)], np.float32)
    padded[: weight.shape[0], : weight.shape[1]] = weight**2
    sums = padded.reshape(tiles[0], block[0], tiles[1], block[1]).sum((1, 3))
    least = np.sort(sums, axis=None)[::-1][max(1, round(kept * sums.size)) - 1]
    mask = np.repeat(np.repeat(sums >= least, block[0], 0), block[1], 1)
    return mask[: weight.shape[0], : weight.shape[1]]


def train(steps: int, block: tuple[int, int]) -> Iterator[tuple[Feeds, float]]:
    """What each step was fed with, and its loss."""
    loss = pitc.Loss("cross_entropy", "scores", ignore_index=None)
    step = pitc.train_step(network(), loss, learning_rate=RATE, masks=PRUNED)
    trainer, rng = pitc.Trainer(pitc.compile(step, suggest=False)), np.random.default_rng(1)
    teacher = rng.normal(size=(WIDTHS[0], WIDTHS[-1])).astype(np.float32)
    masks = {f"mask.w{k}": np.ones(WIDTHS[k : k + 2], bool) for k in range(len(PRUNED))}
    for k in range(steps):
        x = rng.standard_normal((ROWS, WIDTHS[0]), np.float32)
        feeds = {"x": x, "labels": np.argmax(x @ teacher, axis=1), **masks}
        yield feeds, float(trainer.step(feeds)["loss"])
        if (k + 1) % EVERY == 0:
            kept, weights = max(0.1, 1 - (k + 1) / 160), trainer.get()  # down to a tenth
            masks = {f"mask.{name}": largest(weights[name], block, kept) for name in PRUNED}


def main() -> None:
    """Train and prune."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--block", default="32x64")
    options = parser.parse_args()
    rows, columns = map(int, options.block.split("x"))
    for k, (feeds, loss) in enumerate(train(options.steps, (rows, columns))):
        if (k + 1) % EVERY == 0:
            live = np.mean(np.concatenate([feeds[f"mask.{name}"].ravel() for name in PRUNED]))
            print(f"step {k + 1:4d}  loss {loss:.4f}  kept {live:.0%}")


if __name__ == "__main__":
    main()
