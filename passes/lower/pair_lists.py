"""The node that lists which keys queries see, and what it reads.

    hidden: k - q - 1 >= 0             Pairs(positions=1, program=[leaf 0, not])(.., [[-1, 1, -1]])
    hidden: q - k - w >= 0 and mask[b, q] != 0
                                       Pairs(positions=1, queries=1, program=[leaf 0, leaf 1, and,
                                             not])(..)

Flags say where tests do *not* all hold, as a live mask does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Poly
from pitc.ir.plans.ops import Pairs
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import live_points, table
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.pairs import block_sizes, numbered_leaves, program, tests_of
from pitc.passes.regions.sight import Compared, Condition, Dead, Numbers, Positions, sources


def test_operands(
    build: Builder, graph: Graph, hidden: Sequence[Condition], extents: Shape
) -> dict[str, ir.Value]:
    """Add nodes that make what tests look at.

    Args:
        build: Where nodes go.
        graph: The analysed graph.
        hidden: The pairs that are left out.
        extents: Of the coordinates that queries and keys share, of queries, and of keys.

    Returns:
        The operands of a plan, by name, in order.
    """
    found, made = numbered_leaves(hidden), dict[str, ir.Value]()
    lines = [leaf.line for leaf in found["positions"] if isinstance(leaf, Positions)]
    if lines:
        parts = [x for line in lines for x in _line(build, line)]
        made["position_tests"] = build.reshape(build.concat(parts), [len(lines), 3])
    compared = [leaf for leaf in found["tables"] if isinstance(leaf, Compared)]
    if compared:
        lead = extents[:-2]
        for side, extent in (("query", extents[-2]), ("key", extents[-1])):
            of_side = (getattr(leaf, side) for leaf in compared)
            tables = [_table(build, graph, numbers, (*lead, extent)) for numbers in of_side]
            made[f"{side[0]}_tables"] = _stacked(build, tables)
    names = {"keys": "key_flags", "queries": "query_flags", "pairs": "pair_flags"}
    in_blocks = block_sizes(hidden) is not None
    for kind, name in names.items():
        dead = [leaf for leaf in found[kind] if isinstance(leaf, Dead)]
        domains = [x.blocks.domain if in_blocks and x.blocks else x.domain for x in dead]
        if domains:
            made[name] = _stacked(build, [live_points(build, graph, d) for d in _alike(domains)])
    return made


def pair_lists(
    build: Builder,
    graph: Graph,
    points: Sequence[ir.Value],
    hidden: Sequence[Condition],
    extents: Shape,
    number: int,
) -> dict[str, ir.Value]:
    """Add the node.

    Args:
        build: Where nodes go.
        graph: The analysed graph.
        points: Offsets of queries and of keys, and coordinates of both.
        hidden: The pairs that are in no list.
        extents: Of the coordinates that queries and keys share, of queries, and of keys.
        number: How many such nodes there are.

    Returns:
        Its outputs, by name.
    """
    tests, sizes = tests_of(hidden), block_sizes(hidden) or (None, None)
    inputs = [*points, *test_operands(build, graph, hidden, extents).values()]
    plan = Pairs(
        rank=max(len(extents) - 1, 1),
        program=program(hidden),
        q_block=sizes[0],
        k_block=sizes[1],
        **asdict(tests),
    )
    stems = ("listed_keys", "query_tiles", "listed_queries")
    many, tiles, rows = (build.symbol(f"{stem}_{number}") for stem in stems)
    dims: dict[str, list[int | str | None]] = {
        "keys": [many],
        "seen_by": [many],
        "tiles": [tiles, 3],
        "order": [rows],
    }
    name = min((s for each in hidden for s in sources(each)), default="positions")
    outputs = [(output, ir.DataType.INT32, size) for output, size in dims.items()]
    return dict(zip(dims, build.kernel(plan, inputs, outputs, name), strict=True))


def _table(build: Builder, graph: Graph, numbers: Numbers, extents: Shape) -> ir.Value:
    """Numbers of queries or keys, int64 of these extents."""
    total: ir.Value | None = None
    for test, factor in numbers.terms:
        term = table(build, graph, test, extents)
        if factor != 1:
            term = build.op("Mul", [term, build.constant(np.array(factor, np.int64))])
        total = term if total is None else build.op("Add", [total, term])
    assert total is not None
    if numbers.constant:
        total = build.op("Add", [total, build.constant(np.array(numbers.constant, np.int64))])
    is_element = not numbers.constant and [n for _, n in numbers.terms] == [1]
    if not is_element and numbers.dtype != np.int64:  # it wraps around as the model's does
        narrow = build.op("Cast", [total], to=ir.DataType.from_numpy(numbers.dtype))
        total = build.op("Cast", [narrow], to=ir.DataType.INT64)
    return total


def _alike(domains: Sequence[Domain]) -> list[Domain]:
    """Domains of one shape: those of few sequences are said of as many as the others."""
    of_dims = zip(*(d.extents for d in domains), strict=True)
    extents = tuple(max(of_dim, key=lambda extent: extent != ONE) for of_dim in of_dims)
    return [Domain(extents, d.dead) for d in domains]


def _stacked(build: Builder, values: Sequence[ir.Value]) -> ir.Value:
    """Values of one shape as one value, along a first axis."""
    rows = [build.unsqueeze(value, 0) for value in values]
    return rows[0] if len(rows) == 1 else build.op("Concat", rows, axis=0)


def _line(build: Builder, line: Poly) -> Iterator[ir.Value]:
    """The factor of the query's position, of the key's, and what is added, each int64 [1]."""
    factors, rest = [0, 0], line
    for monomial, factor in line.terms.items():
        for digit in Poly({monomial: factor}).digits():
            factors[digit.dim] = factor
            rest = rest - Poly({monomial: factor})
    yield from (build.constant(np.array([x], np.int64)) for x in factors)
    yield build.size(rest)
