"""What ONNX Runtime's layer of experts consists of: products by matrices that indices name.

    shares = softmax(router)        ids = the k largest of each token; of equal ones the later first
    y[t] = sum over j of  shares[t, j] * down[ids[t, j]] @ act(up[ids[t, j]] @ x[t])

The kernel leaves out an expert whose share is not above 0, also where the share is NaN. As parts,
the products run grouped (`regions/grouped.py`); where they would not, the matrices of every token
would be copied, so that such a node stays as it is.

SwiGLU's gates and what they multiply take turns in `up`, whose rows are put in order once, so that
elementwise kernels read halves of its product where they lie:

    rows g0 x0 g1 x1   ->   g0 g1 x0 x1
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import NoRule
from pitc.ir.nodes import ORDERED
from pitc.ir.since import Since
from pitc.ir.widened import Widened, lazy
from pitc.passes.expand.attention import static_size
from pitc.passes.expand.body import Body
from pitc.passes.rules.registry import MICROSOFT

X, ROUTER, UP, UP_BIAS, DOWN, DOWN_BIAS, *GATE = range(8)
LEAST_EXTENT = 16  # of matrices that run grouped
OTHERS = ("use_sparse_mixer", "swiglu_limit_after_activation")
"""Attributes that say how; kernels of CPUs read none of them but at 0."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of the layer.

    Args:
        experts: How many matrices there are.
        top: How many each token has.
        hidden: Numbers of a token.
        wide: Rows of `up`.
    """

    experts: int
    top: int
    hidden: int
    wide: int


def mixture_of_experts(body: Body) -> list[ir.Value | None]:
    """`com.microsoft::MoE` of constant matrices that lie `[experts, outputs, inputs]`."""
    body.without_inputs(*GATE)
    for name in OTHERS:
        if body.view.attr(name, 0):
            raise NoRule(f"{name} is set")
    kind = _kind(body)
    sizes = _sizes(body, 2 if kind == "swiglu" else 1)
    shares, ids = _route(body, sizes)
    tokens = body.reshape(body.input(X), -1, sizes.hidden)
    up, bias = body.input(UP), body.optional(UP_BIAS)
    if kind == "swiglu":
        up = _gates_first(body, up, sizes.wide)
        bias = bias and _gates_first(body, bias, sizes.wide)
    hidden = _product(body, body.unsqueeze(tokens, 1, 3), up, bias, ids)
    hidden = ACTIVATIONS[kind](body, hidden, sizes)
    down, bias = body.input(DOWN), body.optional(DOWN_BIAS)
    rows = _product(body, body.unsqueeze(hidden, 3), down, bias, ids)
    gates = body.unsqueeze(shares, 2)
    zero = body.number(0)
    weighted = body.op("Where", body.op("Greater", gates, zero), body.op("Mul", rows, gates), zero)
    y = body.along("ReduceSum", weighted, [1], keepdims=0)
    if body.view.rank(X) > 2:
        y = body.op("Reshape", y, body.op("Shape", body.input(X)))
    return [y]


def _kind(body: Body) -> str:
    found = body.view.attr("activation_type", "relu")
    kind = found.decode() if isinstance(found, bytes) else str(found)
    if kind not in ACTIVATIONS or (kind == "swiglu" and body.view.attr("swiglu_fusion", 0) != 1):
        raise NoRule(f"the activation '{kind}', which kernels of CPUs do not have so")
    return kind


def _sizes(body: Body, parts: int) -> _Sizes:
    view = body.view
    for place in (UP, DOWN):
        if not view.graph.is_constant(view.name(place)):
            raise NoRule(f"the matrices of input {place} are no constant")
    up, down = ([static_size(d) for d in view.shape(place)] for place in (UP, DOWN))
    hidden, top = static_size(view.shape(X)[-1]), int(view.attr("k", 1))
    if (
        len(up) != 3
        or down != [up[0], hidden, up[1] // parts]
        or up[1:]
        != [
            parts * down[2],
            hidden,
        ]
    ):
        raise NoRule(f"matrices of shapes {up} and {down} for tokens of {hidden} numbers")
    if hidden == up[1]:  # before version 1.23, square ones lay the other way
        raise NoRule("the matrices are square")
    sizes = _Sizes(up[0], top, hidden, up[1])
    if static_size(view.shape(ROUTER)[-1]) != sizes.experts or not 1 <= top <= sizes.experts:
        raise NoRule(f"{top} of {sizes.experts} experts")
    if min(hidden, down[2]) < LEAST_EXTENT:
        raise NoRule("the matrices are small")
    return sizes


def _route(body: Body, sizes: _Sizes) -> tuple[ir.Value, ir.Value]:
    """Shares of the experts of each token and which they are, both `[tokens, top]`.

    TopK takes the first of equal shares, the kernel the last: the columns are turned around.
    """
    last = sizes.experts - 1
    shares = body.op("Softmax", body.input(ROUTER), axis=1)
    ends = (body.ints(n) for n in (-1, -1 - sizes.experts, 1, -1))
    turned = body.op("Slice", shares, *ends)
    best, places = body.parts(2, "TopK", turned, body.ints(sizes.top), axis=1)
    if body.view.attr("normalize_routing_weights", 0) == 1:
        best = body.op("Div", best, body.along("ReduceSum", best, [1], keepdims=1))
    return best, body.op("Sub", body.constant(np.int64(last)), places)


def _product(
    body: Body, rows: ir.Value, matrices: ir.Value, bias: ir.Value | None, ids: ir.Value
) -> ir.Value:
    """Each row `[.., inputs, 1]` by its matrix, and its bias: `[tokens, top, outputs]`."""
    named = body.op("Gather", matrices, ids, axis=0)
    product = body.along("Squeeze", body.op("MatMul", named, rows), [3])
    if bias is None:
        return product
    return body.op("Add", product, body.op("Gather", bias, ids, axis=0))


def _gates_first(body: Body, value: ir.Value, rows: int) -> ir.Value:
    """A constant `[experts, rows, ..]` with its even rows in front of the odd ones; of another
    value a node.
    """
    tensor, order = value.const_value, np.arange(rows).reshape(-1, 2).T.flatten()
    if tensor is None or not body.view.graph.is_constant(value.name or ""):
        return body.op("Gather", value, body.constant(order), axis=1)

    def make() -> ir.Value:
        shape, name = ir.Shape(tensor.shape.numpy()), body.unique("gates_first")
        halves = isinstance(tensor, Widened)
        numbers = lazy(lambda: tensor.numpy()[:, order], tensor.dtype, shape, name, halves=halves)
        ordered = body.initializer(numbers)
        ordered.meta[ORDERED] = (value.name, order)
        return ordered

    return body.once(("gates first", value.name), make)


def _relu(body: Body, h: ir.Value, _: _Sizes) -> ir.Value:
    """NaN gives 0."""
    zero = body.number(0)
    return body.op("Where", body.op("Greater", h, zero), h, zero)


def _gelu(body: Body, h: ir.Value, _: _Sizes) -> ir.Value:
    if body.opset >= Since.GELU:
        return body.op("Gelu", h, approximate="tanh")
    return body.op("FastGelu", h, domain=MICROSOFT)


def _silu(body: Body, h: ir.Value, _: _Sizes) -> ir.Value:
    return body.op("Mul", h, body.op("Sigmoid", h))


def _swiglu(body: Body, h: ir.Value, sizes: _Sizes) -> ir.Value:
    """A gate of each neuron, behind all of them what they multiply."""
    alpha, beta = (float(body.view.attr(f"activation_{x}", d)) for x, d in DEFAULTS.items())
    gate, x = body.split(h, [sizes.wide // 2] * 2, axis=2)
    if "swiglu_limit" in body.view.node.attributes:
        limit = float(body.view.attr("swiglu_limit", 0.0))
        gate, x = (body.op("Min", v, body.number(limit)) for v in (gate, x))
        x = body.op("Max", x, body.number(-limit))
    turned = gate if alpha == 1 else body.op("Mul", gate, body.number(alpha))
    shifted = x if beta == 0 else body.op("Add", x, body.number(beta))
    return body.op("Mul", body.op("Mul", gate, body.op("Sigmoid", turned)), shifted)


DEFAULTS = {"alpha": 1.0, "beta": 0.0}
ACTIVATIONS: Mapping[str, Callable[[Body, ir.Value, _Sizes], ir.Value]] = {
    "relu": _relu,
    "gelu": _gelu,
    "silu": _silu,
    "identity": lambda _, h, __: h,
    "swiglu": _swiglu,
}
