"""What live tests cost: attention whose mask or bias is one per head, known when the model runs."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models import per_head
from models.per_head import PerHeadConfig
from pitc.ir import target as targets
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, atom, dim_index, sym
from pitc.ir.refusal import Code
from pitc.ir.region import Region, Test
from pitc.passes.exprs.derive import derive
from pitc.passes.pipeline import Lowered
from pitc.passes.regions.choose import choose_regions
from tests.lower_support import check, lower, plans
from tests.plan_reference import run_lowered

HEADS, WIDTH = 4, 256


def mask_per_head(layers: int = 2, width: int = WIDTH) -> onnx.ModelProto:
    return per_head.mask_per_head(PerHeadConfig(layers, width, HEADS), np.random.default_rng(1))


def pair_bias(layers: int = 2, width: int = WIDTH) -> onnx.ModelProto:
    return per_head.pair_bias(PerHeadConfig(layers, width, HEADS), np.random.default_rng(1))


def fed(model: onnx.ModelProto, n: int, lengths: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Inputs of as many sequences, each up to its length."""
    rng, count = np.random.default_rng(3), len(lengths)
    width = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    mask = np.arange(n) < np.array(lengths)[:, None]
    feeds = {"x": rng.normal(size=(count, n, width)).astype(np.float32)}
    if any(i.name == "keep" for i in model.graph.input):
        return feeds | {"keep": np.broadcast_to(mask[:, None, None], (count, HEADS, n, n)).copy()}
    pair = rng.normal(size=(count, n, n, 8)).astype(np.float32)
    return feeds | {"pair": pair, "mask": mask.astype(np.int64)}


CASES = {"mask per head": (mask_per_head, None), "pair bias": (pair_bias, "mask")}


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def sizes_for_live_points(lowered: Lowered, feeds: dict[str, np.ndarray]) -> dict[str, int]:
    """Elements of every value that only the detectors need, when the model runs."""
    model = ir.serde.serialize_model(lowered.model)
    detectors = [n for n in model.graph.node if "main_context" in {a.name for a in n.attribute}]
    detectors = [n for n in detectors if n.name.endswith("[detect]")]
    assert detectors
    makers = {o: n for n in model.graph.node for o in n.output}
    needed: dict[str, None] = {}
    todo = [n.input[0] for n in detectors]
    while todo:
        name = todo.pop()
        if name in makers and name not in needed:
            needed[name] = None
            todo += makers[name].input
    nodes = [n for n in model.graph.node if n.output[0] in needed]
    graph = onnx.helper.make_graph(
        nodes,
        "live",
        model.graph.input,
        [onnx.helper.make_empty_tensor_value_info(n) for n in needed],
        model.graph.initializer,
    )
    part = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)
    session = session_of(part)
    found = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    return {name: np.asarray(x).size for name, x in zip(needed, found, strict=True)}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests cost nothing: two layers are enough."""
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, tested_price=0))


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("case", CASES)
def test_answers(case: str) -> None:
    make, padding = CASES[case]
    model = make(2, 64)
    lowered = lower(model, padding)
    assert {p["kind"] for p in plans(lowered)} >= {"detect", "dense"}
    for n, lengths in ((6, (6, 3, 1)), (1, (1,)), (5, (5, 5)), (4, (4, 0))):
        feeds = fed(model, n, lengths)
        if padding is None:
            check(model, lowered, feeds)
            continue
        (got,) = run_lowered(ir.serde.serialize_model(lowered.model), feeds)
        (want,) = session_of(model).run(None, feeds)
        real = feeds[padding] != 0
        np.testing.assert_allclose(got[real], np.asarray(want)[real], rtol=1e-4, atol=1e-5)
        assert not got[~real].any()


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("n", [12, 40])
@pytest.mark.parametrize(("case", "made"), [("mask per head", 3), ("pair bias", 9)])
def test_live_points_take_no_more_than_what_they_look_at(case: str, made: int, n: int) -> None:
    """The width, of which the heads are a digit, occurs nowhere. Flags are cast to bytes, turned
    and flattened. Of a bias there are besides the model's own product and Transpose, a view for its
    diagonal, two comparisons, and both in one.
    """
    make, padding = CASES[case]
    model = make()
    feeds = fed(model, n, (n, n // 2))
    sizes = sizes_for_live_points(lower(model, padding), feeds)
    tested = 2 * HEADS * n * n
    assert max(sizes.values()) == tested
    assert sum(k == tested for k in sizes.values()) == made
    assert sum(k for k in sizes.values() if k < tested) < 2 * tested


# the price


def refused(model: onnx.ModelProto, padding: str | None) -> set[str]:
    """Reasons of nodes whose live tests cost too much."""
    found = (r.refusal for r in lower(model, padding).report.nodes)
    return {r.reason for r in found if r is not None and r.code is Code.LIVE_TEST}


@pytest.mark.parametrize("case", CASES)
def test_tests_that_cost_more_than_they_save(case: str) -> None:
    """Tests of pairs are paid once, by all layers; two of them save too little in long inputs."""
    make, padding = CASES[case]
    (why,) = refused(make(2), padding)
    assert why.startswith("at sizes of 512, its tests read and make ")
    assert why.endswith("operations: under 160 per byte")
    assert not refused(make(6), padding)


def test_a_cheaper_test_is_left() -> None:
    """Rows that are dead by the mask alone stay packed where the test of pairs is too dear."""
    regions = lower(pair_bias(2), "mask").report.regions
    assert {r.domain for r in regions} == {"rows over ['b', 'n'], dead where mask[d0, d1] == 0"}
    regions = lower(pair_bias(6), "mask").report.regions
    assert any("within 1e3" in r.domain for r in regions)


@pytest.mark.parametrize(
    ("price", "free_bytes", "size"),
    [(0, 0, None), (5, 1 << 16, 512), (50, 1 << 16, 64), (5_000, 0, 16), (5_000, 1 << 40, None)],
)
def test_every_size_class_has_to_pay(
    price: int, free_bytes: int, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = replace(targets.CPU, tested_price=price, tested_free_bytes=free_bytes)
    monkeypatch.setattr(targets, "CPU", cpu)
    found = {why.split(",")[0] for why in refused(mask_per_head(2), None)}
    assert found == (set() if size is None else {f"at sizes of {size}"})


def test_the_hint_is_true_of_both_causes() -> None:
    assert Code.LIVE_TEST.id == "PIT021"
    assert "costs more than it saves, or is not possible in advance" in Code.LIVE_TEST.hint


def test_rows_whose_tests_cannot_be_evaluated() -> None:
    """All that is known of y is a test of more places than there are elements."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[b, s, 32] x, bool[b, s] m, float[32, 32] w) => (float[b, s, 32] y)
        { y = MatMul (x, w) }"""
    graph = Graph(ir.from_proto(onnx.parser.parse_model(text)))
    derive(graph)
    b, s = sym("b"), sym("s")
    row, j, k = dim_index(0, b), atom(Digit(-1, ONE, s)), atom(Digit(-2, ONE, b))
    wide = Region([Test("m", (row, j + k), "nz", False)])
    (node,) = graph.nodes
    graph["y"].dead = [wide]
    (refusal,) = choose_regions(graph).refusals.values()
    assert refusal.code is Code.LIVE_TEST and refusal.node == "y"
    assert refusal.reason == f"evaluating '{wide}' takes more memory than the values that it reads"
    graph["y"].dead = [wide, Region([Test("m", (row, dim_index(1, s)), "nz", False)])]
    found = choose_regions(graph)
    assert found.refusals.get(node) is None or found.refusals[node].code is not Code.LIVE_TEST
