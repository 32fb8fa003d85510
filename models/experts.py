"""Layers of experts as people export them: which tokens an expert has is known at run time only.

y[t] = sum over the best k experts e of  gate[t, e] * down[e](act(up[e](x[t])))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import Array, GraphBuilder


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Sizes of one layer of experts.

    Args:
        form: How it is written (`FORMS`, `OTHERS`).
        experts: How many.
        hidden: Width of a token.
        ffn: Neurons of an expert.
        top: Experts of a token.
        gated: SwiGLU: half of the columns of `up` multiply the other half; else ReLU.
        bias: Products of experts have biases.
        scaled: Gates of a token are divided by their sum.
        capacity: Of the form of that name: how many tokens an expert takes, the first ones; an
            expert takes first choices before second ones.
        opset: Version of the default operator set.
    """

    form: str = "looked_up"
    experts: int = 4
    hidden: int = 32
    ffn: int = 48
    top: int = 2
    gated: bool = False
    bias: bool = False
    scaled: bool = True
    capacity: int = 0
    opset: int = 17


def experts(config: ExpertsConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the layer with random weights.

    Args:
        config: Sizes and form.
        rng: Source of the weights.

    Returns:
        A checked model: `x` f32 [tokens, hidden] -> `y` f32 [tokens, hidden].
    """
    g = GraphBuilder("experts", opset=config.opset)
    x = g.input("x", np.float32, ("tokens", config.hidden))
    g.output(of_rows(g, config, rng, x), "y", np.float32, ("tokens", config.hidden))
    return g.model()


def of_rows(
    g: GraphBuilder, config: ExpertsConfig, rng: np.random.Generator, x: str, prefix: str = ""
) -> str:
    """Add a layer to a graph.

    Args:
        g: The graph.
        config: Sizes and form.
        rng: Source of the weights.
        x: Rows [tokens, hidden].
        prefix: Of the names of weights.

    Returns:
        Rows of the same shape.
    """
    return (FORMS | OTHERS)[config.form](_Layer(g, config, rng, prefix), x)


def reference(model: onnx.ModelProto, config: ExpertsConfig, x: Array) -> Array:
    """What the layer gives, in float64: one token and expert at a time.

    Args:
        model: The built model, for its weights.
        config: What it was built of.
        x: [tokens, hidden].
    """
    w = {i.name: onnx.numpy_helper.to_array(i).astype(np.float64) for i in model.graph.initializer}
    w |= {n.removesuffix(".turned"): np.swapaxes(x, 1, 2) for n, x in w.items() if "turned" in n}
    logits = x.astype(np.float64) @ w["router"]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    y, taken = np.zeros(x.shape), np.zeros(config.experts, int)
    ids = np.argsort(-shares, axis=1, kind="stable")[:, : config.top]
    for choice, t in np.ndindex(config.top, len(x)):  # first choices before second ones
        row, best = x[t].astype(np.float64), ids[t]
        gates = shares[t, best]
        gates = gates / gates.sum() if config.scaled else gates
        e, gate = best[choice], gates[choice]
        if e >= config.experts:  # that give nothing, the token, or a vector
            y[t] += gate * [0 * row, row, w["vector"]][e - config.experts]
            continue
        taken[e] += 1
        if not config.capacity or taken[e] <= config.capacity:
            h = row @ w["up"][e] + (w["up.bias"][e] if config.bias else 0)
            if config.gated:
                a, b = np.split(h, 2)
                h = a / (1 + np.exp(-a)) * b
            else:
                h = np.maximum(h, 0)
            y[t] += gate * (h @ w["down"][e] + (w["down.bias"][e] if config.bias else 0))
    return y


FREE = 3
"""Experts of the form `plus` that compute nothing."""


class _Layer:
    """Weights, router and activation, which all forms share."""

    def __init__(
        self, g: GraphBuilder, config: ExpertsConfig, rng: np.random.Generator, prefix: str = ""
    ) -> None:
        self.g, self.config, self.prefix = g, config, prefix
        e, d, f = config.experts, config.hidden, config.ffn
        self.wide = 2 * f if config.gated else f
        sizes: Mapping[str, tuple[int, ...]] = {
            **{"router": (d, e), "up": (e, d, self.wide), "down": (e, f, d)},
            **({"up.bias": (e, self.wide), "down.bias": (e, d)} if config.bias else {}),
            **({"router": (d, e + FREE), "vector": (d,)} if config.form == "plus" else {}),
        }
        scales = {"router": 2 * d**-0.5, "up": d**-0.5, "down": f**-0.5}
        self.arrays = {
            name: rng.normal(0, scales.get(name, 0.1), shape).astype(np.float32)
            for name, shape in sizes.items()
        }

    def weight(self, name: str) -> str:
        """A weight of all experts."""
        return self.named(name, self.arrays[name])

    def named(self, name: str, array: Array) -> str:
        """A constant of the layer."""
        return self.g.weight(f"{self.prefix}{name}", array)

    def route(self, x: str) -> tuple[str, str]:
        """Gates of the best experts of each token, and their numbers, both [tokens, top]."""
        g, config = self.g, self.config
        shares = g.op("Softmax", g.op("MatMul", x, self.weight("router")), axis=-1)
        gates, ids = g.ops(2, "TopK", shares, g.ints(config.top), axis=-1)
        if config.scaled:
            gates = g.op("Div", gates, g.reduce("ReduceSum", gates, -1))
        return gates, ids

    def activate(self, h: str) -> str:
        """ReLU, or one half times the SiLU of the other one."""
        g = self.g
        if not self.config.gated:
            return g.op("Relu", h)
        a, b = g.ops(2, "Split", h, g.ints(self.config.ffn, self.config.ffn), axis=-1)
        return g.op("Mul", g.op("Mul", a, g.op("Sigmoid", a)), b)

    def biased(self, h: str, name: str, ids: str, shape: tuple[int, ...] = ()) -> str:
        """Rows plus the bias of their experts."""
        g = self.g
        if not self.config.bias:
            return h
        bias = g.op("Gather", self.weight(f"{name}.bias"), ids, axis=0)
        return g.op("Add", h, g.op("Reshape", bias, g.ints(*shape)) if shape else bias)

    def weighted(self, y: str, gates: str) -> str:
        """The sum over the experts of a token, of y [tokens * top, hidden]."""
        g, config = self.g, self.config
        y = g.op("Reshape", y, g.ints(-1, config.top, config.hidden))
        return g.reduce("ReduceSum", g.op("Mul", y, g.op("Unsqueeze", gates, g.ints(2))), 1, 0)


def _repeated(layer: _Layer, x: str) -> str:
    """Each token as often as it has experts, [tokens * top, hidden]."""
    g, config = layer.g, layer.config
    times = g.op("Expand", g.op("Unsqueeze", x, g.ints(1)), g.ints(1, config.top, 1))
    return g.op("Reshape", times, g.ints(-1, config.hidden))


def looked_up(layer: _Layer, x: str) -> str:
    """Matrices of each row are looked up: transformers' batched_mm, traced."""
    g = layer.g
    gates, ids = layer.route(x)
    ids = g.op("Reshape", ids, g.ints(-1))

    return layer.weighted(_by_matrices(layer, x, ids), gates)


def _by_matrices(layer: _Layer, x: str, ids: str) -> str:
    """What the experts of these numbers give for each token, [tokens * top, hidden]."""
    g = layer.g

    def product(rows: str, name: str) -> str:
        w = g.op("Gather", layer.weight(name), ids, axis=0)
        y = g.op("MatMul", g.op("Unsqueeze", rows, g.ints(1)), w)
        return layer.biased(g.op("Squeeze", y, g.ints(1)), name, ids)

    return product(layer.activate(product(_repeated(layer, x), "up")), "down")


def looked_up_left(layer: _Layer, x: str) -> str:
    """The same with matrices on the left, by index vectors: exported by dynamo."""
    g = layer.g
    gates, ids = layer.route(x)
    ids = g.op("Reshape", ids, g.ints(-1))
    vectors = g.op("Unsqueeze", ids, g.ints(-1))

    def product(rows: str, name: str) -> str:
        turned = layer.named(f"{name}.turned", np.swapaxes(layer.arrays[name], 1, 2))
        w = g.op("GatherND", turned, vectors)
        y = g.op("MatMul", w, g.op("Unsqueeze", rows, g.ints(-1)))
        return layer.biased(g.op("Squeeze", y, g.ints(-1)), name, ids)

    y = product(layer.activate(product(_repeated(layer, x), "up")), "down")
    return layer.weighted(y, gates)


def looked_up_pairs(layer: _Layer, x: str) -> str:
    """Indices of two dimensions: tokens are not repeated in front of the first product."""
    g = layer.g
    gates, ids = layer.route(x)

    def product(rows: str, name: str) -> str:
        width = layer.arrays[name].shape[-1]
        y = g.op("MatMul", rows, g.op("Gather", layer.weight(name), ids, axis=0))
        return layer.biased(y, name, ids, (-1, layer.config.top, 1, width))

    h = layer.activate(product(g.op("Unsqueeze", x, g.ints(1, 2)), "up"))
    return layer.weighted(product(h, "down"), gates)


def all_experts(layer: _Layer, x: str) -> str:
    """Every expert for every token, with gates of 0 for those that are not chosen."""
    g, config = layer.g, layer.config
    gates, ids = layer.route(x)
    none = g.op("Mul", g.op("MatMul", x, layer.weight("router")), g.const(0.0))
    spread = g.op("ScatterElements", none, ids, gates, axis=1)

    def product(rows: str, name: str) -> str:
        y = g.op("MatMul", rows, layer.weight(name))
        if not config.bias:
            return y
        return g.op("Add", y, g.op("Unsqueeze", layer.weight(f"{name}.bias"), g.ints(1)))

    h = layer.activate(product(g.op("Unsqueeze", x, g.ints(0)), "up"))
    gate = g.op("Unsqueeze", g.op("Transpose", spread, perm=[1, 0]), g.ints(2))
    return g.reduce("ReduceSum", g.op("Mul", product(h, "down"), gate), 0, 0)


def all_experts_labels(layer: _Layer, x: str) -> str:
    """The same by labels, tokens first; the last product sums over the experts."""
    g, config = layer.g, layer.config
    gates, ids = layer.route(x)
    one_hot = g.op("OneHot", ids, g.const(config.experts, np.int64), g.const([0.0, 1.0]))
    spread = g.op("Einsum", gates, one_hot, equation="tk,tke->te")

    def product(rows: str, name: str, equation: str) -> str:
        y = g.op("Einsum", rows, layer.weight(name), equation=equation)
        return g.op("Add", y, layer.weight(f"{name}.bias")) if config.bias else y

    h = layer.activate(product(x, "up", "td,edf->tef"))
    return g.op("Einsum", spread, product(h, "down", "tef,efd->ted"), equation="te,ted->td")


def plus(layer: _Layer, x: str) -> str:
    """MoE++: beside the experts one that gives 0, one that gives the token, and one a vector."""
    g, config = layer.g, layer.config
    gates, ids = layer.route(x)
    real, none = g.const(config.experts, np.int64), g.const(0.0)
    computes = g.op("Less", ids, real)
    flat = g.op("Reshape", g.op("Where", computes, ids, g.const(0, np.int64)), g.ints(-1))
    y = layer.weighted(_by_matrices(layer, x, flat), g.op("Where", computes, gates, none))
    for number, free in ((config.experts + 1, x), (config.experts + 2, layer.weight("vector"))):
        taken = g.op("Equal", ids, g.const(number, np.int64))
        gate = g.reduce("ReduceSum", g.op("Where", taken, gates, none), -1)
        y = g.op("Add", y, g.op("Mul", free, gate))
    return y


def loop(layer: _Layer, x: str) -> str:
    """One expert after the other: its rows are gathered, and added to the sum."""
    g, config = layer.g, layer.config
    gates, ids = layer.route(x)
    y = g.op("Mul", x, g.const(0.0))
    for e in range(config.experts):
        mine = g.op("Equal", ids, g.const(e, np.int64))
        gate = g.reduce("ReduceSum", g.op("Mul", g.op("Cast", mine, to=1), gates), -1, 0)
        hit = g.reduce("ReduceSum", g.op("Cast", mine, to=7), -1, 0)
        places = g.op("Transpose", g.op("NonZero", g.op("Cast", hit, to=9)), perm=[1, 0])
        rows = g.op("Squeeze", places, g.ints(1))

        def product(h: str, name: str, e: int = e) -> str:
            h = g.op("MatMul", h, layer.named(f"{name}.{e}", layer.arrays[name][e]))
            bias = layer.arrays.get(f"{name}.bias")
            return h if bias is None else g.op("Add", h, layer.named(f"{name}.bias.{e}", bias[e]))

        h = product(layer.activate(product(g.op("Gather", x, rows, axis=0), "up")), "down")
        h = g.op("Mul", h, g.op("Unsqueeze", g.op("Gather", gate, rows, axis=0), g.ints(1)))
        y = g.op("ScatterND", y, places, h, reduction="add")
    return y


def index_add(layer: _Layer, x: str) -> str:
    """A loop as torch's tracer writes it: places of [choice, token], and rows that are written into
    zeros, which are added.
    """
    return _traced(layer, x, hits=False)


def index_add_hits(layer: _Layer, x: str) -> str:
    """The same over the experts that some token has: eager models of transformers. The number of
    these is that of the example, here all experts.
    """
    return _traced(layer, x, hits=True)


def _traced(layer: _Layer, x: str, *, hits: bool) -> str:
    g, config = layer.g, layer.config
    gates, ids = layer.route(x)
    depth = g.const(config.experts + 1, np.int64)  # one number for no expert
    hot = g.op("OneHot", ids, depth, g.const([0, 1], np.int64), axis=-1)
    masks = g.op("Transpose", hot, perm=[2, 1, 0])  # [experts, top, tokens]
    numbers = [g.const(e, np.int64) for e in range(config.experts)]
    if hits:
        count = g.op("ReduceSum", masks, g.ints(-1, -2), keepdims=0)
        hit = g.op("NonZero", g.op("Greater", count, g.const(0, np.int64)))
        ones = g.ints(*[1] * config.experts)
        parts = g.ops(config.experts, "Split", g.op("Transpose", hit, perm=[1, 0]), ones, axis=0)
        zero = g.const(0, np.int64)
        numbers = [g.op("Gather", g.op("Squeeze", p, g.ints(0)), zero, axis=0) for p in parts]
    flat = g.op("Flatten", g.op("Unsqueeze", gates, g.ints(2)), axis=2)
    y = g.op("ConstantOfShape", g.op("Shape", x))
    for number in numbers:
        mine = g.op("Cast", g.op("Gather", masks, number, axis=0), to=9)
        places = g.op("Transpose", g.op("NonZero", mine), perm=[1, 0])
        parts = g.ops(2, "Split", places, g.ints(1, 1), axis=1)
        choice, token = (g.op("Squeeze", part, g.ints(1)) for part in parts)

        def product(h: str, name: str, number: str = number) -> str:
            turned = layer.named(f"{name}.turned", np.swapaxes(layer.arrays[name], 1, 2))
            w = g.op("Transpose", g.op("Gather", turned, number, axis=0), perm=[1, 0])
            h = g.op("MatMul", h, w)
            if not config.bias:
                return h
            return g.op("Add", h, g.op("Gather", layer.weight(f"{name}.bias"), number, axis=0))

        h = product(layer.activate(product(g.op("Gather", x, token, axis=0), "up")), "down")
        at = g.op("Add", choice, g.op("Mul", token, g.ints(config.top)))
        h = g.op("Mul", h, g.op("Gather", flat, at, axis=0))
        h = g.op("Expand", h, g.op("Shape", g.op("Slice", y, g.ints(0), g.ints(1), g.ints(0))))
        index = g.op("Expand", g.op("Unsqueeze", token, g.ints(1)), g.op("Shape", h))
        zeros = g.op("ConstantOfShape", g.op("Shape", y))
        y = g.op("Add", y, g.op("ScatterElements", zeros, index, h, axis=0))
    return y


def capacity(layer: _Layer, x: str) -> str:
    """Each expert has so many slots (GShard): tokens are sent to slots, and results back, by
    products with one-hot tensors; a token that finds no slot gets zeros.
    """
    g, config = layer.g, layer.config
    gates, ids = layer.route(x)
    hot = g.op("OneHot", ids, g.const(config.experts, np.int64), g.const([0.0, 1.0]))
    hot = g.op("Transpose", hot, perm=[1, 0, 2])  # [top, tokens, experts]: in order of choice
    line = g.op("Reshape", hot, g.ints(-1, config.experts))
    before = g.op("CumSum", line, g.const(0, np.int64), exclusive=1)
    mine = g.reduce("ReduceSum", g.op("Mul", before, line), -1, 0)
    slots = g.op("Reshape", g.op("Cast", mine, to=7), g.ints(config.top, -1))
    slot = g.op("OneHot", slots, g.const(config.capacity, np.int64), g.const([0.0, 1.0]))
    weights = g.op("Mul", hot, g.op("Unsqueeze", g.op("Transpose", gates, perm=[1, 0]), g.ints(2)))
    combine = g.op("Einsum", weights, slot, equation="kte,ktc->tec")
    dispatch = g.op("Cast", g.op("Cast", combine, to=9), to=1)

    def product(rows: str, name: str) -> str:
        y = g.op("MatMul", rows, layer.weight(name))
        if not config.bias:
            return y
        return g.op("Add", y, g.op("Unsqueeze", layer.weight(f"{name}.bias"), g.ints(1)))

    rows = g.op("Einsum", dispatch, x, equation="tec,td->ecd")
    rows = product(layer.activate(product(rows, "up")), "down")
    return g.op("Einsum", combine, rows, equation="tec,ecd->td")


def operator(layer: _Layer, x: str) -> str:
    """ONNX Runtime's operator MoE: columns of both halves of `up` take turns."""
    g, config = layer.g, layer.config
    logits = g.op("MatMul", x, layer.weight("router"))
    kind: dict[str, object] = {"activation_type": "relu"}
    if config.gated:
        kind = {"activation_type": "swiglu", "swiglu_fusion": 1}
        kind |= {"activation_alpha": 1.0, "activation_beta": 0.0}

    def in_turn(name: str, array: Array) -> str:
        if config.gated and name.startswith("up"):
            array = np.stack(np.split(array, 2, axis=-1), axis=-1).reshape(array.shape)
        array = array if name.endswith("bias") else np.swapaxes(array, 1, 2)
        return layer.named(f"{name} in turn", array)

    names = ("up", "up.bias", "down", "down.bias")
    inputs = (x, logits, *(in_turn(k, layer.arrays[k]) if k in layer.arrays else "" for k in names))
    counts = {"k": config.top, "normalize_routing_weights": int(config.scaled)}
    return g.op("MoE", *inputs, domain="com.microsoft", **counts, **kind)


FORMS: dict[str, Callable[[_Layer, str], str]] = {
    "looked_up": looked_up,
    "looked_up_left": looked_up_left,
    "looked_up_pairs": looked_up_pairs,
    "all_experts": all_experts,
    "all_experts_labels": all_experts_labels,
}
"""How a layer is written, where one node computes all experts."""
OTHERS: dict[str, Callable[[_Layer, str], str]] = {
    "loop": loop,
    "index_add": index_add,
    "index_add_hits": index_add_hits,
    "operator": operator,
    "capacity": capacity,
    "plus": plus,
}
"""Other ways."""


@dataclass(frozen=True, slots=True)
class AdaptersConfig:
    """A linear layer with one low-rank adapter for each sequence of a batch (LoRA).

    Args:
        adapters: How many.
        hidden: Width of a token.
        rank: Of an adapter.
    """

    adapters: int = 5
    hidden: int = 64
    rank: int = 16


def adapters(config: AdaptersConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the layer with random weights.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `x` f32 [batch, sequence, hidden], `adapter` int64 [batch] -> `y` f32 of
        the shape of x: x @ w + x @ a[adapter] @ b[adapter].
    """
    g = GraphBuilder("adapters")
    d, r = config.hidden, config.rank
    shape = ("batch", "sequence", d)
    x, which = g.input("x", np.float32, shape), g.input("adapter", np.int64, ("batch",))

    def drawn(name: str, *sizes: int) -> str:
        return g.weight(name, rng.normal(0, sizes[-2] ** -0.5, sizes).astype(np.float32))

    down = g.op("Gather", drawn("a", config.adapters, d, r), which, axis=0)
    up = g.op("Gather", drawn("b", config.adapters, r, d), which, axis=0)
    y = g.op(
        "Add", g.op("MatMul", x, drawn("w", d, d)), g.op("MatMul", g.op("MatMul", x, down), up)
    )
    g.output(y, "y", np.float32, shape)
    return g.model()
