"""CTranslate2 and compiled torch as peers of the benchmarks: their answers on small BERTs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import FEW_BITS_TOLERANCE, EncoderCase
from benchmarks.contenders import ENCODERS, live_rows, relative_error
from benchmarks.run import TOLERANCES, time_case
from benchmarks.workload import Shared, make_workload
from models.bert import TINY

SMALL = replace(TINY, layers=1)
CASE = EncoderCase("small", SMALL, batch=6, length=12, mean=5)
ROUNDED = replace(CASE, precision="bf16")
NEW = tuple(c for c in ENCODERS if c.name.startswith(("ctranslate2", "torch-bf16")))
SPLITS = ("padded", "singles", "buckets")


def quiet(_: str) -> None:
    """Progress that nobody reads."""


def measured(case: EncoderCase, engine: str, folder: Path) -> dict[str, Any]:
    """The rows of one engine beside ONNX Runtime's, by name; empty where it does not compete."""
    pytest.importorskip(engine.split("-")[0])
    who = tuple(c for c in NEW if c.name.rpartition("-")[0] == engine)
    found = time_case(case, 1, {}, (ENCODERS[0], *who), quiet, Shared(folder))
    return {row["name"]: row for row in found["contenders"][1:]}


@pytest.mark.parametrize("case", [CASE, ROUNDED])
def test_ctranslate2(case: EncoderCase, tmp_path: Path) -> None:
    """In float32 also beside bf16: it rounds nothing."""
    rows = measured(case, "ctranslate2", tmp_path)
    assert rows.keys() == {f"ctranslate2-{split}" for split in SPLITS}
    for row in rows.values():
        assert row["error"] <= TOLERANCES["float32"] and len(row["rounds_ms"]) == 1


@pytest.mark.parametrize(
    ("engine", "tolerance"),
    [("ctranslate2-int8", FEW_BITS_TOLERANCE), ("torch-bf16", TOLERANCES["bfloat16"])],
)
def test_those_that_round(engine: str, tolerance: float, tmp_path: Path) -> None:
    """They round indeed, no more than they may, and compete beside bf16 alone."""
    rows = measured(ROUNDED, engine, tmp_path)
    assert rows.keys() == {f"{engine}-{split}" for split in SPLITS}
    for row in rows.values():
        assert 1e-4 < row["error"] <= tolerance and len(row["rounds_ms"]) == 1
    assert measured(CASE, engine, tmp_path) == {}


@pytest.mark.parametrize("name", ["ctranslate2-buckets", "torch-bf16-padded"])
def test_a_head(name: str, tmp_path: Path) -> None:
    """A mean over the tokens, of unit length."""
    pytest.importorskip(name.split("-")[0])
    case = replace(ROUNDED, config=replace(SMALL, head="mean_normalised"))
    workload = make_workload(case, tmp_path)
    (feeds,) = workload.batches
    (peer,) = [c for c in NEW if c.name == name]
    got, want = (live_rows(c.over(c.engine(workload))(feeds), feeds) for c in (peer, ENCODERS[0]))
    assert relative_error(got, want) <= TOLERANCES["bfloat16" if "bf16" in name else "float32"]
