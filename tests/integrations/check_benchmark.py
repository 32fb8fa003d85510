"""`python -m benchmarks.serving`, on a small part of the model: answers, rows, and its texts."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.serving import GOALS, TOLERANCE, WORDS, texts_of

ROOT = Path(__file__).parents[2]


def test_the_texts_are_the_same_every_time() -> None:
    _, _, least, most = WORDS
    texts = texts_of(300)
    assert texts == texts_of(300) and len(set(texts)) > 290
    lengths = sorted(len(text.split()) for text in texts)
    assert lengths[0] >= least and lengths[-1] <= most
    assert 15 < lengths[150] < 27 and lengths[-30] > 45  # lognormal: a median of 20, a long tail


def test_a_short_run(tmp_path: Path) -> None:
    words = ["sentence-transformers", "--texts", "128", "--rounds", "1", "--layers", "1"]
    run = [sys.executable, "-m", "benchmarks.serving", *words, "--json-dir", str(tmp_path)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "sentence-transformers.json").read_text())
    assert {row["batch"]: row["goal"] for row in result["batches"]} == GOALS
    for row in result["batches"]:
        assert row["difference"] <= TOLERANCE and row["gain"] > 0
    assert result["machine"]["cpu"] and result["case"]["texts"] == 128
