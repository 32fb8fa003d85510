"""BERT-like encoders as real exports look; exporters' differences are fields of `BertConfig`."""

from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import Array, Dim, GraphBuilder
from models.heads import HEADS
from models.layers import ACTIVATION, LINEAR, NORM, RESHAPE, SCORES, Sizes, attention
from models.masks import MASKS, MaskDialect, MaskInput

MASK_DTYPES = ("int64", "int32", "float32", "bool")
POSITIONS = ("slice_ids", "slice_table", "range")
TOKEN_TYPES = ("input", "buffer", "none")

Weights = dict[str, Array]


@dataclass(frozen=True, slots=True)
class BertConfig(Sizes):
    """Sizes of an encoder, `hidden` a multiple of `heads`, and the form of its export.

    Args:
        positions: Rows of the position table: the longest sequence.
        types: Rows of the token-type table.
        labels: Outputs of a classification head.
        epsilon: Epsilon of the layer norms.
        mask: Mask dialect, a key of `models.masks.MASKS`, or `none`: the model ignores its mask.
        mask_dtype: Element type of the input `attention_mask`.
        scores: Where the scores are scaled: `div`, `mul`, `query` or `split`.
        activation: `gelu_erf`, `gelu_tanh`, `gelu_op`, `gelu_op_tanh` or `relu`.
        norm: `op` or `decomposed`.
        linear: `matmul`, `transpose` or `gemm`.
        reshape: `concat`, `infer` or `zeros`.
        position_form: `slice_ids`, `slice_table` or `range`.
        token_types: `input`, `buffer` (zeros made inside) or `none` (no such table).
        head: A key of `models.heads.HEADS`.
        batch: First dimension of the inputs, a name or a number.
        sequence: Second dimension of the inputs.
        opset: Version of the default operator set.
        constant_nodes: Small constants as nodes instead of initializers.
    """

    positions: int = 64
    types: int = 2
    labels: int = 3
    epsilon: float = 1e-12
    mask: str = "one_minus_min"
    mask_dtype: str = "int64"
    scores: str = "div"
    activation: str = "gelu_erf"
    norm: str = "op"
    linear: str = "matmul"
    reshape: str = "concat"
    position_form: str = "slice_ids"
    token_types: str = "input"
    head: str = "none"
    batch: Dim = "batch"
    sequence: Dim = "sequence"
    opset: int = 17
    constant_nodes: bool = False

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        choices: dict[str, tuple[str, ...]] = {
            "mask": (*MASKS, "none"),
            "mask_dtype": MASK_DTYPES,
            "scores": tuple(SCORES),
            "activation": tuple(ACTIVATION),
            "norm": tuple(NORM),
            "linear": tuple(LINEAR),
            "reshape": tuple(RESHAPE),
            "position_form": POSITIONS,
            "token_types": TOKEN_TYPES,
            "head": tuple(HEADS),
        }
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                known = ", ".join(allowed)
                raise ValueError(f"{field} is {getattr(self, field)!r}, expected one of {known}")
        needed = 20 if self.activation.startswith("gelu_op") else 17 if self.norm == "op" else 13
        if self.opset < needed:
            raise ValueError(f"opset {self.opset} is older than {needed}, which this form needs")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


TINY = BertConfig()
BERT_BASE = BertConfig(layers=12, hidden=768, heads=12, ffn=3072, vocab=30522, positions=512)


def random_weights(config: BertConfig, rng: np.random.Generator) -> Weights:
    """Random weights under the usual checkpoint names; linear layers are [out, in].

    Variances keep activations of order one, so that every part of the model matters to its output.
    """
    weights: Weights = {}

    def normal(name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> None:
        values = rng.standard_normal(shape, dtype=np.float32)
        weights[name] = values * np.float32(scale) + np.float32(mean)

    def linear(name: str, size_in: int, size_out: int) -> None:
        normal(f"{name}.weight", size_out, size_in, scale=size_in**-0.5)
        normal(f"{name}.bias", size_out, scale=0.1)

    def norm(name: str) -> None:
        normal(f"{name}.weight", config.hidden, scale=0.1, mean=1.0)
        normal(f"{name}.bias", config.hidden, scale=0.1)

    hidden = config.hidden
    tables = {"word": config.vocab, "position": config.positions}
    if config.token_types != "none":
        tables["token_type"] = config.types
    for table, rows in tables.items():
        normal(f"embeddings.{table}_embeddings.weight", rows, hidden)
    norm("embeddings.LayerNorm")
    for i in range(config.layers):
        layer = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{name}", hidden, hidden)
        linear(f"{layer}.attention.output.dense", hidden, hidden)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", hidden, config.ffn)
        linear(f"{layer}.output.dense", config.ffn, hidden)
        norm(f"{layer}.output.LayerNorm")
    linear("pooler.dense", hidden, hidden)
    linear("classifier", hidden, config.labels)
    return weights


def _norm(g: GraphBuilder, config: BertConfig, weights: Weights, x: str, name: str) -> str:
    gamma = g.weight(f"{name}.weight", weights[f"{name}.weight"])
    beta = g.weight(f"{name}.bias", weights[f"{name}.bias"])
    return NORM[config.norm](g, x, gamma, beta, config.epsilon)


def _linear(g: GraphBuilder, config: BertConfig, weights: Weights, x: str, name: str) -> str:
    return LINEAR[config.linear](g, x, name, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _positions(g: GraphBuilder, config: BertConfig, weights: Weights, ids: str) -> str:
    """Position embeddings of shape [1, sequence, hidden]."""
    name = "embeddings.position_embeddings.weight"
    table, length = g.weight(name, weights[name]), g.size(ids, 1)
    if config.position_form == "slice_table":
        ends = g.op("Unsqueeze", length, g.ints(0))
        rows = g.op("Slice", table, g.ints(0), ends, g.ints(0), g.ints(1))
        return g.op("Unsqueeze", rows, g.ints(0))
    if config.position_form == "range":
        counted = g.op("Range", g.const(0, np.int64), length, g.const(1, np.int64))
        places = g.op("Unsqueeze", counted, g.ints(0))
    else:
        every = np.arange(config.positions, dtype=np.int64)[None]
        ends = g.op("Unsqueeze", length, g.ints(0))
        all_ids = g.weight("embeddings.position_ids", every)
        places = g.op("Slice", all_ids, g.ints(0), ends, g.ints(1), g.ints(1))
    return g.op("Gather", table, places, axis=0)


def _token_types(g: GraphBuilder, config: BertConfig, weights: Weights, ids: str) -> str:
    """Token-type embeddings of shape [batch, sequence, hidden]."""
    name = "embeddings.token_type_embeddings.weight"
    if config.token_types == "input":
        kinds = g.input("token_type_ids", np.int64, (config.batch, config.sequence))
    else:
        buffer = g.weight("embeddings.token_type_ids", np.zeros((1, config.positions), np.int64))
        ends = g.op("Unsqueeze", g.size(ids, 1), g.ints(0))
        row = g.op("Slice", buffer, g.ints(0), ends, g.ints(1), g.ints(1))
        kinds = g.op("Expand", row, g.dims(g.size(ids, 0), g.size(ids, 1)))
    return g.op("Gather", g.weight(name, weights[name]), kinds, axis=0)


def _embeddings(g: GraphBuilder, config: BertConfig, weights: Weights, ids: str) -> str:
    name = "embeddings.word_embeddings.weight"
    x = g.op("Gather", g.weight(name, weights[name]), ids, axis=0)
    if config.token_types != "none":
        x = g.op("Add", x, _token_types(g, config, weights, ids))
    x = g.op("Add", x, _positions(g, config, weights, ids))
    return _norm(g, config, weights, x, "embeddings.LayerNorm")


def _attention(
    g: GraphBuilder,
    config: BertConfig,
    weights: Weights,
    x: str,
    layer: str,
    dialect: MaskDialect | None,
    mask: str,
) -> str:
    def project(name: str) -> str:
        return _linear(g, config, weights, x, f"{layer}.attention.self.{name}")

    def weigh(q: str, k_t: str) -> str:
        scores = SCORES[config.scores](g, q, k_t, config.head_size)
        if dialect is not None:
            scores = dialect.apply(g, scores, mask)
        p = g.op("Softmax", scores, axis=-1)
        if dialect is None or not dialect.nan_guard:
            return p
        return g.op("Where", g.op("IsNaN", p), g.const(0.0), p)

    y = attention(g, project, (config.heads, config.head_size), weigh, config.reshape)
    return _linear(g, config, weights, y, f"{layer}.attention.output.dense")


def bert_graph(config: BertConfig, weights: Weights, name: str = "bert") -> onnx.ModelProto:
    """Build the encoder over given weights.

    Args:
        config: Sizes and form.
        weights: Arrays under the names of `random_weights`, f32.
        name: Graph name.

    Returns:
        A checked model with inputs `input_ids` [batch, sequence] int64, `attention_mask` of the
        same shape in `mask_dtype` and, where the config says so, `token_type_ids` int64; the
        outputs are those of the head.
    """
    g = GraphBuilder(name, config.opset, config.constant_nodes)
    shape = (config.batch, config.sequence)
    ids = g.input("input_ids", np.int64, shape)
    dtype = np.dtype(config.mask_dtype)
    mask = MaskInput(g.input("attention_mask", dtype, shape), dtype)
    dialect = MASKS.get(config.mask)
    prepared = dialect.prepare(g, mask) if dialect is not None else ""
    x = _embeddings(g, config, weights, ids)
    for i in range(config.layers):
        layer = f"encoder.layer.{i}"
        y = _attention(g, config, weights, x, layer, dialect, prepared)
        x = _norm(g, config, weights, g.op("Add", y, x), f"{layer}.attention.output.LayerNorm")
        y = _linear(g, config, weights, x, f"{layer}.intermediate.dense")
        y = ACTIVATION[config.activation](g, y)
        y = _linear(g, config, weights, y, f"{layer}.output.dense")
        x = _norm(g, config, weights, g.op("Add", y, x), f"{layer}.output.LayerNorm")
    HEADS[config.head](g, x, mask, shape, weights)
    return g.model()


def bert(config: BertConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the encoder with random weights."""
    return bert_graph(config, random_weights(config, rng))
