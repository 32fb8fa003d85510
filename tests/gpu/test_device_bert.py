"""An encoder in half precision, compiled for a GPU, run on one that is not there: by emulated
kernels in our provider, and the rest in ONNX Runtime on the CPU."""

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import pitc
from models.bert import BertConfig, bert
from models.half import half
from tests.cuda_emulator import ARCH
from tests.device_kernels import emulated_process, emulator_compiles
from tests.device_lender import Library
from tests.device_support import Call, FakeDriver, session
from tests.lent import CUDA, not_given_back
from tests.runtime_support import ROOT, Array

CONFIG = BertConfig(layers=1, hidden=64, heads=1, ffn=128, vocab=50)
PAGE = ROOT / "docs" / "cuda.md"
MODEL, SOURCE = "model.cuda.onnx", b"PitCudaExecutionProvider"
# Half precision: what ONNX Runtime rounds after every operator, kernels round once at their end.
TOLERANCE = 2e-2


@pytest.fixture(name="source", scope="module")
def _source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    onnx.save(half(bert(CONFIG, np.random.default_rng(0))), path)
    return path


@pytest.fixture(name="compiled", scope="module")
def _compiled(source: Path) -> Path:
    folder = source.with_suffix(".pitc")
    with emulator_compiles(source.with_name("cache")):
        pitc.compile(source, f"cuda:{ARCH}", "attention_mask", output=folder)
    return folder


def _feeds(mask: Array) -> dict[str, Array]:
    tokens = np.random.default_rng(1).integers(1, 50, mask.shape)
    return {
        "input_ids": tokens * mask,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(mask),
    }


def _answers(
    compiled: Path, folder: Path, masks: list[Array]
) -> tuple[list[list[Array]], dict[str, int]]:
    """What a session answers, and what its driver has done meanwhile."""
    run = session(compiled / MODEL, trace=folder / "trace")
    driver = FakeDriver()
    with driver.counted() as counts:
        answers = [run.run(None, _feeds(mask)) for mask in masks]
    return answers, counts


def _lent(compiled: Path, mask: Array) -> tuple[Array, dict[str, int]]:
    """What a loaded model answers to tensors of the device, and what is done meanwhile."""
    library, driver = Library(), FakeDriver()
    model = pitc.load(compiled)
    inputs = {name: library.put(a) for name, a in _feeds(mask).items()}
    model.run(inputs)
    with driver.counted() as counts:
        model.run(inputs, on_device=True)
    ((name, value),) = model.run(inputs, on_device=True).items()
    assert value._get_c_value().__dlpack_device__() == (CUDA, 0)
    # The page's example, with a torch that takes what it is given.
    torch = ModuleType("torch")
    vars(torch)["from_dlpack"] = lambda taken: taken.numpy()
    sys.modules["torch"] = torch
    names: dict[str, Any] = dict(zip(("ids", "mask", "types"), inputs.values(), strict=True))
    text = PAGE.read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (code,) = (block for block in blocks if "on_device=True" in block)
    exec(code.replace("model.pitc", str(compiled)).replace("last_hidden_state", name), names)
    assert np.array_equal(names["hidden"], value.numpy())
    del names
    assert not_given_back() == 0
    return value.numpy(), counts


def test_tensors_of_the_device(gpu: Call, source: Path, compiled: Path) -> None:
    """What ONNX Runtime computes on the CPU here, it fetches; of ours nothing comes to the host."""
    mask = np.ones((2, 12), np.int64)
    mask[1, 5:] = 0
    got, counts = gpu(_lent, compiled, mask)
    plain = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    want, live = np.asarray(plain.run(None, _feeds(mask))[0]), mask.astype(bool)
    assert not got[~live].any()
    np.testing.assert_allclose(got[live], want[live], atol=TOLERANCE, rtol=TOLERANCE)
    assert counts["launches"] > 6


def test_equals_onnx_runtime(gpu: Call, source: Path, compiled: Path, tmp_path: Path) -> None:
    full = np.ones((2, 12), np.int64)
    left, right, one = full.copy(), full.copy(), np.zeros((2, 12), np.int64)
    left[0, :7] = right[1, 5:] = 0
    one[0, 3] = one[1, 0] = 1
    masks = [full, left, right, one, np.ones((1, 3), np.int64)]
    answers, counts = gpu(_answers, compiled, tmp_path, masks)
    plain = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    for mask, (got, *_) in zip(masks, answers, strict=True):
        want = np.asarray(plain.run(None, _feeds(mask))[0])
        live = mask.astype(bool)
        assert got.dtype == want.dtype == np.float16 and not got[~live].any()
        assert np.abs(want[live]).max() > 1
        np.testing.assert_allclose(got[live], want[live], atol=TOLERANCE, rtol=TOLERANCE)
    graph = onnx.load(compiled / MODEL, load_external_data=False).graph
    nodes = [n for n in graph.node if n.op_type == "EPContext"]
    on_gpu = [a.s for n in nodes for a in n.attribute if a.name == "source"].count(SOURCE)
    assert on_gpu > 6 and len(nodes) == on_gpu + 1
    assert counts["launches"] == len(masks) * on_gpu


# ---- what the command line says of a GPU that does not serve


def _commands(compiled: Path, memory: int | None) -> tuple[list[int], str]:
    """Exit codes of commands, and what they say."""
    from pitc.cli import main

    if memory is not None:
        FakeDriver().set("memory", memory)
    size = ["--shape", "batch=2", "--shape", "sequence=9"]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        codes = [main([name, str(compiled), *size]) for name in ("run", "verify", "bench")]
    return codes, said.getvalue()


@pytest.mark.parametrize(
    ("arch", "memory", "text"),
    [
        (70, None, "compile the model again for cuda:sm_70"),
        (80, 100, "out of device memory: "),
    ],
)
def test_a_gpu_that_does_not_serve(
    compiled: Path, arch: int, memory: int | None, text: str
) -> None:
    """The command line says so in one line: exit code 6."""
    with emulated_process(arch) as call:
        codes, said = call(_commands, compiled, memory)
    assert codes == [6] * 3, said
    assert said.count("\n") == said.count("error: ") == said.count(text) == 3, said
