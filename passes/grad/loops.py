"""Adjoints of Loop and Scan: the trips backwards, from the last one to the first.

    forward:   s[t+1], y[t] = f(s[t], x[t], w), and the s[t] that are needed, stacked
    backward:  gs[t], gx[t] = of f at s[t], from gs[t+1] and gy[t]; gw = the sum of those of w

The body of the backward way computes again what it needs of a trip.
"""

import numpy as np
import onnx_ir as ir

from pitc.ir.build import NodeMaker
from pitc.ir.graph import NoRule
from pitc.passes.grad.inner import open_body, typed
from pitc.passes.grad.signatures import BOOL, INT64, SIGNATURES, Slicing
from pitc.passes.grad.site import Site, Wrt
from pitc.passes.grad.trip import Trip, backwards, record
from pitc.passes.rules.record import key_of


def trips(site: Site) -> dict[Wrt, ir.Value]:
    """Of Loop: the gradients of what it starts from and captures.

    Raises:
        NoRule: A value that a trip needs may change its shape, so that it cannot be stacked.
    """
    trip = _opened(site)
    if not trip.sums:
        return {}
    build, inner = site.build, trip.inner
    number = typed(ir.Value(name=build.unique("trip")), INT64, ())
    go_on = typed(ir.Value(name=build.unique("go")), BOOL, ())
    inner.prune([typed(inner.result(go_on), BOOL, ()), *trip.given])
    places = sorted({0, *trip.used()})  # the numbers tell how many trips there were
    for place in places:
        if trip.signature.given[place][1] is None:
            raise NoRule(
                f"its backward way needs '{inner.inputs[place].name}' of each trip, whose shape "
                "may change from trip to trip"
            )
    stacks = record(site, places)
    count = build.op("Gather", [build.op("Shape", stacks[:1]), build.constant(np.int64(0))], axis=0)
    last = build.op("Sub", [count, build.constant(np.int64(1))])
    front = NodeMaker(inner.model.graph, build.names, inner.model.graph[0])
    trip_now = front.add("Sub", [last, number], {}, [build.unique("trip")])[0]
    pairs = [(inner.inputs[p], stack) for p, stack in zip(places, stacks, strict=True)]
    for x, stack in (*pairs, *((x, g) for x, g, _ in trip.written)):
        if x.uses():
            name = build.unique("slice")
            y = front.add("Gather", [stack, trip_now], {"axis": 0}, [name])[0]
            x.replace_all_uses_with(y)
    bodies = {"body": inner.close([number, go_on, *trip.taken])}
    stems = ["loop"] * len(trip.sums)
    return trip.asked(build.node("", "Loop", [count, None, *trip.start()], bodies, stems))


def scan(site: Site) -> dict[Wrt, ir.Value]:
    """Of Scan: the gradients of what it starts from, reads slice by slice, and captures.

    Raises:
        NoRule: A rank is unknown, which ONNX Runtime asks for.
    """
    trip = _opened(site)
    if not (trip.sums or trip.slices):
        return {}
    node, inner, kept = site.view.node, trip.inner, trip.signature.states
    slicings = [*[Slicing()] * kept, *trip.signature.read]
    results = [*trip.given, *trip.slices.values()]
    if any(x.shape is None for x in results):
        raise NoRule("the rank of what its body takes is unknown")
    inner.prune(results)
    used = trip.used()
    states = [p for p in used if p < kept]
    stacks = dict(zip(states, record(site, states), strict=True))
    if not used:
        used = [kept]  # it tells how many trips there are
    scanned = [(inner.inputs[p], stacks.get(p, node.inputs[p]), slicings[p]) for p in used]
    scanned += [(x, g, slicing) for x, g, slicing in trip.written if x.uses()]
    attributes = {
        "body": inner.close([*trip.taken, *(x for x, _, _ in scanned)]),
        "num_scan_inputs": len(scanned),
        **_listed("input", [slicing.reverse for _, _, slicing in scanned]),
        **_listed("output", [slicings[p].reverse for p in trip.slices]),
    }
    inputs = [*trip.start(), *(x for _, x, _ in scanned)]
    stems = ["scan"] * (len(trip.sums) + len(trip.slices))
    found = site.build.node("", "Scan", inputs, attributes, stems)
    return trip.asked(found) | dict(zip(trip.slices, found[len(trip.sums) :], strict=True))


def _opened(site: Site) -> Trip:
    node = site.view.node
    signature = SIGNATURES[key_of(node)](site.view.graph, node)
    return backwards(open_body(site, node.attributes["body"].as_graph(), signature), signature)


def _listed(kind: str, slicings: list[Slicing]) -> dict[str, list[int]]:
    if not slicings:
        return {}
    return {
        f"scan_{kind}_axes": [slicing.axis for slicing in slicings],
        f"scan_{kind}_directions": [slicing.back for slicing in slicings],
    }
