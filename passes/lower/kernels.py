"""The kernels of packed nodes: which ones a plan needs on a target, and how they read operands.

    Pack                     ->  move=pack_b4
    Contract(k=64, n=64)     ->  dense=gather_gemm_k64_n64_none
    Contract(skips)          ->  dense=.., row=.., tile=.., block=..

What follows from the plan stands in no other place: passes neither ask for kernels nor name them.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import onnx_ir as ir

from pitc.ir.engines import Kernels, kernels_of
from pitc.ir.gpu_speed import clock_table
from pitc.ir.graph import Graph
from pitc.ir.kernel import ATTENTION_STORED, KernelRequest
from pitc.ir.plans.base import KernelPlan, Plan, Table
from pitc.ir.plans.ops import (
    Attention,
    AttentionGrad,
    Contract,
    Move,
    Unpack,
)
from pitc.ir.plans.whole import (
    AddRows,
    Elementwise,
    Grouped,
    Norm,
    OuterProducts,
    SparseProduct,
)
from pitc.ir.report import KernelRecord
from pitc.ir.target import Target
from pitc.ir.variants import SPARSE_FAMILIES
from pitc.passes.lower.builder import lead_of
from pitc.passes.lower.packed import Packed, operands_of, packed_plan, set_plan

Params = dict[str, int | str]
Roles = dict[str, KernelRequest]


def kernels_for(plan: Plan, target: Target) -> Roles:
    """The kernels that a plan needs on a target, by what they are for."""
    match plan:
        case Contract():
            return _of_contract(plan, target)
        case Attention():
            found = {
                "score_cap": plan.score_cap,
                "score_steps": plan.score_step,
                "weight_steps": plan.weight_step,
            }
            steps = {name: 1 for name, number in found.items() if number is not None}
            sizes: Params = {"d": plan.d, "dv": plan.dv, "bias": int(plan.bias)}
            sizes |= {"sees": plan.sees} if plan.sees else {}
            sizes |= {"sink": 1} if plan.sinks else {}
            sizes |= {ATTENTION_STORED[name]: 1 for name in plan.stored or ()}
            dtype = plan.rounded or plan.dtype

            def request(**more: int) -> KernelRequest:
                return KernelRequest.of_kind(
                    target.kind, "attention", dtype, **sizes, **steps, **more
                )

            listed = {"pairs": request(pairs=1)} if plan.pairs else {}
            return {"attention": request(), **listed}
        case AttentionGrad() if target.kind == "cuda":
            of_heads: Params = {"d": plan.d, "dv": plan.dv, "bias": int(plan.bias)}
            of_heads |= {"sees": plan.sees} if plan.sees else {}
            return {plan.op: KernelRequest.of_cuda(plan.op, plan.dtype, **of_heads)}
        case AttentionGrad():
            widths: Params = {"d": plan.d, "dv": plan.dv, "bias": int(plan.bias)}
            widths |= {} if plan.floor is None else {"floor": 1}
            widths |= {"zero": 1} if plan.no_pairs == "zero" else {}
            roles = {"attention_grad": KernelRequest.of("attention_grad", **widths)}
            if plan.pairs:
                roles["pairs"] = KernelRequest.of("attention_grad", **widths, pairs=1)
            return roles
        case OuterProducts():
            dense = {"dense": KernelRequest.of("outer_products_dense")}
            listed = {"listed": KernelRequest.of("outer_products")} if plan.masked else {}
            return dense | listed
        case Grouped() if target.kind == "cuda":
            sizes = {"k": plan.k, "n": plan.n}
            names: Params = {"activation": "none", "residual": 0, "grouped": 1}
            dense_of = {"dense": KernelRequest.of_cuda("gather_gemm", plan.dtype, **sizes, **names)}
            return dense_of | {"rows": KernelRequest.of("group_rows", "int64", "cuda")}
        case Grouped():
            product: Params = {"k": plan.k, "n": plan.n, "activation": "none", "residual": 0}
            lists = SPARSE_FAMILIES if plan.skips else ()
            words: Params = {"left_words": 1} if plan.skips and plan.rounded else {}
            kind = plan.rounded or plan.dtype
            dense_of = {"dense": KernelRequest.of("gather_gemm", kind, **product, **words)}
            return dense_of | {_role(f): KernelRequest.of(f, kind, **product) for f in lists}
        case Elementwise():
            given: Params = {"kinds": ",".join(plan.kinds), "formula": plan.formula}
            return {"elementwise": KernelRequest.of(plan.op, plan.dtype, target.kind, **given)}
        case Norm():
            flags = {"centred": int(plan.centred), "bias": int(plan.bias)}
            return {"norm": KernelRequest.of("norm", "bfloat16", n=plan.n, **flags)}
        case KernelPlan():
            family = "unpack" if isinstance(plan, Unpack) else "pack"
            return {"move": KernelRequest.of(family, plan.dtype, target.kind)}
    return {}


def _request(
    plan: KernelPlan, target: Target, family: str, params: Mapping[str, int | str]
) -> KernelRequest:
    return KernelRequest.of_kind(target.kind, family, plan.dtype, **params)


def _of_contract(plan: Contract, target: Target) -> Roles:
    def request(family: str, params: Mapping[str, int | str]) -> KernelRequest:
        return _request(plan, target, family, params)

    if plan.rounded:
        return _of_rounded(plan)

    stored: Params = {}
    if plan.right != "panels":
        stored = {"factor": int(plan.factor > 0), "stored": plan.right}
    product: Params = {"k": plan.k, **_epilogue(plan)}
    relu: Params = {"input_relu": 1} if plan.input_relu else {}  # lists are of its result
    kernels = {"dense": request("gather_gemm", product | relu | stored)}
    if plan.tiles:
        kernels["block"] = request("contract_block", product | stored)
    elif stored:
        turned: Params = {"n": target.turned_columns, "activation": "none", "residual": 0}
        kernels["panels"] = request("panels", {"k": plan.k})
        kernels["swrite"] = request("swrite_columns", _epilogue(plan))
        kernels |= {_role(f): request(f, product | turned) for f in SPARSE_FAMILIES}
        if plan.right == "kn" or plan.factor:
            rows: Params = {"k": plan.k, "n": plan.n, "stored": plan.right, "factor": plan.factor}
            kernels["rows"] = request("stored_rows", rows)
    elif plan.skips and target.kind == "cuda":
        of_a: Params = {"k": plan.k} if plan.inner is None else {"bits": 1}
        kernels["detect"] = request("detect", of_a)
        kernels["choose"] = request("choose", {})
        kernels["lists"] = request("lists", {"k": plan.k})
        for family in ("contract_tile", "contract_block"):  # lists hold what they read of A
            kernels[_role(family)] = request(family, _epilogue(plan))
        kernels["square"] = request("contract_square", {"k": plan.k} | _epilogue(plan))
    elif plan.skips:
        kernels |= {_role(f): request(f, product) for f in SPARSE_FAMILIES}
    if plan.inner is not None:
        first: Params = {"k": plan.inner, "n": plan.k, "activation": "relu", "residual": 0}
        kernels["inner"] = request("gather_gemm", first | {"bits": 1})
    return kernels


def _of_rounded(plan: Contract) -> Roles:
    """Where zeros are skipped rows are made words first, and kernels see no ReLU."""
    sizes: Params = {"k": plan.k, **_epilogue(plan)}
    stored = plan.stored or ()
    given = {"left_words": plan.skips or "a" in stored, "rounds_result": "result" in stored}
    flags = [name for name, there in given.items() if there]
    dense = sizes | dict.fromkeys(flags, 1)
    lists = SPARSE_FAMILIES if plan.skips else ()
    kernels = {"dense": KernelRequest.of("gather_gemm", "bfloat16", **dense)}
    return kernels | {_role(f): KernelRequest.of(f, "bfloat16", **sizes) for f in lists}


def _role(family: str) -> str:
    return family.removeprefix("contract_")


def _epilogue(plan: Contract) -> Params:
    return {"n": plan.n, "activation": plan.activation, "residual": int(plan.residual)}


def choose_kernels(packed: Packed) -> None:
    """Name in every plan the kernels that it needs, with the prices that it chooses by."""
    graph, target = packed.graph, packed.graph.target
    for node in packed.nodes():
        plan = packed_plan(node)
        if isinstance(plan, AddRows | SparseProduct):
            packed.log.runs[packed.log.sources[node]] = Kernels("cpu", KernelRecord(plan.op))
        if not isinstance(plan, KernelPlan):
            continue
        if isinstance(plan, Contract | Grouped):
            plan = replace(plan, prices=_prices(packed, plan))
        kernels = kernels_for(plan, target)
        packed.kernels |= dict.fromkeys(kernels.values())
        named = tuple((role, request.symbol) for role, request in kernels.items())
        plan = replace(plan, kernels=named, library=target.library)
        set_plan(node, plan, operands_of(node))
        if not isinstance(plan, Move):
            rows = _row_count(graph, node, plan)
            packed.log.runs[packed.log.sources[node]] = kernels_of(plan, target, rows)


def _prices(packed: Packed, plan: Contract | Grouped) -> Table:
    prices: Table = ()
    if plan.skips and packed.prices is not None:
        prices = packed.prices.table(plan.rounded or plan.dtype)
    on_gpu = packed.graph.target.kind == "cuda"
    return (*clock_table(plan.dtype), *prices) if on_gpu else prices


def _row_count(graph: Graph, node: ir.Node, plan: Plan) -> int | None:
    """Rows of a contraction whose sizes are all numbers."""
    if not isinstance(plan, Contract) or plan.gather or plan.scatter:
        return None
    lead = lead_of(graph, node.outputs[0]) or ()
    sizes = [size for size in lead if isinstance(size, int)]
    return prod(sizes) if sizes and len(sizes) == len(lead) else None
