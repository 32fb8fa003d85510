"""Kernels by content: what is compiled once is never again, and no byte changes with it."""

import ast
import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import onnx
import pytest

import pitc
from pitc.codegen.build import kernel_keys, library
from pitc.codegen.build.cache import Cache, kernel_cache
from pitc.codegen.build.kernel_keys import (
    Generator,
    Key,
    generator,
    source_files,
)
from pitc.errors import PitcWarning
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import CPU_LEVELS
from tests.codegen_kernels import LEVELS
from tools import parts

Run = Callable[..., tuple[int, str, str]]
REQUESTS = (
    KernelRequest.of("pack", "int32"),
    KernelRequest.of("gather_gemm", k=8, n=70, activation="gelu", residual=1),
    KernelRequest.of_cuda("pack", "int32"),
    KernelRequest.of("live_points", "bool", "cuda"),
)
MADE_BY = Generator("1", "sources", (("tvm", "digest"),), "CPython 3", "Linux x86_64")


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("PITC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def changed(value: Any) -> Iterator[Any]:
    """The value with another value at one place, for each place."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for other in changed(getattr(value, field.name)):
                yield dataclasses.replace(value, **{field.name: other})
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from ((*value[:i], other, *value[i + 1 :]) for other in changed(each))
    else:
        yield value + type(value)(1) if isinstance(value, int) else f"{value}x"


@pytest.mark.parametrize(
    "key",
    [
        Key("object", REQUESTS[1], CPU_LEVELS[0], MADE_BY),
        Key("code", REQUESTS[2], "sm_80", MADE_BY),
        Key("image", "text", "sm_80", "nvrtc-13 digest"),
    ],
    ids=lambda key: str(key.piece),
)
def test_every_field_is_in_a_key(key: Any) -> None:
    others = list(changed(key))
    assert len(others) >= 3
    assert len({each.name for each in (key, *others)}) == len(others) + 1
    assert key.name == dataclasses.replace(key).name and len(key.name) == 64


def test_kinds_of_keys_do_not_meet() -> None:
    assert Key("code", "s", "a", "c").name != Key("image", "s", "a", "c").name
    assert len({Key("image", *names).name for names in ("abc", "acb", "bac")}) == 3


GENERATE = """
import sys
from pitc.codegen.build.cuda_functions import cuda_functions
from pitc.codegen.build.library import kernel_function
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import CPU_LEVELS
of, epilogue = KernelRequest.of, {"activation": "gelu", "residual": 1}
contract = ("contract_row", "contract_tile", "contract_block", "gather_gemm")
cpu = [of(family, k=64, n=70, **epilogue) for family in contract]
cpu += [of("pack", "int32"), of("unpack", "int32"), of("panels", k=64)]
cpu += [of("stored_rows", k=64, n=70, stored="nk", factor=0)]
cpu += [of("swrite_columns", n=70, **epilogue), of("attention", d=64, dv=64, bias=1)]
for request in cpu:
    kernel_function(request, CPU_LEVELS[0])
for family in (*contract[1:], "contract_square"):
    list(cuda_functions(KernelRequest.of_cuda(family, "float16", k=64, n=64, **epilogue)))
list(cuda_functions(of("live_points", "bool", "cuda")))
for family in ("pack", "detect", "choose", "lists"):
    list(cuda_functions(KernelRequest.of_cuda(family, "float16")))
list(cuda_functions(KernelRequest.of_cuda("attention", "float16", d=64, dv=64, bias=1)))
names = [n for n in sys.modules if n.split(".")[0] == "pitc"]
print(*(f"{n}={sys.modules[n].__file__}" for n in names))
"""

SAYS_NOTHING = {"pitc", "pitc.errors", "pitc.version", "pitc.host", "pitc.host.folders"}
"""What a generator may load that is not among its sources: names, messages, where a cache is."""


def test_the_generator_is_all_that_writes_kernels() -> None:
    command = [sys.executable, "-c", GENERATE]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = dict(word.split("=", 1) for word in done.stdout.split())
    assert {"pitc.codegen.tir", "pitc.ir.variants", "pitc.codegen.families.attention"} < set(loaded)
    known = {os.path.realpath(path) for path in source_files().values()}
    outside = {name for name, path in loaded.items() if os.path.realpath(path) not in known}
    assert outside <= SAYS_NOTHING


def test_what_the_generator_imports_is_among_its_sources() -> None:
    """At any place in it, whether a kernel of the test above comes by or not."""
    room = [name for name in parts.modules() if name.split(".")[:2] == ["pitc", "codegen"]]
    found = {name: os.path.realpath(path) for name, path in parts.reached(room).items()}
    known = {os.path.realpath(path) for path in source_files().values()}
    assert {name for name, path in found.items() if path not in known} == SAYS_NOTHING
    assert known <= set(found.values())  # a change elsewhere makes no kernel again


def test_the_generator_is_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "room").mkdir()
    source = tmp_path / "room" / "tir.py"
    source.write_text("one")
    monkeypatch.setattr(kernel_keys, "SOURCES", (tmp_path / "room",))
    seen = set()
    for text in ("one", "two"):
        source.write_text(text)
        seen.add(generator.__wrapped__())
    source.rename(source.with_name("moved.py"))
    seen.add(generator.__wrapped__())
    assert len(seen) == 3 and None not in seen


BUILD = f"""
import sys
from pathlib import Path
from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.library import build_kernels
from pitc.ir.kernel import KernelRequest
if sys.argv[2] == "warm":
    sys.modules["tvm"] = None  # it cannot be imported
cache = kernel_cache()
requests = {REQUESTS!r}
build_kernels(requests, {LEVELS!r}, Path(sys.argv[1]), None, ("sm_80", "sm_90"), cache)
print((cache.hits, cache.misses))
"""


def built(how: str, *outs: Path) -> list[str]:
    """Other processes build a library each, all at once; what they found in the cache."""
    environment = {**os.environ, "PITC_CUDA_COMPILER": "nvrtc"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD, str(out), how], env=environment, stdout=PIPE, text=True
        )
        for out in outs
    ]
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(outs)
    return said


def built_here(out: Path, cache: Cache | None) -> bytes:
    library.build_kernels(REQUESTS, LEVELS, out, None, ("sm_80", "sm_90"), cache)
    return out.read_bytes()


def test_the_same_bytes_by_two_processes_at_once_and_without_tvm(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PITC_CUDA_COMPILER", "nvrtc")
    without = built_here(tmp_path / "none.so", None)
    assert not folder.exists()
    # CPUs: a piece for each level; GPUs: code of two requests, four functions for two devices, PTX
    pieces = 2 * len(LEVELS) + 2 + 4 * 3
    cold = [tmp_path / "cold0.so", tmp_path / "cold1.so"]
    for said in built("cold", *cold):
        assert sum(ast.literal_eval(said)) == pieces
    assert [path.read_bytes() for path in cold] == [without, without]
    assert len(list(folder.iterdir())) == pieces
    assert all(len(path.name) == 64 for path in folder.iterdir())
    assert built("warm", tmp_path / "warm.so") == [f"({pieces}, 0)\n"]
    assert (tmp_path / "warm.so").read_bytes() == without
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    cache = kernel_cache()
    assert built_here(tmp_path / "again.so", cache) == without
    assert (cache.hits, cache.misses) == (0, pieces)


def test_a_generator_that_cannot_be_told_keeps_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "generator", lambda: None)
    cache = Cache(folder)
    library.build_kernels(REQUESTS[:1], LEVELS, tmp_path / "k.so", cache=cache)
    assert not folder.exists() and (cache.hits, cache.misses) == (0, 0)


def of_products(folder: Path, seed: int, count: int) -> Path:
    """Products of live tokens in a row, which need few kernels: those of one are among two's."""
    names = ["x", *(f"h{k}" for k in range(count))]
    lines = [f"{y} = MatMul ({x}, w)" for x, y in itertools.pairwise(names)]
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[b, s, 256] x, int64[b, s] attention_mask) => (float[b, s, 256] y)
        {{ {" ".join(lines)} y = Relu ({names[-1]}) }}""")
    w = np.random.default_rng(seed).standard_normal((256, 256), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path = folder / f"products{seed}-{count}.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(name="model")
def _model(tmp_path: Path) -> Path:
    return of_products(tmp_path, 0, 1)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_sibling_has_the_same_kernels(tmp_path: Path, folder: Path) -> None:
    source = of_products(tmp_path, 0, 2)
    padding, out = "attention_mask", tmp_path / "model.pitc"
    plain = pitc.compile(source, padding=padding, cache=False)
    assert not folder.exists()
    assert (plain.report.cache_hits, plain.report.cache_misses) == (0, 0)
    cold = pitc.compile(source, padding=padding, output=out)
    assert cold.report.cache_hits == 0 < cold.report.cache_misses
    warm = pitc.compile(source, padding=padding)
    assert (warm.report.cache_hits, warm.report.cache_misses) == (cold.report.cache_misses, 0)
    assert contents(plain.path) == contents(cold.path) == contents(warm.path)
    sibling = pitc.compile(of_products(tmp_path, 1, 1), padding=padding)
    assert sibling.report.cache_misses == 0 < sibling.report.cache_hits
    assert pitc.load(out).report.cache_misses == 0  # it is told of a run, not of an artifact


def test_a_cache_of_another_user_is_told_and_left(model: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.warns(PitcWarning, match="the cache is not used: other users may write"):
        pitc.compile(model, "cpu:v3", "attention_mask")
    assert not list(folder.iterdir())


def test_commands(run: Run, model: Path, folder: Path, tmp_path: Path) -> None:
    assert run("cache", "info")[:2] == (
        0,
        f"{folder}: 0 pieces of machine code, 0 B, at most 1.1 GB\n",
    )
    assert run("cache", "clear")[0] == 0 and not folder.exists()
    line = ("compile", model, "-o", tmp_path / "a.pitc", "--padding", "attention_mask")
    assert "from the cache" not in run(*line, "--no-cache")[1] and not folder.exists()
    code, out, _ = run(*line, "--force")
    made = kernel_cache().held().entries
    assert code == 0 and f"machine code: 0 of {made} pieces from the cache\n" in out
    code, out, _ = run(*line, "--force", "--json")
    report = json.loads(out)["report"]
    assert code == 0 and (report["cache_hits"], report["cache_misses"]) == (made, 0)
    code, out, _ = run("cache", "info", "--json")
    body = json.loads(out)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert code == 0 and body["kernels"] == {
        "folder": str(folder),
        "entries": made,
        "bytes": size,
        "limit_bytes": 1 << 30,
    }
    code, out, _ = run("cache", "clear")
    assert code == 0 and out.startswith(f"{folder}: deleted {made} pieces of machine code, ")
    left = json.loads(run("cache", "info", "--json")[1])["kernels"]["bytes"]
    assert not list(folder.iterdir()) and left == 0


def test_commands_and_a_folder_that_is_not_to_be_trusted(
    run: Run, model: Path, folder: Path, tmp_path: Path
) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for word in ("info", "clear"):
        code, out, err = run("cache", word)
        assert (code, out) == (6, "")
        assert err.startswith(f"error: {folder}: the cache is not used: other users may")
        assert len(err.splitlines()) == 1
    out_folder = tmp_path / "a.pitc"
    code, _, err = run("compile", model, "-o", out_folder, "--padding", "attention_mask", "-q")
    assert code == 0 and err.startswith(f"warning: {folder}: the cache is not used")
    findings = {f["name"]: f for f in json.loads(run("doctor", "--json")[1])["findings"]}
    assert findings["kernel cache"]["status"] == "warn"
    assert "chmod 700" in findings["kernel cache"]["fix"]
    folder.chmod(0o700)
    findings = {f["name"]: f for f in json.loads(run("doctor", "--json")[1])["findings"]}
    assert findings["kernel cache"]["status"] == "ok" and not list(folder.iterdir())
