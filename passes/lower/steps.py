"""Lowering: forms become a packed IR, small steps change it, and packed nodes are emitted.

`STEPS` is their order, each has a file of its own. Behind each one the packed IR is checked, where
checks are wanted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.plans.whole import Grouped
from pitc.ir.prices import Prices
from pitc.ir.region import Region
from pitc.ir.unused import remove_unused
from pitc.passes.expand import restore_fused
from pitc.passes.lower.added_rows import add_rows
from pitc.passes.lower.attention import fuse_head_splits
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.channels.convolve import skip_channels
from pitc.passes.lower.elementwise import fuse_elementwise
from pitc.passes.lower.epilogue import fuse_epilogues
from pitc.passes.lower.few_terms import sum_few_terms
from pitc.passes.lower.gather_quantised import gather_bytes
from pitc.passes.lower.given_up import zero_given_up
from pitc.passes.lower.kernels import choose_kernels
from pitc.passes.lower.masks import fuse_masks
from pitc.passes.lower.moves import fuse_moves
from pitc.passes.lower.norms import make_norms
from pitc.passes.lower.operands import fuse_left_operands
from pitc.passes.lower.order import place_early
from pitc.passes.lower.packed import Packed, emit, operands_of, packed_plan, set_plan
from pitc.passes.lower.place_rows import place_rows
from pitc.passes.lower.products import contract, product_of
from pitc.passes.lower.regions import merge_regions
from pitc.passes.lower.reshapes import join_reshapes
from pitc.passes.lower.rewrite import Rewriter
from pitc.passes.lower.rounded import round_attention, store_rounded
from pitc.passes.lower.rows import replace_sizes
from pitc.passes.regions.choose import Regions
from pitc.passes.regions.demand import is_shape_of_packed


@dataclass(slots=True)
class Lowering:
    """What is lowered, and how far it is.

    Args:
        regions: The chosen forms.
        packed: The packed IR.
        forms: Makes nodes of forms.
        given_up: Outputs that the user gives up at dead tokens: they are 0 there.
    """

    regions: Regions
    packed: Packed
    forms: Rewriter
    given_up: Mapping[str, Sequence[Region]] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The analysed graph."""
        return self.packed.graph

    @property
    def unpacked(self) -> list[ir.Node]:
        """Nodes that skip zeros and run as they were."""
        demand, skips = self.regions.demand, self.regions.skips
        return [n for n in skips if n in demand.nodes and n not in demand.forms]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the lowering, which changes the packed IR in place."""

    name: str
    run: Callable[[Lowering], None]


def _build(low: Lowering) -> None:
    """Make nodes of forms, with SWrite at exits."""
    demand, forms, build = low.regions.demand, low.regions.forms, low.packed.build
    for node in low.graph.nodes:
        if node not in demand.forms:
            continue
        low.forms.emit(node, forms[node])
        for packing in forms[node].outputs:
            if packing is None or packing.name not in demand.exits or forms[node].scatters:
                continue
            old = build.value(packing.name)
            rows = low.forms.packed[packing.name, packing.domain, packing.coords]
            low.forms.replace(old, low.forms.unpack(packing, rows))
    for node in low.graph.nodes:
        if node in demand.nodes and is_shape_of_packed(low.graph, forms, node):
            replace_sizes(low.graph, build, node)


def _zero_padded_outputs(low: Lowering) -> None:
    for name, where in low.given_up.items():
        zero_given_up(low.graph, low.packed.build, name, where, low.regions)


def _make_contractions(low: Lowering) -> None:
    """Products by a matrix become packed nodes: those of packed rows, then others with zeros; and
    where products round their operands, all others.
    """
    packed = low.packed
    found = [(made, source) for source, made in packed.log.made.items()]
    others = [n for n in low.graph.nodes if packed.graph.target.rounds and n.graph is not None]
    alone = (n for n in others if n not in low.regions.demand.forms)
    whole = dict.fromkeys((*low.unpacked, *alone))
    for node in packed.nodes():
        plan, source = packed_plan(node), packed.log.sources.get(node)
        if isinstance(plan, Grouped) and source in low.regions.skips:
            set_plan(node, replace(plan, skips=True), operands_of(node))
    for node, source in (*found, *((n, n) for n in whole)):
        skips = source in low.regions.skips
        product = product_of(packed.graph, node, source if skips else None)
        if product is not None:
            contract(packed, product, source, skips=skips)
    fuse_epilogues(packed)


def _tidy(low: Lowering) -> None:
    low.graph.model.graph.sort()  # what has no reader is found from the end
    remove_unused(low.graph.model)


def _restore(low: Lowering) -> None:
    restore_fused(low.graph.model, {*low.regions.demand.forms, *low.unpacked})


STEPS = (
    Step("build", _build),
    Step("zero padded outputs", _zero_padded_outputs),
    Step("skip channels", lambda low: skip_channels(low.packed, low.regions.skips)),
    Step("few terms", lambda low: sum_few_terms(low.packed, low.regions.skips)),
    Step("contractions", _make_contractions),
    Step("masks", lambda low: fuse_masks(low.packed)),
    Step("moves", lambda low: fuse_moves(low.packed)),
    Step("left operands", lambda low: fuse_left_operands(low.packed)),
    Step("head splits", lambda low: fuse_head_splits(low.packed)),
    Step("rows", lambda low: place_rows(low.packed)),
    Step("bytes", lambda low: gather_bytes(low.packed, low.forms.gathers)),
    Step("reshapes", lambda low: join_reshapes(low.packed)),
    Step("tidy", _tidy),
    Step("restore", _restore),
    Step("added rows", lambda low: add_rows(low.packed)),
    Step("rounded attention", lambda low: round_attention(low.packed)),
    Step("norms", lambda low: make_norms(low.packed)),
    Step("rounded values", lambda low: store_rounded(low.packed)),
    Step("elementwise", lambda low: fuse_elementwise(low.packed)),
    Step("kernels", lambda low: choose_kernels(low.packed)),
    Step("regions on GPUs", lambda low: merge_regions(low.packed)),
)
"""In order."""


def lower(
    graph: Graph,
    regions: Regions,
    given_up: Mapping[str, Sequence[Region]],
    *,
    prices: Prices | None = None,
    prefix: str = "pitc",
    check: Callable[[ir.Model, str], None] | None = None,
) -> Lowering:
    """Turn chosen forms into nodes, in place.

    Args:
        graph: The analysed graph; its model is changed.
        regions: The chosen forms.
        given_up: Outputs that the user gives up at dead tokens: they are 0 there.
        prices: Of sparse contractions; None: all stay dense.
        prefix: Prefix of all new names.
        check: Called with the model and the name of each step behind it.

    Returns:
        What was made: kernels, panels, and the log of what became of the source's nodes.
    """
    packed = Packed(graph, Builder(graph, prefix), prices)
    low = Lowering(regions, packed, Rewriter(packed), given_up)
    for step in STEPS:
        step.run(low)
        if check is not None:
            check(graph.model, step.name)
    place_early(graph.model.graph, packed.build.made)
    emit(packed)
    return low
