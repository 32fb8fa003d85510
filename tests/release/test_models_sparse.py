"""Builders with a knob for zeros: what is asked for is what ONNX Runtime measures."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from models.cnn import CnnConfig, cnn, draw_gates
from models.masked import MlpConfig, block_sparse, masked_mlp, masks, product
from models.opt import OptConfig, opt, opt_ffn
from models.sparsity import Sparsity, block_mask
from models.t5 import T5Config, hidden_states, t5_decoder, t5_encoder, t5_ffn

Feeds = dict[str, npt.NDArray[Any]]
TOLERANCE = 0.02
SHAPE = (2, 48)
SIZES = {"layers": 3, "hidden": 96, "heads": 3, "ffn": 1024}


def run(model: onnx.ModelProto, feeds: Feeds) -> list[npt.NDArray[Any]]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(None, feeds)]


def behind_relu(model: onnx.ModelProto, feeds: Feeds) -> list[npt.NDArray[Any]]:
    """The result of every ReLU, in the order of the graph."""
    del model.graph.output[:]
    for node in model.graph.node:
        if node.op_type == "Relu":
            model.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.output[0]))
    return run(model, feeds)


def tokens(rng: np.random.Generator) -> Feeds:
    mask = np.arange(SHAPE[1]) < np.array([[SHAPE[1]], [SHAPE[1] // 2]])
    return {"input_ids": rng.integers(1, 97, SHAPE), "attention_mask": mask.astype(np.int64)}


def opt_model(sparsity: Sparsity, rng: np.random.Generator) -> tuple[onnx.ModelProto, Feeds]:
    return opt(OptConfig(**SIZES, sparsity=sparsity), rng), tokens(rng)


def opt_blocks(
    sparsity: Sparsity, rng: np.random.Generator, shape: tuple[int, int] = SHAPE
) -> tuple[onnx.ModelProto, Feeds]:
    config = OptConfig(**SIZES, sparsity=sparsity)
    x = rng.normal(3, 5, (*shape, config.hidden)).astype(np.float32)  # the norm takes both away
    return opt_ffn(config, rng), {"hidden_state": x}


def t5_model(sparsity: Sparsity, rng: np.random.Generator) -> tuple[onnx.ModelProto, Feeds]:
    return t5_encoder(T5Config(**SIZES, head_size=32, sparsity=sparsity), rng), tokens(rng)


def t5_decoder_model(sparsity: Sparsity, rng: np.random.Generator) -> tuple[onnx.ModelProto, Feeds]:
    config, encoded = T5Config(**SIZES, head_size=32, sparsity=sparsity), tokens(rng)
    feeds = {
        "encoder_hidden_states": hidden_states(config, rng, SHAPE),
        "encoder_attention_mask": encoded["attention_mask"],
    }
    return t5_decoder(config, rng), feeds | tokens(rng)


def t5_blocks(
    sparsity: Sparsity, rng: np.random.Generator, shape: tuple[int, int] = SHAPE
) -> tuple[onnx.ModelProto, Feeds]:
    config = T5Config(**SIZES, sparsity=sparsity)
    return t5_ffn(config, rng), {"hidden_state": hidden_states(config, rng, shape)}


def cnn_model(sparsity: Sparsity, rng: np.random.Generator) -> tuple[onnx.ModelProto, Feeds]:
    config = CnnConfig((16, 32), size=24, sparsity=sparsity)
    return cnn(config, rng), {"image": rng.standard_normal((8, 3, 24, 24), dtype=np.float32)}


@pytest.mark.parametrize(
    ("zeros", "spread"), [(0.0, 0.85), (0.5, 0.0), (0.9, 0.85), (0.95, 0.0), (1.0, 0.85)]
)
@pytest.mark.parametrize(
    "build", [opt_model, opt_blocks, t5_model, t5_decoder_model, t5_blocks, cnn_model]
)
def test_every_relu_makes_the_zeros_that_were_asked_for(
    build: Callable[..., tuple[onnx.ModelProto, Feeds]], zeros: float, spread: float
) -> None:
    found = behind_relu(*build(Sparsity(zeros, spread), np.random.default_rng(0)))
    assert len(found) >= 3
    for x in found:
        assert abs(float((x == 0).mean()) - zeros) <= TOLERANCE


@pytest.mark.parametrize("closed", [0.0, 0.25, 1.0])
def test_gates_close_whole_channels_for_all_images(closed: float) -> None:
    rng, config = np.random.default_rng(4), CnnConfig((16, 32), depth=1, size=12, closed=closed)
    model, gates = cnn(config, rng), draw_gates(config, rng, 3)
    image = rng.standard_normal((3, 3, 12, 12), dtype=np.float32)
    for x, gate in zip(behind_relu(model, {"image": image, **gates}), gates.values(), strict=True):
        assert (gate == 0).mean() == closed
        assert np.array_equal((gate == 0).all(0), (gate == 0).any(0))
        assert not x[gate == 0].any() and x.any() == (closed < 1)


@pytest.mark.parametrize(("spread", "share"), [(0.0, 0.3), (0.85, 0.8)])
@pytest.mark.parametrize("build", [opt_blocks, t5_blocks])
def test_hot_neurons_are_most_of_the_live_ones(
    build: Callable[..., tuple[onnx.ModelProto, Feeds]], spread: float, share: float
) -> None:
    """Those that are live most often in one half of the tokens are so in the other half, too.

    Without a spread the different lengths of the weights make a little of it.
    """
    model, feeds = build(Sparsity(0.95, spread), np.random.default_rng(1), (2, 1500))
    often, live = (behind_relu(model, feeds)[0] != 0).sum(1)
    hottest = np.argsort(-often)[: round(0.26 * often.size)]
    assert live[hottest].sum() / live.sum() == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("block", [(1, 1), (1, 32), (32, 1), (1, 64), (32, 32), (7, 5)])
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.99, 1.0])
def test_patterns_are_made_of_blocks(block: tuple[int, int], zeros: float) -> None:
    mask = block_mask(np.random.default_rng(2), (192, 256), block, zeros)
    corners = mask[:: block[0], :: block[1]]
    assert mask.shape == (192, 256)
    assert np.array_equal(mask, np.kron(corners, np.ones(block, bool))[:192, :256])
    assert (~corners).sum() == round(zeros * corners.size)


def test_masked_layers_and_products_are_what_they_say() -> None:
    rng, config = np.random.default_rng(3), MlpConfig((33, 64, 20), (1, 16), 0.8)
    model, drawn = masked_mlp(config, rng), masks(config, rng)
    x = block_sparse(rng, (9, 33), (1, 3), 0.5)
    assert (x == 0).mean() == pytest.approx(0.5, abs=TOLERANCE)
    weights = [onnx.numpy_helper.to_array(w).astype(np.float64) for w in model.graph.initializer]
    hidden = np.maximum(x @ (weights[0] * drawn["mask0"]), 0)
    (y,) = run(model, {"x": x, **drawn})
    np.testing.assert_allclose(y, hidden @ (weights[1] * drawn["mask1"]), atol=1e-5)
    single = product(33, 20, rng)
    (y,) = run(single, {"x": x})
    weight = onnx.numpy_helper.to_array(single.graph.initializer[0])
    np.testing.assert_allclose(y, np.maximum(x, 0) @ weight, atol=1e-5)


@pytest.mark.parametrize(("zeros", "spread"), [(-0.1, 0.0), (1.1, 0.0), (0.5, -1.0)])
def test_no_such_share(zeros: float, spread: float) -> None:
    with pytest.raises(ValueError, match="share of zeros"):
        Sparsity(zeros, spread)
