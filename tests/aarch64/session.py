"""Whole models in ONNX Runtime on emulated 64-bit Arm, with the plug-in and artifacts made here.

    model -> pitc.compile(.., "cpu:neon") -> guest.py, there -> answers -> compare with
                                                         ONNX Runtime's there, and its here

Differences pass as those of `pitc verify` do.
"""

import itertools
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import pitc
from models.graph import Array
from pitc.api import import_model
from pitc.check.tolerance import arithmetic_of
from pitc.check.verify import Rules, compare
from pitc.errors import ModelError
from pitc.measure.trace import read_lines
from pitc.passes.live_scales import scale_by_live_tokens
from pitc.session import arrays, plain_session
from tests.aarch64.cases import SOURCES, chosen
from tests.aarch64.plugin import library
from tests.aarch64.python import Machine, Unavailable, python
from tests.declared_tokens import live_of
from tests.device_models import EXACT, Model, reference
from tests.random_check import lowering_everything
from tests.runtime_support import ROOT

Answers = dict[int, dict[str, Array]]

WORK = ROOT / "build" / "aarch64-session"
TARGET = "cpu:neon"
MACHINES = (("cortex-a72", 1), ("max", 2))
"""CPUs, the oldest of Armv8 and everything that the emulator has; and threads."""
TOGETHER = 8
"""Models that one process of the emulator runs."""


def prepare(folder: Path, model: Model) -> onnx.ModelProto:
    """Write a model, its artifact and its inputs.

    Returns:
        What the artifact is compared with: with padding, dynamic scales are those of real tokens.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
    """
    folder.mkdir(parents=True)
    source, read = model.proto, import_model(model.proto)[0]
    if scale_by_live_tokens(read, model.padding):
        source = ir.serde.serialize_model(read)
    plain_session(source.SerializeToString())
    with lowering_everything() if model.eager else nullcontext():
        place = folder / "model.pitc"
        pitc.compile(model.proto, TARGET, model.padding, output=place, suggest=False)
    onnx.save(source, folder / "source.onnx")
    feeds = {f"{i}/{n}": x for i, case in enumerate(model.feeds) for n, x in case.feeds.items()}
    save: Any = np.savez  # its arrays' names are none of its options
    save(folder / "feeds.npz", runs=np.arange(len(model.feeds)), **feeds)
    given = {key: value for key, value in model.given.items() if key not in EXACT}
    given |= {"trace": str(folder / "trace")} if given else {}
    (folder / "given.json").write_text(json.dumps(given))
    return source


def run(folders: Sequence[Path], machine: Machine) -> None:
    """Run models there; one that ends the process leaves no answer, and the others go on."""
    told = f"{machine.name}.json"
    guest = Path(__file__).with_name("guest.py")
    program = [*machine.command, str(guest), machine.name, str(machine.threads)]
    waiting = list(folders)
    while waiting:
        words = [*program, *map(str, waiting)]
        done = subprocess.run(words, env=machine.environment, capture_output=True)
        at = next((i for i, folder in enumerate(waiting) if not (folder / told).exists()), None)
        if at is None:
            return
        said = done.stderr.decode(errors="replace").strip()[-400:]
        text = json.dumps({"": f"the process ended ({done.returncode}): {said}"})
        (waiting[at] / told).write_text(text)
        waiting = waiting[at + 1 :]


def answers(file: Path) -> dict[str, Answers]:
    """What was answered there, by who did (`want`, `rough`, `got`) and the number of the run."""
    found: dict[str, Answers] = {"want": {}, "rough": {}, "got": {}}
    if file.exists():
        with np.load(file) as stored:
            for key in stored.files:
                who, number, name = key.split("/", 2)
                found[who].setdefault(int(number), {})[name] = stored[key]
    return found


def differences(model: Model, got: Answers, want: Answers, rough: Answers) -> Iterator[str]:
    """Where answers are not within the tolerance of `pitc verify`, one line each."""
    numbers = [number for number in sorted(want) if number in got]
    number_of = {id(model.feeds[number].feeds): number for number in numbers}
    result = compare(
        lambda feeds: got[number_of[id(feeds)]],
        lambda feeds: want[number_of[id(feeds)]],
        [model.feeds[number] for number in numbers],
        Rules(
            padding=live_of(model.padding),
            token_outputs=model.tokens,
            tolerance=model.tolerance,
            arithmetic=arithmetic_of(import_model(model.proto)[0]),
            plain=lambda: lambda feeds: rough.get(number_of[id(feeds)], {}),
        ),
    )
    for o in result.outputs:
        if not o.ok:
            yield f"{o.output}: " + (
                o.problem
                or f"off by {o.norm:.2g} of its norm, {o.tolerance:.2g} passes ({o.worst})"
            )


def check(
    folder: Path, model: Model, source: onnx.ModelProto, machines: Sequence[Machine]
) -> tuple[list[str], Counter[str]]:
    """What differs, and what was counted, of a model that ran on every machine.

    Where ONNX Runtime itself answers otherwise there than here, either answer is right: on a CPU
    with float16 it rounds each step of float16, and a sequence without a token is nothing but
    rounding.
    """
    wrong: list[str] = []
    counts: Counter[str] = Counter(models=1)
    counts["PIT nodes"] = pitc.load(folder / "model.pitc").manifest.pit_nodes
    names = [output.name for output in source.graph.output]
    here = {
        number: arrays(dict(zip(names, outputs, strict=True)))
        for number, outputs in reference(replace(model, proto=source)).items()
    }
    for name in (machine.name for machine in machines):
        found = answers(folder / f"{name}.npz")
        failures = json.loads((folder / f"{name}.json").read_text())
        wrong += [f"{name}: run {number}: {text}" for number, text in failures.items()]
        got, want, rough = found["got"], found["want"], found["rough"]
        counts["runs"] += len(got)
        counts["refused runs"] += len(model.feeds) - len(want)
        for number in got:
            mine, its, other = ({number: x.get(number, {})} for x in (got, want, here))
            pairs = ((its, rough), (other, {}))  # what is rough there is no measure of answers here
            both = [list(differences(model, mine, *pair)) for pair in pairs]
            unlike = number not in here or any(differences(model, its, other, {}))
            counts["runs that ONNX Runtime answers otherwise there"] += unlike
            if not unlike or all(both):
                wrong += [f"{name}: {text}" for text in both[0]]
                wrong += [f"{name}, not as here: {text}" for text in both[1]]
    if (folder / "trace").exists():
        decisions = Counter(d.chosen for d in read_lines(folder / "trace").products)
        counts.update({f"chose {name}": n for name, n in decisions.items()})
    return wrong, counts


def session(which: str = "sample") -> bool:
    """Run models on every machine; whether all answers are right."""
    if which not in ("sample", "all", *SOURCES):
        raise Unavailable(f"no source {which!r}: sample, all, {', '.join(SOURCES)}")
    there = [python(cpu, threads, library()) for cpu, threads in MACHINES]
    shutil.rmtree(WORK, ignore_errors=True)
    total, failed = Counter[str](), 0
    cases = enumerate(chosen(which))
    while batch := list(itertools.islice(cases, TOGETHER)):
        ready: dict[str, tuple[Path, Model, onnx.ModelProto]] = {}
        for number, (name, make) in batch:
            folder, model = WORK / str(number), make()
            try:
                source = prepare(folder, model)
            except ModelError:
                total["refused models"] += 1
                continue
            if pitc.load(folder / "model.pitc").manifest.pit_nodes:
                ready[name] = folder, model, source
            else:  # nothing of pitc would run
                total["models without PIT nodes"] += 1
        for machine in there:
            run([folder for folder, *_ in ready.values()], machine)
        for name, case in ready.items():
            wrong, counts = check(*case, there)
            total += counts
            failed += bool(wrong)
            print(f"{'FAILED' if wrong else 'ok'}  {name}", *wrong, sep="\n    ", flush=True)
            if not wrong:
                shutil.rmtree(case[0])
    print(f"{failed} failed; " + ", ".join(f"{key}: {n}" for key, n in sorted(total.items())))
    return not failed
