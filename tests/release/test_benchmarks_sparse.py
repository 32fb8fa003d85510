"""Benchmark cases with zeros at run time: what they hold, hand-written peers, targets, results."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import contenders, peers, readme
from benchmarks.cases import CASES, source
from benchmarks.contenders import CONTENDERS, OURS, PRODUCTS, Contender, live_rows, whole
from benchmarks.cost import LAST_CACHE, blocks_cost, layers_cost
from benchmarks.report import save, verdicts
from benchmarks.run import describe, time_case
from benchmarks.sparse_cases import (
    BlocksCase,
    GradientCase,
    ImageCase,
    MaskedCase,
    ProductCase,
    SparseCase,
    Targets,
)
from benchmarks.workload import Infer, Shared, Workload, behind_relu, make_workload
from models.cnn import CnnConfig
from models.masked import MlpConfig
from models.opt import OPT_1_3B, OptConfig
from models.t5 import T5Config

PRODUCT = ProductCase(96, (1, 8), 0.9, Targets(1.5, 2.0))
BLOCKS = BlocksCase("opt", OptConfig(2, 32, 4, 256), 48, 0.9)
T5_BLOCKS = BlocksCase("t5", T5Config(2, 32, 4, 256), 48, 0.9)
MASKED = MaskedCase(MlpConfig((32, 64, 24), (1, 8), 0.75), 9)
GRADIENT = GradientCase(24, (96, 130), (32, 1), 0.9)
IMAGES = ImageCase(CnnConfig((8, 16), size=16), 2)
GATED = ImageCase(CnnConfig((8, 16), size=16, closed=0.25), 2)


def quiet(_: str) -> None:
    """Progress that nobody reads."""


def reference(workload: Workload) -> np.ndarray:
    """What ONNX Runtime answers."""
    return contenders.onnx_runtime(workload)(workload.batches[0])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("zeros", [0.0, 0.8, 0.98, 1.0])
@pytest.mark.parametrize(
    "peer",
    [peers.gather_product, peers.scipy_product, peers.torch_product],
)
def test_product_peers(peer: Any, zeros: float, tmp_path: Path) -> None:
    for name in ("scipy", "torch"):
        if name in peer.__name__:
            pytest.importorskip(name)
    workload = make_workload(ProductCase(96, (32, 8), zeros), tmp_path)
    x, weight = workload.batches[0]["x"], peers.weights(workload)["weight"].astype(np.float64)
    assert workload.zeros == pytest.approx(zeros, abs=0.03)
    assert (x >= 0).all()
    np.testing.assert_allclose(peer(workload)(workload.batches[0]), x @ weight, atol=1e-5)
    np.testing.assert_allclose(reference(workload), x @ weight, atol=1e-5)


@pytest.mark.parametrize("peer", [peers.ort_then_gather, peers.ort_then_csr, peers.numpy_then_csr])
@pytest.mark.parametrize("case", [BLOCKS, T5_BLOCKS])
def test_block_peers(peer: Any, case: BlocksCase, tmp_path: Path) -> None:
    if "csr" in peer.__name__:
        pytest.importorskip("scipy")
    workload = make_workload(case, tmp_path)
    answer = peer(workload)(workload.batches[0])
    np.testing.assert_allclose(answer, reference(workload), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [BLOCKS, T5_BLOCKS])
def test_blocks_are_those_of_the_model(case: BlocksCase, tmp_path: Path) -> None:
    """The parameters by name, in numpy, give what every Relu of the graph gives."""
    workload = make_workload(case, tmp_path)
    x = workload.batches[0]["hidden_state"][0]
    parts, hidden = peers.blocks(workload), behind_relu(workload.model, workload.batches[0])
    assert len(parts) == len(hidden) == 2
    for block, want in zip(parts, hidden, strict=True):
        got = block.hidden(x)
        np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-3, atol=1e-4)
        x = block.leave(x, got, np.matmul)
    np.testing.assert_allclose(x, reference(workload)[0], rtol=1e-4, atol=1e-4)


def test_masked_peer(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    workload = make_workload(MASKED, tmp_path)
    answer = peers.scipy_masked(workload)(workload.batches[0])
    np.testing.assert_allclose(answer, reference(workload), atol=1e-5)


def test_facts_are_those_of_the_arrays(tmp_path: Path) -> None:
    for case in (BLOCKS, T5_BLOCKS):
        folder = tmp_path / case.label
        folder.mkdir()
        workload = make_workload(case, folder)
        hidden = behind_relu(workload.model, workload.batches[0])
        live = np.stack([x.reshape(48, 256) != 0 for x in hidden])
        facts = workload.facts()
        assert facts["zeros"] == pytest.approx(1 - live.mean()) == pytest.approx(0.9, abs=0.02)
        assert facts["live_columns"] == pytest.approx(live.any(1).mean())
        assert facts["useful_share"] == pytest.approx((1 + live.mean()) / 2)
        assert facts["batches"] == [[1, 48, 32]]
    masked = make_workload(MASKED, _folder(tmp_path, "masked"))
    assert masked.facts()["zeros"] == 0.75
    assert masked.facts()["useful_share"] == pytest.approx(0.25)
    images = make_workload(IMAGES, _folder(tmp_path, "images"))
    assert images.facts()["zeros"] == pytest.approx(0.5, abs=0.05)
    gated = make_workload(GATED, _folder(tmp_path, "gated"))
    assert gated.facts()["zeros"] == 0.25
    assert images.limit_ms({"fma_gflops": 1.0, "read_gbytes_per_s": 1.0}) is None


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def test_costs() -> None:
    """Of OPT-1.3B: 4 x 2048 x 8192 per token; 4 bytes of each weight, where they are cold."""
    one, weights = OptConfig(1, 2048, 32, 8192), 2048 * 8192
    assert OPT_1_3B.hidden * OPT_1_3B.ffn == weights
    full = blocks_cost(one, 8)
    assert (full.flops, full.read_bytes) == (8 * 4 * weights, 8 * weights)
    few = blocks_cost(one, 8, live=0.05, live_columns=0.25)
    assert few.flops == pytest.approx(8 * 2.1 * weights)
    assert few.read_bytes == 5 * weights
    warm = OptConfig(1, 1024, 16, 4096)
    assert 2 * 4 * warm.hidden * warm.ffn == LAST_CACHE and blocks_cost(warm, 8).read_bytes == 0
    assert layers_cost(3, [(4, 5), (5, 7)], 0.5).flops == 3 * (20 + 35)
    limits = {"fma_gflops": 100.0, "read_gbytes_per_s": 10.0}
    assert full.seconds(limits) == pytest.approx(8 * weights / 10e9)


@pytest.mark.parametrize("case", [PRODUCT, BLOCKS, MASKED, GRADIENT, IMAGES, GATED])
def test_every_kind_is_run(case: SparseCase, tmp_path: Path) -> None:
    result = time_case(case, 1, {}, CONTENDERS[type(case)], quiet, Shared(tmp_path))
    rows = {row["name"]: row for row in result["contenders"]}
    assert {"ort", OURS} <= rows.keys()
    assert all(row["error"] <= 1e-5 and row["ms"] > 0 for row in rows.values())
    assert result["speedup"].keys() == rows.keys() - {OURS}
    json.dumps({"case": describe(case), **result})


def test_cases_of_one_source_share_model_and_engines(tmp_path: Path) -> None:
    made: list[str] = []

    def counted(workload: Workload) -> Infer:
        made.append(workload.model.name)
        return contenders.onnx_runtime(workload)

    shared, dense = Shared(tmp_path), Contender("ort", counted, whole, "onnxruntime")
    other, written = ProductCase(96, (32, 1), 0.5), set()
    for case in (PRODUCT, other):
        result = time_case(case, 1, {}, (dense,), quiet, shared)
        assert result["workload"]["zeros"] == pytest.approx(case.zeros, abs=0.03)
        written.add((tmp_path / "model.onnx").stat().st_mtime_ns)
    assert len(written) == 1
    assert made == ["model.onnx"]


def test_sources() -> None:
    """Zeros that come as inputs are not part of the model; those that biases make are."""
    assert source(ProductCase(96, (32, 1), 0.5)) == source(PRODUCT)
    assert source(ProductCase(97, (1, 8), 0.9)) != source(PRODUCT)
    denser = replace(MASKED, config=replace(MASKED.config, zeros=0.5))
    assert source(denser) == source(MASKED)
    opened = replace(GATED, config=replace(GATED.config, closed=0.0))
    assert source(opened) == source(GATED) != source(IMAGES)
    assert source(replace(BLOCKS, tokens=1)) == source(BLOCKS) != source(replace(BLOCKS, zeros=0.8))


def test_without_a_mask_every_entry_is_an_answer() -> None:
    output = np.arange(12.0).reshape(3, 4)
    answers = live_rows([(np.arange(3), output)], {"x": output})
    assert len(answers) == 3
    np.testing.assert_array_equal(answers, output)


def test_peers_of_many_zeros_do_not_compete_with_few(tmp_path: Path) -> None:
    late = Contender("late", contenders.onnx_runtime, whole, "onnxruntime", zeros=0.75)
    for zeros, names in ((0.7, {"ort"}), (0.8, {"ort", "late"})):
        case = ProductCase(96, (1, 8), zeros)
        result = time_case(case, 1, {}, (PRODUCTS[0], late), quiet, Shared(tmp_path))
        assert {row["name"] for row in result["contenders"]} == names


def test_names_and_sources_of_the_cases() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {"spmm-2048-1x1-80", "spmm-4096-32x32-99", "opt-1.3b-ffn-1-95"} <= set(names)
    runs = [source(case) for case in CASES]
    changes = sum(a != b for a, b in itertools.pairwise(runs))
    assert changes + 1 == len(set(map(repr, runs))), "cases of one source are not neighbours"
    assert readme.SERIES.keys() <= {c.series for c in CASES if isinstance(c, SparseCase)}


def test_targets_are_those_that_were_set() -> None:
    found = {c.name: c.targets for c in CASES if isinstance(c, SparseCase)}
    assert found["spmm-2048-1x1-90"] == Targets(3.6, 1.8)
    assert found["spmm-2048-1x64-95"] == Targets(7.0, 4.0)
    assert found["spmm-2048-32x32-99"] == Targets(45.0, 2.0)
    assert found["opt-350m-ffn-8-95"] == Targets(1.6, 1.4)
    assert found["opt-125m-ffn-1-90"] == found["spmm-1024-1x1-90"] == Targets()
    few = [c.targets for c in CASES if isinstance(c, ProductCase | BlocksCase) and c.zeros <= 0.6]
    assert few and set(few) == {Targets(base=0.98)}


def result_of(name: str, zeros: float, targets: Mapping[str, float | None]) -> dict[str, Any]:
    case = {"family": "spmm", "name": name, "series": "spmm-2048-1x1", "zeros": zeros}
    return {
        "case": {**case, "targets": targets},
        "contenders": [{"name": "ort", "ms": 80.0}, {"name": OURS, "ms": 40.0}],
        "best_peer": "csr",
        "speedup": {"ort": 2.0, "csr": 1.5},
    }


def test_verdicts() -> None:
    base, best = verdicts(result_of("a", 0.8, {"base": 1.8, "peer": 1.6}))
    assert (base.over, base.gain, base.met) == ("ort", 2.0, True)
    assert (best.over, best.gain, best.met) == ("csr", 1.5, False)
    none = verdicts(result_of("a", 0.8, {}))
    assert [v.target for v in none] == [None, None] and all(v.met for v in none)
    wrong = result_of("a", 0.8, {"base": 1.8}) | {"speedup": {}}
    assert not verdicts(wrong)[0].met


def test_sweeps_in_the_readme(tmp_path: Path) -> None:
    for name, zeros, targets in (
        ("s-90", 0.9, {"base": 3.6, "peer": 1.8}),
        ("s-80", 0.8, {"base": 1.8, "peer": 1.8}),
        ("s-50", 0.5, {"base": 0.98, "peer": None}),
    ):
        path = save(result_of(name, zeros, targets), tmp_path)
        assert path == tmp_path / "spmm" / f"{name}.json"
    found = readme.results(tmp_path)
    assert list(found) == ["s-50", "s-80", "s-90"]
    text = "\n".join(readme._sweeps(list(found.values())))
    assert "| 80 / 90 | 40 / 40 | 2.00 / 2.00 (1.8 / 3.6) | 1.50 / 1.50 (1.8 / 1.8) |" in text
    assert "smallest gain over ONNX Runtime is 2.00x (s-50)" in text
