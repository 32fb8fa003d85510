"""Chosen forms become nodes, ordinary and packed ones: one detector per domain, SRead at entries
and SWrite at exits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine, Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Poly, total_of
from pitc.ir.metadata import SOURCE
from pitc.ir.nodes import first_input, node_name
from pitc.ir.plans.ops import Attention, AttentionGrad, Contract, Detect, Pack, Unpack
from pitc.ir.plans.whole import AddRows, Grouped, OuterProducts
from pitc.ir.sizes import sizes_known
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import detected_mask
from pitc.passes.lower.packed import Packed
from pitc.passes.lower.pair_lists import pair_lists, test_operands
from pitc.passes.lower.panels import stay_finite
from pitc.passes.lower.rows import all_rows, from_all_rows
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import (
    COORDINATES,
    BiasOperand,
    BiasTerm,
    ConstantOperand,
    Form,
    GatheredOperand,
    OffsetsOperand,
    Operand,
    PackedOperand,
    Packing,
    PairsOperand,
    WholeOperand,
    operand_domain,
)
from pitc.passes.regions.grouped import AXES
from pitc.passes.regions.layout import layout_of
from pitc.passes.regions.matrix import dims_of, stored
from pitc.passes.regions.score_bias import repeats_turns
from pitc.passes.regions.sight import Condition


@dataclass(frozen=True, slots=True)
class Detected:
    """A domain's live points at run time."""

    rows: ir.Value
    coords: ir.Value
    offsets: ir.Value
    symbol: str

    @property
    def live(self) -> ir.Value:
        """What the detector reads now: a mask may be packed itself, after its detector was made."""
        detector = self.rows.producer()
        assert detector is not None and detector.inputs[0] is not None
        return detector.inputs[0]


@dataclass(slots=True)
class Rewriter:
    """Makes nodes of forms.

    Args:
        to: What they are added to.
        detected: Detectors, by domain.
        packed: Values in packed layouts.
        lists: Which keys queries see, by domains and hidden pairs.
        gradients: Results of gradients of attention, by plan and operands.
        gathers: Rows of whole values that a Pack gives: the whole value, and what gathers another
            one like it.
    """

    to: Packed
    detected: dict[Domain, Detected] = field(default_factory=dict)
    packed: dict[tuple[str, Domain, tuple[object, ...]], ir.Value] = field(default_factory=dict)
    gathers: dict[ir.Value, tuple[str, Callable[[str], ir.Value]]] = field(default_factory=dict)
    lists: dict[tuple[object, ...], dict[str, ir.Value]] = field(default_factory=dict)
    gradients: dict[tuple[object, ...], Sequence[ir.Value]] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The analysed graph."""
        return self.to.graph

    @property
    def build(self) -> Builder:
        """Adds nodes."""
        return self.to.build

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
            self.detected[domain] = Detected(rows, coords, offsets, symbol)
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

    def dtype(self, name: str) -> ir.DataType:
        """Element type of a value."""
        return ir.DataType.from_numpy(self.graph.dtype(name))

    def pack(
        self, name: str, domain: Domain, codes: tuple[str, ...], rest: Shape | None = None
    ) -> ir.Value:
        """SRead: gather one row of a whole value per live point."""
        source, at, dtype = self.build.value(name), self.detect(domain), self.dtype(name)
        if not domain.lives_everywhere and (rows := self._spread(name, codes, rest, at)):
            return rows
        if domain.lives_everywhere:
            return all_rows(self.graph, self.build, name, codes, at.symbol, domain.extents)
        given = codes
        shape = self.graph[name].shape or ()
        kept = [e for e, c in zip(shape, codes, strict=True) if c == "r"] if rest is None else rest
        if rest is not None:  # rows of a batch of one are rows
            source = self.build.squeeze(source, [d for d, c in enumerate(codes) if c == "0"])
            codes = tuple(c for c in codes if c != "0")
        plan = Pack(dims=codes, dtype=_words(dtype))
        (out,) = self.build.kernel(
            plan,
            [source, at.rows, at.coords, at.live],
            [(f"{name}.packed", dtype, [at.symbol, *map(_size, kept)])],
            name,
        )
        self.gathers[out] = name, partial(self.pack, domain=domain, codes=given, rest=rest)
        return out

    def _spread(
        self, name: str, codes: tuple[str, ...], rest: Shape | None, at: Detected
    ) -> ir.Value | None:
        """Rows of a constant number that is spread over a shape: it is spread over rows alone."""
        expr, node, shape = self.graph[name].expr, self.graph[name].producer, self.graph[name].shape
        if expr is None or node is None or shape is None or expr.combine is not Combine.MOVE:
            return None
        number = None if first_input(node) == name else self.graph.splat(first_input(node))
        plain = [r.operand == 0 and not r.within.tests for r in expr.reads] == [True]
        kept = tuple(e for e, c in zip(shape, codes, strict=True) if c == "r")
        kept = kept if rest is None else rest
        if number is None or not plain or not sizes_known(self.graph, kept):
            return None
        scalar = self.build.constant(np.asarray(number, self.graph.dtype(name)))
        sizes = [self.build.op("Shape", [at.rows]), *self.build.sizes(kept)]
        out = self.build.op("Expand", [scalar, self.build.concat(sizes)])
        out.type = ir.TensorType(self.dtype(name))
        out.shape = ir.Shape([at.symbol, *map(_size, kept)])
        return out

    def unpack(self, packing: Packing, packed: ir.Value) -> ir.Value:
        """SWrite: scatter packed rows, 0 at dead points."""
        at, dtype = self.detect(packing.domain), self.dtype(packing.name)
        codes = packing.layout.dim_codes()
        if codes is None:
            raise ValueError(f"the layout of '{packing.name}' cannot be unpacked")
        if packing.domain.lives_everywhere:
            return from_all_rows(self.graph, self.build, packing.name, codes, packed)
        dropped = [d for d, c in enumerate(codes) if c == "0"]
        codes = tuple(c for c in codes if c != "0")
        plan = Unpack(dims=codes, dtype=_words(dtype))
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
                return {"live": at.live, "offsets": at.offsets, "coords": at.coords}[output]
            case PairsOperand(queries, keys, hidden, name):
                return self.pairs(queries, keys, hidden)[name]
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

    def pairs(
        self, queries: Domain, keys: Domain, hidden: tuple[Condition, ...]
    ) -> dict[str, ir.Value]:
        """The lists of the keys that queries see, or what tests look at, made once."""
        key = (queries, keys, hidden)
        if key not in self.lists:
            extents, number = (*queries.extents, keys.extents[-1]), len(self.lists)
            if self.graph.target.hides_pairs == "tests":
                self.lists[key] = test_operands(self.build, self.graph, hidden, extents)
                return self.lists[key]
            at, of_keys = self.detect(queries), self.detect(keys)
            points = (at.offsets, of_keys.offsets, at.coords, of_keys.coords)
            self.lists[key] = pair_lists(self.build, self.graph, points, hidden, extents, number)
        return self.lists[key]

    def bias(self, terms: tuple[BiasTerm, ...]) -> ir.Value:
        """The sum of the terms, of four dimensions; a selection becomes an addition that absorbs
        every score. Beside others, [1, h, q, k] in b turns becomes [b * h, 1, q, k].
        """
        total: ir.Value | None = None
        repeats = repeats_turns([t.shape for t in terms])
        for term in terms:
            value = self.build.value(term.name)
            if term.low is None and self.dtype(term.name) != ir.DataType.FLOAT:
                value = self.build.op("Cast", [value], to=ir.DataType.FLOAT)
            if term.low is not None:
                zero, low = (self.build.constant(np.float32(x)) for x in (0, term.low))
                chosen = [low, zero] if term.low_when else [zero, low]
                value = self.build.op("Where", [value, *chosen])
            shape, extents = self.graph[term.name].shape or (), term.shape.extents
            ones = len(extents) - len(shape)
            if extents == (*[ONE] * ones, *shape):
                value = self.build.unsqueeze(value, *range(ones))
            else:
                value = self.build.reshape_to(value, self.build.sizes(extents))
            if repeats and (turns := term.shape.turns) != ONE:
                times = self.build.concat(self.build.sizes((turns, ONE, ONE, ONE)))
                by_head = self.build.sizes((turns * extents[1], ONE, *extents[2:]))
                value = self.build.reshape_to(self.build.op("Expand", [value, times]), by_head)
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
        if form.scatters:
            self.sampled(node, form)
            return
        if isinstance(form.plan, AddRows | OuterProducts):
            self._hand_on(node, form, (self.sum_over_rows(node, form, form.plan),))
            return
        if isinstance(form.plan, Grouped):
            self._hand_on(node, form, (self.grouped(node, form, form.plan),))
            return
        if isinstance(form.plan, AttentionGrad):
            self._hand_on(node, form, (self.attention_gradient(node, form, form.plan),))
            return
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
                self.to.log.made[node] = made
                made.metadata_props.update(node.metadata_props | {SOURCE: node_name(node)})
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
                if form.terms is not None and form.op_type != "Gemm":
                    continue  # a sum has one dimension, whatever those of its value are
                rest = [_size(e) for e in packing.layout.rest_shape]
                rows = self.detect(packing.domain).symbol if form.terms is None else None
                value.shape = ir.Shape([rows, *rest])

    def sampled(self, node: ir.Node, form: Form) -> None:
        """The node of a form whose plan gives a whole value, which it stands for."""
        plan, old = form.plan, node.outputs[0]
        a, b, live = (x for x in map(self.operand, form.operands) if x is not None)
        if isinstance(plan, Contract):
            (*_, b), transposed = stored(b, transposed=plan.right == "nk")
            plan = replace(plan, right="nk" if transposed else "kn")
        assert plan is not None
        stem, dims = f"{old.name}.live", dims_of(self.graph, old)
        outputs, name = [(stem, self.dtype(old.name or ""), dims)], node_name(node)
        (out,) = self.build.kernel(plan, [a, b, live], outputs, name)
        made = out.producer()
        assert made is not None
        self.to.log.sources[made] = node
        self.replace(old, out)

    def attention(self, node: ir.Node, form: Form) -> ir.Value:
        """The node of a form with a plan, for the contraction that it stands for."""
        assert isinstance(form.plan, Attention) and form.outputs[0] is not None
        packing, plan = form.outputs[0], form.plan
        inputs = [x for x in map(self.operand, form.operands) if x is not None]
        for factor in form.factors:
            number = self.build.reshape(self.build.value(factor.name), [])
            inputs[0] = self.build.op("Div" if factor.divides else "Mul", [inputs[0], number])
        dtype = self.dtype(packing.name)
        rows = self.detect(packing.domain).symbol
        (out,) = self.build.kernel(
            plan,
            inputs,
            [(f"{packing.name}.packed", dtype, [rows, plan.heads, plan.dv])],
            node_name(node),
            "packed attention",
        )
        made = out.producer()
        assert made is not None
        self.to.log.sources[made] = node
        rest = [n for e in packing.layout.rest_shape if (n := e.as_int()) is not None]
        return out if rest == [plan.heads, plan.dv] else self.build.reshape(out, [0, *rest])

    def sum_over_rows(self, node: ir.Node, form: Form, plan: AddRows | OuterProducts) -> ir.Value:
        """The node of a scatter of rows, or of a sum of their products."""
        packing = form.outputs[0]
        assert packing is not None
        sides = packing.domain.extents, packing.layout.rest_shape
        shape = [_size(total_of(side)) for side in sides]
        inputs = [x for x in map(self.operand, form.operands) if x is not None]
        if isinstance(plan, AddRows) and plan.sized:
            size = self.build.size(total_of(packing.domain.extents))
            inputs = [self.numbers(inputs[0], form), inputs[1], size, *inputs[2:]]
        outputs = [(f"{packing.name}.rows", ir.DataType.FLOAT, shape)]
        (out,) = self.build.kernel(plan, inputs, outputs, node_name(node))
        made = out.producer()
        assert made is not None
        self.to.log.sources[made] = node
        rest = [n for e in packing.layout.rest_shape if (n := e.as_int()) is not None]
        return self.build.reshape(out, [0, *rest]) if COORDINATES in form.attributes else out

    def numbers(self, value: ir.Value, form: Form) -> ir.Value:
        """Indices as int64; of the coordinates of points some, as one number each, [t, 1]."""
        build, found = self.build, list[ir.Value]()
        for place in form.attributes.get(COORDINATES, ()):
            number = build.constant(np.asarray([place], np.int64))
            column = build.reshape(build.op("Gather", [value, number], axis=0), [-1, 1])
            found.append(build.op("Cast", [column], to=ir.DataType.INT64))
        if found:
            packing = form.outputs[0]
            assert packing is not None
            extents = packing.domain.extents if len(found) > 1 else (ONE,)
            sizes = build.sizes(extents[1:])
            return reduce(self._behind, zip(found[1:], sizes, strict=True), found[0])
        if value.dtype == ir.DataType.INT64:
            return value
        return build.op("Cast", [value], to=ir.DataType.INT64)

    def _behind(self, rows: ir.Value, column: tuple[ir.Value, ir.Value]) -> ir.Value:
        """The number of a row by one coordinate more, and how many values that has."""
        return self.build.op("Add", [self.build.op("Mul", [rows, column[1]]), column[0]])

    def grouped(self, node: ir.Node, form: Form, plan: Grouped) -> ir.Value:
        """The node of a grouped product: rows, indices, and matrices as panels."""
        packing = form.outputs[0]
        assert packing is not None
        a, group, table = (x for x in map(self.operand, form.operands) if x is not None)
        group = self.numbers(group, form)
        if self.graph.target.rounds and stay_finite(table):
            plan = replace(plan, rounded="bfloat16")
        rounded = plan.rounded is not None
        b = self.to.panels.stack(self.build, table, form.attributes[AXES], rounded=rounded)
        rest = [n for e in packing.layout.rest_shape if (n := e.as_int()) is not None]
        shape = [self.detect(packing.domain).symbol, None, None, plan.n]
        outputs = [(f"{packing.name}.packed", self.dtype(packing.name), shape)]
        (out,) = self.build.kernel(plan, [a, group, b], outputs, node_name(node))
        made = out.producer()
        assert made is not None
        self.to.log.sources[made] = node
        return self.build.reshape(out, [0, *rest])

    def attention_gradient(self, node: ir.Node, form: Form, plan: AttentionGrad) -> ir.Value:
        """One result of the node that several contractions have a form of."""
        packing, key = form.outputs[0], (plan, form.operands)
        assert packing is not None
        if key not in self.gradients:
            inputs = [x for x in map(self.operand, form.operands) if x is not None]
            domains = dict(zip(plan.operands, map(operand_domain, form.operands), strict=True))
            outputs = list[tuple[str, ir.DataType, list[int | str | None]]]()
            for name, size in (("q", plan.d), ("k", plan.d), ("v", plan.dv)):
                domain = domains[name]
                assert domain is not None
                rows: list[int | str | None] = [self.detect(domain).symbol, plan.heads, size]
                outputs.append((f"{packing.name}.d{name}", ir.DataType.FLOAT, rows))
            self.gradients[key] = self.build.kernel(
                plan, inputs, outputs, node_name(node), "gradient of attention"
            )
            made = self.gradients[key][0].producer()
            assert made is not None
            self.to.log.sources[made] = node
        out = self.gradients[key][form.part]
        rest = [n for e in packing.layout.rest_shape if (n := e.as_int()) is not None]
        size = plan.dv if form.part == 2 else plan.d
        return out if rest == [plan.heads, size] else self.build.reshape(out, [0, *rest])

    def host_copies(self, domain: Domain) -> int:
        """Copies to the host in a run, that tell the detector of a domain what lives.

        It runs on the host, where inputs are stored. What ordinary nodes compute is stored on a
        GPU: ONNX Runtime's CUDA provider has kernels for all that `live_points` is made of.
        """
        at = self.detected.get(domain)
        node = None if at is None else at.rows.producer()
        if self.graph.target.kind != "cuda" or node is None or node.graph is None:
            return 0
        live, main = node.inputs[0], self.graph.model.graph
        assert live is not None
        given = live.producer() is None and live.name in main.initializers
        return int(not given and live not in main.inputs)


def _size(e: Poly) -> int | str | None:
    """A dimension for a value's declared shape: a number, a plain symbol, or unknown."""
    number = e.as_int()
    return number if number is not None else str(e) if str(e).isidentifier() else None


def _words(dtype: ir.DataType) -> str:
    """In what words rows of such elements are moved: of 4 bytes, or of 1."""
    return "int32" if dtype.itemsize in (4, 8) else "int8"
