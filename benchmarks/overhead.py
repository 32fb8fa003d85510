"""What a small PIT node costs beyond its kernel: `python -m benchmarks.overhead`.

Chains of products of few packed rows, long and short, differ by nodes alone: their time, less that
of the kernel, which is called directly and with nothing to do. Beside it an ordinary node of ONNX
Runtime, a Relu of as many rows.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnx
import typer

import pitc
from benchmarks.machine import machine_facts
from benchmarks.report import RESULTS
from models.graph import GraphBuilder
from pitc.codegen.call import KernelLibrary
from pitc.host.machine import cpu_level
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import pack_panels
from pitc.measure.timing import pinned
from pitc.options import LEVELS

SCHEMA = 1
GOAL_US = 3.0
ROWS, WIDTH = 8, 64
SHORT, LONG = 8, 72  # nodes
CALLS = 200  # of a round
Array = np.ndarray


def chain(nodes: int, step: str) -> onnx.ModelProto:
    """A model of so many products, or of so many Relus, one behind the other."""
    g = GraphBuilder(f"{step}-{nodes}")
    x = g.input("x", np.float32, ("b", "s", WIDTH))
    mask = g.input("mask", np.int64, ("b", "s"))
    rng = np.random.default_rng(0)
    for i in range(nodes):
        if step == "Relu":
            x = g.op("Relu", g.op("Neg", x) if i % 2 else x)
        else:
            w = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
            x = g.op("MatMul", x, g.weight(f"w{i}", w))
    if step == "MatMul":
        live = g.op("Unsqueeze", g.op("Cast", mask, to=onnx.TensorProto.FLOAT), g.ints(2))
        x = g.op("Mul", x, live)
    g.output(x, "y", np.float32, ("b", "s", WIDTH))
    return g.model()


def per_call_us(run: Callable[[], Any], calls: int = CALLS) -> float:
    """Microseconds of a call."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls * 1e6


def kernel_calls(folder: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The kernel of such a node, on all rows and on none."""
    level = LEVELS[cpu_level() or "v3"]
    request = KernelRequest.of("gather_gemm", k=WIDTH, n=WIDTH, activation="none", residual=0)
    library = KernelLibrary(folder / "kernels.so")
    rows = np.arange(ROWS, dtype=np.int32)
    a, b = np.ones((ROWS, WIDTH), np.float32), pack_panels(np.ones((WIDTH, WIDTH), np.float32))
    memory = [a, rows, b, np.zeros(WIDTH, np.float32), rows, np.zeros_like(a)]
    bound = [library.bind(f"{request.symbol}_{level}", *memory, 0, n, 0, 1) for n in (ROWS, 0)]
    return bound[0], bound[1]


def command(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 41,
    json_file: Annotated[
        Path, typer.Option("--json", help="The result.", show_default="benchmarks/results")
    ] = RESULTS / "overhead.json",
) -> None:
    """Measure what a small PIT node costs beyond its kernel."""
    feeds = {"x": np.ones((1, ROWS, WIDTH), np.float32), "mask": np.ones((1, ROWS), np.int64)}
    with tempfile.TemporaryDirectory() as name, pinned(1):
        contenders: dict[str, Callable[[], Any]] = {}
        for nodes in (SHORT, LONG):
            compiled = pitc.compile(chain(nodes, "MatMul"), padding="mask")
            compiled.save(Path(name) / f"{nodes}.pitc")
            for kind, model in (("pit", compiled), ("ort", pitc.compile(chain(nodes, "Relu")))):
                session = model.session()
                given = {i.name: feeds[i.name] for i in session.get_inputs()}
                contenders[f"{kind}{nodes}"] = lambda s=session, f=given: s.run(None, f)
        contenders["kernel"], contenders["nothing"] = kernel_calls(Path(name) / f"{LONG}.pitc")
        taken: dict[str, list[float]] = {who: [] for who in contenders}
        for turn in range(rounds + 1):
            for who, run in contenders.items():
                us = per_call_us(run)
                if turn:
                    taken[who].append(us)
    us = {who: median(each) for who, each in taken.items()}
    node = (us[f"pit{LONG}"] - us[f"pit{SHORT}"]) / (LONG - SHORT)
    kernel = us["kernel"] - us["nothing"]
    ordinary = (us[f"ort{LONG}"] - us[f"ort{SHORT}"]) / (1.5 * (LONG - SHORT))  # half have a Neg
    found = {"node_us": node, "kernel_us": kernel, "beyond_us": node - kernel}
    found |= {"ordinary_node_us": ordinary, "goal_us": GOAL_US}
    print({key: round(value, 3) for key, value in found.items()})
    body = {"schema": SCHEMA, "case": {"name": "overhead", "rows": ROWS, "width": WIDTH}}
    body |= {"machine": machine_facts()} | found
    json_file.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    typer.run(command)
