"""Whole sessions in ONNX Runtime, with our provider on a real device.

Where ONNX Runtime has no CUDA provider, other nodes run on the CPU and tensors are copied: answers
are compared, and no time is taken. With it, BERT-base is timed beside the same model on that
provider alone.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu.answers import expect
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.models import LARGE, MODELS, SMALL, Array, Model, compiled
from pitc.check.feeds import draw_lengths
from pitc.measure.timing import ratio
from pitc.runtime.library import CUDA_PROVIDER, make_cuda_session
from pitc.session import quiet_options

BERT_GOAL = 2.5
"""Times as fast as ONNX Runtime's CUDA provider."""


def masks() -> dict[str, Array]:
    """Padding on either side, none, rows of one token, other sizes."""
    full = np.ones((3, 24), np.int64)
    right, left, one = full.copy(), full.copy(), np.zeros_like(full)
    right[0, 9:] = right[2, 1:] = 0
    left[1, :20] = 0
    one[:, 0] = 1
    small, wide = np.ones((1, 1), np.int64), np.ones((2, 40), np.int64)
    named = {"full": full, "right": right, "left": left, "one": one}
    return {**named, "1x1": small, "2x40": wide}


def session_cases(pack: Path, archs: list[str], *, small: bool) -> Iterator[Case]:
    """Answers of small models against ONNX Runtime on the CPU."""
    for model in MODELS[:1] if small else MODELS:
        facts = {"tolerance": model.tolerance}
        yield Case(f"session-{model.name}", facts, partial(_compared, model, pack, archs))


def _compared(model: Model, pack: Path, archs: list[str], telling: Telling) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        path = compiled(model, archs, pack / "kernels.so", Path(folder))
        ours = make_cuda_session(path, quiet_options(), dict(model.options))
        plain = _plain(Path(folder) / "source.onnx")
        errors: dict[str, float] = {}
        for name, mask in masks().items():
            compare = partial(_error, ours, plain, model, mask)
            if (error := telling.attempt(f"mask {name}", compare)) is not None:
                errors[name] = error
                telling.tell(errors=errors)
        return {"providers": ours.get_providers()}


def _error(ours: Any, plain: Any, model: Model, mask: Array) -> float:
    """The largest error of a live element, relative and absolute.

    Raises:
        AssertionError: It is too large, or rows of padding are not 0.
    """
    feeds = model.feeds(mask)
    got, want = (np.asarray(s.run(None, feeds)[0], np.float64) for s in (ours, plain))
    live = mask.astype(bool)
    got, want = (x.reshape(*mask.shape, -1) for x in (got, want))
    if model.padding and got[~live].any():
        raise AssertionError("rows of padding are not 0")
    wrong = float((np.abs(got[live] - want[live]) / (1 + np.abs(want[live]))).max())
    if not wrong <= model.tolerance:
        raise AssertionError(f"an error of {wrong:.2e}, at most {model.tolerance:.0e} is allowed")
    return wrong


def _plain(path: Path, providers: tuple[Any, ...] = ("CPUExecutionProvider",)) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), quiet_options(), providers=list(providers))


def bert_cases(pack: Path, archs: list[str], *, small: bool, rounds: int) -> Iterator[Case]:
    """BERT-base, float16, 32 sequences of a mean of 40 of 128 tokens: wall time of a call."""
    import onnxruntime

    facts = {"targets": {"ort-cuda": BERT_GOAL}, "onnxruntime": onnxruntime.__version__}
    run = partial(_bert, pack, archs, small, rounds)
    yield Case("bert-32x128-m40-f16", facts, run)


def _bert(pack: Path, archs: list[str], small: bool, rounds: int, telling: Telling) -> Result:
    import onnxruntime

    nothing: Result = {"contenders": [], "speedup": {}}
    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        reason = f"onnxruntime {onnxruntime.__version__} has no {CUDA_PROVIDER}"
        left_out = {"ort-cuda": reason, "pitc": "the other nodes would run on the CPU"}
        return {**nothing, "left_out": left_out}
    model, batch, longest = (SMALL, 4, 16) if small else (LARGE, 32, 128)
    lengths = draw_lengths(np.random.default_rng(0), batch, longest, longest * 40 // 128)
    mask = (np.arange(longest)[None] < np.array(lengths)[:, None]).astype(np.int64)
    feeds = model.feeds(mask)
    with tempfile.TemporaryDirectory() as folder:
        path = compiled(model, archs, pack / "kernels.so", Path(folder))
        plain = _plain(Path(folder) / "source.onnx", (CUDA_PROVIDER,))
        if CUDA_PROVIDER not in plain.get_providers():
            return {**nothing, "left_out": {"ort-cuda": f"{CUDA_PROVIDER} does not start"}}
        want = np.asarray(plain.run(None, feeds)[0], np.float64)
        sessions = {"ort-cuda": plain}
        ours = telling.attempt("pitc", lambda: make_cuda_session(path, quiet_options()))
        live, error = mask.astype(bool), None
        if ours is not None:
            got = np.asarray(ours.run(None, feeds)[0], np.float64)
            error = float(np.linalg.norm(got[live] - want[live]) / np.linalg.norm(want[live]))
            telling.tell(errors={"pitc": error}, providers=ours.get_providers())
            expect("bert", error, model.tolerance)
            sessions["pitc"] = ours
        taken = timed_calls({name: _bound(s, feeds) for name, s in sessions.items()}, rounds)
    rows = [{"name": n, "us": median(t), "rounds_us": t, "clock": "wall"} for n, t in taken.items()]
    speedup = {"ort-cuda": ratio(taken["ort-cuda"], taken["pitc"])} if "pitc" in taken else {}
    return {"tokens": sum(lengths), "contenders": rows, "speedup": speedup, "left_out": {}}


def timed_calls(
    works: Mapping[str, Callable[[], object]], rounds: int, calls: int = 5, warm_up: int = 3
) -> dict[str, list[float]]:
    """Microseconds of a call, by the wall clock, for each round that counts.

    Args:
        works: What is timed, in turns; each returns when the device is done.
        rounds: Rounds that count.
        calls: Of a round.
        warm_up: Rounds that do not count.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for turn in range(rounds + warm_up):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            for _ in range(calls):
                works[name]()
            if turn >= warm_up:
                taken[name].append((time.perf_counter() - start) / calls * 1e6)
    return taken


def _bound(session: Any, feeds: dict[str, Array]) -> Any:
    """A call that leaves its answer on the device; it returns when the device is done."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda")

    def call() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return call
