"""Adjoints of control flow: of If here, of Loop and Scan in `loops`.

    y = If(c) { f(x, w) } { g(x) }   ->   dx, dw = If(c) { of f } { of g, 0 }

A branch of the backward way computes again what it needs of the branch that ran.
"""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from pitc.ir.branch import BODIES
from pitc.ir.graph import NoRule
from pitc.passes.grad.inner import Inner, known_type, open_body, typed
from pitc.passes.grad.loops import scan, trips
from pitc.passes.grad.signatures import Signature
from pitc.passes.grad.site import Site, Wrt
from pitc.passes.rules.record import Key


def branches(site: Site) -> dict[Wrt, ir.Value]:
    """Of If: the gradients of what its branches capture, 0 of what one of them does not use."""
    node = site.view.node
    opened = {
        side: open_body(site, node.attributes[side].as_graph(), Signature()) for side in BODIES
    }
    found = {side: _of_branch(site, inner) for side, inner in opened.items()}
    names = [n for n in site.captured if any(n in each for each in found.values())]
    if not names:
        return {}
    sides = {}
    for side, inner in opened.items():
        results = []
        for name in names:
            dtype = known_type(site.view.graph, name)
            g = found[side].get(name)
            g = inner.build.zeros_like(site.outer(name), dtype) if g is None else g
            results.append(typed(inner.result(g), dtype, site.view.graph[name].shape))
        inner.prune(results)
        sides[side] = inner.close([])
    values = site.build.node("", "If", [node.inputs[0]], sides, ["if"] * len(names))
    return dict(zip(names, values, strict=True))


def _of_branch(site: Site, inner: Inner) -> dict[str, ir.Value]:
    outputs = inner.graph.outputs
    if len(outputs) != len(site.gradients):
        raise NoRule("it has more, or fewer, results than its branches")
    pairs = zip(outputs, site.gradients, strict=True)
    return inner.gradients({y: g for y, g in pairs if g is not None}, site.captured)


#: Operators whose bodies have the derivatives. They have no records: nothing else is known of them.
CONTROL: Mapping[Key, Callable[[Site], Mapping[Wrt, ir.Value]]] = {
    ("", "If"): branches,
    ("", "Loop"): trips,
    ("", "Scan"): scan,
}
