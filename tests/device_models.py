"""Whole models on the GPU that is not there: compiled for GPUs, run in ONNX Runtime, compared.

    with emulated_process() as call:
        found = call(run_case, folder, "nodes", "test_add")

Kernels are the emulator's, device memory is closed to the host, nodes that are not ours run on the
CPU. Every case is known by its name in one of `SOURCES`, so that another process can make it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

import pitc
from pitc.check.feeds import Case as Feeds
from pitc.check.verify import Rules, compare
from pitc.errors import ModelError
from pitc.ir.plan import CUDA_EP_NAME
from pitc.ir.report import TokenPlace
from pitc.session import plain_session
from tests.declared_tokens import live_of
from tests.device_kernels import ARCH, kept_kernels
from tests.device_support import FakeDriver, session, told
from tests.random_check import lowering_everything
from tests.random_nodes import plan_of

GRAPH = "model.cuda.onnx"
EXACT = {"tf32": "0"}
"""float32 is multiplied as float32."""
DONE = ("launches", "copies_up", "copies_down", "waits")
"""What is counted of a driver."""
WAITS = 3
"""Of ONNX Runtime and our provider for a copy that a node of the CPU reads; a run ends with one."""
TF32_KERNELS = "f32_mma"
"""What their symbols have in them."""
LOOKS_BACK = ("sparse", "ffn")
"""Kinds of nodes that copy to the host what they chose if there is a trace; they run without."""


def read_by_the_host(graph: onnx.GraphProto) -> set[str]:
    """Values of nodes on the device that others read, or the caller; bodies are not looked into."""
    made, read = set[str](), {o.name for o in graph.output}
    for node in graph.node:
        here = any(a.name == "source" and a.s.decode() == CUDA_EP_NAME for a in node.attribute)
        if here:
            made.update(node.output)
        else:
            read.update(node.input)
    return made & read


Answers = Mapping[int, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Model:
    """A model and what it is given.

    Args:
        proto: The model.
        feeds: Its inputs.
        padding: The mask that it is compiled with.
        tokens: Outputs that are given up where that mask is 0, and where they hold tokens.
        tolerance: Norm-wise, of floats; None for those of `pitc check`.
        eager: Regions are lowered whether they pay or not.
        given: Options of the provider.
        data: How far the outputs of a feed are from what ONNX expects of it, as text.
    """

    proto: onnx.ModelProto
    feeds: Sequence[Feeds]
    padding: str | None = None
    tokens: Mapping[str, TokenPlace] = field(default_factory=dict)
    tolerance: float | None = None
    eager: bool = False
    given: Mapping[str, str] = field(default_factory=lambda: dict(EXACT))
    data: Callable[[int, Sequence[Any]], str] | None = None


@dataclass(slots=True)
class Outcome:
    """What one model showed.

    Args:
        failures: What does not hold, one line each.
        counts: PIT nodes and their runs on the device, runs of the model, what the driver did.
    """

    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def nodes_on_device(graph: onnx.GraphProto) -> Iterator[dict[str, str]]:
    """Plans of the nodes that run on a GPU, those of bodies among them."""
    for node in graph.node:
        here = {a.name: a.s.decode() for a in node.attribute if a.name == "source"}
        if here.get("source") == CUDA_EP_NAME:
            yield plan_of(node)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes_on_device(attribute.g)


def compiled(folder: Path, model: Model) -> Path:
    """Compile a model for GPUs into a folder that is not there yet; returns the graph."""
    unused = TF32_KERNELS if model.given == EXACT else ""
    eagerly = lowering_everything() if model.eager else nullcontext()
    with kept_kernels(unused), eagerly:
        pitc.compile(model.proto, f"cuda:{ARCH}", model.padding, output=folder, check=True)
    return folder / GRAPH


def reference(model: Model) -> dict[int, list[Any]]:
    """What ONNX Runtime's CPU provider answers, by the numbers of the feeds that it takes."""
    plain = plain_session(model.proto.SerializeToString())
    answers = {}
    for number, case in enumerate(model.feeds):
        with suppress(Exception):  # the runtime's exception classes are not public
            answers[number] = plain.run(None, dict(case.feeds))
    return answers


def check(folder: Path, model: Model) -> Outcome:
    """Compile a model, run it, and compare.

    Args:
        folder: Where its artifact is written, which is not there yet.
        model: The model.
    """
    out = Outcome(counts=Counter(models=1))
    try:
        wanted = reference(model)
    except ModelError:
        out.counts["refused models"] = 1
        return out
    out.counts["refused feeds"] = len(model.feeds) - len(wanted)
    path = compiled(folder, model)
    graph = onnx.load(path, load_external_data=False).graph
    plans = list(nodes_on_device(graph))
    out.counts.update({"PIT nodes": len(plans), "models with PIT nodes": bool(plans)})
    out.counts.update(f"op {plan['kind']}" for plan in plans)
    crossing = len(read_by_the_host(graph))
    out.counts["values for the host"] = crossing
    bodies = any(a.type == onnx.AttributeProto.GRAPH for n in graph.node for a in n.attribute)
    looks_back = any(plan["kind"] in LOOKS_BACK for plan in plans)
    trace = folder / "trace"
    trace.touch()
    run = session(path, trace=None if looks_back else trace, given=model.given)
    found: dict[int, list[Any]] = {}
    for number in wanted:
        with FakeDriver().counted() as counts:
            found[number] = run.run(None, dict(model.feeds[number].feeds))
        out.counts.update({n: counts[n] for n in DONE}, runs=1)
        worked = counts["launches"] >= len(plans)  # else a tensor without elements is copied, too
        most = counts["copies_down"] if bodies else crossing
        if worked and (counts["copies_down"] > most or counts["waits"] > WAITS * most + 1):
            text = f"{counts['waits']} waits, {counts['copies_down']} copies for {most} values"
            out.failures.append(f"{text} ({model.feeds[number].title})")
    out.failures += differences(model, [o.name for o in run.get_outputs()], found, wanted)
    outside = {node.name for node in graph.node}
    for line in told(trace):
        out.counts["node runs"] += 1
        out.counts["uploads"] += line["uploads"]
        told_by = re.fullmatch(r"pitc: node '(.*)' \(\w+\): ", line["node"])
        assert told_by is not None, line
        # a body gets the lists of the graph around it on the device, whence they are read back
        out.counts["downloads" if told_by[1] in outside else "downloads in bodies"] += line[
            "downloads"
        ]
    if out.counts["downloads"]:
        out.failures.append(f"{out.counts['downloads']} copies to the host between PIT nodes")
    return out


def differences(
    model: Model, names: Sequence[str], found: Answers, wanted: Answers
) -> Iterator[str]:
    """Where answers differ, one line each.

    Args:
        model: The model.
        names: Its outputs.
        found: What the device answers to feeds, by their numbers.
        wanted: What ONNX Runtime answers.
    """
    got, want = (
        iter([dict(zip(names, outputs, strict=True)) for _, outputs in sorted(answers.items())])
        for answers in (found, wanted)
    )
    result = compare(
        lambda _: next(got),
        lambda _: next(want),
        [model.feeds[number] for number in sorted(wanted)],
        Rules(live_of(model.padding), model.tokens, model.tolerance),
    )
    for o in result.outputs:
        if not o.ok:
            yield f"{o.output}: " + (
                o.problem or f"off by {o.norm:.2g} of its norm, at most {o.max_abs:.2g} ({o.worst})"
            )
    if model.data is None:
        return
    for number, outputs in found.items():
        if not model.data(number, wanted[number]) and (text := model.data(number, outputs)):
            yield f"feed {number} is not what ONNX expects: {text}"


Check = Callable[[Path], Outcome]


def checks(models: Mapping[str, Callable[[], Model]]) -> Mapping[str, Check]:
    """The checks of models."""
    return {name: lambda folder, m=make: check(folder, m()) for name, make in models.items()}


def run_case(folder: Path, source: str, name: str) -> Outcome:
    """Check one case; what is raised is a failure."""
    from tests.device_sources import SOURCES

    try:
        return SOURCES[source]()[name](folder)
    except Exception as error:  # a bug is a finding
        return Outcome([f"{type(error).__name__}: {error}"[:400]], Counter(models=1))


def names_of(source: str) -> list[str]:
    """The names of a source's cases."""
    from tests.device_sources import SOURCES

    return list(SOURCES[source]())


def total(outcomes: Iterable[Outcome]) -> Counter[str]:
    """The sum of their counts."""
    return sum((o.counts for o in outcomes), Counter())
