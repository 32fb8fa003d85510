"""Which matrices grouped products read: written when they run, read, summed up and shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pitc
from models.experts import ExpertsConfig, experts
from pitc.errors import UsageError
from pitc.measure.trace import traced_session
from pitc.measure.trace_groups import GroupedProduct, GroupRows, grouped_products
from pitc.measure.trace_lines import read_lines
from tests.plugin.test_trace import line as product_line
from tests.plugin.test_trace import write
from tests.runtime_support import use_built_provider

Run = Callable[..., tuple[int, str, str]]
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)
CONFIG = ExpertsConfig("looked_up", experts=8, hidden=96, ffn=192, gated=True)


def tokens(count: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(count).normal(size=(count, 96)).astype(np.float32)}


def rows_of(proto: Any, x: np.ndarray) -> np.ndarray:
    """Rows of each expert, two for each token."""
    (router,) = [w for w in proto.graph.initializer if w.name == "router"]
    best = np.argsort(-(x @ np.frombuffer(router.raw_data, np.float32).reshape(96, 8)), axis=1)
    return np.bincount(best[:, :2].reshape(-1), minlength=8)


def test_a_line_for_each_run(tmp_path: Path) -> None:
    proto = experts(CONFIG, np.random.default_rng(0))
    model = pitc.compile(proto, suggest=False)
    names = [r.node for r in model.report.nodes if r.lowering == "grouped"]
    sizes = [4 * 96 * 384, 4 * 192 * 128]  # columns in panels of 64
    session = traced_session(model, path := tmp_path / "trace")
    want = []
    for count in (0, 1, 70):
        session.run(None, feeds := tokens(count))
        rows = rows_of(proto, feeds["x"])
        for name, size in zip(names, sizes, strict=True):
            counts = int((rows > 0).sum()), 2 * count, int(rows.max())
            want.append(GroupRows(name, 8, *counts, size))
    found = read_lines(path)
    assert found.groups == want
    assert found.products == [] and found.pairs == []


LINE: dict[str, Any] = {
    "node": "y [grouped].1",
    **{"groups": 4, "hit_groups": 2, "rows": 10, "most_rows": 7, "matrix_bytes": 100},
}


def line(**changes: object) -> str:
    return json.dumps(LINE | changes)


DAMAGED = {
    '{"hit_groups": 8}': "node: Field required",
    line(rows=None): "rows: Input should be a valid integer",
    line(hit_groups=5): "more groups with rows than groups",
    line(rows=6): "another number of rows than groups can have",
    line(rows=15): "another number of rows than groups can have",
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.items())
def test_a_damaged_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, product_line(), line(), text)
    with pytest.raises(UsageError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(f"{path}: line 3 is no decision: {message}")


def test_runs_are_summed_up_by_product(tmp_path: Path) -> None:
    none = {"node": "z", "hit_groups": 0, "rows": 0, "most_rows": 0}
    more = {"hit_groups": 3, "rows": 20, "most_rows": 9, "more": 1}
    path = write(tmp_path, line(), product_line(), line(**more), line(**none))
    assert grouped_products(read_lines(path).groups) == [
        GroupedProduct("y", 2, 4, 2.5, rows=6, most_rows=9, read_bytes=250, all_bytes=400),
        GroupedProduct("z", 1, 4, 0, rows=0, most_rows=0, read_bytes=0, all_bytes=400),
    ]


def test_bench_and_explain_show_them(run: Run, tmp_path: Path) -> None:
    model = pitc.compile(
        experts(CONFIG, np.random.default_rng(0)), suggest=False, output=tmp_path / "e.pitc"
    )
    np.savez(file := tmp_path / "feeds.npz", allow_pickle=False, **tokens(70))
    kept, page = tmp_path / "kept.jsonl", tmp_path / "report.html"
    words = ["--input", str(file), "--rounds", 2, "-q", "--trace-file", kept]
    code, out, err = run("bench", model.path, *words)
    assert (code, err) == (0, "")
    told = "8.0 of 8 17.5"
    assert sum(told in " ".join(row.split()) for row in out.splitlines()) == 2
    code, out, err = run("explain", model.path, "--trace", kept, "--report", page)
    assert (code, err) == (0, "")
    assert sum(told in " ".join(row.split()) for row in out.splitlines()) == 2
    assert "<h3>Grouped products</h3>" in (text := page.read_text()) and "8.0 of 8" in text
    assert "no contraction" not in out and "The trace is empty" not in text
    name = next(r.node for r in model.report.nodes if r.lowering == "grouped")
    asked = ("explain", model.path, "--trace", kept, "--node", name, "--json")
    (found,) = json.loads(run(*asked)[1])["grouped"]
    assert GroupedProduct(**found).rows == 17.5 and found["node"] == name
