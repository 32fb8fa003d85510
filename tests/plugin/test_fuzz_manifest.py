"""Hostile manifests: each artifact is judged, in one line, and whatever runs is what was written.

`PITC_FUZZ=100 pytest tests/plugin/test_fuzz_manifest.py` (`make fuzz`) tries 100 times as many.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pitc
from models.bert import TINY, bert
from pitc.artifact import manifest as manifests
from pitc.artifact.check import check_artifact
from pitc.artifact.manifest import MANIFEST
from pitc.errors import PitcError

EXAMPLES = 250 * int(os.environ.get("PITC_FUZZ", "1"))

numbers = st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 1e308, 0.5])
words = st.sampled_from(
    ["", "model.onnx", "../model.onnx", "/", "v4", "v9", "a\nb", "\x00", "é" * 9]
)
leaves = st.one_of(st.none(), st.booleans(), numbers, words, st.text(max_size=5))
values = st.recursive(
    leaves, lambda x: st.lists(x, max_size=3) | st.dictionaries(words, x, max_size=3), max_leaves=5
)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifests")
    onnx.save(bert(TINY, np.random.default_rng(0)), folder / "model.onnx")
    pitc.compile(folder / "model.onnx", padding="attention_mask").save(folder / "model.pitc")
    shutil.copy(folder / "model.pitc" / MANIFEST, folder / "written.json")
    return folder / "model.pitc"


@pytest.fixture(scope="module")
def written(artifact: Path) -> Path:
    """A copy of the manifest as it was written."""
    return artifact.with_name("written.json")


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a JSON value."""
    keys = (
        list(tree) if isinstance(tree, dict) else range(len(tree) if isinstance(tree, list) else 0)
    )
    return [found for key in keys for found in ((tree, key), *places(tree[key]))]


def judged(artifact: Path) -> bool:
    """Whether the artifact runs; if not, every way to use it says why in one line."""
    found = check_artifact(artifact, level="v4")
    assert found.line().isprintable()
    try:
        loaded = pitc.load(artifact)
    except PitcError as error:
        assert str(error).isprintable() and error.exit_code == 5
        return False
    try:
        assert loaded.report.nodes is not None
    except PitcError as error:
        assert str(error).isprintable()
    return True


@settings(max_examples=EXAMPLES, deadline=20_000)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 1 << 16), st.sampled_from(["set", "drop", "add"]), values),
        min_size=1,
        max_size=2,
    )
)
def test_changed_and_signed_again(
    artifact: Path, written: Path, changes: list[tuple[int, str, Any]]
) -> None:
    body = json.loads(written.read_bytes())
    for place, how, value in changes:
        container, key = (all_places := places(body))[place % len(all_places)]
        if how == "set":
            container[key] = value
        elif how == "drop":
            del container[key]
        elif isinstance(container, dict):
            container[str(value)[:9]] = value
        else:
            container.insert(key, value)
    body.pop("sha256", None)
    try:
        text = manifests._sealed(body)
        data = text.encode()
    except (ValueError, UnicodeEncodeError):  # no JSON at all
        return
    (artifact / MANIFEST).write_bytes(data)
    judged(artifact)


@settings(max_examples=EXAMPLES, deadline=20_000)
@given(data=st.data())
def test_changed_bytes(artifact: Path, written: Path, data: st.DataObject) -> None:
    old = written.read_bytes()
    start = data.draw(st.integers(0, len(old)))
    end = data.draw(st.integers(start, min(len(old), start + 40)))
    new = old[:start] + data.draw(st.binary(max_size=8)) + old[end:]
    (artifact / MANIFEST).write_bytes(new)
    assert judged(artifact) == (new == old)
