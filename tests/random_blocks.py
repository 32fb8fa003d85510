"""Blocks of random graphs: attention under several masks, experts, branches, loops, integers.

A mask comes from an input, a position or a table, goes through a few operators of any kind, and is
added to the scores in some order. Whatever a block makes has to keep its shape: an operator that
changes it is taken back.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper

from tests.branch_models import Body, branch
from tests.fact_random import WIDTH
from tests.random_values import BATCH, KEYS, SEQ

if TYPE_CHECKING:
    from tests.random_graph import RuleGraph

FILLS = (-1e4, -1e4, -9999.0, -10001.0, -6750.0, -6000.0, -1e9, float(np.finfo(np.float32).min))
FILLS += (-np.inf, -np.inf)
# what float masks hold: where something is kept, and where it is hidden
KEPT = (0.0, 0.0, 0.0, -0.0, 0.5, 999.0, -999.0, 1e3, -1e3)
HIDDEN = (-1e4, -1e4, -9999.0, -10001.0, -6750.0, -1e9, -np.inf, 0.0)
INT_KEPT, INT_HIDDEN = (1, 1, 1, 2, -1), (0,)
DTYPES: tuple[Any, ...] = (np.float32,) * 12 + (np.float64, np.float16)
LIMITS = {np.int8: 100, np.uint8: 200, np.int16: 30_000, np.int32: 2**31 - 4, np.int64: 2**62}
COMPARISONS = ("Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual")
Block = Callable[["RuleGraph"], str]


def pick(r: "RuleGraph", choices: Sequence[Any]) -> Any:
    return choices[r.rng.integers(len(choices))]


def attention(r: "RuleGraph") -> str:
    """Scores of two contractions, one to three masks or biases, softmax, and a contraction."""
    g, x = r.g, r.any("rows")
    cross = r.rng.random() < 0.5
    memory = r.memory() if cross else x
    dtype, heads = pick(r, DTYPES), r.rng.random() < 0.3
    q, k, v = (_part(r, y, dtype, heads) for y in (x, memory, memory))
    last = [0, 1, 3, 2] if heads else [0, 2, 1]
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=last))
    if r.rng.random() < 0.6:
        scores = g.op(
            *pick(r, (("Mul", scores, g.const(0.5, dtype)), ("Div", scores, g.const(2.0, dtype))))
        )
    terms = [_term(r, KEYS if cross else SEQ, dtype, heads) for _ in range(1 + r.rng.integers(3))]
    kept = g.op("Less", g.const(-5e3, dtype), pick(r, terms))
    scores = joined(r, [scores, *terms])
    if r.rng.random() < 0.3:
        scores = g.op("Where", kept, scores, g.const(pick(r, (-1e4, -np.inf)), dtype))
    p = g.op("Softmax", scores, axis=-1)
    if r.rng.random() < 0.2:
        p = g.op("Where", kept, p, g.const(0.0, dtype))
    if r.rng.random() < 0.4:
        p = g.op("Where", g.op("IsNaN", p), g.const(0.0, dtype), p)
    y = g.op("MatMul", p, v)
    if heads:
        y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.ints(0, 0, WIDTH))
    return g.op("Cast", y, to=TensorProto.FLOAT) if dtype != np.float32 else y


def _part(r: "RuleGraph", x: str, dtype: Any, heads: bool) -> str:
    """Queries, keys or values of token rows."""
    g = r.g
    if r.rng.random() < 0.7:
        x = g.op("MatMul", x, r.weight())
    if dtype != np.float32:
        x = g.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    if heads:
        x = g.op("Transpose", g.op("Reshape", x, g.ints(0, 0, 2, 2)), perm=[0, 2, 1, 3])
    return x


def joined(r: "RuleGraph", terms: Sequence[str]) -> str:
    """Their sum, in some order."""
    if r.rng.random() < 0.2:
        return r.g.op("Sum", *terms)
    left = list(terms)
    while len(left) > 1:
        a, b = left.pop(r.rng.integers(len(left))), left.pop(r.rng.integers(len(left)))
        left.append(r.g.op("Add", a, b))
    return left[0]


def _term(r: "RuleGraph", keys: int, dtype: Any, heads: bool) -> str:
    """What is added to scores: [b, 1, n] or [b, s, n], or with a dimension of heads."""
    g, name = r.g, pick(r, TERMS)(r, keys)
    for _ in range(pick(r, (0, 0, 1, 1, 2, 3))):
        name = r.rule_on(name) if r.rng.random() < 0.6 else _step_on(r, name)
    name = _additive(r, name)
    if r.now(name).ndim == 2:
        name = g.op("Unsqueeze", name, g.ints(1))
    if heads:
        name = g.op("Unsqueeze", name, g.ints(1))
    if dtype != np.float32:
        name = g.op("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    return name


def _additive(r: "RuleGraph", name: str) -> str:
    """A mask of any type as something to add."""
    g, kind = r.g, r.now(name).dtype
    if kind == np.bool_:
        return g.op("Where", name, g.const(0.0), g.const(pick(r, FILLS)))
    if kind.kind in "iu":
        keep = g.op("Cast", name, to=TensorProto.FLOAT)
        return g.op("Mul", g.op("Sub", g.const(1.0), keep), g.const(pick(r, FILLS[:-2])))
    return name if kind == np.float32 else g.op("Cast", name, to=TensorProto.FLOAT)


def _own_mask(r: "RuleGraph", keys: int) -> str:
    return "mask" if keys == SEQ and r.rng.random() < 0.6 else _int_mask(r, keys)


def _int_mask(r: "RuleGraph", keys: int) -> str:
    dtype = pick(r, (np.int64, np.int32, np.bool_))
    levels = None if dtype == np.bool_ or r.rng.random() < 0.6 else (INT_KEPT, INT_HIDDEN)
    return r.add_input("mask", np.dtype(dtype), (BATCH, keys), levels)


def _float_mask(r: "RuleGraph", keys: int) -> str:
    return r.add_input("float_mask", np.dtype(np.float32), (BATCH, keys), (KEPT, HIDDEN))


def _bias(r: "RuleGraph", keys: int) -> str:
    levels = (KEPT, HIDDEN) if r.rng.random() < 0.4 else (KEPT[:7], KEPT[:7])
    return r.add_input("mask_of_pairs", np.dtype(np.float32), (BATCH, SEQ, keys), levels)


def _wide_mask(r: "RuleGraph", keys: int) -> str:
    """[b, n, 4], reduced to [b, n] by an operator of which nothing may be known."""
    g, levels = r.g, (KEPT[:4], HIDDEN)
    wide = r.add_input("mask_in_parts", np.dtype(np.float32), (BATCH, keys, WIDTH), levels)
    op = pick(r, ("ReduceSum", "ReduceMin", "ReduceMax", "ReduceMean"))
    return g.op(op, wide, g.ints(-1), keepdims=0)


def _positions(r: "RuleGraph", keys: int) -> str:
    """[1, 1, n] or [1, s, n]: before a place, or not after the query."""
    g = r.g
    source = "x" if keys == SEQ else r.memory()
    line = g.op("Range", g.const(0, np.int64), g.size(source, 1), g.const(1, np.int64))
    if keys == SEQ and r.rng.random() < 0.6:
        keep = g.op(
            "LessOrEqual", g.op("Unsqueeze", line, g.ints(0)), g.op("Unsqueeze", line, g.ints(1))
        )
    else:
        keep = g.op(
            "Unsqueeze", g.op("Less", line, g.const(pick(r, (0, 1, 3, 5)), np.int64)), g.ints(0)
        )
    return g.op("Unsqueeze", keep, g.ints(0))


TERMS: tuple[Callable[["RuleGraph", int], str], ...] = (
    _own_mask,
    _own_mask,
    _int_mask,
    _float_mask,
    _float_mask,
    _bias,
    _wide_mask,
    _positions,
)


def _step_on(r: "RuleGraph", name: str) -> str:
    """A mask behind one more operator that masks meet."""
    g, x = r.g, r.now(name)
    if x.dtype == np.bool_:
        other = r.maybe("bool") if x.shape == (BATCH, SEQ) else None
        ops = [("Not", name)] + [(op, name, other) for op in ("And", "Or", "Xor") if other]
        return g.op(*pick(r, ops))
    low, one = g.const(pick(r, (-1e4, -1e3, -9999, 0)), x.dtype) if x.dtype.kind == "f" else "", ""
    if x.dtype.kind != "f":
        one = g.const(1, x.dtype)
        return g.op(*pick(r, (("Sub", one, name), ("Mul", name, name), ("Max", name, one))))
    steps: tuple[tuple[Any, ...], ...] = (
        ("Max", name, low),
        ("Clip", name, low, ""),
        ("Min", name, g.const(0, x.dtype)),
        ("Mul", name, g.const(pick(r, (2, 0.5, -1, 0.7)), x.dtype)),
        ("Add", name, g.const(pick(r, (1, 1e3, 5e3, -5e3)), x.dtype)),
        ("Neg", g.op("Relu", g.op("Neg", name))),
        ("CumSum", name, g.const(x.ndim - 1, np.int64)),
        ("Cast", g.op("Cast", name, to=TensorProto.FLOAT16), TensorProto.FLOAT),
        ("Where", g.op("Less", name, low), low, name),
    )
    op, *operands = pick(r, steps)
    if op == "Cast":
        return g.op(op, operands[0], to=operands[1])
    return g.op(op, *operands)


def experts(r: "RuleGraph") -> str:
    """Two or three small networks, each for the rows that a router sends to it."""
    g, x, count = r.g, r.any("rows"), 2 + r.rng.integers(2)
    table = np.asarray(r.rng.normal(size=(WIDTH, count)), np.float32)
    routed = g.op("MatMul", x, g.weight(f"router{len(g.nodes)}", table))
    choice = g.op("ArgMax", routed, axis=-1, keepdims=1)
    made = []
    for e in range(count):
        y = g.op("MatMul", g.op("Relu", g.op("MatMul", x, r.weight())), r.weight())
        mine = g.op("Equal", choice, g.const(e, np.int64))
        if r.rng.random() < 0.5:
            made.append(g.op("Where", mine, y, g.const(0.0)))
        else:
            made.append(g.op("Mul", y, g.op("Cast", mine, to=TensorProto.FLOAT)))
    return joined(r, made)


def gate(r: "RuleGraph") -> str:
    """Rows behind a contraction, times something that is often 0, or chosen by it."""
    g, x = r.g, r.matmul()
    h = g.op(pick(r, ("Relu", "HardSigmoid", "HardSwish", "Sigmoid")), r.any("rows"))
    if r.rng.random() < 0.5:
        return g.op("Mul", x, h)
    return g.op("Where", g.op("Greater", h, g.const(pick(r, (0.0, 0.5)))), x, g.op("Mul", x, h))


def branch_on_size(r: "RuleGraph") -> str:
    """One of two ways to treat rows, by a size that may be 0 or 1."""
    g, x = r.g, r.any("rows")
    source, axis = pick(r, (("x", 0), ("x", 1), (r.memory(), 1)))
    number = g.const(pick(r, (0, 0, 1, 2, 5)), np.int64)
    condition = g.op(pick(r, COMPARISONS), g.size(source, axis), number)
    mask = r.wide(r.any("mask"))

    def some(body: Body) -> str:
        h = body.op(pick(r, ("Relu", "Tanh", "Neg")), x)
        return body.op("Mul", h, mask) if r.rng.random() < 0.5 else h

    def other(body: Body) -> str:
        return body.op("MatMul", x, r.weight())

    made: str = branch(g, condition, some, other)
    return made


def loop(r: "RuleGraph") -> str:
    """Rows that go through a body a few times, which reads a mask from outside."""
    g, x, mask = r.g, r.any("rows"), r.wide(r.any("mask"))
    weight = r.weight()
    body = Body(g, f"loop{len(g.nodes)}")
    names = [f"{body.name}.{n}" for n in ("trip", "go_in", "state")]
    h = body.op("Tanh", body.op("MatMul", names[2], weight))
    h = (
        body.op("Mul", h, mask)
        if r.rng.random() < 0.5
        else body.op("Add", body.op("Mul", h, mask), x)
    )
    go = body.op("Identity", names[1])
    kinds = (TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT)
    inputs = [
        helper.make_tensor_value_info(n, kind, [] if k < 2 else None)
        for k, (n, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    outputs = [
        helper.make_tensor_value_info(go, TensorProto.BOOL, []),
        helper.make_tensor_value_info(h, TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(body._nodes, body.name, inputs, outputs)
    trips = g.const(pick(r, (1, 2, 3, 9, 0)), np.int64)
    return g.op("Loop", trips, g.const(True, np.bool_), x, body=graph)


def integers(r: "RuleGraph") -> str:
    """A bool per token, from integers that come near the limits of their types."""
    g = r.g
    dtype = pick(r, tuple(LIMITS))
    top = LIMITS[dtype]
    if r.rng.random() < 0.5:
        line = g.op("Range", g.const(0, np.int64), g.size("x", 1), g.const(1, np.int64))
        x = g.op("Add", "mask", g.op("Unsqueeze", line, g.ints(0)))
    else:
        x = "mask"
    x = _cast(r, x, dtype)
    for _ in range(1 + r.rng.integers(3)):
        op = pick(r, ("Add", "Sub", "Mul", "Sub"))
        number = g.const(pick(r, (1, 2, 3, 5, top // 3, top // 2, top)), dtype)
        pair = (x, number) if r.rng.random() < 0.6 else (number, x)
        x = g.op(op, *pair)
        if r.rng.random() < 0.3:
            dtype = pick(r, tuple(LIMITS))
            x, top = _cast(r, x, dtype), LIMITS[dtype]
    if r.rng.random() < 0.3:
        return g.op("Cast", x, to=TensorProto.BOOL)
    if dtype in (np.int8, np.uint8, np.int16):
        x, dtype = _cast(r, x, np.int32), np.int32
    return g.op(pick(r, COMPARISONS), x, g.const(pick(r, (0, 1, 3, 5)), dtype))


def _cast(r: "RuleGraph", x: str, dtype: Any) -> str:
    return r.g.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def under_a_mask(r: "RuleGraph") -> str:
    """Rows times a mask, or one place of each sequence, so that something is unread before."""
    g, rows = r.g, r.any("rows")
    if r.rng.random() < 0.3:
        pooled = g.op("Mul", rows, r.wide(r.any("mask")))
        return g.op("ReduceSum", pooled, g.ints(1), keepdims=0)
    keep = g.op("Unsqueeze", r.any("bool"), g.ints(-1))
    if r.rng.random() < 0.3:
        return g.op("Where", keep, rows, g.const(0.0))
    return g.op("Mul", rows, g.op("Cast", keep, to=TensorProto.FLOAT))


BLOCKS: tuple[Block, ...] = (
    attention,
    attention,
    attention,
    experts,
    gate,
    branch_on_size,
    loop,
    integers,
    integers,
    under_a_mask,
)
