"""Hostile models: small valid ones, and random changes of any field of their protos."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from models.bert import BertConfig, bert

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

#: One change of a model: the place of a field, what is done to it, and two numbers to choose with.
Change = tuple[int, int, int, int]
CHANGES: st.SearchStrategy[list[Change]] = st.lists(
    st.tuples(*[st.integers(0, 1 << 20) for _ in range(4)]), min_size=1, max_size=4
)

_INTS = (0, 1, -1, 2, 3, 7, 255, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
_FLOATS = (0.0, -1.0, 1e38, float("nan"), float("inf"), -float("inf"))
_TEXTS = ("", "x", "..", "../../weights.bin", "/dev/zero", "\n", "ä\0", "n" * 3000, "ai.onnx.ml")


def _value(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _branches() -> onnx.ModelProto:
    """If, Loop, a function, sequences, and a sparse weight."""
    node = helper.make_node
    then, other = (
        helper.make_graph([node(op, ["x"], [op])], op, [], [_value(op, FLOAT, ["n", 4])])
        for op in ("Relu", "Neg")
    )
    body = helper.make_graph(
        [node("Add", ["state", "x"], ["next"]), node("Identity", ["go"], ["again"])],
        "body",
        [_value("i", INT64, []), _value("go", BOOL, []), _value("state", FLOAT, ["n", 4])],
        [_value("again", BOOL, []), _value("next", FLOAT, ["n", 4])],
    )
    weight = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "w")
    at = numpy_helper.from_array(np.array([1, 6], np.int64), "at")
    double = helper.make_function(
        "local",
        "Double",
        ["a"],
        ["b"],
        [node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )
    graph = helper.make_graph(
        [
            node("Cast", ["mask"], ["c"], to=BOOL),
            node("ReduceMax", ["mask"], ["top"], keepdims=0),
            node("Cast", ["top"], ["flag"], to=BOOL),
            node("If", ["flag"], ["f"], then_branch=then, else_branch=other),
            node("Loop", ["trips", "flag", "f"], ["l"], body=body),
            node("Double", ["l"], ["d"], domain="local"),
            node("SplitToSequence", ["d"], ["parts"], axis=1),
            node("ConcatFromSequence", ["parts"], ["joined"], axis=1),
            node("MatMul", ["joined", "w"], ["m"]),
            node("Unsqueeze", ["c", "one"], ["cc"]),
            node("Where", ["cc", "m", "zero"], ["y"]),
        ],
        "branches",
        [_value("x", FLOAT, ["n", 4]), _value("mask", INT64, ["n"])],
        [_value("y", FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(np.array(3, np.int64), "trips"),
            numpy_helper.from_array(np.array([1], np.int64), "one"),
            numpy_helper.from_array(np.zeros((), np.float32), "zero"),
        ],
        sparse_initializer=[helper.make_sparse_tensor(weight, at, [4, 2])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[double])


def _quantized() -> onnx.ModelProto:
    """A masked matrix product between QuantizeLinear and DequantizeLinear, and a convolution."""
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("QuantizeLinear", ["x", "scale", "point"], ["q"]),
            node("DequantizeLinear", ["q", "scale", "point"], ["d"]),
            node("Conv", ["d", "k"], ["c"], pads=[1, 1]),
            node("Mul", ["c", "mask"], ["h"]),
            node("Softmax", ["h"], ["p"], axis=-1),
            node("Reshape", ["p", "shape"], ["r"]),
            node("Slice", ["r", "lo", "hi"], ["s"]),
            node("Concat", ["s", "s"], ["y"], axis=0),
        ],
        "quantized",
        [_value("x", FLOAT, ["b", 2, 6]), _value("mask", FLOAT, ["b", 1, 6])],
        [_value("y", FLOAT, ["m", 6])],
        [
            numpy_helper.from_array(np.array(0.1, np.float32), "scale"),
            numpy_helper.from_array(np.array(3, np.uint8), "point"),
            numpy_helper.from_array(np.ones((2, 2, 3), np.float32), "k"),
            numpy_helper.from_array(np.array([-1, 6], np.int64), "shape"),
            numpy_helper.from_array(np.array([0], np.int64), "lo"),
            numpy_helper.from_array(np.array([1 << 40], np.int64), "hi"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@cache
def seeds() -> tuple[onnx.ModelProto, ...]:
    """Valid models: an encoder with a padding mask, control flow, quantization."""
    config = BertConfig(layers=1, hidden=8, heads=2, ffn=8, vocab=11, positions=6)
    return bert(config, np.random.default_rng(0)), _branches(), _quantized()


def apply(model: onnx.ModelProto, changes: list[Change]) -> onnx.ModelProto:
    """A copy of a model with some changes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for place, action, a, b in changes:
        fields = list(_fields(copy))
        if not fields:
            break
        message, field = fields[place % len(fields)]
        others = [getattr(m, f.name) for m, f in fields if f.full_name == field.full_name]
        donor = others[b % len(others)]  # what the same field is elsewhere
        if field.is_repeated:
            items = getattr(message, field.name)
            _change_list(field, items, donor[b % len(donor)], action % 5, a % len(items), b)
        elif action % 4 == 0:
            message.ClearField(field.name)
        elif field.type == field.TYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(donor)
        else:
            setattr(message, field.name, donor if a % 3 == 0 else _edge(field, donor, b))
    return copy


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
    """Every field that is set, of a message and of those in it."""
    for field, value in message.ListFields():
        yield message, field
        if field.type == field.TYPE_MESSAGE:
            for item in value if field.is_repeated else [value]:
                yield from _fields(item)


def _change_list(field: Any, items: Any, donor: Any, action: int, at: int, b: int) -> None:
    """Drop an element, repeat it, move it to the end, add one from elsewhere, or change it."""
    if action == 0:
        del items[at]
    elif action == 1:
        items.append(items[at])
    elif action == 2:
        items.append(items[at])
        del items[at]
    elif action == 3 or field.type == field.TYPE_MESSAGE:
        items.append(donor)
    else:
        items[at] = _edge(field, items[at], b)


def _edge(field: Any, old: Any, b: int) -> Any:
    """An edge case of a scalar field."""
    if isinstance(old, str):
        return _TEXTS[b % len(_TEXTS)]
    if isinstance(old, bytes):
        return old[: b % (len(old) + 1)]
    if isinstance(old, float):
        return _FLOATS[b % len(_FLOATS)]
    if field.type == field.TYPE_ENUM:
        return field.enum_type.values[b % len(field.enum_type.values)].number
    bits = 31 if field.type == field.TYPE_INT32 else 63
    least = 0 if field.type == field.TYPE_UINT64 else -(1 << bits)
    return max(least, min(_INTS[b % len(_INTS)], (1 << bits) - 1))
