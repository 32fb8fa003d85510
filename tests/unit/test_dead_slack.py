"""Where any number up to a limit would do, exactly, and what it makes dead."""

from math import inf

import pytest

from tests.fact_texts import analysed_text, dead_of, slack_of

OFF, ON = "flag[d0, d1, d2] == 0", "flag[d0, d1, d2] != 0"
ROW = f"{OFF} and some d-101: flag[d0, d1, d-101] != 0"  # hidden, and the row keeps a key
EMPTY = "all d-1: flag[d0, d1, d-1] == 0"
A, T = "a = MatMul (x, w)", "t = Tanh (mask)"
M = f"{A} m = Where (flag, nought, low)"  # a score, and a mask to add
PADDED = ["mask[d0, d1, d2] == 0"]
NONE: tuple[list[str], float] = ([], inf)

SLACK: dict[str, dict[str, tuple[list[str], float]]] = {
    # a limit sinks by what is added, and a mask still lies below it
    f"{M} z = Add (a, m) p = Softmax (z)": {
        "z": ([ROW], -5750),
        "m": ([ROW], -6750),
        "a": ([ROW], -6750),
        "x": NONE,
        "flag": NONE,
    },
    f"{M} z = Sum (a, m) p = Softmax (z)": {"m": ([ROW], -6750)},
    f"{M} u = Add (a, m) b = Add (u, half) e = Add (b, half) z = Add (e, half) p = Softmax (z)": {
        "z": ([ROW], -5750),
        "e": ([ROW], -6750),
        "b": ([ROW], -7750),
        "u": NONE,  # -8750 is too near to a mask
        "m": NONE,
    },
    # what is added lifts by 1000 at most
    **{
        f"k2 = Constant <value_float = {c}> () {M} y = Add (a, m) z = {z} p = Softmax (z)": {
            "y": ([ROW] if lifts <= 1000 else [], -6750)
        }
        for c, z, lifts in [
            (1000.0, "Add (y, k2)", 1000.0),
            (1000.0, "Add (k2, y)", 1000.0),
            (1000.5, "Add (y, k2)", 1000.5),
            (1000.5, "Add (k2, y)", 1000.5),
            (-1000.0, "Sub (y, k2)", 1000.0),
            (-1000.5, "Sub (y, k2)", 1000.5),
            (1000.5, "Sub (y, k2)", -1000.5),
        ]
    },
    # what is subtracted has no largest number that would do
    f"{M} z = Sub (m, a) p = Softmax (z)": {"m": ([ROW], -6750), "a": ([ROW], inf)},
    f"{M} z = Sub (a, m) p = Softmax (z)": {"z": ([], -5750), "a": ([], -6750), "m": NONE},
    # of one value twice, and of three, nothing is said
    f"{M} z = Add (m, m) p = Softmax (z)": {"z": ([ROW], -5750), "m": NONE},
    f"{M} {T} z = Sum (a, t, m) p = Softmax (z)": {"z": ([ROW], -5750), "a": NONE, "m": NONE},
    # only sums pass it on
    f"{M} y = Add (a, m) z = Mul (y, half) p = Softmax (z)": {"y": NONE},
    f"{M} y = Add (a, m) z = Max (y, low) p = Softmax (z)": {"y": NONE},
    # -inf by itself leaves 0 or NaN, whatever is added to it
    f"low2 = Constant <value_float = -inf> () {A} h = Where (flag, nought, low2) z = Add (a, h)"
    " p = Softmax (z)": {"z": ([], -5750), "h": ([], -6750), "a": ([OFF], -6750)},
    # movement
    f"{M} z = Add (a, m) y = Transpose <perm = [0, 2, 1]> (z) p = Softmax (y)": {
        "y": (["flag[d0, d2, d1] == 0 and some d-101: flag[d0, d-101, d1] != 0"], -5750),
        "z": ([f"{OFF} and some d-101: flag[d0, d-101, d2] != 0"], -5750),
    },
    f"{M} y = Add (a, m) z = Concat <axis = 1> (y, m) p = Softmax (z)": {
        "y": ([ROW], -5750),
        "m": ([ROW], -6750),
    },
    # all readers must agree, and the lowest limit counts
    f"{M} z = Add (a, m) p = Softmax (z) y = Add (z, half) o = Softmax (y)": {"z": ([ROW], -6750)},
    f"{M} z = Add (a, m) p = Softmax (z) o = Neg (z)": {"z": ([], -5750)},
    f"{M} z = Add (a, m) l = Shape (z) o = Cast <to = 1> (l) p = Softmax (z)": {
        "z": ([ROW], -5750),
        "l": NONE,
    },
    f"{M} b, c = Split <axis = 2, num_outputs = 2> (m) y = Softmax (b) d = Add (c, half)"
    " z = Softmax (d) p = Concat <axis = 2> (y, z)": {
        "b": ([ROW], -5750),
        "m": ([f"{ROW.replace(' and', ' and some d-101: flag[d0, d1, d-101+2] != 0 and')}"], -6750),
    },
    f"{M} z = Add (a, m) p = Softmax (z) go = Cast <to = 9> (k) n = Constant <value_int = 20> ()"
    " o = Loop <body = body (int64 i, bool on, float[q, r, s] h) => (bool off, float[q, r, s] b)"
    " { off = Identity (on) b = Add (h, z) }> (n, go, a)": {"z": ([], -5750)},
    # what is dead is loose, and where the result of a softmax is, the whole row is
    f"{A} e = Exp (mask) z = Add (a, e) u = Where (flag, z, nought) p = Softmax (u)": {
        "z": ([OFF], inf),
        "a": ([OFF], inf),
        "e": ([OFF], inf),
    },
    f"{M} z = Add (a, m) q = Softmax (z) p = Where (flag, q, nought)": {
        "q": ([OFF], inf),
        "z": ([OFF, EMPTY], -5750),
        "a": ([OFF, EMPTY], -6750),
    },
    "c = Cast <to = 1> (flag) t = Tanh (mask) p = Mul (c, t)": {"c": NONE, "t": ([OFF], inf)},
    "c = Cast <to = 1> (flag) t = Tanh (mask) p = MatMul (c, t)": {"c": NONE},
    "c = Cast <to = 1> (flag) p = Mul (c, c)": {"c": NONE},
    "c = Cast <to = 1> (flag) p = MatMul (c, c)": {"c": NONE},
    # of a term that lifts by little in some places only
    f"k2 = Constant <value_float = 2000.0> () {M} b = Cast <to = 9> (bytes)"
    " h = Where (b, k2, half) y = Add (a, m) z = Add (h, y) p = Softmax (z)": {
        "y": (
            [
                f"bytes[d0, d1, d2] == 0 and flag[d0, d1, d1] != 0 and {OFF}",
                f"all d-1: bytes[d0, d1, d-1] == 0 and {ROW}",
            ],
            -6750,
        ),
    },
    f"{T} l = Shape (t) p = Cast <to = 1> (l)": {"t": (["everywhere"], inf), "l": NONE},
}

CAPPED = f"{M} c = Tanh (a)"
ROOM: dict[str, dict[str, tuple[list[str], float]]] = {
    # beside a mask any number up to 4250 would do, as long as it is a tanh
    f"{CAPPED} z = Add (c, m) p = Softmax (z)": {"c": ([ROW], 4250), "a": ([ROW], inf), "z": NONE},
    f"{CAPPED} u = Add (c, half) z = Add (u, m) p = Softmax (z)": {
        "u": ([ROW], 4250),
        "c": ([ROW], 3250),
    },
    f"{CAPPED} z = Add (c, m) y = Add (z, half) p = Softmax (y)": {"c": ([ROW], 3250), "z": NONE},
    f"{CAPPED} u = Mul (c, half) z = Add (u, m) p = Softmax (z)": {"c": ([ROW], 4250 * 0.99 / 0.5)},
    f"{CAPPED} u = Div (c, two) z = Add (u, m) p = Softmax (z)": {"c": ([ROW], 4250 * 0.99 * 2)},
    # of a product by less than 0 there is a least number, not a largest one
    f"{CAPPED} u = Mul (c, minus) z = Add (u, m) p = Softmax (z)": {"u": ([ROW], 4250), "c": NONE},
    f"{CAPPED} u = Div (half, c) z = Add (u, m) p = Softmax (z)": {"c": NONE},
    f"{CAPPED} u = Mul (c, k) z = Add (u, m) p = Softmax (z)": {"c": (["k[] == 0"], inf)},
    f"{CAPPED} z = Sub (m, c) p = Softmax (z)": {"c": NONE},
    # all readers must agree
    f"{CAPPED} z = Add (c, m) o = Abs (c) p = Softmax (z)": {"c": ([], 4250), "a": NONE},
    f"{CAPPED} b = Cast <to = 9> (bytes) y = Add (c, m) z = Where (b, y, nought) p = Softmax (z)": {
        "c": (
            ["bytes[d0, d1, d2] == 0", f"{OFF} and some d-101: bytes[d0, d1, d-101] == 0", ROW],
            4250,
        ),
    },
}

DEAD: dict[str, dict[str, list[str]]] = {
    # what an operator bounds stays within the room that a mask leaves; other numbers need not
    f"{CAPPED} z = Add (c, m) p = Softmax (z)": {"a": [ROW], "c": [], "z": []},
    **{
        f"k2 = Constant <value_float = {k}> () {CAPPED} u = {op} z = Add (u, m) y = Add (z, half)"
        " p = Softmax (y)": {"a": [ROW] if most < 3217 else [], "c": [], "u": []}
        for k, op, most in [
            (3200.0, "Mul (c, k2)", 3200),
            (3200.0, "Mul (k2, c)", 3200),
            (3240.0, "Mul (c, k2)", 3240),
            (0.0003125, "Div (c, k2)", 3200),
            (0.00031, "Div (c, k2)", 3226),
        ]
    },
    f"{M} c = Sigmoid (a) z = Sum (m, c) p = Softmax (z)": {"a": [ROW], "c": []},
    f"{M} c = Exp (a) z = Add (m, c) p = Softmax (z)": {"a": [], "c": []},
    # of a NaN the tanh is NaN
    f"{M} l = Log (a) c = Tanh (l) z = Add (c, m) p = Softmax (z)": {"l": [], "a": [], "c": []},
    # a score under a mask, not the mask
    f"{M} z = Add (a, m) p = Softmax (z)": {"a": [ROW], "m": [], "z": []},
    f"{M} z = Add (m, a) p = Softmax (z)": {"a": [ROW], "m": [], "z": []},
    f"{M} z = Sub (m, a) p = Softmax (z)": {"a": [ROW], "m": [], "z": []},
    f"{M} z = Sub (a, m) p = Softmax (z)": {"a": [], "m": [], "z": []},
    f"{M} z = Add (m, m) p = Softmax (z)": {"m": []},
    f"{M} {T} z = Sum (a, t, m) p = Softmax (z)": {"a": [], "t": [], "m": []},
    f"{M} u = Add (a, half) z = Add (u, m) p = Softmax (z)": {"u": [ROW], "a": [ROW]},
    f"k2 = Constant <value_float = 10000.0> () {A} h = Where (flag, nought, k2) z = Sub (a, h)"
    " p = Softmax (z)": {"a": [ROW]},
    # too weak a mask
    f"k2 = Constant <value_float = -7749.5> () {A} h = Where (flag, nought, k2) u = Add (a, h)"
    " z = Add (u, half) p = Softmax (z)": {"a": []},
    f"k2 = Constant <value_float = -7750.0> () {A} h = Where (flag, nought, k2) u = Add (a, h)"
    " z = Add (u, half) p = Softmax (z)": {"a": [ROW]},
    f"k2 = Constant <value_float = -6749.5> () {A} m = Where (flag, minus, low)"
    " b = Cast <to = 9> (bytes) n = Where (b, nought, k2) z = Add (a, m) y = Add (z, n)"
    " p = Softmax (y)": {
        "a": [
            f"bytes[d0, d1, d1] != 0 and flag[d0, d1, d1] != 0 and {OFF}",
            f"all d-1: bytes[d0, d1, d-1] != 0 and {ROW}",
        ],
        "z": [],
    },
    # a score that hides keys itself is read there, another mask or not
    f"{M} b = Cast <to = 9> (bytes) e = Where (b, a, low) z = Add (e, m) p = Softmax (z)": {
        "e": [
            "bytes[d0, d1, d1] != 0 and bytes[d0, d1, d2] != 0 and flag[d0, d1, d1] != 0 and "
            + OFF,
            f"all d-1: bytes[d0, d1, d-1] != 0 and {ROW}",
        ],
        "m": [],
    },
    # of a score that may be NaN nothing is hidden
    f"{M} {T} l = Log (t) z = Add (l, m) p = Softmax (z)": {"l": [], "z": []},
}


@pytest.mark.parametrize("body", SLACK)
def test_slack(body: str) -> None:
    graph = analysed_text(body)
    assert {name: slack_of(graph, name) for name in SLACK[body]} == SLACK[body]


@pytest.mark.parametrize("body", ROOM)
def test_room(body: str) -> None:
    graph = analysed_text(body)
    found = {
        name: ([str(r) for r in graph[name].room[0]], graph[name].room[1]) for name in ROOM[body]
    }
    assert found == ROOM[body]


@pytest.mark.parametrize("body", DEAD)
def test_dead_by_slack(body: str) -> None:
    graph = analysed_text(body)
    assert {name: dead_of(graph, name) for name in DEAD[body]} == DEAD[body]


def test_an_output_that_is_given_up_takes_any_number() -> None:
    body = f"{A} b = Cast <to = 9> (mask) m = Where (b, low, nought) p = Add (a, m)"
    graph = analysed_text(body, "mask", ["p"])
    for name in "apm":
        assert (dead_of(graph, name), slack_of(graph, name)) == (PADDED, (PADDED, inf))
