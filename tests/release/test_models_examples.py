"""The examples run as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from models import minilm

ROOT = Path(__file__).resolve().parents[2]


def run_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
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
