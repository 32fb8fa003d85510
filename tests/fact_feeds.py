"""Random inputs for audits: masks padded right or left, with holes, with an empty sequence."""

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import numpy as np

from pitc.check.feeds import sizes_of
from pitc.ir.expr import Shape
from pitc.ir.graph import Array, Graph

Pattern = Literal["right", "left", "holes", "full", "mixed"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
DEFAULT_SIZES = (3, 7, 4, 5)  # for the symbols in order of appearance
SHARE = 0.6  # of live places where there is no order
TOP_INDEX = 16  # integers are token or expert numbers: below every table's size that tests use
FILL = -1e9


def mask_pattern(shape: tuple[int, ...], pattern: Pattern, rng: np.random.Generator) -> Array:
    """A mask of 0 and 1.

    Args:
        shape: Its shape; the last dimension is the sequence.
        pattern: Padding on the right or left, `holes` anywhere with one quite empty row, or none;
            `mixed` is any of these, so that two masks may have different ones.
        rng: Random source.

    Returns:
        int64 array.
    """
    if pattern == "mixed":
        pattern = PATTERNS[int(rng.integers(len(PATTERNS) - 1))]
    mask = np.zeros(shape, np.int64)
    if not mask.size or pattern == "full":
        return mask + 1
    rows = mask.reshape(-1, shape[-1]) if shape else mask.reshape(1, 1)
    for row in rows:
        n = int(rng.integers(1, len(row) + 1))
        if pattern == "right":
            row[:n] = 1
        elif pattern == "left":
            row[-n:] = 1
        else:
            row[:] = rng.random(len(row)) < SHARE
    if pattern == "holes" and len(rows) > 2:
        rows[-1] = 0
    return mask


def random_feeds(
    graph: Graph,
    mask: str | None,
    *,
    patterns: tuple[Pattern, ...] = PATTERNS,
    sizes: Mapping[str, int] | None = None,
    top_index: int = TOP_INDEX,
    seed: int = 0,
) -> Iterator[dict[str, Array]]:
    """One set of inputs per pattern.

    Args:
        graph: The graph; inputs of unknown rank are left out.
        mask: Name of the padding mask. Inputs with `mask` in their name are masks too.
        patterns: Mask patterns.
        sizes: Numbers for the size symbols; small different ones by default.
        top_index: Integer inputs lie below it.
        seed: Random seed.
    """
    known = symbol_sizes(graph, sizes or {})
    for number, pattern in enumerate(patterns):
        rng = np.random.default_rng((seed, number))
        feed = {}
        for name in graph.inputs:
            shape = graph[name].shape
            if shape is not None and graph[name].dtype is not None:
                dims = tuple(int(p.evaluate(known, {})) for p in shape)
                is_mask = name == mask or "mask" in name.lower()
                feed[name] = _array(graph, name, dims, pattern if is_mask else None, top_index, rng)
        yield feed


def symbol_sizes(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """A number for every size symbol of the inputs; sums and their parts agree."""
    shapes: list[Shape] = [s for n in graph.inputs if (s := graph[n].shape) is not None]
    symbols = list(dict.fromkeys(x for s in shapes for p in s for x in sorted(p.symbols())))
    return sizes_of(symbols, sizes, DEFAULT_SIZES * len(symbols))


def _array(
    graph: Graph,
    name: str,
    dims: tuple[int, ...],
    pattern: Pattern | None,
    top_index: int,
    rng: np.random.Generator,
) -> Array:
    dtype = graph.dtype(name)
    if pattern is not None:
        mask = mask_pattern(dims, pattern, rng)
        added = any(n.op_type == "Add" for n in graph[name].uses)
        if dtype.kind == "f" and added:
            return np.where(mask, 0, FILL).astype(dtype)
        return mask.astype(dtype)
    if dtype.kind == "b":
        return rng.random(dims) < SHARE
    if dtype.kind in "iu":
        return rng.integers(0, top_index, dims).astype(dtype)
    return rng.normal(size=dims).astype(dtype)
