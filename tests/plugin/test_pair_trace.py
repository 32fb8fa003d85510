"""What attention under masks read: written when it runs, read, summed up and shown."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pitc
from models.attention import AttentionConfig, attention_layer, draw_layer
from models.attention_reference import seen_by
from models.graph import Array
from models.pair_masks import Flags, PairMask
from pitc.errors import UsageError
from pitc.ir import target as targets
from pitc.ir.kernel import LISTED_QUERIES as LISTED
from pitc.measure.trace import race_dense, traced_session
from pitc.measure.trace_lines import read_lines
from pitc.measure.trace_pairs import Attention, LivePairs, attentions
from tests.attention_masks import MASKS
from tests.plugin.test_exports import FOLDER
from tests.plugin.test_trace import line as product_line
from tests.plugin.test_trace import write
from tests.runtime_support import use_built_provider

Run = Callable[..., tuple[int, str, str]]
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0, least_extent=1))


def layer(mask: PairMask) -> tuple[AttentionConfig, pitc.CompiledModel]:
    """Attention of three heads between projections."""
    config = AttentionConfig(mask, 3, 16)
    return config, pitc.compile(attention_layer(config, np.random.default_rng(1)))


def node_of(model: pitc.CompiledModel, count: int = 1) -> str:
    """The first attention of so many."""
    nodes = [r.node for r in model.report.nodes if r.lowering == "attention"]
    assert len(nodes) == count
    return nodes[0]


def counted(node: str, seen: Flags) -> LivePairs:
    """By the whole mask [batch, 1, query, key]: a tile reads what one of its queries sees."""
    batch, _, queries, keys = seen.shape
    starts = range(0, queries, LISTED)
    listed = sum(int(seen[:, 0, q : q + LISTED].any(1).sum()) for q in starts)
    tiles = batch * len(starts)
    return LivePairs(node, seen.size, int(seen.sum()), tiles, tiles * keys, listed)


@pytest.mark.parametrize("name", ["causal", "window", "documents", "bars", "pairs", "no pair"])
def test_a_line_for_each_run(name: str, tmp_path: Path) -> None:
    config, model = layer(MASKS[name])
    session = traced_session(model, path := tmp_path / "trace")
    want = []
    for batch, length in ((1, 1), (3, 31), (2, 32), (1, 33), (3, 200)):
        feeds = draw_layer(config, np.random.default_rng(length), batch, length)
        session.run(None, feeds)
        want.append(counted(node_of(model), seen_by(config.mask, feeds, batch, length)))
    found = read_lines(path)
    assert found.pairs == want
    assert found.products == [] and found.channels == []
    first = path.read_text().splitlines()[0]
    assert first == json.dumps(
        asdict(replace(want[0], node=f"{node_of(model)} [packed attention]"))
    )


def test_no_sequence_and_no_token(tmp_path: Path) -> None:
    config, model = layer(MASKS["window"])
    session = traced_session(model, path := tmp_path / "trace")
    for batch, length in ((0, 5), (2, 0)):
        session.run(None, draw_layer(config, np.random.default_rng(0), batch, length))
    assert read_lines(path).pairs == [LivePairs(node_of(model), 0, 0, 0, 0, 0)] * 2


def test_attention_without_lists_tells_nothing(tmp_path: Path) -> None:
    """Its mask hides keys, for all queries alike."""
    model = pitc.compile(FOLDER / "t5-encoder-eager-dynamo.onnx", padding="attention_mask")
    assert node_of(model, count=2)
    ids = np.ones((2, 5), np.int64)
    session = traced_session(model, path := tmp_path / "trace")
    session.run(None, {"input_ids": ids, "attention_mask": ids})
    assert read_lines(path).pairs == []


LINE: dict[str, Any] = {
    "node": "y [attention].1",
    "pairs": 100,
    "live_pairs": 20,
    "tiles": 2,
    "keys": 20,
    "listed_keys": 5,
}


def line(**changes: object) -> str:
    return json.dumps(LINE | changes)


DAMAGED = {
    '{"live_pairs": 8}': "node: Field required",
    line()[:-3]: "Invalid JSON",
    line(live_pairs=None): "live_pairs: Input should be a valid integer",
    line(tiles="2"): "tiles: Input should be a valid integer",
    line(keys=-1): "keys: Input should be greater than or equal to 0",
    line(live_pairs=101): "more live pairs than pairs",
    line(listed_keys=21): "more listed keys than keys",
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.items())
def test_a_damaged_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, product_line(), line(), text)
    with pytest.raises(UsageError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(f"{path}: line 3 is no decision: {message}")


def test_runs_are_summed_up_by_attention(tmp_path: Path) -> None:
    """All pairs and tiles of all runs together: long sequences weigh more."""
    empty = {"node": "z", "pairs": 0, "live_pairs": 0, "tiles": 0, "keys": 0, "listed_keys": 0}
    more = {"pairs": 300, "live_pairs": 280, "tiles": 6, "keys": 60, "listed_keys": 55, "more": 1}
    path = write(tmp_path, line(), product_line(), line(**more), line(**empty))
    lines = read_lines(path)
    assert [d.node for d in lines.products] == ["down"]
    assert attentions(lines.pairs) == [
        Attention("y", 2, live_pairs=0.75, live_keys=0.75, tile_keys=7.5, all_keys=10),
        Attention("z", 1, live_pairs=1, live_keys=1, tile_keys=0, all_keys=0),
    ]


@pytest.fixture
def window(tmp_path: Path) -> tuple[Path, list[str | int]]:
    """An artifact of a window of 9 keys, and the words that name inputs of 64 tokens."""
    config = AttentionConfig(MASKS["window"], 3, 16)
    model = pitc.compile(
        attention_layer(config, np.random.default_rng(1)), output=tmp_path / "window.pitc"
    )
    np.savez(
        file := tmp_path / "feeds.npz",
        allow_pickle=False,
        **draw_layer(config, np.random.default_rng(0), 1, 64),
    )
    return model.path, ["--input", str(file), "--rounds", 2, "-q"]


#: Of 64 tokens each sees 9 keys, those at the ends fewer; two tiles of 36 keys.
LIVE = (64 * 9 - 2 * (4 + 3 + 2 + 1)) / 64**2


def is_shown(table: list[str], node: str) -> bool:
    head, row = (" ".join(each.split()) for each in table)
    return (
        head == "node pairs of a tile of keys" and row == f"{node} {LIVE:.2%} 36.0 of 64.0 56.25%"
    )


def test_bench_and_explain_show_them(
    run: Run, window: tuple[Path, list[str | int]], tmp_path: Path
) -> None:
    path, words = window
    kept, page = tmp_path / "kept.jsonl", tmp_path / "report.html"
    node = node_of(pitc.load(path))
    code, out, err = run("bench", path, *words, "--trace-file", kept)
    assert (code, err) == (0, "")
    assert is_shown(out.splitlines()[-2:], node)
    assert "no contraction" not in out
    assert len(read_lines(kept).pairs) == 2
    code, out, err = run("explain", path, "--trace", kept, "--report", page)
    assert (code, err) == (0, "")
    assert is_shown(out.splitlines()[-2:], node)
    text = page.read_text()
    assert "<h3>Attention under masks</h3>" in text and "36.0 of 64.0" in text
    assert "The trace is empty" not in text
    for asked in (
        ("bench", path, *words, "--trace", "--json"),
        ("explain", path, "--trace", kept, "--node", node, "--json"),
    ):
        body: Mapping[str, Any] = json.loads(run(*asked)[1])
        (found,) = body["attentions"]
        assert body["contractions"] == body["convolutions"] == []
        assert Attention(**found) == Attention(node, 2, LIVE, 0.5625, 36, 64)
    other = next(r.node for r in pitc.load(path).report.nodes if r.node != node)
    shown = run("explain", path, "--trace", kept, "--node", other, "--json")[1]
    assert json.loads(shown)["attentions"] == []


def test_both_sessions_of_a_race_tell(window: tuple[Path, list[str | int]]) -> None:
    """Attention has no dense variant: it reads the same lists."""
    model = pitc.load(window[0])
    config = AttentionConfig(MASKS["window"], 3, 16)
    feeds: Mapping[str, Array] = draw_layer(config, np.random.default_rng(0), 1, 64)
    chosen, dense = race_dense(model, feeds, rounds=2)
    assert chosen.pairs == dense.pairs and len(chosen.pairs) == 2
