"""One copy of every weight: the source graph reads weights from the panels that the compiled graph
holds.

    w[k, n] = panels[n // NR, k, n % NR]
    w[e, k, n] = panels[e * P + n // NR, k, n % NR]

An artifact carries the source graph for machines that cannot run the kernels. Written as they were,
its weights would be in the artifact twice; as a Transpose, Reshape and Slice of the panels (folded
by ONNX Runtime when it loads the graph) they cost nothing.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from pitc.ir.build import Names, NodeMaker
from pitc.ir.nodes import opset_of
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.since import Since
from pitc.passes.lower.panels import Panels


def share_panels(source: ir.Model, compiled: ir.Model, panels: Panels) -> None:
    """Express weights of the source graph by panels, in place.

    Args:
        source: The source graph.
        compiled: The compiled graph. Weights that it holds as they were too are left alone.
        panels: The panels it holds.
    """
    if opset_of(source) < Since.SLICES:
        return
    kept = compiled.graph.initializers
    matrices = (
        (name, made, (k, n), [1, 0] if transposed else [0, 1])
        for (name, transposed, k, n), made in panels.made.items()
    )
    for name, made, size, order in (*matrices, *_stacks(panels)):
        weight = source.graph.initializers.get(name)
        if weight is None or name in kept or weight.is_graph_input() or weight.is_graph_output():
            continue
        if weight.const_value is None or made.name not in kept or weight.shape is None:
            continue
        _express(source.graph, weight, made, size, order)


def _stacks(panels: Panels) -> Iterator[tuple[str, ir.Value, tuple[int, ...], list[int]]]:
    """Stacks of matrices as [groups, k, n], and the order in which the weight has dimensions."""
    for (name, axes, size), made in panels.stacks.items():
        yield name, made, size, [axes.index(d) for d in range(len(axes))]


def _express(
    graph: ir.Graph, weight: ir.Value, made: ir.Value, size: tuple[int, ...], order: list[int]
) -> None:
    """A weight by panels: those of a matrix `[k, n]`, or of a stack, then in its own order."""
    name, (*groups, k, n) = weight.name or "", size
    build = NodeMaker(graph, Names(), before=next(iter(graph), None))
    panels = graph.initializers.get(made.name or "")
    if panels is None:
        assert made.const_value is not None
        panels = build.initializer(made.const_value)
    count = panel_count(n)

    def constant(stem: str, numbers: list[int]) -> ir.Value:
        return build.named(f"{made.name}.{stem}", np.asarray(numbers, np.int64))

    steps: list[tuple[str, list[ir.Value], dict[str, list[int]]]] = []
    if groups:
        steps.append(("Reshape", [constant("groups", [*groups, count, k, PANEL_WIDTH])], {}))
    steps.append(("Transpose", [], {"perm": [0, 2, 1, 3] if groups else [1, 0, 2]}))
    steps.append(("Reshape", [constant("matrix", [*groups, k, count * PANEL_WIDTH])], {}))
    if count * PANEL_WIDTH != n:
        last = len(size) - 1
        bounds = [constant(s, [x]) for s, x in (("start", 0), ("end", n), ("axis", last))]
        steps.append(("Slice", bounds, {}))
    if order != sorted(order):
        steps.append(("Transpose", [], {"perm": order}))
    whole = [] if weight.const_value is None else [int(d) for d in weight.const_value.shape.numpy()]
    if len(whole) != len(size):
        steps.append(("Reshape", [constant("shape", whole)], {}))
    value = panels
    for place, (op_type, rest, attributes) in enumerate(steps):
        label = f"{made.name}.{op_type.lower()}.{place}"
        (value,) = build.add(op_type, [value, *rest], attributes, [label], label)
    ir.convenience.replace_all_uses_with(weight, value)
    del graph.initializers[name]
    value.name, value.type, value.shape = name, weight.type, weight.shape
