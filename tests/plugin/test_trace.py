"""Decisions of sparse contractions: how traces are read, summed up, made and shown."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pitc
from models.graph import GraphBuilder
from pitc import api
from pitc.cli import main
from pitc.errors import UsageError
from pitc.ir.report import NodeRecord, Report
from pitc.ir.tiles import TileTable, VariantCost, Work
from pitc.ir.variants import FEATURES
from pitc.measure.trace import DENSE, contractions, race_dense, read_lines
from pitc.measure.trace_lines import source_node

Run = Callable[..., tuple[int, str, str]]
PNG = b"\x89PNG\r\n\x1a\n"
HIDDEN, FFN, ROWS = 64, 512, 40
NODES = ["blocks.0.down", "blocks.1.down"]
SPARSE = "operand 0 is 0 where "
#: So much for a step of the dense variant, and nothing for lists of rows.
PRICES = {
    "dense": VariantCost(tuple(10**6 * (f == "steps") for f in FEATURES)),
    "row": VariantCost((1000,) * len(FEATURES)),
}


def offer(**predicted_us: float) -> dict[str, dict[str, Any]]:
    """Candidates, all with the same features."""
    return {v: {"predicted_us": us, "features": [1, 0.5]} for v, us in predicted_us.items()}


LINE: dict[str, Any] = {
    "node": "down [ffn]",
    "rows": 4,
    "k": 50,
    "panels": 2,
    "row_block": 512,
    "k_blocks": 1,
    "threads": 1,
    "scanned": True,
    "counts": {"elements": 20, "columns": 9},
    "candidates": offer(dense=9.0, row=3),
    "chosen": "row",
    "measured_us": 2.0,
}


def line(**changes: object) -> str:
    return json.dumps(LINE | changes)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{each}\n" for each in lines))
    return path


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("down [ffn]", "down"),
        ("down [contract]", "down"),
        ("down [packed contract].2", "down"),
        ("/layers.0/fc2/MatMul [contract_right].1", "/layers.0/fc2/MatMul"),
        ("a [ffn] [contract]", "a [ffn]"),
        ("down [packed gather_gemm]", "down [packed gather_gemm]"),
        ("pitc.down.ffn", "down"),
        ("pitc.down.contract", "down"),
        ("pitc.down.contract_right", "down"),
        ("pitc./layers.0/fc2/MatMul.ffn.1", "/layers.0/fc2/MatMul"),
        ("pitc.a.contract.2.contract", "a.contract.2"),
        ("pitc.x.gemm", "pitc.x.gemm"),
        ("down.ffn", "down.ffn"),
    ],
)
def test_names_of_the_source_graph(name: str, want: str) -> None:
    assert source_node(name) == want


def test_a_trace_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, line(), line(node="a\ud800 [contract]".replace("\ud800", "ü"), rows=2))
    first, second = read_lines(path).products
    assert first.node == "down"
    assert first.work == Work(4, 50, 2, 512, 1, True, {"elements": 20, "columns": 9})
    assert (first.live, first.density) == (20, 0.1)
    assert first.predicted_us == {"dense": 9.0, "row": 3.0}
    assert first.features == dict.fromkeys(("dense", "row"), (1, 0.5))
    assert (first.chosen, first.measured_us) == ("row", 2.0)
    assert (second.node, second.density) == ("aü", 0.2)
    path.write_text(line())  # an editor took the last line's end
    assert read_lines(path).products == [first]
    path.write_text("")
    assert read_lines(path).products == []


DAMAGED = {
    line()[:-9]: "Invalid JSON",
    "": "Invalid JSON",
    "[]": "Input should be an object",
    "\x00": "Invalid JSON",
    '{"node": "n"}': "rows: Field required",
    line(rows=0): "rows: Input should be greater than or equal to 1",
    line(rows="4"): "rows: Input should be a valid integer",
    line(k=True): "k: Input should be a valid integer",
    line(k_blocks=0): "k_blocks: Input should be greater than or equal to 1",
    line(scanned=1): "scanned: Input should be a valid boolean",
    line(counts={"columns": 9}): "no number of live elements",
    line(counts={"elements": -1}): "counts: elements: Input should be greater than",
    line(counts={"elements": 201}): "more live elements than elements",
    line(chosen="tile8"): "'tile8' is no candidate",
    line(candidates={"row": {}}): "candidates: row: predicted_us: Field required",
    line(candidates={"row": {"predicted_us": 3.0}}): "candidates: row: features: Field required",
    line(candidates=offer(row=float("nan"))): "predicted_us: Input should be",
    line(measured_us=float("inf")): "measured_us: Input should be a finite number",
    line(measured_us=-1): "measured_us: Input should be greater than",
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.items())
def test_a_damaged_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, line(), text, line())
    with pytest.raises(UsageError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(f"{path}: line 2 is no decision: ")
    assert message in str(caught.value)


def test_unreadable_traces(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_lines(path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
    with pytest.raises(UsageError, match="line 1 is no decision"):
        read_lines(tmp_path / "bytes")


def test_decisions_are_summed_up_by_contraction(tmp_path: Path) -> None:
    both = offer(dense=8, row=4)
    path = write(
        tmp_path,
        line(candidates=both, measured_us=2),
        line(node="other [contract]", candidates=offer(row=0)),
        line(candidates=both, rows=12, counts={"elements": 380}, chosen=DENSE, measured_us=4),
        line(candidates=both, measured_us=8),
        line(panels=3, measured_us=0),
    )
    down, other, wider = contractions(read_lines(path).products)
    assert (down.node, down.rows, down.k, down.panels, down.decisions) == (
        "down",
        (4, 12),
        50,
        2,
        3,
    )
    assert down.density == (20 + 380 + 20) / (20 * 50)
    assert list(down.variants.items()) == [("row", 2), (DENSE, 1)]
    assert (down.predicted_us, down.measured_us, down.predicted_over_measured) == (4, 4, 2)
    assert (down.dense_predicted_us, down.predicted_gain) == (8, 2)
    assert (down.dense_measured_us, down.measured_gain) == (None, None)
    assert (other.dense_predicted_us, other.predicted_gain) == (None, None)
    assert other.predicted_over_measured == 0
    assert (wider.decisions, wider.predicted_over_measured) == (1, None)
    dense = write(tmp_path, *(line(chosen=DENSE, measured_us=us) for us in (9, 12, 100)))
    compared, *rest = contractions(
        read_lines(path := write(tmp_path, line())).products, read_lines(dense).products
    )
    assert rest == [] and compared.measured_us == 2.0, path
    assert json.loads(json.dumps(asdict(compared)))["rows"] == [4, 4]


def test_measured_gain(tmp_path: Path) -> None:
    ours = read_lines(write(tmp_path, line(measured_us=2), line(measured_us=4))).products
    dense = read_lines(
        write(tmp_path, *(line(chosen=DENSE, measured_us=us) for us in (9, 12, 100)))
    ).products
    (found,) = contractions(
        ours, [*dense, *read_lines(write(tmp_path, line(node="other"))).products]
    )
    assert (found.measured_us, found.dense_measured_us, found.measured_gain) == (3, 12, 4)
    assert found.variants == {"row": 2}


def test_one_clock(tmp_path: Path) -> None:
    """CPU time where all have it, so that what else the machine does is in neither of both."""
    ours = read_lines(write(tmp_path, line(measured_us=20, cpu_us=2))).products
    dense = read_lines(write(tmp_path, line(chosen=DENSE, measured_us=30, cpu_us=12))).products
    wall = read_lines(write(tmp_path, line(chosen=DENSE, measured_us=30))).products
    (found,) = contractions(ours, dense)
    assert (found.measured_us, found.measured_gain, found.clock) == (2, 6, "CPU time")
    (mixed,) = contractions(ours, wall)
    assert (mixed.measured_us, mixed.measured_gain, mixed.clock) == (20, 1.5, "wall time")


def blocks() -> onnx.ModelProto:
    """Two ReLU blocks; about 7 % of the hidden values are not 0."""
    rng = np.random.default_rng(0)
    g = GraphBuilder("blocks")
    x = g.input("x", np.float32, ("rows", HIDDEN))
    for i, _ in enumerate(NODES):
        up, down = rng.standard_normal((HIDDEN, FFN)), rng.standard_normal((FFN, HIDDEN))
        scale = g.weight(f"scale{i}", np.ones(HIDDEN, np.float32))
        h = g.op("LayerNormalization", x, scale)
        h = g.op("MatMul", h, g.weight(f"up{i}", up.astype(np.float32)))
        h = g.op("Relu", g.op("Add", h, g.weight(f"bias{i}", np.full(FFN, -12, np.float32))))
        x = g.op("Add", x, g.op("MatMul", h, g.weight(f"down{i}", down.astype(np.float32))))
    g.output(x, "y", np.float32, ("rows", HIDDEN))
    model = g.model()
    products = [n for n in model.graph.node if n.op_type == "MatMul"]
    for node, name in zip(products[1::2], NODES, strict=True):
        node.name = name
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pitc.CompiledModel:
    """Those blocks, compiled with prices that make lists of rows look cheap."""
    folder = tmp_path_factory.mktemp("blocks") / "blocks.pitc"
    tiles = TileTable({level: PRICES for level in ("v4", "v3")})
    return api.compile(blocks(), tiles=tiles, output=folder)


@pytest.fixture(scope="module")
def kept(model: pitc.CompiledModel) -> Path:
    """A trace of the blocks: three rounds."""
    path = model.path.with_name("kept.jsonl")
    words = ("--shape", f"rows={ROWS}", "--rounds", 3, "--trace-file", path, "-q", "--json")
    assert main(["bench", str(model.path), *map(str, words)]) == 0
    return path


def test_a_model_is_raced_against_itself_when_dense(
    model: pitc.CompiledModel, tmp_path: Path
) -> None:
    feeds = {"x": np.random.default_rng(1).standard_normal((ROWS, HIDDEN), np.float32)}
    keep = tmp_path / "kept.jsonl"
    keep.write_text("an older file\n")
    ours, dense = (t.products for t in race_dense(model, feeds, rounds=4, keep=keep))
    found = contractions(ours, dense)
    assert [c.node for c in found] == NODES
    assert [d.chosen for d in ours] == ["row"] * 8  # one for each block and round
    assert [d.chosen for d in dense] == [DENSE] * 8
    assert [(d.node, d.live) for d in ours] == [(d.node, d.live) for d in dense]
    assert read_lines(keep).products == ours
    for c in found:
        assert (c.rows, c.k, c.panels, c.decisions) == ((ROWS, ROWS), FFN, 1, 4)
        assert c.clock == "CPU time"
        assert 0.01 < c.density < 0.2
        assert c.dense_measured_us and c.measured_us > 0
        assert c.measured_gain == c.dense_measured_us / c.measured_us
        assert c.predicted_us < (c.dense_predicted_us or 0)
    assert json.loads(keep.read_text().splitlines()[0])["node"] == f"{NODES[0]} [contract]"


def test_live_elements_are_those_of_the_hidden_values(
    model: pitc.CompiledModel, kept: Path
) -> None:
    """What the trace tells of the first block, by ONNX Runtime."""
    import onnxruntime

    exposed = blocks()
    hidden = next(n.output[0] for n in exposed.graph.node if n.op_type == "Relu")
    exposed.graph.output.append(onnx.ValueInfoProto(name=hidden))
    session = onnxruntime.InferenceSession(
        exposed.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(2).standard_normal((3, HIDDEN), np.float32)
    ours, _ = race_dense(model, {"x": x}, rounds=1)
    want = np.count_nonzero(np.asarray(session.run([hidden], {"x": x})[0]))
    assert contractions(ours.products)[0].density == want / (3 * FFN)
    assert len(read_lines(kept).products) == 6


def test_bench_shows_decisions(run: Run, model: pitc.CompiledModel, tmp_path: Path) -> None:
    words = ("--shape", f"rows={ROWS}", "--rounds", 6, "--trace")
    code, out, err = run("bench", model.path, *words)
    assert code == 0, err
    assert "[4/4] trace" in err
    head, *rows = out.splitlines()[-3:]
    assert head.split()[0] == "node" and head.split()[-2:] == ["gain", "gain"]
    for name, row in zip(NODES, rows, strict=True):
        assert row.startswith(name) and f"{ROWS} x {FFN}" in row and " row " in row
        assert row.count("x") == 3 and "-" not in row  # both gains are there
    body = json.loads(run("bench", model.path, *words, "--json", "-q")[1])
    assert [c["node"] for c in body["contractions"]] == NODES
    assert all(c["decisions"] == 6 and c["measured_gain"] > 0 for c in body["contractions"])
    code, out, err = run("bench", model.path, *words[:-1], "--json")
    assert code == 0 and "contractions" not in json.loads(out) and "[3/3] time" in err


def test_bench_of_a_model_without_zeros(run: Run, mlp_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    words = ("--shape", "batch=2", "--rounds", 1, "-q", "--trace-file", path)
    code, out, _ = run("bench", mlp_path, *words)
    assert code == 0
    assert out.endswith("\nno contraction has skipped zeros\n")
    assert path.read_text() == ""
    assert json.loads(run("bench", mlp_path, *words, "--json")[1])["contractions"] == []


def test_explain_shows_decisions(
    run: Run,
    model: pitc.CompiledModel,
    kept: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    page, plot = tmp_path / "report.html", tmp_path / "plot.png"
    words = ("--trace", kept, "--report", page, "--plot", plot)
    code, out, err = run("explain", model.path, *words)
    assert (code, err) == (0, "")
    head, *table = out.splitlines()[-3:]
    assert head.split()[-2:] == ["gain", "zeros"]
    assert [line.split()[0] for line in table] == NODES
    assert all(SPARSE in line for line in table)
    text = page.read_text()
    assert "<h3>Products that skip zeros</h3>" in text
    for name in NODES:
        row = next(x for x in text.splitlines() if f'title="{name}"' in x and f">{ROWS} × " in x)
        assert SPARSE in row.rpartition('data-name="zeros">')[2].replace("<wbr>", "")
    assert plot.read_bytes().startswith(PNG)

    one = json.loads(run("explain", model.path, "--trace", kept, "--node", NODES[1], "--json")[1])
    assert [c["node"] for c in one["contractions"]] == NODES[1:]
    assert one["contractions"][0]["decisions"] == 3
    assert one["contractions"][0]["measured_gain"] is None
    written = tmp_path / "report.json"
    assert run("explain", model.path, "--trace", kept, "--report", written)[0] == 0
    assert [c["node"] for c in json.loads(written.read_text())["contractions"]] == NODES
    assert "contractions" not in json.loads(run("explain", model.path, "--json")[1])


def test_explain_errors(run: Run, model: pitc.CompiledModel, tmp_path: Path) -> None:
    empty = write(tmp_path, line(node="of_another_model [ffn]"))
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(f"{line()}\n{{\n")
    for words, message in (
        (("--plot", "a.png"), "--plot shows decisions (name a trace by --trace)"),
        (("--report", "a.pdf"), "ends in neither .json nor .html"),
        (("--trace", tmp_path / "no.jsonl"), "cannot be read: No such file"),
        (("--trace", damaged), f"{damaged}: line 2 is no decision: Invalid JSON"),
        (("--trace", empty, "--plot", "a.jpg"), "does not end in .png"),
        (
            ("--trace", empty, "--node", NODES[0], "--plot", tmp_path / "a.png"),
            "there is no decision to draw",
        ),
    ):
        code, _, err = run("explain", model.path, *words)
        assert code == 2, words
        assert message in err
    for words, message in (
        (("--trace-file", "a.json"), "trace 'a.json' does not end in .jsonl"),
        (("--trace-file", tmp_path / "no" / "a.jsonl"), "does not exist"),
    ):
        code, out, err = run("bench", model.path, *words)
        assert (code, out) == (2, "") and message in err


def test_a_plot_has_a_picture_for_each_size(tmp_path: Path, kept: Path) -> None:
    from matplotlib.figure import Figure

    from pitc.cli.plot import MOST_SIZES, draw_decisions

    drawn: list[Figure] = []
    save = Figure.savefig

    def look(self: Figure, *args: object, **options: object) -> None:
        drawn.append(self)
        save(self, *args, **options)  # type: ignore[arg-type]

    sizes = [line(k=100 + k, rows=1 + k % 3) for k in range(2 * MOST_SIZES)]
    sizes += [line(k=100, candidates=offer(row=1)), line(k=100, rows=9)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", look)
        draw_decisions(tmp_path / "a.png", read_lines(write(tmp_path, *sizes)).products, "m $x")
        draw_decisions(tmp_path / "b.png", read_lines(kept).products, "m")
    many, one = drawn
    assert len(many.axes) == MOST_SIZES
    assert many.get_suptitle() == "m $x: 6 of 13 sizes, those with most decisions"
    (axes,) = one.axes
    assert axes.get_title() == f"[{ROWS}, {FFN}] by [{FFN}, 1 x 64]"
    labels: Mapping[str, int] = {
        str(x.get_label()): np.size(x.get_xdata()) for x in axes.get_lines()
    }
    assert labels == {"row": 6, "dense, predicted": 6}


def test_a_report_without_a_trace_has_no_such_table() -> None:
    from pitc.report.evidence import Evidence
    from pitc.report.page import page

    report = Report(
        nodes=[NodeRecord("a", "MatMul", sparse="operand 0 is 0"), NodeRecord("b", "X")]
    )
    assert report.sparse == {"a": "operand 0 is 0"}
    assert 'id="density"' not in page([report])
    assert "no product has skipped zeros" in page([report], Evidence(contractions=[]))
