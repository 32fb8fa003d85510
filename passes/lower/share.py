"""One copy of every weight: the source graph reads weights from the panels that the compiled graph
holds.

    w[k, n] = panels[n // NR, k, n % NR]
    w[e, k, n] = panels[e * P + n // NR, k, n % NR]        w_e[k, n], if each is a constant

An artifact carries the source graph for machines that cannot run the kernels. Written as they were,
its weights would be in the artifact twice; as a Transpose, Reshape and Slice of the panels (folded
by ONNX Runtime when it loads the graph) they cost nothing.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from pitc.ir.build import Names, NodeMaker
from pitc.ir.nodes import Array, opset_of
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
        (name, made, (k, n), [1, 0] if transposed else [0, 1], None)
        for (name, transposed, k, n), made in panels.made.items()
    )
    for name, made, size, order, part in (*matrices, *_stacks(panels)):
        name, rows = panels.ordered.get(name, (name, None))
        weight = source.graph.initializers.get(name)
        if weight is None or name in kept or weight.is_graph_input() or weight.is_graph_output():
            continue
        if weight.const_value is None or made.name not in kept or weight.shape is None:
            continue
        _express(source.graph, weight, made, size, order, part, rows)


Stack = tuple[str, ir.Value, tuple[int, ...], list[int], int | None]


def _stacks(panels: Panels) -> Iterator[Stack]:
    """Stacks of matrices as [groups, k, n], and the order in which the weight has dimensions; or
    each matrix by itself, and its number.
    """
    for (name, axes, size), made in panels.stacks.items():
        for part, each in enumerate(panels.parts.get(name, ())):
            yield each, made, size[1:], [0, 1] if axes[1] < axes[2] else [1, 0], part
        if name not in panels.parts:
            yield name, made, size, [axes.index(d) for d in range(len(axes))], None


def _express(
    graph: ir.Graph,
    weight: ir.Value,
    made: ir.Value,
    size: tuple[int, ...],
    order: list[int],
    part: int | None,
    rows: Array | None,
) -> None:
    """A weight by panels: those of a matrix `[k, n]`, or of a stack or a part of one, then its
    dimensions in order, then its rows, where panels have others first.
    """
    name, (*groups, k, n) = weight.name or "", size
    stem = made.name if part is None else f"{made.name}.{part}"
    build = NodeMaker(graph, Names(), before=next(iter(graph), None))
    panels = graph.initializers.get(made.name or "")
    if panels is None:
        assert made.const_value is not None
        panels = build.initializer(made.const_value)
    count = panel_count(n)

    def constant(what: str, numbers: list[int]) -> ir.Value:
        return build.named(f"{stem}.{what}", np.asarray(numbers, np.int64))

    def slice_of(start: int, end: int, axis: int, what: str = "") -> list[ir.Value]:
        bounds = {"start": start, "end": end, "axis": axis}
        return [constant(f"{what}{name}", [x]) for name, x in bounds.items()]

    steps: list[tuple[str, list[ir.Value], dict[str, list[int] | int]]] = []
    if part is not None:
        steps.append(("Slice", slice_of(part * count, (part + 1) * count, 0, "part."), {}))
    if groups:
        steps.append(("Reshape", [constant("groups", [*groups, count, k, PANEL_WIDTH])], {}))
    steps.append(("Transpose", [], {"perm": [0, 2, 1, 3] if groups else [1, 0, 2]}))
    steps.append(("Reshape", [constant("matrix", [*groups, k, count * PANEL_WIDTH])], {}))
    if count * PANEL_WIDTH != n:
        steps.append(("Slice", slice_of(0, n, len(size) - 1), {}))
    if order != sorted(order):
        steps.append(("Transpose", [], {"perm": order}))
    if rows is not None:
        steps.append(("Gather", [constant("rows", np.argsort(rows).tolist())], {"axis": 1}))
    whole = [] if weight.const_value is None else [int(d) for d in weight.const_value.shape.numpy()]
    if len(whole) != len(size):
        steps.append(("Reshape", [constant("shape", whole)], {}))
    value = panels
    for place, (op_type, rest, attributes) in enumerate(steps):
        label = f"{stem}.{op_type.lower()}.{place}"
        (value,) = build.add(op_type, [value, *rest], attributes, [label], label)
    ir.convenience.replace_all_uses_with(weight, value)
    del graph.initializers[name]
    value.name, value.type, value.shape = name, weight.type, weight.shape
