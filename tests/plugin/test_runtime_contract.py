"""Nodes of sparse contractions with generated kernels: every variant, threads, traces."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.library import build_kernels
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import pack_panels
from pitc.ir.tiles import FEMTOSECONDS, TileTable, VariantCost
from pitc.ir.variants import VARIANTS
from pitc.measure.trace import take_trace
from tests.codegen_kernels import LEVELS
from tests.plan_text import Field, Plan, contract_plan
from tests.runtime_support import (
    FLOAT,
    MASK,
    ROWS,
    Array,
    Value,
    answers_on_eight_threads,
    creation_error,
    make_model,
    pit_node,
    points,
    quiet_options,
    save,
    session,
    use_built_provider,
)
from tests.tile_prices import time_of

pytest.importorskip("onnxruntime")
pytest.importorskip("tvm")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

FAMILIES = ("gather_gemm", "contract_row", "contract_tile", "contract_block")
#: Prices with which each variant is the fastest somewhere; what they mean does not matter here.
PRICES = {
    "dense": (1000, 0, 0, 0, 0, 10, 100, 50),
    "row": (2000, 5, 20, 0, 0, 20, 180, 90),
    "tile8": (2000, 5, 12, 0, 0, 20, 130, 90),
    "block16": (2000, 5, 8, 0, 0, 20, 140, 80),
    "block32": (2000, 5, 8, 0, 0, 20, 125, 80),
    "block64": (2000, 5, 8, 0, 0, 20, 115, 80),
}
TILES = TileTable({x: {name: VariantCost(p) for name, p in PRICES.items()} for x in ("v3", "v4")})


@dataclass(frozen=True, slots=True)
class Node:
    """One contraction node, and its operands by numpy.

    Args:
        inner: Columns of `a` where A is the ReLU of a product, else 0.
        extras: Everything optional is there, rows are gathered and scattered, and A without a
            product stands for its ReLU.
    """

    k: int
    n: int
    activation: str
    extras: int
    inner: int = 0

    def requests(self) -> list[KernelRequest]:
        of = KernelRequest.of
        params: dict[str, Any] = {"k": self.k, "n": self.n, "activation": self.activation}
        found = [of(family, **params, residual=self.extras) for family in FAMILIES]
        if self.extras and not self.inner:
            found.append(of("gather_gemm", **params, residual=self.extras, input_relu=1))
        if self.inner:
            inner: dict[str, Any] = {"k": self.inner, "n": self.k, "activation": "relu"}
            found.append(of("gather_gemm", **inner, residual=0, bits=1))
        return found

    def plan(self) -> Plan:
        flags = dict.fromkeys(("bias", "gather", "residual", "scatter"), self.extras)
        fields: dict[str, Field] = {"activation": self.activation, "k": self.k, "n": self.n}
        fields |= flags | dict(TILES.table("float32"))
        if not self.inner:
            fields["input_relu"] = self.extras
        else:
            fields |= {"inner": self.inner, "inner_bias": self.extras}
        return contract_plan(**fields, skips=1)

    def constants(self) -> dict[str, Array]:
        """B and bias, and B1 and bias1 of a product in front."""
        rng = np.random.default_rng(self.k)
        sizes = {"1": (self.inner, self.k)} if self.inner else {}
        made: dict[str, Array] = {}
        for name, (k, n) in {**sizes, "": (self.k, self.n)}.items():
            made[f"b{name}"] = rng.standard_normal((k, n), np.float32) / np.float32(np.sqrt(k))
            if self.extras:
                made[f"bias{name}"] = rng.standard_normal(n, np.float32)
        return made

    def model(self, name: str = "contraction") -> onnx.ModelProto:
        extras: list[Value] = [("residual", FLOAT, ["t", self.n]), ROWS, MASK]
        constants = self.constants()
        held = {x: c if "bias" in x else pack_panels(c) for x, c in constants.items()}
        inputs = ["a", *held, *(x for x, _, _ in extras if self.extras)]
        return make_model(
            [pit_node(name, self.plan(), inputs, ["c"])],
            [("a", FLOAT, None), *(extras if self.extras else [])],
            [("c", FLOAT, None)],
            constants=held,
        )

    def feeds(self, rows: int, seed: int, density: float = 0.2) -> dict[str, Array]:
        """Inputs with so many rows of C; A holds zeros in tiles of random size, and odd numbers."""
        rng = np.random.default_rng(seed)
        live = np.ones((1, rows), bool)
        if self.extras:
            live = np.zeros((2, rows), bool)
            live.reshape(-1)[rng.permutation(2 * rows)[:rows]] = True
        shape = (*live.shape, self.inner or self.k) if self.extras else (rows, self.inner or self.k)
        height, width = rng.choice([1, 2, 8, 32]), rng.choice([1, 4, 16, 64])
        a = rng.standard_normal(shape, np.float32)
        tiles = rng.random((-(-max(rows, 1) // height), -(-shape[-1] // width))) < density
        tiles = tiles.repeat(height, 0).repeat(width, 1)[:rows, : shape[-1]]
        a *= tiles.reshape(1, *tiles.shape)[0]
        a[(a == 0) & (rng.random(shape) < 0.1)] = -0.0
        a[(a != 0) & (rng.random(shape) < 0.02)] = 1e-41
        feeds = {"a": a}
        if self.extras:
            residual = rng.standard_normal((rows, self.n), np.float32)
            feeds |= {"residual": residual, "rows": points(live)[0], "live": live}
        return feeds

    def expected(self, feeds: Mapping[str, Array]) -> Array:
        """C in float64."""
        given = {x: c.astype(np.float64) for x, c in self.constants().items()}
        x = feeds["a"].astype(np.float64)
        x = x[feeds["live"]] if self.extras else x
        if self.inner:
            x = x @ given["b1"] + given.get("bias1", 0)
        if self.inner or self.extras:
            x = np.where(x < 0, 0, x)
        c = x @ given["b"] + given.get("bias", 0)
        c = np.where(c < 0, 0, c) if self.activation == "relu" else c
        if not self.extras:
            return c
        whole = np.zeros((*feeds["live"].shape, self.n))
        whole[feeds["live"]] = c + feeds["residual"]
        return whole


NODES: dict[str, Node] = {
    "all": Node(477, 70, "relu", extras=1),
    "one column": Node(600, 1, "none", extras=0),
    "one k": Node(1, 130, "none", extras=1),
    "ffn": Node(200, 66, "none", extras=0, inner=433),
    "ffn all": Node(477, 70, "relu", extras=1, inner=5),
}
MANY_ROWS = (0, 1, 5, 8, 9, 33, 200, 1100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of all nodes; models lie beside them."""
    path = tmp_path_factory.mktemp("contract")
    build_kernels(
        [r for node in NODES.values() for r in node.requests()],
        LEVELS,
        path / "kernels.so",
        cache=kernel_cache(),
    )
    return path


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NODES)
def test_every_variant_is_the_product(folder: Path, name: str, level: str) -> None:
    """The same values whatever runs, and the same bits for every number of threads and each run."""
    node = NODES[name]
    path = save(folder, node.model(), f"{name} {level}.onnx")
    feeds = [node.feeds(rows, rows + 1) for rows in MANY_ROWS]
    for variant in (*VARIANTS, None):
        options = {"cpu_level": level} | ({} if variant is None else {"variant": variant})
        one, two = (session(path, quiet_options(threads), **options) for threads in (1, 2))
        cut = [session(path, quiet_options(2), **options, threads=n) for n in ("3", "64")]
        for given in feeds:
            (got,) = one.run(None, given)
            want = node.expected(given)
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=str(variant))
            for again in (one, two, *cut):
                np.testing.assert_array_equal(again.run(None, given)[0], got)


@pytest.mark.parametrize("name", ["all", "ffn all"])
def test_what_is_not_a_number_is_not_zero(folder: Path, name: str) -> None:
    """NaN and infinities reach every column of their row, and no other row."""
    node = NODES[name]
    path = save(folder, node.model(), f"{name}.onnx")
    given = node.feeds(40, 1, density=0.5)
    clean = node.expected(given)
    a = given["a"].reshape(-1, given["a"].shape[-1])
    odd = {given["rows"][3]: np.nan, given["rows"][20]: np.inf, given["rows"][39]: -np.inf}
    for row, value in odd.items():
        a[row, -1] = value
    with np.errstate(invalid="ignore"):
        want = node.expected(given)
    assert np.isnan(want[given["live"]][3]).all()
    for variant in VARIANTS:
        (got,) = session(path, variant=variant).run(None, given)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=variant)
    others = np.delete(want.reshape(len(a), -1), list(odd), 0)
    np.testing.assert_array_equal(others, np.delete(clean.reshape(len(a), -1), list(odd), 0))


@pytest.mark.parametrize("name", ["all", "ffn all"])
def test_eight_threads_on_one_session(folder: Path, name: str) -> None:
    node = NODES[name]
    path = save(folder, node.model(), f"threads {name}.onnx")
    feeds = [node.feeds(7 + 60 * i, i, density=(i % 4) / 3) for i in range(8)]
    answers_on_eight_threads(session(path, quiet_options(threads=2)), feeds, rounds=60)


def test_threads_are_counted(folder: Path, tmp_path: Path) -> None:
    """As many as the pool has come, or fewer on a busy machine: they are counted again then."""
    node, trace = NODES["all"], tmp_path / "trace"
    path = save(folder, node.model(), "counted.onnx")
    given = node.feeds(2000, 1)

    def seen(pool: int, **options: str) -> list[int]:
        run = session(path, quiet_options(pool), trace=str(trace), **options)
        for _ in range(16):
            run.run(None, given)
        return [decision.threads for decision in take_trace(trace)]

    assert set(seen(1)) == {1}
    assert set(seen(2, threads="1")) == {1} and set(seen(1, threads="7")) == {7}
    most = min(2, os.cpu_count() or 1)
    for _ in range(50):
        found = seen(2)
        assert found == sorted(found) and set(found) <= {1, 2}
        if found[-1] == most:
            return
    raise AssertionError("the second thread of the pool was never seen")


def test_what_tasks_took(folder: Path, tmp_path: Path) -> None:
    node, trace = NODES["all"], tmp_path / "tasks"
    path = save(folder, node.model(), "tasks.onnx")
    run = session(path, quiet_options(1), threads="4", task_trace=str(trace), variant="row")
    run.run(None, node.feeds(2000, 1))
    (line,) = map(json.loads, trace.read_text().splitlines())
    assert "(contract)" in line["node"]
    assert len(line["loops"]) >= 3 and all(len(loop["tasks_us"]) >= 4 for loop in line["loops"])
    for loop in line["loops"]:
        assert 0 < sum(loop["tasks_us"]) <= loop["loop_us"] * 1.01
    assert sum(loop["loop_us"] for loop in line["loops"]) <= line["run_us"]


@pytest.mark.parametrize("threads", ["0", "-1", "2.5", "1025", "many"])
def test_threads_are_a_number(folder: Path, threads: str) -> None:
    path = save(folder, NODES["all"].model(), "refused.onnx")
    with pytest.raises(Exception, match=f"expected threads from 1 to 1024, got '{threads}'"):
        session(path, threads=threads)


def test_trace(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line per decision: what was counted, what it would cost, what ran."""
    node, trace = NODES["one column"], tmp_path / "trace"
    name = 'a "name"\n\\ \x01 ä€'
    path = save(folder, node.model(name), "trace.onnx")
    a = np.zeros((64, node.k), np.float32)
    a[:, 5] = a[10, 200:216] = 1
    session(path, trace=str(trace)).run(None, {"a": a})
    (decision,) = take_trace(trace)
    work, predicted = decision.work, decision.predicted_us
    assert (decision.node, work.rows, work.k, work.panels) == (name, 64, node.k, 1)
    counts = {"elements": 80, "columns": 17, "tile8": 24}
    counts |= {"block16": 66, "block32": 65, "block64": 65}
    assert work.counts.items() >= counts.items()
    assert list(predicted) == list(VARIANTS)
    assert predicted[decision.chosen] == min(predicted.values()) and decision.measured_us > 0
    for variant, amounts in decision.features.items():
        total = time_of(PRICES[variant], variant, amounts) / FEMTOSECONDS
        assert predicted[variant] == pytest.approx(total, abs=1e-3)

    # The environment names a file for all sessions; the option of a session goes before it.
    monkeypatch.setenv("PITC_TRACE", str(tmp_path / "everywhere"))
    session(path, variant="tile8").run(None, {"a": a})
    session(path, trace=str(trace)).run(None, {"a": a})
    (decision,) = take_trace(tmp_path / "everywhere")
    assert decision.chosen == "tile8" and len(take_trace(trace)) == 1
    monkeypatch.setenv("PITC_TRACE", str(tmp_path / "nowhere" / "trace"))
    assert "cannot write the trace file" in creation_error(path)
    monkeypatch.delenv("PITC_TRACE")
    session(path).run(None, {"a": a})
    assert not take_trace(trace)


def test_bad_options(folder: Path, tmp_path: Path) -> None:
    path = save(folder, NODES["one column"].model(), "options.onnx")
    error = creation_error(path, variant="tile9")
    assert "expected variant as one of dense, row, tile8, block16," in error and "'tile9'" in error
    error = creation_error(path, trace=str(tmp_path))
    assert f"cannot write the trace file '{tmp_path}'" in error and "Is a directory" in error


def test_inputs_that_do_not_fit(folder: Path) -> None:
    """One line that names the node and the input."""
    run = session(save(folder, NODES["ffn all"].model(), "inputs.onnx"))
    good = NODES["ffn all"].feeds(6, 1)
    assert np.isfinite(run.run(None, good)[0]).all()
    for bad, message in (
        ({"a": good["a"][..., :4]}, "expected a of last dimension 5"),
        (
            {"a": good["a"][:, :5]},
            "expected a as float32 [2, 6, 5] (one row per point of the mask)",
        ),
        ({"residual": good["residual"][:5]}, "expected residual of 6 rows of 70"),
        ({"rows": good["rows"][::-1].copy()}, "expected rows to ascend"),
        ({"rows": good["rows"] + np.int32(12)}, "expected 0 <= rows[0] < 12"),
    ):
        with pytest.raises(Exception) as caught:
            run.run(None, good | bad)
        assert f"pitc: node 'contraction' (contract): {message}" in str(caught.value)
