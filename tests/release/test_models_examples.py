"""The examples run as a user runs them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from models import minilm

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def words_of(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "examples" / name), *arguments]


def run_example(
    name: str, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words_of(name, *arguments),
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        cwd=cwd,
        timeout=300,
    )


def test_quickstart_shows_the_rows_of_padding() -> None:
    done = run_example("quickstart.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("rows of zeros at the padding of the second text: 3\n")


def test_relu_blocks_tell_what_they_decide() -> None:
    done = run_example("relu_blocks.py")
    assert done.returncode == 0, done.stderr
    first, second = (line for line in done.stdout.splitlines() if "128 x 1024" in line)
    assert "70." in first and "2.9%" in second
    assert done.stdout.count("  ran ") == done.stdout.count("if dense") == 2


@pytest.mark.skipif(
    not minilm.installed() and "CI" not in os.environ, reason=f"run: {minilm.INSTALL}"
)
def test_demo_compares_real_embeddings() -> None:
    arguments = ("--layers", "1", "--batches", "2", "--size", "8", "--rounds", "1")
    done = run_example("minilm_demo.py", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("live share", "speed-up", "difference", "The embeddings agree"):
        assert part in done.stdout


def losses(text: str) -> dict[int, float]:
    """The losses that an example prints, by their steps."""
    found = re.findall(r"^step +(\d+)  loss ([0-9.]+)", text, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


def test_a_killed_training_goes_on(tmp_path: Path) -> None:
    arguments = ("--steps", "150", "--texts", "300")
    whole = run_example("train_encoder.py", *arguments, "--checkpoint", "whole.npz", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    want = losses(whole.stdout)
    assert list(want) == [50, 100, 150] and want[150] < want[50] - 0.5

    words = words_of("train_encoder.py", *arguments)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=tmp_path
    ) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if line.startswith("step   50"):
                killed.kill()
    assert killed.returncode == -signal.SIGKILL

    again = run_example("train_encoder.py", *arguments, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    done = int(re.findall(r"encoder\.npz: (\d+) steps are done", again.stdout)[0])
    got = losses(again.stdout)
    assert done in (50, 100) and list(got) == [s for s in want if s > done]
    assert got == pytest.approx({step: want[step] for step in got}, abs=1e-3)


def test_pruning_leaves_blocks_out(tmp_path: Path) -> None:
    done = run_example("prune.py", "--steps", "60", "--block", "32x1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = losses(done.stdout)
    assert list(found) == [20, 40, 60] and found[60] < found[20]
    assert re.findall(r"kept (\d+)%", done.stdout) == ["100", "88", "75"]
    assert not list(tmp_path.iterdir())
