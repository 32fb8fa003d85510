"""Builds of `runtime/`, and small models of PIT nodes written by hand."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from filelock import FileLock
from onnx import TensorProto, helper

from pitc.ir.plan import EP_NAME, PLAN_VERSION, stamped
from tests.plan_text import Plan, contract_plan

if TYPE_CHECKING:
    import onnxruntime

ROOT = Path(__file__).parents[1]
#: A finished build to use instead of the plain one, set for a process that runs under a sanitizer.
BUILD_VARIABLE = "PITC_TEST_RUNTIME_BUILD"
SANITIZERS = {"plain": "", "asan": "address,undefined", "tsan": "thread"}

Array = np.ndarray[Any, Any]
#: (name, element type, shape; None when even the rank is unknown)
Value = tuple[str, int, Sequence[str | int | None] | None]


def tool(name: str) -> str:
    """A program of the environment that runs the tests, else one on the path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else shutil.which(name) or name


def cmake(*arguments: str | Path) -> None:
    """Run CMake; its output is shown only when it fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    run = subprocess.run(
        [tool("cmake"), *map(str, arguments)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]


def build(flavour: str, *targets: str) -> Path:
    """Build the library, its tests and the reference kernels; what is up to date stays.

    Args:
        flavour: A key of `SANITIZERS`.
        targets: What to build if not everything.
    """
    folder = ROOT / "build" / f"runtime-{flavour}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        options = [
            f"-DPITC_SANITIZE={SANITIZERS[flavour]}",
            f"-DPython3_EXECUTABLE={sys.executable}",
        ]
        cmake("-S", ROOT / "runtime", "-B", folder, "-G", "Ninja", "-DPITC_TESTS=ON", *options)
        cmake("--build", folder, *(["--target", *targets] if targets else []))
    return folder


@functools.cache
def built() -> Path:
    """The build that this process tests."""
    finished = os.environ.get(BUILD_VARIABLE)
    return Path(finished) if finished else build("plain")


def pit_node(
    name: str,
    plan: Plan | str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    source: str = EP_NAME,
) -> onnx.NodeProto:
    """An EPContext node; a plan may be given as text."""
    return helper.make_node(
        "EPContext",
        list(inputs),
        list(outputs),
        name=name,
        domain="com.microsoft",
        main_context=1,
        embed_mode=1,
        ep_cache_context=plan.text() if isinstance(plan, Plan) else plan,
        source=source,
        partition_name=name,
        ep_sdk_version=f"pitc-plan {PLAN_VERSION}",
    )


def kernel_plan(op: str, kernel: str, **fields: int | float | str) -> Plan:
    """A plan of an operation that runs a kernel of the reference library."""
    words = {"pack_b4": "int32", "unpack_b4": "int32", "pack_b1": "int8", "unpack_b1": "int8"}
    fields = {"dtype": words.get(kernel, "float32"), **fields}
    role = op if op.startswith("attention") else "dense" if op == "outer_products" else "move"
    kernels = f"{role}:{kernel}" + (f",pairs:{kernel}_pairs" if fields.get("pairs") else "")
    kernels += ",listed:outer_products" if fields.get("masked") else ""
    named = {"kernels": kernels, "library": "kernels.so"}
    return Plan(op, tuple({**fields, **named}.items()))


def gemm_plan(
    k: int,
    n: int,
    activation: str = "none",
    *,
    bias: int = 0,
    gather: int = 0,
    residual: int = 0,
    scatter: int = 0,
) -> Plan:
    flags = {"bias": bias, "gather": gather, "residual": residual, "scatter": scatter}
    return contract_plan(activation=activation, k=k, n=n, **flags)


def attention_plan(
    d: int,
    dv: int,
    heads: int,
    *,
    first: tuple[int, int, int] = (0, 0, 0),
    scale: float = 0.5,
    bias: int = 0,
    nan_to_zero: int = 0,
    no_keys_to_zero: int = 0,
    no_pairs: str = "nan",
    whole: int = 0,
    pairs: int = 0,
    group: int | None = None,
    steps: Mapping[str, int | float] | None = None,
) -> Plan:
    """A plan of attention; `steps` are the fields of what it rounds to, of its cap or its sinks."""
    steps = steps or {}
    kinds = {"score_cap": "score_cap", "score_step": "score_steps", "weight_step": "weight_steps"}
    kinds = {"sinks": "sink", **kinds}
    rounds = [kind for name, kind in kinds.items() if name in steps]
    fields = dict(zip(("q_head", "k_head", "v_head"), first, strict=True))
    fields |= {} if group is None else {"group": group}
    return kernel_plan(
        "attention",
        f"attention_d{d}_v{dv}" + ("_bias" if bias else "") + "".join(f"_{x}" for x in rounds),
        **fields,
        **steps,
        bias=bias,
        d=d,
        dv=dv,
        heads=heads,
        nan_to_zero=nan_to_zero,
        no_keys_to_zero=no_keys_to_zero,
        no_pairs=no_pairs,
        pairs=pairs,
        scale=float(scale),
        whole=whole,
    )


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    values: Sequence[Value] = (),
    constants: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:
    """A model; outputs of PIT nodes that stay inside need an entry in `values`."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [info(*value) for value in inputs],
        [info(*value) for value in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
        value_info=[info(*value) for value in values],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def kernel_identity(library: Path) -> str:
    """The identity of a kernel library, found in the file."""
    found = re.findall(rb"2/(?:reference|pitc-[^\0]+)(?=\0)", library.read_bytes())
    assert len(found) == 1, found
    return str(found[0].decode())


def stamp(model: onnx.ModelProto, identity: str) -> onnx.ModelProto:
    """Write the identity of their kernels into the plans that have none; in place."""
    graphs = [model.graph]
    for graph in graphs:
        for attribute in (a for node in graph.node for a in node.attribute):
            graphs += [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else []
            if attribute.name == "ep_cache_context" and b"\nidentity=" not in attribute.s:
                text = attribute.s.decode("utf-8", "surrogateescape")
                attribute.s = stamped(text, identity).encode("utf-8", "surrogateescape")
    return model


def save(folder: Path, model: onnx.ModelProto, name: str = "model.onnx") -> Path:
    """Write a model with kernels beside it: those of the folder, else the reference kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "kernels.so").exists():
        shutil.copy(built() / "tests" / "reference_kernels.so", folder / "kernels.so")
    onnx.save(stamp(model, kernel_identity(folder / "kernels.so")), folder / name)
    return folder / name


def panels(b: Array, width: int) -> Array:
    """B `[K, N]` as panels `[P, K, width]`, padded with zeros."""
    k, n = b.shape
    count = -(-n // width)
    padded = np.zeros((k, count * width), np.float32)
    padded[:, :n] = b
    return np.ascontiguousarray(padded.reshape(k, count, width).transpose(1, 0, 2))


def points(live: Array) -> tuple[Array, Array, Array]:
    """rows, coords and offsets of a mask, by numpy."""
    coords = np.stack(np.nonzero(live)).astype(np.int32)
    counts = live.reshape(int(np.prod(live.shape[:-1])), live.shape[-1]).sum(1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return np.flatnonzero(live).astype(np.int32), coords, offsets


FLOAT, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.BOOL
ROWS: Value = ("rows", INT32, ["t"])
COORDS: Value = ("coords", INT32, ["r", "t"])
OFFSETS: Value = ("offsets", INT32, ["m"])
MASK: Value = ("live", BOOL, ["b", "s"])
DETECT = Plan("detect", (("rank", 2),))


def use_built_provider() -> Iterator[None]:
    """Body of a fixture: register the provider of `built()`, unless one is registered already."""
    from pitc.runtime.library import register_ep

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PITC_EP_LIBRARY", str(built() / "libpitc_ort_ep.so"))
        register_ep()
        yield


def quiet_options(threads: int = 1) -> "onnxruntime.SessionOptions":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    return options


def session(
    path: Path, options: "onnxruntime.SessionOptions | None" = None, **provider_options: str
) -> Any:
    """An InferenceSession, typed as Any: its results are arrays in all tests."""
    from pitc.runtime.library import make_session

    return make_session(path, options or quiet_options(), provider_options)


def creation_error(path: Path, options: Any = None, **provider_options: str) -> str:
    """What is said when a session cannot be made."""
    with pytest.raises(Exception) as caught:
        session(path, options, **provider_options)
    return str(caught.value)


def answers_on_eight_threads(
    run: Any, feeds: Sequence[Mapping[str, Array]], rounds: int
) -> list[list[Array]]:
    """What a session answers to some inputs, and each time on eight threads at once, to the bit."""
    expected = [run.run(None, given) for given in feeds]

    def wrong(i: int) -> int:
        orders = [(i + k) % len(feeds) for k in range(rounds)]
        pairs = ((run.run(None, feeds[j]), expected[j]) for j in orders)
        return sum(not all(map(np.array_equal, got, want)) for got, want in pairs)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(wrong, range(8))) == 0
    return expected


def detect_model(node: onnx.NodeProto | None = None) -> onnx.ModelProto:
    node = node or pit_node("d", DETECT, ["live"], ["rows", "coords", "offsets"])
    return make_model([node], [("live", BOOL, ["b", "s"])], [ROWS, COORDS, OFFSETS])


def run_python(code: str, *arguments: str, library: Path | None = None) -> str:
    """What a new process prints that uses a library, the one of `built()` if none is named."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PITC_EP_LIBRARY": str(library or built() / "libpitc_ort_ep.so"),
    }
    command = [sys.executable, "-c", code, *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


Run = Callable[..., list[Array]]


def loader(tmp_path: Path) -> Callable[..., Run]:
    """Make sessions of models and return their run functions, which take inputs by name."""

    def load(model: onnx.ModelProto, threads: int = 1, level: str | None = None) -> Run:
        options = quiet_options(threads)
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        made = session(save(tmp_path, model), options, **({"cpu_level": level} if level else {}))
        return lambda **feeds: made.run(None, feeds)

    return load


def masks(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[Array]:
    """Nothing live, all live, and three random densities."""
    for density in (0.0, 1.0, 0.1, 0.5, 0.9):
        yield rng.random(shape) < density
