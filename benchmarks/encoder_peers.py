"""Libraries that run a BERT from the weights of its checkpoint, which the ONNX file holds.

Each function gets a workload and makes what runs one dense batch. Conversion, and compilation in
the first call, are not timed. CTranslate2 gets the lengths and drops padding by itself, but not in
attention. It is not given token types: they are 0, which it assumes.
"""

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import weights
from benchmarks.workload import MASK, Array, Feeds, Infer, Workload
from models.bert import BertConfig

Pool = Callable[[Array, Array], Array]


def _rows(hidden: Array, _: Array) -> Array:
    return hidden


def _unit_mean(hidden: Array, mask: Array) -> Array:
    """Means over the tokens, divided by their norm, which cancels the number of tokens."""
    live = mask[:, None].astype(np.float32)
    total = (live @ np.where(mask[..., None], hidden, np.float32(0)))[:, 0]
    return np.asarray(total / np.linalg.norm(total, axis=1, keepdims=True))


#: Head of a model -> its answer for hidden states [batch, sequence, hidden] and the mask.
HEADS: dict[str, Pool] = {"none": _rows, "mean_normalised": _unit_mean}


def is_bert(workload: Workload) -> bool:
    """True of a BERT of float32 weights that these libraries have: its GELU is the exact one."""
    bert = workload.bert
    return bert is not None and bert.activation == "gelu_erf" and bert.head in HEADS


def is_rounded_bert(workload: Workload) -> bool:
    """True of such a BERT whose user takes rounded products."""
    return is_bert(workload) and workload.precision == "bf16"


def _bert(workload: Workload) -> BertConfig:
    if workload.bert is None:
        raise TypeError(f"{workload.model.name} is no BERT of float32 weights")
    return workload.bert


def checkpoint(workload: Workload) -> dict[str, Array]:
    """The weights under the names of checkpoints; matrices are [out, in]."""
    known = {n: x for n, x in weights(workload).items() if n.endswith(("weight", "bias"))}
    turned = {n: x for n, x in weights(workload).items() if n.endswith("weight_t")}
    known |= {name.removesuffix("_t"): np.ascontiguousarray(x.T) for name, x in turned.items()}
    return known


# --- CTranslate2 ----------------------------------------------------------------------------------


def _write(workload: Workload, folder: Path) -> None:
    """Write the model as the library's converter of checkpoints does, without a pooler."""
    # By name: type checkers run where it is not installed.
    common = importlib.import_module("ctranslate2.specs.common_spec")
    specs = importlib.import_module("ctranslate2.specs.transformer_spec")
    bert, known = _bert(workload), checkpoint(workload)

    def linear(spec: Any, *names: str) -> None:
        spec.weight, spec.bias = (
            np.concatenate([known[f"{name}.{part}"] for name in names])
            for part in ("weight", "bias")
        )

    def norm(spec: Any, name: str) -> None:
        spec.gamma, spec.beta = known[f"{name}.weight"], known[f"{name}.bias"]

    encoder = specs.TransformerEncoderSpec(
        bert.layers,
        bert.heads,
        pre_norm=False,
        activation=common.Activation.GELU,
        layernorm_embedding=True,
        num_source_embeddings=2,
        embeddings_merge=common.EmbeddingsMerge.ADD,
    )
    encoder.scale_embeddings = False
    for spec, table in zip(encoder.embeddings, ("word", "token_type"), strict=True):
        spec.weight = known[f"embeddings.{table}_embeddings.weight"]
    encoder.position_encodings.encodings = known["embeddings.position_embeddings.weight"]
    norm(encoder.layernorm_embedding, "embeddings.LayerNorm")
    for i, spec in enumerate(encoder.layer):
        layer, attention = f"encoder.layer.{i}", spec.self_attention
        projections = (f"{layer}.attention.self.{name}" for name in ("query", "key", "value"))
        linear(attention.linear[0], *projections)
        linear(attention.linear[1], f"{layer}.attention.output.dense")
        norm(attention.layer_norm, f"{layer}.attention.output.LayerNorm")
        linear(spec.ffn.linear_0, f"{layer}.intermediate.dense")
        linear(spec.ffn.linear_1, f"{layer}.output.dense")
        norm(spec.ffn.layer_norm, f"{layer}.output.LayerNorm")
    model = specs.TransformerEncoderModelSpec(encoder)
    model.register_vocabulary([str(i) for i in range(bert.vocab)])  # it is given ids
    model.config.unk_token, model.config.layer_norm_epsilon = "0", bert.epsilon
    model.validate()
    model.optimize()
    model.save(str(folder))


def ctranslate2(compute_type: str, workload: Workload) -> Infer:
    """CTranslate2, one thread, in this type; weights are rounded to it where they are loaded."""
    library = importlib.import_module("ctranslate2")
    pool = HEADS[_bert(workload).head]
    with tempfile.TemporaryDirectory() as folder:
        _write(workload, Path(folder))
        encoder = library.Encoder(
            folder, "cpu", compute_type=compute_type, inter_threads=1, intra_threads=1
        )

    def infer(feeds: Feeds) -> Array:
        mask = feeds[MASK]
        given = (feeds["input_ids"].astype(np.int32), mask.sum(1, dtype=np.int32))
        ids, lengths = map(library.StorageView.from_array, given)
        return pool(np.asarray(encoder.forward_batch(ids, lengths).last_hidden_state), mask)

    return infer


# --- torch ----------------------------------------------------------------------------------------


def torch_bf16(workload: Workload) -> Infer:
    """The model of transformers, compiled, under autocast to bfloat16, with its weights frozen.

    Dimensions are dynamic; a batch of one sequence is compiled once more.
    """
    import torch  # pyright: ignore[reportMissingImports]
    import torch._inductor.config  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    torch.compiler.reset()  # what earlier cases have compiled counts against a limit
    torch._inductor.config.freezing = True  # weights are rounded and packed once
    bert = _bert(workload)
    pool = HEADS[bert.head]
    config = transformers.BertConfig(
        vocab_size=bert.vocab,
        hidden_size=bert.hidden,
        num_hidden_layers=bert.layers,
        num_attention_heads=bert.heads,
        intermediate_size=bert.ffn,
        max_position_embeddings=bert.positions,
        type_vocab_size=bert.types,
        layer_norm_eps=bert.epsilon,
        hidden_act="gelu",
        attn_implementation="sdpa",
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    known = {name: torch.from_numpy(np.array(x)) for name, x in checkpoint(workload).items()}
    model.load_state_dict(known)
    compiled = torch.compile(model, dynamic=True)

    def infer(feeds: Feeds) -> Array:
        given = {name: torch.from_numpy(x) for name, x in feeds.items()}
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = compiled(**given).last_hidden_state
        return pool(hidden.float().numpy(), feeds[MASK])

    return infer
