"""Small models with If and Loop nodes, and how tests run and compare them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper

from models.graph import Array, GraphBuilder, element_type
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.plan_reference import run_lowered

BSD = ("b", "s", 32)
PADDING = "mask"
RTOL = 1e-5  # norm-wise, float32
MASKS = {
    "right": [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 0, 0, 1]],
    "full": [[1, 1, 1, 1, 1]],
    "one": [[1]],
}


class Body(GraphBuilder):
    """Builds a branch: its values have names of their own, constants are the outer graph's."""

    def __init__(self, outer: GraphBuilder, name: str) -> None:
        super().__init__(name, outer.opset)
        self.outer = outer

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        """A constant of the outer graph."""
        return self.outer.const(value, dtype)

    def weight(self, name: str, array: Array) -> str:
        """A weight of the outer graph."""
        return self.outer.weight(name, array)

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; the name of its result starts with that of the branch."""
        out = f"{self.name}.{super().op(op_type, *inputs, domain=domain, **attributes)}"
        self._nodes[-1].output[0] = self._nodes[-1].name = out
        return out

    def graph(self, results: Sequence[str], dtype: Any = np.float32) -> onnx.GraphProto:
        """The finished branch."""
        own = {o for n in self._nodes for o in n.output}
        names = [r if r in own else self.op("Identity", r) for r in results]
        infos = [helper.make_tensor_value_info(n, element_type(dtype), None) for n in names]
        return helper.make_graph(self._nodes, self.name, [], infos, list(self._weights.values()))


Make = Callable[[Body], Sequence[str] | str]


def branch(
    g: GraphBuilder, condition: str, then: Make, other: Make, dtype: Any = np.float32
) -> Any:
    """Add an If.

    Returns:
        The name of its output, a list of them when the branches give lists.
    """
    place, graphs, single = f"{g.name}{len(g._nodes)}", {}, True
    for attribute, make in (("then_branch", then), ("else_branch", other)):
        body = Body(g, f"{place}{attribute[0]}")
        results = make(body)
        single = isinstance(results, str)
        graphs[attribute] = body.graph([results] if isinstance(results, str) else results, dtype)
    g.op("If", condition, **graphs)
    node = g._nodes[-1]
    first = node.output[0]
    node.output[:] = [f"{first}.{k}" for k in range(len(graphs["then_branch"].output))]
    return node.output[0] if single else list(node.output)


def loop(
    g: GraphBuilder,
    trips: str,
    states: Sequence[str],
    make: Callable[[Body, str, list[str]], Sequence[str]],
    go_on: Callable[[Body], str] | None = None,
    condition: str = "",
) -> list[str]:
    """Add a Loop whose body makes the next states, then what it writes slice by slice.

    Args:
        g: The graph.
        trips: The trip count; empty for none.
        states: The initial states, float32.
        make: The body's steps, given the trip's number and the states.
        go_on: The condition that the body gives; by default the one that it takes.
        condition: The condition at the start; empty for none.
    """
    body = Body(g, f"{g.name}{len(g._nodes)}l")
    carried = [f"{body.name}.s{k}" for k in range(len(states))]
    number, flag = f"{body.name}.i", f"{body.name}.go"
    results = list(make(body, number, carried))
    again = body.op("Identity", flag) if go_on is None else go_on(body)
    graph = body.graph(results)
    graph.output.insert(0, helper.make_tensor_value_info(again, TensorProto.BOOL, ()))
    graph.input.append(helper.make_tensor_value_info(number, TensorProto.INT64, ()))
    graph.input.append(helper.make_tensor_value_info(flag, TensorProto.BOOL, ()))
    for name in carried:
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    g.op("Loop", trips, condition, *states, body=graph)
    node = g._nodes[-1]
    first = node.output[0]
    node.output[:] = [f"{first}.{k}" for k in range(len(results))]
    return list(node.output)


def model(make: Callable[[GraphBuilder], None], opset: int = 17) -> onnx.ModelProto:
    """The model that a function builds."""
    g = GraphBuilder("m", opset)
    make(g)
    return g.model()


def linear(g: GraphBuilder, x: str, name: str, activation: str | None = None) -> str:
    """x @ w + b of 32 features, w and b by name."""
    rng = np.random.default_rng(sum(map(ord, name)))
    w = g.weight(f"{name}.w", rng.normal(0, 0.3, (32, 32)).astype(np.float32))
    b = g.weight(f"{name}.b", rng.normal(0, 0.3, 32).astype(np.float32))
    y = g.op("Add", g.op("MatMul", x, w), b)
    return g.op(activation, y) if activation else y


def masked(g: GraphBuilder, x: str, mask: str, reduce: str = "ReduceSum") -> str:
    """Sum over the live tokens: [b, s, 32] -> [b, 32]."""
    wide = g.op("Unsqueeze", g.op("Cast", mask, to=1), g.ints(2))
    return g.reduce(reduce, g.op("Mul", x, wide), 1, keepdims=0)


def lower(proto: onnx.ModelProto, padding: str | None = None) -> Lowered:
    """Compile without kernels."""
    return run_passes(ir.from_proto(proto), LowerOptions(padding=padding))


def operators(graph: onnx.GraphProto) -> Counter[str]:
    """How many nodes of each operator a graph has, in bodies too."""
    found = Counter(n.op_type for n in graph.node)
    bodies = (a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH)
    return sum(map(operators, bodies), found)


def inside(proto: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each operator stand in bodies, at any depth."""
    return operators(proto.graph) - Counter(n.op_type for n in proto.graph.node)


def feeds_of(
    proto: onnx.ModelProto, mask: Any, seed: int, given: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Random inputs: a mask, sizes `b` and `s` that follow from it, anything else that is given."""
    rng, mask = np.random.default_rng(seed), np.asarray(mask)
    sizes = {"b": mask.shape[0], "s": mask.shape[1]}
    feed: dict[str, Array] = {}
    for i in proto.graph.input:
        t = i.type.tensor_type
        dims = [d.dim_value or sizes[d.dim_param] for d in t.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(t.elem_type)
        if given and i.name in given:
            feed[i.name] = np.asarray(given[i.name], dtype)
        elif "mask" in i.name:
            feed[i.name] = mask.astype(dtype)
        elif dtype.kind == "f":
            feed[i.name] = rng.normal(size=dims).astype(dtype)
        else:
            feed[i.name] = rng.integers(0, 2, dims).astype(dtype)
    return feed


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    """ONNX Runtime on the model as it is."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])


def differences(
    proto: onnx.ModelProto,
    lowered: onnx.ModelProto,
    feeds: Sequence[Mapping[str, Array]],
    padding: str | None,
) -> list[str]:
    """Where a lowered model differs from ONNX Runtime, one line each."""
    run, out = session(proto), []
    if "EPContext" in operators(lowered.graph):
        compute = partial(run_lowered, lowered)
    else:  # the reference adds up in another order
        compute = partial(session(lowered).run, None)
    for number, feed in enumerate(feeds):
        mask = None if padding is None else np.asarray(feed[padding]) != 0
        want = run.run(None, dict(feed))
        for k, (x, y) in enumerate(zip(want, compute(dict(feed)), strict=True)):
            x, y = np.asarray(x), np.asarray(y)
            if x.shape != y.shape or x.dtype != y.dtype:
                out.append(f"feed {number}: output {k} is {y.dtype} {y.shape}")
                continue
            if mask is not None and x.shape[:2] == mask.shape:
                if y[~mask].any():
                    out.append(f"feed {number}: output {k} is not 0 where it is given up")
                x, y = x[mask], y[mask]
            if np.linalg.norm(x - y) > RTOL * np.linalg.norm(x):
                out.append(f"feed {number}: output {k} is off by {np.abs(x - y).max()}")
    return out
