"""GroupQueryAttention is taken apart exactly where sizes say where its keys are."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper as h

from pitc.ir.graph import Graph
from pitc.ir.target import CUDA
from pitc.passes.facts.dead import dead_facts
from pitc.passes.facts.fill import fill_facts
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.fact_check import dead, only, proven
from tests.fused_models import MICROSOFT, Array, random, run
from tests.lower_support import plans
from tests.plan_reference import run_lowered

H, G, D = 4, 2, 16
PLACES = (
    *("query", "key", "value", "past_key", "past_value", "lengths", "total"),
    *("cos", "sin", "ids", "bias", "sink"),
)
CONSTANTS = {"one": 1, "two": 2, "first": [0]}


def feeds(
    rows: int,
    past: int | None = None,
    batch: int = 2,
    lengths: list[int] | None = None,
    more: dict[str, tuple[int, ...]] | None = None,
    dtype: Any = np.float32,
    size: int = D,
) -> dict[str, Array]:
    """Operands: `lengths` keys of each sequence; all of them where it is None."""
    shapes = {k: (batch, rows, n * size) for k, n in (("query", H), ("key", G), ("value", G))}
    if past is not None:
        shapes |= dict.fromkeys(("past_key", "past_value"), (batch, G, past, size))
    shapes |= more or {}
    fed = {k: random(*s, seed=n).astype(dtype) for n, (k, s) in enumerate(shapes.items())}
    total = rows + (past or 0)
    counts = [total] * batch if lengths is None else lengths
    return fed | {
        "lengths": np.asarray(counts, np.int32) - 1,
        "total": np.asarray(total, np.int32),
    }


def rotary(fed: dict[str, Array], half: int) -> dict[str, Array]:
    """With tables of angles for as many pairs of a row."""
    angles = random(256, half, seed=9)
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    return fed | {k: x.astype(fed["query"].dtype) for k, x in tables.items()}


def model(
    fed: dict[str, Array], full: bool = False, opset: int = 21, **rest: Any
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The operator alone, and what is fed; `full`: its lengths are computed of sizes."""
    given = dict(fed)
    past = "past_key" in given
    symbols: dict[str, list[Any]] = {
        "query": ["b", "s"],
        "key": ["b", "s"],
        "value": ["b", "s"],
        "lengths": ["b"],
    }
    symbols |= {k: ["b", G, "p"] for k in ("past_key", "past_value")}
    nodes = []
    if full:
        del given["lengths"], given["total"]
        nodes = [
            *(h.make_node("Constant", [], [k], **_value(x)) for k, x in CONSTANTS.items()),
            h.make_node("Shape", ["query"], ["sizes"]),
            h.make_node("Gather", ["sizes", "one"], ["s"]),
            h.make_node("Shape", ["past_key" if past else "query"], ["before"]),
            h.make_node("Gather", ["before", "two"], ["p"]),
            h.make_node("Add" if past else "Identity", ["s", "p"] if past else ["s"], ["t"]),
            h.make_node("Cast", ["t"], ["total"], to=onnx.TensorProto.INT32),
            h.make_node("Sub", ["t", "one"], ["last"]),
            h.make_node("Cast", ["last"], ["last32"], to=onnx.TensorProto.INT32),
            h.make_node("Gather", ["sizes", "first"], ["batch"]),
            h.make_node("Expand", ["last32", "batch"], ["lengths"]),
        ]
    names = [k if k in fed else "" for k in PLACES]
    outputs = ["y", "present_key", "present_value"]
    heads: dict[str, Any] = {"num_heads": H, "kv_num_heads": G}
    node = h.make_node(
        "GroupQueryAttention", names, outputs, "node", domain=MICROSOFT, **heads | rest
    )

    def info(name: str, x: Array) -> onnx.ValueInfoProto:
        dims: list[Any] = [*symbols.get(name, []), *x.shape[len(symbols.get(name, [])) :]]
        if name == "bias":
            dims[2:] = ["s", "p + s" if past else "s"]
        return h.make_tensor_value_info(name, h.np_dtype_to_tensor_dtype(x.dtype), dims)

    graph = h.make_graph(
        [*nodes, node],
        "g",
        [info(k, x) for k, x in given.items()],
        [h.make_empty_tensor_value_info(o) for o in outputs],
    )
    opsets = [h.make_opsetid("", opset), h.make_opsetid(MICROSOFT, 1)]
    return h.make_model(graph, opset_imports=opsets, ir_version=9), given


def _value(x: Any) -> dict[str, Any]:
    return {"value_ints": x} if isinstance(x, list) else {"value_int": x}


def packed(fed: dict[str, Array]) -> dict[str, Array]:
    """Queries, keys and values in one operand."""
    rows = np.concatenate([fed[k] for k in ("query", "key", "value")], 2)
    return {k: x for k, x in fed.items() if k not in ("key", "value")} | {"query": rows}


BIASES = {f"bias {b} {n}": {"bias": (b, n)} for b in (1, 2) for n in (1, H)}
SINK = {"sink": (H,)}
STEPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": -0.3},
    "cap": {"softcap": 0.5},
    "smooth": {"smooth_softmax": 1},
    "window": {"local_window_size": 3},
    "all": {"softcap": 0.5, "smooth_softmax": 1, "local_window_size": 2},
}


def compare(
    fed: dict[str, Array], full: bool = False, tolerance: float = 1e-6, **rest: Any
) -> None:
    """The parts compute what ONNX Runtime's kernel does, and come back as they were.

    Rows behind the end of a sequence are whatever was in the kernel's buffer; the parts give 0.
    """
    proto, given = model(fed, full, **rest)
    parts = ir.from_proto(proto)
    assert normalise(parts)["expand_fused"] == 1
    assert "GroupQueryAttention" not in {n.op_type for n in parts.graph}
    want, got = run(proto, given), run(ir.to_proto(parts), given)
    behind = np.arange(fed["query"].shape[1]) > fed["lengths"][:, None]
    if rest.get("causal", 1) and "past_key" not in fed:
        assert not got[0][behind].any()
        want[0][behind] = 0
    for a, b in zip(want, got, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert np.linalg.norm((a - b).astype(float)) <= tolerance * np.linalg.norm(a.astype(float))
    after = ir.to_proto(run_passes(ir.from_proto(proto), LowerOptions()).model)
    if any(n.op_type == "EPContext" for n in after.graph.node):  # sequences may be short
        (y, *_), (want, *_) = run_lowered(after, given), want
        assert np.linalg.norm(y[~behind] - want[~behind]) <= 1e-5 * np.linalg.norm(want)
    else:
        (node,) = (n for n in after.graph.node if n.op_type == "GroupQueryAttention")
        assert node == proto.graph.node[-1]
        assert "MatMul" not in {n.op_type for n in after.graph.node}


@pytest.mark.parametrize("window", [-1, 1, 5, 64, 200])
@pytest.mark.parametrize("rows", [1, 2, 17, 63, 64, 65])
def test_a_prompt(rows: int, window: int) -> None:
    compare(feeds(rows, lengths=[max(rows - 3, 1), rows]), local_window_size=window)


@pytest.mark.parametrize("window", [-1, 5, 64])
@pytest.mark.parametrize("rows", [1, 2, 17, 63, 64, 65])
@pytest.mark.parametrize("past", [0, 1, 70])
def test_behind_a_past(past: int, rows: int, window: int) -> None:
    batch = 2 if rows == 1 or past == 0 else 1  # else ONNX Runtime refuses it
    compare(feeds(rows, past, batch), full=True, local_window_size=window)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("operand", ["", "sink", *BIASES])
def test_steps_of_scores(step: str, operand: str) -> None:
    more = dict(SINK if operand == "sink" else {})
    if "bias" in operand:
        more |= {k: (*s, 7, 7) for k, s in BIASES[operand].items()}
    compare(feeds(7, lengths=[4, 7], more=more), **STEPS[step])
    decode = {k: (*s[:2], 1, 10) if k == "bias" else s for k, s in more.items()}
    compare(feeds(1, 9, more=decode), full=True, **STEPS[step])


@pytest.mark.parametrize("window", [-1, 2])
@pytest.mark.parametrize("smooth", [0, 1])
def test_rows_to_whose_keys_minus_infinity_is_added(smooth: int, window: int) -> None:
    fed = feeds(7, more={"bias": (1, 1, 7, 7)})
    fed["bias"][0, 0, 2] = -np.inf
    fed["bias"][0, 0, 3, :4] = -np.inf
    fed["bias"][0, 0, 5, 0] = -np.inf
    compare(fed, smooth_softmax=smooth, local_window_size=window)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("half", [8, 16])
def test_rotary(half: int, interleaved: int) -> None:
    turned: dict[str, Any] = {"do_rotary": 1, "rotary_interleaved": interleaved}
    short = feeds(7, lengths=[4, 7], size=32)
    compare(rotary(short, half), **turned)
    compare(rotary(packed(short), half), **turned)
    compare(rotary(feeds(1, 9, size=32), half), full=True, **turned)
    compare(rotary(feeds(5, 9, 1, size=32), half), full=True, **turned)


@pytest.mark.parametrize("operand", ["", "sink", "bias 1 1"])
def test_keys_behind_queries(operand: str) -> None:
    more = {"": {}, "sink": SINK, "bias 1 1": {"bias": (1, 1, 7, 7)}}[operand]
    compare(feeds(7, lengths=[4, 7], more=more), causal=0)
    compare(feeds(7, more=more), full=True, causal=0)
    compare(
        feeds(1, 6, more=more | ({"bias": (1, 1, 1, 7)} if "bias" in more else {})),
        full=True,
        causal=0,
    )


def test_rows_of_all_three_in_one() -> None:
    compare(packed(feeds(7, lengths=[4, 7])), scale=0.2)
    compare(packed(feeds(1, 9)), full=True)


@pytest.mark.parametrize("opset", [11, 13, 18, 24])
def test_operator_sets(opset: int) -> None:
    compare(rotary(feeds(7, more=SINK | {"bias": (1, 1, 7, 7)}), 8), do_rotary=1, opset=opset)


@pytest.mark.parametrize("rows", [1, 17, 65])
def test_halves_are_those_of_the_kernel(rows: int) -> None:
    """It computes in float32 and rounds what it gives: a sum in another order may round up."""
    more = SINK | {"bias": (1, H, rows, rows)}
    fed = feeds(rows, lengths=[max(rows - 3, 1), rows], more=more, dtype=np.float16)
    compare(rotary(fed, 8), tolerance=5e-4, do_rotary=1, softcap=3.0, local_window_size=9)
    compare(feeds(rows, 70, 1, dtype=np.float16), full=True, tolerance=5e-4)


def test_halves_stay_on_gpus() -> None:
    parts = ir.from_proto(model(feeds(7, dtype=np.float16))[0])
    assert "expand_fused" not in normalise(parts, CUDA)


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "cache": (feeds(1, 9), {}, "total_sequence_length is not known before it runs"),
    "window": (feeds(7), {"local_window_size": 0}, "a window of 0 keys"),
    "cap": (feeds(7), {"softcap": -1.0}, "softcap is -1"),
    "flag": (feeds(7), {"smooth_softmax": -1}, "smooth_softmax is -1"),
    "places": (feeds(7) | {"ids": np.zeros((2, 7), np.int64)}, {}, "input 9 is given"),
    "evicted": (feeds(7), {"sliding_window_cache": 1}, "sliding_window_cache is 1"),
    "bytes": (feeds(7), {"k_quant_type": "PER_TENSOR"}, "k_quant_type is PER_TENSOR"),
    "heads": (feeds(7), {"kv_num_heads": 3}, "4 heads over 3"),
}


@pytest.mark.parametrize("label", REFUSED)
def test_other_forms_stay_with_a_reason(label: str) -> None:
    fed, rest, reason = REFUSED[label]
    proto = model(fed, **rest)[0]
    lowered = run_passes(ir.from_proto(proto), LowerOptions())
    assert [n.op_type for n in lowered.model.graph] == ["GroupQueryAttention"]
    (record,) = lowered.report.nodes
    assert record.refusal is not None and record.refusal.code.id == "PIT001"
    assert record.refusal.reason.startswith("GroupQueryAttention: ")
    assert reason in record.refusal.reason


def test_sequences_of_other_lengths_behind_a_past_stay() -> None:
    """New keys stand at other places in each; what is written there may be the caller's own."""
    proto, _ = model(feeds(1, 9), full=True)
    nodes = [n for n in proto.graph.node if n.op_type != "Expand"]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.input.append(h.make_tensor_value_info("lengths", onnx.TensorProto.INT32, ["b"]))
    lowered = run_passes(ir.from_proto(proto), LowerOptions())
    reasons = [r.refusal.reason for r in lowered.report.nodes if r.refusal and "Group" in r.op_type]
    assert "seqlens_k is not known to be p+s - 1" in reasons[0]


def test_keys_that_are_not_seen_and_rows_behind_an_end_are_known() -> None:
    parts = ir.from_proto(model(feeds(7), local_window_size=2)[0])
    normalise(parts)
    graph = Graph(parts)
    fill_facts(graph)
    dead_facts(graph, {})
    found = {"-d2+d3-1 >= 0", "d2-d3-2 >= 0"}
    scores = dead(graph, only(graph, "MatMul"))
    assert found < scores
    (end,) = scores - found
    assert end.startswith("d2 >= ") and end.endswith("[d0]")


@pytest.mark.parametrize("step", ["window", "all"])
@pytest.mark.parametrize("past", [None, 6])
def test_facts_of_the_parts_hold(past: int | None, step: str) -> None:
    batch = 2 if past is None else 1  # of an empty one ONNX Runtime divides by 0
    proto, _ = model(feeds(7, past), full=True, **STEPS[step] | {"local_window_size": 2})
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = batch
    graph = proven(proto, sizes={"s": 7, "p": 6}, top_index=9)
    keys = "+p" if past else ""
    assert {f"-d2+d3{keys.replace('+', '-')}-1 >= 0", f"d2-d3{keys}-2 >= 0"} <= dead(
        graph, only(graph, "MatMul")
    )


@pytest.mark.parametrize("window", [{}, {"local_window_size": 7}])
def test_a_past_is_read_as_it_lies(window: dict[str, int]) -> None:
    """One head of it for all heads of queries that share it; nothing is repeated or turned."""
    for batch, rows, past in ((2, 1, 20), (1, 5, 63), (3, 1, 0)):
        proto, given = model(feeds(rows, past, batch), full=True, **window)
        lowered = run_passes(ir.serde.deserialize_model(proto), LowerOptions())
        (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
        assert (plan["whole"], plan["group"], plan["pairs"]) == ("1", str(H // G), "1")
        assert not [n for n in lowered.model.graph if n.op_type in ("Expand", "Tile", "Softmax")]
        found = run_lowered(ir.serde.serialize_model(lowered.model), given)
        for got, want in zip(found, run(proto, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
