"""The table of packed forms: for each kind of node what it becomes, what it is tried with and what
that saves. The first row that fits wins; where none does, the refusal is told that looked deepest.

A new kind of packed node is a row here, and a file that says its form.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from pitc.ir.expr import Combine
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions import contraction, packed, routing
from pitc.passes.regions.attention import attention
from pitc.passes.regions.attention_grad import attention_gradient
from pitc.passes.regions.candidates import Tried
from pitc.passes.regions.channels import live_channels
from pitc.passes.regions.contraction import Kind, no_kernel, packed_axes
from pitc.passes.regions.extremes import by_extremes
from pitc.passes.regions.few_terms import few_terms
from pitc.passes.regions.form import Form, FormRule, PackCandidate, Saves, Skip, has_elements
from pitc.passes.regions.grouped import grouped, is_grouped
from pitc.passes.regions.items import fewer_items
from pitc.passes.regions.outer_products import outer_products
from pitc.passes.regions.same_node import same_node
from pitc.passes.regions.sampled import sampled
from pitc.passes.regions.sparse import sparse_operand
from pitc.passes.regions.terms import (
    reduction_packed_form,
    scatter_of_live_rows,
    sum_of_live_rows,
    sum_of_scaled_rows,
)
from pitc.passes.rules.record import PackRule, operator_of

Axes = frozenset[Kind]


def first_told(first: Refusal, _: Refusal) -> Refusal:
    """The reason of the row before."""
    return first


def unless_not_lowered(first: Refusal, second: Refusal) -> Refusal:
    """Of a node that a form of its own does not lower, why it is none of items either."""
    return second if first.code is Code.NO_LOWERING else first


def unless_layout(first: Refusal, second: Refusal) -> Refusal:
    """Of a product whose operands do not lie as rows that are summed, why it is no other one."""
    return second if first.code is Code.LAYOUT else first


def unless_no_fact(first: Refusal, second: Refusal) -> Refusal:
    """Of a convolution of whose channels nothing is known, what is known of its operands."""
    return second if first.code is Code.NO_FACT else first


def both_told(first: Refusal, second: Refusal) -> Refusal:
    """Why a contraction has no form by itself, and why it is no attention: in front the reason that
    looked at more of it.
    """
    if second.code is Code.AXIS_NOT_PIT:  # it is none
        return first
    vague = first.code is Code.AXIS_NOT_PIT or (
        first.code is Code.NO_KERNEL and second.code is Code.NO_FACT
    )
    return replace(second, also=first) if vague else replace(first, also=second)


@dataclass(frozen=True, slots=True)
class FormKind:
    """One kind of packed node.

    Args:
        rule: Its name, for people.
        form: What a candidate becomes, or why it does not.
        packs: What the records of its operators say of it; none: it takes whatever they say.
        combine: How its expression combines operands; None: in any way.
        axes: What the packed axes are to the left operand of a contraction; None: anything.
        tried: What it is tried with.
        saves: What is saved where it leaves something out.
        told: What is told where it refuses as those before it did.
        when: Whether it may be one at all; None: it may.
    """

    rule: str
    form: FormRule
    packs: tuple[PackRule | None, ...] = ()
    combine: Combine | None = None
    axes: Axes | None = None
    tried: Tried = Tried.DEAD | Tried.MOVED | Tried.WANTED
    saves: Saves = Saves.ROWS
    told: Callable[[Refusal, Refusal], Refusal] = first_told
    when: Callable[[PackCandidate], bool] | None = None


def _contraction(form: FormRule, *axes: Kind) -> FormKind:
    return FormKind("contraction", form, (PackRule.CONTRACTION,), axes=frozenset(axes))


BY_EXPRESSION = (
    PackRule.PER_TENSOR,
    PackRule.REDUCTION,
    PackRule.RESHAPED,
    PackRule.REPEATED,
    PackRule.TRANSPOSED,
)
"""Their operators are like those of which the records say nothing: the expression tells."""

FORMS = (
    FormKind("elementwise", packed.elementwise, (None,), Combine.MAP),
    FormKind("reduction", packed.reduction, (None,), Combine.REDUCE),
    FormKind("movement", packed.movement, (None,), Combine.MOVE),
    FormKind("per_channel", packed.per_channel, (PackRule.PER_CHANNEL,)),
    FormKind("choice", packed.choice, (PackRule.CHOICE,)),
    FormKind(
        "grouped product",
        grouped,
        combine=Combine.PRODUCT,
        tried=Tried.DEAD | Tried.WANTED | Tried.LOOKED_UP,
        when=is_grouped,
    ),
    _contraction(contraction.rows, Kind.M),
    _contraction(contraction.columns, Kind.N),
    _contraction(contraction.groups, Kind.E),
    FormKind(
        "sampled sum of outer products",
        outer_products,
        (PackRule.CONTRACTION,),
        axes=Axes({Kind.M, Kind.N}),
        tried=Tried.DEAD,
    ),
    FormKind(
        "sampled product",
        sampled,
        (PackRule.CONTRACTION,),
        axes=Axes({Kind.M, Kind.N}),
        tried=Tried.DEAD,
        told=unless_layout,
    ),
    _contraction(no_kernel("a product by groups of rows (e x m)"), Kind.E, Kind.M),
    _contraction(no_kernel("a product by groups of columns (e x n)"), Kind.E, Kind.N),
    _contraction(
        no_kernel("a product of single elements of groups (e x m x n)"), Kind.E, Kind.M, Kind.N
    ),
    _contraction(contraction.no_axes),
    FormKind("normaliser", packed.normaliser, (PackRule.NORMALISER,)),
    FormKind("along_axis", packed.along_axis, (PackRule.ALONG_AXIS,)),
    FormKind("look_up", packed.look_up, (PackRule.LOOK_UP,)),
    FormKind("look_up_vectors", routing.look_up_vectors, (PackRule.LOOK_UP_VECTORS,)),
    FormKind("best_places", routing.best_places, (PackRule.BEST_PLACES,)),
    FormKind("by_extremes", by_extremes, (PackRule.BY_EXTREMES,)),
    FormKind("same_node", same_node, (PackRule.ROWS,)),
    FormKind(
        "fewer_items",
        fewer_items,
        tuple(p for p in (None, *PackRule) if p is not PackRule.CHOICE),
        told=unless_not_lowered,
    ),
    FormKind(
        "softmax over live keys",
        attention,
        combine=Combine.PRODUCT,
        tried=Tried.DEAD | Tried.QUERIES,
        saves=Saves.PAIRS,
        told=both_told,
    ),
    FormKind(
        "gradient of softmax over live keys",
        attention_gradient,
        combine=Combine.PRODUCT,
        saves=Saves.PAIRS,
        told=both_told,
        tried=Tried.DEAD,
    ),
    FormKind(
        "sum of live terms",
        reduction_packed_form,
        (PackRule.CONTRACTION,),
        tried=Tried.TERMS,
        saves=Saves.TERMS,
    ),
    FormKind(
        "sum of scaled rows",
        sum_of_scaled_rows,
        combine=Combine.PRODUCT,
        tried=Tried.TERMS,
        saves=Saves.TERMS,
    ),
    FormKind(
        "sum of live rows",
        sum_of_live_rows,
        (None,),
        Combine.REDUCE,
        tried=Tried.TERMS,
        saves=Saves.TERMS,
    ),
    FormKind(
        "scatter of live rows",
        scatter_of_live_rows,
        (None,),
        Combine.SCATTER,
        tried=Tried.TERMS,
        saves=Saves.TERMS,
    ),
    FormKind("few terms", few_terms, tried=Tried.ZEROS, told=unless_no_fact),
    FormKind("live channels", live_channels, tried=Tried.ZEROS, told=unless_no_fact),
    FormKind("sparse operand", sparse_operand, tried=Tried.ZEROS, told=unless_no_fact),
)


@cache
def kinds_of(
    packs: PackRule | None, combine: Combine, axes: Axes, tried: Tried
) -> tuple[FormKind, ...]:
    """The rows of the table that take such a node, in order."""
    packs = None if packs in BY_EXPRESSION else packs
    return tuple(
        kind
        for kind in FORMS
        if tried in kind.tried
        and (not kind.packs or packs in kind.packs)
        and kind.combine in (None, combine)
        and kind.axes in (None, axes)
    )


def form_of(site: PackCandidate, tried: Tried) -> Form | Skip | Refusal:
    """The first form of the table that fits a candidate, or why none does."""
    packs, said = operator_of(site.node).packs, None
    axes = packed_axes(site) if packs is PackRule.CONTRACTION else Axes()
    for kind in kinds_of(packs, site.expr.combine, axes, tried):
        if kind.when is not None and not kind.when(site):
            continue
        found = kind.form(site)
        if isinstance(found, Skip):
            return found
        if isinstance(found, Form):
            if not site.context.domain.lives_everywhere or has_elements(site.context.graph, found):
                return replace(found, rule=kind.rule, saves=kind.saves)
            return site.refuse(Code.DYNAMIC_DIM, "its rows have no known number of elements")
        said = found if said is None else kind.told(said, found)
    return said or site.refuse(Code.NO_LOWERING, f"{site.node.op_type} has no packed form")
