"""Steps of training, compiled for a GPU and run on one that is not there: gradients of attention
and elementwise nodes by emulated kernels, the rest in ONNX Runtime on the CPU.
"""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import pitc
from tests.cuda_emulator import ARCH
from tests.device_kernels import emulator_compiles
from tests.device_support import Call, FakeDriver, session
from tests.gpu.test_lower_cuda_gradients import NAMES, feeds, gradient, quiet
from tests.runtime_support import Array

MODEL = "model.cuda.onnx"


def _answers(
    compiled: Path, given: list[dict[str, Array]], names: list[str]
) -> tuple[list[list[Array]], list[int]]:
    """What a session answers, and the launches of each run."""
    run, driver = session(compiled / MODEL, given={"tf32": "0"}), FakeDriver()
    answers, launches = [], []
    for each in given:
        with driver.counted() as counts:
            answers.append(run.run(names, each))
            driver.settled("launches")
        launches.append(counts["launches"])
    return answers, launches


@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_onnx_runtime(gpu: Call, tmp_path: Path, name: str) -> None:
    source, folder = gradient(name), tmp_path / "step.pitc"
    with emulator_compiles(tmp_path / "cache"):
        pitc.compile(source, f"cuda:{ARCH}", "attention_mask", output=folder, suggest=False)
    plain = ort.InferenceSession(ir.to_proto(source).SerializeToString(), quiet())
    names = [x.name for x in plain.get_outputs()]
    given = [feeds(lengths, name) for lengths in ([20, 1, 7], [33], [40, 40])]
    answers, launches = gpu(_answers, folder, given, names)
    for each, got in zip(given, answers, strict=True):
        want = [np.asarray(x) for x in plain.run(names, each)]
        largest = max(np.abs(x).max() for x in want)
        for which, a, b in zip(names, got, want, strict=True):
            assert np.abs(a - b).max(initial=0) <= 1e-5 * largest, which
    assert min(launches) > 4
