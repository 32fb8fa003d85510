"""Weights under masks, for training that prunes.

W, mask.W  ->  W * mask.W       mask.W: bools, false for a pruned element
"""

import fnmatch
from collections.abc import Sequence

import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.build import NodeBuilder
from pitc.ir.graph import Graph
from pitc.passes.grad.names import near, take_name

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


def mask_weights(model: ir.Model, patterns: Sequence[str]) -> list[str]:
    """Multiply weights by new inputs.

    Args:
        model: The model; it is changed in place.
        patterns: Names of weights of floats, or patterns of them.

    Returns:
        The names of the weights.

    Raises:
        UsageError: The model has no such weight, or has a mask's name.
    """
    if not patterns:
        return []
    graph = Graph(model)
    weights = [n for n, x in model.graph.initializers.items() if x.dtype in _FLOATS]
    build, found = NodeBuilder(model.graph, "mask"), list[str]()
    for pattern in patterns:
        names = fnmatch.filter(weights, pattern)
        if not names:
            raise UsageError(f"the model has no weight '{pattern}'", hint=near(graph, pattern))
        found += [n for n in names if n not in found]
    masks = [take_name(build.names, f"mask.{name}", f"the mask of '{name}'") for name in found]
    for name, taken in zip(found, masks, strict=True):
        weight = model.graph.initializers[name]
        uses = list(weight.uses())
        mask = ir.val(taken, ir.DataType.BOOL, weight.shape)
        model.graph.inputs.append(mask)
        assert weight.dtype is not None
        factors = build.op("Cast", [mask], to=weight.dtype)
        product = build.op("Mul", [weight, factors])
        product.type, product.shape = weight.type, weight.shape
        for node, place in uses:
            node.replace_input_with(place, product)
        made = [n for n in (factors.producer(), product.producer()) if n is not None]
        first = model.graph[0]
        for node in made:
            model.graph.remove(node)
            model.graph.insert_before(first, node)
    return found
