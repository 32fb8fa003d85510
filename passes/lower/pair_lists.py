"""The node that lists which keys queries see, and what it reads.

    hidden: k - q - 1 >= 0                          Pairs(positions=1, regions=1)(.., [[-1, 1, -1]])
    hidden: q - k - w >= 0 and mask[b, q] != 0      Pairs(positions=1, queries=1, regions=3)(..)

Flags say where tests do *not* all hold, as a live mask does.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.index import Poly
from pitc.ir.plans.ops import Pairs
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import live_points
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.pairs import Hidden, numbered_tests


def pair_lists(
    build: Builder,
    graph: Graph,
    points: Sequence[ir.Value],
    hidden: Sequence[Hidden],
    rank: int,
    number: int,
) -> dict[str, ir.Value]:
    """Add the node.

    Args:
        build: Where nodes go.
        graph: The analysed graph.
        points: Offsets of queries and of keys, and coordinates of both.
        hidden: The pairs that are in no list.
        rank: How many coordinates a query has, and a key.
        number: How many such nodes there are.

    Returns:
        Its outputs, by name.
    """
    tests, inputs = numbered_tests(hidden), list(points)
    if tests["positions"]:
        lines = (p for p in tests["positions"] if isinstance(p, Poly))
        numbers = [x for p in lines for x in _line(build, p)]
        inputs.append(build.reshape(build.concat(numbers), [len(tests["positions"]), 3]))
    for kind in ("keys", "queries", "pairs"):
        domains = (d for d in tests[kind] if isinstance(d, Domain))
        rows = [build.unsqueeze(live_points(build, graph, d), 0) for d in domains]
        if rows:
            inputs.append(rows[0] if len(rows) == 1 else build.op("Concat", rows, axis=0))
    first, starts = 0, dict[str, int]()
    for kind, found in tests.items():
        starts[kind], first = first, first + len(found)
    regions = tuple(
        sum(1 << starts["positions"] + tests["positions"][p] for p in each.positions)
        + sum(1 << starts[kind] + tests[kind][domain] for kind, domain in each.points)
        for each in hidden
    )
    plan = Pairs(rank=rank, regions=regions, **{kind: len(found) for kind, found in tests.items()})
    stems = ("listed_keys", "query_tiles", "listed_queries")
    many, tiles, rows = (build.symbol(f"{stem}_{number}") for stem in stems)
    dims: dict[str, list[int | str | None]] = {
        "keys": [many],
        "seen_by": [many],
        "tiles": [tiles, 3],
        "order": [rows],
    }
    name = min((s for each in hidden for s in each.sources), default="positions")
    outputs = [(output, ir.DataType.INT32, size) for output, size in dims.items()]
    return dict(zip(dims, build.kernel(plan, inputs, outputs, name), strict=True))


def _line(build: Builder, line: Poly) -> Iterator[ir.Value]:
    """The factor of the query's position, of the key's, and what is added, each int64 [1]."""
    factors, rest = [0, 0], line
    for monomial, factor in line.terms.items():
        for digit in Poly({monomial: factor}).digits():
            factors[digit.dim] = factor
            rest = rest - Poly({monomial: factor})
    yield from (build.constant(np.array([x], np.int64)) for x in factors)
    yield build.size(rest)
