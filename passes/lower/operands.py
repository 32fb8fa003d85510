"""What the left operand of a contraction that skips zeros is made of becomes part of its node.

    Contract(skips)(Contract(relu)(x))   ->   Contract(skips, inner)(x)        both products
    Contract(skips)(Relu(x))             ->   Contract(skips, input_relu)(x)   max(x, 0)

The product in front may be an ordinary node until now: without zeros to skip it is none of ours.
"""

from dataclasses import replace

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import plan_of
from pitc.ir.plans.ops import Contract
from pitc.passes.lower.activation import relu_operand
from pitc.passes.lower.epilogue import epilogue_of, take_epilogue
from pitc.passes.lower.packed import Packed, maker, operands_of
from pitc.passes.lower.products import Product, contract, product_of
from pitc.passes.lower.rows import ahead, behind, only_reader


def fuse_left_operands(packed: Packed) -> None:
    """Let contractions that skip zeros compute their left operand."""
    for node, plan in packed.contractions():
        if not plan.skips or plan.gather or plan.right != "panels":
            continue
        if not _fuse_inner(packed, node, plan) and packed.graph.target.reads_relu:
            _fuse_relu(packed, node, plan)


def _fuse_inner(packed: Packed, node: ir.Node, plan: Contract) -> bool:
    """Take in the product in front, if ReLU and nothing else stands between them."""
    graph, a = packed.graph, operands_of(node)["a"]
    inner = next(filter(None, (maker(x, Contract) for x in behind(graph, a))), None)
    if inner is None:
        before = _product_before(a)
        product = None if before is None else product_of(graph, before)
        if product is None or not _leads_to(graph, product, node):
            return False
        contract(packed, product, product.node, skips=False)
        inner = product.node
        take_epilogue(packed, inner)
    front = plan_of(inner)
    assert isinstance(front, Contract)
    plain = front.activation == "relu" and not front.residual and not front.skips
    plain = plain and front.rounded is None
    if not plain or front.scatter or not _is_alone(graph, inner.outputs[0], node):
        return False
    given, operands = operands_of(inner), operands_of(node)
    operands |= {"a": given["a"], "b1": given["b"]}
    if front.bias:
        operands["bias1"] = given["bias"]
    if front.gather:
        operands |= {name: given[name] for name in ("rows", "live")}
    whole = replace(plan, inner=front.k, inner_bias=front.bias, gather=front.gather)
    packed.become(node, whole, operands, inside=(inner.outputs[0], a))
    return True


def _leads_to(graph: Graph, product: Product, node: ir.Node) -> bool:
    """True where a product and its epilogue are all that a contraction reads."""
    start = product.node.outputs[0]
    found = epilogue_of(graph, start, product.matrix.n, bias=product.bias is None)
    return _is_alone(graph, found.result, node)


def _is_alone(graph: Graph, value: ir.Value, node: ir.Node) -> bool:
    """True where a contraction reads a value, perhaps through Reshapes, and nothing else does."""
    return only_reader(graph, ahead(graph, value)) is node


def _product_before(value: ir.Value) -> ir.Node | None:
    """The product that a value is computed from, by first operands."""
    node = value.producer()
    while node is not None and node.op_type not in ("MatMul", "Gemm"):
        node = next(iter(node.predecessors()), None)
    return node


def _fuse_relu(packed: Packed, node: ir.Node, plan: Contract) -> None:
    """Read what ReLU reads, if nothing else reads its result."""
    graph, operands = packed.graph, operands_of(node)
    a = operands["a"]
    if only_reader(graph, a) is not node:
        return
    for value in behind(graph, a):
        before = relu_operand(graph, value)
        if before is not None and ahead(graph, value) is a:
            operands |= {"a": before}
            packed.become(node, replace(plan, input_relu=True), operands, inside=(value, a))
            return
