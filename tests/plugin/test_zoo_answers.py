"""Every model of the benchmarks answers as ONNX Runtime does, at the sizes that `verify` takes.

Tests of kernels and sessions are small. Here widths are those of real models, so that products have
several blocks of sums and of columns, and weights that are computed are as large as they come.
"""

from pathlib import Path

import onnx
import pytest

import pitc
from benchmarks.worst_cases import ZOO

#: They take long, and their parts are in the others.
LONG = frozenset(
    {
        *("bert", "bert-half", "bert-dynamic", "bert-static", "bert-int4", "opt", "t5", "minilm"),
        *(f"tall-{kind}" for kind in ("transformer", "add", "gate", "residual", "if")),
        *("mask-per-head-deep", "pair-bias-deep"),
    }
)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.thorough] * (x in LONG)) for x in ZOO]
)
def test_answers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(ZOO[name](), path)
    found = pitc.verify(path)
    assert found.ok, found.to_json()
