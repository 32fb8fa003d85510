"""Peers of a layer of experts, each on the form that suits it, with the same weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from benchmarks.experts_cases import ExpertsCase, MixtralCase
from benchmarks.workload import Array, Feeds, Infer, Workload
from models.experts import ExpertsConfig, experts
from models.mixtral import mixtral

Engine = Callable[[Workload], Infer]


def build(case: ExpertsCase | MixtralCase, form: str) -> onnx.ModelProto:
    """The case's model, its experts in some form."""
    rng, config = np.random.default_rng(case.seed), case.config
    if isinstance(config, ExpertsConfig):
        return experts(replace(config, form=form), rng)
    return mixtral(replace(config, experts=replace(config.experts, form=form)), rng)


def form_of(case: ExpertsCase | MixtralCase) -> str:
    """How the case's experts are written."""
    config = case.config
    return config.form if isinstance(config, ExpertsConfig) else config.experts.form


def in_form(form: str, engine: Engine) -> Engine:
    """An engine on the case's model, its experts in another form."""

    def make(workload: Workload) -> Infer:
        case = workload.case
        assert isinstance(case, ExpertsCase | MixtralCase)
        path = workload.model.with_name(f"{form}.onnx")
        onnx.save(build(case, form), path)
        return engine(replace(workload, model=path))

    return make


def is_other(form: str) -> Callable[[Workload], bool]:
    """True for cases of other forms."""

    def says(workload: Workload) -> bool:
        case = workload.case
        return isinstance(case, ExpertsCase | MixtralCase) and form_of(case) != form

    return says


def is_layer(workload: Workload) -> bool:
    """True for a layer of experts alone."""
    return isinstance(workload.case, ExpertsCase)


def torch_grouped(workload: Workload) -> Infer:
    """Torch's grouped product on sorted rows, as transformers calls it."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    case = workload.case
    assert isinstance(case, ExpertsCase)
    config = case.config
    model = build(case, "looked_up")
    w = {
        x.name: torch.from_numpy(onnx.numpy_helper.to_array(x).copy())
        for x in model.graph.initializer
    }

    def activate(h: Any) -> Any:
        if not config.gated:
            return torch.relu(h)
        a, b = h.chunk(2, -1)
        return torch.nn.functional.silu(a) * b

    def infer(feeds: Feeds) -> Array:
        x = torch.from_numpy(feeds["x"])
        gates, ids = torch.softmax(x @ w["router"], -1).topk(config.top)
        gates = gates / gates.sum(-1, keepdim=True) if config.scaled else gates
        group, order = ids.reshape(-1).sort()
        ends = torch.bincount(group, minlength=config.experts).cumsum(0).int()
        h = torch.nn.functional.grouped_mm(x[order // config.top], w["up"], offs=ends)
        h = torch.nn.functional.grouped_mm(activate(h), w["down"], offs=ends)
        y = torch.empty_like(h)
        y[order] = h * gates.reshape(-1)[order][:, None]
        found: Array = y.view(len(x), config.top, -1).sum(1).numpy()
        return found

    return infer
