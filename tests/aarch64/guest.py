"""Runs on the emulated machine, which has NumPy, ONNX Runtime and what runs artifacts.

python3 guest.py TAG THREADS FOLDER ..

Each folder has a model, its artifact and its inputs; what ONNX Runtime and the artifact answer is
written beside them.
"""

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import pitc
from pitc.runtime.library import make_session
from pitc.session import arrays, plain_session, quiet_options

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Any]]


def feeds_of(file: Path) -> dict[str, dict[str, Array]]:
    """Inputs, by the number of the run."""
    feeds: dict[str, dict[str, Array]] = {}
    with np.load(file) as stored:
        for number in stored["runs"]:
            feeds[str(number)] = {}
        for key in stored.files:
            number, _, name = key.partition("/")
            if name:
                feeds[number][name] = stored[key]
    return feeds


def by_name(session: Any) -> Run:
    """A session's answers by name."""
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, dict(feeds)), strict=True))


def compiled_in(folder: Path, threads: int) -> Run:
    """What runs the artifact: as users do it, or with options of the provider."""
    compiled = pitc.load(folder / "model.pitc", threads=threads)
    given: dict[str, str] = json.loads((folder / "given.json").read_text())
    if given and compiled.manifest.pit_nodes:
        return by_name(make_session(compiled.graph, options(threads), given))
    first = compiled.session().get_providers()[0]
    assert (first == pitc.get_ep_name()) == bool(compiled.manifest.pit_nodes), first
    return compiled.run


def options(threads: int, *, plain: bool = False) -> Any:
    """Options of a session; `plain`: the graph is not optimised."""
    made = quiet_options()
    made.intra_op_num_threads = threads
    if plain:
        made.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return made


def answer(folder: Path, tag: str, threads: int) -> None:
    """Run one folder's model in every way."""
    source = str(folder / "source.onnx")
    want = by_name(plain_session(source, options(threads)))
    rough = by_name(plain_session(source, options(threads, plain=True)))
    run = compiled_in(folder, threads)
    found: dict[str, Array] = {}
    failures: dict[str, str] = {}

    def keep(who: str, number: str, outputs: Mapping[str, Any]) -> None:
        found.update({f"{who}/{number}/{k}": x for k, x in arrays(outputs).items()})

    for number, feeds in feeds_of(folder / "feeds.npz").items():
        try:
            keep("want", number, want(feeds))
        except Exception:  # the model itself fails
            continue
        with suppress(Exception):
            keep("rough", number, rough(feeds))
        try:
            keep("got", number, run(feeds))
        except Exception as error:
            failures[number] = f"{type(error).__name__}: {error}"
    save: Any = np.savez  # its arrays' names are none of its options
    save(folder / f"{tag}.npz", **found)
    (folder / f"{tag}.json").write_text(json.dumps(failures))


def main(tag: str, threads: str, *folders: str) -> None:
    """Run what lies in the folders; a model that cannot be run is told, too."""
    warnings.simplefilter("error", pitc.PitcWarning)
    for folder in map(Path, folders):
        try:
            answer(folder, tag, int(threads))
        except pitc.ModelError:  # as ONNX Runtime refuses the source here
            (folder / f"{tag}.json").write_text("{}")
        except Exception as error:
            (folder / f"{tag}.json").write_text(
                json.dumps({"": f"{type(error).__name__}: {error}"})
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
