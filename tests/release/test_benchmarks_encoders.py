"""Libraries that run a BERT from its weights: who competes where, weights, heads, tolerances."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import readme
from benchmarks.cases import EncoderCase
from benchmarks.contenders import CACHED, ENCODERS, PADDED, Contender, whole
from benchmarks.encoder_peers import HEADS, checkpoint, is_bert, is_rounded_bert
from benchmarks.run import time_case
from benchmarks.workload import Shared, make_workload
from models.bert import TINY, random_weights
from models.opt import OptConfig

CASE = EncoderCase("tiny", TINY, batch=6, length=12, mean=5)
ROUNDED = replace(CASE, precision="bf16")
F32 = {f"ctranslate2-{split}" for split in ("padded", "singles", "buckets")}
ROUNDING = {
    f"{engine}-{split}"
    for engine in ("ctranslate2-int8", "torch-bf16")
    for split in ("padded", "singles", "buckets")
}


@pytest.mark.parametrize(
    ("case", "names"),
    [
        (CASE, F32),
        (ROUNDED, F32 | ROUNDING),
        (replace(CASE, config=replace(TINY, head="mean_normalised")), F32),
        (replace(CASE, dtype="float16"), set()),
        (replace(ROUNDED, bits="dynamic"), set()),
        (replace(CASE, config=replace(TINY, activation="gelu_tanh")), set()),
        (replace(CASE, config=replace(TINY, head="pooler")), set()),
        (replace(CASE, config=OptConfig(layers=1), side="left"), set()),
    ],
)
def test_who_competes(
    case: EncoderCase, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = make_workload(case, tmp_path)
    assert is_bert(workload) == bool(names)
    assert is_rounded_bert(workload) == (names >= ROUNDING)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    found = {c.name for c in ENCODERS if c.competes(workload)}
    assert found - {c.name for c in PADDED} == names
    assert not {c.name for c in CACHED} & (F32 | ROUNDING)


@pytest.mark.parametrize("missing", ["ctranslate2", "transformers", "torch"])
def test_nobody_competes_without_its_packages(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = make_workload(ROUNDED, tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != missing or None)
    found = {c.name for c in ENCODERS if c.competes(workload)} & (F32 | ROUNDING)
    what = "ctranslate2" if missing == "ctranslate2" else "torch"
    assert found == {name for name in F32 | ROUNDING if not name.startswith(what)}


def test_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    drawn = random_weights(TINY, np.random.default_rng(CASE.seed))
    found = checkpoint(make_workload(CASE, tmp_path))
    unused = {name for name in drawn if name.startswith(("pooler", "classifier"))}
    assert found.keys() == drawn.keys() - unused
    for name, x in found.items():
        np.testing.assert_array_equal(x, drawn[name])


def test_a_mean_is_over_the_tokens() -> None:
    hidden = np.array([[[3.0, 4.0], [np.inf, 9.0]], [[1.0, 0.0], [-1.0, 2.0]]], np.float32)
    mask = np.array([[1, 0], [1, 1]])
    np.testing.assert_allclose(HEADS["mean_normalised"](hidden, mask), [[0.6, 0.8], [0.0, 1.0]])


def test_a_contender_may_have_a_tolerance_of_its_own(tmp_path: Path) -> None:
    def near(workload: Any) -> Any:
        run = PADDED[0].engine(workload)
        return lambda feeds: run(feeds) * np.float32(1.05)

    who = (
        PADDED[0],
        Contender("strict", near, whole, "numpy"),
        Contender("rounds", near, whole, "numpy", tolerance=0.1),
        Contender("rounds less", near, whole, "numpy", tolerance=0.01),
    )
    found = time_case(CASE, 1, {}, who, lambda _: None, Shared(tmp_path))
    rows = {row["name"]: row for row in found["contenders"]}
    assert all(rows[c.name]["error"] == pytest.approx(0.05, rel=1e-3) for c in who[1:])
    assert [c.name for c in who if rows[c.name]["ms"] is not None] == [PADDED[0].name, "rounds"]
    assert found["best_peer"] == PADDED[0].name  # it is as exact as the case asks


def test_pages_say_what_eight_bits_take() -> None:
    def result(gains: dict[str, float], error: float) -> dict[str, Any]:
        rows = [{"name": name, "ms": 1.0, "error": error} for name in gains]
        return {"speedup": gains, "contenders": rows}

    one = result({"ctranslate2-int8-padded": 1.4, "ctranslate2-int8-buckets": 0.8}, 0.03)
    two = result({"ctranslate2-int8-padded": 0.7, "ort-padded": 2.0}, 0.04)
    two["contenders"][1]["error"] = 0.0
    text = readme.coarse({"a": one, "b": two})
    assert "takes 0.70 to 0.80 of pitc's time" in text and "3.0e-02 to 4.0e-02" in text
    assert readme.coarse({"c": result({"ort-padded": 2.0}, 0.0)}) == ""


def test_the_table_of_amx_has_the_best_way_of_a_peer(tmp_path: Path) -> None:
    """Of OpenVINO that with the least gain counts; cases without a result have no row."""
    gains = {"ort-padded": 18.2, "openvino-padded": 3.5, "openvino-buckets": 2.0, "torch": 1.5}
    machine = {"cpu": "Xeon", "features": ["avx512f"], "date": "2026-11-29"}
    result = {"speedup": gains, "best_peer": "torch", "machine": machine}
    result["contenders"] = [{"name": "pitc", "ms": 307.0}]
    (tmp_path / "bert-32x128-m40-bf16.json").write_text(json.dumps(result))
    _, _, row, _, end = readme.amx_block(tmp_path).splitlines()
    assert row.startswith("| BERT-base, 32 x 128, mean length 40 | 307 |")
    assert row.endswith("| 18.20 (20) | 2.00 (2.2) | 1.50 torch |")
    assert end == "Xeon, AVX-512, one core, 2026-11-29."


def test_pages_name_the_engines_of_the_results() -> None:
    def found(*names: str) -> dict[str, dict[str, Any]]:
        return {"case": {"contenders": [{"name": f"{name}-padded"} for name in names]}}

    assert readme.engines(found("ort")) == "ONNX Runtime"
    assert readme.engines(found("openvino", "ort")) == "ONNX Runtime and OpenVINO"
    exact = {c.name.rpartition("-")[0] for c in ENCODERS if not c.tolerance}
    assert set(readme.ENGINES) == exact - {""}
    every = readme.engines(found(*readme.ENGINES))
    assert all(what in every for what in readme.ENGINES.values())
