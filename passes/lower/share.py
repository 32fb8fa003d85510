"""One copy of every weight: the source graph reads weights from the panels that the compiled graph
holds.

    w[k, n] = panels[n // NR, k, n % NR]

An artifact carries the source graph for machines that cannot run the kernels. Written as they were,
its weights would be in the artifact twice; as a Transpose, Reshape and Slice of the panels (folded
by ONNX Runtime when it loads the graph) they cost nothing.
"""

import numpy as np
import onnx_ir as ir

from pitc.ir.build import Names, NodeMaker
from pitc.ir.nodes import opset_of
from pitc.ir.panels import PANEL_WIDTH
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
    for (name, transposed, k, n), made in panels.made.items():
        weight = source.graph.initializers.get(name)
        if weight is None or name in kept or weight.is_graph_input() or weight.is_graph_output():
            continue
        if weight.const_value is None or made.name not in kept or weight.shape is None:
            continue
        _express(source.graph, weight, made, (k, n), transposed)


def _express(
    graph: ir.Graph, weight: ir.Value, made: ir.Value, size: tuple[int, int], transposed: bool
) -> None:
    name, (k, n) = weight.name or "", size
    build = NodeMaker(graph, Names(), before=next(iter(graph), None))
    panels = graph.initializers.get(made.name or "")
    if panels is None:
        assert made.const_value is not None
        panels = build.initializer(made.const_value)
    columns = -(-n // PANEL_WIDTH) * PANEL_WIDTH

    def constant(stem: str, numbers: list[int]) -> ir.Value:
        return build.named(f"{made.name}.{stem}", np.asarray(numbers, np.int64))

    steps: list[tuple[str, list[ir.Value], dict[str, list[int]]]]
    steps = [("Transpose", [], {"perm": [1, 0, 2]})]
    steps.append(("Reshape", [constant("matrix", [k, columns])], {}))
    if columns != n:
        bounds = [constant(s, [x]) for s, x in (("start", 0), ("end", n), ("axis", 1))]
        steps.append(("Slice", bounds, {}))
    if transposed:
        steps.append(("Transpose", [], {"perm": [1, 0]}))
    whole = [] if weight.const_value is None else [int(d) for d in weight.const_value.shape.numpy()]
    if len(whole) != 2:
        steps.append(("Reshape", [constant("shape", whole)], {}))
    value = panels
    for place, (op_type, rest, attributes) in enumerate(steps):
        label = f"{made.name}.{op_type.lower()}.{place}"
        (value,) = build.add(op_type, [value, *rest], attributes, [label], label)
    ir.convenience.replace_all_uses_with(weight, value)
    del graph.initializers[name]
    value.name, value.type, value.shape = name, weight.type, weight.shape
