"""Region nodes that do not hold together are found after lowering."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from pitc.passes.audit.plans import wrong_plans
from pitc.passes.pipeline import Lowered
from tests.onnx.test_lower_regions import a_residual, lower, model_of, two_results


@pytest.fixture(name="lowered")
def _lowered() -> Lowered:
    """Three steps: rows in, rows, rows out with the first ones as residual."""
    return lower(model_of(a_residual))


def lines(lowered: Lowered) -> list[str]:
    return list(wrong_plans(lowered.model, lowered.report.kernels))


def node_of(lowered: Lowered) -> ir.Node:
    (node,) = (n for n in lowered.model.graph if n.op_type == "EPContext")
    return node


def edit(lowered: Lowered, *pairs: tuple[str, str]) -> None:
    node = node_of(lowered)
    text = node.attributes["ep_cache_context"].as_string()
    for old, new in pairs:
        assert old in text, (old, text)
        text = text.replace(old, new)
    first, *rest = text.splitlines()
    text = "\n".join([first, *sorted(rest), ""])
    node.attributes["ep_cache_context"] = ir.AttrString("ep_cache_context", text)


def test_right_regions(lowered: Lowered) -> None:
    assert lines(lowered) == []
    assert lines(lower(model_of(two_results, outputs=2))) == []


READS = ("step0.reads=1,2,3,rows,0", "step1.reads=s0,4,3", "step2.reads=s1,5,3,s0,rows,0")
EDITS: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
    "a step without fields": ((("steps=3", "steps=4"),), "steps=4, with fields of [0, 1, 2]"),
    "a step too many": ((("steps=3", "steps=2"),), "steps=2, with fields of"),
    "a gap": ((("step1.", "step7."),), "with fields of [0, 2, 7]"),
    "another value": (
        (("step1.right=panels", "step1.right=pack"),),
        "step 1: contract: right: expected one of panels, kn, nk, got 'pack'",
    ),
    "a field is missing": ((("step1.k=64\n", ""),), "step 1: contract lacks ['k']"),
    "a library": (
        (("steps=3", "step1.library=k.so\nsteps=3"),),
        "step 1: its library is that of the region",
    ),
    "a kernel": (
        (("step1.kernels=dense:gather", "step1.kernels=dense:x"),),
        "nobody asked for the kernel x",
    ),
    "the detector": ((("points:live_points", "points:live"),), "nobody asked for the kernel live"),
    "its counts": ((("counts:live_counts", "counts:c"),), "nobody asked for the kernel c"),
    "a field": ((("gives=2", "gives=2\nrank=2"),), "region lacks [], and has ['rank']"),
    "operands too few": (((READS[1], "step1.reads=s0,4"),), "step 1: reads=s0,4, not"),
    "an operand that is none": (
        ((READS[1], "step1.reads=s0,4,x"),),
        "step 1: expected rows, an input or sN, got 'x'",
    ),
    "a later step": (((READS[1], "step1.reads=s1,4,3"),), "step 1: operand a is of a later step"),
    "whole rows": (((READS[1], "step1.reads=1,4,3"),), "step 1: operand a comes from outside"),
    "packed rows": (((READS[0], "step0.reads=s0,2,3,rows,0"),), "step 0: operand a is of a later"),
    "packed rows as whole ones": (
        (("step1.gather=0", "step1.gather=1"), (READS[1], "step1.reads=s0,4,3,rows,0")),
        "step 1: operand a is packed, or not: s0",
    ),
    "a matrix that a step makes": (
        ((READS[2], "step2.reads=s1,s0,3,s0,rows,0"),),
        "step 2: operand b is packed, or not: s0",
    ),
    "no rows": (((READS[0], "step0.reads=1,2,3,4,0"),), "step 0: operand rows is 4"),
    "no mask": (((READS[0], "step0.reads=1,2,3,rows,1"),), "step 0: operand live is 1"),
    "an input that is not there": (
        ((READS[1], "step1.reads=s0,9,3"),),
        "step 1: operand b is input 9, which is not there",
    ),
    "an operand of another type": (
        ((READS[1], "step1.reads=s0,0,3"),),
        "step 1: operand b is 0",
    ),
    "columns": ((("step0.n=64", "step0.n=72"),), "step 1: operand a has 64 columns, not 72"),
    "packed rows are given": ((("gives=2", "gives=1,2"),), "packed rows of step 1 are given"),
    "results too many": ((("gives=2", "gives=1,2"),), "gives=1,2, with 1 outputs"),
    "steps that are not there": ((("gives=2", "gives=3"),), "gives=3 of 3 steps"),
    "results twice": ((("gives=2", "gives=2,2"),), "gives=2,2 of 3 steps"),
    "a step for nobody": (
        ((READS[1], "step1.reads=s0,4,3"), (READS[2], "step2.reads=s0,5,3,s0,rows,0")),
        "nobody reads step 1",
    ),
    "an input for nobody": (((READS[2], "step2.reads=s1,4,3,s0,rows,0"),), "nobody reads input 5"),
}


@pytest.mark.parametrize("what", EDITS)
def test_wrong_regions(lowered: Lowered, what: str) -> None:
    pairs, text = EDITS[what]
    edit(lowered, *pairs)
    found = lines(lowered)
    assert any(text in line for line in found), found


def _other_type(node: ir.Node) -> None:
    (x,) = (v for v in node.inputs if v is not None and v.name == "x")
    x.type = ir.TensorType(ir.DataType.FLOAT16)


def _no_type(node: ir.Node) -> None:
    node.outputs[0].type = None


def _one_output_more(node: ir.Node) -> None:
    node.resize_outputs(2)
    node.outputs[1].name = "more"


SPOILT: dict[str, tuple[Callable[[ir.Node], None], str]] = {
    "operand a, x, has type FLOAT16": (_other_type, "step 0"),
    "has no type or no shape": (_no_type, "region"),
    "gives=2, with 2 outputs": (_one_output_more, "region"),
}


@pytest.mark.parametrize("text", SPOILT)
def test_wrong_nodes(lowered: Lowered, text: str) -> None:
    spoil, where = SPOILT[text]
    spoil(node_of(lowered))
    assert any(text in line and where in line for line in lines(lowered)), lines(lowered)


def test_reads_are_those_of_the_model(lowered: Lowered) -> None:
    """What the edits above start from."""
    text = node_of(lowered).attributes["ep_cache_context"].as_string()
    assert all(f"\n{line}\n" in text for line in READS)
    assert np.all([x is not None for x in node_of(lowered).inputs])
