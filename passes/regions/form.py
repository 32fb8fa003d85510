"""Packed forms as values: what a node becomes when the coordinates of a domain are gathered into
one packed axis.

A form is a description. Making one changes nothing; `rewrite` turns the chosen forms into nodes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

import numpy.typing as npt
import onnx_ir as ir

from pitc.ir.constant import is_zero
from pitc.ir.expr import Shape, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Poly, bare_dim
from pitc.ir.plans.ops import Attention, AttentionGrad, Contract
from pitc.ir.plans.whole import AddRows, Grouped, OuterProducts
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import EVERYWHERE, Region
from pitc.passes.exprs.coordinates import Paths, follow
from pitc.passes.regions.domain import Domain, all_live, covering
from pitc.passes.regions.layout import (
    Layout,
    PackedSpace,
    aligned_rest,
    coordinate_codes,
    increasing,
    layout_of,
    read_in_packed,
    uses_coordinates,
)
from pitc.passes.regions.score_bias import TermShape
from pitc.passes.regions.sight import Condition, sources

COORDINATES = "coordinates"
"""Attribute of a form: which coordinates of its points number groups, or rows of its result."""


@dataclass(frozen=True, slots=True)
class PackedOperand:
    """A value in packed layout, with its dimensions after the first reshaped to `shape` where
    that is given.
    """

    name: str
    domain: Domain
    coords: Coords
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class WholeOperand:
    """A value as it is (weights, scalars), reshaped to `shape` where that is given."""

    name: str
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class GatheredOperand:
    """A value that depends on some coordinates, one row of it gathered per live point (`dims=` of
    the pack plan).
    """

    name: str
    domain: Domain
    codes: tuple[str, ...]
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConstantOperand:
    """A new constant, e.g. axes."""

    array: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class OffsetsOperand:
    """Per-sequence offsets, or coordinates, of a domain's live points; or what says which live."""

    domain: Domain
    output: str


@dataclass(frozen=True, slots=True)
class BiasTerm:
    """One additive term of attention scores.

    Args:
        name: The added value; or, with `low`, the bool that selects.
        shape: How it is read.
        low: What the scores are replaced by; None for a plain addition.
        low_when: The bool value at which they are replaced.
    """

    name: str
    shape: TermShape
    low: float | None = None
    low_when: bool = True


@dataclass(frozen=True, slots=True)
class BiasOperand:
    """The sum of additive terms, a whole value of rank 4."""

    terms: tuple[BiasTerm, ...]


@dataclass(frozen=True, slots=True)
class PairsOperand:
    """What attention reads to leave out pairs: lists of the keys that queries see, or what tests
    look at.

    Args:
        queries: The domain of the queries.
        keys: Of the keys.
        hidden: Which pairs are left out.
        name: The operand of the plan: `keys`, `position_tests`, ..
    """

    queries: Domain
    keys: Domain
    hidden: tuple[Condition, ...]
    name: str


Operand = (
    PairsOperand
    | BiasOperand
    | PackedOperand
    | WholeOperand
    | GatheredOperand
    | ConstantOperand
    | OffsetsOperand
)


def operand_names(operand: Operand | None) -> list[str]:
    """The values that an operand is made of, what tests of its domain look at aside."""
    if isinstance(operand, BiasOperand):
        return [term.name for term in operand.terms]
    if isinstance(operand, PairsOperand):
        return sorted({source for each in operand.hidden for source in sources(each)})
    if isinstance(operand, PackedOperand | WholeOperand | GatheredOperand):
        return [operand.name]
    return []


def operand_domain(operand: Operand | None) -> Domain | None:
    """The domain whose live points an operand needs."""
    if isinstance(operand, PackedOperand | GatheredOperand | OffsetsOperand):
        return operand.domain
    return None


@dataclass(frozen=True, slots=True)
class Factor:
    """A number, known when the model runs, that attention scores are multiplied or divided by.

    Args:
        name: A value of one element.
        divides: They are divided by it.
    """

    name: str
    divides: bool


class Saves(Enum):
    """What a packed form saves."""

    ROWS = "the products of a row of its result, for every dead point"
    PAIRS = "both products of a pair: its own and that of its scores"
    TERMS = "a product of two rows, for every dead point"


@dataclass(frozen=True, slots=True)
class Form:
    """A node's packed form.

    Args:
        outputs: Per output its name, coordinates and layout; None for outputs nobody reads.
        operands: Inputs of the new node, None where an optional input is absent.
        op_type: Operator of the new node; `Identity` means that the first operand is the result.
        attributes: Attributes that differ from the node's own.
        plan: Plan of the new node when it is a PIT node.
        part: Which output of that it is.
        absorbs: Nodes that this form computes too; they go when nobody else reads them.
        rests_on: Fill facts and dead facts that make the form exact.
        terms: What the terms range over that a sum of live ones is made of; None for other forms.
        whole: Outputs that the new node gives as they were.
        materialises_operands: A product whose operands ONNX Runtime reads as gathered copies.
        factors: Of attention scores: queries are scaled by them.
        saves: What is saved where it leaves something out.
        rule: The rule that made it, for people.
    """

    outputs: tuple["Packing | None", ...]
    operands: tuple[Operand | None, ...]
    op_type: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    plan: AddRows | Attention | AttentionGrad | Contract | Grouped | OuterProducts | None = None
    part: int = 0
    absorbs: tuple[ir.Node, ...] = ()
    rests_on: tuple[Region, ...] = ()
    terms: Domain | None = None
    whole: tuple[str, ...] = ()
    materialises_operands: bool = False
    factors: tuple[Factor, ...] = ()
    saves: Saves = Saves.ROWS
    rule: str = field(default="", compare=False)

    @property
    def scatters(self) -> bool:
        """True where the new node gives a whole value, 0 at dead points: no SWrite is behind it."""
        masked = isinstance(self.plan, OuterProducts) and self.plan.masked
        return masked or isinstance(self.plan, Contract)

    @property
    def packings(self) -> list["Packing"]:
        """Its outputs that are read."""
        return [p for p in self.outputs if p is not None]

    @property
    def ranges(self) -> list[Domain]:
        """What its rows are, or the terms that it sums."""
        return [p.domain for p in self.packings] if self.terms is None else [self.terms]

    @property
    def domains(self) -> set[Domain]:
        """All domains whose live points it needs."""
        return {*self.ranges, *(d for o in self.operands if (d := operand_domain(o)) is not None)}

    @property
    def leaves_out_nothing(self) -> bool:
        """True over a domain without dead points, where no term is left out either."""
        return all(d.lives_everywhere for d in self.ranges)


@dataclass(frozen=True, slots=True)
class Skip:
    """The form of a node that finds zeros when it runs: it reads and gives whole values, and leaves
    out what zeros say of them.

    Args:
        steps: The node, and those behind it that run with it.
    """

    lowering: ClassVar[str]
    steps: tuple[ir.Node, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """One way in which a value carries the coordinates of a domain.

    Args:
        name: The value.
        domain: The domain.
        coords: The coordinates, as digits of the value's dimensions.
        layout: How its dimensions split then.
        proof: Its dead fact that covers the domain's (of no dead points, `EVERYWHERE`); None where
            it may be live elsewhere: then its rows can be gathered, and none of them be left out.
        zero: Its fill fact which says that it is 0 wherever the domain is dead, and that nobody
            sees of which sign: left out, it comes back as it was.
    """

    name: str
    domain: Domain
    coords: Coords
    layout: Layout
    proof: Region | None
    zero: Region | None = None

    def operand(self, shape: tuple[int, ...] | None = None) -> PackedOperand:
        """It as an operand, its dimensions behind the packed one reshaped where that is said."""
        return PackedOperand(self.name, self.domain, self.coords, shape)

    @property
    def may_be_left_out(self) -> bool:
        """Nobody reads it where the domain is dead, or 0 is what is read."""
        return self.proof is not None or self.zero is not None


def zero_facts(graph: Graph, name: str) -> list[Region]:
    """Where a value is known to be 0."""
    return [f.region for f in graph[name].fills if is_zero(f.constant)]


def zero_regions(graph: Graph, name: str) -> list[Region]:
    """Where a value is 0, of a sign that nobody sees: SWrite leaves 0, which may have been -0.0."""
    value = graph[name]
    signless = value.dtype is not None and value.dtype.kind in "biu"
    zeros = [r for r in zero_facts(graph, name) if r.tests]
    return zeros if value.sign_unseen or signless else []


@dataclass(slots=True)
class FormContext:
    """What form builders look at: the analysed graph and one domain.

    Args:
        graph: The graph.
        domain: The domain.
        starts: Values that carry its coordinates.
        paths: Where they lead; None: they are followed for this domain alone.
        whole: Nodes that run as they were beside those that run packed.
    """

    graph: Graph
    domain: Domain
    starts: Mapping[str, list[Coords]] = field(default_factory=dict[str, list[Coords]])
    paths: Paths | None = None
    whole: Collection[ir.Node] = ()
    _found: dict[str, list[Coords]] | None = None
    _rows: dict[str, list[Packing]] = field(default_factory=dict)

    def packings(self, name: str) -> list[Packing]:
        """All ways in which a value belongs to the domain: dead, or 0, wherever the domain is."""
        return [p for p in self.rows(name) if p.may_be_left_out]

    def rows(self, name: str) -> list[Packing]:
        """All ways in which a value has a row for each point of the domain, dead or not."""
        if self._found is None:
            if self.paths is None:
                self._found = follow(self.graph, self.starts)
            else:
                self._found = self.paths.reached(self.starts)
        if name not in self._rows:
            made = (self.packing_at(name, coords) for coords in self._found.get(name, ()))
            self._rows[name] = [p for p in made if p is not None]
        return self._rows[name]

    def packing_at(self, name: str, coords: Coords) -> Packing | None:
        """A value's rows at some coordinates; None where these are no digits of its dimensions."""
        shape = self.graph[name].shape
        dead = self.graph[name].dead
        proof = EVERYWHERE if self.domain.lives_everywhere else covering(self.domain, coords, dead)
        layout = None if shape is None else layout_of(shape, coords)
        if layout is None or self.graph[name].dtype is None:
            return None
        if not all(self.graph.visible(source, name) for source in self.domain.sources()):
            return None
        zeros = [] if self.domain.lives_everywhere else zero_regions(self.graph, name)
        zero = covering(self.domain, coords, zeros)
        return Packing(name, self.domain, coords, layout, proof, zero)

    def undivided(self, name: str) -> list[Packing]:
        """A value as one point: it has no coordinates, and is terms of the domain's points."""
        shape = self.graph[name].shape
        layout = None if shape is None else layout_of(shape, ())
        return [Packing(name, all_live(()), (), layout, EVERYWHERE)] if layout else []

    def shape(self, name: str) -> Shape:
        """Extents of a value that some expression reads (so they are known)."""
        shape = self.graph[name].shape
        assert shape is not None
        return shape


@dataclass(frozen=True, slots=True)
class PackCandidate:
    """One node to be packed, with one packing of its first output.

    Args:
        context: The domain that is tried.
        node: The node.
        expr: How its first output is computed.
        out: The packing of that.
        beside: Other domains to which a value may belong.
    """

    context: FormContext
    node: ir.Node
    expr: TensorExpr
    out: Packing
    beside: Callable[[str], Iterable[FormContext]] = lambda _: ()

    @property
    def space(self) -> PackedSpace:
        """The packed iteration space."""
        return PackedSpace(self.context.domain, self.out.layout, self.expr.reduced)

    @property
    def label(self) -> str:
        """The node's name for messages."""
        return self.node.name or self.out.name

    def input(self, k: int) -> str:
        """Name of input k."""
        value = self.node.inputs[k]
        assert value is not None and value.name is not None
        return value.name

    def gives(self, rest: Shape) -> bool:
        """True where a node that gives these dimensions behind the packed one gives the output's:
        one of extent 1 may be dropped in an operand and not in the output.
        """
        return rest == self.out.layout.rest_shape

    def refuse(self, code: Code, reason: str, value: str = "") -> Refusal:
        """A refusal at this node, for the sake of a value."""
        return Refusal(code, self.label, reason, value)

    def reads(self, operand: int) -> list[list[Poly | None]]:
        """Index expressions, in the packed space, of every read of one operand."""
        return [
            read_in_packed(self.space, self.expr, r)
            for r in self.expr.reads
            if r.operand == operand
        ]

    def aligned(self, operand: int) -> tuple[Packing, list[Poly]] | None:
        """The operand's packing that is read at the same packed row, and how its rest digits are
        read. Rows of an operand that is live elsewhere are gathered: that is exact, too.
        """
        index = self.reads(operand)
        return self.rows_of(self.input(operand), index[0]) if len(index) == 1 else None

    def rows_of(self, name: str, index: Sequence[Poly | None]) -> tuple[Packing, list[Poly]] | None:
        """A value's packing that is read at the same packed row, and how its rest digits are.

        Args:
            name: The value.
            index: How it is read, in the packed space.
        """
        for packing in self.context.rows(name):
            rest = aligned_rest(index, packing.coords, packing.layout, self.context.domain)
            if rest is not None:
                return packing, rest
        return None

    def invariant(self, operand: int) -> bool:
        """True where no read of the operand depends on a coordinate."""
        rank = self.context.domain.rank
        return not any(uses_coordinates(i, rank) for i in self.reads(operand))


FormRule = Callable[[PackCandidate], Form | Skip | Refusal]


def single(site: PackCandidate) -> tuple[Packing | None, ...] | Refusal:
    """Outputs of a form whose other outputs nobody may read."""
    graph = site.context.graph
    for other in site.node.outputs[1:]:
        if other.name and (other.uses() or other.name in graph.outputs):
            text = f"output '{other.name}' is also read"
            return site.refuse(Code.NO_LOWERING, text, other.name)
    return (site.out, *[None] * (len(site.node.outputs) - 1))


def static_shape(extents: Iterable[Poly]) -> tuple[int, ...] | None:
    """Extents as numbers; None where one of them is known only when the model runs."""
    sizes = [e.as_int() for e in extents]
    static = tuple(n for n in sizes if n is not None)
    return static if len(static) == len(sizes) else None


def has_elements(graph: Graph, form: Form) -> bool:
    """True where every row has a known number of elements, which is not 0: the number of rows of a
    domain without dead points is then that of all elements over it.
    """
    layouts: list[Layout | None] = [p.layout for p in form.packings]
    for operand in form.operands:
        if isinstance(operand, PackedOperand) and operand.domain.lives_everywhere:
            layouts.append(layout_of(graph[operand.name].shape or (), operand.coords))
        elif isinstance(operand, GatheredOperand) and not isinstance(form.plan, Grouped):
            return False  # a copy for each row; of an index that is little
    return all((e.as_int() or 0) > 0 for x in layouts if x is not None for e in x.rest_shape)


def broadcast_operand(site: PackCandidate, operand: int) -> Operand | Refusal:
    """An operand of an elementwise node, shaped so that packed dimensions broadcast as the
    unpacked ones did.
    """
    found = _broadcast(site, operand)
    return replace(found, value=site.input(operand)) if isinstance(found, Refusal) else found


def _broadcast(site: PackCandidate, operand: int) -> Operand | Refusal:
    name, domain = site.input(operand), site.context.domain
    found = site.aligned(operand)
    if found is not None:
        packing, rest = found
        shape = _target_shape(site, rest, packing.layout.rest_shape)
        if isinstance(shape, Refusal):
            return shape
        return packing.operand(shape)
    reads, extents = site.reads(operand), site.context.shape(name)
    if len(reads) != 1:
        return site.refuse(Code.NO_LOWERING, f"operand '{name}' is read more than once")
    if not uses_coordinates(reads[0], domain.rank):
        known = [p for p in reads[0] if p is not None]
        places = _places(site, known, extents)
        if isinstance(places, Refusal):
            return places
        if len(extents) <= len(places) and extents == places[len(places) - len(extents) :]:
            return WholeOperand(name)
        shape = _target_shape(site, known, extents)
        return shape if isinstance(shape, Refusal) else WholeOperand(name, shape)
    codes = coordinate_codes(reads[0], extents, domain)
    if codes is None:
        return site.refuse(
            Code.AXIS_NOT_PIT, f"operand '{name}' is not read at one packed row at a time"
        )
    kept = tuple(e for c, e in zip(codes[0], extents, strict=True) if c == "r")
    shape = _target_shape(site, codes[1], kept)
    return shape if isinstance(shape, Refusal) else GatheredOperand(name, domain, codes[0], shape)


def _target_shape(
    site: PackCandidate, index: list[Poly], extents: Shape
) -> tuple[int, ...] | Refusal | None:
    """The static shape that an operand's rest must be given to broadcast, None where it has it
    already.
    """
    places = _places(site, index, extents)
    if isinstance(places, Refusal):
        return places
    if places == tuple(extents):
        return None
    static = static_shape(places)
    if static is None:
        return site.refuse(Code.DYNAMIC_DIM, f"an operand must be reshaped to {list(places)}")
    return static


def _places(site: PackCandidate, index: list[Poly], extents: Shape) -> Shape | Refusal:
    """Extents for the output's rest digits: the operand's where it varies, 1 elsewhere."""
    rank = site.context.domain.rank
    places: list[int] = []
    shape = [ONE] * len(site.out.layout.rest)
    for p, extent in zip(index, extents, strict=True):
        if extent == ONE:
            continue
        at = bare_dim(p)
        if at is None or not 0 <= at - rank < len(shape):
            return site.refuse(Code.LAYOUT, f"a dimension of an operand is read at {p}")
        if extent != site.out.layout.rest_shape[at - rank]:
            return site.refuse(Code.LAYOUT, f"{extent} elements are repeated in turn")
        places.append(at - rank)
        shape[at - rank] = extent
    if not increasing(places):
        return site.refuse(Code.LAYOUT, "an operand's dimensions are read out of order")
    return tuple(shape)
