"""Sizes of a cache that an exporter gives a name each: which may be one is tried, and said."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from pitc.ir.report import Suggestion
from pitc.passes.analysis import analyse
from pitc.passes.pipeline import LowerOptions, run_passes
from pitc.passes.size_names import named, one_names

FIXTURES = Path(__file__).parents[2] / "models/export/fixtures"
EXPORTS = ("gpt2-past-sdpa-dynamo", "llama-past-sdpa-dynamo", "opt-past-sdpa-dynamo")


def with_own_names(export: str) -> onnx.ModelProto:
    """The export as it comes without names: the mask and each cache have their own sizes."""
    proto = onnx.load(FIXTURES / f"{export}.onnx")
    for k, value in enumerate(proto.graph.input):
        for dim in value.type.tensor_type.shape.dim:
            if "past" in dim.dim_param:
                dim.dim_param = f"s{k}"
            elif dim.dim_param and value.name == "attention_mask":
                dim.dim_param = "rows"
    del proto.graph.value_info[:]
    return proto


def said(proto: onnx.ModelProto, padding: str | None) -> list[Suggestion]:
    options = LowerOptions(padding=padding, suggest=True)
    return run_passes(ir.from_proto(proto), options).report.suggestions


def shares(proto: onnx.ModelProto) -> int:
    lowered = run_passes(ir.from_proto(proto), LowerOptions(padding="attention_mask"))
    return sum(r.lowering != "ordinary" for r in lowered.report.nodes)


@pytest.mark.parametrize("export", EXPORTS)
def test_names_that_pack_are_said(export: str) -> None:
    proto = with_own_names(export)
    (found,) = said(proto, "attention_mask")
    assert found.kind == "size names"
    assert found.gain is not None and found.gain > 0.5
    text = found.text.split("with inputs ")[1]
    assert text.startswith("attention_mask [batch_size, ")
    for value in proto.graph.input:  # do what is said
        if f"{value.name} [" in text:
            dims = text.split(f"{value.name} [")[1].split("]")[0].split(", ")
            for dim, name in zip(value.type.tensor_type.shape.dim, dims, strict=True):
                if dim.dim_param:
                    dim.dim_param = name
    assert not [s for s in said(proto, "attention_mask") if s.kind == "size names"]
    assert shares(proto) == shares(onnx.load(FIXTURES / f"{export}.onnx"))


@pytest.mark.parametrize("export", EXPORTS)
def test_nothing_is_said_of_sizes_that_have_one_name(export: str) -> None:
    proto = onnx.load(FIXTURES / f"{export}.onnx")
    assert "size names" not in [s.kind for s in said(proto, "attention_mask")]


def test_a_trial_leaves_the_names() -> None:
    model = ir.from_proto(with_own_names(EXPORTS[1]))
    graph, _ = analyse(model, "attention_mask")
    names = one_names(graph, "attention_mask")
    before = [str(value.shape) for value in model.graph.inputs]
    with pytest.raises(KeyError), named(model, names) as inputs:
        assert len(inputs) > 1
        assert [str(value.shape) for value in model.graph.inputs] != before
        raise KeyError
    assert [str(value.shape) for value in model.graph.inputs] == before
