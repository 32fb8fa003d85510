"""Which domains are tried, and which nodes run packed: worked examples of small graphs."""

from contextlib import nullcontext

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit
from pitc.ir.refusal import Code
from pitc.passes.regions.candidates import Search, Tried
from pitc.passes.regions.choose import choose_regions
from pitc.passes.regions.contexts import contexts_of
from pitc.passes.regions.domain import all_live
from pitc.passes.regions.form import Form, FormContext, PackCandidate
from pitc.passes.regions.forms import form_of
from tests.fact_check import analysed
from tests.random_check import lowering_everything

TEXT = """
<ir_version: 10, opset_import: ["": OPSET]>
g (float[b, s, 64] x, float[b, s, 64] u, bool[b, s] mask, bool[b, s] other, bool[s] line,
   bool[s] keys, bool[1] only, bool[b, s, s] pairs, float[b, s] score, float[s, 64] alone,
   float[s, 64] more) => (float[b, s, 64] y)
<int64[1] last = {-1}, int64[1] one = {1}, float zero = {0}, float low = {-1e9}, float five = {5},
 float[1] number = {5}, int64[3] split = {0, 4, 16},
 int64 first = {0}, int64 second = {1}>
{
    BODY
}
"""
ROWS = """live = Unsqueeze (mask, last)  shown = Unsqueeze (other, last)
    lines = Unsqueeze (line, last)"""
MASK, OTHER, LINE = "mask[d0, d1] == 0", "other[d0, d1] == 0", "line[d0] == 0"
FIRST, BEFORE, AFTER = "d0-1 >= 0", "-d0 >= 0", "d0-2 >= 0"
KEYS, SEEN = "all d-1: pairs[d0, d-1, d1] == 0", "all d-1: some d-101: pairs[d0, d-1, d-101] != 0"


def graph_of(body: str, opset: int = 20, rows: str = ROWS, also: str = "") -> Graph:
    """A graph with weights of 64 by 64, and one column; of one more result or of none."""
    text = TEXT.replace("OPSET", str(opset)).replace("BODY", f"{rows}  {body}")
    text = text.replace(" y)\n<", f" y, float[b, s, 64] {also})\n<") if also else text
    model = onnx.parser.parse_model(text)
    shapes = {"w": (64, 64), "w2": (64, 64), "w3": (64, 64), "col": (64, 1), "stack": (3, 64, 64)}
    for name, shape in shapes.items():
        array = np.random.default_rng(len(name)).normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    ninf = np.array(-np.inf, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(ninf, "ninf"))
    return analysed(model)[0]


def domains_of(graph: Graph) -> list[str]:
    """Where each domain is dead, in the order in which they are tried."""
    return [" and ".join(sorted(map(str, c.domain.dead))) for c in contexts_of(graph)]


MASKED = "d = Where (live, c, zero)  c2 = MatMul (u, w2)"
KEPT_FIRST = "p = MatMul (x, w)  q = Gather <axis = 1> (p, first)  z = Unsqueeze (q, one)"
SCORES = """t2 = MatMul (u, w)  t = Transpose <perm = [0, 2, 1]> (t2)  s0 = MatMul (x, t)
    m = Where (pairs, s0, low)  p = Softmax <axis = -1> (m)  v = MatMul (u, w3)
    o = MatMul (p, v)"""
FOUND = """n = Squeeze (k, last)  f = Greater (n, zero)  found = Unsqueeze (f, last)
    p = MatMul (x, w)  q = Where (found, p, zero)"""


@pytest.mark.parametrize(
    ("body", "domains"),
    [
        ("p = MatMul (x, w)  y = Where (live, p, zero)", [MASK]),
        ("p = MatMul (x, w)  y = Identity (p)", []),
        ("p = Tanh (x)  y = Where (live, p, zero)", []),  # no contraction
        # more work first, whatever the names
        (
            f"c = MatMul (x, w)  {MASKED}  e = Where (shown, c2, zero)  y = Add (d, e)",
            [MASK, OTHER],
        ),
        (
            f"c = MatMul (x, w)  {MASKED}  c3 = MatMul (c2, w3)  e = Where (shown, c3, zero)"
            "  y = Add (d, e)",
            [OTHER, MASK],
        ),
        # of a sum of products that is dead twice, either
        ("p = MatMul (x, w)  q = Where (live, p, zero)  y = Where (shown, q, zero)", [MASK, OTHER]),
        # by position
        (f"{KEPT_FIRST}  y = Identity (z)", [FIRST]),
        (
            f"{KEPT_FIRST}  e = MatMul (u, w2)  e2 = MatMul (e, w3)"
            "  h = Gather <axis = 1> (e2, second)  i = Unsqueeze (h, one)  y = Add (z, i)",
            [BEFORE, AFTER, FIRST],
        ),
        # beside values: first where there are as many coordinates, else last
        (
            f"{KEPT_FIRST}  e = MatMul (u, w2)  h = Where (shown, e, zero)  y = Add (z, h)",
            [OTHER, FIRST],
        ),
        (
            f"{KEPT_FIRST}  e = MatMul (u, w2)  h = Where (lines, e, zero)  y = Add (z, h)",
            [FIRST, LINE],
        ),
        # what holds for all of a dimension last; a whole line of a mask is none
        (
            f"{SCORES}  y = Where (live, o, zero)",
            [MASK, "pairs[d0, d1, d2] == 0", f"{KEYS} and {SEEN}", KEYS],
        ),
        (
            "p = MatMul (x, w)  q = ReduceSum <keepdims = 1> (p, one)  e = MatMul (p, w2)"
            "  i = Where (live, e, zero)  r = Add (q, i)  y = Where (live, r, zero)",
            [MASK],
        ),
        # one point
        ("p = MatMul (x, w)  y = Where (only, p, zero)", ["only[0] == 0"]),
        # live points that a covered contraction computes, and one that is not covered
        (f"k = MatMul (x, col)  {FOUND}  y = Identity (q)", ["f[d0, d1] == 0"]),
        (
            f"k = MatMul (x, col)  {FOUND}  y = Where (live, q, zero)",
            [MASK, "f[d0, d1] == 0"],
        ),
        (
            f"u2 = Unsqueeze (score, last)  k = Sin (u2)  {FOUND}  y = Where (live, q, zero)",
            ["f[d0, d1] == 0", MASK],
        ),
    ],
)
def test_domains_in_order(body: str, domains: list[str]) -> None:
    assert domains_of(graph_of(body)) == domains


def chosen(body: str, everything: bool = True, also: str = "") -> str:
    """Nodes that run packed, what comes back whole, and the refusals."""
    with lowering_everything() if everything else nullcontext():
        graph = graph_of(body, also=also)
        found = choose_regions(graph)
    forms = " ".join(n.outputs[0].name or "" for n in graph.nodes if n in found.forms)
    refusals = [(n.outputs[0].name, r.code.name) for n, r in found.refusals.items()]
    no = " ".join(sorted(f"{name}:{code}" for name, code in refusals))
    records = " ".join(f"{r.nodes}*{r.flops_per_row}" for r in found.records)
    return f"{forms} | {' '.join(sorted(found.demand.exits))} | {no} | {records}"


ATTENTION = """t2 = MatMul (u, w)  t = Transpose <perm = [0, 2, 1]> (t2)  s0 = MatMul (x, t)
    row = Unsqueeze (KEYS, one)  m = Where (row, s0, ninf)  p = Softmax <axis = -1> (m)
    v = MatMul (u, w3)  o = MatMul (p, v)  y = Where (live, o, zero)"""
HEADS = """q0 = MatMul (alone, w)  k0 = MatMul (alone, w2)  v0 = MatMul (alone, w3)
    q1 = Reshape (q0, split)  k1 = Reshape (k0, split)  v1 = Reshape (v0, split)
    q = Transpose <perm = [1, 0, 2]> (q1)  k = Transpose <perm = [1, 2, 0]> (k1)
    v = Transpose <perm = [1, 0, 2]> (v1)  s0 = MatMul (q, k)  m = Where (line, s0, low)
    p = Softmax <axis = -1> (m)  o = MatMul (p, v)  h = Where (lines, o, zero)
    r = Transpose <perm = [1, 0, 2]> (h)  i = ReduceSum <keepdims = 0> (r, one)
    j = ReduceSum <keepdims = 0> (i)  y = Add (x, j)"""
GUARDED = """p = MatMul (x, w)  m = Cast <to = 1> (live)  d = Mul (p, m)  e = Div (d, m)
    n = IsNaN (e)  g = Where (n, zero, e)"""
CIRCULAR = """dead = Not (live)  q = MatMul (x, w)  positive = Greater (q, zero)
    a = Or (dead, positive)  b0 = Where (live, q, five)  c = Where (live, x, five)
    y = Where (a, c, b0)"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("p = MatMul (x, w)  q = Tanh (p)  y = Where (live, q, zero)", "p q | q |  | 2*8192"),
        (
            "p = MatMul (x, w)  t = Tanh (u)  h = Where (live, t, zero)"
            "  d = Where (live, p, zero)  y = Add (h, d)",
            "p | p | t:NOT_NEEDED | 1*8192",
        ),
        ("t = Tanh (x)  y = Where (live, t, zero)", " |  |  | "),
        # a mask in front of another one: nothing needs what it alone leaves out
        (
            "f = Greater (score, zero)  found = Unsqueeze (f, last)  p = MatMul (x, w)"
            "  q = Where (found, p, zero)  r = MatMul (q, w2)  y = Where (live, r, zero)",
            "f found p q r | r | live:NOT_NEEDED | 5*16384",
        ),
        # two domains, by position and by values
        (
            f"{KEPT_FIRST}  e = MatMul (u, w2)  h = Where (lines, e, zero)  y = Add (z, h)",
            "p e | e p |  | 1*524288 1*524288",
        ),
        (
            f"c = MatMul (x, w)  {MASKED}  e = Where (shown, c2, zero)  y = Add (d, e)",
            "c c2 | c c2 |  | 1*8192 1*8192",
        ),
        # attention, and why there is none
        (
            ATTENTION.replace("KEYS", "mask"),
            "t2 t v o | o | m:NOT_NEEDED p:NOT_NEEDED s0:NO_KERNEL | 4*32768",
        ),
        (
            ATTENTION.replace("KEYS", "other"),
            "t2 t v o | o | m:NOT_NEEDED p:NOT_NEEDED s0:NO_KERNEL shown:NOT_NEEDED | 4*32768",
        ),
        (HEADS, "q0 k0 v0 q1 k1 v1 q k v o | o | m:NOT_NEEDED p:NOT_NEEDED s0:LAYOUT | 10*40960"),
        (
            f"{SCORES}  y = Where (live, o, zero)",
            "t2 v o | o t2 v | m:NOT_NEEDED p:NOT_NEEDED s0:NO_KERNEL t:NOT_NEEDED"
            " | 1*8192 1*8192 1*16384",
        ),
        (
            "xx = Unsqueeze (x, one)  p = MatMul (xx, stack)"
            "  q = ReduceSum <keepdims = 0> (p, one)  y = Where (live, q, zero)",
            " |  | p:LAYOUT q:NOT_NEEDED xx:NOT_NEEDED | ",
        ),
        (
            "t = Transpose <perm = [0, 2, 1]> (x)  p = MatMul (x, t)  q = MatMul (p, u)"
            "  y = Where (live, q, zero)",
            " |  | p:NO_KERNEL q:NO_KERNEL | ",
        ),
        # live columns over one domain, before live rows over another
        (
            "a = MatMul (more, w)  t = Transpose <perm = [1, 0]> (a)  s0 = MatMul (alone, t)"
            "  m = Where (keys, s0, zero)  h = Where (lines, m, zero)"
            "  j = ReduceSum <keepdims = 0> (h)  y = Add (x, j)",
            "a t s0 | s0 | lines:NOT_NEEDED m:NOT_NEEDED | 3*16384",
        ),
        # rows that nothing reads but a form, of what lives elsewhere: NaN, in whose place 0 is read
        (f"{GUARDED}  y = MatMul (g, w2)", "live p m d e n g y | y |  | 8*16384"),
        # a sum that is read whole is refused with a reason, if some of its terms are 0
        (
            "v = Where (live, u, zero)  t = Transpose <perm = [0, 2, 1]> (u)  s0 = MatMul (x, t)"
            "  o = MatMul (s0, v)  z = MatMul (v, w)  d = Where (live, z, zero)  y = Add (o, d)",
            "z | z | o:LAYOUT s0:NO_KERNEL t:NOT_NEEDED | 1*8192",
        ),
        (
            "c = MatMul (alone, w)  d = Where (lines, c, zero)  e = Gemm (d, w2, number)"
            "  y = Add (x, e)",
            "c | c |  | 1*8192",
        ),
        # facts that rest on each other
        (CIRCULAR, "q positive | positive q | a:JOINT b0:JOINT dead:NOT_NEEDED | 2*8192"),
    ],
)
def test_nodes_that_run_packed(body: str, found: str) -> None:
    assert chosen(body) == found


OUTER = """c = MatMul (x, w)  e = Where (live, c, zero)  f = Where (mask, score, zero)
    row = Unsqueeze (f, one)  column = Unsqueeze (score, last)  a = Add (column, row)"""


@pytest.mark.parametrize(
    ("body", "products"),
    [
        (
            ATTENTION.replace("KEYS", "mask").replace("Where (live, o, zero)", "Add (x, o)"),
            {"s0", "o"},
        ),
        # no sum of products has all rows beside packed ones
        (f"{OUTER}  r = ReduceSum <keepdims = 1> (a, last)  y = Add (e, r)", set()),
    ],
)
def test_products_of_all_rows_and_packed_keys(body: str, products: set[str]) -> None:
    graph = graph_of(body)
    found = Search(graph, contexts_of(graph), {}).in_order
    assert {name for context in found for name in context.starts} == products


@pytest.mark.parametrize(
    ("end", "also"), [("y = MatMul (g, w2)", "e"), ("z = MatMul (g, w2)  y = Add (z, e)", "")]
)
def test_rows_that_are_read_whole_are_not_only_read_by_forms(end: str, also: str) -> None:
    product = "z" if "z" in end else "y"
    found = chosen(f"{GUARDED}  {end}", also=also)
    assert found == f"p n g {product} | p {product} |  | 1*8192 3*8192"


@pytest.mark.parametrize(("rank", "known"), [(2, True), (1, False)])
def test_all_rows_have_a_known_number_of_elements(rank: int, known: bool) -> None:
    """Of [b, s, 64] rows over b and s have; those over b have as many as there are tokens."""
    graph = graph_of("y = Tanh (x)")
    made, node = graph["y"].expr, graph["y"].producer
    assert made is not None and node is not None
    coords = tuple(Digit(d, ONE, e) for d, e in enumerate(made.shape[:rank]))
    context = FormContext(graph, all_live(made.shape[:rank]), {"y": [coords]})
    (rows,) = context.packings("y")
    form = form_of(PackCandidate(context, node, made, rows), Tried.MOVED)
    assert isinstance(form, Form) if known else getattr(form, "code", None) is Code.DYNAMIC_DIM


def test_regions_that_do_not_pay_are_given_up() -> None:
    two = "p = MatMul (x, w)  q = MatMul (p, w2)  d = Where (live, q, zero)"
    one = "c = MatMul (u, w3)  e = Where (shown, c, zero)"
    assert chosen(f"{two}  {one}  y = Add (d, e)", everything=False) == (
        "p q | q | c:NO_GAIN | 2*16384"
    )


def test_what_is_not_described_or_captured_stays_whole() -> None:
    body = "p = MatMul (x, w)  q = Tanh (p)  y = Where (live, q, zero)"
    for name, forms in (("p", []), ("q", ["p"])):
        for damage in ("captured", "expr"):
            with lowering_everything():
                graph = graph_of(body)
                setattr(graph[name], damage, True if damage == "captured" else None)
                found = choose_regions(graph)
            assert [n.outputs[0].name for n in found.forms] == forms


def test_domains_need_operators_that_compute_their_points() -> None:
    body = "p = MatMul (x, w)  q = Gather <axis = 1> (p, first)  y = Add (q, q)"
    assert domains_of(graph_of(body, 11, "")) == [FIRST]
    assert domains_of(graph_of(body, 10, "")) == []
