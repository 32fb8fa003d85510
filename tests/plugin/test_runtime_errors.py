"""What the execution provider says to bad inputs, nodes, plans and libraries."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.plan_text import Plan
from tests.runtime_support import (
    BOOL,
    COORDS,
    DETECT,
    FLOAT,
    INT32,
    MASK,
    ROWS,
    Array,
    attention_plan,
    creation_error,
    detect_model,
    gemm_plan,
    kernel_plan,
    make_model,
    panels,
    pit_node,
    points,
    run_python,
    save,
    session,
    use_built_provider,
)

ort = pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

# ---- run-time errors: one line that names node, expectation and finding; the session lives on

LIVE = np.array([[1, 0, 1], [1, 1, 0]], bool)
R, C, OFF = points(LIVE)
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
P = X.reshape(-1, 4)[R]
A3 = np.ones((2, 3, 3), np.float32)
B35 = panels(np.ones((3, 5), np.float32), 4)
HEADS = np.ones((4, 2, 4), np.float32)
HEADS4 = np.ones((4, 4, 4), np.float32)
BIAS = np.zeros((2, 2, 3, 3), np.float32)

PACK = kernel_plan("pack", "pack_b4", dims="c0,c1,r")
PACK_L = kernel_plan("pack", "pack_b4", dims="l,0,r")
UNPACK = kernel_plan("unpack", "unpack_b4", dims="c0,c1,r")
UNPACK_T = kernel_plan("unpack", "unpack_b4", dims="c0,r,c1")
DETECT_01 = Plan("detect", (*DETECT.fields, ("padding", "the%20mask")))
GEMM = gemm_plan(3, 5, bias=1, gather=1, residual=1, scatter=1)
ATTENTION = attention_plan(4, 4, 2, bias=1)
CACHE = np.ones((2, 2, 3, 4), np.float32)
PAIRS = Plan(
    "pairs",
    (
        *(("rank", 2), ("positions", 1), ("tables", 1), ("keys", 1), ("queries", 1), ("pairs", 1)),
        *(("orders", 2), ("program", (3, 4, 0, 5, 6, 0, 1, 7, 1, 2))),
    ),
)
BLOCKS = Plan(
    "pairs",
    (
        *(("rank", 2), ("positions", 0), ("tables", 0), ("keys", 0), ("queries", 0), ("pairs", 1)),
        *(("orders", 0), ("program", (3, 2)), ("q_block", 2), ("k_block", 4)),
    ),
)
CAUSAL = np.array([[-1, 1, -1]], np.int64)
SEEN = np.ones((1, 2, 3), bool)
NUMBERS = np.arange(6).reshape(1, 2, 3)
TILES = np.array([[0, 2, 1], [0, 2, 0]], np.int32)
ORDER = np.array([1, 0, 2, 3], np.int32)
LISTS = np.array([[0, 1], [3, 3]], np.int32)

# op -> (plan, input names, good inputs)
GOOD: dict[str, tuple[Plan, list[str], list[Array]]] = {
    "detect": (DETECT, ["live"], [LIVE]),
    "detect 01": (DETECT_01, ["live", "padding"], [LIVE, np.ones((5, 7), np.int64)]),
    "pack": (PACK, ["x", "rows", "coords", "live"], [X, R, C, LIVE]),
    "pack l": (PACK_L, ["x", "rows", "coords", "live"], [X.reshape(6, 1, 4), R, C, LIVE]),
    "unpack": (UNPACK, ["packed", "rows", "coords", "live"], [P, R, C, LIVE]),
    "unpack t": (UNPACK_T, ["packed", "rows", "coords", "live"], [P, R, C, LIVE]),
    "gather_gemm": (
        GEMM,
        ["a", "b", "bias", "residual", "rows", "live"],
        [A3, B35, np.ones(5, np.float32), np.ones((4, 5), np.float32), R, LIVE],
    ),
    "gather only": (gemm_plan(3, 5, gather=1), ["a", "b", "rows", "live"], [A3, B35, R, LIVE]),
    "scatter only": (
        gemm_plan(3, 5, scatter=1),
        ["a", "b", "rows", "live"],
        [A3.reshape(6, 3)[:4], B35, R, LIVE],
    ),
    "attention": (
        ATTENTION,
        ["q", "k", "v", "q_offsets", "k_offsets", "bias", "q_coords", "k_coords"],
        [HEADS, HEADS, HEADS, OFF, OFF, BIAS, C, C],
    ),
    "attention whole": (
        attention_plan(4, 4, 2, whole=1),
        ["q", "k", "v", "q_offsets", "k_offsets", "k_coords", "live"],
        [HEADS, CACHE, CACHE, OFF, OFF, C, LIVE],
    ),
    "attention whole pairs": (
        attention_plan(4, 4, 4, whole=1, pairs=1, group=2),
        [
            *("q", "k", "v", "q_offsets", "k_offsets", "k_coords", "live"),
            *("keys", "seen_by", "tiles", "order"),
        ],
        [HEADS4, CACHE, CACHE, OFF, OFF, C, LIVE, *LISTS, TILES, ORDER],
    ),
    "attention group": (
        attention_plan(4, 4, 4, group=2),
        ["q", "k", "v", "q_offsets", "k_offsets"],
        [HEADS4, HEADS, HEADS, OFF, OFF],
    ),
    "attention pairs": (
        attention_plan(4, 4, 2, pairs=1),
        ["q", "k", "v", "q_offsets", "k_offsets", "keys", "seen_by", "tiles", "order"],
        [HEADS, HEADS, HEADS, OFF, OFF, *LISTS, TILES, ORDER],
    ),
    "pairs": (
        PAIRS,
        [
            *("q_offsets", "k_offsets", "q_coords", "k_coords"),
            *("position_tests", "q_tables", "k_tables", "key_flags", "query_flags", "pair_flags"),
        ],
        [OFF, OFF, C, C, CAUSAL, NUMBERS, NUMBERS, SEEN, SEEN, np.ones((1, 2, 3, 3), bool)],
    ),
    "blocks of pairs": (
        BLOCKS,
        ["q_offsets", "k_offsets", "q_coords", "k_coords", "pair_flags"],
        [OFF, OFF, C, C, np.ones((1, 2, 2, 1), bool)],
    ),
}
OUTPUTS = {"detect": ["rows", "coords", "offsets"], "pairs": ["keys", "seen_by", "tiles", "order"]}


def changed(array: Array, at: tuple[int, ...], value: int) -> Array:
    out = array.copy()
    out[at] = value
    return out


EXTENT = "expected x with extent "
ALL_POINTS = r"expected a as float32 \[2, 3, 3\] \(one row per point of the mask\), got "

# case, input, bad value, message
BAD: list[tuple[str, str, Array, str]] = [
    (
        "detect 01",
        "padding",
        changed(np.ones((5, 7), np.int64), (4, 2), 2),
        r"expected the padding mask 'the mask' to hold 0 and 1 only, .*, got 2 at \[4, 2\]$",
    ),
    (
        "detect 01",
        "padding",
        changed(np.ones((1, 70000), np.float64), (0, 69999), -3),
        r"got -3 at \[0, 69999\]$",
    ),
    ("detect 01", "padding", np.full((2, 3), 255, np.uint8), r"got 255 at \[0, 0\]$"),
    ("detect", "live", LIVE[0], r"expected live of rank 2, got bool \[3\]"),
    ("pack", "x", X[0], r"expected x of rank 3, got float32 \[3, 4\]"),
    (
        "pack",
        "x",
        X[:1],
        EXTENT + r"2 \(that of the mask\) in dimension 0, got float32 \[1, 3, 4\]",
    ),
    ("pack", "x", np.concatenate([X, X]), EXTENT + r"2 \(that of the mask\) in dimension 0, got"),
    ("pack", "x", X[:, :2], EXTENT + r"3 \(that of the mask\) in dimension 1, got float32 \[2, 2"),
    ("pack", "x", X[:, [0, 1, 2, 0]], EXTENT + r"3 \(that of the mask\) in dimension 1, got"),
    ("pack", "x", X[:0], EXTENT + r"2 \(that of the mask\) in dimension 0, got float32 \[0, 3, 4"),
    ("pack", "live", LIVE[:, :2], EXTENT + r"2 \(that of the mask\) in dimension 1, got float32"),
    ("pack", "live", LIVE[:0], EXTENT + r"0 \(that of the mask\) in dimension 0, got float32"),
    ("pack", "live", LIVE[0], r"expected live of rank >= 2, got bool \[3\]"),
    ("pack", "live", LIVE[..., None], r"coords of 3 coordinates \(the rank of live\), got 2"),
    ("pack", "x", X.astype(np.float16)[:, :, :3], r"rows of whole 4-byte words, got 6 bytes"),
    ("pack", "rows", R.astype(np.int64), r"expected rows as int32 \[\*\], got int64 \[4\]"),
    ("pack", "rows", R[:3], r"expected coords as int32 \[\*, 3\], got int32 \[2, 4\]"),
    ("pack", "coords", C[:1], r"coords of 2 coordinates \(the rank of live\), got 1"),
    ("pack", "coords", C[:0], r"expected coords of 1..8 coordinates, got int32 \[0, 4\]"),
    ("pack", "coords", changed(C, (0, 1), -1), r"expected 0 <= coords\[0\]\[1\] < 2, got -1"),
    ("pack", "coords", changed(C, (1, 3), 2**31 - 1), r"coords\[1\]\[3\] < 3, got 2147483647"),
    ("pack", "coords", changed(C, (1, 3), -(2**31)), r"coords\[1\]\[3\] < 3, got -2147483648"),
    ("pack l", "x", X.reshape(6, 2, 2), r"expected x with extent 1 in dimension 1, got"),
    (
        "pack l",
        "x",
        X.reshape(6, 1, 4)[:5],
        EXTENT + r"6 \(all points of the mask\) in dimension 0",
    ),
    ("pack l", "live", LIVE[:, :2], EXTENT + r"4 \(all points of the mask\) in dimension 0, got"),
    ("pack l", "live", LIVE.ravel(), r"coords of 1 coordinates \(the rank of live\), got 2"),
    ("pack l", "coords", C[:1], r"coords of 2 coordinates \(the rank of live\), got 1"),
    ("pack l", "rows", changed(R, (3,), 6), r"expected 0 <= rows\[3\] < 6, got 6"),
    ("unpack", "packed", P[:3], r"expected packed as \[4, ..\] of rank 2, got float32 \[3, 4\]"),
    ("unpack", "packed", X, r"expected packed as \[4, ..\] of rank 2, got float32 \[2, 3, 4\]"),
    ("unpack", "rows", R[::-1].copy(), r"expected rows to ascend, got 4, 3 at \[0\]"),
    ("unpack", "rows", changed(R, (1,), 0), r"expected rows to ascend, got 0, 0 at \[0\]"),
    ("unpack", "rows", changed(R, (3,), 6), r"expected 0 <= rows\[3\] < 6, got 6"),
    ("unpack", "live", LIVE[:1], r"expected 0 <= rows\[2\] < 3, got 3"),
    ("unpack", "live", LIVE[None], r"expected coords of 3 coordinates \(the rank of live\), got 2"),
    ("unpack t", "coords", changed(C, (1, 0), 1), r"coords of point 0 to be row 0, got 1"),
    ("unpack t", "coords", changed(C, (0, 0), 7), r"expected 0 <= coords\[0\]\[0\] < 2, got 7"),
    ("gather_gemm", "a", A3[..., :2], r"expected a of last dimension 3, got float32 \[2, 3, 2\]"),
    ("gather_gemm", "a", A3.astype(np.float64), r"expected a as float32 of rank >= 2, got float64"),
    ("gather_gemm", "a", A3[:1], ALL_POINTS + r"float32 \[1, 3, 3\]"),
    ("gather_gemm", "a", A3[:, [0, 1, 2, 2]], ALL_POINTS + r"float32 \[2, 4, 3\]"),
    ("gather_gemm", "a", A3.reshape(6, 3), ALL_POINTS + r"float32 \[6, 3\]"),
    ("gather_gemm", "a", A3[None], ALL_POINTS + r"float32 \[1, 2, 3, 3\]"),
    (
        "gather_gemm",
        "b",
        B35[:1],
        r"expected b as \[ceil\(5 / NR\), 3, NR\], got float32 \[1, 3, 4\]",
    ),
    ("gather_gemm", "b", B35[:, :, :0], r"expected b as .*, got float32 \[2, 3, 0\]"),
    ("gather_gemm", "b", B35[:, :2], r"expected b as .*, got float32 \[2, 2, 4\]"),
    ("gather_gemm", "b", B35[0], r"expected b as float32 of rank 3, got float32 \[3, 4\]"),
    ("gather_gemm", "bias", np.ones(8, np.float32), r"expected bias as float32 \[5\], got"),
    ("gather_gemm", "residual", np.ones((3, 5), np.float32), r"residual of 4 rows of 5, got"),
    ("gather_gemm", "residual", np.ones((4, 4), np.float32), r"residual of 4 rows of 5, got"),
    ("gather_gemm", "rows", changed(R, (2,), 6), r"expected 0 <= rows\[2\] < 6, got 6"),
    ("gather_gemm", "rows", changed(R, (2,), 2), r"expected rows to ascend, got 2, 2 at \[1\]"),
    ("gather_gemm", "live", LIVE[:1], r"expected a as float32 \[1, 3, 3\] \(one row per point"),
    ("gather only", "a", A3[:, [0, 1, 2, 2]], ALL_POINTS + r"float32 \[2, 4, 3\]"),
    ("gather only", "a", A3.reshape(3, 2, 3), ALL_POINTS + r"float32 \[3, 2, 3\]"),
    ("gather only", "live", LIVE[:, :2], r"expected a as float32 \[2, 2, 3\] \(one row per point"),
    ("gather only", "live", LIVE.ravel(), r"expected a as float32 \[6, 3\] \(one row per point"),
    ("gather only", "rows", changed(R, (2,), 6), r"expected 0 <= rows\[2\] < 6, got 6"),
    ("gather only", "rows", changed(R, (0,), -1), r"expected 0 <= rows\[0\] < 6, got -1"),
    ("scatter only", "live", LIVE[:1], r"expected 0 <= rows\[2\] < 3, got 3"),
    ("scatter only", "rows", R[:3], r"expected rows as int32 \[4\], one per row of a, got"),
    ("attention", "q", HEADS[:, :1], r"q as \[t, X, 4\] with X >= 2, got float32 \[4, 1, 4\]"),
    ("attention", "q", HEADS[..., :3], r"expected q as \[t, X, 4\] with X >= 2, got"),
    ("attention", "q", HEADS[0, 0], r"expected q as float32 of rank >= 2, got float32 \[4\]"),
    ("attention", "q", HEADS[:3], r"expected q_offsets\[2\] = 3 \(all rows\), got 4"),
    ("attention", "k", HEADS[:3], r"expected v of 3 rows, as k, got 4"),
    ("attention", "v", HEADS[:, :1], r"expected v as \[t, X, 4\] with X >= 2, got"),
    ("attention", "q_offsets", OFF[:2], r"expected k_offsets as int32 \[2\], got int32 \[3\]"),
    ("attention", "q_offsets", OFF[:0], r"expected q_offsets of one element or more, got"),
    ("attention", "q_offsets", changed(OFF, (0,), 1), r"expected q_offsets\[0\] = 0, got 1"),
    ("attention", "k_offsets", changed(OFF, (1,), 5), r"k_offsets not to fall, got 5, 4 at \[1\]"),
    (
        "attention",
        "k_offsets",
        changed(OFF, (1,), -1),
        r"k_offsets not to fall, got 0, -1 at \[0\]",
    ),
    ("attention", "k_offsets", changed(OFF, (2,), 3), r"expected k_offsets\[2\] = 4 .*, got 3"),
    ("attention", "bias", BIAS[0], r"expected bias as float32 of rank 4, got float32 \[2, 3, 3\]"),
    ("attention", "bias", np.zeros((3, 2, 3, 3), np.float32), r"expected bias as \[2 or 1, 2 or 1"),
    ("attention", "bias", BIAS[:, :, :2], r"expected 0 <= q_coords\[1\] < 2, got 2"),
    ("attention", "bias", BIAS[..., :2], r"expected 0 <= k_coords\[1\] < 2, got 2"),
    (
        "attention",
        "q_coords",
        C[:, :3],
        r"expected q_coords as int32 \[\*, 4\], got int32 \[2, 3\]",
    ),
    ("attention", "k_coords", changed(C, (1, 0), -5), r"0 <= k_coords\[0\] < 3, got -5"),
    ("attention whole", "k", CACHE[0], r"expected k as float32 of rank 4, got float32 \[2, 3, 4\]"),
    (
        "attention whole",
        "k",
        CACHE[:1],
        r"expected k as \[2, 2, positions, 4\], got float32 \[1, 2",
    ),
    ("attention whole", "k", CACHE[:, :1], r"expected k as \[2, 2, positions, 4\], got float32"),
    ("attention whole", "k", CACHE[..., :3], r"expected k as \[2, 2, positions, 4\], got float32"),
    ("attention whole", "v", CACHE[..., :3], r"expected v as \[2, 2, positions, 4\], got float32"),
    ("attention whole", "v", CACHE[:, :, :2], r"expected v of 12 rows, as k, got 8"),
    ("attention whole", "k", CACHE[:, :, :2], r"expected v of 8 rows, as k, got 12"),
    ("attention whole", "k_coords", changed(C, (1, 3), 3), r"0 <= k_coords\[3\] < 3, got 3"),
    ("attention whole", "k_coords", changed(C, (1, 0), -1), r"0 <= k_coords\[0\] < 3, got -1"),
    (
        "attention whole",
        "live",
        np.ones((2, 4), bool),
        r"expected k with extent 4 \(that of the mask\) in dimension 2, got float32 \[2, 2, 3, 4\]"
        ": inputs are of different sizes",
    ),
    ("attention whole", "live", LIVE[0], r"expected live of rank >= 2"),
    ("attention whole", "k_coords", C[:, :3], r"expected k_offsets\[2\] = 3 \(all rows\), got 4"),
    (
        "attention whole",
        "k_coords",
        C[0],
        r"expected k_coords as int32 \[\*, \*\], got int32 \[4\]",
    ),
    ("attention whole pairs", "q", HEADS, r"expected q as \[t, X, 4\] with X >= 4, got float32"),
    (
        "attention whole pairs",
        "k",
        CACHE[:, :1],
        r"expected k as \[2, 2, positions, 4\], got float32 \[2, 1, 3, 4\]",
    ),
    (
        "attention whole pairs",
        "v",
        CACHE.repeat(2, axis=1),
        r"expected v as \[2, 2, positions, 4\], got float32 \[2, 4, 3, 4\]",
    ),
    ("attention whole pairs", "k_coords", changed(C, (1, 3), 3), r"0 <= k_coords\[3\] < 3, got 3"),
    ("attention whole pairs", "live", LIVE[:, :2], r"expected k with extent 2 \(that of"),
    ("attention whole pairs", "keys", np.array([0, 2], np.int32), r"0 <= keys\[1\] < 2, got 2"),
    ("attention whole pairs", "tiles", TILES[:1], r"expected tiles as int32 \[2, 3\], got int32"),
    ("attention group", "k", HEADS[:, :1], r"expected k as \[t, X, 4\] with X >= 2, got float32"),
    ("attention group", "v", HEADS[:, :1], r"expected v as \[t, X, 4\] with X >= 2, got float32"),
    ("attention group", "q", HEADS, r"expected q as \[t, X, 4\] with X >= 4, got float32"),
    ("attention pairs", "keys", np.array([0, 4], np.int32), r"expected 0 <= keys\[1\] < 2, got 4"),
    ("attention pairs", "keys", np.array([-1, 1], np.int32), r"0 <= keys\[0\] < 2, got -1"),
    ("attention pairs", "seen_by", OFF, r"expected seen_by as int32 \[2\], got int32 \[3\]"),
    (
        "attention pairs",
        "tiles",
        TILES[:1],
        r"expected tiles as int32 \[2, 3\], got int32 \[1, 3\]",
    ),
    *(
        ("attention pairs", "tiles", changed(TILES, at, bad), "expected tiles within 2 keys, got")
        for at, bad in (((0, 0), -1), ((0, 1), 3), ((1, 1), -2), ((1, 0), 1), ((1, 1), 3))
    ),
    ("attention pairs", "order", ORDER[:3], r"expected order as int32 \[4\], got int32 \[3\]"),
    *(
        (
            "attention pairs",
            "order",
            np.array(order, np.int32),
            f"an order of .*, got {row} at {at}",
        )
        for order, row, at in (
            ((1, 1, 2, 3), 1, 1),
            ((1, 2, 0, 3), 2, 1),
            ((0, -1, 2, 3), -1, 1),
            ((0, 1, 2, 4), 4, 3),
            ((0, 1, 3, 2), 2, 3),
        )
    ),
    ("pairs", "q_offsets", OFF[:0], "expected q_offsets of one element or more"),
    ("pairs", "k_offsets", OFF[:2], r"expected k_offsets as int32 \[3\], got int32 \[2\]"),
    ("pairs", "k_offsets", changed(OFF, (2,), 3), r"expected k_offsets\[2\] = 4 .*, got 3"),
    ("pairs", "q_coords", C[:1], r"expected q_coords as int32 \[2, \*\], got int32 \[1, 4\]"),
    ("pairs", "q_coords", changed(C, (1, 1), 3), r"expected 0 <= q_coords\[1\] < 3, got 3"),
    ("pairs", "k_coords", changed(C, (1, 1), -1), r"expected 0 <= k_coords\[1\] < 3, got -1"),
    (
        "pairs",
        "position_tests",
        CAUSAL[:, :2],
        r"position_tests as int64 \[1, 3\], got int64 \[1, 2",
    ),
    (
        "pairs",
        "position_tests",
        CAUSAL.astype(np.int32),
        r"position_tests as int64 \[1, 3\], got int32",
    ),
    *(
        ("pairs", "position_tests", changed(CAUSAL, (0, at), bad), "moderate numbers, got .* row 0")
        for at, bad in ((0, 1 << 21), (1, -(1 << 21)), (2, 1 << 61), (2, -(1 << 63)))
    ),
    (
        "pairs",
        "q_tables",
        NUMBERS[:, :1],
        "q_tables as int64 of 3 dimensions, of 1 tests and 2 sequences, got",
    ),
    ("pairs", "k_tables", NUMBERS.astype(np.int32), "k_tables as int64 of 3 dimensions, .* int32"),
    ("pairs", "k_tables", NUMBERS[:, :, :2], r"expected 0 <= k_coords\[1\] < 2, got 2"),
    ("pairs", "q_tables", NUMBERS[0], "q_tables as int64 of 3 dimensions"),
    (
        "pairs",
        "key_flags",
        SEEN[0],
        r"expected key_flags as flags of 3 dimensions, of 1 tests and 2",
    ),
    ("pairs", "key_flags", SEEN[:, [0] * 3], r"key_flags .* 2 sequences, got bool \[1, 3, 3\]"),
    ("pairs", "key_flags", SEEN[:, :, :2], r"expected 0 <= k_coords\[1\] < 2, got 2"),
    (
        "pairs",
        "key_flags",
        SEEN.astype(np.float32),
        r"key_flags as flags .*, got float32 \[1, 2, 3\]",
    ),
    ("pairs", "query_flags", SEEN[:, :, :2], r"expected 0 <= q_coords\[1\] < 2, got 2"),
    ("pairs", "query_flags", SEEN.repeat(2, 0), r"query_flags as flags .*, got bool \[2, 2, 3\]"),
    ("pairs", "pair_flags", SEEN, r"expected pair_flags as flags of 4 dimensions"),
    ("pairs", "pair_flags", np.ones((1, 2, 2, 3), bool), r"expected 0 <= q_coords\[1\] < 2, got 2"),
    ("pairs", "pair_flags", np.ones((1, 2, 3, 2), bool), r"expected 0 <= k_coords\[1\] < 2, got 2"),
    (
        "blocks of pairs",
        "pair_flags",
        np.ones((1, 2, 1, 1), bool),
        r"expected 0 <= q_coords\[1\] < 2, got 2",
    ),
    (
        "blocks of pairs",
        "pair_flags",
        np.ones((1, 2, 2, 0), bool),
        r"expected 0 <= k_coords\[0\] < 0, got 0",
    ),
]


@pytest.mark.parametrize(
    ("case", "name", "value", "message"), BAD, ids=[f"{b[0]}-{b[1]}-{i}" for i, b in enumerate(BAD)]
)
def test_bad_inputs(tmp_path: Path, case: str, name: str, value: Array, message: str) -> None:
    plan, names, good = GOOD[case]
    feeds = dict(zip(names, good, strict=True))
    kinds = {key: element_type(array) for key, array in feeds.items()}
    outputs = OUTPUTS.get(plan.op, ["y"])
    result = (
        INT32 if plan.op in OUTPUTS else element_type(value) if name in ("x", "packed") else FLOAT
    )
    # The model declares the bad input's type, so that ONNX Runtime itself has nothing to say.
    declared = {**kinds, name: element_type(value)}
    model = make_model(
        [pit_node("the node", plan, names, outputs)],
        [(key, declared[key], None) for key in names],
        [(output, result, None) for output in outputs],
    )
    run = session(save(tmp_path, model))
    with pytest.raises(Exception, match=message) as caught:
        run.run(None, {**feeds, name: value})
    assert f"pitc: node 'the node' ({plan.op}): " in str(caught.value)
    if declared == kinds:
        run.run(None, feeds)  # the same session works


@pytest.mark.parametrize("case", GOOD)
def test_good_inputs(tmp_path: Path, case: str) -> None:
    """The inputs that `BAD` spoils one by one are good."""
    plan, names, good = GOOD[case]
    outputs = OUTPUTS.get(plan.op, ["y"])
    model = make_model(
        [pit_node("n", plan, names, outputs)],
        [(key, element_type(array), None) for key, array in zip(names, good, strict=True)],
        [(output, INT32 if plan.op in OUTPUTS else FLOAT, None) for output in outputs],
    )
    results = session(save(tmp_path, model)).run(None, dict(zip(names, good, strict=True)))
    assert all(np.isfinite(result).all() for result in results)


def element_type(array: Array) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(array.dtype)


def test_kernel_errors(tmp_path: Path) -> None:
    """A kernel that refuses its arguments: its words, made printable."""
    names = ["a", "b"]
    model = make_model(
        [pit_node("g", gemm_plan(7, 7), names, ["c"])],
        [(name, FLOAT, None) for name in names],
        [("c", FLOAT, None)],
    )
    run = session(save(tmp_path, model))
    feeds = {"a": np.zeros((2, 7), np.float32), "b": np.zeros((1, 7, 7), np.float32)}
    for _ in range(3):
        with pytest.raises(
            Exception, match=r"'g' \(contract\): kernel 'gather_gemm_k7_n7_none_v\d'"
        ):
            run.run(None, feeds)
    assert run.run(None, {**feeds, "a": np.zeros((0, 7), np.float32)})[0].shape == (0, 7)


# ---- session creation


def test_wrong_numbers_of_inputs_and_outputs(tmp_path: Path) -> None:
    node = pit_node("d", DETECT, ["live", "live"], ["rows", "coords", "offsets"])
    error = creation_error(save(tmp_path, detect_model(node)))
    assert "node 'd' (detect): expected 1 inputs and 3 outputs, got 2 and 3" in error
    node = pit_node("d", DETECT, ["live"], ["rows"])
    model = make_model([node], [("live", BOOL, ["b", "s"])], [ROWS])
    assert "expected 1 inputs and 3 outputs, got 1 and 1" in creation_error(save(tmp_path, model))


def test_missing_optional_input(tmp_path: Path) -> None:
    node = pit_node("p", PACK, ["x", "", "coords", "live"], ["y"])
    model = make_model([node], [("x", FLOAT, None), COORDS, MASK], [("y", FLOAT, None)])
    run = session(save(tmp_path, model))
    with pytest.raises(Exception, match=r"node 'p' \(pack\): expected input rows, got none"):
        run.run(None, {"x": X, "coords": C, "live": LIVE})


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("ep_cache_context", b"", "expected the line 'pitc-plan 9', got ''"),
        ("ep_cache_context", b"\xff\x00junk", r"expected the line 'pitc-plan 9', got '\?\?junk'"),
        ("ep_cache_context", None, "expected a plan in ep_cache_context, got none"),
        ("embed_mode", 0, "expected embed_mode 1"),
        ("main_context", 0, "expected main_context 1"),
    ],
)
def test_bad_attributes(tmp_path: Path, attribute: str, value: Any, message: str) -> None:
    model = detect_model()
    (node,) = model.graph.node
    kept = [a for a in node.attribute if a.name != attribute]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(onnx.helper.make_attribute(attribute, value))
    error = creation_error(save(tmp_path, model))
    assert re.search(r"pitc: node 'd' \(EPContext\): .*" + message, error)


def test_library_problems(tmp_path: Path) -> None:
    def make(plan: Plan) -> onnx.ModelProto:
        node = pit_node("p", plan, ["x", "rows", "coords", "live"], ["y"])
        return make_model([node], [("x", FLOAT, None), ROWS, COORDS, MASK], [("y", FLOAT, None)])

    folder = tmp_path / "model"
    path, library = save(folder, make(PACK)), folder / "kernels.so"
    outside = tmp_path / "kernels.so"
    library.rename(outside)
    assert "cannot open the kernel library" in creation_error(path)
    library.symlink_to(outside)
    assert "expected the kernel library inside the model's folder" in creation_error(path)
    library.unlink()
    code = outside.read_bytes()
    for part in (10, 100, len(code) // 2, len(code) - 1):  # an interrupted copy
        library.write_bytes(code[:part])
        assert "node 'p' (pack): the kernel library is damaged" in creation_error(path)
    library.unlink()
    library.write_text("no library")
    assert "node 'p' (pack): cannot load the kernel library" in creation_error(path)
    library.unlink()
    shutil.copy(outside, library)
    session(path)
    (tmp_path / "link").symlink_to(folder)
    session(tmp_path / "link" / "model.onnx")
    model = make_model(
        [pit_node("g", gemm_plan(5, 5), ["a", "b"], ["c"])],
        [("a", FLOAT, None), ("b", FLOAT, None)],
        [("c", FLOAT, None)],
    )
    error = creation_error(save(folder, model))
    assert "expected kernel 'gather_gemm_k5_n5_none' for CPU level" in error
    assert "in 'kernels.so', got none; compile the model again" in error


# ---- hostile plans

MUTATE = r"""
import random, sys
import onnx, onnxruntime
from pathlib import Path
from pitc.runtime.library import make_session

path, loaded = Path(sys.argv[1]), 0
model = onnx.load(path)
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
rng = random.Random(int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    mutant = onnx.ModelProto()
    mutant.CopyFrom(model)
    for node in mutant.graph.node:
        plan = bytearray(next(a for a in node.attribute if a.name == "ep_cache_context").s)
        at = rng.randrange(len(plan))
        match rng.randrange(4):
            case 0: plan[at] = rng.randrange(256)
            case 1: plan[at] = rng.choice(b"0123456789")
            case 2: del plan[at]
            case 3: plan.insert(at, rng.choice(b"0123456789=,cr\x0a"))
        next(a for a in node.attribute if a.name == "ep_cache_context").s = bytes(plan)
    onnx.save(mutant, path.with_name("mutant.onnx"))
    try:
        make_session(path.with_name("mutant.onnx"), options)
        loaded += 1
    except Exception as error:
        assert "node 'n'" in str(error), error
print("loaded", loaded)
"""


@pytest.mark.parametrize("case", ["pack", "gather_gemm", "attention"])
def test_mutated_plans_never_crash(tmp_path: Path, case: str) -> None:
    plan, names, good = GOOD[case]
    model = make_model(
        [pit_node("n", plan, names, ["y"])],
        [(key, element_type(array), None) for key, array in zip(names, good, strict=True)],
        [("y", FLOAT, None)],
    )
    shown = run_python(MUTATE, str(save(tmp_path, model)), "1", "250")
    assert int(shown.split()[-1]) < 100


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_only_0_and_1_are_taken_of_all_floats(tmp_path: Path, dtype: str) -> None:
    """Every sign and exponent, with mantissas of one bit or none; of float16, every number."""
    bits = np.dtype(dtype).itemsize * 8
    mantissa = {16: 10, 32: 23, 64: 52}[bits]
    if bits == 16:
        patterns = np.arange(1 << 16, dtype=np.uint16)
    else:
        heads = np.arange(1 << (bits - mantissa), dtype=np.uint64) << np.uint64(mantissa)
        tails = [0, 1, 1 << (mantissa - 1), (1 << mantissa) - 1]
        patterns = np.unique(np.bitwise_or.outer(heads, np.array(tails, np.uint64)).ravel())
    numbers = patterns.astype(f"uint{bits}").view(dtype)
    legal = (numbers == 0) | (numbers == 1)
    kind = element_type(numbers)
    plan = Plan("detect", (("rank", 1), ("padding", "live")))
    model = make_model(
        [pit_node("n", plan, ["live", "live"], ["rows", "coords", "offsets"])],
        [("live", kind, None)],
        [(output, INT32, None) for output in ("rows", "coords", "offsets")],
    )
    run = session(save(tmp_path, model))
    assert int(legal.sum()) == 3
    rows = run.run(["rows"], {"live": numbers[legal]})[0]
    assert list(rows) == list(np.flatnonzero(numbers[legal]))
    taken = numbers[legal]
    odd = numbers[~legal]
    few = np.linspace(0, len(odd) - 1, 3000).astype(int)
    near = np.flatnonzero((odd > -2.1) & (odd < 2.1) & (np.abs(odd) > 0.4))[:500]
    for number in (*odd[few], *odd[near]):
        with pytest.raises(Exception, match="expected the padding mask 'live' to hold 0 and 1"):
            run.run(None, {"live": np.append(taken, number)})
