"""What is exported for its masks: windows, packed documents, soft caps, sinks, distances.

Sequences may be long (positions reach 512), so that windows, documents and tiles of 32 queries are
far shorter than a sequence. The files lie in a folder of their own: `masks`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

from models.export.architectures import SMALL, with_attention
from models.export.cached import PAST_INPUTS, PLACED, Cached, WithCache
from models.export.inputs import DYNAMO, SEQUENCE, TRACED, Export

LONGEST, WINDOW = 512, 9
WORDS = {"vocab_size": 100, "max_position_embeddings": LONGEST}
GROUPED = {"intermediate_size": 48, "num_key_value_heads": 2, **WORDS, **SMALL}
FOLDER = "masks"


@dataclass(frozen=True)
class Masked(Export):
    """A model of long sequences."""

    folder: str = FOLDER

    def free(self, name: str) -> dict[int, str]:
        """Names of the free dimensions of an input or output."""
        if name == "pairs":
            return {0: "batch", 2: "sequence", 3: "sequence"}
        return super().free(name)

    def dynamic(self) -> tuple[Any, ...]:
        """What the dynamo exporter is told of every input's free dimensions."""
        limits = {"batch": (1, 64), "sequence": (2, LONGEST)}
        dims = {n: torch.export.Dim(n, min=a, max=b) for n, (a, b) in limits.items()}
        return tuple({k: dims[d] for k, d in self.free(n).items()} for n in self.inputs)

    def example(self, name: str) -> torch.Tensor:
        """An example of an input: two documents, of which the second is padded in the mask."""
        if name == "pairs":
            seen = torch.ones(2, 1, SEQUENCE, SEQUENCE).tril()
            return seen.bool() if self.mask_dtype == torch.bool else (seen - 1) * 3e38
        if name in ("position_ids", "segments"):
            numbers = [*range(4), *range(SEQUENCE - 4)] if name[0] == "p" else [0] * 4 + [1] * 3
            return torch.tensor([numbers] * 2)
        if name == "patches":
            return torch.randn(2, SEQUENCE, SMALL["hidden_size"])
        return super().example(name)


@dataclass(frozen=True)
class MaskedCache(Cached):
    """A decoder with a cache and a window."""

    folder: str = FOLDER


class PairsMasked(torch.nn.Module):
    """An encoder whose caller gives the mask of pairs [batch, 1, query, key]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, pairs: torch.Tensor) -> Any:
        """Run the model."""
        return self.model(input_ids=input_ids, attention_mask=pairs)


class PackedPatches(torch.nn.Module):
    """A vision encoder over patches of several images in one sequence: each image sees itself."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, patches: torch.Tensor, segments: torch.Tensor) -> Any:
        """Run the encoder on [batch, sequence, width] patches of numbered images."""
        same = segments[:, None, :, None] == segments[:, None, None, :]
        low = torch.finfo(patches.dtype).min
        mask = torch.zeros_like(same, dtype=patches.dtype).masked_fill(~same, low)
        return self.encoder(inputs_embeds=patches, attention_mask=mask)


def _gemma2(attention: str) -> Any:
    config = hf.Gemma2Config(
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        attn_logit_softcapping=5.0,
        use_cache=False,
        **GROUPED,
    )
    return hf.Gemma2Model(with_attention(config, attention))


def _gemma3(both_ways: bool) -> Callable[[str], Any]:
    def make(attention: str) -> Any:
        config = hf.Gemma3TextConfig(
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
            use_bidirectional_attention=both_ways,
            use_cache=False,
            **GROUPED,
        )
        return hf.Gemma3TextModel(with_attention(config, attention))

    return make


def _phi3(attention: str) -> Any:
    config = hf.Phi3Config(sliding_window=WINDOW, pad_token_id=0, use_cache=False, **GROUPED)
    return hf.Phi3Model(with_attention(config, attention))


def _llama(attention: str) -> Any:
    return hf.LlamaModel(with_attention(hf.LlamaConfig(use_cache=False, **GROUPED), attention))


def _mistral(kind: Any, **more: Any) -> Callable[[str], Any]:
    def make(attention: str) -> Any:
        config = hf.MistralConfig(sliding_window=WINDOW, **more, **GROUPED)
        return kind(with_attention(config, attention))

    return make


def _bloom(attention: str) -> Any:
    config = hf.BloomConfig(vocab_size=100, hidden_size=32, n_layer=2, n_head=4, use_cache=False)
    return hf.BloomModel(with_attention(config, attention))


def _t5_encoder(attention: str) -> Any:
    config = hf.T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return hf.T5EncoderModel(with_attention(config, attention))


def _bert(attention: str) -> Any:
    config = hf.BertConfig(intermediate_size=64, **WORDS, **SMALL)
    return PairsMasked(hf.BertModel(with_attention(config, attention), add_pooling_layer=False))


def _vision(attention: str) -> Any:
    from transformers.models.siglip.modeling_siglip import SiglipEncoder

    config = hf.SiglipVisionConfig(intermediate_size=64, **SMALL)
    return PackedPatches(SiglipEncoder(with_attention(config, attention)))


def _gpt_oss(attention: str) -> Any:
    config = hf.GptOssConfig(
        head_dim=8,
        sliding_window=WINDOW,
        num_local_experts=2,
        num_experts_per_tok=1,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        use_cache=False,
        **GROUPED,
    )
    config._experts_implementation = "batched_mm"
    return hf.GptOssModel(with_attention(config, attention))


PACKED = ("input_ids", "position_ids")
PAIRS = ("input_ids", "pairs")
PATCHES = ("patches", "segments")
CROSSWISE = (("eager", TRACED), ("sdpa", DYNAMO))
MODELS: dict[str, Export] = {
    "gemma2": Masked(_gemma2, ("eager",), exporters=(DYNAMO,)),  # sdpa has no soft cap
    "gemma3": Masked(_gemma3(False), ("sdpa",)),
    "gemma3-both-ways": Masked(_gemma3(True), ("sdpa",), exporters=(DYNAMO,)),
    "phi3": Masked(_phi3, left_out=CROSSWISE),
    "llama-packed": Masked(_llama, ("sdpa",), PACKED, exporters=(DYNAMO,)),
    "mistral-packed": Masked(
        _mistral(hf.MistralModel, use_cache=False), ("eager",), PACKED, exporters=(DYNAMO,)
    ),
    "mistral-past": MaskedCache(
        lambda a: WithCache(_mistral(hf.MistralForCausalLM)(a)),
        ("sdpa",),
        (*PLACED, *PAST_INPUTS),
        heads=2,
    ),
    "bloom": Masked(_bloom, ("eager",)),
    "t5-long": Masked(_t5_encoder, ("sdpa",), exporters=(TRACED,)),
    "bert-pairs": Masked(_bert, ("sdpa",), PAIRS, mask_dtype=torch.bool),
    "bert-pairs-float": Masked(
        _bert, ("eager",), PAIRS, exporters=(DYNAMO,), mask_dtype=torch.float32
    ),
    "siglip-packed": Masked(_vision, inputs=PATCHES, left_out=CROSSWISE),
    "gpt-oss": Masked(_gpt_oss, ("eager",), exporters=(DYNAMO,)),
}
