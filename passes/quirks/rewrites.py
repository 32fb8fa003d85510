"""Flags and operands as ONNX Runtime takes them."""

from itertools import product

import onnx_ir as ir

from pitc.ir.build import NodeMaker, names_of
from pitc.ir.inference import infer
from pitc.passes.rules.registry import MICROSOFT

FLAGS = {  # by domain
    "": frozenset(("allowzero", "ceil_mode", "keepdims", "noop_with_empty_axes")),
    MICROSOFT: frozenset(("unidirectional",)),
}


def plain_flags(model: ir.Model) -> int:
    """Flags that ONNX Runtime takes for set where they are 1, and only there: keepdims = 2 is 0."""
    count = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for name in FLAGS.get(node.domain, frozenset()).intersection(node.attributes):
            if node.attributes[name].value not in (0, 1):
                node.attributes[name] = ir.AttrInt64(name, 0)
                count += 1
    return count


def scalar_range_operands(model: ir.Model) -> None:
    """Operands of Range of shape [1] become scalars.

    ONNX Runtime takes them when it runs, but not when it loads a graph that shows their shape, as
    one does whose If is gone.
    """
    found = [n for n in model.graph if n.op_identifier() == ("", "Range", "")]
    types = infer(model) if found else {}
    single = {name for name, known in types.items() if known.dims == (1,)}
    taken = names_of(model.graph)
    for node, i in product(found, range(3)):
        x = node.inputs[i]
        if x is not None and x.name in single:
            build = NodeMaker(model.graph, taken, before=node)
            name = taken.value(f"{x.name}.scalar")
            node.replace_input_with(i, build.add("Squeeze", [x], {}, [name])[0])
