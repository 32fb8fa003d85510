"""The steps of a run as data, and the visits that are prepared: which steps, how long.

Steps of one `process` that follow one another share a process, so that PyTorch is imported once.
Tests have a process for each file, side by side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gpu.kernel_tests import FILES


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a run.

    Args:
        name: Its name.
        limit_s: Seconds that all of it may take.
        case_s: Seconds that one case, test, contender or other part of it may take.
        process: `times` and `sessions` run cases, `tests` runs pytest.
        has_peers: PyTorch competes.
    """

    name: str
    limit_s: float
    case_s: float
    process: str = "times"
    has_peers: bool = False


def _named(file: str) -> str:
    return file.removeprefix("test_").removesuffix(".py")


TESTS = {f"tests-{_named(file)}": file for file in FILES}
SANITIZERS = ("memcheck", "racecheck")
SANITIZED = {f"{tool}-{_named(file)}": (tool, file) for tool in SANITIZERS for file in FILES}
STEPS: Mapping[str, Step] = {
    step.name: step
    for step in (
        Step("smoke", 10, 10, "smoke"),
        *(Step(name, 40, 10, "tests") for name in TESTS),
        Step("copy", 10, 10),
        Step("gemm", 40, 20, has_peers=True),
        Step("spmm", 60, 15, has_peers=True),
        Step("layer", 30, 20, has_peers=True),
        Step("attention", 20, 15, has_peers=True),
        Step("masks", 50, 25, has_peers=True),
        Step("experts", 25, 12, has_peers=True),
        Step("elementwise", 20, 10, has_peers=True),
        Step("gradients", 25, 12, has_peers=True),
        Step("detector", 20, 10),
        Step("sessions", 50, 15, "sessions"),
        Step("wgmma", 15, 8, "wgmma"),
        *(Step(name, 60, 30, "tests") for name in SANITIZED),
        Step("counters", 60, 20, "counters"),
        Step("tiles", 40, 10),
        Step("prices", 60, 15),
        Step("bert", 90, 60, "sessions"),
    )
}

FIRST = (
    *("smoke", *TESTS, "copy", "gemm", "spmm", "layer", "attention", "masks", "experts"),
    *("elementwise", "gradients", "detector", "sessions", "wgmma"),
)
SECOND = ("smoke", *SANITIZED, "counters", "tiles", "prices")
PROVIDER = ("smoke", "bert")


@dataclass(frozen=True, slots=True)
class Visit:
    """A run that is prepared for a machine that is lent for minutes.

    Args:
        steps: In this order: where time runs out, what is last is left out.
        minutes: For all of it.
    """

    steps: tuple[str, ...]
    minutes: float


VISITS: Mapping[str, Visit] = {
    "first": Visit(FIRST, 4),
    "second": Visit(SECOND, 5),
    "provider": Visit(PROVIDER, 3),
}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "tests": tuple(TESTS),
    **{tool: tuple(name for name in SANITIZED if name.startswith(tool)) for tool in SANITIZERS},
}
"""Several steps by one word."""


def chosen(words: Sequence[str]) -> tuple[list[Step], float]:
    """The steps that words name, in their order, and the minutes for all.

    Args:
        words: Steps, groups and visits; nothing is the first visit.

    Raises:
        KeyError: A word is none of these.
    """
    names: list[str] = []
    minutes = 0.0
    for word in words or ["first"]:
        if word in VISITS:
            names += VISITS[word].steps
            minutes += VISITS[word].minutes
        else:
            names += GROUPS.get(word, (word,))
    unique = dict.fromkeys(names)
    return [STEPS[name] for name in unique], minutes or VISITS["first"].minutes


def batches(steps: Sequence[Step]) -> list[list[list[Step]]]:
    """Steps as they run: batches one after another, of processes side by side, of steps.

    smoke, tests-a, tests-b, copy, gemm -> [[smoke]], [[tests-a], [tests-b]], [[copy, gemm]]
    """
    found: list[list[list[Step]]] = []
    before = ""
    for step in steps:
        if step.process != before:
            found.append([[step]])
        elif step.process == "tests":
            found[-1].append([step])
        else:
            found[-1][0].append(step)
        before = step.process
    return found
