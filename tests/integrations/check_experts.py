"""Mixtures of experts of transformers 5 as they come, against torch itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers as hf

import pitc

if int(hf.__version__.partition(".")[0]) < 5:
    pytest.skip("transformers 5 has layers of experts that are exported", allow_module_level=True)

COMMON = {
    "vocab_size": 90,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "Mixtral": ("Mixtral", {"intermediate_size": 96, "num_local_experts": 6}, 4),
    "Qwen3-MoE": (
        "Qwen3Moe",
        {"moe_intermediate_size": 96, "num_experts": 6, "head_dim": 16, "norm_topk_prob": True},
        4,
    ),
    "GPT-OSS": (
        "GptOss",
        {"intermediate_size": 96, "num_local_experts": 6, "head_dim": 16, "sliding_window": 8},
        4,
    ),
    "DeepSeek-V3": (
        "DeepseekV3",
        {
            **{"intermediate_size": 96, "moe_intermediate_size": 48, "n_routed_experts": 8},
            **{"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "q_lora_rank": 32},
            **{"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16},
            **{"num_key_value_heads": 4, "n_shared_experts": 1},
        },
        2,
    ),
}
"""Name -> its class, what else its configuration says, products of experts that run grouped."""


def module_of(name: str, **more: Any) -> torch.nn.Module:
    kind, sizes, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(hf, f"{kind}Config")(**{**COMMON, **sizes, **more})
    return getattr(hf, f"{kind}Model")(config).eval()


def feeds(*lengths: int) -> dict[str, torch.Tensor]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(
        1, 90, tuple(mask.shape), generator=torch.Generator().manual_seed(len(mask))
    )
    return {"input_ids": ids, "attention_mask": mask.long()}


def compiled(module: torch.nn.Module, **options: Any) -> pitc.CompiledModel:
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence")
    sizes: dict[str, Any] = {name: {0: batch, 1: sequence} for name in feeds(3)}
    given = {**feeds(7, 5, 6), "use_cache": False}
    return pitc.from_torch(
        module,
        kwargs=given,
        dynamic_shapes=sizes | {"use_cache": None},
        padding="attention_mask",
        suggest=False,
        **options,
    )


def batches() -> Iterator[dict[str, torch.Tensor]]:
    yield feeds(19, 1, 4, 11)  # other sizes than those of the example, and other experts
    yield feeds(2)


@pytest.mark.parametrize("name", MODELS)
def test_default_models_run_grouped(name: str) -> None:
    module = module_of(name)
    assert module.config._experts_implementation == "grouped_mm"
    model = compiled(module)
    assert module.config._experts_implementation == "grouped_mm", "the module is not changed"
    lowerings = [r.lowering for r in model.report.nodes]
    assert lowerings.count("grouped") == MODELS[name][2]
    for given in batches():
        with torch.no_grad():
            want = module(**given, use_cache=False).last_hidden_state.numpy()
        got = next(iter(model.run(given).values()))
        live = given["attention_mask"].numpy() != 0
        np.testing.assert_allclose(got[live], want[live], rtol=0, atol=2e-5)


class Traced(torch.nn.Module):
    """A model as the tracer takes it: tensors in, one out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = self.model(input_ids=ids, attention_mask=mask, use_cache=False)
        return found.last_hidden_state


@pytest.mark.filterwarnings("ignore")  # of the tracer
@pytest.mark.parametrize("name", MODELS)
def test_traced_eager_models_run_grouped(name: str, tmp_path: Path) -> None:
    """As the file says, and with its limit: as many experts hit as in the example."""
    module = module_of(name, attn_implementation="eager", use_cache=False)
    module.config._experts_implementation = "eager"
    given, path = feeds(16, 9, 16, 5), tmp_path / "eager.onnx"
    torch.onnx.export(
        Traced(module),
        tuple(given.values()),
        path,
        dynamo=False,
        input_names=list(given),
        output_names=["y"],
        dynamic_axes={key: {0: "batch", 1: "sequence"} for key in given},
        opset_version=18,
    )
    compiled = pitc.compile(path, padding="attention_mask", suggest=False)
    lowerings = [r.lowering for r in compiled.report.nodes]
    assert lowerings.count("grouped") == MODELS[name][2]
    assert any("'batched_mm'" in note for note in compiled.report.notes)
    arrays = {key: value.numpy() for key, value in given.items()}
    live = arrays["attention_mask"] != 0
    want = ort.InferenceSession(path).run(None, arrays)[0]
    np.testing.assert_allclose(compiled.run(arrays)["y"][live], want[live], rtol=0, atol=2e-5)


class Baked(torch.nn.Module):
    """Experts in a loop over those that some tokens have."""

    def __init__(self, hit: list[int]) -> None:
        super().__init__()
        self.hit, self.router = hit, torch.nn.Linear(8, 16)
        self.experts = torch.nn.Parameter(torch.randn(16, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best = self.router(x).topk(1).indices[..., 0]
        hit = self.hit if torch.compiler.is_exporting() else range(16)
        return sum((torch.where((best == e)[..., None], x @ self.experts[e], 0.0) for e in hit), x)


def test_a_graph_with_the_experts_of_the_example_is_refused() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    module = Baked(list(range(16))).eval()
    assert pitc.from_torch(module, (x,), suggest=False)
    module.hit = module.router(x).topk(1).indices.unique().tolist()
    assert len(module.hit) <= 3
    with pytest.raises(pitc.ModelError, match="Baked answers a second input otherwise"):
        pitc.from_torch(module, (x,), suggest=False)
