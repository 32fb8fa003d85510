"""The rewrite: chosen forms become nodes, with one detector per domain, SRead at entries and
SWrite at exits.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.engines import Kernels, kernels_of
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import Poly
from pitc.ir.kernel import KernelRequest
from pitc.ir.metadata import SOURCE
from pitc.ir.nodes import node_name
from pitc.ir.plans.ops import Detect, Pack, Unpack
from pitc.ir.prices import Prices
from pitc.ir.refusal import Refusal
from pitc.ir.region import Region
from pitc.ir.unused import remove_unused
from pitc.passes.expand import restore_fused
from pitc.passes.lower.attention import lay_out
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.channels.convolve import ChannelSkip, skip_channels
from pitc.passes.lower.contract import Contractions, fuse_contractions
from pitc.passes.lower.gather_quantised import dequantisation
from pitc.passes.lower.given_up import zero_given_up
from pitc.passes.lower.live import detected_mask
from pitc.passes.lower.order import place_early
from pitc.passes.lower.regions import merge_regions
from pitc.passes.lower.rows import all_rows, from_all_rows, replace_sizes
from pitc.passes.lower.weight import Panels
from pitc.passes.regions.choose import Regions
from pitc.passes.regions.demand import is_shape_of_packed
from pitc.passes.regions.domain import Coords, Domain
from pitc.passes.regions.form import (
    BiasOperand,
    BiasTerm,
    ConstantOperand,
    Form,
    GatheredOperand,
    OffsetsOperand,
    Operand,
    PackedOperand,
    Packing,
    WholeOperand,
)
from pitc.passes.regions.layout import layout_of


@dataclass(frozen=True, slots=True)
class Detected:
    """A domain's live points at run time."""

    live: ir.Value
    rows: ir.Value
    coords: ir.Value
    offsets: ir.Value
    symbol: str


@dataclass(slots=True)
class Rewriter:
    """State of one rewrite."""

    graph: Graph
    build: Builder
    sparse: Collection[ir.Node] = ()
    detected: dict[Domain, Detected] = field(default_factory=dict)
    packed: dict[tuple[str, Domain, tuple[object, ...]], ir.Value] = field(default_factory=dict)
    gathered_from: dict[ir.Value, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    gathered_by: dict[ir.Value, Callable[[str], ir.Value]] = field(default_factory=dict)
    kernels: dict[KernelRequest, None] = field(default_factory=dict)
    contractions: Contractions = field(default_factory=Contractions)
    panels: Panels = field(default_factory=Panels)
    inside: dict[ir.Node, ir.Node] = field(default_factory=dict)
    made: dict[ir.Node, ir.Node] = field(default_factory=dict)
    runs: dict[ir.Node, Kernels] = field(default_factory=dict)
    refused: Sequence[Refusal] = ()

    def detect(self, domain: Domain) -> Detected:
        """The detector of a domain, made at first use."""
        if domain not in self.detected:
            live = detected_mask(self.build, self.graph, domain)
            rank = max(domain.rank, 1)
            if not domain.rank:  # one point
                live = self.build.reshape(live, [1])
            symbol = self.build.symbol(f"live_points_{len(self.detected)}")
            names = sorted(self.graph.only_01 & domain.sources())
            inputs = [live, self._flags(names)] if names else [live]
            rows, coords, offsets = self.build.kernel(
                Detect(rank=rank, padding=" or ".join(names) or None),
                inputs,
                [
                    ("rows", ir.DataType.INT32, [symbol]),
                    ("coords", ir.DataType.INT32, [rank, symbol]),
                    (
                        "offsets",
                        ir.DataType.INT32,
                        [self.build.symbol(f"sequences_{len(self.detected)}")],
                    ),
                ],
                min(domain.sources(), default="positions"),
            )
            self.detected[domain] = Detected(live, rows, coords, offsets, symbol)
        return self.detected[domain]

    def _flags(self, names: Sequence[str]) -> ir.Value:
        """A value that holds 0 and 1 only where all masks of these names do."""
        first = self.build.value(names[0])
        if len(names) == 1:
            return first
        found = self.build.op("Cast", [first], to=ir.DataType.DOUBLE)
        for name in names[1:]:
            numbers = (self.build.constant(np.float64(x)) for x in (0, 1))
            flags = [self.build.op("Equal", [found, number]) for number in numbers]
            other = self.build.op("Cast", [self.build.value(name)], to=ir.DataType.DOUBLE)
            found = self.build.op("Where", [self.build.op("Or", flags), other, found])
        return found

    def named(self, role: str, request: KernelRequest) -> dict[str, Any]:
        """Note that a kernel is needed; the plan fields that name it."""
        self.kernels.setdefault(request)
        kernels, library = ((role, request.symbol),), self.graph.target.library
        return {"dtype": request.dtype, "kernels": kernels, "library": library}

    def dtype(self, name: str) -> ir.DataType:
        """Element type of a value."""
        return ir.DataType.from_numpy(self.graph.dtype(name))

    def moved_by(self, family: str, dtype: ir.DataType) -> KernelRequest:
        """The kernel that moves rows of such elements, in words of 4 bytes or of 1."""
        words = "int32" if dtype.itemsize in (4, 8) else "int8"
        return KernelRequest.of(family, words, self.graph.target.kind)

    def request(self, family: str, dtype: ir.DataType, **params: int) -> KernelRequest:
        """The kernel of a family for elements of a type."""
        kind = self.graph.target.kind
        return KernelRequest.of_kind(kind, family, str(dtype.numpy()), **params)

    def pack(
        self, name: str, domain: Domain, codes: tuple[str, ...], rest: Shape | None = None
    ) -> ir.Value:
        """SRead: gather one row of a whole value per live point."""
        source, at, dtype = self.build.value(name), self.detect(domain), self.dtype(name)
        if domain.lives_everywhere:
            return all_rows(self.graph, self.build, name, codes, at.symbol)
        request, given = self.moved_by("pack", dtype), codes
        shape = self.graph[name].shape or ()
        kept = [e for e, c in zip(shape, codes, strict=True) if c == "r"] if rest is None else rest
        if rest is not None:  # rows of a batch of one are rows
            source = self.build.squeeze(source, [d for d, c in enumerate(codes) if c == "0"])
            codes = tuple(c for c in codes if c != "0")
        plan = Pack(dims=codes, **self.named("move", request))
        (out,) = self.build.kernel(
            plan,
            [source, at.rows, at.coords, at.live],
            [(f"{name}.packed", dtype, [at.symbol, *map(_size, kept)])],
            name,
        )
        self.gathered_from[out] = name, codes
        self.gathered_by[out] = partial(self.pack, domain=domain, codes=given, rest=rest)
        return out

    def gather_bytes(self) -> None:
        """Gather what is dequantised in front of that, where no product gathers it itself."""
        for old, gather in list(self.gathered_by.items()):
            inverse = dequantisation(self.graph, self.build.value(self.gathered_from[old][0]))
            made = old.producer()
            if inverse is None or made is None or made.graph is None:
                continue
            quantised, *grid = inverse.inputs
            assert quantised is not None and quantised.name is not None
            if not self.build.has(quantised.name):
                continue
            rows = gather(quantised.name)
            own, stems = dict(inverse.attributes), [old.name or ""]
            (new,) = self.build.node(inverse.domain, inverse.op_type, [rows, *grid], own, stems)
            new.type, new.shape = old.type, old.shape
            ir.convenience.replace_all_uses_with(old, new)

    def unpack(self, packing: Packing, packed: ir.Value) -> ir.Value:
        """SWrite: scatter packed rows, 0 at dead points."""
        at, dtype = self.detect(packing.domain), self.dtype(packing.name)
        codes = packing.layout.dim_codes()
        if codes is None:
            raise ValueError(f"the layout of '{packing.name}' cannot be unpacked")
        if packing.domain.lives_everywhere:
            return from_all_rows(self.graph, self.build, packing.name, codes, packed)
        request = self.moved_by("unpack", dtype)
        dropped = [d for d, c in enumerate(codes) if c == "0"]
        codes = tuple(c for c in codes if c != "0")
        plan = Unpack(dims=codes, **self.named("move", request))
        shape = [_size(e) for e in self.graph[packing.name].shape or ()]
        kept = [n for d, n in enumerate(shape) if d not in dropped]
        (out,) = self.build.kernel(
            plan,
            [packed, at.rows, at.coords, at.live],
            [(f"{packing.name}.whole", dtype, kept)],
            packing.name,
        )
        for d in dropped:
            out = self.build.unsqueeze(out, d)
            out.type, out.shape = ir.TensorType(dtype), ir.Shape(shape)
        return out

    def operand(self, operand: Operand | None) -> ir.Value | None:
        """The value that a form's operand stands for."""
        match operand:
            case None:
                return None
            case ConstantOperand(array):
                return self.build.constant(array)
            case OffsetsOperand(domain, output):
                at = self.detect(domain)
                return at.offsets if output == "offsets" else at.coords
            case BiasOperand(terms):
                return self.bias(terms)
            case WholeOperand(name, shape):
                value = self.build.value(name)
                return value if shape is None else self.build.reshape(value, shape)
            case GatheredOperand(name, domain, codes, shape):
                return self.shaped(self.gathered(name, domain, codes), shape)
            case PackedOperand(name, domain, coords, shape):
                return self.shaped(self.in_layout(name, domain, coords), shape)
        raise AssertionError(operand)

    def bias(self, terms: tuple[BiasTerm, ...]) -> ir.Value:
        """The sum of the terms; a selection becomes an addition that absorbs every score."""
        total: ir.Value | None = None
        for term in terms:
            value = self.build.value(term.name)
            if term.low is None and self.dtype(term.name) != ir.DataType.FLOAT:
                value = self.build.op("Cast", [value], to=ir.DataType.FLOAT)
            if term.low is not None:
                zero, low = (self.build.constant(np.float32(x)) for x in (0, term.low))
                chosen = [low, zero] if term.low_when else [zero, low]
                value = self.build.op("Where", [value, *chosen])
            total = value if total is None else self.build.op("Add", [total, value])
        assert total is not None
        return total

    def gathered(self, name: str, domain: Domain, codes: tuple[str, ...]) -> ir.Value:
        """A whole value gathered by some coordinates, once."""
        key = (name, domain, codes)
        if key not in self.packed:
            self.packed[key] = self.pack(name, domain, codes)
        return self.packed[key]

    def in_layout(self, name: str, domain: Domain, coords: Coords) -> ir.Value:
        """A value in packed layout: computed so, or gathered once."""
        key = (name, domain, coords)
        if key not in self.packed:
            layout = layout_of(self.graph[name].shape or (), coords)
            codes = None if layout is None else layout.dim_codes()
            if layout is None or codes is None:
                raise ValueError(f"the layout of '{name}' cannot be packed")
            self.packed[key] = self.pack(name, domain, codes, layout.rest_shape)
        return self.packed[key]

    def shaped(self, packed: ir.Value, shape: tuple[int, ...] | None) -> ir.Value:
        """A packed value with other dimensions after the first."""
        return packed if shape is None else self.build.reshape(packed, [0, *shape])

    def emit(self, node: ir.Node, form: Form) -> None:
        """Append the node of one form."""
        outputs: tuple[ir.Value, ...]
        if form.plan is not None:
            self._hand_on(node, form, (self.attention(node, form),))
            return
        inputs = [self.operand(o) for o in form.operands]
        if form.op_type == "Identity" and inputs[0] is not None:
            outputs = (inputs[0],)
        else:
            same = form.op_type == node.op_type
            own = node.attributes.items() if same else ()
            attributes = {k: a for k, a in own if k not in form.attributes}
            stems = [f"{o.name}.packed" if o.name else "" for o in node.outputs]
            attributes |= form.attributes
            name = self.build.label(node_name(node), "packed")
            outputs = self.build.node(node.domain, form.op_type, inputs, attributes, stems, name)
            self._describe(form, outputs)
            made = outputs[0].producer()
            if made is not None:
                self.made[node] = made
                made.metadata_props.update(node.metadata_props | {SOURCE: node_name(node)})
            if form.op_type in ("MatMul", "Gemm") and made is not None:
                self.contractions.packed[made] = node
                if node in self.sparse:
                    self.contractions.sparse[made] = node
        self._hand_on(node, form, outputs)

    def _hand_on(self, node: ir.Node, form: Form, outputs: tuple[ir.Value, ...]) -> None:
        """Let readers find what a form's node gives."""
        for packing, value in zip(form.outputs, outputs, strict=False):
            if packing is not None:
                self.packed[packing.name, packing.domain, packing.coords] = value
        for old, value in zip(node.outputs, outputs, strict=False):
            if old.name in form.whole:
                self.replace(old, value)

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Let a new value stand for one of the graph, as it is wanted whole."""
        name = old.name or ""
        new.type, new.shape = new.type or old.type, new.shape or old.shape
        self.build.rebind(name, new)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        if name in self.graph.outputs:
            old.name, new.name = new.name, name
            new.shape = old.shape

    def _describe(self, form: Form, outputs: tuple[ir.Value, ...]) -> None:
        """Declare types and shapes of packed values."""
        for packing, value in zip(form.outputs, outputs, strict=False):
            if packing is not None:
                value.type = ir.TensorType(self.dtype(packing.name))
                rest = [_size(e) for e in packing.layout.rest_shape]
                rows = self.detect(packing.domain).symbol if form.terms is None else None
                value.shape = ir.Shape([rows, *rest])

    def attention(self, node: ir.Node, form: Form) -> ir.Value:
        """The node of a form with a plan, for the contraction that it stands for."""
        assert form.plan is not None and form.outputs[0] is not None
        packing, plan = form.outputs[0], form.plan
        inputs = [x for x in map(self.operand, form.operands) if x is not None]
        for factor in form.factors:
            number = self.build.reshape(self.build.value(factor.name), [])
            inputs[0] = self.build.op("Div" if factor.divides else "Mul", [inputs[0], number])
        plan = lay_out(self.build, self.graph, plan, inputs, self.gathered_from)
        keys = form.operands[4]
        if plan.whole and isinstance(keys, OffsetsOperand):
            at = self.detect(keys.domain)
            inputs += [at.live] if plan.bias else [at.coords, at.live]
        dtype = self.dtype(packing.name)
        rounded = {"score_steps": plan.score_step, "weight_steps": plan.weight_step}
        steps = {name: 1 for name, step in rounded.items() if step is not None}
        sizes = {"d": plan.d, "dv": plan.dv, "bias": int(plan.bias)}
        request = self.request("attention", dtype, **sizes, **steps)
        plan = replace(plan, **self.named("attention", request))
        self.runs[node] = kernels_of(plan, self.graph.target)
        rows = self.detect(packing.domain).symbol
        (out,) = self.build.kernel(
            plan,
            inputs,
            [(f"{packing.name}.packed", dtype, [rows, plan.heads, plan.dv])],
            node_name(node),
            "packed attention",
        )
        rest = [n for e in packing.layout.rest_shape if (n := e.as_int()) is not None]
        return out if rest == [plan.heads, plan.dv] else self.build.reshape(out, [0, *rest])

    def host_copies(self, domain: Domain) -> int:
        """Copies to the host in a run, that tell the detector of a domain what lives.

        It runs on the host, where inputs lie. What ordinary nodes compute lies on a GPU: ONNX
        Runtime's CUDA provider has kernels for all that `live_points` is made of.
        """
        at = self.detected.get(domain)
        node = None if at is None else at.rows.producer()
        if self.graph.target.kind != "cuda" or node is None or node.graph is None:
            return 0
        live = node.inputs[0]
        assert live is not None
        given = live.producer() is None and live.name in self.graph.model.graph.initializers
        return int(not given and live not in self.graph.model.graph.inputs)


def _size(e: Poly) -> int | str | None:
    """A dimension for a value's declared shape: a number, a plain symbol, or unknown."""
    number = e.as_int()
    return number if number is not None else str(e) if str(e).isidentifier() else None


def rewrite(
    graph: Graph,
    regions: Regions,
    given_up: dict[str, list[Region]],
    *,
    sparse: Collection[ir.Node] = (),
    channels: Iterable[ChannelSkip] = (),
    prices: Prices | None = None,
    prefix: str = "pitc",
) -> Rewriter:
    """Turn chosen forms into nodes, in place.

    Args:
        graph: The analysed graph; its model is changed.
        regions: The chosen forms.
        given_up: Outputs that the user gives up at dead tokens: they are 0 there.
        sparse: Contractions of which an operand may hold zeros at run time.
        channels: Convolutions that leave out channels.
        prices: Of sparse contractions; None: all stay dense.
        prefix: Prefix of all new names.

    Returns:
        The rewriter: detectors made, kernels requested, what runs each source node that is lowered,
        source nodes that run inside another one, and detectors that the host has to wait for.
    """
    state = Rewriter(graph, Builder(graph, prefix), sparse)
    for node in graph.nodes:
        if node not in regions.demand.forms:
            continue
        form = regions.forms[node]
        state.emit(node, form)
        for packing in form.outputs:
            if packing is None or packing.name not in regions.demand.exits:
                continue
            old = state.build.value(packing.name)
            packed = state.packed[packing.name, packing.domain, packing.coords]
            state.replace(old, state.unpack(packing, packed))
    for node in graph.nodes:
        if node in regions.demand.nodes and is_shape_of_packed(graph, regions.forms, node):
            replace_sizes(graph, state.build, node)
    for name, regions_given in given_up.items():
        zero_given_up(graph, state.build, name, regions_given, regions)
    skip_channels(graph, state.build, channels)
    unpacked = [n for n in sparse if n not in regions.demand.forms and n in regions.demand.nodes]
    state.contractions.sparse |= {n: n for n in unpacked}
    fused = fuse_contractions(graph, state.build, state.contractions, prices)
    state.panels = fused.panels
    state.kernels |= dict.fromkeys(fused.kernels)
    graph.model.graph.sort()  # what nobody reads is found from the end
    remove_unused(graph.model)
    state.gather_bytes()
    sources = state.contractions.packed | state.contractions.sparse
    state.runs |= {sources[n]: kernels for n, kernels in fused.made.items()}
    state.inside = {n: into for n, into in fused.inside.items() if n.graph is None}
    for node, made in state.made.items():
        into = fused.taken.get(made)
        if made.graph is None and into is not None and into is not made:
            state.inside[node] = sources[into]
    restore_fused(graph.model, {*regions.demand.forms, *unpacked})
    graph.model.graph.sort()
    remove_unused(graph.model)
    merged = merge_regions(graph, state.build)
    state.kernels |= merged.kernels
    state.refused = merged.refused
    if merged.kernels:
        graph.model.graph.sort()
        remove_unused(graph.model)
    place_early(graph.model.graph, state.build.made)
    return state
