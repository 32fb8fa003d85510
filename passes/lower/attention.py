"""attention as a node: its operands in the layouts that the kernels read, and its plan."""

from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from pitc.ir.engines import Kernels, kernels_of
from pitc.ir.nodes import node_name
from pitc.passes.lower.heads import unsplit_heads
from pitc.passes.regions.form import Form, OffsetsOperand

if TYPE_CHECKING:
    from pitc.passes.lower.rewrite import Rewriter

CACHE = ("c0", "r", "c1", "r")  # [batch, heads, positions, size]


def attention_node(state: "Rewriter", node: ir.Node, form: Form) -> tuple[ir.Value, Kernels]:
    """The node of a form with an attention plan.

    Args:
        state: The rewrite, which makes operands.
        node: The contraction that it stands for.
        form: Its form.

    Returns:
        Its result, with the dimensions that the form's output has behind the packed one, and what
        runs it.
    """
    assert form.plan is not None and form.outputs[0] is not None
    packing, fields = form.outputs[0], dict(form.plan.fields)
    d, dv, heads, bias = (int(str(fields[name])) for name in ("d", "dv", "heads", "bias"))
    q, k, v, *rest = map(state.operand, form.operands)
    assert q is not None and k is not None and v is not None
    whole = [_lies_as_cache(state, x, heads, size) for x, size in ((k, d), (v, dv))]
    inputs = []
    for side, x, size in (("q", q, d), ("k", k, d), ("v", v, dv)):
        if side != "q" and None not in whole:
            continue
        x, fields[f"{side}_head"] = unsplit_heads(state.build, x, size)
        inputs.append(x)
    if len(inputs) == 1:
        inputs += [state.build.value(name) for name in whole if name is not None]
        fields["whole"] = 1
        keys = form.operands[4]
        if not bias and isinstance(keys, OffsetsOperand):
            rest.append(state.detect(keys.domain).coords)
    inputs += [x for x in rest if x is not None]
    dtype = state.dtype(packing.name)
    steps = {f"{x}s": 1 for x in ("score_step", "weight_step") if x in fields}
    request = state.request("attention", dtype, d=d, dv=dv, bias=bias, **steps)
    plan = replace(form.plan, fields=(*fields.items(), *state.kernel_fields(request)))
    symbol = state.detect(packing.domain).symbol
    name = f"{packing.name}.packed"
    (out,) = state.build.kernel(
        plan, inputs, [(name, dtype, [symbol, heads, dv])], node_name(node), "packed attention"
    )
    sizes = [n for e in packing.layout.rest_shape if (n := e.as_int()) is not None]
    out = out if sizes == [heads, dv] else state.build.reshape(out, [0, *sizes])
    return out, kernels_of(plan, state.graph.target)


def _lies_as_cache(state: "Rewriter", packed: ir.Value, heads: int, size: int) -> str | None:
    """The whole value that rows were only gathered from, where kernels for CPUs read it as it is;
    nobody gathers them then.
    """
    name, codes = state.gathered_from.get(packed, ("", ()))
    if state.graph.target.kind != "cpu" or codes != CACHE:
        return None
    shape = state.graph[name].shape or ()
    return name if (shape[1].as_int(), shape[3].as_int()) == (heads, size) else None
