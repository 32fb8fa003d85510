"""Moving the nodes of another graph (a branch, a loop body, a function) into the main graph."""

from collections.abc import Sequence

import onnx_ir as ir

from pitc.ir.build import Names, take_over


def graft(
    model: ir.Model,
    node: ir.Node,
    body: ir.Graph,
    operands: Sequence[ir.Value],
    taken: Names,
) -> tuple[list[ir.Node], list[ir.Value]]:
    """Move the nodes and initializers of a body in front of a node of the main graph.

    Args:
        model: The model; it is changed in place, and the body is empty afterwards.
        node: The node.
        body: The body.
        operands: What its inputs stand for.
        taken: Names of the main graph; new ones are added.

    Returns:
        The nodes, and the body's results.
    """
    table = {id(x): y for x, y in zip(body.inputs, operands, strict=True)}
    results = [table.get(id(x), x) for x in body.outputs]
    body.outputs.clear()
    for value, operand in zip(body.inputs, operands, strict=True):
        value.replace_all_uses_with(operand)
    body.inputs.clear()
    for name, value in list(body.initializers.items()):
        del body.initializers[name]
        value.name = taken.value(name)
        model.graph.register_initializer(value)
    moved = list(body)
    taken.rename(moved)
    body.remove(moved)
    model.graph.insert_before(node, moved)
    return moved, results


def substitute(
    model: ir.Model, node: ir.Node, outputs: Sequence[ir.Value], results: Sequence[ir.Value]
) -> None:
    """Replace a node by values that are computed before it. Its outputs keep their names: each
    becomes the Identity of its result.
    """
    for output, result in zip(outputs, results, strict=True):
        if output.name:
            same = ir.node("Identity", [result])
            model.graph.insert_before(node, same)
            take_over(output, same.outputs[0])
    model.graph.remove(node, safe=True)


def detach(body: ir.Graph) -> None:
    """Let the nodes of a body that is given up read nothing, so that nothing is kept for them."""
    for node in ir.traversal.RecursiveGraphIterator(body):
        for place in range(len(node.inputs)):
            node.replace_input_with(place, None)
