"""Prune a network while it is trained: blocks of the smallest weights go, step by step.

The masks are inputs, so their pattern changes without a new compilation.
"""

import argparse
from itertools import pairwise

import numpy as np
import numpy.typing as npt

import pitc
from models.graph import GraphBuilder

WIDTHS, ROWS, RATE = (64, 512, 512, 10), 64, 1e-3
Array = npt.NDArray[np.float32]


def network(rng: np.random.Generator) -> GraphBuilder:
    """Layers with a Relu between them."""
    g = GraphBuilder("network")
    x = g.input("x", np.float32, ("rows", WIDTHS[0]))
    for k, (size_in, size_out) in enumerate(pairwise(WIDTHS)):
        x = g.op("Relu", x) if k else x
        drawn = rng.normal(0, (2 / size_in) ** 0.5, (size_in, size_out)).astype(np.float32)
        x = g.op("MatMul", x, g.weight(f"w{k}", drawn))
        x = g.op("Add", x, g.weight(f"b{k}", np.zeros(size_out, np.float32)))
    g.output(g.op("Identity", x), "scores", np.float32, ("rows", WIDTHS[-1]))
    return g


def largest(weight: Array, block: tuple[int, int], kept: float) -> npt.NDArray[np.bool_]:
    """A mask that keeps this share of blocks: those of the largest sums of squares."""
    tiles = [-(-n // b) for n, b in zip(weight.shape, block, strict=True)]
    padded = np.zeros([t * b for t, b in zip(tiles, block, strict=True)], np.float32)
    padded[: weight.shape[0], : weight.shape[1]] = weight**2
    sums = padded.reshape(tiles[0], block[0], tiles[1], block[1]).sum((1, 3))
    least = np.sort(sums, axis=None)[::-1][max(1, round(kept * sums.size)) - 1]
    mask = np.repeat(np.repeat(sums >= least, block[0], 0), block[1], 1)
    return mask[: weight.shape[0], : weight.shape[1]]


def main() -> None:
    """Train and prune."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--block", default="32x64")
    options = parser.parse_args()
    rows, columns = map(int, options.block.split("x"))
    rng = np.random.default_rng(0)
    loss = pitc.Loss("cross_entropy", "scores", ignore_index=None)
    step = pitc.train_step(network(rng).model(), loss, learning_rate=RATE, masks=["w0", "w1"])
    trainer = pitc.Trainer(pitc.compile(step, suggest=False))
    teacher = rng.normal(size=(WIDTHS[0], WIDTHS[-1])).astype(np.float32)
    masks = {f"mask.w{k}": np.ones((WIDTHS[k], WIDTHS[k + 1]), bool) for k in range(2)}
    for k in range(options.steps):
        x = rng.standard_normal((ROWS, WIDTHS[0]), np.float32)
        feeds = {"x": x, "labels": np.argmax(x @ teacher, axis=1), **masks}
        found = trainer.step(feeds)
        if (k + 1) % 20 == 0:
            kept = max(0.1, 1 - (k + 1) / 160)  # down to a tenth
            weights = trainer.get()
            masks = {
                name: largest(weights[name.removeprefix("mask.")], (rows, columns), kept)
                for name in masks
            }
            live = np.mean(np.concatenate([m.ravel() for m in masks.values()]))
            print(f"step {k + 1:4d}  loss {float(found['loss']):.4f}  kept next {live:.0%}")


main()
