"""Which packed forms are sound together: what comes back whole holds zeros in its dead rows.

    p = packed(x)      reader: y / p     ->   refused: the reader may divide by 0
    p = packed(x)      p is dead only because p's own zeros are skipped   ->   refused: joint

Dead facts are individual (`docs/theory.md`); with these conditions the hybrid argument, one exit at
a time, makes them joint.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region
from pitc.passes.facts.total import reader_upset_by_zeros
from pitc.passes.regions.demand import Demand, packed_by
from pitc.passes.regions.form import (
    Form,
    GatheredOperand,
    Operand,
    PackedOperand,
    Packing,
    operand_names,
)
from pitc.passes.regions.layout import layout_of

# element types: strings have no bytes of their own, some small types share one, ONNX Runtime has
# hardly an operator for the others
MOVABLE = frozenset(
    {"bool", "float16", "bfloat16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)

Forms = Mapping[ir.Node, Form]
Readers = Callable[[str], list[ir.Node]]  # who sees the zeros of a value
PackedReaders = dict[str, list[tuple[ir.Node, Operand | None]]]


def unsound_forms(graph: Graph, forms: Forms, demand: Demand) -> dict[ir.Node, Refusal]:
    """Forms that must not stay beside the others, and why.

    Args:
        graph: The analysed graph.
        forms: What runs packed.
        demand: What the graph outputs need then.
    """
    kept = kept_exits(graph, forms, demand.exits)
    bits = overwritten_bits(graph, demand.exits, kept)
    found = {n: r for n in demand.forms if (r := _inside(graph, forms, n, bits)) is not None}
    packed = _packed_readers(forms, demand)
    for name, node in demand.exits.items():
        proof = _packing_of(forms[node], name)
        if proof is not None and name in kept:
            refusal = _unmoved(graph, proof, node)
            found |= {} if refusal is None else {node: refusal}
            continue
        if proof is None or proof.proof is None:
            found[node] = Refusal(
                Code.NO_FACT, node_name(node), f"'{name}' is needed as a whole", name
            )
            continue
        readers = _readers_of(graph, demand, packed, proof)
        refusal = _at_exit(graph, proof, node, bits) or _upset(
            graph, proof, node, readers, demand.exits
        )
        if refusal is not None:
            found[node] = refusal
    return found


def kept_exits(graph: Graph, forms: Forms, exits: Mapping[str, ir.Node]) -> set[str]:
    """Exits that come back as they were: 0 where they are left out, by facts that rest on no exit
    that is overwritten.

    Args:
        graph: The analysed graph.
        forms: What runs packed.
        exits: Values that come back whole, and what computes them.
    """
    found = {name: _packing_of(forms[node], name) for name, node in exits.items()}
    zeros = {n: p.zero for n, p in found.items() if p is not None and p.zero is not None}
    while True:
        bits = overwritten_bits(graph, exits, zeros)
        resting = [name for name, zero in zeros.items() if zero.via & bits]
        if not resting:
            return set(zeros)
        for name in resting:
            del zeros[name]


def overwritten_bits(graph: Graph, exits: Iterable[str], kept: Collection[str] = ()) -> int:
    """Provenance bits of the exits that hold other numbers than before."""
    bits = 0
    for name in exits:
        bits |= 0 if name in kept else graph[name].bit
    return bits


def _packing_of(form: Form, name: str) -> Packing | None:
    """How a form gives a value."""
    return next((p for p in form.packings if p.name == name), None)


def _inside(graph: Graph, forms: Forms, node: ir.Node, bits: int) -> Refusal | None:
    """Why a form cannot have its operands, or skips a term that an exit overwrites."""
    refusal = None
    for place, operand in enumerate(forms[node].operands):
        if not _can_enter(graph, forms, operand):
            text, names = f"operand {place} cannot be gathered", operand_names(operand)
            refusal = Refusal(Code.LAYOUT, node_name(node), text, next(iter(names), ""))
    rests = [name for r in forms[node].rests_on for name in _overwritten(graph, r, bits)]
    if rests:
        text = "a skipped term is zero only because of an unpacked value"
        refusal = Refusal(Code.JOINT, node_name(node), text, rests[0])
    return refusal


def _at_exit(graph: Graph, proof: Packing, node: ir.Node, bits: int) -> Refusal | None:
    """Why a packed value cannot come back whole."""
    name = proof.name
    assert proof.proof is not None
    if graph[name].guards_softmax:
        text = f"'{name}' guards rows of a softmax, whose terms are others"
        return Refusal(Code.JOINT, node_name(node), text, name)
    refusal = _unmoved(graph, proof, node)
    if refusal is not None:
        return refusal
    rests = _overwritten(graph, proof.proof, bits)
    if rests:
        text = f"'{name}' is dead only because of '{rests[0]}'"
        return Refusal(Code.JOINT, node_name(node), text, rests[0])
    return None


def comes_back(graph: Graph, packing: Packing) -> bool:
    """True for a value that SWrite can move."""
    return packing.layout.dim_codes() is not None and is_movable(graph, packing.name)


def _unmoved(graph: Graph, exit_: Packing, node: ir.Node) -> Refusal | None:
    """Why SWrite cannot move it."""
    name = exit_.name
    if comes_back(graph, exit_):
        return None
    text = f"'{name}' mixes packed and other digits in a dimension, or has no known type"
    return Refusal(Code.LAYOUT, node_name(node), text, name)


def _upset(
    graph: Graph, proof: Packing, node: ir.Node, readers: Readers, exits: Collection[str]
) -> Refusal | None:
    """Why nobody may see the zeros of a packed value that comes back whole."""
    if proof.domain.lives_everywhere:
        return None
    reader = reader_upset_by_zeros(graph, proof.name, readers, exits)
    if reader is None:
        return None
    text = f"{reader.op_type} reads '{proof.name}' and may divide by 0 or read another place"
    return Refusal(Code.NOT_TOTAL, node_name(node), text, proof.name)


def _overwritten(graph: Graph, where: Region, bits: int) -> list[str]:
    """Exits (as bits) on whose own fill facts a region rests."""
    return graph.names_of(where.via & bits)


def _can_enter(graph: Graph, forms: Forms, operand: Operand | None) -> bool:
    """True where a packed operand is computed so, or can be gathered."""
    if isinstance(operand, GatheredOperand):
        return is_movable(graph, operand.name)
    if not isinstance(operand, PackedOperand) or packed_by(forms, graph, operand) is not None:
        return True
    layout = layout_of(graph[operand.name].shape or (), operand.coords)
    return layout is not None and layout.dim_codes() is not None and is_movable(graph, operand.name)


def is_movable(graph: Graph, name: str) -> bool:
    """True for elements that pack and unpack can move, and that can be 0."""
    dtype = graph[name].dtype
    return dtype is not None and dtype.name in MOVABLE


def _readers_of(graph: Graph, demand: Demand, packed: PackedReaders, exit_: Packing) -> Readers:
    """Who sees the zeros of an exit; packed rows of the exit itself are live ones."""

    def readers(name: str) -> list[ir.Node]:
        whole = [n for n in graph[name].uses if n in demand.nodes]
        return whole + [n for n, o in packed.get(name, ()) if not _is_packed_by(o, exit_)]

    return readers


def _packed_readers(forms: Forms, demand: Demand) -> PackedReaders:
    """Forms by the values that they read."""
    found: PackedReaders = {}
    for node in demand.forms:
        for operand in forms[node].operands:
            for name in operand_names(operand):
                found.setdefault(name, []).append((node, operand))
    return found


def _is_packed_by(operand: Operand | None, exit_: Packing) -> bool:
    """True for the rows of a value in the form in which they are computed."""
    return isinstance(operand, PackedOperand) and (operand.domain, operand.coords) == (
        exit_.domain,
        exit_.coords,
    )
