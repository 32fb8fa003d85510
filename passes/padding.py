"""The padding contract: which outputs have no meaning at tokens that a mask calls padding.

An output is *token-shaped* when its first dimensions are those of the mask. A size symbol tells
that by its name. A number tells nothing (a pooled `[2, 256]` is no `[batch, sequence]`), so there
the mask's axes must reach the output, along PIT axes from value to value:

    mask [2, 256] -> keys of scores [2, h, 256, 256] -> x [2, 256, 32] -> y [2, 256, 5]

So they do where an output has tokens elsewhere: keys and values of a cache are
`[batch, heads, sequence, size]`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from pitc.ir.constant import is_nonzero, is_zero
from pitc.ir.expr import Combine
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE, ZERO, Coords, Digit, Poly, dim_index, nonneg
from pitc.ir.mask import PaddingMask
from pitc.ir.metadata import outputs_of_weights
from pitc.ir.nodes import first_output
from pitc.ir.quirks import can_be_zeroed
from pitc.ir.region import Region, pull
from pitc.ir.report import TokenPlace
from pitc.passes.exprs.coordinates import follow

EQUAL_ONLY = (
    "output '{name}' is unchanged: its first sizes equal those of '{mask}', but pitc cannot prove "
    "that they are its batch and sequence; export the model with dynamic axes, each with its own "
    "name"
)
NO_ZERO = (
    "output '{name}' is unchanged: padded tokens of {kind} cannot be made 0; let the model "
    "return a tensor of numbers or bools instead"
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Where an output holds tokens of a mask.

    Args:
        mask: The mask.
        place: Of an element of the output in the mask.
        padded: Where the output has no meaning.
    """

    mask: PaddingMask
    place: tuple[Poly, ...]
    padded: Region


def token_outputs(
    graph: Graph, masks: Sequence[PaddingMask], *, by_size: bool = False
) -> dict[str, Tokens]:
    """The outputs that are token-shaped, in their order, and where their tokens lie.

    Of several masks one is an output's whose sizes or axes reach it; one of which two do is that of
    the first.

    Args:
        graph: The graph after `fill_facts`.
        masks: Of the padding contract.
        by_size: As of `analyse`.
    """
    found: dict[str, Tokens] = {}
    for mask in masks:
        shape, padded = graph[mask.name].shape, _in_other_words(graph, mask)
        for name, place in _of_mask(graph, mask.name, by_size=by_size).items():
            there = pull(padded, place, shape) if padded is not None else None
            found.setdefault(name, Tokens(mask, place, there or mask.padded(place)))
    return {name: found[name] for name in dict.fromkeys(graph.outputs) if name in found}


def _in_other_words(graph: Graph, mask: PaddingMask) -> Region | None:
    """Where tokens are padding, over the mask's dimensions, said as facts of a mask that the model
    computes say it; None where they do not say it exactly.

        real = ids > 1     real == 0 where ids <= 1, and not 0 where ids > 1     ->  ids <= 1
    """
    if mask.source:
        return None
    fills = [f for f in graph[mask.name].fills if len(f.region) == 1]
    is_padded, is_real = (is_zero, is_nonzero) if mask.live else (is_nonzero, is_zero)
    real = {test for f in fills if is_real(f.constant) for test in f.region}
    for fact in fills:
        (test,) = fact.region
        if is_padded(fact.constant) and test.src != mask.name and test.negate() in real:
            return fact.region
    return None


def token_places(tokens: Mapping[str, Tokens]) -> dict[str, TokenPlace]:
    """The same for reports: dimensions of outputs.

    y at mask[d0, d1] -> 0, 1        keys at mask[d0, d2 + p] -> 0, 2, the last ones of the mask
    """
    return {name: _in_words(of) for name, of in tokens.items()}


def _in_words(tokens: Tokens) -> TokenPlace:
    digits = [list(at.digits()) for at in tokens.place]
    batch, axis = (found[0].dim if found else k for k, found in enumerate(digits))
    rest = tokens.place[1] - sum((dim_index(d.dim, d.extent) for d in digits[1]), ZERO)
    return TokenPlace(tokens.mask.text, batch, axis, bool(rest.terms))


def _of_mask(graph: Graph, mask: str, *, by_size: bool) -> dict[str, tuple[Poly, ...]]:
    shape = graph[mask].shape
    if shape is None:
        return {}
    names = [n for n in _alike(graph, mask) if can_be_zeroed(graph[n].dtype)]
    proven = names if by_size else _token_shaped(graph, mask, names)
    index = tuple(dim_index(d, e) for d, e in enumerate(shape))
    found = {name: index for name in names if name in proven}
    for name, place in _tokens_inside(graph, mask):
        found.setdefault(name, place)
    return found


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
        for name in _of_data(graph):
            ways = reached.get(name, [])
            if len(ways) != 1 or not can_be_zeroed(graph[name].dtype):
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
        operand = NodeView(graph, node).name(read.operand)
        extents = graph[operand].shape or ()
        at = read.index[last.dim] if last.dim < len(read.index) else None
        if not read.within or at is None or operand in graph.inputs or len(extents) <= last.dim:
            continue
        start = dim_index(last.dim, expr.shape[last.dim]) - at
        bare = all(read.index[c.dim] == dim_index(c.dim, expr.shape[c.dim]) for c in lead)
        if bare and last.stride == ONE and not list(start.digits()):
            yield operand, (*lead, Digit(last.dim, ONE, extents[last.dim])), start


def padding_notes(graph: Graph, masks: Sequence[PaddingMask], given: Collection[str]) -> list[str]:
    """A sentence for each output that may hold padded tokens and keeps them.

    Args:
        graph: The analysed graph.
        masks: Of the padding contract.
        given: Outputs that are given up there.
    """
    notes: dict[str, str] = {}
    for mask in masks:
        alike = set(_alike(graph, mask.name))
        for value in graph.model.graph.outputs:
            name = value.name or ""
            if name in given or name in notes:
                continue
            if isinstance(value.type, ir.SequenceType | ir.OptionalType):
                kind = "a sequence" if isinstance(value.type, ir.SequenceType) else "an optional"
                notes[name] = NO_ZERO.format(name=name, kind=kind)
            elif name in alike and not can_be_zeroed(graph[name].dtype):
                notes[name] = NO_ZERO.format(name=name, kind=_element_type(value))
            elif name in alike:
                notes[name] = EQUAL_ONLY.format(name=name, mask=mask.name)
    return list(notes.values())


def has_unproven(graph: Graph, masks: Sequence[PaddingMask]) -> bool:
    """True where an output may be token-shaped by its sizes, and nothing else shows it."""
    alike = {n for mask in masks for n in _alike(graph, mask.name)}
    names = {n for n in alike if can_be_zeroed(graph[n].dtype)}
    return bool(names - token_outputs(graph, masks).keys())


def _element_type(value: ir.Value) -> str:
    return "an unknown type" if value.dtype is None else f"type {value.dtype.name.lower()}"


def _alike(graph: Graph, padding: str) -> Iterator[str]:
    """Computed outputs whose first sizes are those of the mask."""
    shape = graph[padding].shape or ()
    for name in _of_data(graph):
        if (graph[name].shape or ())[: len(shape)] == shape:
            yield name


def _of_data(graph: Graph) -> list[str]:
    """Computed outputs that may have tokens: no weights, and nothing that has their elements."""
    weights = outputs_of_weights(graph.model.metadata_props)
    names = dict.fromkeys(graph.outputs)
    return [n for n in names if n not in graph.inputs and n not in weights]


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
