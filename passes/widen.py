"""float16 on machines whose kernels compute in float32: from the first contraction on values are
float32, converted back where they leave as float16.

    x, w f16   h = MatMul(x, w)   y = Relu(h)       ->      h = MatMul(Cast(x), w in f32)
                                                            y = Cast(Relu(h))

ONNX Runtime's CPU provider does the same when it loads such a model: it has no float16 kernels of
most operators, so it converts around them, and leaves out what it would convert back at once. So
the answers are those of float32 steps in both, with fewer roundings than the operators say. Steps
in front of every contraction (embeddings, masks) stay float16, and so does what moves elements that
are there in float16 only: past keys and values are appended to as they are. So does the attention
of which it has a kernel of float16, which converts inside.

The weights of an artifact stay float16, behind a Cast that ONNX Runtime folds when it loads it.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import BRANCH, is_choice
from pitc.ir.build import Names, names_of
from pitc.ir.expr import PRODUCTS, Combine
from pitc.ir.graph import Graph
from pitc.ir.index import nonneg, total_of
from pitc.ir.nodes import attribute, bodies, first_output, output_names
from pitc.ir.quirks import OF_HALVES
from pitc.ir.schemas import schema_of
from pitc.ir.widened import NARROW, WIDE, Widened, mentions_float16
from pitc.passes.expand.expansion import EXPANSIONS, WIDENED
from pitc.passes.exprs.derive import derive
from pitc.passes.rules.record import LOOK_UPS, key_of, operator_of

_HALF, _FLOAT = "tensor(float16)", "tensor(float)"
TYPED = ("dtype", "output_dtype", "precision")  # attributes that say a type
LEAST_ELEMENTS = 1 << 12  # of a constant that is kept in float16; smaller ones are not worth a node
LEAST_RANK = 2  # of what is looked up in a table that is converted: matrices, and no embeddings


def widen(model: ir.Model) -> int:
    """Compute in float32 what is computed in float16 from the first contraction on.

    Args:
        model: A model without Constant nodes; its main graph is changed in place.

    Returns:
        How many nodes compute in float32 now.
    """
    if not mentions_float16(model):
        return 0
    model.meta[WIDENED] = True
    graph = Graph(model)
    derive(graph)
    state = _Widening(model, graph, names_of(model.graph))
    count = sum(map(state.take, list(model.graph)))
    state.finish()
    return count


@dataclass(slots=True)
class _Widening:
    """Which values are float32 by now.

    Args:
        model: The model.
        graph: What is known of it, as it was.
        taken: Names in use.
        wide: Values that were float16 and are float32.
        derived: Values computed from a contraction in float32, these among them.
        casts: Conversions by value and branch.
        conversions: Conversions of the model's own, by now from float32.
        moved: Values in float16 that are moved in float32, too, each behind what it is moved from.
        constants: Constants in float16 and in float32.
    """

    model: ir.Model
    graph: Graph
    taken: Names
    wide: set[ir.Value] = field(default_factory=set)
    derived: set[ir.Value] = field(default_factory=set)
    casts: dict[tuple[ir.Value, str | None], ir.Value] = field(default_factory=dict)
    conversions: list[ir.Node] = field(default_factory=list)
    moved: list[ir.Value] = field(default_factory=list)
    constants: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def take(self, node: ir.Node) -> bool:
        """Give a node the operands that it wants; True where it computes in float32."""
        inputs = [(k, x) for k, x in enumerate(node.inputs) if x is not None]
        read = [(k, x) for k, x in inputs if self._is_half(x)]
        if self._rounds(node):
            node.attributes["to"] = ir.AttrInt64("to", WIDE)
            widens = True
        else:
            widens = bool(read) and self._widens(node, [x for _, x in read])
        for k, x in read:
            if widens != (x in self.wide):
                node.replace_input_with(k, self._other(x, node, widens))
        if widens or any(x in self.derived for _, x in inputs):
            self.derived.update(node.outputs)
        if not widens:
            return False
        for x in node.outputs:
            if self._is_half(x):
                self._make_wide(x)
        if operator_of(node).converts:
            to = attribute(node, "to")
            if to == NARROW:  # of float16 to float16
                node.attributes["to"] = ir.AttrInt64("to", WIDE)
            self.conversions.append(node)
        return True

    def _rounds(self, node: ir.Node) -> bool:
        """True for a float32 value, computed from a contraction, that is rounded to float16."""
        x = node.inputs[0] if node.inputs else None
        to = attribute(node, "to")
        return (
            operator_of(node).converts
            and to == NARROW
            and x in self.derived
            and self.graph[x.name or ""].dtype == np.float32
            and not self.graph[first_output(node)].captured
        )

    def finish(self) -> None:
        """Leave out conversions from float32 to float32, and what nobody reads."""
        for node in self.conversions:
            x, y = node.inputs[0], node.outputs[0]
            to = attribute(node, "to")
            if x is not None and to == WIDE and not y.is_graph_output():
                y.replace_all_uses_with(x)
                self.model.graph.remove(node, safe=True)
        for x in reversed(self.moved):
            made = x.producer()
            if made is not None and not x.uses() and not x.is_graph_output():
                self.model.graph.remove(made, safe=True)
        self._name_constants()

    def _is_half(self, x: ir.Value) -> bool:
        """True for a value that the model has in float16."""
        dtype = self.graph[x.name or ""].dtype
        return x in self.wide or (dtype is not None and dtype == np.float16)

    def _is_constant(self, x: ir.Value) -> bool:
        return self.graph.is_constant(x.name or "")

    def _widens(self, node: ir.Node, read: list[ir.Value]) -> bool:
        """Whether a node that reads float16 computes in float32."""
        names = output_names(node)
        if any(self.graph[n].captured or self.graph[n].dtype is None for n in names):
            return False
        if key_of(node) in OF_HALVES:
            return False
        if not is_choice(node) and not _takes_float32(self.model, node):
            return False
        exprs = [self.graph[n].expr for n in names]
        combines = {expr.combine for expr in exprs if expr is not None}
        if is_choice(node) or combines == {Combine.MOVE}:
            moved = [x for x in read if not self._is_constant(x)]
            return bool(moved) and self.wide.issuperset(moved)
        contracts = key_of(node) in EXPANSIONS or not combines.isdisjoint(PRODUCTS)
        return contracts or not self.wide.isdisjoint(read)

    def _make_wide(self, x: ir.Value) -> None:
        """Note that a value is float32; an output of the model is converted back."""
        x.type = ir.TensorType(WIDE)
        self.wide.add(x)
        outputs = self.model.graph.outputs
        places = [k for k, y in enumerate(outputs) if y is x]
        if places:  # the name is the caller's
            producer = x.producer()
            assert producer is not None
            half = self._other(x, producer, wide=False)
            half.shape, half.name, x.name = x.shape, x.name, self.taken.value(f"{x.name}.float32")
            for k in places:
                outputs[k] = half

    def _other(self, x: ir.Value, node: ir.Node, wide: bool) -> ir.Value:
        """A value in the type that a node wants, converted once in each branch."""
        if wide and self._is_constant(x):
            return self._constant(x)
        producer = x.producer()
        beside = node if wide or producer is None else producer
        branch = beside.metadata_props.get(BRANCH)
        key = (x, branch)
        if key not in self.casts:
            source = self._moved(x) if wide else None
            if source is None:
                out = _cast(x, WIDE if wide else NARROW, self.taken)
            else:
                out = _moves(x, self._other(source, node, wide), self.taken)
                self.moved.append(x)
            cast = out.producer()
            assert cast is not None
            if branch is not None:
                cast.metadata_props[BRANCH] = branch
            if wide:
                self.model.graph.insert_before(node, cast)
            else:
                assert producer is not None
                self.model.graph.insert_after(producer, cast)
            self.casts[key] = out
        return self.casts[key]

    def _moved(self, x: ir.Value) -> ir.Value | None:
        """What a float16 value is made of by moving all of it, or the constant in which it looks up
        matrices: that is converted instead, so that what reads such a value finds where it is
        stored.
        """
        node = x.producer()
        if node is None or x in self.wide or len(node.outputs) != 1 or is_choice(node):
            return None
        expr, source = self.graph[x.name or ""].expr, node.inputs[0] if node.inputs else None
        if expr is None or source is None or not _takes_float32(self.model, node):
            return None
        operands = [r.operand for r in expr.reads]
        before = self.graph[source.name or ""].shape
        if expr.combine is not Combine.MOVE or before is None or not self._is_half(source):
            return None
        if operator_of(node).packs in LOOK_UPS and operands == [0, 1]:
            matrices = expr.reads[0].index.count(None) == 1 and len(before) > LEAST_RANK
            return source if matrices and self._is_constant(source) else None
        kept = nonneg(total_of(expr.shape) - total_of(before))
        return source if kept and operands == [0] else None

    def _constant(self, x: ir.Value) -> ir.Value:
        """A constant in float32."""
        if x not in self.constants:
            half = x.const_value
            assert half is not None
            name = self.taken.value(f"{x.name}.float32")
            shape = ir.Shape(half.shape.numpy())
            value = ir.val(name, const_value=Widened(half.numpy, shape, name))
            self.model.graph.register_initializer(value)
            self.constants[x] = value
        return self.constants[x]

    def _name_constants(self) -> None:
        """Constants that are wanted in float32 only keep their names."""
        initializers = self.model.graph.initializers
        for half, value in self.constants.items():
            name = half.name or ""
            if not half.uses() and not half.is_graph_output():
                del initializers[name]
                del initializers[value.name or ""]
                value.name = name
                self.model.graph.register_initializer(value)


def _cast(x: ir.Value, to: ir.DataType, names: Names) -> ir.Value:
    """A value in another type, by a node that is in no graph yet."""
    name = f"{x.name}.{'float32' if to == WIDE else 'float16'}"
    out = ir.Value(name=names.value(name), type=ir.TensorType(to), shape=x.shape)
    ir.node("Cast", [x], {"to": to}, outputs=[out], name=names.node(name))
    return out


def _moves(x: ir.Value, source: ir.Value, names: Names) -> ir.Value:
    """A float16 value in float32, moved from a source that is, by a node that is in no graph."""
    node = x.producer()
    assert node is not None
    out = ir.Value(name=names.value(f"{x.name}.float32"), type=ir.TensorType(WIDE), shape=x.shape)
    operands, name = [source, *node.inputs[1:]], names.node(f"{x.name}.float32")
    ir.Node(node.domain, node.op_type, operands, node.attributes.values(), outputs=[out], name=name)
    return out


def _takes_float32(model: ir.Model, node: ir.Node) -> bool:
    """True for an operator that computes with float32 what it does with float16."""
    if any(True for _ in bodies(node)) or any(a in node.attributes for a in TYPED):
        return False
    domain, op = key_of(node)
    schema = schema_of(domain, op, model.opset_imports.get(domain, 0))
    if schema is None:
        return False
    formals = list(schema.inputs)
    formals += formals[-1:] * (len(node.inputs) - len(formals))
    takes = (f.types for x, f in zip(node.inputs, formals, strict=False) if x is not None)
    return all(_FLOAT in types for types in takes if _HALF in types)


def narrow_constants(model: ir.Model) -> None:
    """Keep large constants that float16 holds in float16, behind a Cast, in place.

    Args:
        model: A lowered model.
    """
    names = names_of(model.graph)
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if not isinstance(tensor, Widened) or tensor.size < LEAST_ELEMENTS:
            continue
        out = _cast(value, WIDE, names)
        cast = out.producer()
        assert cast is not None
        ir.convenience.replace_all_uses_with(value, out)
        cast.replace_input_with(0, value)
        value.const_value, value.type = tensor.half(value.name or ""), ir.TensorType(NARROW)
        first = next(iter(model.graph))
        model.graph.insert_before(first, cast)
