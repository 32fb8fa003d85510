"""The padding contract: which outputs have no meaning at tokens whose mask is 0.

An output is *token-shaped* when its first dimensions are those of the mask. A size symbol tells
that by its name. A number tells nothing (a pooled `[2, 256]` is no `[batch, sequence]`), so there
the mask's axes must reach the output, along PIT axes from value to value:

    mask [2, 256] -> keys of scores [2, h, 256, 256] -> x [2, 256, 32] -> y [2, 256, 5]
"""

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, dim_index
from pitc.ir.region import Region, Test
from pitc.passes.lower.given_up import can_be_zeroed
from pitc.passes.regions.coordinates import follow
from pitc.passes.regions.live_tests import OLDEST

EQUAL_ONLY = (
    "output '{name}' is left as it is: its first sizes equal those of '{mask}', but nothing shows "
    "that they are its batch and sequence; export the model with dynamic axes, each of its own name"
)
NO_ZERO = (
    "output '{name}' is left as it is: padded tokens of {kind} cannot be made 0; let the model "
    "give a tensor of numbers or bools to have them 0"
)


def check_padding(graph: Graph, padding: str) -> None:
    """Refuse a padding mask that is not a two-dimensional number or bool input, and models that are
    too old to have the operators that zero an output.
    """
    version = graph.model.opset_imports.get("", OLDEST)
    if version < OLDEST:
        raise UsageError(
            f"padding needs operator set {OLDEST} or newer, the model has {version}",
            hint="convert it with onnx.version_converter",
        )
    candidates = ", ".join(f"'{n}'" for n in graph.inputs if can_be_mask(graph, n)) or "none"
    if padding not in graph.inputs:
        raise UsageError(
            f"padding mask '{padding}' is not an input of the model",
            hint=f"inputs that can be a mask: {candidates}",
        )
    if not can_be_mask(graph, padding):
        shape, dtype = graph[padding].shape, graph[padding].dtype
        raise UsageError(
            f"padding mask '{padding}' must be a [batch, sequence] tensor of numbers or bools, "
            f"found {dtype} of shape {[str(e) for e in shape] if shape is not None else 'unknown'}",
            hint=f"inputs that can be a mask: {candidates}",
        )


def can_be_mask(graph: Graph, name: str) -> bool:
    """True for a two-dimensional value of numbers or bools."""
    shape, dtype = graph[name].shape, graph[name].dtype
    return shape is not None and len(shape) == 2 and dtype is not None and dtype.kind in "biuf"


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
    index = tuple(dim_index(d, e) for d, e in enumerate(shape))
    where = Region((Test(padding, index, "nz", False),))
    names = [n for n in _alike(graph, padding) if can_be_zeroed(graph[n].dtype)]
    proven = names if by_size else _token_shaped(graph, padding, names)
    return {name: [where] for name in names if name in proven}


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
