"""Tall graphs: thousands of nodes of one kind. What a compiler does twice per node shows here.

Each builder takes the number of nodes and gives a checked model with about as many; widths are
small, as only the graph matters.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.bert import TINY, bert
from models.graph import Array, GraphBuilder

WIDTH = 16
BRANCH_NODES = 10  # in each branch of an If, so an If stands for twice as many nodes
SHAPE = ("batch", WIDTH)

Step = Callable[[GraphBuilder, str, int], str]  # h and the number of the step -> the next h


def _chain(name: str, nodes: int, step: Step, each: int = 1) -> onnx.ModelProto:
    """`step` after `step`, until there are enough nodes; one step has `each` nodes."""
    g = GraphBuilder(name)
    h = g.input("x", np.float32, SHAPE)
    for i in range(max(nodes // each, 1)):
        h = step(g, h, i)
    g.output(h, "y", np.float32, SHAPE)
    return g.model()


def relu_chain(nodes: int) -> onnx.ModelProto:
    """ReLU of ReLU of ReLU .."""
    return _chain("relu_chain", nodes, lambda g, h, i: g.op("Relu", h))


def add_chain(nodes: int) -> onnx.ModelProto:
    """Steps h + c, every c another vector."""
    return _chain("add_chain", nodes, lambda g, h, i: g.op("Add", h, _vector(g, i)))


def gate_chain(nodes: int) -> onnx.ModelProto:
    """Steps where(h > c, h, h * relu(h)), every c another vector."""

    def step(g: GraphBuilder, h: str, i: int) -> str:
        above = g.op("Greater", h, _vector(g, i))
        return g.op("Where", above, h, g.op("Mul", h, g.op("Relu", h)))

    return _chain("gate_chain", nodes, step, each=4)


def residual_tower(nodes: int) -> onnx.ModelProto:
    """Steps h + relu(h @ W) @ V, two matrices for all."""
    rng = np.random.default_rng(0)
    w, v = (rng.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32) for _ in range(2))

    def step(g: GraphBuilder, h: str, i: int) -> str:
        hidden = g.op("Relu", g.op("MatMul", h, g.weight("w", w)))
        return g.op("Add", h, g.op("MatMul", hidden, g.weight("v", v)))

    return _chain("residual_tower", nodes, step, each=4)


def if_tower(nodes: int) -> onnx.ModelProto:
    """Steps if(choice, h + c ten times, h * c ten times); every choice is an input."""
    count = max(nodes // (2 * BRANCH_NODES), 1)
    g = GraphBuilder("if_tower")
    h = g.input("x", np.float32, SHAPE)
    choices = [g.input(f"choice{i}", np.bool_, ()) for i in range(count)]
    for i, choice in enumerate(choices):
        then, other = _side(f"then{i}", "Add", h), _side(f"else{i}", "Mul", h)
        h = g.op("If", choice, then_branch=then, else_branch=other)
    g.output(h, "y", np.float32, SHAPE)
    return g.model()


def _side(name: str, op: str, h: str) -> onnx.GraphProto:
    """One branch of an If, which reads the outer value h."""
    constant = helper.make_tensor(f"{name}.c", TensorProto.FLOAT, (), [1.5])
    nodes = []
    for k in range(BRANCH_NODES):
        nodes.append(helper.make_node(op, [h, f"{name}.c"], [f"{name}.{k}"], f"{name}.{k}"))
        h = f"{name}.{k}"
    output = helper.make_tensor_value_info(h, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [output], [constant])


def transformer(nodes: int) -> onnx.ModelProto:
    """A BERT of tiny layers."""
    few, more = (len(_bert(layers).graph.node) for layers in (1, 2))
    return _bert(max(1 + round((nodes - few) / (more - few)), 1))


def _bert(layers: int) -> onnx.ModelProto:
    return bert(replace(TINY, layers=layers), np.random.default_rng(0))


def _vector(g: GraphBuilder, i: int) -> str:
    """A constant of its own for every step."""
    values: Array = np.linspace(-1, 1, WIDTH, dtype=np.float32) + np.float32(i % 7)
    return g.weight(f"c{i}", values)


TALL: dict[str, Callable[[int], onnx.ModelProto]] = {
    "transformer": transformer,
    "relu": relu_chain,
    "add": add_chain,
    "gate": gate_chain,
    "residual": residual_tower,
    "if": if_tower,
}
