"""Masks of blocks: which are read by blocks, others by pairs, and that answers stay."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from pitc.ir.expr import Shape
from pitc.ir.index import ONE, Poly, poly, sym
from pitc.passes.pipeline import LowerOptions, run_passes
from pitc.passes.regions.blocks import _equal
from tests.lower_support import plans
from tests.onnx import test_pairs
from tests.onnx.test_pairs import ADD, CASES, SELECT, model
from tests.plan_reference import evaluator, run_lowered

everything_pays = test_pairs._everything_pays

#: [b, s, s] of whole blocks: one Reshape, or one for each side
WIDE = """apart = Unsqueeze (blocks, behind) wide6 = Expand (apart, block)
b1 = Gather (sizes, first) last = Gather (sizes, second) one = Add (first, second)
target = Concat <axis = 0> (b1, one, last, last) seen = Reshape (wide6, target)"""
BY_SIDE = """q_apart = Unsqueeze (blocks, three_1) q_wide = Expand (q_apart, q_block)
b1 = Gather (sizes, first) last = Gather (sizes, second) one = Add (first, second)
shape = Shape (blocks) n = Gather (shape, three_1) q_target = Concat <axis = 0> (b1, one, last, n)
half = Reshape <allowzero = 1> (q_wide, q_target) k_apart = Unsqueeze (half, four_1)
k_wide = Expand (k_apart, k_block) k_target = Concat <axis = 0> (b1, one, last, last)
seen = Reshape <allowzero = 1> (k_wide, k_target)"""
LOOKED_UP = """q_of = Div (at, q_size) k_of = Div (at, k_size)
half = Gather <axis = 2> (blocks, q_of) seen = Gather <axis = 3> (half, k_of)"""
OF_KEYS = "k_of = Div (at, k_size) seen = Gather <axis = 3> (blocks, k_of)"
BEHIND = """next = Add (at, one_i) q_of = Div (at, q_size) k_of = Div (next, k_size)
half = Gather <axis = 2> (blocks, q_of) seen = Gather <axis = 3> (half, k_of)"""
FIRST = """apart = Unsqueeze (blocks, behind) wide6 = Expand (apart, block)
whole = Reshape (wide6, known) last = Gather (sizes, second) ends = Concat <axis = 0> (last, last)
seen = Slice (whole, starts, ends, axes)"""
REPEATED = """apart = Unsqueeze (blocks, behind) wide6 = Expand (apart, block)
whole = Reshape (wide6, known) twice = Tile (whole, times) last = Gather (sizes, second)
ends = Concat <axis = 0> (last, last) seen = Slice (twice, starts, ends, axes)"""
TILED = """tiled = Tile (blocks, times) last = Gather (sizes, second)
ends = Concat <axis = 0> (last, last) seen = Slice (tiled, starts, ends, axes)"""
NEAR = LOOKED_UP.replace("seen", "near")
BEFORE = "before = GreaterOrEqual (q_at, k_at)"
HALVES = """low_a = Where (whole, zero, none) low_b = Where (others, zero, none)
hide = Concat <axis = 2> (low_a, low_b) s1 = Add (s0, hide)"""
B, S, N, M = map(sym, "bsnm")


@dataclass(frozen=True)
class Case:
    """A mask.

    Args:
        mask: Nodes that make `seen` or the masked scores `s1`.
        blocks: Extents of the input `blocks`, those of numbers of blocks last.
        sizes: Queries and keys of a block.
        read: What flags of pairs are of; None: of single pairs.
        text: Which keys a query sees, as the report says.
        lengths: Sequences.
        more: Other inputs.
    """

    mask: str
    blocks: str = "b, 1, n, m"
    sizes: tuple[int, int] = (32, 32)
    read: tuple[int, int] | None = (32, 32)
    text: str = "blocks[q//32, k//32] != 0"
    lengths: tuple[int, ...] = (1, 31, 32, 33, 63, 64, 65, 200)
    more: str = ""


WHOLE = (32, 64, 192)
FORMS = {
    "expanded": Case(f"{WIDE} {SELECT}", "b, 1, n, n", lengths=WHOLE),
    "expanded for all sequences": Case(
        f"{WIDE.replace('(b1, one, last', '(one, one, last')} {ADD}", "1, 1, n, n", lengths=WHOLE
    ),
    "expanded by side": Case(
        f"{BY_SIDE} {SELECT}",
        sizes=(16, 8),
        read=(16, 8),
        text="blocks[q//16, k//8] != 0",
        lengths=WHOLE,
    ),
    "looked up": Case(f"{LOOKED_UP} {SELECT}"),
    "looked up, added": Case(f"{LOOKED_UP} {ADD}"),
    "looked up by a row": Case(
        f"""flat = Squeeze (blocks, first_1) q_of = Div (k_at, q_size) k_of = Div (at, k_size)
        half = Gather <axis = 1> (flat, q_of) seen = Gather <axis = 3> (half, k_of) {SELECT}"""
    ),
    "looked up, of a known length": Case(f"{LOOKED_UP} {SELECT}", "b, 1, 4, 4", lengths=(100,)),
    "of two sizes": Case(
        f"{LOOKED_UP} {SELECT}", sizes=(20, 48), read=(20, 48), text="blocks[q//20, k//48] != 0"
    ),
    "of each head": Case(f"{LOOKED_UP} {SELECT}", "b, 4, n, m"),
    "of keys": Case(
        f"{OF_KEYS} {SELECT}",
        "b, 1, s, m",
        sizes=(1, 64),
        read=(1, 64),
        text="blocks[q, k//64] != 0",
    ),
    "the first of many": Case(f"{FIRST} {SELECT}", "b, 1, 8, 8"),
    "the first of many, of a known length": Case(f"{FIRST} {SELECT}", "b, 1, 8, 8", lengths=(100,)),
    "the same after 128": Case(f"{REPEATED} {SELECT}", "b, 1, 4, 4"),
    "the same after 128, of a known length": Case(
        f"{REPEATED} {SELECT}", "b, 1, 4, 4", lengths=(256,)
    ),
    "and a cause": Case(
        f"{NEAR} {BEFORE} seen = And (near, before) {SELECT}",
        text="blocks[q//32, k//32] != 0 and q >= k",
    ),
    "or a cause": Case(
        f"{NEAR} {BEFORE} seen = Or (near, before) {SELECT}",
        text="(q >= k or blocks[q//32, k//32] != 0)",
    ),
    "not, and keys": Case(
        f"""{NEAR} off = Not (near) {BEFORE} some = And (off, before)
        lives = Unsqueeze (live, middle) seen = Or (some, lives) {SELECT}""",
        text="(live[k] != 0 or blocks[q//32, k//32] == 0) and (q >= k or live[k] != 0)",
        more="bool[b, s] live",
    ),
    "two tables": Case(
        f"""{NEAR} other = Gather <axis = 2> (others, q_of)
        far = Gather <axis = 3> (other, k_of) either = Xor (near, far) seen = Or (either, near)
        {SELECT}""",
        text="(blocks[q//32, k//32] != 0 or others[q//32, k//32] != 0)",
        more="bool[b, 1, n, m] others",
    ),
    "numbers": Case(
        f"""low_b = Where (blocks, zero, low)
        {WIDE.replace("blocks", "low_b").replace("seen", "hide")} s1 = Add (s0, hide)""",
        "b, 1, 6, 6",
        lengths=(192,),
    ),
    "sizes that are known": Case(f"{WIDE} {SELECT}", "b, 1, 6, 6", lengths=(192,)),
    # not of blocks, or of several
    "two grids": Case(
        f"""{NEAR} third = Div (at, three)
        other = Gather <axis = 2> (others, third) far = Gather <axis = 3> (other, k_of)
        seen = And (near, far) {SELECT}""",
        read=None,
        text="others[q//3, k//32] != 0 and blocks[q//32, k//32] != 0",
        more="bool[b, 1, s, m] others",
    ),
    "not, and keys or pairs": Case(
        f"""{NEAR} off = Not (near) {BEFORE} some = Or (off, before)
        lives = Unsqueeze (live, middle) kept = And (some, lives) seen = Or (kept, flags)
        {SELECT}""",
        read=None,
        text="(live[k] != 0 or flags[q, k] != 0) and "
        "(q >= k or (flags[q, k] != 0 or near[q, k] == 0))",
        more="bool[b, s] live, bool[b, 1, s, s] flags",
    ),
    "and pairs": Case(
        f"{NEAR} seen = And (near, flags) {SELECT}",
        read=None,
        text="blocks[q//32, k//32] != 0 and flags[q, k] != 0",
        more="bool[b, 1, s, s] flags",
    ),
    "or pairs": Case(
        f"{NEAR} seen = Or (near, flags) {ADD}",
        read=None,
        text="(flags[q, k] != 0 or near[q, k] != 0)",
        more="bool[b, 1, s, s] flags",
    ),
    "beside others": Case(
        f"{BEHIND} {SELECT}", "b, 1, n, more", read=None, text="seen[q, k] != 0", sizes=(32, 16)
    ),
    "in front of others": Case(  # its places are those of the first queries only
        f"""apart = Unsqueeze (blocks, behind) wide6 = Expand (apart, block)
        whole = Reshape (wide6, part) {HALVES}""",
        "b, 1, 2, 6",
        read=None,
        text="(others[q, k] != 0 or 63 >= q) and (blocks[q//32, k//32] != 0 or q >= 64)",
        lengths=(192,),
        more="bool[b, 1, 128, 192] others",
    ),
    "looked up in front of others": Case(
        f"""q_of = Div (at64, q_size) half = Gather <axis = 2> (blocks, q_of)
        k_of = Div (at, k_size) whole = Gather <axis = 3> (half, k_of) {HALVES}""",
        "b, 1, 2, 6",
        read=None,
        text="(whole[q, k] != 0 or q >= 64) and (others[q, k] != 0 or 63 >= q)",
        lengths=(192,),
        more="bool[b, 1, 128, 192] others",
    ),
    "places that begin anew": Case(
        f"""thrice = Expand (at64, three_64) places = Reshape (thrice, known_s)
        q_of = Div (places, q_size) k_of = Div (places, k_size)
        half = Gather <axis = 2> (blocks, q_of) seen = Gather <axis = 3> (half, k_of) {SELECT}""",
        "b, 1, 2, 2",
        read=None,
        text="seen[q, k] != 0",
        lengths=(192,),
    ),
    "looked up, and repeated": Case(
        f"""{LOOKED_UP.replace("(at,", "(at128,").replace("seen", "whole")}
        seen = Tile (whole, times) {SELECT}""",
        "b, 1, 4, 4",
        read=None,
        text="whole[q, k] != 0",
        lengths=(256,),
    ),
    "numbers of elements alone": Case(
        f"{WIDE} {SELECT}",
        "b, 1, few, many",
        read=None,
        text="seen[q, k] != 0",
        lengths=(64, 128),
    ),
    "scrambled": Case(
        f"""apart = Unsqueeze (blocks, last_2) wide6 = Expand (apart, last_block)
        b1 = Gather (sizes, first) last = Gather (sizes, second) one = Add (first, second)
        target = Concat <axis = 0> (b1, one, last, last)
        seen = Reshape <allowzero = 1> (wide6, target) {SELECT}""",
        "b, 1, n, n",
        read=None,
        text="seen[q, k] != 0",
        lengths=WHOLE,
    ),
    "counted from the end": Case(
        f"minus = Neg (q_size) {LOOKED_UP.replace('(at, q_size)', '(at, minus)')} {SELECT}",
        read=(1, 32),
        text="half[q, k//32] != 0",
    ),
    "tiled": Case(f"{TILED} {SELECT}", "b, 1, 128, 128", read=None, text="seen[q, k] != 0"),
}


def block_model(case: Case) -> onnx.ModelProto:
    """A layer of attention under the mask."""
    q, k = case.sizes
    CASES["blocks"] = (
        case.mask,
        ", ".join(filter(None, [f"bool[{case.blocks}] blocks", case.more])),
        {},
    )
    proto = model("blocks")
    del CASES["blocks"]
    for value in (*proto.graph.input, *proto.graph.output) if len(case.lengths) == 1 else ():
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "s":
                dim.dim_value = case.lengths[0]
    known = 32 * 8 if "8, 8" in case.blocks else 32 * 4
    values: dict[str, list[int] | int] = {
        **{"behind": [3, 5], "block": [1, 1, 1, q, 1, k], "q_block": [1, 1, 1, q, 1]},
        **{"k_block": [1, 1, 1, 1, k], "three_1": [3], "four_1": [4], "q_size": q, "k_size": k},
        **{"last_2": [4, 5], "last_block": [1, 1, 1, 1, q, k]},
        **{
            "part": [-1, 1, 64, 192],
            "at64": list(range(64)),
            "three_64": [3, 64],
            "at128": list(range(128)),
        },
        **{"known_s": [192], "first_1": [1]},
        **{"known": [-1, 1, known, known], "starts": [0, 0], "axes": [2, 3], "times": [1, 1, 2, 2]},
    }
    for name, value in values.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return proto


def feeds(case: Case, proto: onnx.ModelProto, b: int, s: int) -> Iterator[dict[str, np.ndarray]]:
    """Inputs: some blocks, all, and none."""
    rng = np.random.default_rng(b * 1000 + s)
    sizes = {"b": b, "s": s, "n": -(-s // case.sizes[0]), "m": -(-s // case.sizes[1])}
    sizes |= {"more": sizes["m"] + 1, "few": s // 64, "many": s // 16}
    for share in (0.4, 1.0, 0.0):
        feed: dict[str, np.ndarray] = {"x": rng.normal(0, 1, (b, s, 8)).astype(np.float32)}
        for value in proto.graph.input[1:]:
            dims = value.type.tensor_type.shape.dim
            shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
            feed[value.name] = np.asarray(rng.random(shape) < share)
        yield feed


def check(case: Case, padding: str | None = None) -> dict[str, str]:
    """Lower, compare with ONNX Runtime, and find the plan of lists and what the report says."""
    proto = block_model(case)
    lowered = run_passes(ir.serde.deserialize_model(proto), LowerOptions(padding=padding))
    found = evaluator(ir.serde.serialize_model(lowered.model))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, s in [(b, s) for b in (1, 3) for s in case.lengths]:
        for feed in feeds(case, proto, b, s):
            (want,), (got,) = session.run(None, feed), run_lowered(found, feed)
            rows = feed.get("mask", np.ones((b, s), bool))
            got, wanted = got[rows], np.asarray(want)[rows]
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{b} x {s}")
    (plan,) = [p for p in plans(lowered) if p["op"] == "pairs"]
    (record,) = [r for r in lowered.report.nodes if r.lowering == "attention"]
    return {**plan, "text": record.rule.removeprefix("softmax over live keys: ")}


@pytest.mark.parametrize("name", FORMS)
def test_blocks(name: str) -> None:
    case = FORMS[name]
    plan = check(case)
    sizes = None if "q_block" not in plan else (int(plan["q_block"]), int(plan["k_block"]))
    assert sizes == case.read
    assert plan["text"] == case.text


def test_keys_that_are_left_out_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of packed keys have gaps."""
    mask = f"""{NEAR} lives = Unsqueeze (mask, middle)
    seen = And (near, lives) {SELECT}"""
    case = Case(mask, more="bool[b, s] mask")
    plan = check(case, "mask")
    assert (plan["q_block"], plan["keys"]) == ("32", "0")


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ((B, S, S), (B, N, poly(32), N, poly(32)), ("s", 32 * N)),
        ((B, ONE, S), (B, N, poly(24)), ("s", 24 * N)),
        ((S, B, S), (S, B, N, N), ("s", N * N)),
        ((S, M), (N, poly(2), N, poly(2)), None),  # which of both is larger
        ((S, S), (N, N, poly(2)), None),
        ((S, S), (N, M), None),
        ((S, S), (N, N + 1), None),
        ((S * M,), (N,), None),
        ((2 * S,), (N,), None),
        ((S, S), (S, S), None),
        ((S,), (poly(0),), None),
    ],
)
def test_sizes_by_numbers_of_elements(
    left: Shape, right: Shape, found: tuple[str, Poly] | None
) -> None:
    assert _equal(left, right) == found


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("expanded for all sequences", (1, 1, 6, 6)),
        ("of each head", (1, 3, 4, 6, 6)),
        ("of keys", (1, 3, 192, 3)),
        ("of two sizes", (1, 3, 10, 4)),
        ("two tables", (1, 3, 6, 6)),
    ],
)
def test_flags_are_as_few_as_blocks(name: str, shape: tuple[int, ...]) -> None:
    case = FORMS[name]
    proto = block_model(case)
    lowered = run_passes(ir.serde.deserialize_model(proto), LowerOptions(padding=None))
    found = ir.serde.serialize_model(lowered.model)
    (node,) = [n for n in found.graph.node if "op=pairs" in str(n)]
    values = evaluator(found).run(None, next(feeds(case, proto, 3, 192)), intermediate=True)
    assert isinstance(values, dict)
    assert values[node.input[-1]].shape == shape
