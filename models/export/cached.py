"""Decoders that carry a cache of keys and values from call to call, as users export them.

Names of inputs, outputs and sizes are those of the tool that most users take. The past may have
length 0: one file then serves the first call, which reads the whole prompt, and all later ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

from models.export.architectures import SMALL, WORDS, with_attention
from models.export.inputs import BATCH, PAST, SEQUENCE, TRACED, Export, Free

LAYERS, HEADS, WIDTH, ENCODED = 2, 4, 8, 6
NEW, OLD, ENCODER = "sequence_length", "past_sequence_length", "encoder_sequence_length"
SIZES = {"batch_size": BATCH, NEW: SEQUENCE, OLD: PAST, ENCODER: ENCODED}
TOTAL = f"{OLD} + {NEW}"
PARTS = ("key", "value")


def entries(prefix: str, *kinds: str) -> tuple[str, ...]:
    """Names of a cache's tensors, e.g. `present.0.key` or `present.0.decoder.key`."""
    return tuple(
        ".".join((prefix, str(layer), *filter(None, [kind]), part))
        for layer in range(LAYERS)
        for kind in kinds or ("",)
        for part in PARTS
    )


@dataclass(frozen=True)
class Cached(Export):
    """A decoder with a cache.

    Args:
        heads: Heads of its keys and values.
    """

    outputs: tuple[str, ...] = ("logits", *entries("present"))
    heads: int = HEADS

    def _new(self) -> str:
        """The size of what a call adds, beside the past."""
        return TOTAL if any(n.startswith("past") for n in self.inputs) else NEW

    def free(self, name: str) -> Free:
        """Names of the free dimensions of an input or output."""
        if name.startswith(("past", "present")):
            size = OLD if name.startswith("past") else self._new()
            return {0: "batch_size", 2: ENCODER if ".encoder." in name else size}
        if "mask" in name:
            return {0: "batch_size", 1: ENCODER if name.startswith("encoder") else self._new()}
        return {0: "batch_size", 1: NEW}

    def dynamic(self) -> tuple[Any, ...]:
        """What the dynamo exporter is told: names alone, for it takes no sum of two as a size."""
        return tuple(self.free(n) for n in self.inputs)

    def example(self, name: str) -> torch.Tensor:
        """An example of an input; the first sequence is padded on the left."""
        sizes = [sum(SIZES[part] for part in d.split(" + ")) for d in self.free(name).values()]
        if name.startswith("past"):
            return torch.randn(sizes[0], self.heads, sizes[1], WIDTH)
        if "mask" in name:
            mask = torch.ones(sizes, dtype=self.mask_dtype)
            mask[0, :2] = 0
            return mask
        if name == "position_ids":
            return torch.arange(PAST, PAST + sizes[1]).expand(sizes).contiguous()
        return torch.randint(2, 90, sizes)


class WithCache(torch.nn.Module):
    """A decoder whose cache is plain tensors, in and out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits of the tokens, and all keys and values."""
        past = [inputs.pop(n) for n in entries("past_key_values") if n in inputs]
        cache = _filled(past)
        found = self.model(**inputs, past_key_values=cache, use_cache=True)
        present = zip(entries("present"), _tensors(cache), strict=True)
        return {"logits": found.logits, **dict(present)}


class DecoderWithCache(torch.nn.Module):
    """The decoder of a pair; it has read the encoder's result in an earlier call."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits of the tokens, and all keys and values of the decoder's own."""
        own, other = (
            [inputs[n] for n in entries("past_key_values", kind)] for kind in ("decoder", "encoder")
        )
        cache = hf.EncoderDecoderCache(_filled(own), _filled(other))
        cache.is_updated = dict.fromkeys(range(LAYERS), True)
        encoded = other[0].new_zeros(other[0].shape[0], other[0].shape[2], SMALL["hidden_size"])
        found = self.model(
            decoder_input_ids=inputs["input_ids"],
            attention_mask=inputs["encoder_attention_mask"],
            encoder_outputs=(encoded,),  # its keys and values are in the cache: nobody reads it
            past_key_values=cache,
            use_cache=True,
        )
        present = _tensors(found.past_key_values.self_attention_cache)
        named = zip(entries("present", "decoder"), present, strict=True)
        return {"logits": found.logits, **dict(named)}


def _filled(past: list[torch.Tensor]) -> Any:
    cache = hf.DynamicCache()
    for layer, (key, value) in enumerate(zip(past[::2], past[1::2], strict=True)):
        cache.update(key, value, layer)
    return cache


def _tensors(cache: Any) -> Iterator[torch.Tensor]:
    for layer in cache.layers:
        yield from (layer.keys, layer.values)


def _gpt2(attention: str) -> Any:
    config = hf.GPT2Config(vocab_size=100, n_positions=64, n_embd=32, n_layer=LAYERS, n_head=HEADS)
    return hf.GPT2LMHeadModel(with_attention(config, attention))


def _opt(attention: str) -> Any:
    config = hf.OPTConfig(ffn_dim=64, word_embed_proj_dim=32, **WORDS, **SMALL)
    return hf.OPTForCausalLM(with_attention(config, attention))


def _llama(attention: str) -> Any:
    config = hf.LlamaConfig(intermediate_size=48, num_key_value_heads=2, **WORDS, **SMALL)
    return hf.LlamaForCausalLM(with_attention(config, attention))


def _t5(attention: str) -> Any:
    config = hf.T5Config(
        vocab_size=100, d_model=32, d_kv=WIDTH, d_ff=64, num_layers=LAYERS, num_heads=HEADS
    )
    return hf.T5ForConditionalGeneration(with_attention(config, attention))


def _with(make: Callable[[str], Any], kind: type[torch.nn.Module]) -> Callable[[str], Any]:
    return lambda attention: kind(make(attention))


PLACED = ("input_ids", "attention_mask", "position_ids")
UNPLACED = PLACED[:2]  # OPT counts the mask
PAST_INPUTS = entries("past_key_values")
DECODER_INPUTS = (
    "encoder_attention_mask",
    "input_ids",
    *entries("past_key_values", "decoder", "encoder"),
)
MODELS: dict[str, Export] = {
    "gpt2-past": Cached(_with(_gpt2, WithCache), inputs=(*PLACED, *PAST_INPUTS)),
    "gpt2-cache": Cached(_with(_gpt2, WithCache), ("sdpa",), PLACED),
    "opt-past": Cached(_with(_opt, WithCache), ("sdpa",), (*UNPLACED, *PAST_INPUTS)),
    "opt-cache": Cached(_with(_opt, WithCache), ("sdpa",), UNPLACED, exporters=(TRACED,)),
    "llama-past": Cached(_with(_llama, WithCache), ("sdpa",), (*PLACED, *PAST_INPUTS), heads=2),
    "t5-past": Cached(
        _with(_t5, DecoderWithCache),
        ("eager",),
        DECODER_INPUTS,
        ("logits", *entries("present", "decoder")),
    ),
}
