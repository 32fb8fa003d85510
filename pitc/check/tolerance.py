"""How far an answer may be off: by the arithmetic on the way to it, not by its type.

An export may compute in half precision, or in int8, between inputs and outputs that are float32:

    x f32 -> Cast -> MatMul f16 -> Cast -> y f32          y is as good as float16
    x f32 -> QuantizeLinear -> .. -> y f32                y is as good as int8

Where numbers are rounded that coarsely, how much a right answer moves depends on the model, so
ONNX Runtime itself is the yardstick: what it gives with its optimisations against what it gives
without them, on the same inputs.

A float32 answer moves as much where a model is ill-conditioned, as some are on random inputs. Where
one is off by more than float32 is, the yardstick is what ONNX Runtime gives against what it gives
without optimisations, and in float64.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pitc.ir.plan import CUDA_EP_NAME

if TYPE_CHECKING:
    import onnx_ir as ir

QUANTISED, TF32, ROUNDED = "quantised", "tf32", "products of bfloat16"

#: Largest norm-wise relative error by arithmetic; integers and booleans must be equal. Where it is
#: measured as well (`MEASURED`), the least that is allowed. 2^-8 is half a step of 7 bits; tf32 has
#: as many bits behind the point as float16.
FLOORS: Mapping[str, float] = {
    "float64": 1e-10,
    "float32": 1e-5,
    "float16": 4e-3,
    TF32: 4e-3,
    QUANTISED: 2.0**-8,
    ROUNDED: 3e-2,
    "bfloat16": 3e-2,
}
MEASURED = frozenset({"float16", "bfloat16", QUANTISED})
FACTOR = 2.0
"""Of the yardstick: how far pitc's answer may be from ONNX Runtime's."""
CEILING = 0.1
"""Of what the yardstick allows: beyond it a comparison would say nothing."""

SINGLE_FACTOR = 4.0
"""The same of float32: sums of thousands of terms differ by their order (`docs/precision.md`)."""
SINGLE_CEILING = 1e-2

_FLOATS = {"DOUBLE": "float64", "FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16"}
_TINY = ("FLOAT8", "FLOAT4")
_NARROW = ("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2", *_TINY)
#: Operators that only change the type of a number, so that a narrow integer is one: a mask.
_CASTS = ("Cast", "CastLike")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerance of one output.

    Args:
        value: Largest norm-wise relative error that passes.
        why: Where it comes from, for people.
    """

    value: float
    why: str


def floor_of(arithmetic: Iterable[str]) -> float:
    """The largest floor of what something was computed in; 0 of nothing."""
    return max((FLOORS[kind] for kind in arithmetic), default=0.0)


def tolerance_of(
    dtype: str, arithmetic: Iterable[str], yardstick: float | None, given: float | None
) -> Tolerance:
    """The tolerance of an output.

    Args:
        dtype: The output's type.
        arithmetic: Keys of `FLOORS`: what it was computed in. Empty: its type.
        yardstick: Norm-wise relative error of ONNX Runtime against itself without optimisations, of
            float32 also in float64; None where it was not measured.
        given: The user's own, or None.
    """
    if dtype not in FLOORS:
        return Tolerance(0.0, f"{dtype} must be equal")
    if given is not None:
        return Tolerance(given, "as given")
    kinds = set(arithmetic) or {dtype}
    coarsest = max(kinds, key=lambda kind: FLOORS[kind])
    floor = floor_of(kinds)
    rounded = sorted(kinds & MEASURED) or [coarsest]
    computed = f"{' and '.join(rounded)} arithmetic"
    single = is_single(dtype, arithmetic)
    if yardstick is None or not (single or kinds & MEASURED):
        return Tolerance(floor, computed)
    factor, ceiling = (SINGLE_FACTOR, SINGLE_CEILING) if single else (FACTOR, CEILING)
    text = (
        f"{computed}: {factor:g} times what ONNX Runtime with optimisations differs from itself "
        f"without them{' or in float64' * single} ({yardstick:.1e}), {floor:.1e} to {ceiling:g}"
    )
    allowed = factor * yardstick if yardstick < float("inf") else 0.0
    return Tolerance(max(floor, min(allowed, ceiling)), text)


def is_single(dtype: str, arithmetic: Iterable[str]) -> bool:
    """True for what is computed in float32, and nothing coarser."""
    kinds = set(arithmetic) or {dtype}
    return dtype in FLOORS and max(kinds, key=lambda kind: FLOORS[kind]) == "float32"


def arithmetic_of(model: "ir.Model") -> dict[str, frozenset[str]]:
    """What each output of a model is computed in: keys of `FLOORS`.

    Args:
        model: An imported model; it is not changed.
    """
    import onnx_ir.passes.common as common

    from pitc.ir.inference import infer

    if model.functions:
        model = model.clone()
        common.InlinePass()(model)
    inferred = infer(model)
    types = {name: found.dtype for name, found in inferred.items()}
    varying = {v.name for v in model.graph.inputs if v.name not in model.graph.initializers}
    kinds: dict[str, frozenset[str]] = {}
    for node in model.graph:
        read = [x for x in (*node.inputs, *_captured(node)) if x is not None]
        known = frozenset[str]().union(*(kinds.get(x.name or "", frozenset()) for x in read))
        changes = any(x.name in varying for x in read)
        if changes:
            known |= set(_own(node, types))
        for output in node.outputs:
            if changes and output.name:
                varying.add(output.name)
            kinds[output.name or ""] = known
    return {v.name or "": kinds.get(v.name or "", frozenset()) for v in model.graph.outputs}


def arithmetic_on(
    session: Any, arithmetic: Mapping[str, frozenset[str]], precision: str = "float32"
) -> dict[str, frozenset[str]]:
    """The same where the compiled model runs in a session: on GPUs, float32 is tf32; on CPUs,
    products may round their operands.
    """
    on_gpu = CUDA_EP_NAME in session.get_providers()
    more = {TF32} if on_gpu else {ROUNDED} if precision == "bf16" else set()
    return {name: kinds | more for name, kinds in arithmetic.items()}


def _own(node: "ir.Node", types: Mapping[str, "ir.DataType"]) -> Iterator[str]:
    """The arithmetic of a node and of its bodies."""
    import onnx_ir as ir

    from pitc.ir.nodes import bodies

    yield from _of_types(node, types)
    for body in bodies(node):
        for inner in ir.traversal.RecursiveGraphIterator(body):
            yield from _of_types(inner, types)


def _of_types(node: "ir.Node", types: Mapping[str, "ir.DataType"]) -> Iterator[str]:
    import onnx_ir as ir

    def names(values: "Iterable[ir.Value | None]") -> list[str]:
        found = (types.get(v.name or "", v.dtype) for v in values if v is not None)
        return [t.name for t in found if t is not None]

    read, made = names(node.inputs), names(node.outputs)
    casts = node.op_type in _CASTS
    if node.op_type == "Cast":
        made.append(ir.DataType(node.attributes["to"].as_int()).name)
    yield from (_FLOATS[t] for t in made if t in _FLOATS)
    narrow = any(t.startswith(_NARROW) for t in (*read, *made)) and not casts
    tiny = any(t.startswith(_TINY) for t in made)
    if tiny or (narrow and not _FLOATS.keys().isdisjoint((*read, *made))):
        yield QUANTISED


def _captured(node: "ir.Node") -> "Iterator[ir.Value | None]":
    """Values that the bodies of a node read, their own among them."""
    import onnx_ir as ir

    from pitc.ir.nodes import bodies

    for body in bodies(node):
        for inner in ir.traversal.RecursiveGraphIterator(body):
            yield from inner.inputs
