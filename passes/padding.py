"""The padding contract: which outputs have no meaning at tokens whose mask is 0.

An output is *token-shaped* when its first dimensions are those of the mask. A size symbol tells
that by its name. A number tells nothing (a pooled `[2, 256]` is no `[batch, sequence]`), so there
the mask's axes must reach the output, along PIT axes from value to value:

    mask [2, 256] -> keys of scores [2, h, 256, 256] -> x [2, 256, 32] -> y [2, 256, 5]

So they do where an output has tokens elsewhere: keys and values of a cache are
`[batch, heads, sequence, size]`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.expr import Combine
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, ZERO, Digit, Poly, dim_index, nonneg
from pitc.ir.nodes import first_output, input_names
from pitc.ir.region import Region, Test
from pitc.passes.lower.given_up import can_be_zeroed
from pitc.passes.regions.coordinates import follow
from pitc.passes.regions.domain import Coords
from pitc.passes.regions.live_tests import OLDEST

EQUAL_ONLY = (
    "output '{name}' is left as it is: its first sizes equal those of '{mask}', but nothing shows "
    "that they are its batch and sequence; export the model with dynamic axes, each of its own name"
)
NO_ZERO = (
    "output '{name}' is left as it is: padded tokens of {kind} cannot be made 0; let the model "
    "give a tensor of numbers or bools to have them 0"
)


def check_padding(model: ir.Model, padding: str) -> None:
    """Refuse a padding mask that is not a two-dimensional number or bool input, and models that are
    too old to have the operators that zero an output.

    Args:
        model: The model as it was imported, or normalised.
        padding: Name of the mask input.

    Raises:
        UsageError: It cannot be one; the hint names the inputs that can.
    """
    version = model.opset_imports.get("", OLDEST)
    if version < OLDEST:
        raise UsageError(
            f"padding needs operator set {OLDEST} or newer, the model has {version}",
            hint="convert it with onnx.version_converter",
        )
    inputs = {value.name or "": value for value in model.graph.inputs}
    candidates = ", ".join(f"'{n}'" for n, value in inputs.items() if can_be_mask(value)) or "none"
    hint = f"inputs that can be a mask: {candidates}"
    if padding not in inputs:
        raise UsageError(f"padding mask '{padding}' is not an input of the model", hint=hint)
    value = inputs[padding]
    if not can_be_mask(value):
        dims = None if value.shape is None else [str(d) for d in value.shape]
        dtype = _numpy_dtype(value)
        raise UsageError(
            f"padding mask '{padding}' must be a [batch, sequence] tensor of numbers or bools, "
            f"found {dtype} of shape {dims if dims is not None else 'unknown'}",
            hint=hint,
        )


def can_be_mask(value: ir.Value) -> bool:
    """True for a two-dimensional value of numbers or bools, as it is declared."""
    dtype = _numpy_dtype(value)
    is_matrix = value.shape is not None and len(value.shape) == 2
    return is_matrix and dtype is not None and dtype.kind in "biuf"


def _numpy_dtype(value: ir.Value) -> np.dtype | None:
    """The element type of a tensor; None for what numpy does not know, and for no tensor."""
    if not isinstance(value.type, ir.TensorType) or value.dtype is None:
        return None
    try:
        return np.dtype(value.dtype.numpy())
    except TypeError:
        return None


def given_up(
    graph: Graph, padding: str | None, *, by_size: bool = False
) -> dict[str, list[Region]]:
    """The regions of each token-shaped output that have no meaning: where the mask is 0.

    Args:
        graph: The graph after `fill_facts`.
        padding: The padding mask input, or None.
        by_size: As of `analyse`.
    """
    shape = graph[padding].shape if padding is not None else None
    if padding is None or shape is None:
        return {}
    names = [n for n in _alike(graph, padding) if can_be_zeroed(graph[n].dtype)]
    proven = names if by_size else _token_shaped(graph, padding, names)
    index = tuple(dim_index(d, e) for d, e in enumerate(shape))
    found = {name: index for name in names if name in proven}
    for name, place in _tokens_inside(graph, padding):
        found.setdefault(name, place)
    return {
        name: [Region((Test(padding, found[name], "nz", False),))]
        for name in dict.fromkeys(graph.outputs)
        if name in found
    }


def _tokens_inside(graph: Graph, padding: str) -> Iterator[tuple[str, tuple[Poly, ...]]]:
    """Computed outputs that the mask's axes reach, and at which place of the mask their tokens lie:
    keys and values of a cache, and what is computed for the tokens that are appended to one.

        mask [b, p + s] -> keys [b, h, p + s, d] = Concat(past, x @ w) -> x [b, s] -> y [b, s, 5]
        keys at mask[d0, d2], y at mask[d0, d1 + p]

    One that they reach in several ways (attention weights, of queries and keys) is none.
    """
    shape = graph[padding].shape or ()
    if any(nonneg(ONE - e) for e in shape):  # of a dimension of 1 there is no axis
        return
    whole = tuple(Digit(d, ONE, e) for d, e in enumerate(shape))
    axes = follow(graph, {padding: [whole]}, softmax=True)
    pieces: dict[Poly, dict[str, list[Coords]]] = {ZERO: {padding: [whole]}}
    for node in graph.nodes:
        for name, coords, start in _pieces(graph, node, axes):
            if start.terms:
                pieces.setdefault(start, {}).setdefault(name, []).append(coords)
    for start, starts in pieces.items():
        reached = axes if not start.terms else follow(graph, starts, softmax=True)
        for name in graph.outputs:
            ways = reached.get(name, [])
            if name in graph.inputs or len(ways) != 1 or not can_be_zeroed(graph[name].dtype):
                continue
            dims, places = graph[name].shape or (), [c.dim for c in ways[0]]
            bare = all(c == Digit(c.dim, ONE, dims[c.dim]) for c in ways[0])
            if bare and places == sorted(places):  # time first is another layout of tokens
                *lead, last = (dim_index(c.dim, dims[c.dim]) for c in ways[0])
                yield name, (*lead, last + start)


def _pieces(
    graph: Graph, node: ir.Node, axes: Mapping[str, list[Coords]]
) -> Iterator[tuple[str, Coords, Poly]]:
    """Computed operands that are a range of a value along its tokens: their name, the mask's
    coordinates as digits of theirs, and where the range starts.
    """
    name = first_output(node)
    expr, ways = graph[name].expr, axes.get(name, [])
    if expr is None or expr.combine is not Combine.MOVE or len(ways) != 1:
        return
    *lead, last = ways[0]
    for read in expr.reads:
        operand = input_names(node)[read.operand]
        extents = graph[operand].shape or ()
        at = read.index[last.dim] if last.dim < len(read.index) else None
        if not read.within or at is None or operand in graph.inputs or len(extents) <= last.dim:
            continue
        start = dim_index(last.dim, expr.shape[last.dim]) - at
        bare = all(read.index[c.dim] == dim_index(c.dim, expr.shape[c.dim]) for c in lead)
        if bare and last.stride == ONE and not list(start.digits()):
            yield operand, (*lead, Digit(last.dim, ONE, extents[last.dim])), start


def padding_notes(graph: Graph, padding: str | None, given: Collection[str]) -> list[str]:
    """A sentence for each output that may hold padded tokens and keeps them.

    Args:
        graph: The analysed graph.
        padding: The padding mask input, or None.
        given: Outputs that are given up there.
    """
    if padding is None:
        return []
    alike, notes = set(_alike(graph, padding)), {}
    for value in graph.model.graph.outputs:
        name = value.name or ""
        if name in given:
            continue
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            kind = "a sequence" if isinstance(value.type, ir.SequenceType) else "an optional"
            notes[name] = NO_ZERO.format(name=name, kind=kind)
        elif name in alike and not can_be_zeroed(graph[name].dtype):
            notes[name] = NO_ZERO.format(name=name, kind=_element_type(value))
        elif name in alike:
            notes[name] = EQUAL_ONLY.format(name=name, mask=padding)
    return list(notes.values())


def has_unproven(graph: Graph, padding: str) -> bool:
    """True where an output may be token-shaped by its sizes, and nothing else shows it."""
    names = {n for n in _alike(graph, padding) if can_be_zeroed(graph[n].dtype)}
    return bool(names - given_up(graph, padding).keys())


def _element_type(value: ir.Value) -> str:
    return "an unknown type" if value.dtype is None else f"type {value.dtype.name.lower()}"


def _alike(graph: Graph, padding: str) -> Iterator[str]:
    """Computed outputs whose first sizes are those of the mask."""
    shape = graph[padding].shape or ()
    for name in dict.fromkeys(graph.outputs):
        if (graph[name].shape or ())[: len(shape)] == shape and name not in graph.inputs:
            yield name


def _token_shaped(graph: Graph, padding: str, names: Sequence[str]) -> set[str]:
    """Those of the outputs whose first dimensions are the mask's own: each has its symbol, or is
    reached by its axis, where that is a number or both have one symbol. A batch of one is any first
    dimension of one: nothing can be mixed up.
    """
    shape = graph[padding].shape or ()
    if ONE in shape[1:]:  # a sequence of one has neither
        return set()
    same = len(set(shape)) == 1
    unnamed = tuple(
        Digit(d, ONE, e) for d, e in enumerate(shape) if same or e.as_int() not in (None, 1)
    )
    if not unnamed:
        return set(names)
    axes = follow(graph, {padding: [unnamed]})
    return {name for name in names if unnamed in axes.get(name, ())}
