"""What a host, or a folder, may do to a session: other kernels, odd rounding, too little memory."""

import ctypes
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.codegen import vector_math
from pitc.errors import ArtifactError
from pitc.ir.variants import FEATURES
from pitc.runtime.library import make_session
from pitc.session import run_session
from tests.plan_text import contract_plan
from tests.runtime_support import (
    BOOL,
    COORDS,
    FLOAT,
    MASK,
    ROWS,
    Array,
    creation_error,
    gemm_plan,
    kernel_plan,
    make_model,
    pit_node,
    quiet_options,
    run_python,
    save,
    session,
    use_built_provider,
)

B, S, D = 2, 16, 32


@pytest.fixture(scope="module", autouse=True)
def _provider() -> Iterator[None]:
    yield from use_built_provider()


def encoder() -> onnx.ModelProto:
    """A layer with a kernel that has an activation, behind a mask."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "up"),
        helper.make_node("Sigmoid", ["h"], ["g"]),
        helper.make_node("Mul", ["h", "g"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["y"], "down"),
    ]
    weights = {"w": rng.standard_normal((D, 4 * D)), "v": rng.standard_normal((4 * D, D)) / D}
    graph = helper.make_graph(
        nodes,
        "layer",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", D]),
            helper.make_tensor_value_info("mask", TensorProto.INT64, ["b", "s"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "s", D])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def feeds() -> dict[str, Array]:
    rng = np.random.default_rng(5)
    mask = (np.arange(S) < np.array([[11], [16]])).astype(np.int64)
    return {"x": rng.standard_normal((B, S, D), dtype=np.float32), "mask": mask}


@pytest.fixture(name="artifact", scope="module")
def _artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults") / "layer.pitc"
    compiled = pitc.compile(encoder(), padding="mask", output=path)
    assert compiled.manifest.kernels is not None
    return path


def test_kernels_of_another_build_are_refused(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same symbols and arguments, other code: every host sees it when it makes a session."""
    monkeypatch.setattr(vector_math, "_QUICK", 1.7)
    monkeypatch.setattr(vector_math, "EXP_MIN", -50.0)
    # The cache knows kernels by the files that they are made from.
    other = pitc.compile(encoder(), padding="mask", output=tmp_path / "other.pitc", cache=False)
    mixed = tmp_path / "mixed.pitc"
    shutil.copytree(artifact, mixed)
    make_session(mixed / "model.onnx", quiet_options())
    shutil.copy(other.path / "kernels.so", mixed / "kernels.so.new")
    (mixed / "kernels.so.new").replace(mixed / "kernels.so")
    with pytest.raises(ArtifactError) as caught:
        make_session(mixed / "model.onnx", quiet_options())
    text = str(caught.value)
    assert "expected kernels '2/pitc-" in text and "in 'kernels.so', got '2/pitc-" in text
    assert f"run: pitc compile MODEL.onnx -o '{mixed}' --force" in text and "\n" not in text
    options = quiet_options()  # as a host without pitc's Python does it
    devices = [d for d in ort.get_ep_devices() if d.ep_name == pitc.get_ep_name()]
    options.add_provider_for_devices(devices[:1], {})
    with pytest.raises(Exception, match=r"expected kernels '2/pitc-.*run: pitc compile"):
        ort.InferenceSession(mixed / "model.onnx", options, enable_fallback=0)
    with pytest.raises(ArtifactError, match=r"damaged: kernels\.so"):
        pitc.load(mixed)


def test_plans_of_another_version_say_what_mends(tmp_path: Path) -> None:
    plan = kernel_plan("pack", "pack_b4", dims="l,r").text()
    for text, said in (
        (plan.replace("pitc-plan 9", "pitc-plan 2"), "expected the line 'pitc-plan 9'"),
        (plan + "identity=3/later\n", "expected identity as 2/"),
    ):
        node = pit_node("p", text, ["x", "rows", "coords", "live"], ["y"])
        values = [("x", FLOAT, ["n", 4]), ROWS, COORDS, MASK]
        path = save(tmp_path, make_model([node], values, [("y", FLOAT, ["t", 4])]))
        error = creation_error(path)
        assert said in error and "compile the model again for this version of pitc" in error


@contextmanager
def float_mode(control: int) -> Iterator[None]:
    """This thread's MXCSR while the block runs, which must not change it."""
    libm = ctypes.CDLL("libm.so.6")
    before, now = (ctypes.create_string_buffer(32) for _ in range(2))  # fenv_t; MXCSR is its end
    libm.fegetenv(before)
    changed = ctypes.create_string_buffer(before.raw[:28] + control.to_bytes(4, "little"), 32)
    libm.fesetenv(changed)
    yield
    libm.fegetenv(now)
    libm.fesetenv(before)
    assert int.from_bytes(now.raw[28:], "little") & ~0x3F == control


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is of x86-64")
@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_the_rounding_mode(artifact: Path, threads: int) -> None:
    """Modes of a host thread, and of pool threads, which begin with their maker's."""
    model = onnx.load(artifact / "model.onnx")
    assert {n.op_type for n in model.graph.node} & {"EPContext"}
    plain = make_session(artifact / "model.onnx", quiet_options(threads))
    given = feeds()
    given["x"][0, 0] = np.float32(1e-41)  # a denormal product
    (want,) = plain.run(None, given)
    for control in (0x3F80, 0x5F80, 0x7F80, 0x9FC0):  # down, up, to zero; denormals are 0
        with float_mode(control):
            strange = make_session(artifact / "model.onnx", quiet_options(threads))
            found = [s.run(None, given)[0] for s in (plain, strange)]
        for y in found:
            np.testing.assert_array_equal(y, want)


def test_denormals_are_zero_where_the_session_says_so(tmp_path: Path) -> None:
    """By ONNX Runtime's own option, on every thread alike."""
    plan = gemm_plan(1, 1)
    values = [("a", FLOAT, ["t", 1]), ("b", FLOAT, [1, 1, 1])]
    node = pit_node("g", plan, ["a", "b"], ["y"])
    path = save(tmp_path, make_model([node], values, [("y", FLOAT, ["t", 1])]))
    given = {"a": np.full((3, 1), 1e-41, np.float32), "b": np.ones((1, 1, 1), np.float32)}
    assert session(path).run(None, given)[0].all()
    options = quiet_options()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    assert not session(path, options).run(None, given)[0].any()


SMALL_MEMORY = """
import resource, sys
import numpy as np
from pitc.session import run_session
from tests.runtime_support import quiet_options, session

run = session(sys.argv[1], quiet_options(2))
rows = np.zeros(0, np.int32)
given = {"packed": np.zeros((0, 1 << 20), np.float32), "rows": rows,
         "coords": np.zeros((2, 0), np.int32), "live": np.zeros((1, 1 << 10), bool)}
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
try:
    run.run(None, given)
except Exception as error:
    print(type(error).__name__, error)
try:
    run_session(run, given)
except MemoryError:
    print("MemoryError")
"""


def test_out_of_memory_is_its_own_error(tmp_path: Path) -> None:
    plan = kernel_plan("unpack", "unpack_b4", dims="c0,c1,r")
    node = pit_node("u", plan, ["packed", "rows", "coords", "live"], ["y"])
    values = [("packed", FLOAT, ["t", "d"]), ROWS, COORDS, ("live", BOOL, ["b", "s"])]
    path = save(tmp_path, make_model([node], values, [("y", FLOAT, ["b", "s", "d"])]))
    first, second = run_python(SMALL_MEMORY, str(path)).splitlines()
    assert first.startswith("EPFail") and "pitc: node 'u' (unpack): out of memory" in first
    assert second == "MemoryError"


LARGE_SCRATCH = """
import sys, threading
import numpy as np
from tests.runtime_support import quiet_options, session

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

run = session(sys.argv[1], quiet_options(1), variant="row")
given = {"a": np.ones((30000, 520), np.float32), "b": np.ones((1, 520, 16), np.float32)}
end = threading.Event()

def work(done):
    for _ in range(2):
        run.run(None, given)
    done.set()
    end.wait()  # idle, but still there

found = [resident()]
for _ in range(3):
    done = threading.Event()
    threading.Thread(target=work, args=(done,), daemon=True).start()
    done.wait()
    found.append(resident())
print(found[-1] - found[1], found[1] - found[0])
"""


def test_idle_threads_keep_no_large_scratch_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes over 64 MiB, which the next one gets, on whatever thread it runs."""
    costs = {f"cost_row_{level}": ",".join(len(FEATURES) * "1") for level in ("v3", "v4")}
    plan = contract_plan(k=520, n=2, skips=1, **costs)
    node = pit_node("c", plan, ["a", "b"], ["y"])
    values = [("a", FLOAT, ["t", 520]), ("b", FLOAT, [1, 520, 16])]
    path = save(tmp_path, make_model([node], values, [("y", FLOAT, ["t", 2])]))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # the reference kernels' own is not of interest
    grown, first = map(int, run_python(LARGE_SCRATCH, str(path)).split())
    assert first > 64 and grown < 32


def test_a_run_that_fails_otherwise_is_the_users(artifact: Path) -> None:
    given = feeds() | {"mask": np.ones((B, S - 1), np.int64)}
    with pytest.raises(pitc.errors.UsageError):
        run_session(make_session(artifact / "model.onnx", quiet_options()), given)
