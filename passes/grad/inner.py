"""Bodies of control flow as graphs of their own, and as bodies again.

    a copy of a body, what it captures as inputs  ->  derived, with gradients  ->  a body

What the gradients do not need of the copy is removed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph, NoRule
from pitc.ir.nodes import node_name
from pitc.ir.unused import remove_unused
from pitc.passes.grad.backward import Backward
from pitc.passes.grad.opened import copy_of, opened
from pitc.passes.grad.signatures import Signature
from pitc.passes.grad.site import Site
from pitc.passes.rules.record import key_of
from pitc.passes.rules.refused import REFUSED, Reason


@dataclass(frozen=True, slots=True)
class Inner:
    """A copy of a body, which takes the nodes of its backward way.

    Args:
        site: The node whose body it is.
        model: The copy as a model.
        graph: It, derived.
        build: Takes the nodes. They may read values from outside, too.
        inputs: What the body takes.
        copies: What stands in it for each value that the body captures.
    """

    site: Site
    model: ir.Model
    graph: Graph
    build: Backward
    inputs: tuple[ir.Value, ...]
    copies: dict[ir.Value, ir.Value]

    def gradients(self, seeds: Mapping[str, ir.Value], wrt: Collection[str]) -> dict[str, ir.Value]:
        """The gradients of some of its values, by their names; those that are 0 are left out.

        Args:
            seeds: The loss's gradients of the body's results, by their names.
            wrt: Names of values in the body.
        """
        return self.site.engine(self.graph, self.build, seeds, wrt)

    def like(self, value: ir.Value, name: str) -> ir.Value:
        """A new value, with the type and shape of another one.

        Args:
            value: The new one.
            name: The other one, a value of the body.

        Raises:
            NoRule: The type is unknown.
        """
        return typed(value, known_type(self.graph, name), self.graph[name].shape)

    def result(self, value: ir.Value) -> ir.Value:
        """A value as a result, which nothing else may be."""
        return self.build.node("", "Identity", [value], {}, ["result"])[0]

    def prune(self, results: Sequence[ir.Value]) -> None:
        """Keep only what results need.

        Raises:
            NoRule: That has nodes that do not give the same again.
        """
        self.model.graph.outputs.clear()
        self.model.graph.outputs.extend(results)
        remove_unused(self.model)
        for node in ir.traversal.RecursiveGraphIterator(self.model.graph):
            if draws(node):
                raise NoRule(
                    f"its backward way would compute '{node_name(node)}' again, with other random "
                    "numbers"
                )

    def close(self, inputs: Sequence[ir.Value]) -> ir.Graph:
        """The copy as a body that takes other inputs, and captures what the body did."""
        main = self.model.graph
        for outer, copy in self.copies.items():
            copy.replace_all_uses_with(outer)
            if copy.is_initializer():
                del main.initializers[copy.name or ""]
        main.inputs.clear()
        main.inputs.extend(inputs)
        main.opset_imports.clear()
        return main


def known_type(graph: Graph, name: str) -> np.dtype:
    """The type of a value.

    Raises:
        NoRule: It is unknown.
    """
    dtype = graph[name].dtype
    if dtype is None:
        raise NoRule(f"the type of '{name}' is unknown, or it is a sequence of tensors")
    return dtype


def typed(value: ir.Value, dtype: np.dtype, shape: Shape | None = None) -> ir.Value:
    """A new value, which gets a type, and a shape where that is known: its numbers."""
    value.type = ir.TensorType(ir.DataType.from_numpy(dtype))
    value.shape = None if shape is None else ir.Shape([e.as_int() for e in shape])
    return value


def draws(node: ir.Node) -> bool:
    """True for a node that may give something else each time that it runs."""
    reason = REFUSED.get(key_of(node))
    if node.op_type.endswith("Dropout"):  # the last operand that it may have tells it to train
        train = node.inputs[-1] if len(node.inputs) in (3, 5) else None
        known = None if train is None else train.const_value
        return train is not None and (known is None or bool(known.numpy().any()))
    return reason is Reason.RANDOM or (reason is Reason.CONTROL_FLOW and bool(node.domain))


def open_body(site: Site, body: ir.Graph, signature: Signature) -> Inner:
    """A copy of a body.

    Args:
        site: The node.
        body: Its body.
        signature: What the body takes.

    Raises:
        NoRule: The body does not fit.
    """
    model, copies = copy_of(site.view.graph, body, signature)
    inputs = tuple(model.graph.inputs[: len(signature.given)])
    graph = opened(model, site.build.names)
    build = Backward(graph, model.graph)
    build.names = site.build.names  # one name for one value, in and around the body
    return Inner(site, model, graph, build, inputs, copies)
