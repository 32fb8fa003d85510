"""Products by matrices that an index names, on a GPU that is not there: by real kernels on the
emulator, in ONNX Runtime; whole layers of experts too.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import pitc
from models.experts import ExpertsConfig, experts
from models.half import half
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import pack_panels
from tests.cuda_emulator import ARCH
from tests.device_kernels import clocks, emulated_library, emulator_compiles, save_with
from tests.device_support import Call, FakeDriver, cuda_node, failure, on_device, session
from tests.plan_text import Plan
from tests.runtime_support import Array, make_model

KINDS = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}
GROUPS, K, N = 5, 40, 72
EXACT = {"tf32": "0"}


def dense(dtype: str) -> KernelRequest:
    flags = {"activation": "none", "residual": 0, "grouped": 1}
    return KernelRequest.of_cuda("gather_gemm", dtype, k=K, n=N, **flags)


LISTS = KernelRequest.of("group_rows", "int64", "cuda")


@pytest.fixture(name="library", scope="module")
def _library() -> Path:
    return emulated_library(LISTS, *map(dense, KINDS))


def matrices(dtype: str) -> Array:
    return np.random.default_rng(0).integers(-4, 5, (GROUPS, K, N)).astype(dtype)


def model(dtype: str, **changed: Any) -> onnx.ModelProto:
    kernels = f"dense:{dense(dtype).symbol},rows:{LISTS.symbol}"
    fields = {"dtype": dtype, "groups": GROUPS, "k": K, "kernels": kernels}
    fields |= {"library": "kernels.so", "n": N, "skips": 0}
    plan = Plan("grouped", tuple({**fields, **clocks(dtype, 300), **changed}.items()))
    panels = np.concatenate([pack_panels(w, np.dtype(dtype)) for w in matrices(dtype)])
    inputs = [("a", KINDS[dtype], [None] * 4), ("group", TensorProto.INT64, [None] * 2)]
    node = cuda_node("grouped", plan, ["a", "group", "b"], ["c"])
    outputs = [("c", KINDS[dtype], [None] * 4)]
    return make_model([node], inputs, outputs, (), {"b": panels})


def _answer(
    folder: Path, library: Path, dtype: str, feeds: dict[str, Array], placed: bool
) -> tuple[Array, dict[str, int]]:
    """What the node gives, and what the driver did for it; `placed`: operands lie on the device."""
    run = session(save_with(folder, library, model(dtype), f"{dtype}.onnx"), given=EXACT)
    driver, binding = FakeDriver(), run.io_binding()
    for name, array in feeds.items():
        value = on_device(array) if placed else onnxruntime.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("c")
    driver.settled("launches")
    with driver.counted() as counts:
        run.run_with_iobinding(binding)
        driver.settled("launches")
    return binding.copy_outputs_to_cpu()[0], counts


def answer(call: Call, folder: Path, library: Path, a: Array, group: Array, placed: bool) -> Array:
    """Right rows of all groups; in three launches."""
    feeds = {"a": a, "group": group}
    c, counts = call(_answer, folder, library, str(a.dtype), feeds, placed)
    assert counts["launches"] == (3 if c.size else 0)
    return np.asarray(c)


def expected(a: Array, group: Array) -> Array:
    w = matrices(str(a.dtype)).astype(np.float64)
    return np.asarray(a.astype(np.float64) @ w[group], a.dtype)


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("t", "shared", "j", "m"),
    [(1, 1, 1, 1), (90, 2, 2, 1), (33, 1, 3, 1), (4, 1, 1, 19), (5, 2, 2, 3), (0, 1, 2, 1)],
)
def test_rows_by_the_matrices_of_their_groups(
    gpu: Call,
    library: Path,
    tmp_path: Path,
    dtype: str,
    t: int,
    shared: int,
    j: int,
    m: int,
    placed: bool,
) -> None:
    if placed and not t:
        pytest.skip("a tensor without elements has no memory on a device")
    rng = np.random.default_rng([t, j, m])
    a = rng.integers(-4, 5, (t, shared, m, K)).astype(dtype)
    group = rng.choice([0, 1, 4, -2], (t, j))  # nothing of the third one
    got = answer(gpu, tmp_path, library, a, group, placed)
    np.testing.assert_array_equal(got, expected(a, group))


@pytest.mark.parametrize("placed", [False, True])
def test_what_is_no_group(gpu: Call, library: Path, tmp_path: Path, placed: bool) -> None:
    """It gives zeros, as a look-up of ONNX Runtime's does there: nobody waits for an error."""
    a, group = np.ones((4, 1, 1, K), np.float32), np.array([[1], [GROUPS], [-1], [-GROUPS - 1]])
    got = answer(gpu, tmp_path, library, a, group, placed)
    assert not got[[1, 3]].any()
    np.testing.assert_array_equal(got[[0, 2]], expected(a[[0, 2]], group[[0, 2]]))


def test_bad_shapes(gpu: Call, library: Path, tmp_path: Path) -> None:
    group = np.zeros((3, 2), np.int64)
    for a, text in (
        (np.ones((3, 2, 1, K + 1), np.float32), f"as float32 [3, 2 or 1, M, {K}]"),
        (np.ones((3, 3, 1, K), np.float32), f"as float32 [3, 2 or 1, M, {K}]"),
        (np.ones((2, 2, 1, K), np.float32), "as int64 [2, J]"),
    ):
        feeds = {"a": a, "group": group}
        assert text in failure(gpu, _answer, tmp_path, library, "float32", feeds, False)


def _compiled(folder: Path, feeds: dict[str, Array]) -> Array:
    run = session(folder / "model.cuda.onnx", given=EXACT)
    return np.asarray(run.run(None, feeds)[0])


@pytest.mark.parametrize("dtype", KINDS)
def test_a_layer_of_experts(gpu: Call, tmp_path: Path, dtype: str) -> None:
    config = ExpertsConfig("looked_up", 8, 64, 96, 2, gated=True, bias=True)
    source = experts(config, np.random.default_rng(0))
    source = half(source) if dtype == "float16" else source
    with emulator_compiles(tmp_path / "cache"):
        compiled = pitc.compile(source, f"cuda:{ARCH}", output=tmp_path / "m.pitc")
    assert [r.lowering for r in compiled.report.nodes].count("grouped") == 2
    plain = onnxruntime.InferenceSession(
        source.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for count in (1, 30):
        x = np.random.default_rng(count).standard_normal((count, 64)).astype(dtype)
        want = np.asarray(plain.run(None, {"x": x})[0]).astype(np.float32)
        got = gpu(_compiled, tmp_path / "m.pitc", {"x": x}).astype(np.float32)
        bound = 2e-2 if dtype == "float16" else 2e-5
        np.testing.assert_allclose(got, want, rtol=bound, atol=bound)
