"""Contractions become PIT nodes. Zeros are skipped of a left operand that may hold some, perhaps
made by the ReLU of a contraction in front, or of a right one that is computed when the model runs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import onnx_ir as ir

from pitc.ir.engines import Kernels, kernels_of
from pitc.ir.gpu_speed import clock_table
from pitc.ir.graph import Graph
from pitc.ir.kernel import MASK, KernelRequest
from pitc.ir.nodes import node_name
from pitc.ir.plans.ops import Contract
from pitc.ir.prices import Prices
from pitc.ir.sizes import sizes_known
from pitc.ir.variants import SPARSE_FAMILIES
from pitc.passes.lower.activation import relu_operand
from pitc.passes.lower.builder import Builder, dims_of, lead_of, same_dims, type_of
from pitc.passes.lower.gemm import Gemm, match_gemm, take_gathers
from pitc.passes.lower.rows import ahead, behind, forget_sizes, only_reader, with_shape
from pitc.passes.lower.weight import ComputedMatrix, Panels, padded_bias
from pitc.passes.rules.record import operator_of

STEPS_BETWEEN = 8  # nodes between the contractions of one ffn node


@dataclass(slots=True)
class Contractions:
    """What the rewrite wants to be PIT nodes.

    Args:
        packed: Contractions that run on packed rows, and the source nodes that they come from.
        sparse: Contractions of which an operand may hold zeros at run time, some of them packed,
            and the source nodes that they come from.
    """

    packed: dict[ir.Node, ir.Node] = field(default_factory=dict)
    sparse: dict[ir.Node, ir.Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fused:
    """What PIT nodes for contractions are made of.

    Args:
        kernels: The kernels they need.
        panels: Weights as panels.
        inside: Nodes that one which skips zeros has taken in or made idle, and its contraction in
            the source graph.
        taken: Nodes that one has taken in, and its contraction.
        made: What runs each contraction.
    """

    kernels: Sequence[KernelRequest]
    panels: Panels
    inside: Mapping[ir.Node, ir.Node]
    taken: Mapping[ir.Node, ir.Node]
    made: Mapping[ir.Node, Kernels]


@dataclass(slots=True)
class _Emitter:
    graph: Graph
    build: Builder
    prices: Prices | None
    packed: Mapping[ir.Node, ir.Node]
    panels: Panels = field(default_factory=Panels)
    requests: dict[KernelRequest, None] = field(default_factory=dict)
    replaced: dict[ir.Value, ir.Value] = field(default_factory=dict)
    inside: dict[ir.Node, ir.Node] = field(default_factory=dict)
    taken: dict[ir.Node, ir.Node] = field(default_factory=dict)
    made: dict[ir.Node, Kernels] = field(default_factory=dict)

    def emit(self, gemm: Gemm, inner: Gemm | None, source_node: ir.Node | None) -> None:
        """Replace one contraction, or two, by a node.

        Args:
            gemm: The contraction.
            inner: The one in front of it that becomes part of the node.
            source_node: Where zeros are skipped, the contraction of the source graph.
        """
        first = inner or gemm
        plan = self._plan(gemm, inner, sparse=source_node is not None)
        inputs = [first.source if first.gather is None else first.gather.inputs[0]]
        for each in [gemm] if inner is None else [inner, gemm]:
            inputs += [*self._matrix(each), *self._bias(each)]
        if gemm.residual is not None:
            inputs.append(gemm.residual)
        points = gemm.scatter or first.gather
        if points is not None:
            inputs += [points.inputs[1], points.inputs[3]]
        packed = self.packed.get(gemm.node)
        source = node_name(source_node or packed or gemm.node)
        label = source, plan.op if packed is None else f"packed {plan.op}"
        name = f"{gemm.result.name}.{plan.op}"
        read = {self.replaced.get(x, x) for x in inputs if x is not None}
        between = _between(read, gemm.result)
        self.taken |= dict.fromkeys(between, gemm.node)
        if source_node is not None:
            self.inside |= dict.fromkeys(between, source_node)
        rows = None if points is not None else _row_count(self.graph, gemm)
        self.made[gemm.node] = kernels_of(plan, self.graph.target, rows)
        self._replace(gemm, plan, inputs, name, label)

    def _plan(self, gemm: Gemm, inner: Gemm | None, *, sparse: bool) -> Contract:
        """The plan of a contraction; requests the kernels."""
        dtype, first, weight = self._dtype(gemm), inner or gemm, gemm.weight
        stored = _stored(weight)
        kernels = {"dense": self._request("gather_gemm", gemm, **_product(gemm), **stored)}
        if isinstance(weight, ComputedMatrix):
            kernels |= self._right_kernels(gemm, weight, stored)
        elif sparse:
            kernels |= self._listed_kernels(gemm, _product(gemm), bits=inner is not None)
        if inner is not None:
            kernels["inner"] = self._request("gather_gemm", inner, **_product(inner), bits=1)
        prices = self.prices.table(dtype) if sparse and self.prices is not None else ()
        if self.graph.target.kind == "cuda":
            prices = (*clock_table(dtype), *prices)
        return Contract(
            activation=gemm.activation,
            bias=self._has_bias(gemm),
            dtype=dtype,
            factor=_factor(weight) if isinstance(weight, ComputedMatrix) else 0,
            gather=first.gather is not None,
            inner=None if inner is None else inner.weight.k,
            inner_bias=inner is not None and self._has_bias(inner),
            input_relu=gemm.input_relu,
            k=weight.k,
            kernels=tuple(kernels.items()),
            library=self.graph.target.library,
            n=weight.n,
            prices=prices,
            residual=gemm.residual is not None,
            right=str(stored.get("stored", "panels")),
            scatter=gemm.scatter is not None,
            skips=sparse,
        )

    def _right_kernels(
        self, gemm: Gemm, weight: ComputedMatrix, stored: dict[str, int | str]
    ) -> dict[str, str]:
        """Request kernels of a product by a computed matrix, by what they are for."""
        columns = self.graph.target.turned_columns
        turned: dict[str, int | str] = {"n": columns, "activation": "none", "residual": 0}
        kernels = {
            "panels": self._request("panels", gemm, k=weight.k),
            "swrite": self._request("swrite_columns", gemm, **_epilogue(gemm)),
            **self._listed_kernels(gemm, {**_product(gemm), **turned}, bits=False),
        }
        if stored["stored"] == "kn" or stored["factor"]:
            rows = stored | {"factor": _factor(weight)}
            kernels["rows"] = self._request("stored_rows", gemm, k=weight.k, n=weight.n, **rows)
        return kernels

    def _listed_kernels(
        self, gemm: Gemm, made: Mapping[str, int | str], *, bits: bool
    ) -> dict[str, str]:
        """Request the kernels over lists, and on a GPU those that make the lists there."""
        if self.graph.target.kind != "cuda":
            return {
                family.removeprefix("contract_"): self._request(family, gemm, **made)
                for family in SPARSE_FAMILIES
            }
        k, of_c = gemm.weight.k, _epilogue(gemm)
        return {
            "detect": self._request("detect", gemm, **({"bits": 1} if bits else {"k": k})),
            "choose": self._request("choose", gemm),
            "lists": self._request("lists", gemm, k=k),
            # lists hold what they read of A
            "tile": self._request("contract_tile", gemm, **of_c),
            "block": self._request("contract_block", gemm, **of_c),
            "square": self._request("contract_square", gemm, k=k, **of_c),
        }

    def _dtype(self, gemm: Gemm) -> str:
        """Type of the elements of a contraction, as plans say it."""
        dtype = type_of(self.graph, gemm.weight.value)
        assert dtype is not None
        return str(dtype.numpy())

    def _request(self, family: str, gemm: Gemm, **params: int | str) -> str:
        """Note that a kernel is needed; its symbol."""
        dtype = self._dtype(gemm)
        request = KernelRequest.of_kind(self.graph.target.kind, family, dtype, **params)
        self.requests.setdefault(request)
        return request.symbol

    def _matrix(self, gemm: Gemm) -> list[ir.Value]:
        """The right operand: panels, or what it is computed from."""
        if not isinstance(gemm.weight, ComputedMatrix):
            return [self.panels.value(self.build, gemm.weight)]
        factor = gemm.weight.factor
        return [gemm.weight.value] if factor is None else [gemm.weight.value, factor]

    def _has_bias(self, gemm: Gemm) -> bool:
        """Whether its node has a bias; a GPU's always has."""
        return gemm.bias is not None or self.graph.target.pads_bias

    def _bias(self, gemm: Gemm) -> list[ir.Value]:
        if self.graph.target.pads_bias:
            return [padded_bias(self.build, gemm.bias, gemm.weight.n)]
        if gemm.bias is None:
            return []
        whole = dims_of(self.graph, gemm.bias) == (gemm.weight.n,)
        return [gemm.bias if whole else self.build.reshape(gemm.bias, [gemm.weight.n])]

    def _replace(
        self,
        gemm: Gemm,
        plan: Contract,
        inputs: Sequence[ir.Value | None],
        name: str,
        label: tuple[str, str],
    ) -> None:
        result = gemm.result if gemm.scatter is None else gemm.scatter.outputs[0]
        values = [self.replaced.get(x, x) for x in inputs if x is not None]
        dims = dims_of(self.graph, result)
        lead = lead_of(self.graph, values[0])  # an earlier node may have taken over a name
        # without known sizes there is no Reshape on the way, and other dims are other names
        sizes = self.graph[result.name or ""].shape
        reshaped = gemm.points is None and sizes is not None and sizes_known(self.graph, sizes)
        reshaped = reshaped and dims is not None and dims[:-1] != lead
        if reshaped:
            dims = None if lead is None else (*lead, gemm.weight.n)
        dtype = type_of(self.graph, gemm.weight.value) or ir.DataType.FLOAT
        (out,) = self.build.kernel(plan, values, [(name, dtype, dims)], *label)
        if reshaped:
            out = with_shape(self.graph, self.build, out, result)
        self.replaced[result] = out
        ir.convenience.replace_all_uses_with(result, out, replace_graph_outputs=True)
        if out.is_graph_output():
            result.name, out.name = out.name, result.name
        forget_sizes(self.graph, self.build, gemm.inside)


def _row_count(graph: Graph, gemm: Gemm) -> int | None:
    """Rows of a contraction whose sizes are all numbers."""
    lead = lead_of(graph, gemm.result) or ()
    sizes = [size for size in lead if isinstance(size, int)]
    return prod(sizes) if sizes and len(sizes) == len(lead) else None


def _between(inputs: Collection[ir.Value], result: ir.Value) -> set[ir.Node]:
    """The nodes that lead from some values to another one, not past what reads sizes only."""
    found: set[ir.Node] = set()
    todo = [result]
    while todo:
        node = todo.pop().producer()
        if node is not None and node not in found:
            found.add(node)
            if not operator_of(node).reads_no_element:
                todo += [x for x in node.inputs if x is not None and x not in inputs]
    return found


def _stored(weight: object) -> dict[str, int | str]:
    """How a computed matrix is stored, as kernels say it."""
    if not isinstance(weight, ComputedMatrix):
        return {}
    stored = "nk" if weight.transposed else "kn"
    return {"factor": int(weight.factor is not None), "stored": stored}


def _factor(weight: ComputedMatrix) -> int:
    """What kind of factor a computed matrix has, as plans say it."""
    if weight.finite and not weight.transposed:
        return MASK
    return int(weight.factor is not None)


def _epilogue(gemm: Gemm) -> dict[str, int | str]:
    residual = int(gemm.residual is not None)
    return {"n": gemm.weight.n, "activation": gemm.activation, "residual": residual}


def _product(gemm: Gemm) -> dict[str, int | str]:
    relu = {"input_relu": 1} if gemm.input_relu else {}
    return {"k": gemm.weight.k, **relu, **_epilogue(gemm)}


def fuse_contractions(
    graph: Graph,
    build: Builder,
    contractions: Contractions,
    prices: Prices | None,
) -> Fused:
    """Replace contractions by PIT nodes.

    Args:
        graph: The analysed graph.
        build: Adds nodes.
        contractions: MatMul and Gemm nodes.
        prices: Of the sparse variants; None: no node is sparse.

    Returns:
        What was made.
    """
    emitter = _Emitter(graph, build, prices, contractions.packed)
    sparse = contractions.sparse if prices is not None else {}
    wanted = dict.fromkeys([*contractions.packed, *sparse])
    adds: set[ir.Node] = set()
    matched = (match_gemm(graph, n, adds, sparse.get(n)) for n in wanted)
    found = {g.result: g for g in matched if g is not None}
    take_gathers(list(found.values()))
    inner = _inner_contractions(graph, found, sparse)
    taken = {g.node for g in inner.values()}
    for gemm in found.values():
        if gemm.node not in taken:
            first = inner.get(gemm.node, gemm)
            alone = first is gemm and gemm.node in sparse and not gemm.computed
            if alone and graph.target.reads_relu:
                _take_relu(graph, gemm)
            _choose_source(graph, gemm, first)
            emitter.emit(gemm, inner.get(gemm.node), sparse.get(gemm.node))
    return Fused(
        list(emitter.requests), emitter.panels, emitter.inside, emitter.taken, emitter.made
    )


def _inner_contractions(
    graph: Graph, found: dict[ir.Value, Gemm], sparse: Collection[ir.Node]
) -> dict[ir.Node, Gemm]:
    """For a sparse contraction the one in front, if ReLU and nothing else stands between them."""
    pairs: dict[ir.Node, Gemm] = {}
    for gemm in found.values():
        if gemm.node not in sparse or gemm.gather is not None or gemm.computed:
            continue
        inner = next((found[x] for x in behind(graph, gemm.source) if x in found), None)
        if inner is None:
            before = _contraction_before(gemm.source)
            inner = None if before is None else match_gemm(graph, before, set())
        if inner is None or inner.activation != "relu" or inner.residual is not None:
            continue
        end = ahead(graph, inner.result)
        alone = only_reader(graph, end) is gemm.node and end is gemm.node.inputs[0]
        if alone and inner.node not in sparse:
            gemm.inside += [*inner.inside, inner.result, end]
            pairs[gemm.node] = inner
    return pairs


def _take_relu(graph: Graph, gemm: Gemm) -> None:
    """Read what ReLU reads, if nobody else wants its result."""
    operand = gemm.node.inputs[0]
    if operand is None or gemm.gather is not None or only_reader(graph, operand) is not gemm.node:
        return
    for value in behind(graph, operand):
        before = relu_operand(graph, value)
        if before is not None and ahead(graph, value) is operand:
            gemm.inside += [value, operand]
            gemm.source, gemm.input_relu = before, True
            return


def _choose_source(graph: Graph, gemm: Gemm, first: Gemm) -> None:
    """Read rows in the shape in which they are written, where some value has them so."""
    lead = lead_of(graph, gemm.result)
    for source in behind(graph, first.source):
        if same_dims(lead_of(graph, source), lead):
            first.source = source
            return


def _contraction_before(value: ir.Value) -> ir.Node | None:
    """The contraction that a value is computed from in a few steps."""
    for _ in range(STEPS_BETWEEN):
        node = value.producer()
        if node is None:
            return None
        if node.op_type in ("MatMul", "Gemm"):
            return node
        computed = [x for x in node.inputs if x is not None and x.producer() is not None]
        if not computed:
            return None
        value = computed[0]
    return None
