"""`--dump-ir` writes what CPU kernels are made of, too."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import pitc

Run = Callable[..., tuple[int, str, str]]
ENDS = ("tir", "ll", "s")


@pytest.fixture(scope="module")
def dumped(bert_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of all kernels of an encoder, whether or not their code comes from the cache."""
    stages = tmp_path_factory.mktemp("dump") / "stages"
    model = pitc.compile(bert_path, padding="attention_mask", dump_ir=stages)
    kernels = model.manifest.kernels
    assert kernels is not None and kernels.levels == ["v4", "v3"]
    names = [f"{symbol}_{level}" for symbol in kernels.symbols for level in kernels.levels]
    assert len(names) >= 8
    assert set(os.listdir(stages / "cpu")) == {f"{name}.{end}" for name in names for end in ENDS}
    return stages / "cpu"


def test_sources_of_cpu_kernels(dumped: Path) -> None:
    names = {path.stem for path in dumped.iterdir()}
    for name in names:
        tir, ir, assembly = ((dumped / f"{name}.{end}").read_text() for end in ENDS)
        assert "@T.prim_func" in tir and f"def {name}(" in tir
        assert re.search(rf"^define .*@__tvm_ffi_{name}\(", ir, re.MULTILINE)
        assert re.search(rf"^__tvm_ffi_{name}:$", assembly, re.MULTILINE)
    wide = {name for name in names if "%zmm" in (dumped / f"{name}.s").read_text()}
    assert wide and all(name.endswith("_v4") for name in wide)


def test_one_level_without_the_cache(bert_path: Path, dumped: Path, tmp_path: Path) -> None:
    stages = tmp_path / "stages"
    pitc.compile(bert_path, "cpu:v3", "attention_mask", dump_ir=stages, cache=False)
    made, before = stages / "cpu", {x.name for x in dumped.iterdir() if x.stem.endswith("_v3")}
    assert set(os.listdir(made)) == before
    for name in before:
        text = (made / name).read_text()
        assert text == (dumped / name).read_text() if name.endswith(".s") else text


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
