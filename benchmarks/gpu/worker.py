"""A process of a run: works through steps, and tells of each case in its journal."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu import pack
from benchmarks.gpu.driver import Device
from benchmarks.gpu.facts import clocks
from benchmarks.gpu.goals import GOALS, device_of
from benchmarks.gpu.journal import LOST, Case, Journal, Lost, Result, Telling, run_cases
from benchmarks.gpu.library import CudaLibrary
from benchmarks.gpu.products import Machine
from benchmarks.gpu.run import OURS, Run

ROUNDS = 15


def work(folder: Path, journal: Path, steps: Sequence[str], *, small: bool) -> None:
    """Work through steps; the process ends with `LOST` where its device is lost.

    Args:
        folder: The pack.
        journal: Where to tell of cases; what is done there is left out.
        steps: Of one process (`steps.STEPS`).
        small: Sizes for an emulated device.
    """
    device = Device()
    told = Journal(journal)
    with clocks() as since_last:
        for step in steps:
            found = (
                with_goal(_with_clocks(case, since_last), device.name)
                for case in cases(step, folder, device, small=small)
            )
            try:
                run_cases(step, found, told, device.is_lost)
            except Lost:
                os._exit(LOST)  # what lies on the device cannot be freed


def _with_clocks(case: Case, since_last: Callable[[], Mapping[str, object]]) -> Case:
    return replace(case, run=lambda telling: {**case.run(telling), "clocks": since_last()})


def with_goal(case: Case, device: str) -> Case:
    """A case with what its floor is on the device, and which share of it is the goal."""
    name, goal = device_of(device), GOALS.get(case.name)
    if not name or not goal:
        return case
    floor = goal.floor(name)
    facts = {"floor_us": floor.us, "floor_of": floor.limit, "targets": {"share": goal.shares[name]}}

    def run(telling: Telling) -> Result:
        result = case.run(telling)
        ours = next((r for r in result["contenders"] if r["name"] == OURS and r["us"]), None)
        return result | ({"share": floor.us / ours["us"]} if ours else {})

    return replace(case, facts={**case.facts, **facts}, run=run)


_shared: dict[Path, Run] = {}


def _run(folder: Path, device: Device, *, small: bool) -> Run:
    """The device and its kernels, which all timed steps share."""
    if folder not in _shared:
        machine = Machine(device, CudaLibrary(device, folder / "kernels.so"))
        _shared[folder] = Run(machine, 2 if small else ROUNDS, small)
    return _shared[folder]


def cases(step: str, folder: Path, device: Device, *, small: bool) -> Iterator[Case]:
    """The cases of a step; nothing runs before one of them is asked to."""
    archs = json.loads((folder / pack.FACTS).read_text())["archs"]
    if step in ("sessions", "bert"):
        from benchmarks.gpu import sessions

        if step == "sessions":
            return sessions.session_cases(folder, archs, small=small)
        return sessions.bert_cases(folder, archs, small=small, rounds=2 if small else ROUNDS)
    if step == "counters":
        from benchmarks.gpu.counters import counter_cases

        return counter_cases(folder, small=small)
    run = _run(folder, device, small=small)
    return _timed(run, folder)[step]()


def _timed(run: Run, folder: Path) -> Mapping[str, Callable[[], Iterator[Case]]]:
    from benchmarks.gpu import (
        elementwise_cases,
        expert_cases,
        gradient_cases,
        layer_cases,
        mask_cases,
        prices,
        product_cases,
        smoke,
        tiles,
        wgmma,
    )

    return {
        "smoke": lambda: smoke.smoke_cases(run.machine),
        "copy": lambda: product_cases.copy_cases(run),
        "gemm": lambda: product_cases.gemm_cases(run),
        "spmm": lambda: product_cases.spmm_cases(run),
        "detector": lambda: product_cases.detector_cases(run),
        "layer": lambda: layer_cases.layer_cases(run),
        "attention": lambda: layer_cases.attention_cases(run),
        "masks": lambda: mask_cases.mask_cases(run),
        "elementwise": lambda: elementwise_cases.elementwise_cases(run),
        "experts": lambda: expert_cases.expert_cases(run),
        "gradients": lambda: gradient_cases.gradient_cases(run),
        "wgmma": lambda: wgmma.wgmma_cases(run, folder),
        "tiles": lambda: tiles.tile_cases(run, folder),
        "prices": lambda: prices.price_cases(run),
    }
