"""`--dump-ir` writes what CPU kernels are made of, too."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import pitc

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("cached", [True, False])
def test_sources_of_cpu_kernels(bert_path: Path, tmp_path: Path, cached: bool) -> None:
    """Whether or not their machine code comes from the cache."""
    stages = tmp_path / "stages"
    model = pitc.compile(bert_path, padding="attention_mask", dump_ir=stages, cache=cached)
    kernels = model.manifest.kernels
    assert kernels is not None and kernels.levels == ["v4", "v3"]
    names = [f"{symbol}_{level}" for symbol in kernels.symbols for level in kernels.levels]
    assert len(names) >= 8
    ends = ("tir", "ll", "s")
    assert set(os.listdir(stages / "cpu")) == {f"{name}.{end}" for name in names for end in ends}
    for name in names:
        tir, ir, assembly = ((stages / "cpu" / f"{name}.{end}").read_text() for end in ends)
        assert "@T.prim_func" in tir and f"def {name}(" in tir
        assert re.search(rf"^define .*@__tvm_ffi_{name}\(", ir, re.MULTILINE)
        assert re.search(rf"^__tvm_ffi_{name}:$", assembly, re.MULTILINE)
    wide = {name for name in names if "%zmm" in (stages / "cpu" / f"{name}.s").read_text()}
    assert wide and all(name.endswith("_v4") for name in wide)


def test_one_level(bert_path: Path, tmp_path: Path) -> None:
    pitc.compile(bert_path, "cpu:v3", "attention_mask", dump_ir=tmp_path / "stages")
    made = os.listdir(tmp_path / "stages" / "cpu")
    assert made and all(Path(name).stem.endswith("_v3") for name in made)


def test_no_kernel_no_source(mlp_path: Path, tmp_path: Path) -> None:
    pitc.compile(mlp_path, dump_ir=tmp_path / "stages")
    assert not (tmp_path / "stages" / "cpu").exists()


def test_where_they_cannot_be_written(run: Run, bert_path: Path, tmp_path: Path) -> None:
    stages = tmp_path / "stages"
    stages.mkdir()
    (stages / "cpu").write_text("a file")
    words = ("--padding", "attention_mask", "--dump-ir", stages, "-o", tmp_path / "m.pitc", "-q")
    code, _, err = run("compile", bert_path, *words)
    assert code == 2 and f"{stages}: stages cannot be written: File exists" in err
    assert sorted(os.listdir(tmp_path)) == ["stages"]
