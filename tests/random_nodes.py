"""Single nodes in ONNX Runtime, sessions kept: values of a growing graph, and lowered models."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from tests.plan_reference import OPERATIONS, parse

Array = Any
SESSIONS = 4096  # kept; a graph draws its nodes from a few thousand kinds
SILENT = 4


class NodeFailed(Exception):
    """ONNX Runtime does not take the node, or stops at it."""


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session that runs the graph as it is, on one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = SILENT
    options.enable_cpu_mem_arena = False
    payload = model.SerializeToString()
    return ort.InferenceSession(payload, options, providers=["CPUExecutionProvider"])


def run_whole(session: ort.InferenceSession, feed: Mapping[str, Array]) -> list[Array] | None:
    """The outputs by ONNX Runtime; None where it stops."""
    try:
        return list(session.run(None, dict(feed)))
    except Exception:  # the runtime's exception classes are not public
        return None


@lru_cache(SESSIONS)
def _session(node: bytes, kinds: tuple[Any, ...], opset: int) -> ort.InferenceSession | None:
    """A session of one node; `kinds` holds per operand (type, rank), a tensor's bytes, or None."""
    proto = onnx.NodeProto.FromString(node)
    inputs, constants = [], []
    for name, kind in zip(proto.input, kinds, strict=True):
        if isinstance(kind, bytes):
            constants.append(onnx.TensorProto.FromString(kind))
        elif kind is not None:
            inputs.append(helper.make_tensor_value_info(name, kind[0], [None] * kind[1]))
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = helper.make_graph([proto], "node", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(proto.domain, 1)] if proto.domain else []
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    try:
        return session_of(model)
    except Exception:  # the runtime's exception classes are not public
        return None


def _is_undefined(node: onnx.NodeProto, operands: Sequence[Array | None]) -> bool:
    """Whether ONNX Runtime divides by zero (a fused attention with more heads than columns), or
    leaves elements unwritten (the last one of each odd row of RotaryEmbedding).
    """
    heads = next((a.i for a in node.attribute if a.name == "num_heads"), 0)
    first = operands[0] if operands else None
    if first is None or not first.ndim:
        return False
    row = first.shape[-1] // max(heads, 1)
    return first.shape[-1] < heads or (node.op_type == "RotaryEmbedding" and row % 2 == 1)


def run_node(
    node: onnx.NodeProto,
    operands: Sequence[Array | None],
    opset: int,
    baked: Sequence[bool] | None = None,
) -> list[Array]:
    """Outputs of one node; None where it names no output.

    Args:
        node: The node.
        operands: One array per input, None where it is absent.
        opset: Version of the standard operator set.
        baked: Operands that the node must see as constants.

    Raises:
        NodeFailed: ONNX Runtime does not run it.
    """
    if _is_undefined(node, operands):
        raise NodeFailed(node.op_type)
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    plain.name = ""
    plain.input[:] = ["" if x is None else f"x{i}" for i, x in enumerate(operands)]
    plain.output[:] = [f"y{i}" if name else "" for i, name in enumerate(node.output)]
    kinds: list[Any] = []
    feed = {}
    for i, x in enumerate(operands):
        if x is None:
            kinds.append(None)
        elif baked is not None and baked[i]:
            kinds.append(numpy_helper.from_array(np.asarray(x), f"x{i}").SerializeToString())
        else:
            kinds.append((helper.np_dtype_to_tensor_dtype(x.dtype), x.ndim))
            feed[f"x{i}"] = np.asarray(x)
    session = _session(plain.SerializeToString(), tuple(kinds), opset)
    if session is None:
        raise NodeFailed(node.op_type)
    try:
        found = iter(session.run(None, feed))
    except Exception as error:  # the runtime's exception classes are not public
        raise NodeFailed(str(error)) from error
    return [next(found) if name else None for name in node.output]


def plan_of(node: onnx.NodeProto) -> dict[str, str]:
    """The fields of a PIT node's plan; none for ordinary nodes."""
    if node.op_type != "EPContext":
        return {}
    return parse(next(a.s.decode() for a in node.attribute if a.name == "ep_cache_context"))


def run_nodes(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs of a lowered model: ordinary nodes by ONNX Runtime, PIT nodes by numpy.

    Args:
        model: The model; its nodes are in topological order.
        feeds: Its inputs.

    Raises:
        NodeFailed: A node stops.
    """
    opset = {o.domain: o.version for o in model.opset_import}[""]
    return _run_graph(model.graph, {n: np.asarray(x) for n, x in feeds.items()}, opset)


def _run_graph(
    graph: onnx.GraphProto, around: Mapping[str, Array], opset: int, fixed: Collection[str] = ()
) -> list[Array]:
    """Outputs of a graph.

    Args:
        graph: The graph, or a body.
        around: Its inputs, and the values around it.
        opset: Version of the standard operator set.
        fixed: Values around it that are constants.
    """
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    values = {**constants, **around}
    known = {*constants, *fixed}
    for node in graph.node:
        operands = [values[name] if name else None for name in node.input]
        fields = plan_of(node)
        found: Sequence[Array]
        if fields:
            found = OPERATIONS[fields["op"]](fields, *operands)
        elif is_control(node):
            found = run_control(node, values, opset, known)
        else:
            try:
                found = run_node(node, operands, opset)
            except NodeFailed:
                found = run_node(node, operands, opset, [n in known for n in node.input])
        values |= {n: x for n, x in zip(node.output, found, strict=False) if n}
    return [values[o.name] for o in graph.output]


def is_control(node: onnx.NodeProto) -> bool:
    """True for If and Loop, which run node by node."""
    return node.op_type in ("If", "Loop") and not node.domain


def run_control(
    node: onnx.NodeProto, values: Mapping[str, Array], opset: int, fixed: Collection[str] = ()
) -> list[Array]:
    """Outputs of an If, or of a Loop that gives its states only.

    Args:
        node: The node.
        values: All values that its bodies may read.
        opset: Version of the standard operator set.
        fixed: Those of them that are constants.
    """
    bodies = {a.name: a.g for a in node.attribute}
    if node.op_type == "If":
        taken = "then_branch" if values[node.input[0]] else "else_branch"
        return _run_graph(bodies[taken], values, opset, fixed)
    body, states = bodies["body"], [values[name] for name in node.input[2:]]
    for trip in range(int(values[node.input[0]])):
        given = (np.asarray(trip, np.int64), np.asarray(True), *states)
        inner = dict(zip((i.name for i in body.input), given, strict=True))
        go, *states = _run_graph(body, {**values, **inner}, opset, fixed)
        if not go:
            break
    return states
