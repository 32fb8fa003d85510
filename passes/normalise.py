"""Normalise: a few exact rewrites that let the rules see through what exporters wrap up.

Masks need none: every dialect is found by evaluating it. Each rewrite is one small rule; without
it some models prove less, and nothing else changes.
"""

from collections.abc import Callable, Iterable, Sequence

import onnx
import onnx.inliner
import onnx_ir as ir
import onnx_ir.passes.common as common

from pitc.ir.graph import Graph
from pitc.ir.inference import Inferred, infer
from pitc.passes.derive import derive

Rewrite = Callable[[ir.Model], int]
MAX_ROUNDS = 8  # of folding: a folded branch may decide the next condition


def normalise(model: ir.Model) -> dict[str, int]:
    """Apply every rewrite.

    Args:
        model: The imported model; it is changed in place.

    Returns:
        How often each rewrite applied, by name; those that did not are left out.
    """
    counts = {rewrite.__name__: rewrite(model) for rewrite in REWRITES}
    return {name: n for name, n in counts.items() if n}


def inline_functions(model: ir.Model) -> int:
    """Calls of the model's own functions become the functions' nodes."""
    count = len(model.functions)
    if count:
        common.InlinePass()(model)
    return count


def expand_attention(model: ir.Model) -> int:
    """`ai.onnx::Attention` (opset 23) of 32-bit floats becomes its standard function body.

    In narrower types the body rounds more often than ONNX Runtime's own kernel does.
    """
    found = [n for n in model.graph if n.op_type == "Attention" and n.domain in ("", "ai.onnx")]
    types = infer(model) if found else {}
    return sum(_expand_by_function(model, node, types) for node in found)


def _expand_by_function(model: ir.Model, node: ir.Node, types: dict[str, Inferred]) -> int:
    """Replace a node by its schema's function body, made for its operands' types."""
    inputs = [x for x in node.inputs if x is not None]
    if len(inputs) < len(node.inputs):  # the schema's body asks for the type of every operand
        return 0
    if any(x.name not in types or types[x.name].dims is None for x in inputs if x.name):
        return 0
    if types[inputs[0].name or ""].dtype != ir.DataType.FLOAT:
        return 0
    call = ir.to_proto(node)
    outputs = [o.name for o in node.outputs if o.name]
    graph = onnx.helper.make_graph(
        [call],
        "call",
        [_typed(x.name or "", types[x.name or ""]) for x in dict.fromkeys(inputs)],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    wanted = [(node.domain, node.op_type)]
    proto = onnx.inliner.inline_selected_functions(
        proto, wanted, exclude=False, inline_schema_functions=True
    )
    if any(n.op_type == node.op_type for n in proto.graph.node):
        return 0
    body = ir.from_proto(proto).graph
    table: dict[str, ir.Value] = {x.name: x for x in inputs if x.name}
    for value in body.inputs:
        value.replace_all_uses_with(table[value.name or ""])
    _graft(model, node, [o for o in node.outputs if o.name], body)
    return 1


def _typed(name: str, inferred: Inferred) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, int(inferred.dtype), inferred.dims)


def lift_constants(model: ir.Model) -> int:
    """Constant nodes become initializers."""
    before = model.graph.num_nodes()
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return before - model.graph.num_nodes()


def fold_known_if(model: ir.Model) -> int:
    """An If whose condition follows from sizes (a traced squeeze) becomes its branch."""
    count = 0
    for _ in range(MAX_ROUNDS):
        if not any(n.op_type == "If" and n.domain in ("", "ai.onnx") for n in model.graph):
            break
        graph = Graph(model)
        derive(graph)
        folded = sum(_fold(model, graph, n) for n in graph.nodes if n.op_type == "If")
        count += folded
        if not folded:
            break
    if count:
        _scalar_range_operands(model)
    return count


def _scalar_range_operands(model: ir.Model) -> None:
    """Operands of Range of shape [1] become scalars.

    ONNX Runtime takes them when it runs, but not when it loads a graph that shows their shape, as
    one does whose If is gone.
    """
    found = [n for n in model.graph if n.op_type == "Range" and n.domain in ("", "ai.onnx")]
    types = infer(model) if found else {}
    taken = _names(model.graph)
    for node in found:
        for i, x in enumerate(node.inputs):
            known = types.get(x.name) if x is not None and x.name else None
            if x is None or known is None or known.dims != (1,):
                continue
            scalar = ir.node("Squeeze", [x])
            scalar.outputs[0].name = _unique(f"{x.name}.scalar", taken)
            model.graph.insert_before(node, scalar)
            node.replace_input_with(i, scalar.outputs[0])


def _fold(model: ir.Model, graph: Graph, node: ir.Node) -> int:
    condition = node.inputs[0]
    if node.domain not in ("", "ai.onnx") or condition is None or not condition.name:
        return 0
    known = graph.ints(condition.name)
    constant = graph.array(condition.name)
    if known is not None and known.size == 1:
        value = known.reshape(-1)[0].as_int()
    elif constant is not None and constant.size == 1:
        value = int(constant.reshape(-1)[0])
    else:
        value = None
    if value is None:
        return 0
    branch = node.attributes["then_branch" if value else "else_branch"].as_graph()
    _graft(model, node, node.outputs, branch)
    return 1


def remove_identities(model: ir.Model) -> int:
    """Identity nodes of the main graph whose two names need not both stay."""
    count = 0
    for node in list(model.graph):
        if node.op_type != "Identity" or node.domain not in ("", "ai.onnx"):
            continue
        x, y = node.inputs[0], node.outputs[0]
        if x is None or x.graph is not model.graph:
            continue
        if y.is_graph_output():
            if x.producer() is None or x.is_graph_output():
                continue
            name = y.name
            x.type, x.shape = y.type, y.shape  # what the file declares of its output
            y.replace_all_uses_with(x, replace_graph_outputs=True)
            model.graph.remove(node, safe=True)
            x.name = name
        else:
            y.replace_all_uses_with(x)
            model.graph.remove(node, safe=True)
        count += 1
    return count


REWRITES: tuple[Rewrite, ...] = (
    inline_functions,
    expand_attention,
    lift_constants,
    fold_known_if,
    remove_identities,
)


def _graft(model: ir.Model, node: ir.Node, outputs: Sequence[ir.Value], body: ir.Graph) -> None:
    """Move the nodes and initializers of another graph in front of a node and drop the node.

    Its outputs, one for each result of the body, keep their names: each becomes the Identity of its
    result.
    """
    results: Sequence[ir.Value] = list(body.outputs)
    body.outputs.clear()
    body.inputs.clear()
    taken = _names(model.graph)
    for name, value in list(body.initializers.items()):
        del body.initializers[name]
        value.name = _unique(name, taken)
        model.graph.register_initializer(value)
    moved = list(body)
    for n in moved:
        for value in n.outputs:
            if value.name:
                value.name = _unique(value.name, taken)
        n.name = None
    body.remove(moved)
    model.graph.insert_before(node, moved)
    for output, result in zip(outputs, results, strict=True):
        if not output.name:
            continue
        name = output.name
        same = ir.node("Identity", [result])
        same.outputs[0].type = output.type
        same.outputs[0].shape = output.shape
        model.graph.insert_before(node, same)
        output.replace_all_uses_with(same.outputs[0], replace_graph_outputs=True)
        output.name = None
        same.outputs[0].name = name
    model.graph.remove(node, safe=True)


def _names(graph: ir.Graph) -> set[str]:
    """Names of all values of a graph and of the bodies inside it."""
    taken: set[str] = set()
    values: Iterable[ir.Value] = (*graph.inputs, *graph.initializers.values())
    taken.update(v.name for v in values if v.name)
    for n in ir.traversal.RecursiveGraphIterator(graph):
        taken.update(o.name for o in n.outputs if o.name)
    return taken


def _unique(name: str, taken: set[str]) -> str:
    """The name, with a number when it is taken already; the result is taken from now on."""
    candidate, k = name, 1
    while candidate in taken:
        k += 1
        candidate = f"{name}.{k}"
    taken.add(candidate)
    return candidate
