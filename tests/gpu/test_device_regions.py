"""Regions on a GPU that is not there: rows of a mask that the model computes are found by the
device, real kernels on the emulator, in ONNX Runtime.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from models.routed import RoutedConfig, routed
from pitc.ir.gpu_speed import GpuPrices, clock_table
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import CUDA
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.cuda_emulator import ARCH
from tests.device_kernels import emulated_library, save_with
from tests.device_support import (
    Call,
    FakeDriver,
    bind_on_device,
    cuda_node,
    failure,
    on_device,
    session,
    told,
)
from tests.gpu.test_device_contract import CUTS, padded, panels_of
from tests.plan_text import Plan, contract_plan
from tests.runtime_support import BOOL, Array, Value, make_model

FLOAT16 = int(ir.DataType.FLOAT16)
CONFIGS = {
    "relu-float32": RoutedConfig(),
    "gelu-float32": RoutedConfig(activation="gelu"),
    "relu-float16": RoutedConfig(hidden=128, ffn=512, dtype=np.float16),  # ffn nodes
    "gelu-float16": RoutedConfig(activation="gelu", dtype=np.float16),
}
STEPS = dict.fromkeys(CONFIGS, 2) | {"relu-float16": 1}
EXACT = {"tf32": "0"}
WITH_RESIDUAL: dict[str, Any] = {"activation": "none", "residual": 1}
K = 64
"""Columns of regions by hand."""


def lowered(config: RoutedConfig) -> tuple[onnx.ModelProto, Lowered]:
    source = routed(config, np.random.default_rng(0))
    options = LowerOptions(prices=GpuPrices(), target=CUDA, check=True)
    return source, run_passes(ir.from_proto(source), options)


class Routed:
    """A compiled layer of experts, and its source."""

    def __init__(self, config: RoutedConfig) -> None:
        self.config = config
        self.is_ffn = STEPS[f"{config.activation}-{np.dtype(config.dtype)}"] == 1
        source, found = lowered(config)
        self.model = ir.serde.serialize_model(found.model)
        self.kernels = [k for k in found.kernels if k.family not in ("pack", "unpack")]
        self._source = onnxruntime.InferenceSession(
            source.SerializeToString(), providers=["CPUExecutionProvider"]
        )

    @property
    def nodes(self) -> dict[str, list[onnx.NodeProto]]:
        """PIT nodes, by their operation."""
        found: dict[str, list[onnx.NodeProto]] = {}
        for node in self.model.graph.node:
            if node.op_type == "EPContext":
                (line,) = [x for x in plan_of(node).splitlines() if x.startswith("op=")]
                found.setdefault(line.removeprefix("op="), []).append(node)
        return found

    @property
    def regions(self) -> list[onnx.NodeProto]:
        return self.nodes["region"]

    def want(self, x: Array) -> Array:
        return np.asarray(self._source.run(None, {"x": x})[0])

    def tokens(self, *lead: int, experts: tuple[int, ...] = ()) -> Array:
        """Tokens of any experts, or of some."""
        x = np.random.default_rng(len(lead)).standard_normal((*lead, self.config.hidden))
        x = x.astype(np.float32)
        x[..., list(experts)] += 8
        return x


def plan_of(node: onnx.NodeProto) -> str:
    return next(a.s.decode() for a in node.attribute if a.name == "ep_cache_context")


@pytest.fixture(name="layers", scope="module")
def _layers() -> dict[str, Routed]:
    return {name: Routed(config) for name, config in CONFIGS.items()}


@pytest.fixture(name="libraries", scope="module")
def _libraries(layers: dict[str, Routed]) -> dict[str, Path]:
    """One for each type; of float32 with the exact kernels alone."""
    found = {}
    for dtype in ("float32", "float16"):
        own = [k for name in CONFIGS if name.endswith(dtype) for k in layers[name].kernels]
        if dtype == "float16":  # of regions by hand
            own.append(KernelRequest.of_cuda("gather_gemm", dtype, k=K, n=K, **WITH_RESIDUAL))
        without = "mma" if dtype == "float32" else ""
        found[dtype] = emulated_library(*dict.fromkeys(own), without=without)
    return found


@pytest.fixture(name="layer", params=CONFIGS)
def _layer(request: pytest.FixtureRequest, layers: dict[str, Routed]) -> Routed:
    return layers[request.param]


@pytest.fixture(name="library")
def _library(request: pytest.FixtureRequest, libraries: dict[str, Path]) -> Path:
    """That of a layer, or of regions by hand."""
    dtype = np.float16
    if "layer" in request.fixturenames:
        dtype = request.getfixturevalue("layer").config.dtype
    return libraries[str(np.dtype(dtype))]


def _answers(
    folder: Path, library: Path, model: onnx.ModelProto, feeds: list[dict[str, Array]]
) -> tuple[list[list[Array]], list[dict[str, Any]]]:
    """Outputs for each of the feeds, twice the same, and what runs of nodes have moved."""
    path = save_with(folder, library, model, "model.onnx")
    run = session(path, given=EXACT, trace=folder / "trace")
    answers = []
    for feed in feeds:
        answers.append([np.asarray(y) for y in run.run(None, feed)])
        for y, again in zip(answers[-1], run.run(None, feed), strict=True):
            assert np.array_equal(y, again)
    return answers, [line for line in told(folder / "trace") if "downloads" in line]


def test_every_expert_is_one_node(layer: Routed) -> None:
    """No size of packed rows stands in the graph, and the host finds no rows. What experts give is
    added up in one pass, where it is float32.
    """
    counts = {op: len(nodes) for op, nodes in layer.nodes.items()}
    sums = {"elementwise": 1} if layer.config.dtype == np.float32 else {}
    assert counts == {"region": layer.config.experts, **sums}
    name = f"{layer.config.activation}-{np.dtype(layer.config.dtype)}"
    for node in layer.regions:
        lines = plan_of(node).splitlines()
        assert f"steps={STEPS[name]}" in lines
        assert any(".inner=" in x for x in lines) == (STEPS[name] == 1)
    names = {
        d.dim_param for v in layer.model.graph.value_info for d in v.type.tensor_type.shape.dim
    }
    assert not any("live_points" in name for name in names)


def test_routed_tokens(gpu: Call, layer: Routed, library: Path, tmp_path: Path) -> None:
    """Also experts without a token, one with all of them, one token, none, and a batch of none."""
    inputs = [
        layer.tokens(2, 19),
        layer.tokens(1, 33, experts=(1,)),
        layer.tokens(1, 1),
        layer.tokens(0, 5),
        layer.tokens(3, 0),
        layer.tokens(2, 2, experts=(3,)),
    ]
    feeds = [{"x": x} for x in inputs]
    answers, moved = gpu(_answers, tmp_path, library, layer.model, feeds)
    tolerance = 2e-5 if layer.config.dtype == np.float32 else 4e-3
    for x, (y,) in zip(inputs, answers, strict=True):
        np.testing.assert_allclose(y, layer.want(x), rtol=tolerance, atol=tolerance)
    nodes = sum(map(len, layer.nodes.values()))
    assert len(moved) == 2 * len(feeds) * nodes
    traced = 2 if layer.is_ffn else 0  # what was chosen, as somebody wants to know
    assert all(line["downloads"] in (0, traced) for line in moved)


def region_alone(layer: Routed) -> onnx.ModelProto:
    """The first expert's node, whose mask is an input that lies on the device."""
    node = layer.regions[0]
    live, x = node.input[:2]
    kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(layer.config.dtype)))
    shape = ("batch", "sequence", layer.config.hidden)
    constants = [i for i in layer.model.graph.initializer if i.name in node.input]
    made = make_model(
        [node], [(live, BOOL, shape[:2]), (x, kind, shape)], [(node.output[0], kind, None)]
    )
    made.graph.initializer.extend(constants)
    return made


def _counted(
    folder: Path,
    library: Path,
    model: onnx.ModelProto,
    feeds: list[dict[str, Array]],
    variant: str = "",
) -> tuple[dict[str, int], list[Array]]:
    """What the driver counts in the last run, and the answers."""
    path = save_with(folder, library, model, "alone.onnx")
    run = session(path, given=EXACT | {"variant": variant})
    driver, answers = FakeDriver(), []
    counted: list[dict[str, int]] = []
    for feed in feeds:
        binding = run.io_binding()
        for name, x in feed.items():
            binding.bind_ortvalue_input(name, on_device(x))
        bind_on_device(binding, model.graph.output[0].name)
        with driver.counted() as counts:
            run.run_with_iobinding(binding)
        counted.append(counts)
        answers.append(binding.get_outputs()[0].numpy())
    return counted[-1], answers


@pytest.mark.parametrize("variant", ["", *CUTS])
def test_nobody_waits(
    gpu: Call, layer: Routed, library: Path, tmp_path: Path, variant: str
) -> None:
    """Other masks come, and nothing is copied either way; the one wait is ONNX Runtime's, at the
    end of a run. Whatever variant is chosen, it sees the rows that live and no others.
    """
    model = region_alone(layer)
    live, x = (value.name for value in model.graph.input)
    rng = np.random.default_rng(3)
    tokens = rng.standard_normal((3, 13, layer.config.hidden)).astype(layer.config.dtype)
    masks = [rng.random((3, 13)) < share for share in (0.5, 0.0, 1.0, 0.2)]
    feeds = [{live: mask, x: tokens} for mask in masks]
    counts, answers = gpu(_counted, tmp_path, library, model, feeds, variant)
    names = ("copies_up", "copies_down", "copies_across", "waits", "fills")
    assert [counts[name] for name in names] == [0, 0, 0, 1, 1]
    looks = layer.is_ffn and variant in CUTS[1:]
    assert counts["launches"] == (9 if looks else 3) or (layer.is_ffn and not variant)
    if variant and not layer.is_ffn:
        return  # a variant is nothing to it
    whole = answers[2]
    for mask, y in zip(masks, answers, strict=True):
        np.testing.assert_array_equal(y, np.where(mask[..., None], whole, 0))
    assert np.count_nonzero(whole) > whole.size // 2


# ---- regions by hand


def product(reads: str, **fields: int) -> dict[str, Any]:
    """A step of a region: float16, K columns in and out."""
    clocks = {f"clocks_{ARCH}": dict(clock_table("float16"))[f"clocks_{ARCH}"]}
    plan = contract_plan("cuda", k=K, n=K, bias=1, dtype="float16", **clocks, **fields)
    return {key: x for key, x in plan.fields if key != "library"} | {"reads": reads}


def region(gives: str, *steps: dict[str, Any]) -> Plan:
    """The plan of a region."""
    named = {f"step{i}.{key}": value for i, step in enumerate(steps) for key, value in step.items()}
    kernels = "counts:live_counts,points:live_points"
    top = {"gives": gives, "kernels": kernels, "library": "kernels.so", "steps": len(steps)}
    return Plan("region", tuple({**top, **named}.items()))


def by_hand(plan: Plan, weights: int, outputs: int) -> onnx.ModelProto:
    """A model of one region; numbers are small and whole, so nothing is rounded."""
    rng = np.random.default_rng(9)
    names = [name for i in range(weights) for name in (f"w{i}", f"b{i}")]
    constants = {}
    for i in range(weights):
        constants[f"w{i}"] = panels_of(matrix(rng), ir.DataType.FLOAT16)
        constants[f"b{i}"] = padded(np.arange(K, dtype=np.float32) % 3 - 1)
    lead: list[str | int] = ["b", "s"]
    inputs: list[Value] = [("live", BOOL, lead), ("x", FLOAT16, [*lead, K])]
    ends = [f"y{i}" for i in range(outputs)]
    node = cuda_node("r", plan, ["live", "x", *names], ends)
    return make_model([node], inputs, [(y, FLOAT16, None) for y in ends], (), constants)


def matrix(rng: np.random.Generator) -> Array:
    """Few ones, of both signs."""
    return (rng.integers(-1, 2, (K, K)) * (rng.random((K, K)) < 0.05)).astype(np.float32)


def weights_of(count: int) -> list[Array]:
    rng = np.random.default_rng(9)
    return [matrix(rng) for _ in range(count)]


BIAS = np.arange(K) % 3 - 1.0
Expected = Callable[[Array, list[Array]], list[Array]]
HAND: dict[str, tuple[Plan, int, int, Expected]] = {
    "one step": (
        region("0", product("1,2,3,rows,0", gather=1, scatter=1)),
        1,
        1,
        lambda x, w: [x @ w[0] + BIAS],
    ),
    "a residual of packed rows": (
        region(
            "2",
            product("1,2,3,rows,0", gather=1),
            product("s0,4,5"),
            product("s1,2,3,s0,rows,0", scatter=1, residual=1),
        ),
        2,
        1,
        lambda x, w: [((x @ w[0] + BIAS) @ w[1] + BIAS) @ w[0] + BIAS + (x @ w[0] + BIAS)],
    ),
    "two results": (
        region(
            "1,2",
            product("1,2,3,rows,0", gather=1),
            product("s0,4,5,rows,0", scatter=1),
            product("s0,2,3,rows,0", scatter=1),
        ),
        2,
        2,
        lambda x, w: [(x @ w[0] + BIAS) @ w[1] + BIAS, (x @ w[0] + BIAS) @ w[0] + BIAS],
    ),
    "a whole result that is read again": (
        region(
            "1",
            product("1,2,3,rows,0", gather=1, scatter=1),
            product("s0,4,5,rows,0", gather=1, scatter=1),
        ),
        2,
        1,
        lambda x, w: [(x @ w[0] + BIAS) @ w[1] + BIAS],
    ),
}


def small(lead: tuple[int, int], share: float) -> dict[str, Array]:
    rng = np.random.default_rng([*lead, int(share * 100)])
    x = rng.integers(-2, 3, (*lead, K)).astype(np.float16)
    return {"live": rng.random(lead) < share, "x": x}


SHAPES = [((3, 13), 0.5), ((1, 1), 1.0), ((2, 40), 0.0), ((0, 7), 0.5), ((4, 0), 0.5), ((1, 65), 1)]


@pytest.mark.parametrize("name", HAND)
def test_regions_by_hand(gpu: Call, library: Path, tmp_path: Path, name: str) -> None:
    plan, weights, outputs, expected = HAND[name]
    feeds = [small(lead, share) for lead, share in SHAPES]
    answers, moved = gpu(_answers, tmp_path, library, by_hand(plan, weights, outputs), feeds)
    for feed, answer in zip(feeds, answers, strict=True):
        want = expected(feed["x"].astype(np.float64), weights_of(weights))
        for y, whole in zip(answer, want, strict=True):
            np.testing.assert_array_equal(y, np.where(feed["live"][..., None], whole, 0))
    assert all(line["downloads"] == 0 for line in moved)


def test_many_points_are_counted_first(gpu: Call, library: Path, tmp_path: Path) -> None:
    """Two launches; few rows live, so that the products are quick."""
    plan, weights, outputs, expected = HAND["one step"]
    feed = small((5, 3400), 0.01)
    model = by_hand(plan, weights, outputs)
    counts, (y,) = gpu(_counted, tmp_path, library, model, [feed])
    (whole,) = expected(feed["x"].astype(np.float64), weights_of(weights))
    np.testing.assert_array_equal(y, np.where(feed["live"][..., None], whole, 0))
    assert counts["launches"] == 3


# ---- errors


def _errors(folder: Path, library: Path) -> None:
    plan, weights, outputs, _ = HAND["a residual of packed rows"]
    made = by_hand(plan, weights, outputs)
    run = session(save_with(folder, library, made, "m.onnx"))

    def text(**feed: Array) -> str:
        return failure(lambda: run.run(None, small((3, 4), 0.5) | feed))

    begin = "pitc: node 'r' (region): "
    x = np.zeros((3, 5, K), np.float16)
    assert (
        f"{begin}step 0: expected a as float16 [3, 4, {K}] (one row per point of the "
        f"mask), got float16 [3, 5, {K}]" in text(x=x)
    )

    def refused(old: str, new: str, made: onnx.ModelProto = made) -> str:
        wrong = onnx.ModelProto()
        wrong.CopyFrom(made)
        for attribute in wrong.graph.node[0].attribute:
            if attribute.name == "ep_cache_context":
                assert old in attribute.s.decode()
                attribute.s = attribute.s.decode().replace(old, new).encode()
        return failure(lambda: session(save_with(folder, library, wrong, "w.onnx")))

    assert "expected gives without packed rows, got step 1" in refused("gives=2", "gives=1,2")
    assert "expected kernel 'gather_gemm_none_loose_f16_mma" in refused(
        "step1.kernels=dense:gather_gemm_none_f16",
        "step1.kernels=dense:gather_gemm_none_loose_f16",
    )
    wrong = by_hand(plan, weights, outputs)
    for attribute in wrong.graph.node[0].attribute:
        if attribute.name == "source":
            attribute.s = b"PitExecutionProvider"
    assert "choose_channels, got 'region'" in refused("gives=2", "gives=2", wrong)


def test_what_is_wrong_is_told(gpu: Call, library: Path, tmp_path: Path) -> None:
    gpu(_errors, tmp_path, library)
