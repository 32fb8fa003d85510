"""Convolutions, pooling and the like on live images only, against ONNX Runtime."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from models.graph import GraphBuilder
from pitc import compile as compile_model
from pitc.ir import target as targets
from pitc.ir.expr import Read
from pitc.ir.graph import NodeView
from pitc.ir.refusal import Code, Refusal
from pitc.passes.facts.total import is_total
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from pitc.passes.regions import items as items_of
from pitc.passes.rules.record import OPERATORS, Items
from tests.fact_check import proven
from tests.plan_reference import parse
from tests.random_check import lowering_everything
from tests.random_nodes import run_nodes, session_of
from tests.record_twin import twin
from tests.rule_proof import Const, Sample, analysed, array_of, node_model
from tests.rule_samples import SAMPLES

Array = np.ndarray
RNG = np.random.default_rng(0)
NUMBERS: dict[str, Array] = {
    "w": RNG.normal(size=(8, 4, 3, 3)),
    "again": RNG.normal(size=(8, 8, 3, 3)) / 8,
    "narrow": RNG.normal(size=(8, 2, 3, 3)) / 4,
    "turned": RNG.normal(size=(8, 6, 2, 2)) / 8,
    "bias": RNG.normal(size=8),
    "scale": RNG.uniform(0.5, 1.5, 8),
    "vote": RNG.normal(size=(1, 8)),
    "step": np.asarray(0.1),
    "steps": RNG.uniform(0.05, 0.1, 8),
    "twice": np.asarray([1, 1, 2, 2.0]),
}
INTEGERS: dict[str, tuple[type[np.generic], object]] = {
    "u": (np.uint8, 128),
    "us": (np.uint8, [3] * 8),
    "uw": (np.uint8, RNG.integers(0, 256, (8, 8, 3, 3))),
    "sides": (np.int64, [2, 3]),
    "one": (np.int64, [1]),
    "last": (np.int64, [3]),
    "first": (np.int64, 0),
    "places": (np.int64, 2),
    "border": (np.int64, [0, 0, 1, 1, 0, 0, 1, 1]),
    "of_each": (np.int64, [0, -1]),
    "of_all": (np.int64, [-1, 512]),
    "square": (np.int64, [0, 0, 8, 8]),
    "five": (np.int64, [5, 512]),
    "five_larger": (np.int64, [5, 8, 16, 16]),
    "larger": (np.int64, [16, 16]),
}
MODEL = """
<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
model (float[{images}, 4, 8, 8] x, float[{images}] mask) => (float[n, k] y{outputs})
{{
    h = Conv <pads = [1, 1, 1, 1]> (x, w)
    {body}
    rows = Flatten (found)
    live = Unsqueeze (mask, one)
    y = Mul (rows, live)
}}
"""
PADS = "pads = [1, 1, 1, 1]"
BODIES = {
    "Conv": f"found = Conv <{PADS}> (h, again, bias)",
    "Conv of groups": f"found = Conv <{PADS}, group = 4> (h, narrow)",
    "Conv with strides": "found = Conv <strides = [2, 2], dilations = [2, 1]> (h, again)",
    "FusedConv": f'found = com.microsoft.FusedConv <{PADS}, activation = "Relu"> (h, again)',
    "ConvTranspose": "found = ConvTranspose <strides = [2, 2]> (h, turned)",
    "ConvInteger": """q = QuantizeLinear (h, step, u)
        c = ConvInteger (q, uw, u)
        found = Cast <to = 1> (c)""",
    "QLinearConv": """q = QuantizeLinear (h, step, u)
        c = QLinearConv (q, step, u, uw, step, u, step, u)
        found = DequantizeLinear (c, step, u)""",
    "MaxPool": "found = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (h)",
    "MaxPool, places unread": "found, places = MaxPool <kernel_shape = [2, 2]> (h)",
    "AveragePool": f"found = AveragePool <kernel_shape = [3, 3], {PADS}> (h)",
    "LpPool": "found = LpPool <kernel_shape = [2, 2]> (h)",
    "GlobalAveragePool": "found = GlobalAveragePool (h)",
    "GlobalMaxPool": "found = GlobalMaxPool (h)",
    "GlobalLpPool": "found = GlobalLpPool (h)",
    "LRN": "found = LRN <size = 3> (h)",
    "BatchNormalization": "found = BatchNormalization (h, scale, bias, bias, scale)",
    "InstanceNormalization": "found = InstanceNormalization (h, scale, bias)",
    "GroupNormalization": "found = GroupNormalization <num_groups = 2> (h, scale, bias)",
    "DepthToSpace": "found = DepthToSpace <blocksize = 2> (h)",
    "SpaceToDepth": "found = SpaceToDepth <blocksize = 2> (h)",
    "Resize": 'found = Resize <mode = "linear"> (h, , twice)',
    "Resize to sizes": 'found = Resize <mode = "cubic", axes = [2, 3]> (h, , , larger)',
    "Pad": "found = Pad (h, border)",
    "CumSum": "found = CumSum (h, places)",
    "Per channel": """q = QuantizeLinear <axis = 1> (h, steps, us)
        found = DequantizeLinear <axis = 1> (q, steps, us)""",
    "Squeezed channels": """s = GlobalAveragePool (h)
        gate = Sigmoid (s)
        found = Mul (h, gate)""",
    "Reshape": "flat = Reshape (h, of_each)\nfound = Reshape (flat, of_all)",
    "Softmax": "found = Softmax <axis = 1> (h)",
    "ReduceMean": "found = ReduceMean <keepdims = 0> (h, sides)",
    "Concat": f"""c = Conv <{PADS}> (h, again)
        found = Concat <axis = 1> (h, c, h)""",
    "Slice": "found, rest = Split <axis = 1, num_outputs = 2> (h)",
    "Without a size": """sizes = Shape (h)
        few = MaxPool <kernel_shape = [8, 8]> (h)
        found = Expand (few, sizes)""",
    **{
        f"{op}, axis from the {end}": f"""top = ReduceMax (h, last)
        best = {op} <axis = {axis}, keepdims = 0> (top)
        other = Transpose <perm = [0, 2, 1]> (best)
        found = Cast <to = 1> (other)"""
        for op in ("ArgMax", "ArgMin")
        for end, axis in (("front", 3), ("end", -1))
    },
    "ArgMax of several": """best = ArgMax <axis = -1, keepdims = 0> (h)
        other = Transpose <perm = [0, 2, 1]> (best)
        found = Cast <to = 1> (other)""",
    "GridSample": """turn = Transpose <perm = [0, 2, 3, 1]> (h)
        half = ReduceMax <keepdims = 1> (turn, last)
        pair = Concat <axis = 3> (half, half)
        grid = Tanh (pair)
        found = GridSample (h, grid)""",
}
REFUSED = {  # body, images, the operator, its code
    "MaxPool, places read": (
        "p, places = MaxPool <kernel_shape = [2, 2]> (h)\nfound = Conv (p, again)",
        "MaxPool",
        Code.NO_LOWERING,
    ),
    "Resize names the batch": (
        'found = Resize <coordinate_transformation_mode = "asymmetric"> (h, , , five_larger)',
        "Resize",
        Code.NO_LOWERING,
    ),
    "images are not in front": (
        """channels = Transpose <perm = [1, 0, 2, 3]> (h)
        sums = CumSum (channels, first)
        found = Transpose <perm = [1, 0, 2, 3]> (sums)""",
        "CumSum",
        Code.NO_LOWERING,
    ),
    "runs on no images": (
        'found = Einsum <equation = "bchw->bhcw"> (h)',
        "Einsum",
        Code.NO_LOWERING,
    ),
}


FRAMES = """
<ir_version: 10, opset_import: ["": 21]>
frames (float[b, s, 4, 8, 8] x, float[b, s] mask) => (float[b, s, 8] y)
<int64[4] as_images = {-1, 4, 8, 8}, int64[1] none = {0}, int64[1] two = {2},
 int64[1] eight = {8}>
{
    sizes = Shape <end = 2> (x)
    images = Reshape (x, as_images)
    c = Conv <pads = [1, 1, 1, 1]> (images, w)
    p = MaxPool <kernel_shape = [2, 2]> (c)
    d = Conv (p, again)
    m = GlobalMaxPool (d)
    target = Concat <axis = 0> (sizes, eight)
    rows = Reshape (m, target)
    live = Unsqueeze (mask, two)
    y = Mul (rows, live)
}
"""
GATED = """
<ir_version: 10, opset_import: ["": 21]>
gated (float[b, 4, 8, 8] x, float low) => (float[b, 512] y, bool[b, 1] keep)
<float none = {-1.0}>
{
    trunk = Conv <pads = [1, 1, 1, 1]> (x, w)
    few = GlobalAveragePool (trunk)
    flat = Flatten (few)
    score = Gemm <transB = 1> (flat, vote)
    keep = Greater (score, low)
    c = Conv <pads = [1, 1, 1, 1]> (trunk, again)
    d = Relu (c)
    e = Conv <pads = [1, 1, 1, 1]> (d, again)
    rows = Flatten (e)
    y = Where (keep, rows, none)
}
"""


def build(body: str, images: str | int = "b", outputs: str = "") -> onnx.ModelProto:
    return with_numbers(
        onnx.parser.parse_model(MODEL.format(body=body, images=images, outputs=outputs))
    )


def with_numbers(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the constants that it reads."""
    arrays = {name: x.astype(np.float32) for name, x in NUMBERS.items()}
    arrays |= {name: np.asarray(x, dtype) for name, (dtype, x) in INTEGERS.items()}
    read = {name for node in model.graph.node for name in node.input}
    for name in sorted(read & set(arrays)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(arrays[name], name))
    return model


def lower(model: onnx.ModelProto) -> Lowered:
    with lowering_everything():
        return run_passes(ir.serde.deserialize_model(model), LowerOptions())


def ordinary(lowered: Lowered) -> list[str]:
    """Operators that are not needed for some images, and run for all."""
    kept = (r for r in lowered.report.nodes if r.lowering == "ordinary")
    return [r.op_type for r in kept if any(d.startswith("mask[") for d in r.dead)]


def plans(lowered: Lowered) -> list[str]:
    texts = (n.attributes.get("ep_cache_context") for n in lowered.model.graph)
    return [parse(t.as_string())["op"] for t in texts if t is not None]


def masks(images: int) -> Iterator[Array]:
    """No image, the last one, some, all."""
    last = np.zeros(images, np.float32)
    last[-1:] = 1
    some = (np.arange(images) % 3 != 1).astype(np.float32)
    yield from (0 * last, last, some, np.ones(images, np.float32))


def feeds(images: int) -> Iterator[dict[str, Array]]:
    x = np.random.default_rng(images).normal(size=(images, 4, 8, 8)).astype(np.float32)
    yield from ({"x": x, "mask": mask} for mask in masks(images))


def assert_same(model: onnx.ModelProto, lowered: Lowered, *batches: int) -> None:
    session, found = session_of(model), ir.serde.serialize_model(lowered.model)
    onnx.checker.check_model(found)
    for feed in (f for images in batches for f in feeds(images)):
        got = run_nodes(found, feed)
        for y, want in zip(got, session.run(None, feed), strict=True):
            np.testing.assert_allclose(y, np.asarray(want), rtol=1e-4, atol=1e-4)
        assert not got[0][feed["mask"] == 0].any()


@pytest.mark.parametrize("images", ["b", 5, 1])
@pytest.mark.parametrize("case", BODIES)
def test_an_operator_runs_on_live_images(case: str, images: str | int) -> None:
    model = build(BODIES[case], images)
    lowered = lower(model)
    if (case, images) != ("GroupNormalization", 1):  # its scale, [1, c, 1, 1], is an image too
        assert ordinary(lowered) == []
        assert sorted(plans(lowered)) == ["detect", "pack", "unpack"]
    assert_same(model, lowered, *((5, 1) if isinstance(images, str) else (images,)))


@pytest.mark.parametrize("case", [c for c in BODIES if "Conv" in c or "Pool" in c or "Norm" in c])
def test_the_facts_hold(case: str) -> None:
    graph = proven(build(BODIES[case]), sizes={"b": 4})
    assert graph["h"].dead and graph["x"].dead


@pytest.mark.parametrize("case", REFUSED)
def test_an_operator_is_refused(case: str) -> None:
    body, op, code = REFUSED[case]
    more = ", int64[n, 8, 4, 4] places" if "places" in body else ""
    model = build(body, 5, more)
    lowered = lower(model)
    (record,) = [r for r in lowered.report.nodes if r.op_type == op]
    assert record.dead and record.refusal is not None and record.refusal.code is code
    assert_same(model, lowered, 5)


def test_a_shape_that_names_the_batch_is_crossed() -> None:
    """The packed rows are reshaped to what stays, and not to five images."""
    body = "flat = Reshape (h, five)\nfound = Reshape (flat, of_all)"
    model = build(body, 5)
    lowered = lower(model)
    assert ordinary(lowered) == []
    assert_same(model, lowered, 5)


def test_nothing_is_known_of_a_batch_that_may_be_another() -> None:
    model = build("found = Reshape (h, five)", "b")
    lowered = lower(model)
    assert plans(lowered) == []
    assert_same(model, lowered, 5)


def test_frames_of_padded_films_are_images() -> None:
    """Both coordinates of a frame, film and place, lie in dimension 0 of the images."""
    model = with_numbers(onnx.parser.parse_model(FRAMES))
    lowered = lower(model)
    assert [r.node for r in lowered.report.nodes if r.lowering == "packed"] == [
        *("images", "c", "p", "d", "m", "rows")
    ]
    session, found = session_of(model), ir.serde.serialize_model(lowered.model)
    rng = np.random.default_rng(3)
    for shape, live in (((2, 3), 0.5), ((3, 1), 0.0), ((1, 4), 1.0)):
        x = rng.normal(size=(*shape, 4, 8, 8)).astype(np.float32)
        feed = {"x": x, "mask": (rng.random(shape) < live).astype(np.float32)}
        want = np.asarray(session.run(None, feed)[0])
        np.testing.assert_allclose(run_nodes(found, feed)[0], want, rtol=1e-4, atol=1e-4)


def test_images_that_others_read_whole_are_gathered() -> None:
    """A small network decides which images a large one looks at."""
    model = with_numbers(onnx.parser.parse_model(GATED))
    lowered = lower(model)
    packed_nodes = {r.node for r in lowered.report.nodes if r.lowering == "packed"}
    assert {"c", "d", "e", "rows"} <= packed_nodes and not {"trunk", "few"} & packed_nodes
    assert sorted(plans(lowered)) == ["detect", "pack", "unpack"]
    session, found = session_of(model), ir.serde.serialize_model(lowered.model)
    shares = set()
    for low in (-1e3, 0.0, 1e3):
        x = np.random.default_rng(2).normal(size=(9, 4, 8, 8)).astype(np.float32)
        feed = {"x": x, "low": np.asarray(low, np.float32)}
        want, keep = map(np.asarray, session.run(None, feed))
        np.testing.assert_allclose(run_nodes(found, feed)[0], want, rtol=1e-4, atol=1e-4)
        shares.add(float(np.mean(keep)))
    assert shares > {0.0, 1.0}


def of_rule(sample: Sample) -> set[int]:
    """Operands that a sample takes fewer items of; none where it has no such form."""
    graph = analysed(sample)
    expr = graph["y0"].expr
    if expr is None:
        return set()
    items = items_of.item_operands(NodeView(graph, graph.nodes[0]), expr)
    return set() if isinstance(items, Refusal) else items


def wrong_on_fewer(sample: Sample) -> list[str]:
    """How the node on some of its items differs from those items of its result."""
    items = of_rule(sample)
    if not items:
        return []
    graph = analysed(sample)
    said = items_of.item_attributes(NodeView(graph, graph.nodes[0]))
    sample = replace(sample, attributes={**sample.attributes, **said})
    fixed = [i for i, x in enumerate(sample.operands) if isinstance(x, Const) and i not in items]
    model = node_model(sample, fixed, symbolic=True)
    for value in model.graph.input:  # another number of items may come for any of them
        value.type.tensor_type.ClearField("shape")
    given = {i: array_of(x) for i, x in enumerate(sample.operands) if x is not None}
    fed = {i: x for i, x in given.items() if i not in fixed}
    try:
        session = session_of(model)
        whole = session.run(["y0"], {f"x{i}": x for i, x in fed.items()})[0]
    except Exception:  # kernels exist for some types only
        return []
    wrong, n = [], len(np.asarray(whole))
    for chosen in ([], [n - 1], list(range(0, n, 2))):
        feed = {f"x{i}": x[chosen] if i in items else x for i, x in fed.items()}
        try:
            got = np.asarray(session.run(["y0"], feed)[0])
        except Exception as error:
            wrong.append(f"{sample.title} {chosen}: {error}")
            continue
        want = np.asarray(whole)[chosen]
        if got.shape != want.shape or not np.allclose(got, want, 1e-4, 1e-5, equal_nan=True):
            wrong.append(f"{sample.title} {chosen}: {got.shape} for {want.shape}")
    return wrong


def test_every_operator_with_this_form_computes_items_one_by_one() -> None:
    assert [text for sample in SAMPLES for text in wrong_on_fewer(sample)] == []
    assert len({s.op for s in SAMPLES if of_rule(s)}) > 130


@pytest.mark.parametrize("op", ["EmbedLayerNormalization", "GroupNormalization", "Reshape"])
def test_operators_that_need_their_items_are_listed(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for domain, name in OPERATORS:
        if name == op:
            twin(monkeypatch, op, domain, items=Items.ANY)
    assert any(wrong_on_fewer(sample) for sample in SAMPLES if sample.op == op)


def test_items_are_counted_by_dimension_0_alone() -> None:
    graph = analysed(Sample("Neg", (RNG.normal(size=(3, 3)).astype(np.float32),)))
    expr = graph["y0"].expr
    assert expr is not None
    (read,) = expr.reads
    node = NodeView(graph, graph.nodes[0])
    assert items_of.item_operands(node, expr) == {0}
    diagonal = replace(expr, reads=(Read(0, (read.index[0], read.index[0])),))
    refusal = items_of.item_operands(node, diagonal)
    assert isinstance(refusal, Refusal) and refusal.code is Code.LAYOUT


@pytest.mark.parametrize("op", ["Expand", "Resize", "Squeeze"])
def test_the_rule_is_asked_about_another_number_of_items(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items_of, "_any_number", lambda *_: True)
    assert any(wrong_on_fewer(sample) for sample in SAMPLES if sample.op == op)


def at_zero(sample: Sample) -> tuple[bool, bool] | None:
    """Whether a sample counts as total in operand 0, and is finite where that is 0; None where
    ONNX Runtime does not run it.
    """
    graph = analysed(sample)
    fixed = [i for i, x in enumerate(sample.operands) if isinstance(x, Const)]
    given = {i: array_of(x) for i, x in enumerate(sample.operands) if x is not None}
    if graph["y0"].expr is None or not given or given[0].dtype.kind != "f" or 0 in fixed:
        return None
    total = is_total(graph, graph.nodes[0], {"x0"})
    feed = {f"x{i}": x if i else 0 * x for i, x in given.items() if i not in fixed}
    try:
        y = np.asarray(session_of(node_model(sample, fixed, symbolic=False)).run(["y0"], feed)[0])
    except Exception:  # kernels exist for some types only
        return None
    return total, y.dtype.kind != "f" or bool(np.isfinite(y).all())


X = RNG.normal(size=(2, 8, 4, 4)).astype(np.float32)
NOT_TOTAL = (
    Sample("InstanceNormalization", (X, X[0, :, 0, 0], X[0, :, 0, 1]), {"epsilon": 0.0}),
    Sample("LRN", (X,), {"size": 3, "bias": 0.0}),
    Sample("HardSigmoid", (X,), {"alpha": np.inf}),
    Sample("MeanVarianceNormalization", (X,)),
)


def test_zeros_of_dead_images_stay_finite() -> None:
    found = [(s, at_zero(s)) for s in (*SAMPLES, *NOT_TOTAL)]
    assert [s.title for s, result in found if result == (True, False)] == []
    assert {s.op for s, result in found if result == (True, True)} >= {
        *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GroupNormalization"),
        *("InstanceNormalization", "LRN", "LpPool", "Pad", "ReduceL2", "Resize"),
    }
    assert [at_zero(s) for s in NOT_TOTAL[:3]] == [(False, False)] * 3


def classifier(images: str | int, head: str, width: tuple[int, ...] = (64, 128)) -> onnx.ModelProto:
    """Residual blocks, pooling and logits that a mask multiplies."""
    g, rng = GraphBuilder("classifier", 17), np.random.default_rng(5)

    def weight(*shape: int) -> str:
        x = rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))
        return g.weight(f"w{len(g._weights)}", x.astype(np.float32))

    def normalised(x: str, channels: int) -> str:
        parts = [
            g.weight(f"n{len(g._weights)}", rng.uniform(0.5, 1.5, channels).astype(np.float32))
            for _ in range(4)
        ]
        return g.op("BatchNormalization", x, *parts)

    def conv(x: str, before: int, after: int, size: int, stride: int) -> str:
        x = g.op(
            "Conv", x, weight(after, before, size, size), strides=[stride] * 2, pads=[size // 2] * 4
        )
        return normalised(x, after)

    x, channels = g.input("x", np.float32, (images, 4, 8, 8)), 4
    for n in width:
        inner = g.op("Relu", conv(x, channels, n, 3, 2))
        x = g.op("Add", conv(inner, n, n, 3, 1), conv(x, channels, n, 1, 2))
        x, channels = g.op("Relu", x), n
    if head == "pool":
        rows = g.op("Flatten", g.op("GlobalAveragePool", x))
    elif head == "mean":
        rows = g.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    else:
        x = g.op("MaxPool", x, kernel_shape=[2, 2])
        target = {"copied": [0, -1], "left": [-1, channels], "named": [images, -1]}[head]
        rows = g.op("Reshape", x, g.const(target, np.int64))
    logits = g.op("Gemm", rows, weight(10, channels), weight(10), transB=1)
    mask = g.input("mask", np.float32, (images,))
    y = g.op("Mul", logits, g.op("Unsqueeze", mask, g.ints(1)))
    g.output(y, "y", np.float32, (images, 10))
    return g.model()


@pytest.mark.parametrize(
    ("images", "head"),
    [("b", "pool"), ("b", "mean"), ("b", "copied"), ("b", "left"), (5, "named"), (5, "pool")],
)
def test_a_classifier_is_one_region(
    images: str | int, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pack in front of the first convolution, one unpack of the logits."""
    small = replace(targets.CPU, copied_start_bytes=0)
    monkeypatch.setattr(targets, "CPU", small)
    model = classifier(images, head)
    compiled = compile_model(model)
    report = compiled.report
    assert [r.op_type for r in report.nodes if r.lowering == "ordinary"] == ["Unsqueeze", "Mul"]
    (region,) = report.regions
    assert region.bytes_per_row == 4 * (4 * 8 * 8 + 10)
    session = session_of(model)
    for batch in (5,) if images == 5 else (7, 1):
        every = None
        for feed in reversed(list(feeds(batch))):
            live = feed["mask"] != 0
            (y,) = compiled.run(feed).values()
            want = np.asarray(session.run(None, feed)[0])
            np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
            every = y if every is None else every
            assert not y[~live].any()
            if live.sum() != 1:  # a single row goes through another kernel of Gemm
                np.testing.assert_array_equal(y[live], every[live])  # whoever else is live


def test_no_images_at_all() -> None:
    model = classifier("b", "pool")
    (feed,) = [f for f in feeds(0)][:1]
    (y,) = compile_model(model).run(feed).values()
    assert y.shape == np.asarray(session_of(model).run(None, feed)[0]).shape == (0, 10)


def filters(
    channels: int, layers: int, size: int, images: str | int, *, window: int = 3, rows: bool = False
) -> onnx.ModelProto:
    """Convolutions of equal width; images leave them, or rows of a product behind."""
    g = GraphBuilder("filters", 17)
    x, mask = g.input("x", np.float32, (images, channels, size, size)), "mask"
    g.input(mask, np.float32, (images,))
    for k in range(layers):
        weight = np.zeros((channels, channels, window, window), np.float32)
        x = g.op("Conv", x, g.weight(f"w{k}", weight), pads=[window // 2] * 4)
    if rows:
        x = g.op("Flatten", g.op("GlobalAveragePool", x))
        x = g.op("MatMul", x, g.weight("head", np.zeros((channels, 16), np.float32)))
    live = g.op("Unsqueeze", mask, g.ints(*range(1, 2 if rows else 4)))
    shape = (images, 16) if rows else (images, channels, size, size)
    g.output(g.op("Mul", x, live), "y", np.float32, shape)
    return g.model()


@pytest.mark.parametrize(
    ("model", "pays"),
    [
        (filters(64, 3, 28, "b"), False),
        (filters(64, 4, 28, "b"), True),
        (filters(64, 2, 28, "b", rows=True), True),  # half as much is copied
        (filters(32, 3, 28, "b", rows=True), False),
        (filters(256, 4, 14, 64, window=1), False),
        (filters(512, 5, 14, 64, window=1), True),
        (filters(32, 10, 5, 8), False),  # the copies are small, and so is everything
        (filters(32, 10, 5, 64), True),
    ],
)
def test_images_are_copied_where_that_is_little_of_the_work(
    model: onnx.ModelProto, pays: bool
) -> None:
    report = run_passes(ir.serde.deserialize_model(model), LowerOptions()).report
    codes = [r.refusal and r.refusal.code for r in report.nodes if r.op_type == "Conv"]
    assert set(codes) == {None if pays else Code.NO_GAIN}
    assert len(report.regions) == pays


def test_rows_of_products_keep_their_price() -> None:
    """They are gathered and scattered by the product itself."""
    g = GraphBuilder("rows", 17)
    x = g.op(
        "MatMul", g.input("x", np.float32, ("b", 160)), g.weight("w", np.zeros((160, 160), "f"))
    )
    mask = g.op("Unsqueeze", g.input("mask", np.float32, ("b",)), g.ints(1))
    g.output(g.op("Mul", x, mask), "y", np.float32, ("b", 160))
    report = run_passes(ir.serde.deserialize_model(g.model()), LowerOptions()).report
    (region,) = report.regions
    share = region.flops_per_row / region.bytes_per_row
    assert targets.CPU.flops_per_byte < share < 2 * targets.CPU.flops_per_byte
