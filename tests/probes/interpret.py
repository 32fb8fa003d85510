"""Runs a lowered graph: PIT nodes by numpy, all that lies between them by ONNX Runtime.

Ordinary nodes run in pieces as large as possible, with optimisations disabled. A body that holds
PIT nodes is walked here. A product that skips zeros really leaves its terms out: 0 times Inf is 0
there, as kernels have it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from tests.plan_reference import OPERATIONS, contract
from tests.random_nodes import plan_of, session_of

Array = Any
Values = dict[str, Array]
PIECES = 64  # kept: other feeds of a graph run the same ones


def run_graph(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs of a lowered model."""
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    constants = {t.name: t for t in model.graph.initializer if t.name not in feeds}
    values |= {name: np.asarray(x) for name, x in feeds.items()}
    with np.errstate(all="ignore"):
        _Walk(model, constants).run(model.graph, values)
    return [values[o.name] for o in model.graph.output]


@lru_cache(PIECES)
def _session(piece: bytes) -> ort.InferenceSession:
    return session_of(onnx.ModelProto.FromString(piece))


class _Walk:
    def __init__(self, model: onnx.ModelProto, constants: dict[str, onnx.TensorProto]) -> None:
        self.model, self.constants = model, constants

    def run(self, graph: onnx.GraphProto, values: Values) -> None:
        """Compute every value of a graph."""
        plain: list[onnx.NodeProto] = []
        wanted = {o.name for o in graph.output}
        nodes = list(graph.node)
        for k, node in enumerate(nodes):
            if not _holds_pit(node):
                plain.append(node)
                continue
            later = {x for n in nodes[k:] for x in _reads(n)}
            self._piece(plain, later | wanted, values)
            plain = []
            self._node(node, values)
        self._piece(plain, wanted, values)

    def _piece(self, nodes: Sequence[onnx.NodeProto], wanted: set[str], values: Values) -> None:
        if not nodes:
            return
        made = {o for n in nodes for o in n.output if o}
        reads = {x for n in nodes for x in _reads(n)} - made
        outputs = [onnx.ValueInfoProto(name=x) for x in sorted(made & wanted)]
        if not outputs:
            return
        constants = [self.constants[x] for x in sorted(reads) if x in self.constants]
        given = {x: values[x] for x in sorted(reads) if x not in self.constants and x in values}
        infos = [
            helper.make_tensor_value_info(
                x, helper.np_dtype_to_tensor_dtype(v.dtype), [None] * v.ndim
            )
            for x, v in given.items()
        ]
        graph = helper.make_graph(list(nodes), "piece", infos, outputs, constants)
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        model.functions.extend(self.model.functions)
        found = _session(model.SerializeToString(deterministic=True)).run(None, given)
        values.update(zip((o.name for o in outputs), found, strict=True))

    def _node(self, node: onnx.NodeProto, values: Values) -> None:
        fields = plan_of(node)
        if fields:
            operands = [values[x] if x else None for x in node.input]
            found = {**OPERATIONS, **SKIPPING}[fields["op"]](fields, *operands)
        else:
            found = getattr(self, f"_{node.op_type.lower()}")(node, values)
        values.update({x: y for x, y in zip(node.output, found, strict=False) if x})

    def _if(self, node: onnx.NodeProto, values: Values) -> list[Array]:
        side = "then_branch" if values[node.input[0]].reshape(-1)[0] else "else_branch"
        return self._body(_body(node, side), values, {})

    def _loop(self, node: onnx.NodeProto, values: Values) -> list[Array]:
        body = _body(node, "body")
        trips = int(values[node.input[0]].reshape(-1)[0]) if node.input[0] else 1 << 62
        going = values[node.input[1]] if node.input[1] else np.asarray(True)
        if _ranked(body.input[1]):
            going = going.reshape(_one(body.input[1]))
        states = [values[x] for x in node.input[2:]]
        scans: list[list[Array]] = [[] for _ in range(len(body.output) - 1 - len(states))]
        trip = 0
        while going.reshape(-1)[0] and trip < trips:
            given = [np.full(_one(body.input[0]), trip, np.int64), going, *states]
            names = [i.name for i in body.input]
            found = self._body(body, values, dict(zip(names, given, strict=True)))
            going, states = found[0], found[1 : 1 + len(states)]
            for kept, x in zip(scans, found[1 + len(states) :], strict=True):
                kept.append(x)
            trip += 1
        return [*states, *(np.stack(x) if x else np.zeros(0, np.float32) for x in scans)]

    def _body(self, body: onnx.GraphProto, values: Values, own: Values) -> list[Array]:
        constants = {t.name: numpy_helper.to_array(t) for t in body.initializer}
        inner = {**values, **constants, **own}
        self.run(body, inner)
        return [inner[o.name] for o in body.output]


def _ranked(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.HasField("shape")


def _one(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """The shape of one element that a body's input is declared to have."""
    return (1,) * len(value.type.tensor_type.shape.dim)


def _body(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    return next(a.g for a in node.attribute if a.name == name)


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _holds_pit(node: onnx.NodeProto) -> bool:
    return bool(plan_of(node)) or any(_holds_pit(n) for g in _bodies(node) for n in g.node)


def count_pit(graph: onnx.GraphProto) -> int:
    """PIT nodes of a graph and of its bodies."""
    inner = (g for n in graph.node for g in _bodies(n))
    return sum(bool(plan_of(n)) for n in graph.node) + sum(map(count_pit, inner))


def _reads(node: onnx.NodeProto) -> set[str]:
    """What a node reads, in its bodies too."""
    found = {x for x in node.input if x}
    for body in _bodies(node):
        own = {i.name for i in body.input} | {t.name for t in body.initializer}
        own |= {o for n in body.node for o in n.output}
        found |= ({x for n in body.node for x in _reads(n)} | {o.name for o in body.output}) - own
    return found


def _contract(fields: Mapping[str, str], a: Array, *rest: Array) -> Sequence[Array]:
    """A contraction; where zeros are skipped, as a kernel over lists leaves them out."""
    if fields["tiles"] == "1":
        return contract(dict(fields), a, *rest)
    if fields["skips"] == "1" and fields["right"] != "panels":
        return _contract_right(fields, a, *rest)
    b = rest[1 + int(fields["inner_bias"])] if "inner" in fields else rest[0]
    if fields["skips"] == "1" and not np.isfinite(b).all():
        raise ArithmeticError("zeros are skipped before a weight that is not finite")
    return contract(dict(fields), a, *rest)


def _contract_right(fields: Mapping[str, str], a: Array, s: Array, *rest: Array) -> Sequence[Array]:
    """Terms whose weight is 0 are left out, whatever they are multiplied by."""
    left = list(rest)
    w = s * left[0] if fields["factor"] == "1" else s
    k_axis = 0 if fields["right"] == "kn" else 1
    if np.isfinite(a).all() or w.size == 0:
        return contract(dict(fields), a, s, *rest)
    dense = w if k_axis == 0 else w.T
    with np.errstate(all="ignore"):
        terms = np.where(dense == 0, 0, a[..., None] * dense)
    plain = contract(dict(fields), np.where(np.isfinite(a), a, 0), s, *rest)[0]
    bad = ~np.isfinite(terms.sum(-2)).reshape(-1, dense.shape[1])
    if plain.shape == (*a.shape[:-1], dense.shape[1]):
        return (np.where(bad.reshape(plain.shape), terms.sum(-2), plain),)
    return (plain,)


SKIPPING = {"contract": _contract}
