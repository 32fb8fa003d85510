"""Numbers that a model computes from constants and sizes: each becomes a constant.

    Sqrt(Cast(Gather(Shape(q), 3) / heads))     ->     8.0

An exporter that leaves a scale in the graph as steps means the same model as one that writes its
value. ONNX Runtime computes each step here as it would later, so the bits are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import Array, Graph, NodeView
from pitc.ir.index import ONE
from pitc.ir.nodes import attribute, bodies
from pitc.ir.unused import remove_unused
from pitc.passes.exprs.derive import derive
from pitc.passes.rules.record import operator_of

MOST = 64  # elements on the way to a number
STEPS = 24  # of producers in a row
# of float16 steps ONNX Runtime leaves out roundings, depending on what stands beside them
TYPES = frozenset({"bool", "float32", "float64", "int32", "int64"})


def fold_numbers(model: ir.Model) -> int:
    """Replace computed floats of one element by constants.

    Args:
        model: A model without Constant nodes; its main graph is changed in place.

    Returns:
        How many.
    """
    if not _may_hold_numbers(model.graph):
        return 0
    graph = Graph(model)
    derive(graph)
    numbers, count = _Numbers(graph), 0
    for node in graph.nodes:
        y = node.outputs[0]
        found = numbers.folded(y.name or "") if _is_one_float(graph, node) else None
        if found is not None:
            name, y.name = y.name, None
            constant = ir.val(name, const_value=ir.tensor(found, name=name))
            y.replace_all_uses_with(constant)
            model.graph.remove(node, safe=True)
            model.graph.register_initializer(constant)
            count += 1
    if count:
        remove_unused(model)
    return count


def _may_hold_numbers(graph: ir.Graph) -> bool:
    """Whether some step on floats is on constants and sizes alone: most models have none."""
    known = {v for v in graph.initializers.values() if not v.is_graph_input()}
    floats = {v for v in known if v.dtype is not None and v.dtype.is_floating_point()}
    for node in graph:
        operator, operands = operator_of(node), {x for x in node.inputs if x is not None}
        if not operands or not (operator.reads_no_element or operands <= known):
            continue
        known.update(node.outputs)
        if not floats.isdisjoint(operands):
            if operator.function is not None:
                return True
            floats.update(node.outputs)
        elif ir.DataType(attribute(node, "to", 0)).is_floating_point():
            floats.update(node.outputs)
    return False


def _is_one_float(graph: Graph, node: ir.Node) -> bool:
    """True for a float of one element that only other nodes read."""
    y = node.outputs[0]
    value = graph[y.name or ""]
    if value.dtype is None or value.dtype.kind != "f" or y.is_graph_output():
        return False
    return value.shape is not None and all(e == ONE for e in value.shape)


@dataclass(slots=True)
class _Numbers:
    """Values that are known before the model runs.

    Args:
        graph: The derived graph.
        known: What has been looked at; None for what depends on inputs.
        computed: Results of single steps, by the step: layers repeat each other.
    """

    graph: Graph
    known: dict[str, Array | None] = field(default_factory=dict)
    computed: dict[bytes, Array | None] = field(default_factory=dict)

    def folded(self, name: str, steps: int = STEPS) -> Array | None:
        """The elements of a value; None where they are not known, or too many."""
        if name not in self.known:
            self.known[name] = self._look(name, steps)
        return self.known[name]

    def _look(self, name: str, steps: int) -> Array | None:
        value = self.graph[name]
        shape = None if value.shape is None else [e.as_int() for e in value.shape]
        if shape is None or value.dtype is None or value.dtype.name not in TYPES or not steps:
            return None
        if None in shape or not 0 < np.prod([n or 0 for n in shape], dtype=object) <= MOST:
            return None
        if value.producer is None:
            return self.graph.array(name)
        sizes = self._sizes(name)
        return self._step(value.producer, steps) if sizes is None else sizes

    def _sizes(self, name: str) -> Array | None:
        """Integers that are computed of sizes, where those are known: none of them has wrapped."""
        numbers, dtype = self.graph.ints(name), self.graph[name].dtype
        found = [] if numbers is None else [p.as_int() for p in numbers.flat]
        if numbers is None or None in found or dtype is None:
            return None
        return np.array(found, np.int64).reshape(numbers.shape).astype(dtype)

    def _step(self, node: ir.Node, steps: int) -> Array | None:
        """What one node computes of known operands."""
        operator, expr = operator_of(node), self.graph[node.outputs[0].name or ""].expr
        if node.domain or len(node.outputs) != 1 or expr is None:
            return None
        maps = expr.combine is Combine.MAP and operator.function is not None
        if not (maps or expr.combine is Combine.MOVE) or next(bodies(node), None):
            return None
        operands: list[Array | None] = []
        for x in node.inputs:
            found = None if x is None else self.folded(x.name or "", steps - 1)
            if x is not None and found is None:
                return None
            operands.append(found)
        if not any(x is not None for x in operands) or _may_trap(operator.powers, operands):
            return None
        return self._computed(node, operands)

    def _computed(self, node: ir.Node, operands: Sequence[Array | None]) -> Array | None:
        version = self.graph.opset
        payload = _single(node, operands, version, NodeView(self.graph, node).out_dtype())
        if payload not in self.computed:
            self.computed[payload] = _run(payload)
        return self.computed[payload]


def _may_trap(powers: Sequence[int], operands: Sequence[Array | None]) -> bool:
    """True for integers divided by what is not positive: a machine stops at a 0."""
    divisors = [x for x in operands[1:] if x is not None and x.dtype.kind == "i"]
    return any(p < 0 for p in powers) and any((x <= 0).any() for x in divisors)


def _single(
    node: ir.Node, operands: Sequence[Array | None], version: int, dtype: np.dtype | None
) -> bytes:
    """A model of one node on constants."""
    inputs = [
        None if x is None else ir.val(f"x{k}", const_value=ir.tensor(x, name=f"x{k}"))
        for k, x in enumerate(operands)
    ]
    alone = ir.node(node.op_type, inputs, attributes=node.attributes)
    (y,) = alone.outputs
    y.name = "y"
    if dtype is not None:
        y.dtype = ir.DataType.from_numpy(dtype)
    constants = [x for x in inputs if x is not None]
    graph = ir.Graph(
        (), (y,), nodes=(alone,), initializers=constants, opset_imports={"": version}, name="number"
    )
    return bytes(ir.to_proto(ir.Model(graph, ir_version=8)).SerializeToString(deterministic=True))


def _run(payload: bytes) -> Array | None:
    """What ONNX Runtime's CPU kernels give; None where they do not take the node."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(payload, options, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {})
    except Exception:  # the runtime's exception classes are not public
        return None
    return np.asarray(found)
