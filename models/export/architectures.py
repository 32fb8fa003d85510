"""What is exported: small random models of real architectures, and heads that users put on them."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from models.export.inputs import DYNAMO, IMAGE, TRACED, Export

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS = {"vocab_size": 100, "max_position_embeddings": 64}
DECODER = ("decoder_input_ids", "decoder_attention_mask")
SEQ2SEQ = ("input_ids", "attention_mask", *DECODER)
GLOBAL = ("input_ids", "attention_mask", "global_attention_mask")


def with_attention(config: Any, attention: str) -> Any:
    """A config for one attention implementation."""
    config._attn_implementation = attention
    return config


def _bert_config(attention: str) -> Any:
    return with_attention(hf.BertConfig(intermediate_size=64, **WORDS, **SMALL), attention)


def _bert(attention: str) -> Any:
    return hf.BertModel(_bert_config(attention), add_pooling_layer=False)


def _classifier(attention: str) -> Any:
    return hf.BertForSequenceClassification(_bert_config(attention))


def _distilbert(attention: str) -> Any:
    config = hf.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, **WORDS)
    return hf.DistilBertModel(with_attention(config, attention))


def _roberta(attention: str) -> Any:
    config = hf.RobertaConfig(
        vocab_size=100, intermediate_size=64, max_position_embeddings=70, pad_token_id=1, **SMALL
    )
    return hf.RobertaModel(with_attention(config, attention), add_pooling_layer=False)


def _t5_config(kind: Any, **more: Any) -> Any:
    small = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return kind(vocab_size=100, use_cache=False, **small, **more)


def _t5_encoder(attention: str) -> Any:
    return hf.T5EncoderModel(with_attention(_t5_config(hf.T5Config), attention))


def _t5(attention: str) -> Any:
    config = _t5_config(hf.T5Config, num_decoder_layers=1)
    return hf.T5Model(with_attention(config, attention))


def _switch(attention: str) -> Any:
    config = _t5_config(
        hf.SwitchTransformersConfig,
        num_experts=4,
        expert_capacity=3,
        num_sparse_encoder_layers=1,
        initializer_factor=10.0,  # so that every expert is chosen
    )
    return hf.SwitchTransformersEncoderModel(with_attention(config, attention))


def _bart(attention: str) -> Any:
    config = hf.BartConfig(
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        use_cache=False,
        **WORDS,
    )
    return hf.BartModel(with_attention(config, attention))


def _opt(attention: str) -> Any:
    config = hf.OPTConfig(ffn_dim=64, word_embed_proj_dim=32, use_cache=False, **WORDS, **SMALL)
    return hf.OPTModel(with_attention(config, attention))


def _gpt2(attention: str) -> Any:
    config = hf.GPT2Config(
        vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=4, use_cache=False
    )
    return hf.GPT2Model(with_attention(config, attention))


def _llama(attention: str) -> Any:
    config = hf.LlamaConfig(
        intermediate_size=48, num_key_value_heads=2, use_cache=False, **WORDS, **SMALL
    )
    return hf.LlamaModel(with_attention(config, attention))


def _mistral(attention: str) -> Any:
    config = hf.MistralConfig(
        intermediate_size=48,
        num_key_value_heads=2,
        sliding_window=4,
        use_cache=False,
        **WORDS,
        **SMALL,
    )
    return hf.MistralModel(with_attention(config, attention))


def _modernbert(attention: str) -> Any:
    config = hf.ModernBertConfig(
        intermediate_size=48, local_attention=4, global_attn_every_n_layers=2, **WORDS, **SMALL
    )
    config.pad_token_id = 0
    return hf.ModernBertModel(with_attention(config, attention))


def _mixtral(experts: str) -> Callable[[str], Any]:
    def make(attention: str) -> Any:
        config = hf.MixtralConfig(
            intermediate_size=24,
            num_key_value_heads=2,
            num_local_experts=3,
            initializer_range=0.3,  # so that every expert is chosen
            use_cache=False,
            **WORDS,
            **SMALL,
        )
        config._experts_implementation = experts
        return hf.MixtralModel(with_attention(config, attention))

    return make


def _qwen3_moe(attention: str) -> Any:
    config = hf.Qwen3MoeConfig(
        intermediate_size=48,
        moe_intermediate_size=24,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        head_dim=8,
        initializer_range=0.3,
        use_cache=False,
        **WORDS,
        **SMALL,
    )
    return hf.Qwen3MoeModel(with_attention(config, attention))


def _deepseek_v3(attention: str) -> Any:
    config = hf.DeepseekV3Config(
        intermediate_size=48,
        moe_intermediate_size=24,
        num_key_value_heads=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        initializer_range=0.3,
        use_cache=False,
        **WORDS,
        **SMALL,
    )
    return hf.DeepseekV3Model(with_attention(config, attention))


def _longformer(attention: str) -> Any:
    config = hf.LongformerConfig(
        vocab_size=100,
        intermediate_size=64,
        max_position_embeddings=256,
        attention_window=[4, 2],
        pad_token_id=1,
        **SMALL,
    )
    return hf.LongformerModel(with_attention(config, attention), add_pooling_layer=False)


def _led(attention: str) -> Any:
    config = hf.LEDConfig(
        vocab_size=100,
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_encoder_position_embeddings=256,
        max_decoder_position_embeddings=64,
        attention_window=[4, 2],
        use_cache=False,
    )
    return hf.LEDModel(with_attention(config, attention))


def _vit(attention: str) -> Any:
    config = hf.ViTConfig(intermediate_size=64, image_size=IMAGE, patch_size=4, **SMALL)
    return hf.ViTModel(with_attention(config, attention), add_pooling_layer=False)


def _swin(attention: str) -> Any:
    config = hf.SwinConfig(
        image_size=IMAGE, patch_size=2, window_size=4, embed_dim=16, depths=[2, 1], num_heads=[2, 4]
    )
    return hf.SwinModel(with_attention(config, attention), add_pooling_layer=False)


def _resnet(_: str) -> Any:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic"
    )
    return hf.ResNetModel(config)


class MeanPooled(torch.nn.Module):
    """Sentence embeddings: the mean of the tokens under the mask."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """Embed [batch, sequence] tokens."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).expand(hidden.size()).float()
        total = (hidden * weight).sum(1)
        return {"sentence_embedding": total / weight.sum(1).clamp(min=1e-9)}


class FromLengths(torch.nn.Module):
    """The same with lengths [batch] instead of a mask."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.pooled = MeanPooled(model)

    def forward(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> Any:
        """Embed [batch, sequence] tokens."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        return self.pooled(input_ids, (places[None, :] < lengths[:, None]).long())


class Experts(torch.nn.Module):
    """An encoder with a layer of experts behind it, one per token.

    Args:
        model: The encoder.
        loop: Each expert takes its own tokens; otherwise all take all, and a mask keeps one result.
    """

    def __init__(self, model: Any, loop: bool) -> None:
        super().__init__()
        self.model, self.loop = model, loop
        self.gate = torch.nn.Parameter(torch.randn(32, 3))
        self.up = torch.nn.Parameter(torch.randn(3, 32, 48) / 6)
        self.down = torch.nn.Parameter(torch.randn(3, 48, 32) / 7)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """Run the model."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        tokens = hidden.reshape(-1, 32)
        weight, chosen = torch.softmax(tokens @ self.gate, -1).max(-1)
        if self.loop:
            out = torch.zeros_like(tokens)
            for k in range(3):
                rows = (chosen == k).nonzero().squeeze(-1)
                found = torch.relu(tokens[rows] @ self.up[k]) @ self.down[k]
                out = out.index_add(0, rows, found * weight[rows, None])
        else:
            found = torch.relu(tokens[None] @ self.up) @ self.down
            own = torch.nn.functional.one_hot(chosen, 3).T * weight
            out = (found * own[..., None]).sum(0)
        return {"last_hidden_state": hidden + out.reshape(hidden.shape)}


BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
MODELS: dict[str, Export] = {
    "bert": Export(_bert),
    "bert-classifier": Export(_classifier, outputs=("logits",)),
    "bert-mean": Export(lambda a: MeanPooled(_bert(a)), ("sdpa",), outputs=("sentence_embedding",)),
    "bert-lengths": Export(
        lambda a: FromLengths(_bert(a)),
        ("eager",),
        ("input_ids", "lengths"),
        ("sentence_embedding",),
    ),
    "bert-inputs": Export(_bert, ("sdpa",), BERT_INPUTS),
    "bert-bool": Export(_bert, ("sdpa",), exporters=(DYNAMO,), mask_dtype=torch.bool),
    "bert-float": Export(_bert, ("eager",), exporters=(TRACED,), mask_dtype=torch.float32),
    "bert-int32": Export(_bert, ("sdpa",), exporters=(TRACED,), mask_dtype=torch.int32),
    "experts-loop": Export(lambda a: Experts(_bert(a), True), ("sdpa",)),
    "experts-all": Export(lambda a: Experts(_bert(a), False), ("sdpa",)),
    "distilbert": Export(_distilbert),
    "roberta": Export(_roberta),
    "t5-encoder": Export(_t5_encoder, ("eager",)),
    "t5": Export(_t5, ("eager",), SEQ2SEQ),
    "bart": Export(_bart, inputs=SEQ2SEQ),
    # the loops over experts follow from data: only tracing writes them, for the experts it met
    "switch": Export(_switch, ("eager",), exporters=(TRACED,)),
    "mixtral": Export(_mixtral("eager"), ("sdpa",), exporters=(TRACED,)),
    "mixtral-batched": Export(_mixtral("batched_mm"), ("eager",)),
    # with their default form of experts, which `pitc.from_torch` replaces
    "qwen3-moe": Export(_qwen3_moe, ("sdpa",), exporters=(DYNAMO,)),
    "deepseek-v3": Export(_deepseek_v3, ("sdpa",), exporters=(DYNAMO,)),
    "opt": Export(_opt),
    "gpt2": Export(_gpt2),
    "llama": Export(_llama, ("sdpa",)),
    "mistral": Export(_mistral, ("sdpa",), exporters=(DYNAMO,)),
    "modernbert": Export(_modernbert, ("sdpa",)),
    # as `pitc.from_torch` exports them, which writes their windows as masks
    "longformer": Export(_longformer, ("eager",), GLOBAL, exporters=(DYNAMO,)),
    "led": Export(_led, ("eager",), (*GLOBAL, *DECODER), exporters=(DYNAMO,)),
    "vit": Export(_vit, inputs=("pixel_values",)),
    "swin": Export(_swin, ("eager",), ("pixel_values",)),
    "resnet": Export(_resnet, ("relu",), ("pixel_values",)),
}
