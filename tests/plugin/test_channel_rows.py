"""Convolutions one behind the other that choose together, once for all of them."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import pitc
from models.graph import GraphBuilder
from pitc.artifact.check import check_artifact
from pitc.host.placement import pit_nodes
from tests.channel_support import (
    BATCH,
    DENSITIES,
    RTOL,
    SIZE,
    C,
    F,
    Make,
    array,
    blocks,
    branches,
    built,
    choices,
    conv,
    everything_pays,
    feeds_of,
    flag,
    ifs,
    lowerings,
    of_image,
    of_input,
    plain,
    poisoned,
    same,
    session,
)
from tests.lower_support import check, lower
from tests.runtime_support import quiet_options


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    everything_pays(monkeypatch)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gates", [of_input, of_image])
def test_blocks_leave_out_both(gates: Make, bias: bool) -> None:
    proto = blocks(gates, bias)
    lowered = lower(proto)
    found = [r for r in lowered.report.nodes if r.lowering == "channels" and r.op_type == "Conv"]
    both = [r for r in found if r.sparse.count("is 0 where") == 2]
    assert len(found) >= 3 and len(both) == 2
    for density in DENSITIES:
        check(proto, lowered, feeds_of(proto, density))
    normalised = [r.lowering for r in lowered.report.nodes if r.op_type == "BatchNormalization"]
    assert normalised == ["channels"] * 3


@pytest.mark.parametrize("gates", [of_input, of_image])
def test_blocks_behind_each_other_choose_once(gates: Make) -> None:
    """Unless a gate looks at what is between them: then all do, two that compute gates as well."""
    proto = blocks(gates)
    lowered = lower(proto)
    assert choices(lowered) == (1 if gates is of_input else 5)
    every = feeds_of(proto, 1.0)
    for closed in (x for x in every if x.startswith("gate")):
        for live in (0, 1, C):
            feeds = dict(every)
            feeds[closed] = every[closed] * (np.arange(C) < live)[:, None, None].astype(np.float32)
            check(proto, lowered, feeds)


def row(length: int, between: Make, last: Make = lambda g, x: x) -> onnx.ModelProto:
    """Convolutions with the gate of an input behind each, and something in between."""

    def build(g: GraphBuilder) -> str:
        x = g.input("x", np.float32, BATCH)
        for k in range(length):
            gate = g.input(f"gate{k}", np.float32, ("batch", C, 1, 1))
            x = g.op("Mul", conv(g, x, C, C), gate)
            x = between(g, x) if k < length - 1 else x
        return last(g, x)

    return built(build, ("batch", C, "h", "w"))


BETWEEN: dict[str, tuple[Make, int]] = {
    "nothing": (lambda g, x: x, 1),
    "largest": (lambda g, x: g.op("MaxPool", x, kernel_shape=[2, 2]), 1),
    "mean": (lambda g, x: g.op("AveragePool", x, kernel_shape=[2, 2]), 1),
    "turned": (lambda g, x: g.op("Transpose", x, perm=[0, 1, 3, 2]), 2),
    "sum": (lambda g, x: g.op("Add", x, g.op("Neg", x)), 2),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_what_is_between_convolutions(between: str) -> None:
    make, count = BETWEEN[between]
    proto = row(2, make)
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"] * 2 and choices(lowered) == count
    same(proto, lowered, [feeds_of(proto, d, n) for d in DENSITIES for n in (0, 1, 3)])


def test_what_others_read_is_whole() -> None:
    """A graph output between two convolutions: each chooses for itself."""
    g = GraphBuilder("wanted")
    x = g.op("Mul", conv(g, g.input("x", np.float32, BATCH), C, C), flag(g))
    g.output(x, "between", np.float32, BATCH)
    g.output(g.op("Identity", conv(g, "between", F, C)), "y", np.float32, ("batch", F, SIZE, SIZE))
    proto = g.model()
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"] * 2 and choices(lowered) == 2
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


@pytest.mark.parametrize(("length", "count"), [(8, 1), (9, 2), (17, 3)])
def test_long_rows_choose_in_parts(length: int, count: int) -> None:
    proto = row(length, lambda g, x: g.op("Tanh", x))
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"] * length and choices(lowered) == count
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


def test_the_choice_is_by_the_sum() -> None:
    """Of two convolutions by a and b of 8 filters, 8a + ab of 128 products are left, of which 96
    may be: either branch is right, and only the one that was chosen runs.
    """
    proto = row(2, lambda g, x: x)
    lowered = lower(proto)
    every = feeds_of(proto, 1.0)
    for a, b, side in [(8, 4, "then"), (8, 5, "else"), (6, 8, "then"), (7, 6, "else")]:
        feeds = dict(every)
        for name, live in (("gate0", a), ("gate1", b)):
            feeds[name] = every[name] * (np.arange(C) < live)[:, None, None].astype(np.float32)
        for name in ("then", "else"):
            (y,) = session(poisoned(lowered, name)).run(None, feeds)
            assert np.isnan(y).all() == (name == side)


def test_what_is_pooled_at_last_is_small() -> None:
    """Nothing of the size of an image leaves the branches."""
    proto = row(2, lambda g, x: x, lambda g, x: g.op("GlobalAveragePool", x))
    lowered = lower(proto)
    (node,) = ifs(ir.serde.serialize_model(lowered.model))
    whole = {a.name: a.g for a in node.attribute}["else_branch"]
    assert whole.node[-1].op_type == "GlobalAveragePool"
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


@pytest.mark.parametrize("epsilon", [None, 0.25])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_a_norm_becomes_part_of_live_filters(
    epsilon: float | None, bias: bool, constant: bool
) -> None:
    def build(g: GraphBuilder) -> str:
        y = conv(g, g.input("x", np.float32, ("batch", 5, SIZE, SIZE)), C, 5, bias)
        parts = [array(C, 1, seed=k).reshape(-1) ** 2 + 0.5 for k in range(4)]
        names = [g.weight(f"norm.{k}", part) for k, part in enumerate(parts)]
        if not constant:
            names[1] = g.input("shift", np.float32, (C,))
        attributes: dict[str, Any] = {} if epsilon is None else {"epsilon": epsilon}
        return g.op("Mul", g.op("BatchNormalization", y, *names, **attributes), flag(g))

    proto = built(build, BATCH)
    lowered = lower(proto)
    live = branches(ir.serde.serialize_model(lowered.model))["then_branch"]
    assert ("BatchNormalization" not in [n.op_type for n in live.node]) == constant
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


def test_a_compiled_model_and_its_report(tmp_path: Any) -> None:
    """The choice is the only node of pitc's own, and needs no kernel."""
    proto, folder = blocks(of_input), tmp_path / "gated.pitc"
    pitc.compile(proto, output=folder)
    loaded = pitc.load(folder)
    assert len(ifs(onnx.load(folder / "model.onnx"))) == 1
    assert (
        pit_nodes(check_artifact(folder)) == {"cpu": {"choose_channels": 1}}
        and loaded.manifest.kernels is None
    )
    assert not ifs(onnx.load(folder / "fallback.onnx"))
    assert [r.lowering for r in loaded.report.nodes].count("channels") == 13
    feeds = feeds_of(proto, 0.3)
    (got,), (want,) = (
        loaded.session(quiet_options()).run(None, feeds),
        plain(proto).run(None, feeds),
    )
    np.testing.assert_allclose(got, want, atol=RTOL * np.abs(want).max())
