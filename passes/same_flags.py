"""Comparisons that were made before, of the same numbers with fewer or more dimensions.

    a = (labels == -100)
    b = (Unsqueeze(labels) == -100)     ->     b = Unsqueeze(a)

What is known of `a` is then known of `b`: torch's loss asks in its backward for a second time which
labels count.
"""

from collections.abc import Hashable, Iterator
from itertools import chain

import onnx_ir as ir

from pitc.ir.branch import BRANCH
from pitc.ir.build import NodeMaker, names_of, take_over
from pitc.ir.unused import remove_unused
from pitc.passes.rules.record import OPERATORS, key_of

RESHAPES = ("Unsqueeze", "Squeeze")


def share_flags(model: ir.Model) -> int:
    """Comparisons of the main graph with a number become reshapes of equal ones before."""
    known, count = dict[Hashable, ir.Node](), 0
    taken = names_of(model.graph)
    for node in [n for n in model.graph if _compares(n)]:
        operand, number = node.inputs
        assert operand is not None and number is not None
        for source, reshapes in _sources(operand):
            before = known.get(_key(node, source, number))
            if before is not None:
                build = NodeMaker(model.graph, taken, before=node)
                _replace(model, build, node, before.outputs[0], reshapes)
                count += 1
                break
        else:
            known[_key(node, operand, number)] = node
    if count:
        remove_unused(model)
    return count


def _compares(node: ir.Node) -> bool:
    """True for a comparison with one number, which has no dimensions, that runs in any case."""
    operator = OPERATORS.get(key_of(node))
    function = None if operator is None else operator.function
    if function is None or not function.boolean or len(node.inputs) != 2 or node.attributes:
        return False
    if BRANCH in node.metadata_props:
        return False
    operand, number = node.inputs
    constant = None if number is None else number.const_value
    given = number is not None and number.is_graph_input()
    return operand is not None and not given and constant is not None and constant.shape.rank() == 0


def _sources(operand: ir.Value) -> Iterator[tuple[ir.Value, list[ir.Node]]]:
    """An operand, and the values that it is a reshape of, with the reshapes in between."""
    reshapes = list[ir.Node]()
    while True:
        yield operand, reshapes
        node = operand.producer()
        source = None if node is None else next(iter(node.inputs), None)
        if node is None or source is None or node.domain or node.op_type not in RESHAPES:
            return
        reshapes, operand = [node, *reshapes], source


def _key(node: ir.Node, operand: ir.Value, number: ir.Value) -> Hashable:
    assert number.const_value is not None
    x = number.const_value.numpy()
    return node.op_identifier(), operand, x.dtype.str, x.tobytes()


def _replace(
    model: ir.Model, build: NodeMaker, node: ir.Node, flags: ir.Value, reshapes: list[ir.Node]
) -> None:
    """Put reshapes of flags in the place of a comparison."""
    steps = [(r.op_type, r.inputs[1:], r.attributes.values()) for r in reshapes]
    for k, (op_type, rest, attributes) in enumerate(steps or [("Identity", (), ())]):
        last = k == max(len(steps), 1) - 1
        new = ir.node(op_type, list(chain([flags], rest)), name=node.name if last else None)
        new.attributes.update({a.name: a for a in attributes})
        build.insert(new)
        flags = new.outputs[0]
        if not last:
            flags.name = build.unique(f"{node.outputs[0].name}.{op_type}")
    take_over(node.outputs[0], flags)
    model.graph.remove(node, safe=True)
