"""From a case to files and arrays: the model on disk, the batches, and what they cost at least."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.attention_cases import TimedAttention
from benchmarks.attention_work import (
    attention_answer,
    attention_cost,
    attention_feeds,
    attention_model,
    pairs_of,
)
from benchmarks.cases import (
    CachedCase,
    EncoderCase,
    MlpStepCase,
    ModelConfig,
    PaddedCase,
    TextCase,
    TimedCase,
    TrainingCase,
)
from benchmarks.cost import (
    Cost,
    blocks_cost,
    experts_cost,
    flops,
    layers_cost,
    mixtral_cost,
    weight_bytes,
)
from benchmarks.experts_cases import ExpertsCase, MixtralCase
from benchmarks.sparse_cases import (
    BlocksCase,
    GradientCase,
    ImageCase,
    MaskedCase,
    ProductCase,
    SparseCase,
)
from models import masked, minilm, quantised, text
from models.bert import BertConfig, bert
from models.cnn import cnn, draw_gates
from models.experts import experts
from models.half import half
from models.mixtral import mixtral
from models.opt import OptConfig, cache_shape, opt, opt_ffn
from models.sparsity import block_mask
from models.t5 import T5Config, hidden_states, t5_encoder, t5_ffn
from pitc.check.feeds import draw_lengths
from pitc.measure.bench import session_options

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
Infer = Callable[[Feeds], Array]

MASK = "attention_mask"
PRUNED = ("encoder.*.intermediate.dense.weight*", "encoder.layer.?.output.dense.weight*")
"""Weights of feed-forward blocks."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One model and the batches of one call.

    Args:
        model: The ONNX file.
        batches: Inputs by name; a mask is 1 at tokens, padding is on one side.
        padding: The mask input that pitc is told about, or None.
        counts: The sparsity that is really there: counts and shares by name.
        dense: Least cost of all batches when nothing is skipped, where it is known.
        useful: The same of what is really there.
        zeros: Share of run-time zeros, measured; 0 where the sparsity is of another kind.
        precision: What pitc is asked to compute products in.
        case: What it is made for, where peers are written for some cases alone.
        bert: The encoder that it is, where the file holds its weights as float32.
        exact: The exact answers for each entry of the batches, where they were computed; answers
            are compared with those of ONNX Runtime otherwise.
    """

    model: Path
    batches: tuple[Feeds, ...]
    padding: str | None
    counts: dict[str, float]
    dense: Cost | None
    useful: Cost | None
    zeros: float = 0.0
    precision: str = "float32"
    case: TimedCase | None = None
    bert: BertConfig | None = None
    exact: tuple[Array, ...] | None = None

    def facts(self) -> dict[str, Any]:
        """The sparsity that is really there, and the work with and without it."""
        shapes = [
            list((f[MASK] if MASK in f else next(iter(f.values()))).shape) for f in self.batches
        ]
        found: dict[str, Any] = {"batches": shapes, **self.counts}
        if self.dense is not None and self.useful is not None:
            found["useful_gflop"] = self.useful.flops / 1e9
            found["dense_gflop"] = self.dense.flops / 1e9
            found["useful_share"] = self.useful.flops / max(self.dense.flops, 1)
        return found

    def limit_ms(self, limits: dict[str, float]) -> float | None:
        """The time per batch that the useful work needs on a core with these limits, if known."""
        if not limits or self.useful is None:
            return None
        return self.useful.seconds(limits) * 1e3 / len(self.batches)


@dataclass(frozen=True, slots=True)
class Amortised:
    """What runs one call, beside what is done once for some layers.

    Args:
        infer: Runs one call.
        once: What is done once.
        calls: For how many calls.
    """

    infer: Infer
    once: Callable[[], object]
    calls: int

    def __call__(self, feeds: Feeds) -> Array:
        """Run one call, without what is done once."""
        return self.infer(feeds)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the cases of one source share.

    Args:
        folder: Holds the model and what is made from it.
        engines: The functions that run it, by what has made them.
    """

    folder: Path
    engines: dict[Callable[..., Infer], Infer] = field(default_factory=dict)


def bert_batch(case: EncoderCase | TrainingCase | MixtralCase, rng: np.random.Generator) -> Feeds:
    """One batch of random ids; padding holds id 0."""
    lengths = draw_lengths(rng, case.batch, case.length, case.mean)
    mask = np.arange(case.length)[None] < np.array(lengths)[:, None]
    if getattr(case, "side", "right") == "left":
        mask = mask[:, ::-1]
    ids = rng.integers(1, case.config.vocab, mask.shape) * mask
    feeds = {"input_ids": ids, MASK: mask.astype(np.int64)}
    if isinstance(case.config, BertConfig):
        feeds["token_type_ids"] = np.zeros_like(ids)
    return feeds


def cached_batch(case: CachedCase, rng: np.random.Generator) -> Feeds:
    """One call's ids and past, and the mask over both, padded on the left."""
    total = case.past + case.length
    lengths = np.array(draw_lengths(rng, case.batch, total, case.mean))[:, None]
    mask = np.arange(total) >= total - lengths
    ids = rng.integers(1, case.config.vocab, (case.batch, case.length))
    shape = cache_shape(case.config, case.past, case.batch)
    past = {
        f"past_key_values.{layer}.{part}": rng.standard_normal(shape, np.float32)
        for layer in range(case.config.layers)
        for part in ("key", "value")
    }
    return {"input_ids": ids, MASK: mask.astype(np.int64), **past}


def build(config: ModelConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """The whole model of a configuration, with random weights."""
    if isinstance(config, OptConfig):
        return opt(config, rng)
    if isinstance(config, T5Config):
        return t5_encoder(config, rng)
    return bert(config, rng)


def _padded(
    case: PaddedCase | TrainingCase, model: Path, config: ModelConfig, batches: tuple[Feeds, ...]
) -> Workload:
    lengths = [int(n) for feeds in batches for n in feeds[MASK].sum(1)]
    padded = [size for f in batches for size in [f[MASK].shape[1]] * f[MASK].shape[0]]
    counts = {
        "tokens": sum(lengths),
        "places": sum(padded),
        "live_share": sum(lengths) / max(sum(padded), 1),
    }
    reading = weight_bytes(config) * len(batches)
    dense, useful = (Cost(flops(config, sizes), reading) for sizes in (padded, lengths))
    precision = getattr(case, "precision", "float32")
    plain = not isinstance(case, EncoderCase) or (not case.bits and case.dtype == "float32")
    bert = config if plain and isinstance(config, BertConfig) else None
    return Workload(
        *(model, batches, case.padding, counts, dense, useful), precision=precision, bert=bert
    )


def _build_sparse(case: SparseCase) -> onnx.ModelProto:
    rng = np.random.default_rng(case.seed)
    if isinstance(case, ProductCase):
        return masked.product(case.size, case.size, rng)
    if isinstance(case, MaskedCase):
        return masked.masked_mlp(case.config, rng)
    if isinstance(case, GradientCase):
        return masked.weight_gradient(*case.shape)
    if isinstance(case, ImageCase):
        return cnn(case.config, rng)
    config = case.sparse_config
    return opt_ffn(config, rng) if isinstance(config, OptConfig) else t5_ffn(config, rng)


def behind_relu(model: Path, feeds: Feeds) -> list[Array]:
    """What every Relu of a model gives for these inputs."""
    import onnxruntime

    proto = onnx.load(model)
    names = [node.output[0] for node in proto.graph.node if node.op_type == "Relu"]
    known = {output.name for output in proto.graph.output}
    proto.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in known
    )
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    return [np.asarray(x) for x in session.run(names, feeds)]


def _share(arrays: list[Array]) -> float:
    """Share of zeros of them all."""
    return 1 - sum(map(np.count_nonzero, arrays)) / max(sum(x.size for x in arrays), 1)


def _sparse(case: SparseCase, model: Path) -> Workload:
    rng = np.random.default_rng((case.seed, 1))  # the model may be there already
    if isinstance(case, ProductCase):
        shape = case.size, case.size
        feeds = {"x": np.abs(masked.block_sparse(rng, shape, case.block, case.zeros))}
        zeros = _share([feeds["x"]])
        dense, useful = (layers_cost(case.size, [shape], live) for live in (1.0, 1 - zeros))
        return Workload(model, (feeds,), None, {"zeros": zeros}, dense, useful, zeros)
    if isinstance(case, MaskedCase):
        drawn = masked.masks(case.config, rng)
        x = rng.standard_normal((case.rows, case.config.widths[0]), dtype=np.float32)
        zeros, shapes = _share(list(drawn.values())), list(case.config.shapes.values())
        dense, useful = (layers_cost(case.rows, shapes, live) for live in (1.0, 1 - zeros))
        return Workload(model, ({"x": x, **drawn},), None, {"zeros": zeros}, dense, useful, zeros)
    if isinstance(case, GradientCase):
        mask = block_mask(rng, case.shape, case.block, case.zeros)
        sizes, zeros = dict(zip(("x", "dy"), case.shape, strict=True)), _share([mask])
        feeds = {
            name: rng.standard_normal((case.tokens, size), dtype=np.float32)
            for name, size in sizes.items()
        }
        dense, useful = (layers_cost(case.tokens, [mask.shape], live) for live in (1.0, 1 - zeros))
        feeds["mask"] = mask
        return Workload(model, (feeds,), None, {"zeros": zeros}, dense, useful, zeros)
    if isinstance(case, ImageCase):
        shape = case.batch, 3, case.config.size, case.config.size
        feeds = {"image": rng.standard_normal(shape, dtype=np.float32)}
        gates = draw_gates(case.config, rng, case.batch)
        feeds |= gates
        zeros = _share(list(gates.values()) or behind_relu(model, feeds))
        return Workload(model, (feeds,), None, {"zeros": zeros}, None, None, zeros)
    return _blocks(case, model, rng)


def _blocks(case: BlocksCase, model: Path, rng: np.random.Generator) -> Workload:
    config, shape = case.sparse_config, (1, case.tokens)
    if isinstance(config, T5Config):
        x = hidden_states(config, rng, shape)
    else:
        x = rng.standard_normal((*shape, config.hidden), dtype=np.float32)
    feeds = {"hidden_state": x}
    hidden = behind_relu(model, feeds)
    zeros = _share(hidden)
    live = [np.asarray(x.reshape(-1, x.shape[-1]).any(0)) for x in hidden]
    columns = 1 - _share(live)
    counts = {"tokens": case.tokens, "zeros": zeros, "live_columns": columns}
    dense = blocks_cost(config, case.tokens)
    useful = blocks_cost(config, case.tokens, 1 - zeros, columns)
    precision = case.precision
    return Workload(model, (feeds,), None, counts, dense, useful, zeros, precision=precision)


def _attention(case: TimedAttention, model: Path) -> Workload:
    feeds = attention_feeds(case)
    live, pairs = pairs_of(case, feeds)
    dense, useful = attention_cost(case, pairs), attention_cost(case, live)
    counts = {"live_pairs": live, "live_share": live / max(pairs, 1)}
    exact = tuple(attention_answer(case, feeds))
    return Workload(model, (feeds,), None, counts, dense, useful, case=case, exact=exact)


def _mlp_step(case: MlpStepCase, path: Path) -> Workload:
    import pitc

    rng, config = np.random.default_rng(case.seed), case.config
    model = masked.masked_mlp(config, rng)
    pitc.gradient(model, pitc.Loss("mse", "y"), ["weight*"], output=path)
    drawn = masked.masks(config, rng)
    sizes = {"x": config.widths[0], "labels": config.widths[-1]}
    feeds = {n: rng.standard_normal((case.rows, s), dtype=np.float32) for n, s in sizes.items()}
    shapes, zeros = list(config.shapes.values()), _share(list(drawn.values()))
    products = [*shapes, *shapes, *shapes[1:]]  # nobody asks for the gradient of x
    dense, useful = (layers_cost(case.rows, products, live) for live in (1.0, 1 - zeros))
    return Workload(
        path, ({**feeds, **drawn},), None, {"zeros": zeros}, dense, useful, zeros, case=case
    )


def _experts(case: ExpertsCase, path: Path) -> Workload:
    """Which experts are hit decides what is read of their weights."""
    config, rng = case.config, np.random.default_rng(case.seed + 1)
    x = rng.standard_normal((case.tokens, config.hidden), dtype=np.float32)
    (router,) = (w for w in onnx.load(path).graph.initializer if w.name == "router")
    scores = x @ onnx.numpy_helper.to_array(router)
    hit = np.unique(np.argsort(-scores, axis=1)[:, : config.top]).size
    useful = experts_cost(config, case.tokens * config.top, hit)
    dense = experts_cost(config, case.tokens * config.experts, config.experts)
    counts = {"experts_hit": float(hit), "rows": float(case.tokens * config.top)}
    return Workload(path, ({"x": x},), None, counts, dense, useful, case=case)


def _mixtral(case: MixtralCase, path: Path, batch: Feeds) -> Workload:
    """All weights are read once; experts are those of live tokens."""
    lengths, places = batch[MASK].sum(1), [case.length] * case.batch
    tokens = int(lengths.sum())
    counts = {"tokens": tokens, "places": sum(places), "live_share": tokens / sum(places)}
    dense, useful = (mixtral_cost(case.config, sizes) for sizes in (places, lengths.tolist()))
    return Workload(path, (batch,), case.padding, counts, dense, useful, case=case)


def _pruned(case: TrainingCase, model: Path, rng: np.random.Generator) -> Feeds:
    """Masks of the weights that have some."""
    graph = onnx.load(model, load_external_data=False).graph
    shapes = {
        x.name: tuple(d.dim_value for d in x.type.tensor_type.shape.dim)
        for x in graph.input
        if x.name.startswith("mask.")
    }
    block = case.block or (1, 1)
    return {n: block_mask(rng, (r, c), block, case.zeros) for n, (r, c) in shapes.items()}


def _training(case: TrainingCase, path: Path) -> Workload:
    import pitc

    rng, config = np.random.default_rng(case.seed), case.config
    is_decoder = isinstance(config, OptConfig)
    model = opt(config, rng, head=True) if isinstance(config, OptConfig) else bert(config, rng)
    loss = pitc.Loss("cross_entropy", "logits", mask=MASK if is_decoder else None)
    pitc.gradient(model, loss, masks=PRUNED if case.block else (), output=path)
    batch = bert_batch(case, rng)
    ids = batch["input_ids"]
    if isinstance(config, OptConfig):  # the next token; of the last one nothing is known
        labels, scores = np.roll(ids, -1, axis=1), config.vocab
        labels[:, -1] = -100
    else:
        labels, scores = rng.integers(0, config.labels, ids.shape), config.labels
    batch["labels"] = np.where(batch[MASK] == 1, labels, -100)
    found = _padded(case, path, config, (batch,))
    head = 2 * config.hidden * scores
    drawn = _pruned(case, path, rng)
    live = 1 - _share(list(drawn.values())) if drawn else 1.0
    ffn = 2 * 2 * config.hidden * config.ffn * config.layers * (1 - live)  # a token saves
    costs = (found.dense, found.counts["places"]), (found.useful, found.counts["tokens"])
    # each product has two more on the backward way
    dense, useful = (x and Cost(3 * (x.flops + head * rows), 3 * x.read_bytes) for x, rows in costs)
    if useful is not None:
        useful = replace(useful, flops=useful.flops - 3 * ffn * found.counts["tokens"])
    batches = tuple(feeds | drawn for feeds in found.batches)
    return replace(found, batches=batches, dense=dense, useful=useful, case=case)


def make_workload(case: TimedCase, folder: Path) -> Workload:
    """Build the case's model into a folder, where it is not there yet, and draw its batches."""
    path = folder / "model.onnx"
    if isinstance(case, SparseCase):
        if not path.exists():
            onnx.save(_build_sparse(case), path)
        return _sparse(case, path)
    if isinstance(case, TrainingCase):
        return _training(case, path)
    if isinstance(case, MlpStepCase):
        return _mlp_step(case, path)
    if isinstance(case, TimedAttention):
        onnx.save(attention_model(case), path)
        return _attention(case, path)
    if isinstance(case, ExpertsCase):
        onnx.save(experts(case.config, np.random.default_rng(case.seed)), path)
        return _experts(case, path)
    if isinstance(case, MixtralCase):
        rng = np.random.default_rng(case.seed)
        onnx.save(mixtral(case.config, rng), path)
        return _mixtral(case, path, bert_batch(case, rng))
    if isinstance(case, TextCase):
        model = minilm.load(case.layers)
        onnx.save(model.graph(), path)
        drawn = text.batches(model.tokenizer, case.batches, case.batch, model.max_tokens)
        return _padded(case, path, model.config, tuple(batch.feeds() for batch in drawn))
    rng = np.random.default_rng(case.seed)
    if isinstance(case, CachedCase):
        onnx.save(opt(case.config, rng, cached=True), path)
        found = _padded(case, path, case.config, (cached_batch(case, rng),))
        return replace(found, dense=None, useful=None)  # a call computes a part of these tokens
    model = build(case.config, rng)
    batch = bert_batch(case, rng)
    if case.bits:
        onnx.save(_of_few_bits(model, case.bits, batch), path)
        found = _padded(case, path, case.config, (batch,))
        return replace(found, dense=None, useful=None)  # limits are known of float32
    onnx.save(half(model) if case.dtype == "float16" else model, path)
    return _padded(case, path, case.config, (batch,))


def _of_few_bits(model: onnx.ModelProto, bits: str, batch: Feeds) -> onnx.ModelProto:
    """The model with products of fewer bits; ranges of static ones are those of a few rows."""
    if bits == "int4":
        return quantised.int4(model)
    if bits == "dynamic":
        return quantised.dynamic(model)
    return quantised.static(model, [{name: x[:2] for name, x in batch.items()}])
