"""Bodies of Loop, Scan and If that read and write what the main graph computes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.probes.build import WIDE, D, Feed, Net, Probe, Table, normal, rng_of
from tests.probes.masks import attention, outer, soft
from tests.probes.softmax import low

SCOPES = Table("scopes")
INT, F, B = np.int64, np.float32, np.bool_
Array = Any
STATE = ("b", "s", D)


def _probe(make: Callable[[Net, str, str, str], Sequence[str]], opset: int = 17) -> Probe:
    """make(g, x, mask [b, s], trips) gives the outputs."""
    g = Net(opset)
    x, m = g.input("x", F, STATE), g.input("mask", INT, ("b", "s"))
    n = g.input("trips", INT, ())
    g.out(*make(g, x, m, n))
    feeds: list[Feed] = []
    for k, (b, s, trips) in enumerate(((2, 5, 0), (2, 5, 1), (3, 4, 3), (1, 1, 2), (2, 9, 1))):
        mask = (rng_of(k, 5).random((b, s)) < 0.5).astype(INT)
        feeds.append({"x": normal(b, s, D, seed=k), "mask": mask, "trips": np.asarray(trips, INT)})
    return Probe(g.model(), feeds)


def gate(g: Net, m: str) -> str:
    """The mask as numbers [b, s, 1]."""
    return g.cast(g.Unsqueeze(m, [2]), F)


def loop(
    g: Net,
    trips: str,
    states: Sequence[str],
    step: Callable[..., Sequence[str]],
    kinds: Sequence[Any] = (),
    shapes: Sequence[Any] = (),
    scans: int = 0,
) -> list[str]:
    """A Loop whose condition stays true; step(b, i, *states) gives states, then scans."""
    kinds = kinds or [F] * len(states)
    shapes = shapes or [STATE] * len(states)

    def make(b: Net, i: str, going: str, *inner: str) -> list[str]:
        return [b.Identity(going), *step(b, i, *inner)]

    serial = g.root.used
    inputs = [(f"i{serial}", INT, ()), (f"going{serial}", B, ())]
    inputs += [
        (f"state{serial}_{k}", t, s) for k, (t, s) in enumerate(zip(kinds, shapes, strict=True))
    ]
    body = g.body(make, inputs, [B, *kinds, *[F] * scans])
    return g.several("Loop", len(states) + scans, trips, g.const(True, B), *states, body=body)


def few(g: Net, trips: str) -> str:
    """Trips that no rule knows."""
    return g.Min(trips, g.const(3, INT))


def either(g: Net, m: str, one: Callable[[Net], str], other: Callable[[Net], str]) -> str:
    """An If on data."""
    holds = g.Less(g.ReduceSum(m, keepdims=0), g.const(4, INT))
    return g.If(
        holds, then_branch=g.body(lambda b: [one(b)]), else_branch=g.body(lambda b: [other(b)])
    )


def seen(g: Net, x: str, m: str) -> str:
    """Attention under the mask."""
    return attention(g, x, x, lambda g, raw: soft(g, g.Add(raw, low(g, m))))


Make = Callable[[Net, str, str, str], Sequence[str]]
MAKES: dict[str, Make] = {
    "product_read_by_body": lambda g, x, m, n: (
        lambda h: loop(g, few(g, n), [x], lambda b, i, s: [b.Add(s, h)])
    )(g.linear(g.Mul(g.mlp(x), gate(g, m)))),
    "product_bias_in_body": lambda g, x, m, n: (
        lambda h: loop(g, few(g, n), [g.Mul(x, 0.5)], lambda b, i, s: [b.Add(h, s)])
    )(g.linear(g.Relu(g.linear(x, D, WIDE)), WIDE)),
    "relu_in_body": lambda g, x, m, n: (
        lambda h: loop(g, few(g, n), [x], lambda b, i, s: [b.Add(s, b.Relu(h))])
    )(g.linear(g.Relu(g.linear(x, D, WIDE)), WIDE)),
    "relu_in_body_too": lambda g, x, m, n: (
        lambda h: [
            g.linear(g.Relu(h), WIDE),
            *loop(g, few(g, n), [x], lambda b, i, s: [b.Add(s, b.Slice(h, [0], [D], [2]))]),
        ]
    )(g.linear(x, D, WIDE)),
    "bias_in_scan": lambda g, x, m, n: (
        lambda h: [
            g.Scan(
                x,
                body=g.body(
                    lambda b, row: [b.Add(row, b.ReduceMean(h, keepdims=0))], [("row", F, ("s", D))]
                ),
                num_scan_inputs=1,
            )
        ]
    )(g.linear(g.Mul(g.mlp(x), gate(g, m)))),
    "scan_over_product": lambda g, x, m, n: [
        g.Scan(
            g.Mul(g.mlp(x), gate(g, m)),
            body=g.body(lambda b, row: [b.Relu(row)], [("row", F, ("s", D))]),
            num_scan_inputs=1,
        )
    ],
    "scan_over_mask": lambda g, x, m, n: [
        g.Mul(
            g.mlp(x),
            g.Unsqueeze(
                g.Scan(
                    m,
                    body=g.body(
                        lambda b, row: [b.Sub(1.0, b.cast(row, F))], [("row", INT, ("s",))]
                    ),
                    num_scan_inputs=1,
                ),
                [2],
            ),
        )
    ],
    "branch_reads_product": lambda g, x, m, n: (
        lambda h: [either(g, m, lambda b: b.Relu(h), lambda b: b.Add(h, x))]
    )(g.linear(g.Mul(g.mlp(x), gate(g, m)))),
    "branch_adds": lambda g, x, m, n: (
        lambda h: [either(g, m, lambda b: b.Add(h, x), lambda b: b.Identity(x))]
    )(g.linear(g.mlp(x))),
    "branch_holds_product": lambda g, x, m, n: [
        either(
            g, m, lambda b: b.Mul(b.mlp(x), gate(b, m)), lambda b: b.Mul(b.mlp(x, 4), gate(b, m))
        )
    ],
    "branch_of_masks": lambda g, x, m, n: [
        g.Mul(g.mlp(x), either(g, m, lambda b: gate(b, m), lambda b: b.Sub(1.0, gate(b, m))))
    ],
    "branch_of_mask_only": lambda g, x, m, n: [
        g.Mul(g.mlp(x), either(g, m, lambda b: gate(b, m), lambda b: b.Add(gate(b, m), 1.0)))
    ],
    "branch_masks_softmax": lambda g, x, m, n: [
        attention(
            g,
            x,
            x,
            lambda g, raw: soft(
                g,
                g.Add(
                    g.Add(raw, low(g, m)),
                    either(
                        g,
                        m,
                        lambda b: low(b, m),
                        lambda b: b.Mul(b.Sub(0.0, b.cast(outer(b, m), F)), 1e4),
                    ),
                ),
            ),
        )
    ],
    "loop_masks_softmax": lambda g, x, m, n: [
        attention(
            g,
            x,
            x,
            lambda g, raw: soft(
                g,
                g.Add(
                    g.Add(raw, low(g, m)),
                    loop(
                        g,
                        few(g, n),
                        [g.Mul(low(g, m), 0.0)],
                        lambda b, i, s: [b.Mul(b.cast(outer(b, m), F), -1e4)],
                        shapes=[("b", 1, 1, "s")],
                    )[0],
                ),
            ),
        )
    ],
    "loop_carries_mask": lambda g, x, m, n: [
        g.Mul(
            g.mlp(x),
            loop(
                g, few(g, n), [gate(g, m)], lambda b, i, s: [b.Sub(1.0, s)], shapes=[("b", "s", 1)]
            )[0],
        )
    ],
    "loop_carries_int_mask": lambda g, x, m, n: [
        g.Mul(
            g.mlp(x),
            gate(
                g,
                loop(
                    g,
                    few(g, n),
                    [m],
                    lambda b, i, s: [b.Sub(b.const(1, INT), s)],
                    [INT],
                    [("b", "s")],
                )[0],
            ),
        )
    ],
    "loop_grows_mask": lambda g, x, m, n: [
        g.Mul(
            g.mlp(x),
            loop(
                g, few(g, n), [gate(g, m)], lambda b, i, s: [b.Add(s, 1.0)], shapes=[("b", "s", 1)]
            )[0],
        )
    ],
    "loop_of_layers": lambda g, x, m, n: loop(
        g, few(g, n), [x], lambda b, i, s: [b.Mul(b.Add(s, b.mlp(s)), gate(b, m))]
    ),
    "loop_of_attention": lambda g, x, m, n: loop(
        g, few(g, n), [x], lambda b, i, s: [seen(b, s, m)]
    ),
    "loop_mask_inside": lambda g, x, m, n: loop(
        g, few(g, n), [x], lambda b, i, s: [b.Mul(b.mlp(s), b.cast(b.Less(s, 0.0), F))]
    ),
    "loop_mask_carried": lambda g, x, m, n: loop(
        g,
        few(g, n),
        [x, gate(g, m)],
        lambda b, i, s, k: [b.Mul(b.mlp(s), k), b.Sub(1.0, k)],
        shapes=[STATE, ("b", "s", 1)],
    )[:1],
    "loop_mask_by_trip": lambda g, x, m, n: loop(
        g,
        few(g, n),
        [x],
        lambda b, i, s: [
            b.Mul(b.mlp(s), b.cast(b.Equal(b.Unsqueeze(m, [2]), b.Mod(i, b.const(2, INT))), F))
        ],
    ),
    "loop_scans": lambda g, x, m, n: loop(
        g,
        few(g, n),
        [x],
        lambda b, i, s: [b.Mul(b.mlp(s), gate(b, m)), b.ReduceMean(s, keepdims=0)],
        scans=1,
    ),
    "loop_reads_outer_packed": lambda g, x, m, n: (
        lambda h: loop(
            g, few(g, n), [x], lambda b, i, s: [b.Mul(b.mlp(b.Add(s, h), 2), gate(b, m))]
        )
    )(g.Mul(g.mlp(x), gate(g, m))),
    "loop_nested": lambda g, x, m, n: loop(
        g,
        few(g, n),
        [x],
        lambda b, i, s: loop(b, few(b, n), [s], lambda c, j, t: [c.Mul(c.mlp(t), gate(c, m))]),
    ),
    "loop_in_branch": lambda g, x, m, n: [
        either(
            g,
            m,
            lambda b: loop(b, few(b, n), [x], lambda c, j, t: [c.Mul(c.mlp(t), gate(c, m))])[0],
            lambda b: b.Neg(x),
        )
    ],
    "branch_in_loop": lambda g, x, m, n: loop(
        g,
        few(g, n),
        [x],
        lambda b, i, s: [
            b.If(
                b.Less(i, b.const(1, INT)),
                then_branch=b.body(lambda c: [c.Mul(c.mlp(s), gate(c, m))]),
                else_branch=b.body(lambda c: [c.Add(s, 1.0)]),
            )
        ],
    ),
    "branches_nested": lambda g, x, m, n: [
        either(
            g,
            m,
            lambda b: either(b, m, lambda c: c.Mul(c.mlp(x), gate(c, m)), lambda c: c.Neg(x)),
            lambda b: b.Mul(b.mlp(x, 2), gate(b, m)),
        )
    ],
    "branches_share": lambda g, x, m, n: (
        lambda h: [either(g, m, lambda b: b.mlp(h, 2), lambda b: b.Mul(b.mlp(h, 2), 2.0))]
    )(g.Mul(g.mlp(x), gate(g, m))),
    "loop_counts": lambda g, x, m, n: [
        g.Mul(g.mlp(x), g.cast(g.Equal(g.Unsqueeze(m, [2]), g.Mod(n, g.const(2, INT))), F))
    ],
    "loop_until": lambda g, x, m, n: [
        g.several(
            "Loop",
            1,
            g.const(5, INT),
            g.const(True, B),
            x,
            body=g.body(
                lambda b, i, going, s: [
                    b.Less(b.Add(i, b.const(1, INT)), n),
                    b.Mul(b.mlp(s), gate(b, m)),
                ],
                [("iu", INT, ()), ("gu", B, ()), ("su", F, STATE)],
                [B, F],
            ),
        )[0]
    ],
    "loop_never": lambda g, x, m, n: [
        g.several(
            "Loop",
            1,
            g.const(5, INT),
            g.Less(g.const(2, INT), n),
            x,
            body=g.body(
                lambda b, i, going, s: [b.Identity(going), b.Mul(b.mlp(s), gate(b, m))],
                [("iv", INT, ()), ("gv", B, ()), ("sv", F, STATE)],
                [B, F],
            ),
        )[0]
    ],
    "loop_twice_known": lambda g, x, m, n: loop(
        g, g.const(2, INT), [x], lambda b, i, s: [b.Mul(b.mlp(s), gate(b, m))]
    ),
    "loop_none_known": lambda g, x, m, n: (
        [
            *loop(g, g.const(0, INT), [x], lambda b, i, s: [b.Mul(b.mlp(s), gate(b, m))]),
            g.Mul(g.mlp(x), gate(g, m)),
        ]
    ),
    "loop_minus_known": lambda g, x, m, n: (
        [
            *loop(g, g.const(-2, INT), [x], lambda b, i, s: [b.Mul(b.mlp(s), gate(b, m))]),
            g.Mul(g.mlp(x), gate(g, m)),
        ]
    ),
    "loop_known_scan": lambda g, x, m, n: loop(
        g,
        g.const(3, INT),
        [x],
        lambda b, i, s: [b.Mul(b.mlp(s), gate(b, m)), b.ReduceMean(s, keepdims=0)],
        scans=1,
    ),
    "loop_by_size": lambda g, x, m, n: loop(
        g, g.size(x, 1), [x], lambda b, i, s: [b.Mul(b.mlp(s), gate(b, m))]
    ),
    "loop_by_size_less": lambda g, x, m, n: loop(
        g, g.Sub(g.size(x, 1), g.const(4, INT)), [x], lambda b, i, s: [b.Mul(b.mlp(s), gate(b, m))]
    ),
    "loop_state_unused": lambda g, x, m, n: (
        [
            *loop(
                g,
                few(g, n),
                [x, g.Mul(g.mlp(x), gate(g, m))],
                lambda b, i, s, t: [b.Add(s, 1.0), t],
            )[:1],
            g.Mul(g.mlp(x, 3), gate(g, m)),
        ]
    ),
    "loop_swaps": lambda g, x, m, n: loop(
        g, few(g, n), [x, g.Mul(g.mlp(x), gate(g, m))], lambda b, i, s, t: [t, s]
    ),
    "loop_infinite_state": lambda g, x, m, n: [
        g.Mul(loop(g, few(g, n), [x], lambda b, i, s: [b.Reciprocal(b.Mul(s, 0.0))])[0], gate(g, m))
    ],
    "body_reads_relu_zeros": lambda g, x, m, n: (
        lambda h: loop(g, few(g, n), [x], lambda b, i, s: [b.linear(h, WIDE)])
    )(g.Relu(g.linear(x, D, WIDE))),
    "scan_carries": lambda g, x, m, n: g.several(
        "Scan",
        2,
        g.ReduceSum(x, [0], keepdims=0),
        g.Mul(g.mlp(x), gate(g, m)),
        body=g.body(
            lambda b, s, row: [b.Add(s, row), b.Sub(s, row)],
            [("sc", F, ("s", D)), ("row", F, ("s", D))],
        ),
        num_scan_inputs=1,
    ),
    "scan_reversed": lambda g, x, m, n: [
        g.Mul(
            g.mlp(x),
            g.Unsqueeze(
                g.Scan(
                    m,
                    body=g.body(lambda b, row: [b.cast(row, F)], [("rr", INT, ("s",))]),
                    num_scan_inputs=1,
                    scan_input_directions=[1],
                ),
                [2],
            ),
        )
    ],
    "scan_of_layers": lambda g, x, m, n: [
        g.Scan(
            x,
            m,
            body=g.body(
                lambda b, row, k: [b.Mul(b.mlp(row), b.cast(b.Unsqueeze(k, [1]), F))],
                [("rx", F, ("s", D)), ("rk", INT, ("s",))],
            ),
            num_scan_inputs=2,
        )
    ],
}
for _name, _make in MAKES.items():
    SCOPES.add(_name, lambda f=_make: _probe(f))


@SCOPES.probe()
def shadowed_names() -> Probe:
    """Two bodies use the same names for other things, one that of a later value outside."""
    g = Net(17)
    x, m = g.input("x", F, STATE), g.input("mask", INT, ("b", "s"))
    y = g.Mul(g.mlp(x), gate(g, m))

    def branch(sign: float) -> Any:
        def make(b: Net) -> list[str]:
            t = b.Mul(y, sign)
            return [b.Mul(b.mlp(t, 3), gate(b, m))]

        return make

    bodies = [g.body(branch(s)) for s in (1.0, -1.0)]
    names = {o: f"shared_{k}" for k, o in enumerate(o for n in bodies[0].node for o in n.output)}
    others = {o: f"shared_{k}" for k, o in enumerate(o for n in bodies[1].node for o in n.output)}
    for body, table in zip(bodies, (names, others), strict=True):
        for node in body.node:
            node.name = table[node.output[0]]
            node.input[:] = [table.get(i, i) for i in node.input]
            node.output[:] = [table[o] for o in node.output]
        body.output[0].name = table[body.output[0].name]
    holds = g.Less(g.ReduceSum(m, keepdims=0), g.const(4, INT))
    g.out(g.If(holds, then_branch=bodies[0], else_branch=bodies[1]))
    feeds = [
        {"x": normal(2, 5, D, seed=k), "mask": (rng_of(k).random((2, 5)) < p).astype(INT)}
        for k, p in enumerate((0.2, 0.9))
    ]
    return Probe(g.model(), feeds)
