"""all-MiniLM-L6-v2 on real text: plain ONNX Runtime against the compiled model, same batches.

Run it with `make demo`. It fails when an embedding differs.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

import pitc
from benchmarks.contenders import session_options
from benchmarks.machine import machine_facts
from models import minilm
from models.text import Batch, batches
from pitc.errors import PitcError, VerificationError
from pitc.measure.timing import interleave, pinned, ratio

TOLERANCE = 1e-5
LOOK_AT = (
    "Look at 'live share' and 'speed-up': the fewer places hold a token, the more is skipped; "
    "'difference' is how far the embeddings are apart, of their norm. Next: pitc explain, pitc "
    "bench and pitc verify on a model of your own."
)


@dataclass(frozen=True, slots=True)
class Row:
    """One batch, measured.

    Args:
        batch: The batch.
        plain_ms: ONNX Runtime, median of the rounds.
        pitc_ms: The compiled model, median of the rounds.
        speedup: Median of the rounds' ratios.
        difference: Norm of the difference of the embeddings over the norm of the embeddings.
    """

    batch: Batch
    plain_ms: float
    pitc_ms: float
    speedup: float
    difference: float


def difference(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> float:
    """Norm of the difference over the norm of what is expected; infinite when not finite."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def measure(plain: Any, compiled: Any, batch: Batch, rounds: int, budget_s: float) -> Row:
    """Compare the answers, which also warms both sessions up, then time them in turn."""
    feeds = batch.feeds()
    off = difference(compiled.run(None, feeds)[0], plain.run(None, feeds)[0])
    work = {
        "plain": lambda: plain.run(None, feeds),
        "pitc": lambda: compiled.run(None, feeds),
    }
    taken = interleave(work, rounds, warm_up=0, budget_s=budget_s)
    ms = [1e3 * median(taken[name]) for name in ("plain", "pitc")]
    return Row(batch, ms[0], ms[1], ratio(taken["plain"], taken["pitc"]), off)


def report(rows: Sequence[Row]) -> Table:
    """All batches, and their sum."""
    title = "sentence embeddings, one thread, CPU time, medians of interleaved rounds"
    table = Table(title=title)
    for heading in ("batch", "tokens", "live share", "ORT ms", "pitc ms", "speed-up", "difference"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            "x".join(map(str, row.batch.input_ids.shape)),
            str(row.batch.tokens),
            f"{row.batch.live_share:.2f}",
            f"{row.plain_ms:.0f}",
            f"{row.pitc_ms:.0f}",
            f"{row.speedup:.2f}x",
            f"{row.difference:.1e}",
        )
    tokens = sum(row.batch.tokens for row in rows)
    places = sum(row.batch.attention_mask.size for row in rows)
    plain, ours = sum(row.plain_ms for row in rows), sum(row.pitc_ms for row in rows)
    worst = max(row.difference for row in rows)
    table.add_section()
    cells = ("all", str(tokens), f"{tokens / places:.2f}", f"{plain:.0f}", f"{ours:.0f}")
    table.add_row(*cells, f"{plain / ours:.2f}x", f"{worst:.1e}", style="bold")
    return table


STEPS = 4


def step(console: Console, number: int, text: str) -> None:
    """Say what comes next."""
    console.print(f"[bold]\\[{number}/{STEPS}][/bold] {text}", highlight=False)


def prepare(folder: Path, layers: int | None, console: Console) -> tuple[minilm.MiniLM, Any, Any]:
    """Build and compile the model: the model, and sessions of its plain and compiled form."""
    step(console, 1, "read the sentence encoder, as it is exported")
    model = minilm.load(layers)
    source, artifact = folder / "minilm.onnx", folder / "minilm.pitc"
    onnx.save(model.graph(), source)
    step(
        console, 2, "compile it; no option: its own pooling proves that nobody reads padded tokens"
    )
    console.print(f"  pitc compile {source.name} -o {artifact.name}", style="bold", highlight=False)
    start = time.monotonic()
    compiled = pitc.compile(source, output=artifact)
    nodes, seconds = compiled.manifest.pit_nodes, time.monotonic() - start
    console.print(f"  {nodes} nodes of pitc's own, {seconds:.1f} s", highlight=False)
    plain = onnxruntime.InferenceSession(
        str(source), session_options(), providers=["CPUExecutionProvider"]
    )
    return model, plain, pitc.load(artifact).session(session_options())


def demo(
    count: Annotated[int, typer.Option("--batches", min=1, help="Batches of text.")] = 4,
    size: Annotated[int, typer.Option(min=1, help="Texts per batch.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 3,
    seconds: Annotated[float, typer.Option(help="Time to spend on all rounds, about.")] = 60.0,
    layers: Annotated[int | None, typer.Option(min=1, help="Only the first layers.")] = None,
) -> None:
    """Compare plain ONNX Runtime with the compiled MiniLM on docstrings of the standard library."""
    console = Console()
    try:
        with tempfile.TemporaryDirectory() as folder:
            console.print(f"all-MiniLM-L6-v2 on one core of {machine_facts()['cpu']}")
            model, plain, compiled = prepare(Path(folder), layers, console)
            text = f"draw {count} batches of {size} real texts; padding fills up to the longest one"
            step(console, 3, text)
            drawn = batches(model.tokenizer, count, size, model.max_tokens)
            budget_s = seconds / len(drawn)
            text = "race them, ONNX Runtime and pitc in turns, one thread each, CPU time"
            step(console, 4, f"{text}; about {seconds:.0f} s at most")
            rows = []
            with pinned(1):
                for number, batch in enumerate(drawn, 1):
                    rows.append(measure(plain, compiled, batch, rounds, budget_s))
                    text = (
                        f"  batch {number} of {count}: {batch.live_share:.0%} of the places hold "
                    )
                    console.print(f"{text}a token, {rows[-1].speedup:.2f}x", highlight=False)
            console.print(report(rows))
            console.print(LOOK_AT, highlight=False)
            worst = max(row.difference for row in rows)
            if not worst <= TOLERANCE:
                raise VerificationError(f"the embeddings differ by {worst:.1e} of their norm")
            console.print(f"The embeddings agree: at most {worst:.1e} of their norm apart.")
    except PitcError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None


if __name__ == "__main__":
    typer.run(demo)
