"""Products with zeros that come as inputs: masked weights, and a sparse left-hand side."""

from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import Array, GraphBuilder
from models.sparsity import block_mask


@dataclass(frozen=True, slots=True)
class MlpConfig:
    """Sizes of a multi-layer perceptron whose weights are masked, as in sparse training.

    Args:
        widths: Width of the input and of each layer's output.
        block: Rows (inputs) and columns (outputs) of the blocks that a mask keeps or drops.
        zeros: Share of blocks that a mask drops.
    """

    widths: tuple[int, ...] = (64, 128, 32)
    block: tuple[int, int] = (1, 1)
    zeros: float = 0.9

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Name and shape [in, out] of each layer's mask."""
        pairs = zip(self.widths, self.widths[1:], strict=False)
        return {f"mask{i}": pair for i, pair in enumerate(pairs)}


def masked_mlp(config: MlpConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the forward pass with random weights; the masks are inputs.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `x` f32 [batch, in] and `mask0`, `mask1`, .. bool [in, out] -> `y` f32
        [batch, out], with ReLU between the layers.
    """
    g = GraphBuilder("masked_mlp")
    x = g.input("x", np.float32, ("batch", config.widths[0]))
    for i, (name, shape) in enumerate(config.shapes.items()):
        x = g.op("Relu", x) if i else x
        drawn = rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        keep = g.op("Cast", g.input(name, np.bool_, shape), to=onnx.TensorProto.FLOAT)
        x = g.op("MatMul", x, g.op("Mul", g.weight(f"weight{i}", drawn), keep))
    g.output(x, "y", np.float32, ("batch", config.widths[-1]))
    return g.model()


def masks(config: MlpConfig, rng: np.random.Generator) -> dict[str, Array]:
    """One set of masks, by input name."""
    return {
        name: block_mask(rng, shape, config.block, config.zeros)
        for name, shape in config.shapes.items()
    }


def product(k: int, n: int, rng: np.random.Generator) -> onnx.ModelProto:
    """Build one product by a random weight; Relu in front of it is what makes zeros provable.

    Args:
        k: Extent that is summed over.
        n: Columns.
        rng: Source of the weight.

    Returns:
        A checked model: `x` f32 [rows, k] -> `y` f32 [rows, n], the positive part of `x` times
        `weight`.
    """
    g = GraphBuilder("product")
    weight = rng.normal(0, k**-0.5, (k, n)).astype(np.float32)
    x = g.op("Relu", g.input("x", np.float32, ("rows", k)))
    y = g.op("MatMul", x, g.weight("weight", weight))
    g.output(y, "y", np.float32, ("rows", n))
    return g.model()


def weight_gradient(k: int, n: int) -> onnx.ModelProto:
    """Build the gradient of a weight that a mask keeps or drops, as in sparse training.

    Args:
        k: Rows of the weight.
        n: Its columns.

    Returns:
        A checked model: `x` f32 [tokens, k], `dy` f32 [tokens, n] and `mask` bool [k, n] -> `dw`
        f32 [k, n], the product of `x` transposed by `dy`, 0 where the mask is.
    """
    g = GraphBuilder("weight_gradient")
    x, dy = g.input("x", np.float32, ("tokens", k)), g.input("dy", np.float32, ("tokens", n))
    keep = g.op("Cast", g.input("mask", np.bool_, (k, n)), to=onnx.TensorProto.FLOAT)
    dw = g.op("Mul", g.op("Gemm", x, dy, transA=1), keep)
    g.output(dw, "dw", np.float32, (k, n))
    return g.model()


def block_sparse(
    rng: np.random.Generator, shape: tuple[int, int], block: tuple[int, int], zeros: float
) -> Array:
    """A normal f32 matrix in which a share of the blocks is 0."""
    values = rng.standard_normal(shape, dtype=np.float32)
    return values * block_mask(rng, shape, block, zeros)
