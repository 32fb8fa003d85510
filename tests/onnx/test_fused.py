"""Fused operators of ONNX Runtime are taken apart exactly, and put together again."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper as h

from pitc.ir.target import CUDA
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.fused_models import (
    KINDS,
    MASK,
    QKV,
    ROWS,
    TABLES,
    WIDTH,
    Array,
    B,
    D,
    H,
    S,
    X,
    assert_close,
    fused,
    lengths,
    mask_of,
    model,
    random,
    run,
)

SKIP = X | {"r": random(B, S, WIDTH, seed=4)}
SEPARATE = {k: random(B, S, WIDTH, seed=n) for n, k in enumerate("qkv")}
CROSS = SEPARATE | {k: random(B, 7, WIDTH, seed=n) for n, k in enumerate("kv", 5)}


TOKENS = {"ids": np.arange(B * S, dtype=np.int32).reshape(B, S) % 9, "kinds": mask_of("left")}
IDS = TOKENS | {"at": np.flip(np.arange(S, dtype=np.int32))[None]}
ATTENTION = ("Attention", ["x", "w", "p"], X, QKV)
HEADS = ("MultiHeadAttention", list("qkv"), SEPARATE, QKV)


def case(
    op: str,
    places: list[str],
    inputs: dict[str, Array],
    weights: dict[str, Array],
    outputs: tuple[str, ...] = ("y",),
    **rest: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    used = {k: x for k, x in weights.items() if k in places}
    fed = {k: x for k, x in inputs.items() if k in places}
    opset = rest.pop("opset", 17)
    read = tuple(o for o in outputs if o not in ("", "unread"))
    return model([fused(op, places, outputs, **rest)], fed, used, read, opset), fed


def masked(base: tuple, place: int, mask: Array, **rest: Any) -> Any:
    """Attention with a mask at an input place."""
    op, places, inputs, weights = base
    gap = [""] * (place - len(places))
    return case(op, [*places, *gap, "m"], inputs | {"m": mask}, weights, num_heads=H, **rest)


PAIRS = (random(B, S, S) > 0).astype(np.int32)
PRODUCTS: tuple[dict[str, Any], ...] = (
    {"alpha": 0.5},
    {"transA": 1},
    {"transB": 1, "transA": 1, "alpha": -2.0},
)
CASES: dict[str, Callable[[], tuple[onnx.ModelProto, dict[str, Array]]]] = {
    "bias gelu": lambda: case("BiasGelu", ["x", "c"], X, ROWS),
    "bias gelu 20": lambda: case("BiasGelu", ["x", "c"], X, ROWS, opset=20),
    "fast gelu": lambda: case("FastGelu", ["x", "c"], X, ROWS),
    "skip": lambda: case("SkipLayerNormalization", ["x", "r", "g", "e"], SKIP, ROWS),
    "skip 11": lambda: case("SkipLayerNormalization", ["x", "r", "g"], SKIP, ROWS, opset=11),
    "skip bias": lambda: case(
        "SkipLayerNormalization",
        ["x", "r", "g", "e", "c"],
        SKIP,
        ROWS,
        ("y", "", "", "sum"),
        epsilon=1e-3,
    ),
    "skip broadcast": lambda: case(
        "SkipLayerNormalization", ["x", "r", "g"], X | {"r": random(1, S, WIDTH)}, ROWS
    ),
    "skip simplified": lambda: case(
        "SkipSimplifiedLayerNormalization", ["x", "r", "g", "c"], SKIP, ROWS, ("y", "", "", "sum")
    ),
    "embed": lambda: case(
        "EmbedLayerNormalization",
        ["ids", "", "words", "places", "", "g", "e"],
        TOKENS,
        TABLES | ROWS,
        ("y", "unread"),
    ),
    "embed 11": lambda: case(
        "EmbedLayerNormalization",
        ["ids", "kinds", "words", "places", "types", "g", "e", "m"],
        TOKENS | {"m": MASK},
        TABLES | ROWS,
        ("y", "count"),
        opset=11,
    ),
    "embed all": lambda: case(
        "EmbedLayerNormalization",
        ["ids", "kinds", "words", "places", "types", "g", "e", "m", "at"],
        IDS | {"m": MASK},
        TABLES | ROWS,
        ("y", "count", "sum"),
    ),
    "embed numbers": lambda: case(  # what it counts are ones
        "EmbedLayerNormalization",
        ["ids", "kinds", "words", "places", "types", "g", "e", "m"],
        TOKENS | {"m": np.where(MASK, np.arange(S, dtype=np.int32) - 1, 0).astype(np.int32)},
        TABLES | ROWS,
        ("y", "count"),
    ),
    **{
        f"{label} {kind}": lambda base=base, place=place, kind=kind, uni=uni: masked(
            base, place, mask_of(kind), unidirectional=uni
        )
        for label, base, place, uni in (
            ("attention", ATTENTION, 3, 0),
            ("causal attention", ATTENTION, 3, 1),
            ("heads", HEADS, 4, 0),
            ("causal heads", HEADS, 4, 1),
        )
        for kind in KINDS
    },
    **{
        f"{label} lengths {kind}": lambda base=base, place=place, kind=kind: masked(
            base, place, lengths(kind)
        )
        for label, base, place in (("attention", ATTENTION, 3), ("heads", HEADS, 4))
        for kind in ("right", "empty", "full")
    },
    "attention 11": lambda: masked(ATTENTION, 3, lengths("right"), opset=11, unidirectional=1),
    "attention pairs": lambda: masked(ATTENTION, 3, PAIRS),
    "heads pairs": lambda: masked(HEADS, 4, PAIRS),
    "attention plain": lambda: case(*ATTENTION, num_heads=H, scale=0.3),
    "attention scores": lambda: masked(ATTENTION, 5, random(1, H, S, S)),
    "attention weaker mask": lambda: masked(ATTENTION, 3, MASK, mask_filter_value=-2.0),
    "attention values wider": lambda: case(
        "Attention",
        ["x", "v", "u"],
        X,
        {"v": random(WIDTH, 28), "u": random(28)},
        num_heads=H,
        qkv_hidden_sizes=[8, 8, 12],
    ),
    "heads plain": lambda: case(*HEADS, num_heads=H),
    "heads bias": lambda: case("MultiHeadAttention", [*"qkv", "p"], SEPARATE, QKV, num_heads=H),
    "heads bias fed": lambda: case(
        "MultiHeadAttention", [*"qkv", "p"], SEPARATE | {"p": QKV["p"]}, {}, num_heads=H
    ),
    "heads scores": lambda: masked(HEADS, 5, random(B, 1, S, S)),
    "heads cross": lambda: case("MultiHeadAttention", list("qkv"), CROSS, {}, num_heads=H),
    **{
        f"product {n}": lambda rest=rest: case(
            "FusedMatMul",
            ["a", "b"],
            {
                "a": random(B, *((6, S) if rest.get("transA") else (S, 6))),
                "b": random(B, *((7, 6) if rest.get("transB") else (6, 7))),
            },
            {},
            **rest,
        )
        for n, rest in enumerate(PRODUCTS)
    },
    "product batch": lambda: case(
        "FusedMatMul",
        ["a", "b"],
        {"a": random(S, B, 6), "b": random(B, 6, 7)},
        {},
        transBatchA=1,
    ),
    "product vector": lambda: case(
        "FusedMatMul", ["a", "b"], {"a": random(B, S, 6), "b": random(6)}, {}, transB=1
    ),
    "product one": lambda: case(
        "FusedMatMul", ["a", "b"], {"a": random(1, 1, 6), "b": random(1, 1, 6)}, {}, transB=1
    ),
    "gemm": lambda: case(
        "FusedGemm", ["x", "w", "p"], {"x": random(S, WIDTH)}, QKV, activation="Relu", alpha=0.5
    ),
    "gemm leaky": lambda: case(
        "FusedGemm",
        ["x", "w"],
        {"x": random(WIDTH, S)},
        QKV,
        activation="LeakyRelu",
        activation_alpha=0.2,
        transA=1,
    ),
}


def taken_apart(proto: onnx.ModelProto) -> ir.Model:
    """The normalised model, of which no fused node is left."""
    parts = ir.from_proto(proto)
    assert normalise(parts)["expand_fused"] == 1
    assert all(n.name != "node" for n in parts.graph)
    return parts


@pytest.mark.parametrize("label", CASES)
def test_the_parts_compute_the_same(label: str) -> None:
    proto, feeds = CASES[label]()
    # in a sequence without any key, -1e4 is added to all scores, which rounds them
    tolerance = 1e-3 if any(x in label for x in ("empty", "holes", "pairs")) else 1e-6
    want = run(proto, feeds)
    assert_close(want, run(ir.to_proto(taken_apart(proto)), feeds), tolerance)
    lowered = run_passes(ir.from_proto(proto), LowerOptions())
    again = ir.to_proto(lowered.model)
    assert [(n.op_type, list(n.input)) for n in again.graph.node] == [
        (n.op_type, list(n.input)) for n in proto.graph.node
    ]
    assert_close(want, run(again, feeds), 0)


@pytest.mark.parametrize("image", [(4, 2), (7,)], ids=str)
@pytest.mark.parametrize(("opset", "scales"), [(18, 3), (21, 6)])
def test_group_normalisation_comes_back(opset: int, scales: int, image: tuple[int, ...]) -> None:
    weights = {k: random(scales, seed=n) for n, k in enumerate("gc")}
    node = h.make_node("GroupNormalization", ["x", "g", "c"], ["y"], "node", num_groups=3)
    feeds = {"x": random(B, 6, *image) + 1}
    proto = model([node], feeds, weights, opset=opset)
    assert_close(run(proto, feeds), run(ir.to_proto(taken_apart(proto)), feeds))
    lowered = run_passes(ir.from_proto(proto), LowerOptions())
    assert ir.to_proto(lowered.model).graph.node == proto.graph.node


@pytest.mark.parametrize("rest", [{}, {"scale": 0.3}, {"qk_matmul_output_mode": 2}], ids=str)
def test_standard_attention_comes_back(rest: dict[str, Any]) -> None:
    """It is a function of the operator set; its own kernel does less work than the body. One that
    is causal leaves out pairs (test_standard_attention.py).
    """
    feeds = {k: random(B, H, S, D, seed=n) for n, k in enumerate("qkv")}
    proto = model([h.make_node("Attention", list("qkv"), ["y"], **rest)], feeds, {}, opset=23)
    parts = ir.from_proto(proto)
    assert normalise(parts)["expand_fused"] == 1
    assert_close(run(proto, feeds), run(ir.to_proto(parts), feeds))
    lowered = run_passes(ir.from_proto(proto), LowerOptions())
    assert ir.to_proto(lowered.model).graph.node == proto.graph.node


@pytest.mark.parametrize("rest", [{}, {"is_causal": 1}], ids=str)
@pytest.mark.parametrize("kind", ["", "float", "bool"])
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_of_standard_attention(mode: int, kind: str, rest: dict[str, Any]) -> None:
    """ONNX Runtime's kernel writes the lowest number where the function's body has -inf."""
    feeds = {k: random(B, H, S, D, seed=n) for n, k in enumerate("qkv")}
    keep = np.arange(S) < np.array([[0], *[[S - 1]] * (B - 1)])
    mask = np.broadcast_to(keep[:, None, None], (B, 1, S, S))
    feeds |= {"bool": {"m": mask}, "float": {"m": mask.astype(np.float32)}}.get(kind, {})
    names = list(feeds)
    node = h.make_node("Attention", names, ["y", "", "", "s"], qk_matmul_output_mode=mode, **rest)
    proto = model([node], feeds, {}, opset=23, outputs=("y", "s"))
    parts = ir.from_proto(proto)
    otherwise = mode == 2 and (kind == "bool" or bool(rest))
    assert ("expand_fused" not in normalise(parts)) == otherwise
    for want, got in zip(run(proto, feeds), run(ir.to_proto(parts), feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


GEMMS: dict[str, dict[str, Any]] = {
    "turned": {"transA": 1},
    "both turned": {"transA": 1, "transB": 1},
    "scaled": {"alpha": 0.5, "beta": -3.0, "transB": 1},
    "without C": {"alpha": -2.0, "beta": 0.0},
    "beyond a constant's range": {"alpha": 2.0**30, "beta": 2.0**-30},
}


@pytest.mark.parametrize("constant", [(), ("b", "c")], ids=["computed", "constant"])
@pytest.mark.parametrize("name", GEMMS)
def test_a_scaled_or_turned_gemm_is_one_matmul(name: str, constant: tuple[str, ...]) -> None:
    rest = GEMMS[name]
    arrays = {
        "a": random(*((6, 4) if rest.get("transA") else (4, 6)), seed=1),
        "b": random(*((5, 6) if rest.get("transB") else (6, 5)), seed=2),
        "c": random(5, seed=3) * np.float32(np.nan if rest.get("beta") == 0 else 1),
    }
    inits = {k: x for k, x in arrays.items() if k in constant}
    fed = {k: x for k, x in arrays.items() if k not in inits}
    proto = model([h.make_node("Gemm", list(arrays), ["y"], **rest)], fed, inits)
    parts = ir.from_proto(proto)
    assert normalise(parts)["expand_fused"] == 1
    kinds = [n.op_type for n in parts.graph]
    assert "Gemm" not in kinds and kinds.count("MatMul") == 1
    in_constants = bool(constant) and name != "beyond a constant's range"
    assert ("Mul" in kinds) == (not in_constants and name not in ("turned", "both turned"))
    assert_close(run(proto, fed), run(ir.to_proto(parts), fed))


@pytest.mark.parametrize("rest", [{"transB": 1}, {"alpha": 0.0}], ids=str)
def test_a_plain_gemm_and_none_at_all_stay(rest: dict[str, Any]) -> None:
    fed = {"a": random(4, 6), "b": random(*((5, 6) if "transB" in rest else (6, 5)))}
    parts = ir.from_proto(model([h.make_node("Gemm", ["a", "b"], ["y"], **rest)], fed, {}))
    assert "expand_fused" not in normalise(parts)


EINSUMS = {
    "bhid,bhjd->bhij": (),
    "bihd,bjhd->bhij": (),
    "bhij,bjhd->bihd": (),
    "bld,dk->blk": ("dk",),
    "dk,bld->blk": ("dk",),
    "bld,kd->blk": ("kd",),
    "abc,cde->abde": ("cde",),
    "aecd,abcd->acbe": (),
    "acbe,aecd->abcd": (),
    "abcd,cde->abe": ("cde",),
    "bhd,hdk->bhk": ("hdk",),
    "bdi,bdj->bij": (),
    "bid,d->bi": (),
    "bihd,hjd->bhij": (),
    "ij,jk": (),
    "abi,abj->ij": (),
    "mabi,abj->mij": (),
    "abd,bdj->aj": (),
    "lij,lab->ijab": (),
}
STATIC = {"c": 4, "d": 6, "e": 5, "h": 2, "k": 7}
NOT_MATRICES = ("bi,bi->b", "i,j->ij", "bii->b", "bld,dk,km->blm", "bid,bj->bij", "bi->ib")


def einsum(equation: str, constant: tuple[str, ...] = ()) -> tuple[onnx.ModelProto, Any]:
    terms = equation.split("->")[0].split(",")
    sizes = STATIC | {x: 2 + k for k, x in enumerate("abijlm")}
    arrays = {f"x{k}": random(*(sizes[x] for x in t), seed=k) for k, t in enumerate(terms)}
    inits = {k: x for k, x in arrays.items() if terms[int(k[1:])] in constant}
    fed = {k: x for k, x in arrays.items() if k not in inits}
    proto = model([h.make_node("Einsum", list(arrays), ["y"], equation=equation)], fed, inits)
    for value in proto.graph.input:
        for dim, label in zip(
            value.type.tensor_type.shape.dim, terms[int(value.name[1:])], strict=True
        ):
            if label not in STATIC:
                dim.dim_param = label
    return proto, fed


@pytest.mark.parametrize("equation", EINSUMS)
def test_an_einsum_of_matrices_is_one_matmul(equation: str) -> None:
    proto, feeds = einsum(equation, EINSUMS[equation])
    parts = ir.from_proto(proto)
    normalise(parts)
    assert [n.op_type for n in parts.graph].count("MatMul") == 1
    assert "Einsum" not in {n.op_type for n in parts.graph}
    assert_close(run(proto, feeds), run(ir.to_proto(parts), feeds))


@pytest.mark.parametrize("zero", "abij")
def test_sizes_that_are_joined_may_be_zero(zero: str) -> None:
    proto, feeds = einsum("abi,abj->ij")
    parts = ir.from_proto(proto)
    normalise(parts)
    assert [n.op_type for n in parts.graph].count("MatMul") == 1
    empty = dict(feeds)
    for name, labels in zip(feeds, ("abi", "abj"), strict=True):
        at = [slice(0 if label == zero else None) for label in labels]
        empty[name] = feeds[name][tuple(at)]
    assert_close(run(proto, empty), run(ir.to_proto(parts), empty))


@pytest.mark.parametrize("equation", NOT_MATRICES)
def test_other_einsums_stay(equation: str) -> None:
    parts = ir.from_proto(einsum(equation)[0])
    assert "expand_fused" not in normalise(parts)
    assert [n.op_type for n in parts.graph] == ["Einsum"]


STAY = {
    "half": lambda: case(
        "BiasGelu",
        ["x", "c"],
        {"x": X["x"].astype(np.float16)},
        {"c": ROWS["c"].astype(np.float16)},
    ),
    "old operators": lambda: masked(ATTENTION, 3, MASK, opset=10),
    "ends and starts": lambda: masked(ATTENTION, 3, np.asarray([5, 4, 3, 0, 1, 2], np.int32)),
    "causal cross": lambda: case(
        "MultiHeadAttention", list("qkv"), CROSS, {}, num_heads=H, unidirectional=1
    ),
    "past": lambda: case(
        "Attention",
        ["x", "w", "p", "", "past"],
        X | {"past": random(2, B, H, 2, D)},
        QKV,
        ("y", "present"),
        num_heads=H,
    ),
    "statistics": lambda: case(
        "SkipLayerNormalization", ["x", "r", "g", "e"], SKIP, ROWS, ("y", "mean", "deviation")
    ),
    "packed rows": lambda: case(
        "MultiHeadAttention", ["q"], {"q": random(B, S, H, 3, D)}, {}, num_heads=H
    ),
}


@pytest.mark.parametrize("label", STAY)
def test_other_forms_stay(label: str) -> None:
    proto = STAY[label]()[0]
    parts = ir.from_proto(proto)
    # CPUs have no kernels of float16: there the parts would be those of the widened operator.
    assert "expand_fused" not in normalise(parts, CUDA)
    assert ir.to_proto(parts).graph.node == proto.graph.node


def test_a_node_that_stays_leaves_nothing_behind() -> None:
    """Its parts were begun, and the next node would have shared them."""
    inputs = ["ids", "", "words", "places", "", "g", "e"]
    nodes = [
        fused("EmbedLayerNormalization", inputs, ("a", "count")),  # of a mask that is not there
        fused("EmbedLayerNormalization", inputs, ("z", "unread")),
        h.make_node("Add", ["a", "z"], ["y"]),
    ]
    nodes[1].name = "other"
    fed = {"ids": TOKENS["ids"]}
    proto = model(nodes, fed, TABLES | ROWS, ("y", "count"))
    parts = ir.from_proto(proto)
    assert normalise(parts)["expand_fused"] == 1
    assert [n.op_type for n in parts.graph].count("EmbedLayerNormalization") == 1
    assert_close(run(proto, fed), run(ir.to_proto(parts), fed))
