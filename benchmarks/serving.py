"""A compiled MiniLM inside the libraries that people serve it with: `python -m benchmarks.serving`.

Each library is raced against itself with ONNX Runtime's own CPU provider, the same weights and the
same texts; the answers are compared first. It runs in the second environment (`make libs`):

    .venv-libs/bin/python -m benchmarks.serving sentence-transformers
    .venv-libs/bin/python -m benchmarks.serving ray
"""

from benchmarks.one_thread import limit_threads

limit_threads()

import json  # noqa: E402 - the libraries read the limits when they are imported
import os  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from importlib import import_module, metadata  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402
from typing import Annotated, Any  # noqa: E402

import numpy as np  # noqa: E402
import typer  # noqa: E402

import pitc  # noqa: E402
from benchmarks.machine import machine_facts  # noqa: E402
from benchmarks.report import RESULTS  # noqa: E402
from models.minilm_folders import write_export  # noqa: E402
from models.text import docstrings  # noqa: E402
from pitc.errors import VerificationError  # noqa: E402
from pitc.ir.plan import EP_NAME  # noqa: E402
from pitc.measure.timing import interleave, pinned, ratio  # noqa: E402
from pitc.session import quiet_options  # noqa: E402

SCHEMA = 1
CPU = "CPUExecutionProvider"
TOLERANCE = 1e-5
#: Gain over the same library on ONNX Runtime's CPU provider: by batch size; for two Ray actors.
GOALS = {8: 1.2, 32: 1.6, 64: 2.1, 128: 3.3}
RAY_GOAL = 6.0
RAY_BATCH = 64
#: Lengths in words: the logarithm's mean and deviation, then the least and the most.
WORDS = (3.0, 0.8, 3, 120)
LIBRARIES = ("sentence-transformers", "optimum", "transformers", "ray", "torch", "tokenizers")

app = typer.Typer(add_completion=False, help="A compiled MiniLM in the libraries that serve it.")
Count = Annotated[int, typer.Option("--texts", min=128, help="Texts.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds that count.")]
Layers = Annotated[int | None, typer.Option(min=1, help="Only the first layers.")]
Out = Annotated[Path, typer.Option("--json-dir", help="Folder of the result.")]


def texts_of(count: int) -> list[str]:
    """Real text cut into pieces: docstrings one behind the other, lengths lognormal, seed fixed."""
    mean, deviation, least, most = WORDS
    lengths = np.random.default_rng(0).lognormal(mean, deviation, count).astype(int)
    words = (word for text in docstrings() for word in text.split())
    return [
        " ".join(next(words) for _ in range(length)) for length in np.clip(lengths, least, most)
    ]


def prepare(folder: Path, layers: int | None) -> tuple[Path, Path]:
    """The folders of the export and of the compiled model."""
    export = write_export(folder / "export", layers)
    pitc.from_pretrained(export, output=folder / "compiled", padding="attention_mask")
    return export, folder / "compiled"


def check(got: np.ndarray, want: np.ndarray, what: str) -> float:
    """The largest difference of two tables of embeddings of length 1.

    Raises:
        VerificationError: It is too large.
    """
    off = float(np.abs(got - want).max()) if got.shape == want.shape else float("inf")
    if not off <= TOLERANCE:
        raise VerificationError(f"{what}: embeddings differ by {off:.1e}")
    return off


def save(name: str, case: dict[str, Any], found: dict[str, Any], folder: Path) -> None:
    """Write one result."""
    packages = {n: metadata.version(n) for n in LIBRARIES}
    body = {"schema": SCHEMA, "case": {"name": name, **case}, "machine": machine_facts()}
    body["libraries"] = packages
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(body | found, indent=1, sort_keys=True)
    (folder / f"{name}.json").write_text(text + "\n")


@app.command("sentence-transformers")
def sentence_transformers(
    count: Count = 512,
    rounds: Rounds = 5,
    layers: Layers = None,
    folder: Out = RESULTS / "serving",
) -> None:
    """`SentenceTransformer.encode` at several batch sizes; one thread, CPU time, interleaved."""
    library = import_module("sentence_transformers")
    import_module("torch").set_num_threads(1)
    name, texts = pitc.register(), texts_of(count)
    with tempfile.TemporaryDirectory() as scratch, pinned(1):
        folders = dict(zip((CPU, name), prepare(Path(scratch), layers), strict=True))
        models = {who: _loaded(library, where, who) for who, where in folders.items()}
        print(f"{'batch':>5} {'ORT s':>8} {'pitc s':>8} {'gain':>6}  goal", flush=True)
        rows = []
        for size, goal in GOALS.items():

            def encode(who: str, size: int = size) -> np.ndarray:
                return np.asarray(
                    models[who].encode(texts, batch_size=size, normalize_embeddings=True)
                )

            off = check(encode(name), encode(CPU), f"batch {size}")
            work: dict[str, Callable[[], Any]] = {w: lambda w=w: encode(w) for w in models}
            taken = interleave(work, rounds, warm_up=0)
            gain = ratio(taken[CPU], taken[name])
            seconds = {"onnxruntime_s": median(taken[CPU]), "pitc_s": median(taken[name])}
            row = {"batch": size, "gain": gain, "goal": goal, "difference": off, **seconds}
            rows.append(row | {"rounds_s": {"onnxruntime": taken[CPU], "pitc": taken[name]}})
            took = f"{seconds['onnxruntime_s']:8.2f} {seconds['pitc_s']:8.2f}"
            print(f"{size:5d} {took} {gain:5.2f}x  {goal}x", flush=True)
    case = {"texts": count, "layers": layers, "words": WORDS, "clock": "CPU time of the process"}
    save("sentence-transformers", case, {"batches": rows}, folder)


def _loaded(library: Any, folder: Path, provider: str) -> Any:
    """The library's model on a provider, with one thread."""
    options = quiet_options()
    options.intra_op_num_threads = 1
    wanted = {"provider": provider, "file_name": "onnx/model.onnx", "session_options": options}
    model = library.SentenceTransformer(str(folder), backend="onnx", model_kwargs=wanted)
    if provider not in model[0].auto_model.session.get_providers():
        raise VerificationError(f"{provider} does not run")
    return model


class Actor:
    """What one Ray actor holds: an encoder with one thread."""

    def __init__(self, folder: str, provider: str) -> None:
        self._encode = encoder(folder, provider)

    def embed(self, texts: Sequence[str]) -> tuple[np.ndarray, float]:
        """Embeddings, and the CPU seconds that they took."""
        start = time.process_time()
        rows = self._encode(texts)
        return rows, time.process_time() - start


def encoder(folder: str, provider: str) -> Any:
    """The encoder of `examples/serving`, on the compiled model or on ONNX Runtime alone."""
    import onnxruntime

    examples = str(Path(__file__).parents[1] / "examples" / "serving")
    if examples not in sys.path:
        sys.path.append(examples)
    kind = import_module("encoder").Encoder
    if provider == EP_NAME:
        return kind(folder)
    options = quiet_options()
    options.intra_op_num_threads = 1
    file = Path(folder, "onnx", "model.onnx")
    return kind(folder, session=onnxruntime.InferenceSession(file, options, providers=[CPU]))


@app.command("ray")
def ray_actors(
    count: Count = 1024,
    rounds: Rounds = 5,
    layers: Layers = None,
    folder: Out = RESULTS / "serving",
) -> None:
    """Two Ray actors, one thread each, batches of 64 in the order of the texts; interleaved."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "1"}
    ray, texts = import_module("ray"), texts_of(count)
    batches = [texts[i : i + RAY_BATCH] for i in range(0, count, RAY_BATCH)]
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=2**28)
    with tempfile.TemporaryDirectory() as scratch:
        folders = dict(zip((CPU, EP_NAME), prepare(Path(scratch), layers), strict=True))
        remote = ray.remote(Actor).options(num_cpus=0.5)
        actors = {
            who: [remote.remote(str(where), who) for _ in range(2)]
            for who, where in folders.items()
        }
        cpu_s: dict[str, list[float]] = {who: [] for who in actors}

        def embed(who: str) -> np.ndarray:
            pair = actors[who]
            found = ray.get([pair[i % 2].embed.remote(b) for i, b in enumerate(batches)])
            cpu_s[who].append(sum(seconds for _, seconds in found))
            return np.concatenate([rows for rows, _ in found])

        off = check(embed(EP_NAME), embed(CPU), "ray")
        cpu_s = {who: [] for who in actors}
        work: dict[str, Callable[[], Any]] = {who: lambda who=who: embed(who) for who in actors}
        wall_s = interleave(work, rounds, warm_up=0, clock=time.perf_counter)
    ray.shutdown()
    per_s = {w: count / median(s) for w, s in wall_s.items()}
    found = {
        "gain": ratio(wall_s[CPU], wall_s[EP_NAME]),
        "gain_cpu_time": ratio(cpu_s[CPU], cpu_s[EP_NAME]),
        "goal": RAY_GOAL,
        "difference": off,
        "texts_per_s": {"onnxruntime": per_s[CPU], "pitc": per_s[EP_NAME]},
        "rounds_wall_s": {"onnxruntime": wall_s[CPU], "pitc": wall_s[EP_NAME]},
        "rounds_cpu_s": {"onnxruntime": cpu_s[CPU], "pitc": cpu_s[EP_NAME]},
    }
    print(
        f"texts/s {per_s[CPU]:.0f} -> {per_s[EP_NAME]:.0f}, {found['gain']:.2f}x by the clock, "
        f"{found['gain_cpu_time']:.2f}x in CPU time of the actors; goal {RAY_GOAL}x"
    )
    case = {"texts": count, "layers": layers, "words": WORDS, "batch": RAY_BATCH, "actors": 2}
    save("ray", case | {"clock": "wall time; CPU time of the actors"}, found, folder)


if __name__ == "__main__":
    app()
