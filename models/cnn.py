"""A ReLU CNN: stages of Conv, BatchNormalization, Relu, then pooling and a classifier.

The statistics of the batch norms are those of random images, as training would leave them, and
their shifts make each channel zero in the share of places that is asked for. With gates, inputs
say which channels of each layer a batch uses, as a slimmable or a routed network does.
"""

from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import Array, GraphBuilder
from models.sparsity import NORMAL, Sparsity

KERNEL = 3
EPSILON = 1e-5
SAMPLES = 8  # images that the statistics are taken from
TAIL = 4.0  # deviations beyond which a sample has no quantiles
HALF = Sparsity(0.5)


@dataclass(frozen=True, slots=True)
class CnnConfig:
    """Sizes of the network.

    Args:
        channels: Channels of each stage; all stages but the first halve height and width.
        depth: Convolutions per stage.
        size: Height and width of an image with 3 channels.
        classes: Outputs.
        sparsity: Zeros behind each ReLU.
        closed: Share of channels whose gates are 0; None: there are no gates.
    """

    channels: tuple[int, ...] = (16, 32, 64)
    depth: int = 2
    size: int = 32
    classes: int = 10
    sparsity: Sparsity = HALF
    closed: float | None = None

    @property
    def gates(self) -> dict[str, int]:
        """Names of the inputs that are gates, and how many channels they have."""
        if self.closed is None:
            return {}
        layers = [(s, i) for s in range(len(self.channels)) for i in range(self.depth)]
        return {f"gates.{s}.{i}": self.channels[s] for s, i in layers}


def cnn(config: CnnConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the network with random weights.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `image` f32 [batch, 3, size, size], normally distributed, and what
        `draw_gates` gives -> `logits` f32 [batch, classes].
    """
    g = GraphBuilder("cnn")
    x = g.input("image", np.float32, ("batch", 3, config.size, config.size))
    sample = rng.normal(0, 1, (SAMPLES, 3, config.size, config.size)).astype(np.float32)
    for stage, width in enumerate(config.channels):
        for i in range(config.depth):
            stride = 2 if stage and not i else 1
            x, sample = _layer(g, config, rng, x, sample, (f"stages.{stage}.{i}", width, stride))
    y = g.op("Flatten", g.op("GlobalAveragePool", x))
    weight = rng.normal(0, 1, (config.classes, config.channels[-1])).astype(np.float32)
    bias = np.zeros(config.classes, np.float32)
    y = g.op("Gemm", y, g.weight("head.weight", weight), g.weight("head.bias", bias), transB=1)
    g.output(y, "logits", np.float32, ("batch", config.classes))
    return g.model()


def draw_gates(config: CnnConfig, rng: np.random.Generator, batch: int) -> dict[str, Array]:
    """Random gates, f32 [batch, channels] each; the same are closed for all images."""
    drawn = {}
    for name, width in config.gates.items():
        is_open = rng.permutation(width) >= round((config.closed or 0.0) * width)
        values = rng.uniform(0.5, 1.5, (batch, width)) * is_open
        drawn[name] = values.astype(np.float32)
    return drawn


def _layer(
    g: GraphBuilder,
    config: CnnConfig,
    rng: np.random.Generator,
    x: str,
    sample: Array,
    form: tuple[str, int, int],
) -> tuple[str, Array]:
    """Conv, BatchNormalization, (gates,) Relu (name, channels, stride), and what they make of the
    sample when all gates are 1.
    """
    name, width, stride = form
    fan_in = sample.shape[1] * KERNEL**2
    shape = (width, sample.shape[1], KERNEL, KERNEL)
    weight = rng.normal(0, fan_in**-0.5, shape).astype(np.float32)
    y = _convolve(sample, weight, stride)
    statistics = {"mean": y.mean((0, 2, 3)), "variance": y.var((0, 2, 3))}
    y -= statistics["mean"][:, None, None]
    y /= np.sqrt(statistics["variance"] + EPSILON)[:, None, None]
    thresholds = config.sparsity.thresholds(width, rng)
    shift = -np.array([_level(*pair) for pair in zip(y.swapaxes(0, 1), thresholds, strict=True)])
    norm = {"scale": np.ones(width, np.float32), "shift": shift, **statistics}
    pads = [KERNEL // 2] * 4
    x = g.op("Conv", x, g.weight(f"{name}.weight", weight), pads=pads, strides=[stride, stride])
    parts = [g.weight(f"{name}.norm.{part}", array) for part, array in norm.items()]
    x = g.op("BatchNormalization", x, *parts, epsilon=EPSILON)
    gates = name.replace("stages", "gates")
    if gates in config.gates:
        gate = g.input(gates, np.float32, ("batch", width))
        x = g.op("Mul", x, g.op("Reshape", gate, g.ints(0, width, 1, 1)))
    return g.op("Relu", x), np.maximum(y + shift[:, None, None], 0)


def _level(channel: Array, threshold: np.float32) -> np.float32:
    """What a channel is above as often as a normal variable is above the threshold."""
    if abs(threshold) > TAIL:
        return threshold
    return np.float32(np.quantile(channel, NORMAL.cdf(float(threshold))))


def _convolve(x: Array, weight: Array, stride: int) -> Array:
    """A convolution [n, c, h, w] by [f, c, 3, 3], padded by zeros on all sides."""
    edge = KERNEL // 2
    padded = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), axis=(2, 3))
    y = np.tensordot(windows[:, :, ::stride, ::stride], weight, ((1, 4, 5), (1, 2, 3)))
    return np.ascontiguousarray(y.transpose(0, 3, 1, 2))
