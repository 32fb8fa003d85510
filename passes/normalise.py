"""Normalise: a few exact rewrites that let the rules see through what exporters wrap up.

Masks need none: every dialect is found by evaluating it. Each rewrite is one small rule; without
it some models prove less, and nothing else changes.
"""

from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from pitc.errors import ModelError
from pitc.ir.branch import is_choice
from pitc.ir.build import take_over
from pitc.ir.graph import Graph, NodeView
from pitc.ir.inference import infer
from pitc.ir.nodes import attribute
from pitc.ir.schemas import schema_of
from pitc.ir.target import CPU, Target
from pitc.ir.unused import remove_unused
from pitc.passes.control.branches import open_branches
from pitc.passes.control.graft import substitute
from pitc.passes.control.scopes import distinct_names
from pitc.passes.expand import expand_experts, expand_fused
from pitc.passes.expand.unroll import MAX_NODES, MAX_TRIPS, number_of_nodes, unroll
from pitc.passes.exprs.derive import derive
from pitc.passes.fold import fold_numbers
from pitc.passes.quirks.rewrites import plain_flags, scalar_range_operands
from pitc.passes.rests import name_rests
from pitc.passes.rules.build import bare
from pitc.passes.rules.control import known_condition
from pitc.passes.same_flags import share_flags
from pitc.passes.widen import widen

Rewrite = Callable[[ir.Model], int]
MAX_ROUNDS = 8  # a folded branch may decide the next condition, an unrolled loop hold another


def normalise(model: ir.Model, target: Target = CPU) -> dict[str, int]:
    """Apply every rewrite.

    Args:
        model: The imported model; it is changed in place.
        target: What it is lowered for.

    Returns:
        How often each rewrite applied, by name; those that did not are left out.
    """
    rewrites = (r for r in REWRITES if WANTED.get(r, _always)(target))
    counts = {rewrite.__name__: rewrite(model) for rewrite in rewrites}
    return {name: n for name, n in counts.items() if n}


def inline_functions(model: ir.Model) -> int:
    """Calls of the model's own functions become the functions' nodes; where ONNX Runtime has an
    operator of that name, it runs its own.
    """
    count = len(model.functions)
    for identifier in [*model.functions]:
        domain, name, _ = identifier
        if schema_of(domain, name, model.opset_imports.get(domain, 1)) is not None:
            del model.functions[identifier]
    for function in model.functions.values():
        _align_versions(model, function)
    if count:
        common.InlinePass()(model)
        model.functions.clear()  # those that nobody calls
    return count


def _align_versions(model: ir.Model, function: ir.Function) -> None:
    """Let a function import the operator sets of the model, in which its operators are the same.

    Raises:
        ModelError: One of them is another operator there.
    """
    imports = function.opset_imports
    for domain, version in imports.items():
        wanted = model.opset_imports.get(domain, version)
        for node in function.all_nodes():
            if node.domain != domain or node.op_identifier() in model.functions:
                continue
            if _since(node, version) != _since(node, wanted):
                raise ModelError(
                    f"function '{function.name}' means {node.op_type} of operator set {version}, "
                    f"which operator set {wanted} of the model changed",
                    hint="export it with one operator set",
                )
        imports[domain] = wanted


def _since(node: ir.Node, version: int) -> int:
    """The version of an operator that an operator set holds; of an unknown one, each is its own."""
    try:
        return onnx.defs.get_schema(node.op_type, version, node.domain).since_version
    except onnx.defs.SchemaError:
        return version


def unroll_loops(model: ir.Model) -> int:
    """A loop that is known to run a few times only becomes its body, as often."""
    count = 0
    # of all rounds: loops in loops would else multiply
    most = MAX_NODES + MAX_TRIPS * number_of_nodes(model.graph)
    for _ in range(MAX_ROUNDS):
        unrolled = unroll(model, most)
        if not unrolled:
            break
        count += unrolled
        open_branches(model)
    return count


def lift_constants(model: ir.Model) -> int:
    """Constant nodes become initializers."""
    before = model.graph.num_nodes()
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return before - model.graph.num_nodes()


def fold_known_if(model: ir.Model) -> int:
    """A choice whose condition follows from sizes (a traced squeeze) becomes its branch."""
    count = 0
    for _ in range(MAX_ROUNDS):
        if not any(map(is_choice, model.graph)):
            break
        graph = Graph(model)
        derive(graph)
        folded = 0
        for node in filter(is_choice, graph.nodes):
            holds = known_condition(NodeView(graph, node))
            taken = None if holds is None else node.inputs[1 if holds else 2]
            if taken is not None:
                substitute(model, node, node.outputs, [taken])
                folded += 1
        count += folded
        if not folded:
            break
    if count:
        scalar_range_operands(model)
        remove_unused(model)
    return count


def drop_empty_pads(model: ir.Model) -> int:
    """A Pad of the main graph by nothing on all sides, as sizes say, becomes an Identity."""
    found = [n for n in model.graph if n.op_identifier() == ("", "Pad", "")]
    if not found:
        return 0
    graph, count = Graph(model), 0
    derive(graph)
    for node in found:
        view, expr = NodeView(graph, node), graph[node.outputs[0].name or ""].expr
        if expr is None or expr.shape != view.shape(0) or expr.reads[0].index != bare(expr.shape):
            continue
        _become_identity(model, node)
        count += 1
    return count


def _become_identity(model: ir.Model, node: ir.Node) -> None:
    """Put an Identity of its first operand in the place of a node."""
    same = ir.node("Identity", node.inputs[:1], name=node.name)
    model.graph.insert_before(node, same)
    take_over(node.outputs[0], same.outputs[0])
    model.graph.remove(node, safe=True)


def name_cast_types(model: ir.Model) -> int:
    """A CastLike of the main graph to a type that is known becomes a Cast."""
    found = [n for n in model.graph if n.op_identifier() == ("", "CastLike", "")]
    types = infer(model) if found else {}
    count = 0
    for node in found:
        like = node.inputs[1]
        known = None if like is None else types.get(like.name or "")
        if known is not None:
            node.op_type, node.attributes["to"] = "Cast", ir.AttrInt64("to", known.dtype)
            node.resize_inputs(1)
            count += 1
    return count


def drop_same_casts(model: ir.Model) -> int:
    """A Cast of the main graph to the type that its operand has becomes an Identity."""
    casts = (n for n in model.graph if n.op_identifier() == ("", "Cast", ""))
    typed = ((n, n.inputs[0], ir.DataType(attribute(n, "to"))) for n in casts)
    found = [(n, x, to) for n, x, to in typed if x is not None and x.dtype in (None, to)]
    types = infer(model) if found else {}
    count = 0
    for node, x, target in found:
        known = types.get(x.name or "")
        if known is not None and known.numpy_dtype == target.numpy():
            _become_identity(model, node)
            count += 1
    return count


def remove_identities(model: ir.Model) -> int:
    """Identity nodes of the main graph whose two names need not both stay."""
    count = 0
    for node in list(model.graph):
        x, y = next(iter(node.inputs), None), node.outputs[0]
        if node.op_identifier() != ("", "Identity", "") or x is None:
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
    plain_flags,
    distinct_names,
    open_branches,
    unroll_loops,
    lift_constants,
    widen,
    expand_fused,
    expand_experts,
    fold_known_if,
    name_rests,
    fold_numbers,
    drop_empty_pads,
    name_cast_types,
    drop_same_casts,
    share_flags,
    remove_identities,
)
"""In order."""


def _always(_: Target) -> bool:
    return True


WANTED: Mapping[Rewrite, Callable[[Target], bool]] = {
    widen: lambda target: target.widens,
    expand_experts: lambda target: target.kind == "cpu",
}
"""On which machines; the others on all."""
