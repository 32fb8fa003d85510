"""What runs on GPUs have measured, for docs/cuda-developers.md: of each case the newest result.

Read from `benchmarks/results/gpu`, whose files say more: machine, driver, clocks, every round.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.gpu.journal import Result
from benchmarks.gpu.run import OURS

DEVICE = "NVIDIA H100 80GB HBM3"
"""Whose results are told."""
RESULTS = Path(__file__).parent.parent / "results" / "gpu"
STEPS = (
    "copy",
    "gemm",
    "spmm",
    "layer",
    "attention",
    "masks",
    "experts",
    "detector",
    "wgmma",
    "bert",
)
"""Whose times are told, in this order."""
PEERS = (
    *("cublas", "torch-padded", "torch-packed", "sdpa-padded", "sdpa", "sdpa-mask", "sdpa-causal"),
    *("flash-varlen", "flex", "torch-loop", "torch-grouped", "ort-cuda"),
)
"""Those that a person would take."""
SPARSE = ("cusparse-csr-made", "triton-bsr32-made")
"""The fastest of these is told; their lists are made before, which is in no time."""


def newest(folder: Path = RESULTS) -> list[Result]:
    """The newest result of each case on `DEVICE` that did not fail, in the order of `STEPS`."""
    found: dict[tuple[str, str], tuple[str, Result]] = {}
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text("utf-8"))
        for result in content["results"]:
            if result["step"] not in STEPS or "failed" in result or result.get("failed_parts"):
                continue
            key = result["step"], result["case"]["name"]
            call = content["calls"][result["call"]]
            if call["machine"]["gpu"]["name"] != DEVICE:
                continue
            began = call["began"]
            if key not in found or found[key][0] < began:
                found[key] = began, result
    ordered = sorted(found, key=lambda key: STEPS.index(key[0]))
    return [found[key][1] for key in ordered]


def table() -> Iterator[str]:
    """Lines of the table."""
    yield "| case | pitc, us | runs as | of the floor | against dense peers | sparse peers |"
    yield "|---|---|---|---|---|---|"
    for result in newest():
        us = {row["name"]: row["us"] for row in result["contenders"]}
        first = result["contenders"][0]
        told = next((row for row in result["contenders"] if row["name"] == OURS), first)
        runs_as = told.get("chosen") or told.get("tile") or told["name"]
        share = f"{result['share']:.0%}" if "share" in result else ""
        if "of_copy" in result:
            share = f"{result['of_copy']:.0%} of a copy's rate"
        cells = f"{told['us']:.1f}", runs_as.replace(OURS, ""), share
        sparse = _gains({name: us[name] for name in SPARSE if name in us}, told["us"])
        dense = _gains({name: us[name] for name in PEERS if name in us}, told["us"])
        best = min(sparse, key=sparse.__getitem__, default=None)
        last = f"{sparse[best]:.1f}x {best}" if best else ""
        peers = ", ".join(f"{gain:.2f}x {name}" for name, gain in dense.items())
        yield f"| `{result['case']['name']}` | {' | '.join(cells)} | {peers} | {last} |"


def _gains(us: Mapping[str, float], own: float) -> dict[str, float]:
    return {name: time / own for name, time in us.items() if time}
