"""Takes fused nodes apart before the analysis and puts them together again after it.

    y = Attention(x, w, b, mask)   ->   q, k, v = Split(x @ w + b); p = Softmax(..); y = p @ v

Facts, packed forms and kernels know the parts: sums of products, normalisations, elementwise steps.
Where none of a node's parts was lowered, the fused kernel of ONNX Runtime is the faster one, so the
node comes back as it was. Parts that several expansions share (`Body.share`) belong to none.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.build import names_of, take_over
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.nodes import EXPANDED, WHOLE, is_plain_product, opset_of
from pitc.ir.quirks import OF_HALVES
from pitc.ir.since import Since
from pitc.ir.unused import remove_unused
from pitc.passes.expand.attention import fused_attention, multi_head_attention
from pitc.passes.expand.body import Body, Shared
from pitc.passes.expand.experts import mixture_of_experts
from pitc.passes.expand.grouped import grouped_attention
from pitc.passes.expand.losses import negative_log_likelihood, softmax_cross_entropy
from pitc.passes.expand.product import (
    dynamic_matmul,
    einsum,
    fused_gemm,
    fused_matmul,
    gemm,
)
from pitc.passes.expand.rows import (
    bias_activation,
    embed_layer_norm,
    group_norm,
    skip_layer_norm,
)
from pitc.passes.expand.standard import function_body, standard_attention
from pitc.passes.exprs.derive import derive
from pitc.passes.rules.record import key_of
from pitc.passes.rules.registry import MICROSOFT

Results = Sequence[ir.Value | None]
Expand = Callable[[Body], Results]

EXPANSIONS: Mapping[tuple[str, str], Expand] = {
    ("", "Attention"): standard_attention,
    ("", "Einsum"): einsum,
    ("", "Gemm"): gemm,
    ("", "GroupNormalization"): group_norm,
    ("", "NegativeLogLikelihoodLoss"): negative_log_likelihood,
    ("", "SoftmaxCrossEntropyLoss"): softmax_cross_entropy,
    (MICROSOFT, "Attention"): fused_attention,
    (MICROSOFT, "BiasGelu"): bias_activation,
    (MICROSOFT, "DynamicQuantizeMatMul"): dynamic_matmul,
    (MICROSOFT, "EmbedLayerNormalization"): embed_layer_norm,
    (MICROSOFT, "FastGelu"): bias_activation,
    (MICROSOFT, "FusedGemm"): fused_gemm,
    (MICROSOFT, "FusedMatMul"): fused_matmul,
    (MICROSOFT, "GroupQueryAttention"): grouped_attention,
    (MICROSOFT, "MultiHeadAttention"): multi_head_attention,
    (MICROSOFT, "SkipLayerNormalization"): skip_layer_norm,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): skip_layer_norm,
    (MICROSOFT, "TransposeMatMul"): fused_matmul,
}
ON_CPUS: Mapping[tuple[str, str], Expand] = {(MICROSOFT, "MoE"): mixture_of_experts}
"""Those whose parts have kernels on CPUs only."""
OF_ANY_FLOAT = [("", "NegativeLogLikelihoodLoss"), ("", "SoftmaxCrossEntropyLoss")]
"""Their parts round as they do, and have constants of the operands' type."""
WIDENED = "pitc.widened"  # key in `meta` of a model whose float16 is computed in float32


@dataclass(frozen=True, slots=True)
class Source:
    """One input of a node that was taken apart.

    Args:
        value: The input then.
        readers: Where parts read it. A later pass may have put another value in its place there.
        holder: Where none does, a node outside of the graph that reads it, so that it is kept.
    """

    value: ir.Value | None
    readers: tuple[tuple[ir.Node, int], ...]
    holder: ir.Node | None = None

    def now(self, graph: ir.Graph) -> ir.Value | None:
        """The input's value now; None where nothing holds it any more."""
        if self.holder is not None:
            return self.holder.inputs[0]
        read = (n.inputs[i] for n, i in self.readers if n.graph is graph)
        value = next(read, self.value)
        producer = None if value is None else value.producer()
        return value if producer is None or producer.graph is graph else None


@dataclass(frozen=True, slots=True, eq=False)
class Expansion:
    """A node that was taken apart.

    Args:
        node: The node, out of the graph.
        members: Its parts.
        sources: Its inputs.
        results: For each of its outputs the value of that name now; None where nobody read it.
    """

    node: ir.Node
    members: tuple[ir.Node, ...]
    sources: tuple[Source, ...]
    results: tuple[ir.Value | None, ...]


def expand_fused(model: ir.Model) -> int:
    """Take apart every fused node of the main graph whose operands are known well enough.

    Args:
        model: The model; it is changed in place.

    Returns:
        How many nodes.
    """
    found = [n for n in model.graph if key_of(n) in EXPANSIONS and not is_plain_product(n)]
    return expand_nodes(model, found)


def expand_experts(model: ir.Model) -> int:
    """The same for those whose parts have kernels on CPUs only."""
    return expand_nodes(model, [n for n in model.graph if key_of(n) in ON_CPUS])


def expand_nodes(model: ir.Model, found: Sequence[ir.Node]) -> int:
    """Take apart those of some fused nodes whose operands are known well enough.

    Args:
        model: The model; it is changed in place.
        found: Nodes of its main graph; of an operator that is in no table the schema's body counts.

    Returns:
        How many nodes.
    """
    if not found or opset_of(model) < Since.PARTS:
        return 0
    graph = Graph(model)
    derive(graph)
    names, shared = names_of(model.graph), Shared()
    made = []
    for node in found:
        body = Body(NodeView(graph, node), names, shared)
        known = dict(shared.values)
        try:
            expand = EXPANSIONS.get(key_of(node)) or ON_CPUS.get(key_of(node), function_body)
            if expand is not function_body and key_of(node) not in OF_ANY_FLOAT:
                _check_type(body)
            results = expand(body)
        except NoRule as error:
            node.meta[WHOLE] = str(error)
            body.discard()
            shared.values = known
            continue
        made.append(_take_apart(model, body, results))
    model.meta[EXPANDED] = [*model.meta.get(EXPANDED, ()), *made]
    return len(made)


def _check_type(body: Body) -> None:
    """In narrower types the parts round more often than the fused kernel does, if they do not
    convert where that does.
    """
    view = body.view
    types: list[np.dtype] = [np.dtype(np.float32)]
    if view.graph.model.meta.get(WIDENED) and (view.domain, view.op) in OF_HALVES:
        types.append(np.dtype(np.float16))
    floats = {d for i in range(view.n_inputs) if view.has(i) and (d := view.dtype(i)).kind == "f"}
    if len(floats) != 1 or not floats.issubset(types):
        raise NoRule("the operands are not 32-bit floats")


def _take_apart(model: ir.Model, body: Body, results: Results) -> Expansion:
    node = body.view.node
    for value in body.constants:
        model.graph.register_initializer(value)
    own = {o for n in body.nodes for o in n.outputs}
    kept: list[ir.Value | None] = []
    for k, output in enumerate(node.outputs):
        result = results[k] if k < len(results) else None
        if result is None or not output.name:
            kept.append(None)
        elif result in own and result not in kept:
            kept.append(result)
        else:
            kept.append(body.op("Identity", result))
    model.graph.insert_before(node, [*body.prologue, *body.nodes])
    for old, new in zip(node.outputs, kept, strict=True):
        if new is None:
            continue
        take_over(old, new)
    body.shared.nodes += body.prologue
    parts = (*body.nodes, *body.shared.nodes)
    sources = tuple(_source(parts, x) for x in node.inputs)
    model.graph.remove(node, safe=True)
    return Expansion(node, tuple(body.nodes), sources, tuple(kept))


def _source(parts: Iterable[ir.Node], x: ir.Value | None) -> Source:
    places = [(n, i) for n in parts for i, v in enumerate(n.inputs) if v is x and x is not None]
    made = x is not None and x.producer() is not None
    return Source(x, tuple(places), ir.node("Identity", [x]) if made and not places else None)


def restore_fused(model: ir.Model, lowered: Collection[ir.Node]) -> int:
    """Put together the nodes none of whose parts was lowered.

    Args:
        model: The model after the rewrite, without unused nodes; it is changed in place.
        lowered: The nodes that run in another form now.

    Returns:
        How many nodes.
    """
    done, held = 0, False
    for expansion in model.meta.pop(EXPANDED, ()):
        if not any(n in lowered for n in expansion.members):
            done += _put_together(model, expansion)
        for holder in (s.holder for s in expansion.sources if s.holder is not None):
            holder.replace_input_with(0, None)
            held = True
    if done or held:
        remove_unused(model)
    return done


def _put_together(model: ir.Model, expansion: Expansion) -> bool:
    members = [n for n in expansion.members if n.graph is model.graph]
    results = [
        (k, r)
        for k, r in enumerate(expansion.results)
        if r is not None and (r.uses() or r.is_graph_output())
    ]
    if not results or any(r.producer() not in members for _, r in results):
        return False
    node, values = expansion.node, [s.now(model.graph) for s in expansion.sources]
    if any(
        v is None and s.value is not None for v, s in zip(values, expansion.sources, strict=True)
    ):
        return False
    for i, value in enumerate(values):
        if value is not None and value.const_value is not None and value.graph is None:
            model.graph.register_initializer(value)
        node.replace_input_with(i, value)
    model.graph.insert_after(members[-1], node)
    for k, result in results:
        take_over(result, node.outputs[k])
    return True
