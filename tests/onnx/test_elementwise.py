"""Elementwise nodes in one pass: what becomes one node, what stays, and that all of it is right."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import ModelProto, parser

from pitc.ir.formula import MOST_OPERANDS, MOST_RESULTS, MOST_STEPS
from pitc.ir.nodes import Array, is_pit_node, plan_of
from pitc.ir.plans.whole import Elementwise
from pitc.ir.target import CUDA, Target
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.onnx.test_sampled_products import ANY
from tests.plan_reference import run_lowered

N = 80
#: Beside them a product under a mask: without a packed node nothing is done.
PRODUCT = "p = Gemm <transA = 1> (l, r) q = Mul (p, mask)"
SHAPES = {"x": ("b", "t", N), "g": ("b", "t", N), "z": ("b", "t", N), "w": (N,), "s": ("b", "t", 1)}
CONSTANTS = "float zero = {0.0}, float one = {1.0}, float two = {2.0}, float[1] small = {0.00001}"
CONSTANTS += ", float root = {1.4142135}, int64[1] last = {-1}, int64[1] first = {0}"


def source(body: str, *outputs: str, opset: int = 18, more: str = "") -> ModelProto:
    """A graph whose outputs are of any shape."""
    inputs = [f"float[{','.join(map(str, dims))}] {name}" for name, dims in SHAPES.items()]
    inputs += ["bool[b,t,80] c", "float[k,96] l", "float[k,64] r", "float[96,64] mask"]
    given = ", ".join(f"float {y}" for y in (*outputs, "q"))
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> m ({", ".join(inputs)}{more}) => ({given})'
    )
    model = parser.parse_model(f"{text} <{CONSTANTS}> {{ {PRODUCT} {body} }}")
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


def lowered(model: ModelProto, target: Target = ANY) -> Lowered:
    return run_passes(ir.from_proto(model), LowerOptions(target=target, check=True))


def plans(made: Lowered) -> list[Elementwise]:
    found = [plan_of(n) for n in made.model.graph if is_pit_node(n)]
    return [plan for plan in found if isinstance(plan, Elementwise)]


def feeds(batch: int = 2, tokens: int = 5, seed: int = 0) -> dict[str, Array]:
    rng, sizes = np.random.default_rng(seed), {"b": batch, "t": tokens}
    shapes = {x: [sizes[d] if isinstance(d, str) else d for d in s] for x, s in SHAPES.items()}
    shapes |= {"l": [7, 96], "r": [7, 64], "mask": [96, 64]}
    found = {x: rng.standard_normal(dims, np.float32) for x, dims in shapes.items()}
    found["mask"] = (found["mask"] > 0).astype(np.float32)
    return found | {"c": rng.random((batch, tokens, N)) < 0.5}


def compare(model: ModelProto, made: Lowered, given: dict[str, Array]) -> None:
    """With ONNX Runtime, the same outputs in the same order."""
    run = ort.InferenceSession(model.SerializeToString())
    read = {x.name for x in run.get_inputs()}
    want: Sequence[Any] = run.run(None, {n: x for n, x in given.items() if n in read})
    proto = ir.to_proto(made.model)
    assert [o.name for o in proto.graph.output] == [o.name for o in model.graph.output]
    for mine, theirs in zip(run_lowered(proto, given), want, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


RELU = "a = LessOrEqual (x, zero) y = Where (a, zero, g)"
GELU = "a = Div (x, root) e = Erf (a) u = Add (e, one) v = Mul (x, u) y = Div (v, two)"
NORM = (
    "m = ReduceMean (x, last) d = Sub (x, m) v = Pow (d, two) k = ReduceMean (v, last)"
    "e = Add (k, small) h = Sqrt (e) n = Div (d, h) u = Mul (n, w) y = Add (u, g)"
)
GRADIENT = (
    "t = Mul (g, w) a = ReduceMean (t, last) u = Mul (t, z) e = ReduceMean (u, last)"
    "v = Sub (t, a) h = Mul (z, e) k = Sub (v, h) y = Mul (k, s)"
)
MOMENTS = (
    "a = Mul (x, two) y1 = Add (a, g) e = Mul (g, g) y2 = Add (z, e)"
    "h = Sqrt (y2) v = Add (h, small) k = Div (y1, v) y = Sub (w, k)"
)
FLAGS = "a = Cast <to = 1> (c) u = Mul (a, x) v = Not (c) y = Where (v, u, g)"
#: Of each: outputs, kinds of operands, results.
FORMS: dict[str, tuple[str, Sequence[str], Sequence[str], int]] = {
    "ReLU": (RELU, ["y"], ["whole", "whole"], 1),
    "GELU": (GELU, ["y"], ["whole"], 1),
    "GELU and a value on its way": (GELU, ["y", "u"], ["whole"], 2),
    "norm": (NORM, ["y"], ["whole", "row", "whole"], 1),
    "norm and its scale": (NORM, ["y", "h", "n"], ["whole", "row", "whole"], 3),
    "gradient of a norm": (GRADIENT, ["y"], ["whole", "row", "whole", "column"], 1),
    "moments": (MOMENTS, ["y", "y1", "y2"], ["whole", "whole", "whole", "row"], 3),
    "truth values": (FLAGS, ["y"], ["flags", "whole", "whole"], 1),
}


@pytest.mark.parametrize("name", FORMS)
def test_one_node_computes_all_of_it(name: str) -> None:
    body, outputs, kinds, results = FORMS[name]
    model = source(body, *outputs)
    made = lowered(model)
    (plan,) = plans(made)
    assert sorted(plan.kinds) == sorted(kinds) and len(plan.columns) == results
    assert sum(plan.columns) == (name == "norm and its scale")
    left = {n.op_type for n in made.model.graph if not is_pit_node(n)}
    assert left <= {"Mul"}, left  # that of the mask
    (node,) = [r for r in made.report.nodes if r.kernel and r.kernel.operation == "elementwise"]
    inside = [r for r in made.report.nodes if r.inside == node.node]
    assert len(inside) == body.count(" = ") - body.count("<") - 1
    for batch, tokens in ((2, 5), (0, 5), (1, 1), (3, 40)):
        compare(model, made, feeds(batch, tokens))


SPLIT = "a, e = Split <axis = {}, num_outputs = {}> ({}) k = Sigmoid (a) u = Mul (a, k)"
#: Of each: the split, the outputs, and what operands are.
GATED: dict[str, tuple[str, list[str], list[str]]] = {
    "of the last axis": (SPLIT.format(-1, 2, "f"), ["y"], ["left", "right"]),
    "a half is an output": (SPLIT.format(2, 2, "f"), ["y", "e"], ["left", "right"]),
    "of another axis": (SPLIT.format(1, 2, "h"), ["y"], ["whole", "whole"]),
    "of three parts": (
        SPLIT.replace("a, e", "a, e, o").format(-1, 3, "i"),
        ["y", "o"],
        ["whole", "whole"],
    ),
    "of short rows": (SPLIT.format(-1, 2, "j"), ["y"], ["whole", "whole"]),
}


@pytest.mark.parametrize("name", GATED)
def test_halves_of_rows_are_read_where_they_lie(name: str) -> None:
    split, outputs, kinds = GATED[name]
    more = ", float[b,t,160] f, float[b,10,80] h, float[b,t,240] i, float[b,t,64,62] j"
    model = source(f"{split} y = Mul (u, e)", *outputs, more=more)
    made = lowered(model)
    (plan,) = plans(made)
    assert sorted(plan.kinds) == kinds and plan.by_rows == ("left" in kinds)
    splits = [n for n in made.model.graph if n.op_type == "Split"]
    assert len(splits) == (kinds[0] == "whole" or "e" in outputs)
    for batch, tokens in ((2, 5), (0, 5), (1, 1)):
        given, rng = feeds(batch, tokens), np.random.default_rng(1)
        for value in "fhij":
            dims = {"f": (tokens, 160), "h": (10, 80), "i": (tokens, 240), "j": (tokens, 64, 62)}
            given[value] = rng.standard_normal((batch, *dims[value]), np.float32)
        compare(model, made, given)


@pytest.mark.parametrize("sums", ["ReduceSum (s, last)", "ReduceSum (m, last)"])
def test_a_sum_of_one_number_is_no_sum_of_a_row(sums: str) -> None:
    model = source(f"m = ReduceMean (x, last) a = {sums} e = Mul (x, a) y = Add (e, x)", "y")
    made = lowered(model)
    (plan,) = plans(made)
    assert sorted(plan.kinds) == ["column", "whole"]
    compare(model, made, feeds())


#: What stays with ONNX Runtime, by why.
LEFT: dict[str, tuple[str, str]] = {
    "one node": ("y = Exp (x)", ""),
    "of one full size": ("a = Add (w, one) e = Mul (a, two) y = Mul (x, e)", ""),
    "small": ("a = Exp (f) y = Neg (a)", "float[3,80] f"),
    "short rows": ("a = Mul (f, e) y = Neg (a)", "float[b,t,64,32] f, float[32] e"),
    "rows of no known length": ("a = Mul (f, e) y = Neg (a)", "float[b,t,256,n] f, float[n] e"),
    "another type": ("a = Exp (f) y = Neg (a)", "double[b,t,80] f"),
    "whole numbers": ("a = Add (f, f) y = Mul (a, f)", "int64[b,t,80] f"),
    "to a truth value": ("a = Cast <to = 9> (x) e = Not (a) y = Cast <to = 9> (e)", ""),
    "another power": ("a = Pow (x, root) y = Softmax (a)", ""),
    "other axes": ("a = ReduceMean (x, first) e = Sub (x, a) y = Softmax (e)", ""),
    "an axis that goes": ("a = ReduceMean <keepdims = 0> (x, last) y = Exp (a)", ""),
    "sizes that are not the same": ("a = Add (x, f) y = Softmax (a)", "float[u,v,80] f"),
    "sums of a norm": ("a = Add (x, g) e = Add (a, z) y = LayerNormalization (e, w)", ""),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_stays(name: str) -> None:
    body, more = LEFT[name]
    made = lowered(source(body, "y", more=f", {more}" if more else ""))
    assert not plans(made)


def test_nothing_is_done_without_a_packed_node() -> None:
    """On GPUs no product under a mask is one."""
    assert not plans(lowered(source(RELU, "y"), CUDA))
    text = source(RELU, "y")
    del text.graph.node[:2], text.graph.output[1:]
    assert not plans(lowered(text))


def test_sums_that_others_read_too_are_not_left_to_a_norm() -> None:
    """More than sums: the norm has to read memory anyway."""
    body = "a = Add (x, g) e = Exp (a) u = Mul (e, z) y = LayerNormalization (u, w)"
    made = lowered(source(body, "y"))
    assert [plan.formula.count(",") for plan in plans(made)] == [2]


def test_a_way_that_leads_back_cuts_a_group() -> None:
    """The softmax reads what is computed, and is read."""
    body = "a = Exp (x) k = Neg (a) f = Softmax (k) e = Mul (f, k) y = Add (e, g)"
    model = source(body, "y")
    made = lowered(model)
    assert sorted(plan.formula.count(",") for plan in plans(made)) == [1, 1]
    compare(model, made, feeds())


def test_two_groups_do_not_wait_for_each_other() -> None:
    """Each has what leads to the other: of the four pieces no two pairs can be nodes."""
    body = (
        "a = Exp (x) k = Neg (a) f = Softmax (k) e = Add (f, g) y2 = Exp (e)"
        "h = Exp (z) n = Neg (h) o = Softmax (n) u = Add (o, k) y = Exp (u)"
        "v = Mul (e, n) y3 = Neg (v)"
    )
    model = source(body, "y", "y2", "y3")
    made = lowered(model)
    assert plans(made)
    compare(model, made, feeds())


def test_a_body_may_read_a_result() -> None:
    """It stands in a node, behind what is computed."""
    body = (
        "a = Exp (x) k = Neg (a) i = ReduceMax <keepdims = 0> (k) o = Greater (i, zero)"
        "f = If (o) <then_branch = t () => (float[u,v,80] f1) { f1 = Identity (k) },"
        " else_branch = e () => (float[u,v,80] f2) { f2 = Neg (k) }>"
        "y = Mul (f, k)"
    )
    model = source(body, "y")
    made = lowered(model)
    (plan,) = plans(made)
    assert plan.formula.count(",") == 1
    compare(model, made, feeds())


@pytest.mark.parametrize(
    "body",
    [
        " ".join(f"v{i + 1} = Add (v{i}, g)" for i in range(MOST_STEPS + 9)),
        " ".join(f"v{i + 1} = Add (v{i}, i{i})" for i in range(MOST_OPERANDS + 3)),
    ],
)
def test_long_formulas_are_several(body: str) -> None:
    count = body.count("Add")
    inputs = "".join(f", float[b,t,80] i{i}" for i in range(count)) if "i0" in body else ""
    model = source(f"v0 = Exp (x) {body} y = Neg (v{count})", "y", more=inputs)
    made = lowered(model)
    found = plans(made)
    assert len(found) == 2 and all(len(p.kinds) <= MOST_OPERANDS for p in found)
    given = feeds()
    rng = np.random.default_rng(3)
    given |= {f"i{i}": rng.standard_normal(given["x"].shape, np.float32) for i in range(count)}
    compare(model, made, given)
    steps = [p.formula.count(",") + 1 for p in found]
    assert sum(steps) == count + 2 and max(steps) <= MOST_STEPS


def test_many_results_are_several_nodes() -> None:
    body = " ".join(f"v{i + 1} = Add (v{i}, g)" for i in range(MOST_RESULTS + 3))
    outputs = [f"v{i + 1}" for i in range(MOST_RESULTS + 3)]
    model = source(f"v0 = Exp (x) {body}", *outputs)
    made = lowered(model)
    assert max(len(p.columns) for p in plans(made)) == MOST_RESULTS
    compare(model, made, feeds())


UNARY = ("Exp", "Neg", "Tanh", "Sigmoid", "Relu", "Erf", "Softmax")
BINARY = ("Add", "Sub", "Mul", "Greater")


def drawn(seed: int) -> tuple[str, list[str]]:
    """A random graph: whole values, columns, rows, truth values and nodes that are no step."""
    rng = np.random.default_rng(seed)
    wide, columns, flags, lines = ["x", "g", "z"], ["s"], ["c"], list[str]()

    def pick(names: list[str]) -> str:
        return names[-1 - int(rng.integers(min(4, len(names))))]

    for k in range(int(rng.integers(4, 22))):
        name, kind = f"v{k}", rng.random()
        if kind < 0.3:
            lines.append(f"{name} = {rng.choice(UNARY)} ({pick(wide)})")
        elif kind < 0.4:
            lines.append(f"{name} = ReduceMean ({pick(wide)}, last)")
        elif kind < 0.5:
            lines.append(f"{name} = Where ({pick(flags)}, {pick(wide)}, {pick(columns)})")
        elif kind < 0.6:
            lines.append(f"{name} = Mul ({pick(columns)}, {pick(columns)})")
        else:
            other = pick([*wide, *columns, "w", "one"])
            lines.append(f"{name} = {rng.choice(BINARY)} ({pick(wide)}, {other})")
        into = flags if "Greater" in lines[-1] else wide
        (columns if 0.3 <= kind < 0.4 or 0.5 <= kind < 0.6 else into).append(name)
    lines.append(f"y = Tanh ({wide[-1]})")
    outputs = ["y", *(v for v in wide[3:] if rng.random() < 0.2), *columns[1:2]]
    return " ".join(lines), outputs


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed: int) -> None:
    body, outputs = drawn(seed)
    model = source(body, *outputs)
    made = lowered(model)
    for batch, tokens in ((2, 3), (1, 1), (0, 2)):
        compare(model, made, feeds(batch, tokens, seed))


def test_random_graphs_have_groups() -> None:
    """Or the test above says nothing."""
    counts = [len(plans(lowered(source(*_first(drawn(seed)))))) for seed in range(12)]
    assert sum(counts) > 12 and max(counts) > 1


def _first(graph: tuple[str, list[str]]) -> list[str]:
    return [graph[0], *graph[1]]
