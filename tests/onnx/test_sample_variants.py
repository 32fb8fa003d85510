"""Other forms of the samples that ONNX Runtime takes: an operand or an attribute left out, a flag
of 2, other numbers of outputs, floats of another width. Rules and rewrites hold for them as well.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pitc.ir.schemas import schema_of
from pitc.passes.normalise import normalise
from pitc.passes.quirks.rewrites import plain_flags
from pitc.passes.rules.registry import MICROSOFT
from tests.random_nodes import session_of
from tests.rule_proof import Array, Const, Proof, Sample, array_of, node_model, same
from tests.rule_samples import SAMPLES

NO_EXPRESSION = "has no expression"
COUNTS = frozenset({"num_outputs"})  # of what is not there, ONNX Runtime crashes
WHOLE = frozenset({"QLinearLeakyRelu", "QLinearSigmoid"})  # nor without their zero points
DRAWN = frozenset({"RoiAlign"})  # ONNX Runtime may stop at other numbers
ROLLING = frozenset({"LRN"})  # sums that roll along: in float16 what left them is still felt


def forms(sample: Sample) -> Iterator[Sample]:
    """Forms of a sample that may be legal."""
    schema = schema_of(sample.domain, sample.op, 1 if sample.domain else sample.opset)
    optional = schema.FormalParameterOption.Optional if schema.inputs else None
    for i, parameter in enumerate(schema.inputs[: len(sample.operands)]):
        if sample.op in WHOLE:
            break
        if parameter.option == optional and sample.operands[i] is not None:
            operands = [*sample.operands[:i], None, *sample.operands[i + 1 :]]
            while operands[-1] is None:
                operands.pop()
            yield replace(sample, operands=tuple(operands))
    for name, value in sample.attributes.items():
        others = {k: v for k, v in sample.attributes.items() if k != name}
        yield replace(sample, attributes=others)
        if isinstance(value, int) and name not in COUNTS:
            yield replace(sample, attributes=others | {name: 2})
    if len(schema.outputs) > 1:
        for count in range(1, len(schema.outputs) + 1):
            yield replace(sample, outputs=count)
    if sample.op in ROLLING or not any(map(is_float, map(array_of, sample.operands))):
        return
    for width in (np.float16, np.float64):
        operands = (widened(o, width) for o in sample.operands)
        yield replace(sample, operands=tuple(operands))


def is_float(x: Array | None) -> bool:
    return x is not None and x.dtype == np.float32


def widened(operand: Any, width: type[np.floating[Any]]) -> Any:
    """An operand as floats of that width, if it is one of floats."""
    x = array_of(operand)
    if not is_float(x):
        return operand
    return Const(x.astype(width)) if isinstance(operand, Const) else x.astype(width)


def wrong(form: Sample) -> list[str] | None:
    """What does not hold of a form; None where ONNX Runtime does not take it."""
    feed = {f"x{i}": array_of(o) for i, o in enumerate(form.operands) if o is not None}
    constant = [i for i, o in enumerate(form.operands) if isinstance(o, Const)]
    found = []
    for symbolic in (False, True):
        proto = node_model(form, constant, symbolic)
        want = run(proto, feed)
        if want is None:
            return found or None
        model = ir.serde.deserialize_model(proto)
        plain_flags(model)
        meant = replace(form, attributes={k: a.value for k, a in model.graph[0].attributes.items()})
        proof = Proof(meant, symbolic)
        found += [t for t in proof.failures(0, tight=False) if NO_EXPRESSION not in t]
        normalise(model)
        got = run(ir.to_proto(model), feed)
        if got is None or not all(map(same, got, want)):
            found.append("its parts give something else")
    return found


def run(proto: onnx.ModelProto, feed: dict[str, Any]) -> list[Any] | None:
    known = {v.name for v in proto.graph.input}
    try:
        session = session_of(proto)
        results = session.run(None, {k: x for k, x in feed.items() if k in known})
    except Exception:  # the runtime's exception classes are not public
        return None
    return list(results)


def is_known(sample: Sample) -> bool:
    return sample.domain in ("", MICROSOFT) and sample.op not in DRAWN


BY_OPERATOR: dict[str, list[Sample]] = defaultdict(list)
for _sample in SAMPLES:
    if is_known(_sample):
        BY_OPERATOR[f"{_sample.domain[:3]}{_sample.op}"].append(_sample)


@pytest.mark.parametrize("op", BY_OPERATOR)
def test_other_forms(op: str) -> None:
    found = {}
    for form in (form for sample in BY_OPERATOR[op] for form in forms(sample)):
        problems = wrong(form)
        if problems:
            found[f"{form.title} with {form.outputs} outputs"] = problems
    assert found == {}
