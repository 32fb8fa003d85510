"""Training against torch: graphs that torch differentiates, and the examples beside torch twins."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from transformers import (
    BertConfig,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

import pitc
from benchmarks.training_peers import padded_loss
from examples import prune, train_encoder
from models.bert import bert

STEPS = 200
torch.set_num_threads(1)
NAMES = ("input_ids", "attention_mask", "labels")


def tagger() -> BertForTokenClassification:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.1}
    return BertForTokenClassification(BertConfig(vocab_size=100, num_labels=3, **sizes)).eval()


def padded(batch: int, length: int) -> dict[str, torch.Tensor]:
    lengths = torch.linspace(1, length, batch).long()[:, None]
    mask = (torch.arange(length) < lengths).long()
    ids = torch.randint(1, 100, (batch, length), generator=torch.Generator().manual_seed(batch))
    return dict(zip(NAMES, (ids, mask, torch.where(mask == 1, ids % 3, -100)), strict=True))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch makes of the tagger."""
    dims = {n: torch.export.Dim(n, min=2, max=64) for n in ("batch", "sequence")}
    file = tmp_path_factory.mktemp("exported") / "tagger.onnx"
    pitc.torch_training_graph(
        tagger(),
        padded(2, 9),
        dynamic_shapes={name: {0: dims["batch"], 1: dims["sequence"]} for name in NAMES},
        loss=lambda output: output.loss,
        output=file,
    )
    return file


@pytest.fixture(scope="module")
def compiled(exported: Path) -> pitc.CompiledModel:
    return pitc.compile(exported, padding="attention_mask", suggest=False)


@pytest.mark.parametrize(("batch", "length"), [(2, 9), (5, 33), (3, 64), (64, 2)])
def test_a_graph_that_torch_differentiates(
    compiled: pitc.CompiledModel, batch: int, length: int
) -> None:
    module, feeds = tagger(), padded(batch, length)
    loss = module(**feeds).loss
    parameters = dict(module.named_parameters())
    want = torch.autograd.grad(loss, list(parameters.values()))
    found = compiled.run({name: x.numpy() for name, x in feeds.items()})
    assert set(found) == {"loss", *(f"grad.{name}" for name in parameters)}
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-5)
    for name, gradient in zip(parameters, want, strict=True):
        got, size = found[f"grad.{name}"], gradient.abs().max().item()
        np.testing.assert_allclose(got, gradient.numpy(), rtol=0, atol=1e-5 * size + 1e-7)


def test_its_contractions_are_packed(compiled: pitc.CompiledModel) -> None:
    report = compiled.report
    assert report is not None
    found = [n.lowering for n in report.nodes if n.op_type in ("MatMul", "Gemm")]
    assert len(found) == 27 and found.count("ordinary") <= 3


def test_a_decoder(tmp_path: Path) -> None:
    """Rows without a key have weights of 0: torch guards its softmax."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 128, "n_layer": 1, "n_head": 4, "n_positions": 64}
    config = GPT2Config(vocab_size=100, use_cache=False, initializer_range=0.1, **sizes)
    module, file = GPT2LMHeadModel(config).eval(), tmp_path / "decoder.onnx"
    dims = {n: torch.export.Dim(n, min=2, max=64) for n in ("batch", "sequence")}
    shapes = {name: {0: dims["batch"], 1: dims["sequence"]} for name in NAMES}
    pitc.torch_training_graph(
        module,
        padded(2, 9),
        dynamic_shapes=shapes,
        loss=lambda output: output.loss,
        output=file,
    )
    compiled = pitc.compile(file, padding="attention_mask", suggest=False)
    assert compiled.report is not None
    found = [n.lowering for n in compiled.report.nodes if n.op_type in ("MatMul", "Gemm")]
    assert len(found) == 21 and found.count("ordinary") <= 2
    parameters = dict(module.named_parameters())
    for batch, length, left in [(5, 33, True), (3, 20, False)]:
        feeds = padded(batch, length)
        if left:
            feeds = {name: x.flip(1) for name, x in feeds.items()}
        feeds["labels"][0] = 1  # of padded tokens, too: such a query sees no key
        loss = module(**feeds).loss
        want = torch.autograd.grad(loss, list(parameters.values()))
        got = compiled.run({name: x.numpy() for name, x in feeds.items()})
        np.testing.assert_allclose(got["loss"], loss.item(), rtol=1e-5)
        largest = max(g.abs().max().item() for g in want)
        for name, gradient in zip(parameters, want, strict=True):
            size = max(gradient.abs().max().item(), 1e-3 * largest)
            np.testing.assert_allclose(got[f"grad.{name}"], gradient, rtol=0, atol=1e-5 * size)


def test_other_weights(compiled: pitc.CompiledModel) -> None:
    """A parameter is an input: a caller's own numbers take the place of the default."""
    feeds = {name: x.numpy() for name, x in padded(3, 7).items()}
    zeros = {
        f"classifier.{n}": np.zeros(s, np.float32) for n, s in (("weight", (3, 128)), ("bias", 3))
    }
    np.testing.assert_allclose(compiled.run(feeds | zeros)["loss"], np.log(3), rtol=1e-6)


def test_the_recipe_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "training.md"
    (code,) = re.findall(r"^```py\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, str(page), "exec"), names)
    assert Path("step.onnx").is_file()
    want = names["module"](**names["inputs"]).loss.item()
    np.testing.assert_allclose(names["found"]["loss"], want, rtol=1e-5)


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        return self.used(x) if y is None else self.used(x - 2 * y)


X = torch.arange(8.0).reshape(2, 4)
DIM = torch.export.Dim("rows")


def test_what_no_loss_depends_on_has_zeros() -> None:
    module = Linear().eval()
    with torch.no_grad():  # the caller's own mode
        step = pitc.torch_training_graph(
            module, {"x": X, "y": X}, loss=lambda output: output.square().mean()
        )
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    with torch.no_grad():
        module.used.weight.zero_()  # the graph has its own numbers
    found = pitc.compile(step, suggest=False).run({"x": X.numpy(), "y": 0 * X.numpy()})
    scores = (X @ before["used.weight"].T + before["used.bias"]).numpy()
    np.testing.assert_allclose(found["loss"], np.mean(scores**2), rtol=1e-5)
    np.testing.assert_allclose(found["grad.used.bias"], scores.sum(0) / 3, rtol=1e-5)
    assert not found["grad.unused.weight"].any() and found["grad.unused.weight"].shape == (3, 4)


class Rounded(torch.autograd.Function):
    """Rounds; the gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class Quantised(Linear):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        return Rounded.apply(4 * self.used(x)) / 4


def test_a_gradient_that_the_module_defines() -> None:
    module = Quantised().eval()
    loss = module(X).square().sum()
    want = torch.autograd.grad(loss, [module.used.weight])[0].numpy()
    step = pitc.torch_training_graph(module, {"x": X}, loss=lambda y: y.square().sum())
    found = pitc.compile(step, suggest=False).run({"x": X.numpy()})
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-6)
    assert want.any()
    np.testing.assert_allclose(found["grad.used.weight"], want, rtol=1e-6)


class Branching(Linear):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        return self.used(x).sum() * float(x.sum())


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"module": "model"}, pitc.UsageError, "expected a torch.nn.Module, got str"),
        ({"module": Linear()}, pitc.UsageError, r"training mode.*eval\(\)"),
        ({"module": Linear().requires_grad_(False).eval()}, pitc.UsageError, "requires_grad_"),
        ({"inputs": [X]}, pitc.UsageError, "inputs is a list, not a mapping"),
        ({"inputs": {"x": X.numpy()}}, pitc.UsageError, "the input 'x' is a ndarray"),
        ({"inputs": {"z": X}}, pitc.ModelError, "Linear fails on these inputs: .*'z'"),
        ({"dynamic_shapes": [{0: DIM}]}, pitc.UsageError, "dynamic_shapes is a list"),
        ({"dynamic_shapes": {"z": {0: DIM}}}, pitc.UsageError, r"'z', which is no input \(.*: x\)"),
        ({"dynamic_shapes": {"x": {2: DIM}}}, pitc.UsageError, "dimension 2 of 'x', which has 2"),
        ({"loss": lambda output: output}, pitc.UsageError, r"shape \[2, 3\].*mean\(\)"),
        ({"loss": lambda output: 1.0}, pitc.UsageError, "is a float, not a torch.Tensor"),
        ({"loss": lambda output: output.loss}, pitc.UsageError, "loss of Tensor fails: .*'loss'"),
        (
            {"loss": lambda output: output.detach().sum()},
            pitc.UsageError,
            "depends on no parameter",
        ),
        ({"module": Branching().eval()}, pitc.ModelError, "torch cannot export Branching with its"),
    ],
)
def test_what_cannot_be_differentiated(
    arguments: dict[str, Any], error: type[pitc.PitcError], text: str
) -> None:
    given = {"module": Linear().eval(), "inputs": {"x": X}, "loss": torch.sum} | arguments
    with pytest.raises(error, match=text) as caught:
        pitc.torch_training_graph(given.pop("module"), given.pop("inputs"), **given)
    assert "\n" not in str(caught.value)


def weights_of(model: onnx.ModelProto) -> dict[str, torch.Tensor]:
    """Its weights, in float64: torch in float32 differs from that by up to 6e-4 in 200 steps."""
    arrays = {x.name: numpy_helper.to_array(x).copy() for x in model.graph.initializer}
    kept = {name: x for name, x in arrays.items() if x.dtype == np.float32 and x.ndim}
    return {name: torch.tensor(x.astype(float), requires_grad=True) for name, x in kept.items()}


def twin_step(
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
    feeds: Mapping[str, np.ndarray],
    clip: float = np.inf,
) -> float:
    optimizer.zero_grad()
    total = loss({name: torch.as_tensor(x) for name, x in feeds.items()})
    total.backward()
    every = [w for group in optimizer.param_groups for w in group["params"]]
    torch.nn.utils.clip_grad_norm_(every, clip)
    optimizer.step()
    return total.item()


def test_the_encoder_learns_as_in_torch() -> None:
    config, clip = train_encoder.CONFIG, train_encoder.CLIP
    weights = weights_of(bert(config, np.random.default_rng(0)))
    plain = {n for n in weights if n.endswith("bias") or "LayerNorm" in n}
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for n, w in weights.items() if n in plain], "weight_decay": 0},
            {"params": [w for n, w in weights.items() if n not in plain]},
        ],
        weight_decay=train_encoder.DECAY,
    )
    texts, want = train_encoder.read_texts(300), []
    for k in range(STEPS):
        feeds = train_encoder.draw(texts, k)
        for group in optimizer.param_groups:
            group["lr"] = float(feeds["learning_rate"])
        want.append(twin_step(optimizer, lambda f: padded_loss(config, weights, f), feeds, clip))
    got = [loss for _, loss in train_encoder.train(train_encoder.make_trainer(), texts, STEPS)]
    assert len(got) == STEPS and got[-1] < got[0] - 1
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


def pruned_loss(
    weights: Mapping[str, torch.Tensor], feeds: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    x = feeds["x"].to(weights["w0"].dtype)
    for k in range(len(prune.WIDTHS) - 1):
        w, mask = weights[f"w{k}"], feeds.get(f"mask.w{k}")
        x = (torch.relu(x) if k else x) @ (w if mask is None else w * mask) + weights[f"b{k}"]
    return torch.nn.functional.cross_entropy(x, feeds["labels"])


@pytest.mark.parametrize("block", [(32, 64), (32, 1)])
def test_pruning_learns_as_in_torch(block: tuple[int, int]) -> None:
    """As torch in float64; after many steps of few weights within what float32 loses in torch."""
    found, losses = list(prune.train(STEPS, block)), dict[torch.dtype, np.ndarray]()
    for dtype in (torch.float64, torch.float32):
        given = weights_of(prune.network())
        weights = {name: w.detach().to(dtype).requires_grad_() for name, w in given.items()}
        optimizer = torch.optim.Adam(weights.values(), lr=prune.RATE)
        steps = (twin_step(optimizer, partial(pruned_loss, weights), feeds) for feeds, _ in found)
        losses[dtype] = np.array(list(steps))
    want = losses[torch.float64]
    lost = np.abs(losses[torch.float32] - want).max()
    assert len(found) == STEPS and 0.09 < found[-1][0]["mask.w1"].mean() < 0.11
    got = np.array([loss for _, loss in found])
    np.testing.assert_allclose(got[: STEPS // 2], want[: STEPS // 2], rtol=0, atol=1e-5)
    np.testing.assert_allclose(got, want, rtol=0, atol=max(1e-4, lost))
