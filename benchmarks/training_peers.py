"""One step of training in torch, loss and gradients: of a BERT that labels tokens, of an OPT.

The weights are those of the ONNX file, by the same names. A padded batch runs with a mask, as
transformers does it; without padding, tokens of all sequences are rows of one matrix, and attention
runs for each sequence (kernels for that exist on GPUs only, so on a CPU a person writes it).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.cases import MlpStepCase, TrainingCase
from benchmarks.workload import MASK, Array, Feeds, Infer, Workload
from models.bert import BertConfig
from models.masked import MlpConfig
from models.opt import OFFSET, OptConfig
from pitc.measure.bench import session_options

Config = BertConfig | OptConfig
PREFIX = "grad."
#: So many numbers of each gradient are compared.
COMPARED = 1000
#: Gradients so much smaller than the largest are rounding.
ROUNDING = 1e-5


def answer(loss: float, gradients: dict[str, Array], feeds: Feeds) -> Array:
    """What is compared: for each sequence the same, the loss and a part of each gradient.

    Gradients are scaled by powers of two, so that each counts; but none that is 0 but for rounding,
    as that of the keys' bias.
    """
    parts = [g.reshape(-1)[:COMPARED] for _, g in sorted(gradients.items())]
    sizes = [float(np.linalg.norm(part)) for part in parts]
    least = ROUNDING * max(sizes)
    scaled = (
        part / 2.0 ** np.round(np.log2(size)) if size > least else part
        for part, size in zip(parts, sizes, strict=True)
    )
    sequences = len(feeds[MASK]) if MASK in feeds else 1
    return np.tile(np.concatenate([[loss], *scaled]).astype(np.float32), (sequences, 1))


def session_answer(session: Any) -> Infer:
    """What runs a model with gradients in ONNX Runtime."""
    names = [x.name for x in session.get_outputs()]

    def infer(feeds: Feeds) -> Array:
        loss, *found = session.run(None, feeds)
        pairs = zip(names[1:], found, strict=True)
        return answer(float(loss), {n.removeprefix(PREFIX): g for n, g in pairs}, feeds)

    return infer


def onnx_runtime(workload: Workload) -> Infer:
    """ONNX Runtime on the same graph, one thread."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(workload.model), session_options(), providers=["CPUExecutionProvider"]
    )
    return session_answer(session)


def pitc(workload: Workload) -> Infer:
    """The graph, compiled, saved and loaded as a user does, one thread."""
    import pitc

    folder = workload.model.with_suffix(".pitc")
    pitc.compile(workload.model, padding=workload.padding).save(folder)
    return session_answer(pitc.load(folder).session(session_options()))


def _weights(workload: Workload) -> dict[str, Array]:
    graph = onnx.load(workload.model).graph
    given = {x.name for x in graph.input}
    return {x.name: numpy_helper.to_array(x) for x in graph.initializer if x.name in given}


def _step(workload: Workload, loss_of: Callable[..., Any], *, compiled: bool) -> Infer:
    """What runs forward and backward of a loss."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    assert isinstance(workload.case, TrainingCase | MlpStepCase)
    config = workload.case.config
    known = {
        n: torch.tensor(np.array(x), requires_grad=True) for n, x in _weights(workload).items()
    }
    loss = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def infer(feeds: Feeds) -> Array:
        given = {name: torch.from_numpy(x) for name, x in feeds.items()}
        masks = {n: m for n in known if (m := given.get(f"mask.{n}")) is not None}
        weights = {n: w * masks[n] if n in masks else w for n, w in known.items()}
        total = loss(config, weights, given)
        found = torch.autograd.grad(total, list(known.values()))
        gradients = {n: g.numpy() for n, g in zip(known, found, strict=True)}
        return answer(float(total), gradients, feeds)

    return infer


def _linear(w: dict[str, Any], rows: Any, name: str) -> Any:
    from torch.nn import functional as f  # pyright: ignore[reportMissingImports]

    if f"{name}.weight" in w:
        return f.linear(rows, w[f"{name}.weight"], w[f"{name}.bias"])
    return rows @ w[f"{name}.weight_t"] + w[f"{name}.bias"]


def _norm(w: dict[str, Any], rows: Any, name: str, epsilon: float) -> Any:
    from torch.nn import functional as f  # pyright: ignore[reportMissingImports]

    scale, shift = w[f"{name}.weight"], w[f"{name}.bias"]
    return f.layer_norm(rows, (rows.shape[-1],), scale, shift, epsilon)


def _bert_scores(config: BertConfig, w: dict[str, Any], x: Any, attend: Callable[..., Any]) -> Any:
    """Scores of rows, which are tokens or `[batch, sequence]` of them."""
    from torch.nn import functional as f  # pyright: ignore[reportMissingImports]

    norm, linear = partial(_norm, w, epsilon=config.epsilon), partial(_linear, w)
    x = norm(x, "embeddings.LayerNorm")
    for i in range(config.layers):
        layer = f"encoder.layer.{i}"
        names = (f"{layer}.attention.self.{part}" for part in ("query", "key", "value"))
        y = linear(attend(*(linear(x, name) for name in names)), f"{layer}.attention.output.dense")
        x = norm(x + y, f"{layer}.attention.output.LayerNorm")
        y = f.gelu(linear(x, f"{layer}.intermediate.dense"))
        x = norm(x + linear(y, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return linear(x, "classifier")


def _opt_scores(config: OptConfig, w: dict[str, Any], x: Any, attend: Callable[..., Any]) -> Any:
    """The same of a decoder."""
    from torch.nn import functional as f  # pyright: ignore[reportMissingImports]

    norm, linear = partial(_norm, w, epsilon=1e-5), partial(_linear, w)
    for i in range(config.layers):
        layer = f"layers.{i}"
        y = norm(x, f"{layer}.self_attn_layer_norm")
        y = attend(*(linear(y, f"{layer}.{part}_proj") for part in "qkv"))
        x = x + linear(y, f"{layer}.out_proj")
        y = f.relu(linear(norm(x, f"{layer}.final_layer_norm"), f"{layer}.fc1"))
        x = x + linear(y, f"{layer}.fc2")
    return norm(x, "final_layer_norm") @ w["embed_tokens"].T


def _indices(config: Config, feeds: dict[str, Any]) -> dict[str, Any]:
    """What looks up rows of each table, `[batch, sequence]`."""
    import torch  # pyright: ignore[reportMissingImports]

    ids, mask = feeds["input_ids"], feeds[MASK]
    if isinstance(config, OptConfig):
        return {"embed_tokens": ids, "embed_positions": mask.cumsum(1) * mask - 1 + OFFSET}
    table = "embeddings.{}_embeddings.weight".format
    places = torch.arange(ids.shape[1]).expand(ids.shape)
    found = {"word": ids, "token_type": feeds["token_type_ids"], "position": places}
    return {table(name): x for name, x in found.items()}


def _embedded(w: dict[str, Any], indices: dict[str, Any]) -> Any:
    """The sum of rows of tables."""
    first, *others = (w[table][x] for table, x in indices.items())
    return sum(others, first)


def _scores(config: Config, w: dict[str, Any], x: Any, attend: Callable[..., Any]) -> Any:
    if isinstance(config, OptConfig):
        return _opt_scores(config, w, x, attend)
    return _bert_scores(config, w, x, attend)


def _mlp_loss(config: MlpConfig, w: dict[str, Any], feeds: dict[str, Any]) -> Any:
    """The loss of a multi-layer perceptron with masks."""
    from torch.nn import functional as f  # pyright: ignore[reportMissingImports]

    x = feeds["x"]
    for i in range(len(config.shapes)):
        x = (f.relu(x) if i else x) @ (w[f"weight{i}"] * feeds[f"mask{i}"])
    return f.mse_loss(x, feeds["labels"])


def padded_loss(config: Config | MlpConfig, w: dict[str, Any], feeds: dict[str, Any]) -> Any:
    """The loss of a padded batch, or of rows without padding.

    Args:
        config: The model.
        w: Its weights, by the names of the ONNX file.
        feeds: The batch; `labels` of -100 do not count.
    """
    import torch  # pyright: ignore[reportMissingImports]
    from torch.nn import functional as f  # pyright: ignore[reportMissingImports]

    if isinstance(config, MlpConfig):
        return _mlp_loss(config, w, feeds)
    batch, length = feeds["input_ids"].shape
    seen = (feeds[MASK] != 0)[:, None, None, :]
    if isinstance(config, OptConfig):  # padding sees itself: a row of nothing is NaN
        places = torch.arange(length)
        seen = (seen & (places[:, None] >= places)) | (places[:, None] == places)

    def attend(*rows: Any) -> Any:
        q, k, v = (x.view(batch, length, config.heads, -1).transpose(1, 2) for x in rows)
        y = f.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return y.transpose(1, 2).reshape(batch, length, -1)

    scores = _scores(config, w, _embedded(w, _indices(config, feeds)), attend)
    return f.cross_entropy(scores.view(-1, scores.shape[-1]), feeds["labels"].view(-1))


def _packed_loss(config: Config, w: dict[str, Any], feeds: dict[str, Any]) -> Any:
    import torch  # pyright: ignore[reportMissingImports]
    from torch.nn import functional as f  # pyright: ignore[reportMissingImports]

    live = feeds[MASK] != 0
    lengths, causal = live.sum(1).tolist(), isinstance(config, OptConfig)

    def attend(*rows: Any) -> Any:
        parts = []
        for q, k, v in zip(*(x.split(lengths) for x in rows), strict=True):
            heads = (x.view(len(x), config.heads, -1).transpose(0, 1)[None] for x in (q, k, v))
            y = f.scaled_dot_product_attention(*heads, is_causal=causal)
            parts.append(y[0].transpose(0, 1).reshape(len(q), -1))
        return torch.cat(parts)

    x = _embedded(w, {table: x[live] for table, x in _indices(config, feeds).items()})
    return f.cross_entropy(_scores(config, w, x, attend), feeds["labels"][live])


def torch_padded(workload: Workload) -> Infer:
    """Torch as it comes, on the padded batch."""
    return _step(workload, padded_loss, compiled=False)


def torch_compiled(workload: Workload) -> Infer:
    """The same, compiled for its sizes."""
    return _step(workload, padded_loss, compiled=True)


def torch_packed(workload: Workload) -> Infer:
    """Torch without padding, by hand."""
    return _step(workload, _packed_loss, compiled=False)
