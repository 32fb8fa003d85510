"""torch modules and checkpoints of transformers, against torch itself."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder import Encoder
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

import pitc
from pitc.cli import main
from pitc.importer.outline import outline
from tests.integrations.conftest import TEXTS


@pytest.fixture(scope="module")
def checkpoint(source: Path) -> Path:
    return source.with_name("checkpoint")


def test_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        want = AutoModel.from_pretrained(checkpoint)(**batch)
    output = tmp_path / "model"
    model = pitc.from_pretrained(checkpoint, output=output, padding="attention_mask")
    assert model.path == output / "onnx" and model.manifest.pit_nodes > 10
    assert (output / "tokenizer.json").is_file() and not list(output.rglob("*.safetensors"))
    live = batch["attention_mask"].numpy() != 0
    got = model.run(batch)  # torch tensors, in the tokenizer's mapping
    assert set(got) == {"last_hidden_state", "pooler_output"}
    hidden = want.last_hidden_state.numpy()
    np.testing.assert_allclose(got["last_hidden_state"][live], hidden[live], rtol=0, atol=1e-5)
    pooled = want.pooler_output.numpy()
    np.testing.assert_allclose(got["pooler_output"], pooled, rtol=0, atol=1e-5)
    # the encoder of the servers takes the first output of several, and reads it with the mask
    total = (hidden * live[..., None]).sum(1)
    embeddings = total / np.linalg.norm(total, axis=1, keepdims=True)
    np.testing.assert_allclose(Encoder(output)(TEXTS), embeddings, rtol=0, atol=1e-5)
    assert model.manifest.source.name == "BertModel.onnx"


def bert() -> BertModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertModel(BertConfig(vocab_size=50, intermediate_size=128, **sizes)).eval()


def test_a_module() -> None:
    module = bert()
    ids = torch.randint(1, 50, (4, 12))
    kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch, sequence = torch.export.Dim("batch", max=64), torch.export.Dim("sequence", max=128)
    sizes = {name: {0: batch, 1: sequence} for name in kwargs}
    model = pitc.from_torch(module, kwargs=kwargs, dynamic_shapes=sizes, padding="attention_mask")
    assert model.manifest.pit_nodes > 0
    lengths = torch.tensor([[33], [1], [17], [5], [20]])  # other sizes than those of the example
    mask = (torch.arange(33) < lengths).long()
    feeds = {"input_ids": torch.randint(1, 50, (5, 33)), "attention_mask": mask}
    with torch.no_grad():
        want = module(**feeds).last_hidden_state.numpy()
    got = next(iter(model.run(feeds).values()))
    live = mask.numpy() != 0
    np.testing.assert_allclose(got[live], want[live], rtol=0, atol=1e-5)
    assert not got[~live].any()
    by_position = model.run([feeds["input_ids"], mask])
    np.testing.assert_array_equal(next(iter(by_position.values())), got)


def test_one_tensor_as_two_examples() -> None:
    class Apart(torch.nn.Module):
        def forward(self, x: torch.Tensor, more: list[torch.Tensor], y: torch.Tensor) -> Any:
            return x - 2 * y + 4 * more[0] - 8 * more[1]

    same = torch.ones(2)
    args, kwargs = (same, [same, same]), {"y": same}
    model = pitc.from_torch(Apart().eval(), args, kwargs, suggest=False)
    (got,) = model.run([np.full(2, n, np.float32) for n in (1, 5, 7, 3)]).values()
    np.testing.assert_array_equal(got, np.full(2, 1 - 6 + 20 - 56))
    assert all(x is same for x in (args[0], *args[1], kwargs["y"]))


def test_what_cannot_be_exported() -> None:
    with pytest.raises(pitc.UsageError, match=r"training mode.*eval\(\)"):
        pitc.from_torch(torch.nn.Linear(2, 2))
    with pytest.raises(pitc.UsageError, match=r"expected a torch.nn.Module, got str"):
        pitc.from_torch("model")
    with pytest.raises(pitc.UsageError, match="from_torch"):
        pitc.compile(torch.nn.Linear(2, 2))  # type: ignore[arg-type]

    class Sorted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * len(str(float(x.sum())))

    with pytest.raises(pitc.ModelError, match="torch cannot export Sorted: ") as caught:
        pitc.from_torch(Sorted().eval(), (torch.ones(3),))
    assert "\n" not in str(caught.value)


def test_the_exporter_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    class Loud(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("in the module")
            return x + 1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pitc.from_torch(Loud().eval(), (torch.ones(3),), suggest=False)
    assert capfd.readouterr() == ("", "") and not caught
    pitc.from_torch(Loud().eval(), (torch.ones(3),), suggest=False, verbose=True)
    shown = capfd.readouterr().out
    assert "in the module" in shown and "Translate the graph into ONNX" in shown


def test_export_on_the_command_line(
    checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.onnx"
    assert main(["export", str(checkpoint), "-o", str(file), "-q"]) == 0
    out, err = capfd.readouterr()
    assert err == "" and out.splitlines()[-1] == f"next: pitc compile {file}"
    found = outline(file)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert {value.name for value in found.inputs} == set(tokenizer(TEXTS))
    assert all(value.shape == ("batch", "sequence") for value in found.inputs)
    assert [value.name for value in found.outputs] == ["last_hidden_state", "pooler_output"]
