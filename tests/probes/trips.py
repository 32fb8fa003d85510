"""Loops whose bodies look at the shapes of the trip's number and of the condition."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from tests.probes.build import D, Feed, Net, Probe, Table, normal
from tests.probes.scopes import gate
from tests.probes.sizes import mask_of, number

TRIPS = Table("trips")
INT, F, B = np.int64, np.float32, np.bool_
STATE = ("b", "s", D)
Shape = Sequence[Any] | None


def _probe(
    step: Callable[[Net, str, str, str, str], Sequence[str]],
    trips: int = 0,
    number_shape: Shape = (),
    condition_shape: Shape = (),
    given: Shape = (),
) -> Probe:
    """A loop over step(b, i, going, state, mask), which gives the condition and the state.

    Args:
        step: Builds the body.
        trips: How often it runs; 0 for as often as there are tokens, which no rule knows.
        number_shape: What the body declares of the trip's number.
        condition_shape: And of the condition.
        given: Shape of the condition that the loop gets; None for none.
    """
    g = Net(17)
    x, m = g.input("x", F, STATE), g.input("mask", INT, ("b", "s"))
    inputs = [("i", INT, number_shape), ("going", B, condition_shape), ("state", F, STATE)]
    body = g.body(lambda b, i, going, s: step(b, i, going, s, m), inputs, [B, F])
    count = number(g, trips) if trips else g.Gather(g.Shape(x), number(g, 1))
    condition = "" if given is None else g.const(np.ones(given, B), B)
    g.out(g.Loop(count, condition, g.mlp(x), body=body))
    feeds: list[Feed] = [
        {"x": normal(2, s, D, seed=s), "mask": mask_of(2, s, s)} for s in (0, 1, 4)
    ]
    return Probe(g.model(), feeds)


def _rank(b: Net, x: str) -> str:
    return b.cast(b.Size(b.Shape(x)), F)


def _step(b: Net, s: str, m: str, factor: str) -> str:
    return b.Add(s, b.Mul(b.Mul(b.mlp(s, 2), gate(b, m)), factor))


def _by_rank(b: Net, i: str, going: str, s: str, m: str) -> Sequence[str]:
    """What the body computes depends on both ranks."""
    return [b.Identity(going), _step(b, s, m, b.Add(_rank(b, i), b.Mul(_rank(b, going), 0.5)))]


def _by_branch(b: Net, i: str, going: str, s: str, m: str) -> Sequence[str]:
    """A branch is taken by the number's rank."""
    flat = b.Equal(b.Size(b.Shape(i)), number(b, 0))
    one, other = (b.body(lambda q, f=f: [q.Mul(s, f)]) for f in (0.5, 0.25))
    return [
        b.Identity(going),
        _step(b, b.If(flat, then_branch=one, else_branch=other), m, b.const(1.0)),
    ]


def _unsqueezed(b: Net, i: str, going: str, s: str, m: str) -> Sequence[str]:
    """An axis that only a number of shape [1] has."""
    return [b.Identity(going), _step(b, s, m, b.cast(b.Unsqueeze(i, [1]), F))]


def _wider(b: Net, i: str, going: str, s: str, m: str) -> Sequence[str]:
    """The condition has one dimension more in the second trip, when it is a scalar in the first."""
    on = b.const(np.ones(1, B), B)
    return [on, _step(b, s, m, b.Add(_rank(b, going), 1.0))]


for _trips, _shape in product((0, 1, 3), ((), (1,), ("one",))):
    _name = f"{_trips}_{'x'.join(map(str, _shape)) or 'scalar'}"
    for _made in (_by_rank, _by_branch, _unsqueezed)[: 3 if _shape else 2]:
        TRIPS.add(
            f"{_made.__name__[1:]}.{_name}",
            lambda m=_made, t=_trips, s=_shape: _probe(m, t, s),
        )
for _trips, (_declared, _given) in product(
    (0, 3), (((), ()), (None, (1,)), ((1,), (1,)), ((1,), None), (None, (1, 1)))
):
    for _made in (_by_rank, _wider):
        TRIPS.add(
            f"{_made.__name__[1:]}.condition_{_trips}_{_declared}_{_given}",
            lambda m=_made, t=_trips, d=_declared, g=_given: _probe(m, t, (), d, g),
        )


def _named(name: str) -> Probe:
    """Two loops write slices of other lengths, and call both by one name; a branch tells."""
    g = Net(17)
    x, m = g.input("x", F, STATE), g.input("mask", INT, ("b", "s"))
    y, parts = g.Mul(g.mlp(x), gate(g, m)), []
    for rows in (2, 3):
        body = g.body(
            lambda b, i, going, s, r=rows: [going, s, b.Slice(y, [0], [r], [1])],
            [(f"i{rows}", INT, ()), (f"going{rows}", B, ()), (f"state{rows}", F, STATE)],
            [B, F, F],
        )
        shape = body.output[2].type.tensor_type.shape
        shape.dim.add(dim_param="b")
        shape.dim.add(dim_param=name)
        shape.dim.add(dim_value=D)
        trips = g.Gather(g.Shape(x), number(g, 0))
        slices = g.several("Loop", 2, trips, "", x, body=body)[1]
        parts.append(g.ReduceSum(slices, g.const([0], INT), keepdims=0))
    lengths = [g.Gather(g.Shape(part), number(g, 1)) for part in parts]
    either = [g.body(lambda b, v=v: [b.Mul(g.value(v), 2.0)]) for v in parts]
    chosen = g.If(g.Equal(*lengths), then_branch=either[0], else_branch=either[1])
    g.out(g.linear(chosen), shape=(None, None, D))
    return Probe(
        g.model(), [{"x": normal(2, 5, D, seed=k), "mask": mask_of(2, 5, k)} for k in (0, 1)]
    )


for _name in ("n", "s", "?1"):
    TRIPS.add(f"named.{_name}", lambda n=_name: _named(n))
