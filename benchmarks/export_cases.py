"""Architectures that people export, small and with random weights, as data.

torch and transformers are imported when a model is made; they come by `make libs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

Sizes = tuple[int | str, ...]
Settings = Mapping[str, Any]

SCRIPT, DYNAMO = "TorchScript", "dynamo"
BOTH = (SCRIPT, DYNAMO)
LAYERS, HEADS, WIDTH, HIDDEN, FFN, VOCABULARY, POSITIONS = 2, 4, 64, 256, 1024, 1000, 512
GROUPS = 2  # of heads that share keys and values
BATCH, SEQUENCE, TARGET, PAST = "batch_size", "sequence_length", "decoder_length", "past_length"
TOTAL = f"{PAST} + {SEQUENCE}"
#: With which models are exported, and run: the second ones, which are other than each other.
EXAMPLE = {BATCH: 2, SEQUENCE: 24, TARGET: 10, PAST: 5, "samples": 3200, "images": 2}
RUN = {BATCH: 3, SEQUENCE: 40, TARGET: 17, PAST: 7, "samples": 4000, "images": 2}


def entries(prefix: str) -> tuple[str, ...]:
    """Names of a cache's tensors, e.g. `present.0.key`."""
    return tuple(f"{prefix}.{i}.{part}" for i in range(LAYERS) for part in ("key", "value"))


TOKENS = ("input_ids", "attention_mask")
TYPED = (*TOKENS, "token_type_ids")
PLACED = (*TOKENS, "position_ids")
CACHED = (*PLACED, *entries("past_key_values"))
PAIR = (*TOKENS, "decoder_input_ids", "decoder_attention_mask")
PRESENT = ("logits", *entries("present"))
STATES = ("last_hidden_state",)
SENTENCE: Mapping[str, Sizes] = {"logits": (BATCH,), "sentence_embedding": (BATCH,)}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model of transformers, and how people export it.

    Args:
        name: Name on the command line and in the table.
        model: Its class.
        config: The class of its configuration, without `Config`.
        settings: Of the configuration.
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        padding: The option that is tried beside none; empty: no input is a mask.
        sizes: Of inputs and outputs, those in front at least, where they are not [batch, sequence].
        exporters: What writes it.
        pooled: The output is the normalised mean of the tokens.
        arguments: Of the model beside its configuration.
        heads: Of keys and values in a cache.
    """

    name: str
    model: str
    config: str
    settings: Settings
    inputs: tuple[str, ...] = TOKENS
    outputs: tuple[str, ...] = STATES
    padding: str = "attention_mask"
    sizes: Mapping[str, Sizes] | None = None
    exporters: tuple[str, ...] = (SCRIPT,)
    pooled: bool = False
    arguments: Settings | None = None
    heads: int = HEADS

    def module(self) -> Any:
        """The model, its weights drawn with a fixed seed."""
        hf = import_module("transformers")
        import_module("torch").manual_seed(0)
        config = getattr(hf, f"{self.config}Config")(**self.settings)
        return attrgetter(self.model)(hf)(config, **(self.arguments or {})).eval()

    def sizes_of(self, name: str) -> Sizes:
        """Sizes of an input or output, and names of those that are free."""
        if self.sizes and name in self.sizes:
            return self.sizes[name]
        total = TOTAL if "past_key_values.0.key" in self.inputs else SEQUENCE
        if name.startswith(("past", "present")):
            return (BATCH, self.heads, PAST if name.startswith("past") else total, WIDTH)
        if name.startswith("decoder") or (name in STATES and self.inputs == PAIR):
            return (BATCH, TARGET)
        return (BATCH, total if name == "attention_mask" else SEQUENCE)


LAYOUT = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
WORDS = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS}
ENCODER = {**WORDS, **LAYOUT, "intermediate_size": FFN}
OFFSET = ENCODER | {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}
DECODER = ENCODER | {"num_key_value_heads": GROUPS}
GPT2 = {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": HIDDEN, "n_layer": LAYERS}
GPT2 |= {"n_head": HEADS}
T5 = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "d_kv": WIDTH, "d_ff": FFN}
T5 |= {"num_layers": LAYERS, "num_heads": HEADS, "use_cache": False}
CLIP_TEXT = ENCODER | {"max_position_embeddings": 77, "projection_dim": 128, "eos_token_id": 999}
VISION = LAYOUT | {"intermediate_size": FFN, "image_size": 64, "patch_size": 16}
IMAGES: Mapping[str, Sizes] = {
    "pixel_values": ("images", 3, 64, 64),
    "last_hidden_state": ("images",),
}
NONE: Settings = {"use_cache": False}
NO_POOLER: Settings = {"add_pooling_layer": False}
QWEN3 = DECODER | {"head_dim": WIDTH}
AUDIO = {**LAYOUT, "intermediate_size": FFN, "conv_dim": [64] * 7, "mask_time_prob": 0.0}
DEBERTA = {
    **ENCODER,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 32,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
BART = {
    **WORDS,
    "d_model": HIDDEN,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": FFN,
    "decoder_ffn_dim": FFN,
    "use_cache": False,
}

ARCHITECTURES = (
    Architecture(
        "albert",
        "AlbertModel",
        "Albert",
        ENCODER | {"embedding_size": 128},
        TYPED,
        arguments=NO_POOLER,
    ),
    Architecture(
        "bart", "BartModel", "Bart", BART, PAIR, padding="attention_mask,decoder_attention_mask"
    ),
    Architecture("bert", "BertModel", "Bert", ENCODER, TYPED, exporters=BOTH, arguments=NO_POOLER),
    Architecture(
        "bert-meanpool",
        "BertModel",
        "Bert",
        ENCODER,
        TYPED,
        ("sentence_embedding",),
        sizes=SENTENCE,
        exporters=BOTH,
        pooled=True,
        arguments=NO_POOLER,
    ),
    Architecture("bert-ner", "BertForTokenClassification", "Bert", ENCODER, TYPED, ("logits",)),
    Architecture(
        "bert-reranker",
        "BertForSequenceClassification",
        "Bert",
        ENCODER | {"num_labels": 1},
        TYPED,
        ("logits",),
        sizes=SENTENCE,
        exporters=BOTH,
    ),
    Architecture(
        "bigbird-full",
        "BigBirdModel",
        "BigBird",
        ENCODER | {"attention_type": "original_full"},
        TYPED,
        arguments=NO_POOLER,
    ),
    Architecture(
        "clip-both",
        "CLIPModel",
        "CLIP",
        {"text_config": CLIP_TEXT, "vision_config": VISION, "projection_dim": 128},
        (*TOKENS, "pixel_values"),
        ("text_embeds", "image_embeds"),
        sizes={**IMAGES, "text_embeds": (BATCH,), "image_embeds": ("images",)},
    ),
    Architecture(
        "clip-text",
        "CLIPTextModel",
        "CLIPText",
        CLIP_TEXT,
        outputs=(*STATES, "pooler_output"),
        sizes={"pooler_output": (BATCH,)},
    ),
    Architecture("deberta-v2", "DebertaV2Model", "DebertaV2", DEBERTA, exporters=BOTH),
    Architecture(
        "distilbert",
        "DistilBertModel",
        "DistilBert",
        {**WORDS, "dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": FFN},
    ),
    Architecture("electra", "ElectraModel", "Electra", ENCODER | {"embedding_size": 128}, TYPED),
    Architecture(
        "funnel",
        "FunnelModel",
        "Funnel",
        {
            **{"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_head": HEADS, "d_head": WIDTH},
            **{"d_inner": FFN, "block_sizes": [1, 1], "num_decoder_layers": 1},
        },
        TYPED,
    ),
    Architecture("gpt2", "GPT2Model", "GPT2", GPT2 | NONE, PLACED),
    Architecture("gpt2-cache", "GPT2LMHeadModel", "GPT2", GPT2, CACHED, PRESENT),
    Architecture("llama", "LlamaModel", "Llama", DECODER | NONE, PLACED, exporters=BOTH),
    Architecture(
        "llama-cache",
        "LlamaForCausalLM",
        "Llama",
        DECODER,
        CACHED,
        PRESENT,
        exporters=BOTH,
        heads=GROUPS,
    ),
    Architecture(
        "longformer",
        "LongformerModel",
        "Longformer",
        OFFSET | {"attention_window": [16, 16]},
        arguments=NO_POOLER,
    ),
    Architecture(
        "modernbert",
        "ModernBertModel",
        "ModernBert",
        ENCODER | {"pad_token_id": 0, "global_attn_every_n_layers": 2, "local_attention": 16},
        exporters=BOTH,
    ),
    Architecture(
        "mpnet",
        "MPNetModel",
        "MPNet",
        ENCODER | {"max_position_embeddings": POSITIONS + 2},
        arguments=NO_POOLER,
    ),
    Architecture(
        "opt",
        "OPTModel",
        "OPT",
        {
            **{"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "ffn_dim": FFN},
            **{"word_embed_proj_dim": HIDDEN},
            **LAYOUT,
            **NONE,
        },
    ),
    Architecture("qwen2", "Qwen2Model", "Qwen2", DECODER | NONE, PLACED),
    Architecture(
        "qwen2-cache", "Qwen2ForCausalLM", "Qwen2", DECODER, CACHED, PRESENT, heads=GROUPS
    ),
    Architecture(
        "qwen3-embed",
        "Qwen3Model",
        "Qwen3",
        QWEN3 | NONE,
        PLACED,
        ("sentence_embedding",),
        sizes=SENTENCE,
        pooled=True,
    ),
    Architecture("roberta", "RobertaModel", "Roberta", OFFSET, arguments=NO_POOLER),
    Architecture(
        "swin",
        "SwinModel",
        "Swin",
        {
            **{"image_size": 64, "patch_size": 4, "window_size": 4, "embed_dim": 64},
            **{"depths": [2, 2], "num_heads": [2, 4]},
        },
        ("pixel_values",),
        padding="",
        sizes=IMAGES,
        arguments=NO_POOLER,
    ),
    Architecture(
        "switch-encoder",
        "SwitchTransformersEncoderModel",
        "SwitchTransformers",
        T5
        | {
            **{"num_experts": 4, "expert_capacity": 8, "num_sparse_encoder_layers": 1},
            "initializer_factor": 10.0,  # so that every expert is chosen
        },
    ),
    Architecture("t5-encoder", "T5EncoderModel", "T5", T5, exporters=BOTH),
    Architecture(
        "vit",
        "ViTModel",
        "ViT",
        VISION,
        ("pixel_values",),
        padding="",
        sizes=IMAGES,
        arguments=NO_POOLER,
    ),
    Architecture(
        "wav2vec2",
        "Wav2Vec2Model",
        "Wav2Vec2",
        AUDIO,
        ("input_values", "attention_mask"),
        padding="/model/Cast_2_output_0",  # bools of frames, made of the mask of samples
        sizes={
            "input_values": (BATCH, "samples"),
            "attention_mask": (BATCH, "samples"),
            "last_hidden_state": (BATCH, "frames"),
        },
    ),
    Architecture(
        "whisper-encoder",
        "models.whisper.modeling_whisper.WhisperEncoder",
        "Whisper",
        {
            **{"d_model": HIDDEN, "encoder_layers": LAYERS, "encoder_attention_heads": HEADS},
            **{"encoder_ffn_dim": FFN, "max_source_positions": 64, "vocab_size": VOCABULARY},
            **{"decoder_layers": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        },
        ("input_features",),
        padding="",
        sizes={
            "input_features": (BATCH, 80, 128),
            "last_hidden_state": (BATCH,),
        },
    ),
    Architecture("xlm-r", "XLMRobertaModel", "XLMRoberta", OFFSET, arguments=NO_POOLER),
    Architecture(
        "xlm-r-reranker",
        "XLMRobertaForSequenceClassification",
        "XLMRoberta",
        OFFSET | {"num_labels": 1},
        outputs=("logits",),
        sizes=SENTENCE,
    ),
    Architecture(
        "xlnet",
        "XLNetModel",
        "XLNet",
        {
            **{"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_layer": LAYERS, "n_head": HEADS},
            **{"d_inner": FFN, "use_mems_eval": False},
        },
        TYPED,
    ),
)

#: Why an architecture is not packed, found by hand.
WHY: Mapping[str, str] = {
    "clip-both": "the text vector is the row of the first end-of-text token. This may be a padded "
    "row, so every row is read",
    "clip-text": "`pooler_output` is the row of the first end-of-text token. This may be a padded "
    "row, so every row is read. Without that output, 100 % run packed; take the row in your "
    "program",
    "funnel": "a row of a pooled block stands for two tokens. The number of rows is a rounded "
    "quotient, so pitc cannot prove that the output has one row per token",
    "longformer": "the model pads tokens to a multiple of the window, by a number that it computes "
    "at run time, and cuts them into overlapping windows. [`pitc.from_torch`](#longformer-and-led) "
    "writes masks instead",
    "swin": "no input is a mask",
    "switch-encoder": "an expert takes a limited number of tokens and drops later ones. Padded "
    "tokens count, so real tokens depend on them",
    "vit": "no input is a mask",
    "whisper-encoder": "no input is a mask. Sound is padded to 30 seconds, and attention reads the "
    "padding",
    "xlnet": "the model shifts relative positions: it reshapes `[q, 2q]` to `[2q, q]` and back "
    "without the first row. The query of an element is then no affine function of its position. "
    "The last layer needs no queries of padded tokens",
}
