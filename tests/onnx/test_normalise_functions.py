"""Functions of a model become their nodes, and all rewrites together."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.errors import ModelError
from pitc.importer import load_model
from pitc.ir.graph import Graph
from pitc.passes import normalise as rewrites
from pitc.passes.facts.fill import fill_facts
from pitc.passes.normalise import inline_functions, normalise
from pitc.passes.quirks.rewrites import plain_flags
from tests.branch_texts import answers, either, loop, texts


def calling(functions: list[str], version: int = 13) -> ir.Model:
    """A model that calls the function F of its own domain."""
    text = f"""<ir_version: 8, opset_import: ["": 18, "local": {version}]>
        g (float[n] x, bool c, bool d) => (float[n] y) {{ y = local.F (x) }}"""
    return ir.from_proto(onnx.parser.parse_model("\n".join([text, *functions])))


def function(body: str, name: str = "F", standard: int = 18, own: int = 13) -> str:
    imports = f'"": {standard}, "local": {own}'
    return f'<domain: "local", opset_import: [{imports}]> {name} (a) => (b) {{ {body} }}'


TWICE = "h = Neg (a) b = Abs (h)"
OTHER = function("b = Neg (a)", "G")


@pytest.mark.parametrize(
    ("functions", "after"),
    [
        ([function(TWICE)], ["h = Neg(x)", "y = Abs(h)"]),
        # operators that are the same in both operator sets
        ([function(TWICE, standard=14)], ["h = Neg(x)", "y = Abs(h)"]),
        # functions of the model have no operator set to be looked up in
        ([function("b = local.G (a)", own=1), OTHER], ["y = Neg(x)"]),
        ([function("h = local.G (a) b = Neg (h)", own=1), OTHER], ["h = Neg(x)", "y = Neg(h)"]),
        ([function(TWICE), OTHER], ["h = Neg(x)", "y = Abs(h)"]),  # one that nobody calls
    ],
)
def test_functions_are_inlined(functions: list[str], after: list[str]) -> None:
    model = calling(functions)
    assert inline_functions(model) == len(functions)
    assert texts(model) == after
    assert not model.functions
    assert inline_functions(model) == 0


@pytest.mark.parametrize("imports", [', "com.microsoft": 1', ""])
@pytest.mark.parametrize("name", ["com.microsoft.Gelu", "Relu", "com.microsoft.Own"])
def test_operators_of_onnx_runtime_are_its_own(name: str, imports: str) -> None:
    domain, _, short = name.rpartition(".")
    text = f"""<ir_version: 8, opset_import: ["": 18{imports}]>
        g (float[n] x) => (float[n] y) {{ y = {name} (x) }}
        <domain: "{domain}", opset_import: ["": 18]> {short} (a) => (b) {{ b = Neg (a) }}"""
    proto = onnx.parser.parse_model(text)
    want = answer(proto)
    model = ir.from_proto(proto)
    assert inline_functions(model) == 1
    assert (texts(model) == ["y = Neg(x)"]) == (short == "Own")
    assert not model.functions
    np.testing.assert_array_equal(answer(ir.to_proto(model)), want)


def answer(proto: onnx.ModelProto) -> Any:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.array([-2, 3], np.float32)})[0]


NESTED = "q, u = local.G (a) b, e = local.G (q)"


@pytest.mark.parametrize("wanted", ["y, u", "u, y"])
@pytest.mark.parametrize("body", ["b = Tanh (a) e = Mul (b, a)", "b = Abs (a) e = Neg (b)", NESTED])
def test_results_that_nobody_wants_may_be_used_inside(body: str, wanted: str) -> None:
    functions = [
        f'<domain: "local", opset_import: ["": 18, "local": 1]> {name} (a) => (b, e) {{ {text} }}'
        for name, text in (("F", body), ("G", "b = Neg (a) e = Exp (b)"))
    ]
    branch = either(wanted.replace("y", "p").replace("u", "v") + " = local.F (x)", "p = Neg (x)")
    text = f"""<ir_version: 8, opset_import: ["": 18, "local": 1]> g (float[n] x, bool c, bool d)
        => (float[n] y, float[n] z) {{ {wanted} = local.F (x) z = If (c) {branch} }}"""
    proto = onnx.parser.parse_model("\n".join([text, *functions]))
    whole = answers(load_model(proto))
    nodes = [*proto.graph.node, *proto.graph.node[1].attribute[0].g.node, *proto.functions[0].node]
    for node in nodes:
        for k, name in enumerate(node.output):
            node.output[k] = "" if name in ("u", "v") else name
    named = load_model(proto)
    assert answers(named) == whole
    for node in nodes:
        while not node.output[-1]:
            node.output.pop()
    for model in (named, load_model(proto)):
        assert normalise(model)["inline_functions"] == 2
        assert answers(model) == whole


def test_a_product_without_a_result_is_passed_over() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[n] x, float[n] w) => (float[n] y) { y = Neg (x) u = Mul (x, w) }""")
    proto.graph.node[1].output[0] = ""
    graph = Graph(ir.from_proto(proto))
    fill_facts(graph)
    assert graph["w"].multiplied == ()


@pytest.mark.parametrize(
    "body", [function("b = Softmax (a)", standard=12), function("b = local.Unknown (a)", own=1)]
)
def test_operators_that_are_others_in_the_model_are_refused(body: str) -> None:
    with pytest.raises(ModelError, match=r"means (Softmax|Unknown) of operator set 1"):
        inline_functions(calling([body]))


@pytest.mark.parametrize(
    ("domain", "flag", "read"),
    [
        ("", "allowzero", True),
        ("", "ceil_mode", True),
        ("", "keepdims", True),
        ("", "noop_with_empty_axes", True),
        ("com.microsoft", "unidirectional", True),
        ("com.microsoft", "keepdims", False),
        ("", "unidirectional", False),
        ("", "axis", False),
        ("local", "keepdims", False),
    ],
)
def test_flags_are_set_where_they_are_1(domain: str, flag: str, read: bool) -> None:
    inputs, numbers = [ir.val("x")], (-1, 0, 1, 2)
    nodes = [ir.node("Op", inputs, {flag: n}, domain=domain, name=f"{n}") for n in numbers]
    graph = ir.Graph(inputs, [nodes[0].outputs[0]], nodes=nodes, opset_imports={"": 18})
    assert plain_flags(ir.Model(graph, ir_version=10)) == 2 * read
    found = [node.attributes[flag].value for node in nodes]
    assert found == ([0, 0, 1, 0] if read else [*numbers])


def test_large_bodies_of_few_trips_are_unrolled() -> None:
    """How many nodes there may be grows with the model."""
    steps = [f"q{k} = Neg ({'sy' if not k else f'q{k - 1}'})" for k in range(100)]
    body = " ".join([*steps, "py = Abs (q99)"])
    model = ir.from_proto(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
            g (float[n] x) => (float[n] y) {{ {loop("y", "x", body, 8)} }}""")
    )
    assert rewrites.unroll_loops(model) == 1
    assert [node.op_type for node in model.graph].count("Neg") == 800


def test_rewrites_that_apply_are_counted_in_order() -> None:
    names = [r.__name__ for r in rewrites.REWRITES]
    assert names == [
        "inline_functions",
        "plain_flags",
        "distinct_names",
        "open_branches",
        "unroll_loops",
        "lift_constants",
        "widen",
        "expand_fused",
        "expand_experts",
        "fold_known_if",
        "name_rests",
        "fold_numbers",
        "drop_empty_pads",
        "name_cast_types",
        "drop_same_casts",
        "share_flags",
        "remove_identities",
    ]
    body = (
        "s = Shape (a) r = Size (s) t = Equal (r, r)"
        f" f = If (t) {either('p = Neg (a)', 'p = Abs (a)')}"
        " z = ReduceMax <keepdims = 3> (f) g = Add (f, z)"
        f" h = Mish (g) i = Identity (h) {loop('l', 'i', 'pl = Neg (sl)', 2)} b = Abs (l)"
    )
    model = calling([function(body)])
    wanted = answers(model)
    counts = {
        "inline_functions": 1,
        "plain_flags": 1,
        "open_branches": 1,
        "unroll_loops": 1,
        "lift_constants": 1,
        "fold_known_if": 1,
        "remove_identities": 3,
    }
    assert list(normalise(model).items()) == list(counts.items())
    assert answers(model) == wanted
