"""Sampled products in a session: C where a mask is not 0, the same bits from every variant."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.library import build_kernels
from pitc.ir.kernel import KernelRequest
from tests.codegen_kernels import LEVELS, bits
from tests.plan_reference import run_lowered
from tests.plan_text import Field, contract_plan
from tests.runtime_support import (
    BOOL,
    FLOAT,
    Array,
    Value,
    answers_on_eight_threads,
    creation_error,
    make_model,
    pit_node,
    quiet_options,
    save,
    session,
    use_built_provider,
)

pytest.importorskip("onnxruntime")
pytest.importorskip("tvm")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

#: (K, N): single ones, a word and a bit of the mask, several blocks of sums and panels.
SIZES = ((1, 1), (5, 64), (65, 65), (517, 150), (400, 2100))
VARIANTS = ("dense", "row", "block16", "block32", "block64")
#: With these each variant is the fastest somewhere; what they mean does not matter here.
COSTS: Mapping[str, Field] = {
    **{f"cost_dense_{x}": (1000, 0, 0, 0, 0, 10, 100, 50) for x in ("v3", "v4")},
    **{f"cost_row_{x}": (2000, 5, 20, 0, 0, 20, 180, 90) for x in ("v3", "v4")},
    **{f"cost_tile8_{x}": (1, 0, 0, 0, 0, 0, 0, 0) for x in ("v3", "v4")},
    **{f"cost_block16_{x}": (2000, 5, 8, 0, 0, 20, 152, 80) for x in ("v3", "v4")},
    **{f"cost_block32_{x}": (2000, 5, 8, 0, 0, 20, 150, 80) for x in ("v3", "v4")},
    **{f"cost_block64_{x}": (2000, 5, 8, 0, 0, 20, 148, 80) for x in ("v3", "v4")},
}
TYPES: dict[str, tuple[int, Any]] = {
    "bool": (TensorProto.BOOL, np.bool_),
    "int8": (TensorProto.INT8, np.int8),
    "int16": (TensorProto.INT16, np.int16),
    "float16": (TensorProto.FLOAT16, np.float16),
    "int32": (TensorProto.INT32, np.int32),
    "float32": (TensorProto.FLOAT, np.float32),
    "int64": (TensorProto.INT64, np.int64),
    "float64": (TensorProto.DOUBLE, np.float64),
}


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and its operands by numpy."""

    k: int
    n: int
    right: str

    def requests(self) -> list[KernelRequest]:
        plain: dict[str, Any] = {"activation": "none", "residual": 0, "factor": 0}
        families = ("gather_gemm", "contract_block")
        return [
            KernelRequest.of(x, k=self.k, n=self.n, stored=self.right, **plain) for x in families
        ]

    def model(
        self, mask: int = BOOL, rank: int = 2, others: Mapping[str, Field] | None = None
    ) -> onnx.ModelProto:
        fields: dict[str, Field] = {"k": self.k, "n": self.n, "right": self.right, **COSTS}
        plan = contract_plan(**{**fields, "skips": 1, "tiles": 1, **(others or {})})
        lead = [f"d{i}" for i in range(rank - 1)]
        b = [self.k, self.n] if self.right == "kn" else [self.n, self.k]
        inputs: list[Value] = [("a", FLOAT, [*lead, self.k]), ("b", FLOAT, b), ("mask", mask, None)]
        node = pit_node("sampled", plan, ["a", "b", "mask"], ["y"])
        return make_model([node], inputs, [("y", FLOAT, [*lead, self.n])])

    def feeds(self, live: Array, seed: int = 1) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        a = rng.standard_normal((len(live), self.k), np.float32)
        b = rng.standard_normal((self.k, self.n), np.float32)
        stored = b if self.right == "kn" else b.T
        return {"a": a, "b": np.ascontiguousarray(stored), "mask": live}

    def wanted(self, given: Mapping[str, Array]) -> Array:
        b = given["b"] if self.right == "kn" else given["b"].T
        return np.where(given["mask"] != 0, given["a"].astype(np.float64) @ b, 0)


NODES = [Node(k, n, right) for k, n in SIZES for right in ("kn", "nk")]


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    requests = [request for node in NODES for request in node.requests()]
    build_kernels(requests, LEVELS, folder / "kernels.so", cache=kernel_cache())
    return folder


def of_tiles(rows: int, n: int, tile: tuple[int, int], density: float) -> Array:
    """A mask that lives in tiles."""
    rng = np.random.default_rng(rows * n + tile[0] + tile[1])
    tiles = rng.random((-(-max(rows, 1) // tile[0]), -(-n // tile[1]))) < density
    return tiles.repeat(tile[0], 0).repeat(tile[1], 1)[:rows, :n]


def patterns(rows: int, n: int) -> Iterator[Array]:
    yield np.zeros((rows, n), bool)
    yield np.ones((rows, n), bool)
    one = np.zeros((rows, n), bool)
    one[-1:, -1:] = True
    yield one
    for tile in ((32, 64), (32, 32), (32, 1), (1, 64)):
        yield of_tiles(rows, n, tile, 0.2)
    for density in (0.5, 0.1, 0.01):
        yield of_tiles(rows, n, (1, 1), density)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("node", NODES, ids=str)
def test_every_variant_is_the_product(folder: Path, node: Node, level: str) -> None:
    """The same bits whatever runs, on every number of threads; +0.0 where the mask is 0."""
    path = save(folder, node.model())
    sessions = [
        session(path, quiet_options(threads), cpu_level=level, **forced)
        for forced in (*({"variant": x} for x in VARIANTS), {})
        for threads in (1, 2)
    ]
    for rows in (0, 1, 31, 129) if node.n < 2000 else (33, 700):
        for live in patterns(rows, node.n):
            given = node.feeds(live, rows)
            first, *others = (s.run(None, given)[0] for s in sessions)
            np.testing.assert_allclose(first, node.wanted(given), rtol=1e-4, atol=2e-4)
            assert not bits(first)[~live].any()
            for other in others:
                assert np.array_equal(bits(other), bits(first)), (rows, live.mean())


@pytest.mark.parametrize("name", TYPES)
def test_masks_of_every_type(folder: Path, name: str) -> None:
    """What is not 0 lives: the largest and the smallest numbers, NaN; -0.0 does not."""
    kind, dtype = TYPES[name]
    node = Node(65, 65, "nk")
    mask = of_tiles(40, 65, (1, 1), 0.2).astype(dtype)
    if dtype is not np.bool_:
        exact = np.issubdtype(dtype, np.integer)
        info: Any = np.iinfo(dtype) if exact else np.finfo(dtype)
        mask[0, :2] = info.min, info.max
        mask[1, :3] = [3, -1, 1] if exact else [np.nan, np.inf, info.smallest_subnormal]
        mask[2] = 0 if exact else -0.0
    given = node.feeds(mask)
    path = save(folder, node.model(kind), f"{name}.onnx")
    for variant in VARIANTS:
        (got,) = session(path, variant=variant).run(None, given)
        np.testing.assert_allclose(got, node.wanted(given), rtol=1e-4, atol=2e-4)
        assert got[0, 0] != 0 and got[1, :3].all() == (dtype is not np.bool_)
        assert not bits(got)[~(mask != 0)].any()


@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_not_a_number(folder: Path, variant: str, right: str) -> None:
    """Live elements are what IEEE says, dead ones 0."""
    node = Node(517, 150, right)
    live = of_tiles(45, 150, (1, 1), 0.3)
    live[3, [7, 8, 149]], live[4, 7] = (True, False, True), True
    given = node.feeds(live)
    b = given["b"] if right == "kn" else given["b"].T
    given["a"][3, 516], given["a"][4, 100], b[100, 7], b[0, 20] = np.nan, 0, np.inf, np.nan
    (got,) = session(save(folder, node.model()), variant=variant).run(None, given)
    with np.errstate(invalid="ignore"):
        want = node.wanted(given)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4)
    assert np.isnan(got[3, [7, 149]]).all() and got[3, 8] == 0 and np.isnan(got[4, 7])


def test_leading_dimensions(folder: Path) -> None:
    """The mask has those of C, or its rows one below the other."""
    node = Node(65, 65, "kn")
    run = session(save(folder, node.model(rank=3), "rank.onnx"))
    given = node.feeds(of_tiles(6, 65, (1, 1), 0.4))
    want = node.wanted(given)
    given["a"] = given["a"].reshape(2, 3, 65)
    for shape in ((6, 65), (2, 3, 65)):
        (got,) = run.run(None, given | {"mask": given["mask"].reshape(shape)})
        assert got.shape == (2, 3, 65)
        np.testing.assert_allclose(got.reshape(6, 65), want, rtol=1e-4, atol=2e-4)


def test_the_reference_says_the_same(folder: Path) -> None:
    for right in ("kn", "nk"):
        node = Node(65, 65, right)
        given = node.feeds(of_tiles(9, 65, (1, 1), 0.4))
        (want,) = run_lowered(node.model(), given)
        np.testing.assert_allclose(want, node.wanted(given), rtol=1e-4, atol=2e-4)


def test_the_fastest_variant_is_chosen(folder: Path, tmp_path: Path) -> None:
    """By what lives; with no prices, or where a forced one is not offered, nothing is listed."""
    node = Node(517, 150, "nk")
    path, trace = save(folder, node.model()), tmp_path / "trace.jsonl"
    run = session(path, trace=str(trace))
    masks = {
        "dense": np.ones((512, 150), bool),
        "row": of_tiles(512, 150, (1, 1), 0.01),
        "block16": of_tiles(512, 150, (16, 1), 0.03),
        "block64": of_tiles(512, 150, (64, 1), 0.1),
    }
    for live in masks.values():
        run.run(None, node.feeds(live))
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [line["chosen"] for line in lines] == list(masks)
    for line, (name, live) in zip(lines, masks.items(), strict=True):
        assert line["counts"]["elements"] == live.sum()
        assert line["counts"]["block32"] == live.reshape(16, 32, 150).any(1).sum()
        assert "tile8" not in line["candidates"]
        assert name in line["candidates"] and "dense" in line["candidates"]
    trace.write_text("")
    for forced in ("tile8", "block32"):
        session(path, trace=str(trace), variant=forced).run(None, node.feeds(masks["dense"]))
    plan = contract_plan(k=517, n=150, right="nk", skips=1, tiles=1)
    model = node.model()
    model.graph.node[0].CopyFrom(pit_node("sampled", plan, ["a", "b", "mask"], ["y"]))
    bare = save(folder, model, "bare.onnx")
    session(bare, trace=str(trace), variant="row").run(None, node.feeds(masks["row"]))
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [line["chosen"] for line in lines] == ["dense", "block32"]  # the last one had no choice


def test_a_sample_of_a_large_mask(folder: Path, tmp_path: Path) -> None:
    """Of few products an element: what is counted stands for the rest."""
    node, trace = Node(65, 65, "nk"), tmp_path / "trace.jsonl"
    live = of_tiles(4096, 65, (1, 1), 0.3)
    run = session(save(folder, node.model()), trace=str(trace), variant="row")
    (got,) = run.run(None, given := node.feeds(live))
    np.testing.assert_allclose(got, node.wanted(given), rtol=1e-4, atol=2e-4)
    counted = json.loads(trace.read_text())["counts"]["elements"]
    assert counted != live.sum() and abs(counted / live.sum() - 1) < 0.1


def test_many_threads_at_once(folder: Path) -> None:
    node = Node(517, 150, "kn")
    feeds = [node.feeds(live, 3) for live in patterns(70, 150)]
    answers_on_eight_threads(session(save(folder, node.model())), feeds, 3)


BAD_PLANS: dict[str, dict[str, Field]] = {
    "a bias": {"bias": 1},
    "an activation": {"activation": "relu"},
    "a factor": {"factor": 1},
    "a residual": {"residual": 1},
    "panels": {"right": "panels"},
}


@pytest.mark.parametrize("what", BAD_PLANS)
def test_bad_plans(folder: Path, what: str) -> None:
    path = save(folder, Node(65, 65, "nk").model(others=BAD_PLANS[what]), "bad.onnx")
    assert "beside tiles" in creation_error(path)


def test_a_missing_kernel(folder: Path) -> None:
    path = save(
        folder, Node(65, 65, "nk").model(others={"kernels": "dense:k,block:l"}), "missing.onnx"
    )
    assert "expected kernel 'k' for CPU level" in creation_error(path)


BAD_INPUTS: dict[str, dict[str, Any]] = {
    r"expected mask of 7 rows of 65, got bool \[7, 64\]": {"mask": np.ones((7, 64), bool)},
    r"expected mask of 7 rows of 65, got bool \[6, 65\]": {"mask": np.ones((6, 65), bool)},
    r"expected mask of 7 rows of 65, got bool \[65\]": {"mask": np.ones(65, bool)},
    r"expected mask of 7 rows of 65, got bool \[\]": {"mask": np.array(True)},
}


@pytest.mark.parametrize("message", BAD_INPUTS)
def test_bad_inputs(folder: Path, message: str) -> None:
    node = Node(65, 65, "nk")
    run = session(save(folder, node.model()))
    given = node.feeds(np.ones((7, 65), bool))
    with pytest.raises(Exception, match=message):
        run.run(None, given | BAD_INPUTS[message])
    (got,) = run.run(None, given)
    np.testing.assert_allclose(got, node.wanted(given), rtol=1e-4, atol=2e-4)
