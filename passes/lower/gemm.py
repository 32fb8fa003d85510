"""Packed contractions by a constant weight become gather_gemm nodes.

    c = activation(a @ w + bias) + residual

The steps behind a contraction are taken into its node while each is the only reader of the one
before: a constant vector added, an activation (`activation.py`), another packed value of the same
shape added. A pack node in front is taken in as SRead when only such contractions read it, an
unpack node behind as SWrite.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.kernel import KernelRequest
from pitc.ir.nodes import Array
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count
from pitc.ir.plan import Field, Plan
from pitc.passes.lower.activation import activation_behind
from pitc.passes.lower.builder import Builder

MIN_EXTENT = 16  # smaller contractions stay with ONNX Runtime


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant right operand.

    Args:
        value: The initializer; `[K, N]` in any number of dimensions.
        transposed: It is stored `[N, K]`.
        k: Rows of the matrix.
        n: Its columns.
    """

    value: ir.Value
    transposed: bool
    k: int
    n: int

    def panels(self, tensor: ir.TensorProtocol) -> Array:
        """The weight in the layout that kernels read.

        Args:
            tensor: Its elements: by then, those of the initializer may be in the artifact.
        """
        w = tensor.numpy()
        if self.transposed:
            return pack_panels(w.reshape(self.n, self.k).T)
        return pack_panels(w.reshape(self.k, self.n))


@dataclass(slots=True)
class Gemm:
    """One contraction and what was taken into its node."""

    node: ir.Node
    source: ir.Value
    weight: Weight
    result: ir.Value
    bias: ir.Value | None = None
    activation: str = "none"
    residual: ir.Value | None = None
    gather: ir.Node | None = None
    scatter: ir.Node | None = None
    shape: tuple[int | str | None, ...] = field(default=())


@dataclass(slots=True)
class Panels:
    """Weights that a compiled graph holds as panels: names of the source weight and of the
    panels.
    """

    made: dict[tuple[str, bool, int, int], ir.Value] = field(default_factory=dict)

    def value(self, build: Builder, weight: Weight) -> ir.Value:
        """The panels of a weight, made once and computed when they are written."""
        key = (weight.value.name or "", weight.transposed, weight.k, weight.n)
        if key not in self.made:
            tensor = weight.value.const_value
            assert tensor is not None
            make = partial(weight.panels, tensor)
            shape = (panel_count(weight.n), weight.k, PANEL_WIDTH)
            self.made[key] = build.lazy_constant(f"{key[0]}.panels", make, shape)
        return self.made[key]


def fuse_gemms(
    graph: Graph, build: Builder, contractions: Sequence[ir.Node], library: str
) -> tuple[list[KernelRequest], Panels]:
    """Replace packed contractions by gather_gemm nodes.

    Args:
        graph: The analysed graph.
        build: Adds nodes.
        contractions: MatMul and Gemm nodes that the rewrite has made.
        library: File name of the kernel library.

    Returns:
        The kernels needed, and the panels made.
    """
    found = [g for n in contractions if (g := _match(graph, n)) is not None]
    _take_gathers(found)
    requests: dict[KernelRequest, None] = {}
    panels = Panels()
    replaced: dict[ir.Value, ir.Value] = {}
    for gemm in found:
        request = KernelRequest.of(
            "gather_gemm",
            k=gemm.weight.k,
            n=gemm.weight.n,
            activation=gemm.activation,
            residual=int(gemm.residual is not None),
        )
        requests.setdefault(request)
        _emit(build, gemm, panels, request, library, replaced)
    return list(requests), panels


def _match(graph: Graph, node: ir.Node) -> Gemm | None:
    source, weight = node.inputs[0], _weight(node)
    if source is None or weight is None or source.dtype != ir.DataType.FLOAT:
        return None
    result = node.outputs[0]
    gemm = Gemm(node, source, weight, result, shape=tuple(_dims(result)))
    if node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None:
        if not _is_vector(node.inputs[2], weight.n):
            return None
        gemm.bias = node.inputs[2]
    else:
        _take_bias(gemm)
    found = activation_behind(graph, gemm.result)
    if found is not None:
        gemm.activation, gemm.result = found.name, found.result
    _take_residual(gemm)
    reader = _only_reader(gemm.result)
    if reader is not None and _is_plan(reader, "unpack") and _in_order(reader):
        gemm.scatter = reader
    return gemm


def _weight(node: ir.Node) -> Weight | None:
    """The constant float32 matrix on the right of a contraction, with the transposes on its way."""
    attributes = {k: a.value for k, a in node.attributes.items()}
    if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        return None
    value, transposed = node.inputs[1], bool(attributes.get("transB", 0))
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "Transpose" and not producer.domain:
        perm = producer.attributes.get("perm")
        if perm is not None and list(perm.as_ints()) != [1, 0]:
            return None
        value, transposed = producer.inputs[0], not transposed
        producer = None if value is None else value.producer()
    sizes: list[int] | None = None
    if producer is not None and producer.op_type == "Reshape" and not producer.domain:
        value, target = producer.inputs[0], producer.inputs[1]
        if target is None or target.const_value is None or not target.is_initializer():
            return None
        sizes = [int(n) for n in target.const_value.numpy().reshape(-1)]
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return None
    sizes = sizes or [int(d) for d in tensor.shape.numpy()]
    if len(sizes) != 2 or min(sizes) < 1 or prod(sizes) != tensor.size:
        return None
    rows, columns = sizes
    k, n = (columns, rows) if transposed else (rows, columns)
    return Weight(value, transposed, k, n) if min(k, n) >= MIN_EXTENT else None


def _dims(value: ir.Value) -> list[int | str | None]:
    return (
        [] if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    )


def _is_vector(value: ir.Value | None, n: int) -> bool:
    """True for a constant float32 row of n numbers."""
    if value is None or value.const_value is None or not value.is_initializer():
        return False
    tensor = value.const_value
    dims = [int(d) for d in tensor.shape.numpy()]
    row = bool(dims) and dims[-1] == n and all(d == 1 for d in dims[:-1])
    return row and tensor.dtype == ir.DataType.FLOAT and not value.is_graph_input()


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _other_operand(reader: ir.Node | None, value: ir.Value) -> ir.Value | None:
    """The other operand of an Add that is the only reader of a value."""
    if reader is None or reader.domain or reader.op_type != "Add" or len(reader.inputs) != 2:
        return None
    return reader.inputs[1] if reader.inputs[0] is value else reader.inputs[0]


def _take_bias(gemm: Gemm) -> None:
    reader = _only_reader(gemm.result)
    other = _other_operand(reader, gemm.result)
    if reader is not None and _is_vector(other, gemm.weight.n):
        gemm.bias, gemm.result = other, reader.outputs[0]
    elif reader is not None and reader.op_type == "Reshape" and not reader.domain:
        _take_split_bias(gemm, reader.outputs[0])


def _take_split_bias(gemm: Gemm, split: ir.Value) -> None:
    """A constant added behind the Reshape that splits columns into heads comes in front of it."""
    add = _only_reader(split)
    other = _other_operand(add, split)
    if add is None or other is None or add.outputs[0].is_graph_output():
        return
    tensor = other.const_value if other.is_initializer() and not other.is_graph_input() else None
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size != gemm.weight.n:
        return
    gemm.bias = other
    ir.convenience.replace_all_uses_with(add.outputs[0], split)


def _take_residual(gemm: Gemm) -> None:
    reader = _only_reader(gemm.result)
    other = _other_operand(reader, gemm.result)
    if reader is None or other is None or other is gemm.result:
        return
    same = tuple(_dims(other)) == gemm.shape and None not in gemm.shape
    if same and len(gemm.shape) == 2 and other.dtype == ir.DataType.FLOAT:
        gemm.residual, gemm.result = other, reader.outputs[0]


def _is_plan(node: ir.Node, op: str) -> bool:
    plan = node.attributes.get("ep_cache_context")
    return node.op_type == "EPContext" and plan is not None and f"\nop={op}\n" in plan.as_string()


def _in_order(node: ir.Node) -> bool:
    """True where all coordinates come first, in order, and one dimension is left."""
    plan = node.attributes["ep_cache_context"].as_string()
    (dims,) = [line[5:].split(",") for line in plan.split("\n") if line.startswith("dims=")]
    coords = node.inputs[2]
    assert coords is not None and coords.shape is not None
    rank = coords.shape[0]
    return isinstance(rank, int) and dims == [*(f"c{k}" for k in range(rank)), "r"]


def _take_gathers(found: Sequence[Gemm]) -> None:
    """SRead: skip a pack node that only such contractions read."""
    first = {g.node for g in found}
    for gemm in found:
        pack = gemm.source.producer()
        if pack is None or not _is_plan(pack, "pack") or not _in_order(pack):
            continue
        if all(u.node in first and u.idx == 0 for u in gemm.source.uses()):
            gemm.gather = pack


def _emit(
    build: Builder,
    gemm: Gemm,
    panels: Panels,
    request: KernelRequest,
    library: str,
    replaced: dict[ir.Value, ir.Value],
) -> None:
    fields: dict[str, Field] = {
        "activation": gemm.activation,
        "bias": int(gemm.bias is not None),
        "gather": int(gemm.gather is not None),
        "k": gemm.weight.k,
        "kernel": request.symbol,
        "library": library,
        "n": gemm.weight.n,
        "residual": int(gemm.residual is not None),
        "scatter": int(gemm.scatter is not None),
    }
    source = gemm.source if gemm.gather is None else gemm.gather.inputs[0]
    inputs: list[ir.Value | None] = [source, panels.value(build, gemm.weight)]
    if gemm.bias is not None:
        rows = [gemm.bias] if _dims(gemm.bias) == [gemm.weight.n] else []
        inputs += rows or [build.reshape(gemm.bias, [gemm.weight.n])]
    if gemm.residual is not None:
        inputs.append(gemm.residual)
    points = gemm.scatter or gemm.gather
    if points is not None:
        inputs += [points.inputs[1], points.inputs[3]]
    result = gemm.result if gemm.scatter is None else gemm.scatter.outputs[0]
    shape = tuple(_dims(result)) or gemm.shape
    values: list[ir.Value] = [replaced.get(x, x) for x in inputs if x is not None]
    (out,) = build.kernel(
        Plan("gather_gemm", tuple(sorted(fields.items()))),
        values,
        [(f"{result.name}.gemm", ir.DataType.FLOAT, shape)],
    )
    replaced[result] = out
    ir.convenience.replace_all_uses_with(result, out, replace_graph_outputs=True)
    if gemm.scatter is not None and out.is_graph_output():
        result.name, out.name = out.name, result.name
