"""Guards on rows of a softmax that are known to hold in none: they go.

    p = softmax(score + mask)
    w = Where(ReduceMax(score + mask != -inf) == 0, 0, p)     ->     w = p, for a mask of -3.4e38

torch's attention has such a guard. Its condition reads every score, so no score could be left out.
It is made of the terms of p, so what p depends on stays what w depends on.
"""

import onnx_ir as ir

from pitc.ir.constant import is_number
from pitc.ir.graph import Graph
from pitc.ir.unused import remove_unused


def drop_idle_guards(model: ir.Model, graph: Graph) -> int:
    """Replace guards of the main graph whose condition keeps the softmax everywhere.

    Args:
        model: The model; it is changed in place.
        graph: Its graph, with fill facts.

    Returns:
        How many there were: facts of the graph are then those of another one.
    """
    count = 0
    for node in graph.nodes:
        out = node.outputs[0]
        softmax = graph[out.name or ""].guarded_softmax
        if not softmax or node.graph is not model.graph or out.is_graph_output():
            continue
        condition, *operands = (x for x in node.inputs if x is not None)
        facts = graph[condition.name or ""].fills
        known = {bool(f.constant) for f in facts if not f.region and is_number(f.constant)}
        if len(known) == 1 and operands[known == {False}].name == softmax:
            out.replace_all_uses_with(operands[known == {False}])
            count += 1
    if count:
        remove_unused(model)
    return count
