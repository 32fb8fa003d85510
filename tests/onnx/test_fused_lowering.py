"""Graphs that ONNX Runtime's optimizers have fused run packed like the plain ones.

The models in `models/export/fused` are what its optimizers made of the exports beside them.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper as h

from pitc.importer import load_model
from pitc.ir import target as targets
from pitc.passes.lower.share import share_panels
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import Lowered, LowerOptions, analyse, run_passes
from tests.fact_check import fills, probed, proven
from tests.fused_models import (
    KINDS,
    MASK,
    QKV,
    WIDTH,
    Array,
    B,
    H,
    S,
    X,
    contractions,
    fused,
    lengths,
    mask_of,
    model,
    plans,
    random,
    run,
)
from tests.plan_reference import run_lowered

FUSED = sorted((Path(__file__).parents[2] / "models/export/fused").glob("*.onnx"))
MASKED = [f for f in FUSED if f.stem != "bert-no-mask"]
PADDING = "attention_mask"


def name(file: Path) -> str:
    return file.stem


def lower(file: Path, padding: str | None) -> Lowered:
    return run_passes(load_model(file), LowerOptions(padding=padding))


def tokens(file: Path, kind: str) -> tuple[dict[str, Array], Array]:
    """Inputs of a fixture and its mask, which outside of BERT keeps a token of every sequence."""
    mask = mask_of(kind)
    if "bert" not in file.stem:
        mask[:, 0] |= kind in ("holes", "empty")
    feeds = {"input_ids": np.random.default_rng(0).integers(2, 90, mask.shape), PADDING: mask}
    taken = {i.name for i in onnx.load(file, load_external_data=False).graph.input}
    return {k: x.astype(np.int64) for k, x in feeds.items() if k in taken}, mask.astype(bool)


def check(file: Path, padding: str | None) -> Lowered:
    """Lower a fixture and compare with ONNX Runtime under every kind of mask."""
    lowered = lower(file, padding)
    proto, source = ir.to_proto(lowered.model), onnx.load(file)
    for kind in KINDS:
        feeds, mask = tokens(file, kind)
        (want,), (got,) = run(source, feeds), run_lowered(proto, feeds)
        assert want.shape == got.shape and np.isfinite(want).all()
        if padding is not None and want.shape[:2] == mask.shape:
            np.testing.assert_array_equal(got[~mask], 0)
            want, got = want[mask], got[mask]
        assert np.linalg.norm(want - got) <= 1e-5 * np.linalg.norm(want), kind
    return lowered


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", FUSED, ids=name)
def test_optimised_exports_run_packed_like_plain_ones(file: Path) -> None:
    """Every contraction on tokens, attention, and whatever kernels take in; padding of any kind."""
    padding = PADDING if file in MASKED else None
    lowered = check(file, padding)
    if padding is None:
        return
    head = 2 if "classifier" in file.stem else 0
    assert contractions(lowered).count("ordinary") == head
    made = plans(lowered)
    kernels = [p["kind"] for p in made]
    assert kernels.count("attention") == 2
    if "bert" in file.stem or "classifier" in file.stem or "gpt2" in file.stem:
        joint = "gpt2" in file.stem or file.stem.endswith(("-lengths", "-mask"))
        assert kernels.count("dense") == (8 if joint else 12)
        kind = "gelu_tanh" if "gpt2" in file.stem else "gelu"
        gemms = [p for p in made if p["kind"] == "dense"]
        assert [p["activation"] for p in gemms].count(kind) == 2
        assert sum(int(p["residual"]) for p in gemms) == 4
        assert {p["bias"] for p in gemms} == {"0" if file.stem == "gpt2-session" else "1"}
        first = [(p["q_head"], p["k_head"], p["v_head"]) for p in made if p["kind"] == "attention"]
        assert first == [("0", "4", "8") if joint else ("0", "0", "0")] * 2
        assert "Split" not in {n.op_type for n in lowered.model.graph}


@pytest.mark.parametrize("file", FUSED, ids=name)
def test_without_padding_fused_nodes_come_back(file: Path) -> None:
    """But where it shows in the model that rows are not read, or pairs are hidden."""
    source = onnx.load(file)
    lowered = lower(file, None)
    dead_keys = file.stem in ("bert-session", "t5-encoder")
    if "classifier" in file.stem or dead_keys:  # only the first token is read, or live keys
        assert lowered.kernels
        return
    if file.stem.removesuffix("-session") in ("gpt2", "opt"):
        attention = [p for p in plans(lowered) if p["op"] == "attention"]
        assert [(p["pairs"], p["bias"]) for p in attention] == [("1", "0")] * 2
        return
    after = ir.to_proto(lowered.model)
    kept = [n for n in source.graph.node if n.op_type != "Constant"]
    assert [n.op_type for n in after.graph.node] == [n.op_type for n in kept]
    assert [o for n in after.graph.node for o in n.output if o] == [
        o for n in kept for o in n.output if o
    ]


def test_all_layers_share_one_mask() -> None:
    (file,) = [f for f in FUSED if f.stem == "bert-lengths"]
    parts = load_model(file)
    normalise(parts)
    found = [n.op_type for n in parts.graph]
    assert found.count("Softmax") == 2
    assert found.count("Less") == found.count("Range") == 1


@pytest.mark.parametrize("file", MASKED, ids=name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_facts_hold(file: Path) -> None:
    parts = load_model(file)
    normalise(parts)
    graph, given_up = analyse(parts, PADDING)
    feeds = [tokens(file, kind)[0] for kind in ("left", "holes")]
    result = probed(onnx.load(file), graph, given_up, PADDING, feeds, every=4)
    assert not result.failures and not result.faults
    assert result.fill_checks and result.dead_checks


COMPARISONS = {
    ("Less", "place"): ("d1 < n[d0]", "d1 >= n[d0]"),
    ("LessOrEqual", "place"): ("d1-1 < n[d0]", "d1-1 >= n[d0]"),
    ("Greater", "place"): ("d1-1 >= n[d0]", "d1-1 < n[d0]"),
    ("GreaterOrEqual", "place"): ("d1 >= n[d0]", "d1 < n[d0]"),
    ("Less", "length"): ("d1-1 >= n[d0]", "d1-1 < n[d0]"),
    ("LessOrEqual", "length"): ("d1 >= n[d0]", "d1 < n[d0]"),
    ("Greater", "length"): ("d1 < n[d0]", "d1 >= n[d0]"),
    ("GreaterOrEqual", "length"): ("d1-1 < n[d0]", "d1-1 >= n[d0]"),
}


@pytest.mark.parametrize(("op", "left"), COMPARISONS)
def test_a_place_is_compared_with_a_length(op: str, left: str) -> None:
    """The length is found behind its Cast and Unsqueeze, and every fact is looked up in a run."""
    sides = ["place", "length"] if left == "place" else ["length", "place"]
    nodes = [
        h.make_node("Shape", ["x"], ["shape"]),
        h.make_node("Gather", ["shape", "one"], ["size"]),
        h.make_node("Range", ["zero", "size", "one"], ["place"]),
        h.make_node("Cast", ["n"], ["wide"], to=onnx.TensorProto.INT64),
        h.make_node("Unsqueeze", ["wide", "last"], ["length"]),
        h.make_node(op, sides, ["keep"]),
        h.make_node("Where", ["keep", "x", "low"], ["y"]),
    ]
    numbers = {"zero": np.int64(0), "one": np.int64(1), "low": np.float32(0)}
    weights = {k: np.asarray(x) for k, x in numbers.items()} | {"last": np.asarray([1])}
    fed = {"x": random(B, S), "n": np.asarray([0, 2, 5], np.int32)}
    graph = proven(model(nodes, fed, weights), top_index=S + 2)
    yes, no = COMPARISONS[op, left]
    assert fills(graph, "keep") == {(yes, 1), (no, 0)}


def heads_by_einsum() -> onnx.ModelProto:
    """A layer of attention whose projections keep the heads in a dimension of their own."""
    m, n, d = 32, 2, 16
    sizes = {f"w{x}": (m, n, d) for x in "qkv"} | {f"b{x}": (n, d) for x in "qkv"}
    weights = {k: random(*s, seed=k) / 4 for k, (_, s) in enumerate(sizes.items())}
    named = dict(zip(sizes, weights.values(), strict=True)) | {"wo": random(n, d, m)}
    make = h.make_node
    nodes = [
        make("Cast", ["mask"], ["kept"], to=onnx.TensorProto.FLOAT),
        make("Sub", ["one", "kept"], ["gone"]),
        make("Mul", ["gone", "low"], ["added"]),
        make("Unsqueeze", ["added", "axes"], ["bias"]),
    ]
    for x in "qkv":
        nodes.append(make("Einsum", ["x", f"w{x}"], [f"{x}0"], equation="abc,cde->abde"))
        nodes.append(make("Add", [f"{x}0", f"b{x}"], [x]))
    nodes += [
        make("Einsum", ["k", "q"], ["s"], equation="aecd,abcd->acbe"),
        make("Add", ["s", "bias"], ["t"]),
        make("Softmax", ["t"], ["p"], axis=-1),
        make("Einsum", ["p", "v"], ["o"], equation="acbe,aecd->abcd"),
        make("Einsum", ["o", "wo"], ["y"], equation="abcd,cde->abe"),
    ]
    rest = {"one": np.float32(1), "low": np.float32(-1e4), "axes": np.asarray([1, 2])}
    constants = named | {k: np.asarray(x) for k, x in rest.items()}
    return model(nodes, {"x": random(B, S, m), "mask": MASK.astype(np.int64)}, constants)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_projections_into_heads_run_packed() -> None:
    """Weights `[rows, heads, size]` are read as matrices, and shared with the source graph."""
    proto = heads_by_einsum()
    lowered = run_passes(ir.from_proto(proto), LowerOptions(padding="mask"))
    assert contractions(lowered) == ["packed"] * 3 + ["folded", "attention", "packed"]
    gemms = [p for p in plans(lowered) if p["kind"] == "dense"]
    assert [p["bias"] for p in gemms] == ["1", "1", "1", "0"]
    shared = ir.from_proto(proto)
    share_panels(shared, lowered.model, lowered.panels)
    assert not {"wq", "wk", "wv", "wo"} & set(shared.graph.initializers)
    for kind in KINDS:
        mask = mask_of(kind).astype(bool)
        feeds = {"x": random(B, S, 32), "mask": mask.astype(np.int64)}
        (want,), (again,) = run(proto, feeds), run(ir.to_proto(shared), feeds)
        np.testing.assert_array_equal(again, want)
        (got,) = run_lowered(ir.to_proto(lowered.model), feeds)
        assert not got[~mask].any()
        assert np.linalg.norm((got - want)[mask]) <= 1e-5 * np.linalg.norm(want)


def test_a_node_that_was_lowered_in_part_stays_apart() -> None:
    """Its head is too long for the kernel; as one node it would project all rows once more."""
    rows, width = {"x": random(B, S, 320), "m": MASK}, 320
    proto = model(
        [fused("Attention", ["x", "w", "p", "m"], num_heads=1)],
        rows,
        {"w": random(width, 3 * width) / 9, "p": random(3 * width)},
    )
    proto.graph.output[0].CopyFrom(
        h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["b", "s", width])
    )
    lowered = run_passes(ir.from_proto(proto), LowerOptions(padding="m"))
    assert contractions(lowered) == ["packed", "ordinary", "ordinary"]
    assert "Attention" not in {n.op_type for n in lowered.model.graph}
    mask = MASK.astype(bool)
    (want,), (got,) = run(proto, rows), run_lowered(ir.to_proto(lowered.model), rows)
    assert np.linalg.norm((got - want)[mask]) <= 1e-5 * np.linalg.norm(want)


@pytest.mark.parametrize("order", [["h", "r"], ["r", "h"]], ids=str)
def test_a_bias_goes_to_the_product_that_is_normalised(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))
    width = 32
    rows = {"x": random(B, S, width), "r": random(B, S, width, seed=1), "m": MASK}
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["h"]),
        fused("SkipLayerNormalization", [*order, "g", "", "c"]),
    ]
    weights = {"w": random(width, width), "g": random(width), "c": random(width, seed=1)}
    proto = model(nodes, rows, weights)
    proto.graph.output[0].CopyFrom(
        h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["b", "s", width])
    )
    lowered = run_passes(ir.from_proto(proto), LowerOptions(padding="m"))
    (gemm,) = [p for p in plans(lowered) if p["kind"] == "dense"]
    assert (gemm["bias"], gemm["residual"]) == ("1", "1")
    mask = MASK.astype(bool)
    (want,), (got,) = run(proto, rows), run_lowered(ir.to_proto(lowered.model), rows)
    assert np.linalg.norm((got - want)[mask]) <= 1e-5 * np.linalg.norm(want)


LAYERS: dict[str, dict[str, Any]] = {
    "Attention": {},
    "Attention causal": {"unidirectional": 1},
    "Attention by length": {},
    "MultiHeadAttention": {},
    "MultiHeadAttention causal": {"unidirectional": 1},
}


def layer(label: str) -> onnx.ModelProto:
    """Attention of projected rows under its own mask `m`; the input `tokens` is not read."""
    op, rest = label.split()[0], LAYERS[label] | {"num_heads": H}
    own = lengths("full") if "length" in label else mask_of("full")
    fed = X | {"m": own, "tokens": mask_of("full").astype(np.int64)}
    weights = QKV | {k: random(WIDTH, WIDTH, seed=n) / 2 for n, k in enumerate(("wq", "wk", "wv"))}
    nodes = [h.make_node("MatMul", ["x", f"w{k}"], [k]) for k in "qkv"]
    if op == "Attention":
        nodes = [fused(op, ["x", "w", "p", "m"], ("y",), **rest)]
    else:
        nodes.append(fused(op, [*"qkv", "p", "m"], ("y",), **rest))
    read = {name for n in nodes for name in n.input}
    proto = model(nodes, fed, {k: x for k, x in weights.items() if k in read})
    proto.graph.output[0].CopyFrom(
        h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["b", "s", WIDTH])
    )
    return proto


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("label", LAYERS)
def test_attention_runs_packed_under_every_mask(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mask and the tokens that are given up need not agree, if keys have no order."""
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))
    make = lengths if "length" in label else mask_of
    proto = layer(label)
    padding = "m" if "causal" in label else "tokens"
    lowered = run_passes(ir.from_proto(proto), LowerOptions(padding=padding))
    assert contractions(lowered)[-2:] == ["folded", "attention"]
    after = ir.to_proto(lowered.model)
    for own, tokens_kept in product(KINDS, ("left", "holes")):
        live = mask_of(own if padding == "m" else tokens_kept).astype(bool)
        fed = X | {"m": make(own), "tokens": live.astype(np.int64)}
        (want,), (got,) = run(proto, fed), run_lowered(after, fed)
        assert not got[~live].any()
        # where a sequence keeps no key, -1e4 is added to all of its scores, which rounds them
        assert np.linalg.norm((got - want)[live]) <= 1e-3 * np.linalg.norm(want)
