"""The masks of the padding contract: what the user says of tokens that do not exist.

    attention_mask      a token does not exist where the input is 0
    !key_padding_mask   .. where it is not 0: True is padding, as in `nn.TransformerEncoder`
    input_ids:1         .. where it is 1: token numbers, of which one marks padding
    is_real             .. where this bool of the graph is 0: the model makes the mask itself
    mask,decoder_mask   several: tokens of one sequence each

A mask of numbers holds 0 and 1 only, which is looked at when the model runs; token numbers hold
any.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.build import NodeMaker
from pitc.ir.graph import Graph
from pitc.ir.inference import numpy_type
from pitc.ir.mask import PaddingMask
from pitc.ir.since import Since
from pitc.passes.rules.record import PackRule, operator_of

SEVERAL, NOT, AT = ",", "!", ":"


def padding_masks(model: ir.Model, padding: str | None) -> tuple[PaddingMask, ...]:
    """The masks that a text names in a model.

    A node that compares token numbers is added where the model has none, so that facts speak of one
    value: `input_ids:1` is `Equal(input_ids, 1)`, padding where that is not 0.

    Args:
        model: The model as it was imported, or normalised.
        padding: What the user gave.

    Raises:
        UsageError: One is no value that can be a mask, or the operator set is too old; the hint
            names what can.
    """
    if padding is None:
        return ()
    oldest = Since.LIVE_TESTS
    version = model.opset_imports.get("", oldest)
    if version < oldest:
        raise UsageError(
            f"padding needs operator set {oldest} or newer, the model has {version}",
            hint="convert it with onnx.version_converter",
        )
    values = _values(model)
    texts = [padding] if padding in values else [x.strip() for x in padding.split(SEVERAL)]
    found = tuple(_mask(model, values, text) for text in texts)
    if len({mask.name for mask in found}) < len(found):
        raise UsageError(f"padding '{padding}' names one mask twice")
    return found


def _values(model: ir.Model) -> dict[str, ir.Value]:
    """Inputs and computed values of the main graph, by name."""
    graph = model.graph
    made = (value for node in graph for value in node.outputs)
    inputs = (v for v in graph.inputs if v.name not in graph.initializers)
    return {value.name: value for value in (*inputs, *made) if value.name}


def _mask(model: ir.Model, values: dict[str, ir.Value], text: str) -> PaddingMask:
    name, live, number = text, True, None
    if text not in values and text.startswith(NOT):
        name, live = text[len(NOT) :].strip(), False
    elif text not in values and _is_number(text.rpartition(AT)[2]):
        name, _, after = text.rpartition(AT)
        number = int(after)
    value = values.get(name)
    is_input = any(value is v for v in model.graph.inputs)
    if value is None:
        hint = f"inputs that can be a mask: {_candidates(model)}"
        raise UsageError(f"padding mask '{name}' is not an input of the model", hint=hint)
    if not is_input:  # `check_computed` looks at its type, when that is known
        return PaddingMask(text, name, live)
    if not can_be_mask(value):
        dims = None if value.shape is None else [str(d) for d in value.shape]
        raise UsageError(
            f"padding mask '{name}' must be a [batch, sequence] tensor of numbers or bools, "
            f"found {_numpy_dtype(value)} of shape {dims if dims is not None else 'unknown'}",
            hint=f"inputs that can be a mask: {_candidates(model)}",
        )
    if number is not None:
        return _of_number(model, text, value, number)
    if looks_up(value):
        raise UsageError(
            f"padding mask '{name}' is looked up in a table: it holds token numbers, no mask",
            hint=f"'{name}{AT}0' says that a token is padding where it is 0",
        )
    return PaddingMask(text, name, live, source=name)


def check_computed(graph: Graph, masks: Sequence[PaddingMask]) -> None:
    """Refuse masks that the model computes and that are no bools `[batch, sequence]`.

    Args:
        graph: The graph, whose types are known.
        masks: As `padding_masks` gives them.

    Raises:
        UsageError: One is something else.
    """
    for mask in masks:
        dtype, shape = graph[mask.name].dtype, graph[mask.name].shape
        if not mask.source and (dtype != np.bool_ or shape is None or len(shape) != 2):
            sizes = "unknown" if shape is None else [str(size) for size in shape]
            raise UsageError(
                f"padding mask '{mask.name}', which the model computes, must be bools of shape "
                f"[batch, sequence], found {dtype} of shape {sizes}"
            )


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _of_number(model: ir.Model, text: str, value: ir.Value, number: int) -> PaddingMask:
    """A mask that is padding where token numbers are one."""
    name, dtype = value.name or "", _numpy_dtype(value)
    if dtype is None or dtype.kind not in "iu":
        raise UsageError(f"padding '{text}': '{name}' is {dtype}, no tensor of integers")
    if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise UsageError(f"padding '{text}': {number} is no {dtype}")
    if number == 0:
        return PaddingMask(text, name, number=0, source=name)
    for node in value.consumers():
        other = next((x for x in node.inputs if x is not value and x is not None), None)
        if node.op_type == "Equal" and node.domain == "" and _is_constant(other, number):
            return PaddingMask(text, node.outputs[0].name or "", False, number, name)
    build = NodeMaker(model.graph, before=next(iter(model.graph)))
    unique = build.unique(f"padding.{name}.{number}")
    constant = build.named(f"{unique}.number", np.asarray(number, dtype))
    (out,) = build.add("Equal", [value, constant], {}, [unique], f"{unique}.equal")
    out.type, out.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape(list(value.shape or ()))
    return PaddingMask(text, unique, False, number, name)


def _is_constant(value: ir.Value | None, number: int) -> bool:
    """True for a constant that is one number, and compares a matrix element by element."""
    if value is None or value.const_value is None:
        return False
    array = value.const_value.numpy()
    is_one = array.size == 1 and array.ndim <= 2 and array.dtype.kind in "iu"
    return bool(is_one and array.item() == number)


def can_be_mask(value: ir.Value) -> bool:
    """True for a two-dimensional value of numbers or bools, as it is declared."""
    dtype = _numpy_dtype(value)
    is_matrix = value.shape is not None and len(value.shape) == 2
    return is_matrix and dtype is not None and dtype.kind in "biuf"


def looks_up(value: ir.Value) -> bool:
    """True for an index into a table, such as token numbers."""
    return any(
        operator_of(node).packs is PackRule.LOOK_UP and any(x is value for x in node.inputs[1:])
        for node in value.consumers()
    )


def _candidates(model: ir.Model) -> str:
    """Inputs that can be a mask, for a hint."""
    inputs = (v for v in model.graph.inputs if can_be_mask(v) and not looks_up(v))
    return ", ".join(f"'{value.name}'" for value in inputs) or "none"


def _numpy_dtype(value: ir.Value) -> np.dtype | None:
    """The element type of a tensor; None for what numpy does not know, and for no tensor."""
    return numpy_type(value.dtype) if isinstance(value.type, ir.TensorType) else None


def flags(masks: Sequence[PaddingMask]) -> Iterator[str]:
    """The values that hold 0 and 1 only because the user says so."""
    return (mask.name for mask in masks if mask.number is None and mask.source)
