"""Graphs as gradients are taken of them: derived, without fused nodes that have no derivative.

What If, Loop and Scan give has the shape that their bodies tell. Inference forgets that of what a
loop carries, and does not say that a size is the same as another one.
"""

import onnx_ir as ir

from pitc.ir.build import Names, names_of
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph, NoRule
from pitc.ir.index import Poly
from pitc.ir.nodes import EXPANDED, bodies
from pitc.passes.control.bodies import declared, model_of
from pitc.passes.expand.expansion import EXPANSIONS, expand_nodes
from pitc.passes.expand.standard import is_function
from pitc.passes.exprs.derive import derive
from pitc.passes.grad.adjoints import rule_of
from pitc.passes.grad.signatures import SIGNATURES, Signature
from pitc.passes.rules.record import key_of


def opened(model: ir.Model, names: Names | None = None) -> Graph:
    """The graph, with fused nodes that have no derivative taken apart for good.

    Args:
        model: The model; it is changed in place.
        names: Names around it, of which new values must have none; none for a whole model.
    """
    before = names_of(model.graph).values
    while True:  # a body may have fused nodes of its own
        graph = _derived(model)
        fused = [n for n in graph.nodes if _has_parts(n, graph.opset) and not rule_of(graph, n)]
        if not expand_nodes(model, fused):
            return graph
        _let_go(model)
        if names is not None:
            _rename(model, names, before)


def _has_parts(node: ir.Node, opset: int) -> bool:
    return key_of(node) in EXPANSIONS or is_function(node, opset)


def _let_go(model: ir.Model) -> None:
    """Forget the fused nodes: they do not come back."""
    for expansion in model.meta.pop(EXPANDED):
        for holder in (s.holder for s in expansion.sources if s.holder is not None):
            holder.replace_input_with(0, None)


def _rename(model: ir.Model, names: Names, before: set[str]) -> None:
    """Give new values names that nothing around has."""
    made = [o for node in model.graph for o in node.outputs]
    for value in (*made, *model.graph.initializers.values()):
        if value.name and value.name not in before:
            value.name = names.value(value.name)
            before.add(value.name)


def _derived(model: ir.Model) -> Graph:
    graph = Graph(model)
    graph.tell = _tell
    derive(graph)
    return graph


def _tell(graph: Graph, node: ir.Node) -> dict[int, Shape]:
    """Shapes of results by what bodies say; of If, what both branches do."""
    make = SIGNATURES.get(key_of(node))
    if make is None:
        return {}
    try:
        signature = make(graph, node)
        found = [_results(graph, body, signature) for body in bodies(node)]
    except NoRule:
        return {}
    told: dict[int, Shape] = {}
    for k, shapes in enumerate(zip(*found, strict=False)):
        first, *others = shapes
        if first is not None and all(s is not None and len(s) == len(first) for s in others):
            sizes = zip(first, *(s for s in others if s is not None), strict=True)
            told[k] = tuple(
                one if one is not None and all(o == one for o in more) else graph.fresh()
                for one, *more in sizes
            )
    return told


Sizes = tuple[Poly | None, ...]


def _results(graph: Graph, body: ir.Graph, signature: Signature) -> list[Sizes | None]:
    """Sizes of what a body gives to the node's results, those that are known around it."""
    model, copies = copy_of(graph, body, signature)
    inner = _derived(model)
    pairs = [(x, shape) for x, (_, shape) in zip(model.graph.inputs, signature.given, strict=False)]
    pairs += [(copy, graph[outer.name or ""].shape) for outer, copy in copies.items()]
    around: dict[Poly, Poly] = {}
    for x, shape in pairs:
        around.update(zip(inner[x.name or ""].shape or (), shape or (), strict=False))
    found: list[Sizes | None] = []
    for k, name in enumerate(inner.outputs[signature.behind :]):
        shape = inner[name].shape
        sizes = None if shape is None else [around.get(e, _number(e)) for e in shape]
        if k < signature.states:
            found.append(signature.given[signature.before + k][1])
        elif sizes is not None and signature.written:
            found.append(signature.written_sizes(k - signature.states, sizes))
        else:
            found.append(None if sizes is None else tuple(sizes))
    return found


def _number(size: Poly) -> Poly | None:
    return None if size.as_int() is None else size


def copy_of(
    graph: Graph, body: ir.Graph, signature: Signature
) -> tuple[ir.Model, dict[ir.Value, ir.Value]]:
    """A copy of a body as a model, and what stands in it for each value that the body captures.

    Args:
        graph: The graph around it.
        body: The body.
        signature: What it takes.

    Raises:
        NoRule: It gives a value from outside, or takes more or fewer than the node says.
    """
    given = [*body.inputs, *body.initializers.values()]
    for value in body.outputs:
        made = value.producer()
        if made.graph is not body if made is not None else value not in given:
            raise NoRule("a body gives a value from outside as it is")
    if len(body.inputs) != len(signature.given):
        raise NoRule("a body takes more, or fewer, values than it is given")
    main = body.clone(allow_outer_scope_values=True)
    for value, (dtype, shape) in zip(main.inputs, signature.given, strict=True):
        value.shape = declared(shape)
        if dtype is not None:
            value.type = ir.TensorType(ir.DataType.from_numpy(dtype))
    return model_of(graph, main)
