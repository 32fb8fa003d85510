"""Longformer and LED, exported as dense attention under masks, against transformers itself."""

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers as hf
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

import pitc
from pitc.frontends.pretrained import export_checkpoint
from pitc.frontends.pytorch import export
from pitc.frontends.rewrites import added_inputs, rewritten
from tests.integrations.conftest import TEXTS

SIZES = (1, 2, 17, 63, 64, 65, 200)
TARGET = 5
SMALL = {"attention_window": [8, 4], "initializer_range": 0.3}  # a window per layer


def longformer(kind: Any = hf.LongformerModel, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    words = {"vocab_size": 100, "max_position_embeddings": 260, "pad_token_id": 1}
    return kind(hf.LongformerConfig(intermediate_size=64, **words, **sizes, **SMALL, **more)).eval()


def led() -> Any:
    torch.manual_seed(0)
    sides = ("encoder", "decoder")
    sizes: dict[str, Any] = {f"{side}_attention_heads": 4 for side in sides}
    sizes |= {f"{side}_ffn_dim": 64 for side in sides}
    sizes |= {f"max_{side}_position_embeddings": 260 for side in sides}
    config = hf.LEDConfig(
        vocab_size=100, d_model=32, encoder_layers=2, decoder_layers=1, use_cache=False, **sizes,
        attention_window=SMALL["attention_window"], init_std=0.1,
    )  # fmt: skip
    return hf.LEDModel(config).eval()


def masks(batch: int, s: int) -> Iterator[dict[str, torch.Tensor]]:
    """Padding on every side and of whole sequences, and global tokens: none to all."""
    at, lengths = torch.arange(s), torch.randint(1, s + 1, (batch, 1))
    empty = torch.ones(batch, s)
    empty[-1] = 0
    padded = [torch.ones(batch, s), at < lengths, at >= s - lengths, torch.rand(batch, s) < 0.6]
    every = at.expand(batch, s)
    chosen = [every < 0, every == 0, every % 7 == 3, every >= 0, torch.rand(batch, s) < 0.2]
    for mask, tokens in product([*padded, empty], chosen):
        yield {"attention_mask": mask.long(), "global_attention_mask": tokens.long()}


def inputs(module: Any, batch: int, s: int) -> Iterator[dict[str, torch.Tensor]]:
    ids = {"input_ids": torch.randint(2, 100, (batch, s))}
    if isinstance(module, hf.LEDModel):
        ids["decoder_input_ids"] = torch.randint(2, 100, (batch, TARGET))
    yield from (ids | found for found in masks(batch, s))


def free(feeds: Iterable[str]) -> dict[str, Any]:
    """Batch and sequence are free."""
    limits = {"batch": (1, 64), "sequence": (2, 256), "target": (2, 256)}
    dims = {n: torch.export.Dim(n, min=a, max=b) for n, (a, b) in limits.items()}
    sides = {n: "target" if n.startswith("decoder") else "sequence" for n in feeds}
    return {n: {0: dims["batch"], 1: dims[side]} for n, side in sides.items()}


def exported(module: Any) -> ir.Model:
    example = list(inputs(module, 2, 7))[7]
    with torch.no_grad():
        names = list(module(**example))
    return export(module, (), example, free(example), names)


def session(model: ir.Model) -> onnxruntime.InferenceSession:
    data = ir.to_proto(model).SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("make", [longformer, led])
def test_answers_of_any_size_and_any_global_tokens(make: Any) -> None:
    module = make()
    run = session(exported(module))
    names = [o.name for o in run.get_outputs()]
    for s, batch in product(SIZES, (1, 3)):
        for feeds in inputs(module, batch, s):
            with torch.no_grad():
                want = module(**feeds)
            found = run.run(names, {n: x.numpy() for n, x in feeds.items()})
            for name, got in zip(names, found, strict=True):
                x = want[name].numpy()
                assert np.linalg.norm(x - got) <= 1e-5 * np.linalg.norm(x)


def test_the_module_is_not_changed() -> None:
    module = longformer()
    before = {n: (p, p.clone()) for n, p in module.named_parameters()}
    copy = rewritten(module)
    assert copy is not module
    for name, parameter in copy.named_parameters():
        assert parameter is before[name][0] and torch.equal(parameter, before[name][1])
    assert not any("forward" in vars(part) for part in module.modules())
    assert added_inputs(module) == ("global_attention_mask",)


def test_probabilities_are_not_exported() -> None:
    with pytest.raises(pitc.ModelError, match="gives its probabilities by chunks of one size"):
        exported(longformer(output_attentions=True))


def test_head_masks() -> None:
    module = longformer()
    if "layer_head_mask" not in LongformerSelfAttention.forward.__code__.co_varnames:
        pytest.skip("this version of transformers has no head masks")
    feeds = list(inputs(module, 2, 24))[7]
    factors = torch.rand(2, 4)
    with torch.no_grad():
        want = module(**feeds, head_mask=factors).last_hidden_state
        got = rewritten(module)(**feeds, head_mask=factors).last_hidden_state
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def words(folder: Path) -> Path:
    """A vocabulary of a few words."""
    file = folder / "vocab.txt"
    marks = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    file.write_text("\n".join([*marks, "a", "text", "which", "is", "longer", "than", "##s"]))
    return file


def test_a_checkpoint_with_a_head(tmp_path: Path) -> None:
    """Global tokens are an input, although no tokenizer makes it."""
    source = tmp_path / "checkpoint"
    module = longformer(hf.LongformerForTokenClassification)
    module.save_pretrained(source)
    hf.BertTokenizerFast(vocab_file=str(words(tmp_path))).save_pretrained(source)
    run = session(export_checkpoint(source))
    assert [i.name for i in run.get_inputs()][-1] == "global_attention_mask"
    batch = dict(hf.AutoTokenizer.from_pretrained(source)(TEXTS, padding=True, return_tensors="pt"))
    batch["global_attention_mask"] = (torch.rand(batch["input_ids"].shape) < 0.2).long()
    with torch.no_grad():
        want = module(**batch).logits.numpy()
    (got,) = run.run(None, {name: x.numpy() for name, x in batch.items()})
    assert np.linalg.norm(want - got) <= 1e-5 * np.linalg.norm(want)


def test_compiled() -> None:
    """Answers in a session with pitc's nodes, without an option and with one."""
    module = longformer()
    feeds = list(inputs(module, 3, 65))[7]
    with torch.no_grad():
        want = module(**feeds).last_hidden_state.numpy()
    live = feeds["attention_mask"].numpy() != 0
    for padding in (None, "attention_mask"):
        model = pitc.from_torch(
            module, kwargs=feeds, dynamic_shapes=free(feeds), padding=padding, suggest=False
        )
        got = next(iter(model.run(feeds).values()))
        rows = live if padding else np.ones_like(live)
        np.testing.assert_allclose(got[rows], want[rows], rtol=0, atol=1e-4)
        assert padding is None or not got[~rows].any()
