"""The graph itself, between stages: names, order, scopes, types, choices, and what users see.

Each check is a generator of violations, one line each that names the node or the value. Nothing is
assumed of how a pass works: what it leaves is looked at as a reader of the file would.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir

from pitc.ir.branch import CHOOSE, DOMAIN, GROUP, SIDES, Path, groups, is_choice, path_of, within
from pitc.ir.inference import Inferred, infer
from pitc.ir.nodes import bodies, is_pit_node, node_name

ANY_VALUE = "tensor({})"
Types = Callable[[], Mapping[str, Inferred]]


@dataclass(frozen=True, slots=True)
class Face:
    """What a caller of a model sees: inputs and outputs by name, in order, with their types.

    Args:
        inputs: Names, types and ranks.
        outputs: The same of what it gives.
    """

    inputs: tuple[tuple[str, str, int | None], ...]
    outputs: tuple[tuple[str, str, int | None], ...]


def face_of(model: ir.Model) -> Face:
    """The face of a model."""
    main = model.graph
    return Face(tuple(map(_seen, main.inputs)), tuple(map(_seen, main.outputs)))


def _seen(value: ir.Value) -> tuple[str, str, int | None]:
    return value.name or "", str(value.type), None if value.shape is None else len(value.shape)


def wrong_model(model: ir.Model, face: Face, types: Types | None = None) -> Iterator[str]:
    """Violations of a model that had that face before.

    Args:
        model: The model.
        face: What it showed.
        types: Gives what `infer` gives of the model; None: `infer`.
    """
    yield from _wrong_face(face, face_of(model))
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    broken = [line for graph in graphs for line in _wrong_scope(graph, {})]
    yield from broken
    if broken:  # types cannot be followed through such a graph
        return
    yield from _wrong_operators(model)
    yield from _wrong_types(model, infer(model) if types is None else types())
    yield from _wrong_choices(model)


def _wrong_face(before: Face, now: Face) -> Iterator[str]:
    for what in ("inputs", "outputs"):
        old, new = getattr(before, what), getattr(now, what)
        if [n for n, _, _ in old] != [n for n, _, _ in new]:
            yield f"the {what} were {[n for n, _, _ in old]} and are {[n for n, _, _ in new]}"
            continue
        for (name, kind, rank), (_, other, new_rank) in zip(old, new, strict=True):
            if kind not in (other, "None") or (rank is not None and rank != new_rank):
                yield f"{what[:-1]} {name} was {kind} of rank {rank}, is {other} of rank {new_rank}"


def _wrong_scope(graph: ir.Graph, outer: Mapping[str, ir.Value]) -> Iterator[str]:
    """Names defined twice or before their use, in a graph and in its bodies.

    Args:
        graph: The graph.
        outer: What it may see of the graphs around it.
    """
    seen = dict(outer)
    for value in graph.inputs:
        yield from _defined(value, seen, "an input")
    for name, value in graph.initializers.items():
        if value.name != name:
            yield f"initializer {name} is called {value.name}"
        if value.const_value is None:
            yield f"initializer {name} has no data"
        elif value.shape is not None and not _may_hold(value.shape, value.const_value.shape):
            yield f"initializer {name} is declared {value.shape}, holds {value.const_value.shape}"
        if not any(value is known for known in graph.inputs):  # one that may be overridden
            yield from _defined(value, seen, "an initializer")
    for node in graph:
        for x in node.inputs:
            if x is not None and seen.get(x.name or "") is not x:
                yield f"{node_name(node)} reads {x.name}, which is not defined before it"
        for body in bodies(node):
            yield from _wrong_scope(body, seen)
        for output in node.outputs:
            if output.name:
                yield from _defined(output, seen, node_name(node))
    for output in graph.outputs:
        if seen.get(output.name or "") is not output:
            yield f"output {output.name} of {graph.name} is not defined"


def _may_hold(declared: ir.Shape, held: Iterable[object]) -> bool:
    """True where each size that is declared as a number is that of the data; a default for an input
    may have others than the next one.
    """
    sizes = list(held)
    return len(declared) == len(sizes) and all(
        d == size for d, size in zip(declared, sizes, strict=True) if isinstance(d, int)
    )


def _defined(value: ir.Value, seen: dict[str, ir.Value], by: str) -> Iterator[str]:
    if not value.name:
        yield f"{by} has no name"
    elif value.name in seen:
        yield f"{value.name} is defined twice, again by {by}"
    seen[value.name or ""] = value


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from ir.traversal.RecursiveGraphIterator(model.graph)


@cache
def _schema(op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def _schema_of(model: ir.Model, node: ir.Node) -> onnx.defs.OpSchema | None:
    return _schema(node.op_type, model.opset_imports.get(node.domain, 0), node.domain)


def _wrong_operators(model: ir.Model) -> Iterator[str]:
    """Domains that are not imported, counts of operands, attributes that an operator lacks."""
    functions = {(f.domain, f.name) for f in model.functions.values()}
    for node in _nodes(model):
        name, domain = node_name(node), node.domain
        if domain not in model.opset_imports:
            yield f"{name}: the operators of '{domain}' are not imported"
        if domain == DOMAIN and (domain, node.op_type) not in functions:
            yield f"{name}: the model has no function {node.op_type}"
        schema = _schema_of(model, node)
        if schema is None:
            continue
        # outputs at the end that nobody reads, and absent operands, may be left out
        if not schema.min_input <= len(node.inputs) <= schema.max_input:
            yield f"{name}: {node.op_type} has {len(node.inputs)} operands"
        unknown = [a for a in node.attributes if a not in schema.attributes]
        lacking = [
            k for k, a in schema.attributes.items() if a.required and k not in node.attributes
        ]
        if unknown or lacking:
            yield f"{name}: {node.op_type} has attributes {unknown} too many, lacks {lacking}"


def _wrong_types(model: ir.Model, types: Mapping[str, Inferred]) -> Iterator[str]:
    """Operands whose types an operator does not take, or not together."""
    known = {name: found.dtype for name, found in types.items()}
    for node in model.graph:
        for output in node.outputs:
            if output.name and output.dtype is not None and node.domain == "com.microsoft":
                known.setdefault(output.name, output.dtype)
    for node in model.graph:
        schema = _schema_of(model, node)
        bound: dict[str, ir.DataType] = {}
        for x, formal in zip(node.inputs, _formals(schema, len(node.inputs)), strict=False):
            dtype = known.get(x.name or "") if x is not None else None
            if dtype is None or not isinstance(x.type if x is not None else None, TYPES):
                continue
            if ANY_VALUE.format(_spelt(dtype)) not in formal.types:
                yield f"{node_name(node)}: {node.op_type} takes no {dtype}, operand {x and x.name}"
            elif formal.is_homogeneous and bound.setdefault(formal.type_str, dtype) != dtype:
                other = bound[formal.type_str]
                yield f"{node_name(node)}: {node.op_type} takes no {dtype} beside {other}"


TYPES = (ir.TensorType, type(None))


def _spelt(dtype: ir.DataType) -> str:
    return {"FLOAT": "float", "DOUBLE": "double"}.get(dtype.name, dtype.name.lower())


def _formals(
    schema: onnx.defs.OpSchema | None, count: int
) -> list[onnx.defs.OpSchema.FormalParameter]:
    """Formal parameters of so many operands; the last may stand for many."""
    formals = [] if schema is None else list(schema.inputs)
    if formals and len(formals) < count:
        formals += [formals[-1]] * (count - len(formals))
    return formals


def _wrong_choices(model: ir.Model) -> Iterator[str]:
    """Choices that are not well formed, and values that are read outside of their branch."""
    nodes = list(model.graph)
    known = groups(nodes)
    paths = {id(node): path_of(node, known) for node in nodes}
    for group, choices in known.items():
        if not group or len({id(c.inputs[0]) for c in choices}) != 1:
            yield f"the choices of If {group} have more than one condition, or no If"
    for node in nodes:
        own, choice = paths[id(node)], is_choice(node)
        if choice and (len(node.inputs) != 3 or None in node.inputs):
            yield f"{node_name(node)} is no choice between two values"
            continue
        for k, x in enumerate(node.inputs):
            producer = None if x is None else x.producer()
            there = None if producer is None else paths.get(id(producer))
            if own is None or not there:
                continue
            side: Path = (
                ((node.metadata_props.get(GROUP, ""), SIDES[k - 1]),) if choice and k else ()
            )
            if not within((*own, *side), there):
                yield f"{node_name(node)} reads {x and x.name} of a branch that it is not in"


def wrong_ends(model: ir.Model) -> Iterator[str]:
    """What a finished model has left over: choices, functions, values that nobody reads."""
    if DOMAIN in model.opset_imports or model.functions:
        yield f"functions are left: {sorted(f.name for f in model.functions.values())}"
    for node in _nodes(model):
        if (node.domain, node.op_type) == (DOMAIN, CHOOSE):
            yield f"{node_name(node)} is still a choice"
        if not any(o.uses() or o.is_graph_output() for o in node.outputs):
            yield f"{node_name(node)} gives what nobody reads"
    yield from _twice(node.name for node in _nodes(model) if node.name and is_pit_node(node))


def _twice(names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{count} kernel nodes are called {name}"
