"""What would help a model of which little is skipped: tried in the analysis, or read off its graph.

    bert without --padding     the mask input hides keys, so it is tried as padding mask:
    facts, regions again   ->  with --padding attention_mask 20 % -> 99.9 % of the work ..

Nothing is said for the lack of something: each suggestion rests on a trial, or on a node or a
constant that is there. Trials are few and counted, not timed, so that the same model always gets
the same suggestions: at most two for each of `MOST_MASKS` masks and for all, each of about the
work of the stages facts and regions, and none of a graph with more than `MOST_NODES` nodes.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.branch import DOMAIN
from pitc.ir.constant import MASKED
from pitc.ir.expr import Combine
from pitc.ir.graph import Graph
from pitc.ir.mask import PaddingMask
from pitc.ir.nodes import Array, first_output, input_names
from pitc.ir.refusal import Code
from pitc.ir.report import NodeRecord, Report, Suggestion
from pitc.ir.summary import summary_of
from pitc.ir.target import Target
from pitc.ir.work import contracts
from pitc.passes.analysis import analysis
from pitc.passes.hidden import hidden_keys, softmaxes
from pitc.passes.masks import AT, NOT, SEVERAL, can_be_mask, looks_up, padding_masks
from pitc.passes.padding import has_unproven
from pitc.passes.records import UNSHARED, node_flops, packed_nodes
from pitc.passes.regions.choose import choose_regions
from pitc.passes.rules.registry import MICROSOFT
from pitc.passes.size_names import named, one_names

LEAST_GAIN = 0.1  # of the work: less is not worth a sentence
MOST_MASKS, MOST_NODES = 2, 20_000
NAMINGS = 2
OPERATOR_SETS = ("", "ai.onnx.ml", MICROSOFT, DOMAIN)

PADDING = (
    "with {option} {shares} of the work would run packed, if your program never uses outputs at "
    "tokens whose {what}"
)
DIMENSIONS = (
    "export the model with dynamic axes, each with its own name: pitc cannot prove that the first "
    "sizes of its outputs are those of '{mask}'; if they are, {shares} of the work would run packed"
)
SIZES = (
    "give one name to sizes that are equal in every run: with inputs {inputs} {shares} of the work "
    "would run packed{option}"
)
EIGHT_BITS = (
    "{n} products of 8-bit integers ({share:.0%} of the work) have unread rows, but no packed "
    "form: also compile the model before its quantisation, and compare both"
)
CONSTANT = (
    "'{name}' is a constant and hides {hidden} of {keys} keys in every batch: export the "
    "model with its mask as an input, so that padding can be skipped"
)
LIBRARY = (
    "operators of '{domain}' ({names}; {n} nodes) come from a library: register it in the session "
    "options; pitc assumes that they read all of their inputs"
)


@dataclass(frozen=True, slots=True)
class Trial:
    """What an analysis with another option has found.

    Args:
        graph: The graph.
        flops: Operations of its nodes that would run packed.
    """

    graph: Graph
    flops: int


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of a model, with which a trial is compared.

    Args:
        skipped: Of what runs packed or skips zeros now.
        total: Of all of it.
    """

    skipped: int
    total: int

    def gain(self, trial: Trial) -> float:
        """The share of the work that would run packed in addition."""
        return round((trial.flops - self.skipped) / self.total, 4)

    def shares(self, trial: Trial) -> str:
        """Both shares for people: 20 % -> 99.9 %."""
        return f"{_percent(self.skipped / self.total)} -> {_percent(trial.flops / self.total)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def suggestions(graph: Graph, report: Report) -> list[Suggestion]:
    """What would help.

    Args:
        graph: The analysed graph, not rewritten yet.
        report: What was found about it.
    """
    records = dict(zip(graph.nodes, report.nodes, strict=True))
    found = [*_libraries(graph), *_constant_masks(graph), *_eight_bits(graph, records)]
    if len(graph.nodes) <= MOST_NODES:
        found += _tried(graph, report)
    return found


def hiding_inputs(graph: Graph) -> list[str]:
    """Padding masks that may be: inputs that hide keys of attention where they are 0, or where they
    are not, or floats that only maps and moves lead from to a softmax; none that are looked up in a
    table, but where one number of them hides keys. Those that are known to hide most come first.
    Where there are none, bools that the model computes: of frames, from lengths of sound.
    """
    hidden, reaching = hidden_keys(graph), _floats_at_softmax(graph)
    found: Counter[str] = Counter()
    for value in graph.model.graph.inputs:
        name = value.name or ""
        zeros, others = hidden[name, False], hidden[name, True]
        if not can_be_mask(value) or not (zeros or others or name in reaching):
            continue
        if looks_up(value):
            if zeros:
                found[f"{name}{AT}0"] = zeros
        else:
            found[f"{NOT}{name}" if others > zeros else name] = max(zeros, others)
    if not found:
        found = _hiding_bools(graph, hidden)
    return [text for text, _ in found.most_common()]


def _hiding_bools(graph: Graph, hidden: Counter[tuple[str, bool]]) -> Counter[str]:
    """Computed bools of two dimensions that hide keys, and how many."""
    found: Counter[str] = Counter()
    for (name, yes), count in hidden.items():
        value = graph[name]
        computed = value.producer is not None and value.dtype == np.bool_
        if computed and value.shape is not None and len(value.shape) == 2 and count > found[name]:
            found[f"{NOT}{name}" if yes else name] = count
    return found


def _floats_at_softmax(graph: Graph) -> set[str]:
    """Float inputs from which maps and moves alone lead to a softmax."""
    todo = [name for v in softmaxes(graph) if v.producer for name in input_names(v.producer)[:1]]
    seen = set(todo)
    while todo:
        value = graph[todo.pop()]
        if value.producer is None or value.expr is None:
            continue
        if value.expr.combine in (Combine.MAP, Combine.MOVE):
            new = {*input_names(value.producer)} - seen
            seen |= new
            todo += new
    floats = (n for n in graph.inputs if n in seen)
    return {n for n in floats if (dtype := graph[n].dtype) is not None and dtype.kind == "f"}


def _tried(graph: Graph, report: Report) -> Iterator[Suggestion]:
    """What trials find to gain."""
    now = summary_of(report)
    skipped, total = now.packed.flops + now.sparse.flops, now.all.flops
    if not total or 1 - skipped / total < LEAST_GAIN:
        return
    work = Work(skipped, total)
    best, least = None, 0.0
    masks, given = hiding_inputs(graph)[:MOST_MASKS], report.padding
    tries = [*masks, SEVERAL.join(masks)] if len(masks) > 1 else masks
    if given:
        others = [mask for mask in masks if mask not in given.split(SEVERAL)]
        tries = [given, *(SEVERAL.join([given, mask]) for mask in others)]
    for mask in tries:
        found = _with_mask(graph, mask, work, is_given=mask == given)
        several = LEAST_GAIN if mask not in (*masks, given) else 0.0  # what a second mask is worth
        if found is not None and (found.gain or 0) > least + several:
            best, least = found, found.gain or 0
    if best is not None:
        yield best


def _with_mask(graph: Graph, mask: str, work: Work, *, is_given: bool) -> Suggestion | None:
    """What a padding mask would gain, or would if the model said which sizes are the mask's."""
    try:
        masks = padding_masks(graph.model, mask)
    except UsageError:  # the operator set is too old for a mask
        return None
    if is_given:
        unproven = has_unproven(graph, masks)
    else:
        trial = _trial(graph, mask, graph.target)
        hidden = hidden_keys(trial.graph)
        if not any(hidden[m.name, not m.live] for m in masks):  # it is added to scores, hides none
            return None
        if work.gain(trial) >= LEAST_GAIN:
            option = f"--padding {shlex.quote(mask)}"
            text = PADDING.format(
                option=option, shares=work.shares(trial), what=" and ".join(map(_padding, masks))
            )
            return Suggestion("padding", text, option, work.gain(trial))
        unproven = has_unproven(trial.graph, masks)
    if not unproven:
        return _with_names(graph, mask, work, is_given=is_given)
    trial = _trial(graph, mask, graph.target, by_size=True)
    if work.gain(trial) < LEAST_GAIN:
        return None
    text = DIMENSIONS.format(mask=mask, shares=work.shares(trial))
    return Suggestion("dynamic axes", text, "", work.gain(trial))


def _with_names(graph: Graph, mask: str, work: Work, *, is_given: bool) -> Suggestion | None:
    """What a padding mask would gain if sizes of several names had one."""
    names, tried, most = dict[str, str](), graph, 0.0
    found: Suggestion | None = None
    for _ in range(NAMINGS):  # with one name more is seen
        more = one_names(tried, mask)
        if more.items() <= names.items():
            break
        names |= more
        with named(graph.model, names) as inputs:
            if not inputs:
                break
            trial = _trial(graph, mask, graph.target)
        gain = work.gain(trial)
        if gain >= max(LEAST_GAIN, most):
            most, option = gain, "" if is_given else f", and --padding {shlex.quote(mask)}"
            text = SIZES.format(inputs=", ".join(inputs), shares=work.shares(trial), option=option)
            found = Suggestion("size names", text, "", gain)
        tried = trial.graph
    return found


def _padding(mask: PaddingMask) -> str:
    """Which tokens are padding by a mask, for people."""
    number = 0 if mask.number is None else mask.number
    return f"'{mask.source or mask.name}' is {number if mask.live or mask.number else 'not 0'}"


def _trial(graph: Graph, padding: str | None, target: Target, *, by_size: bool = False) -> Trial:
    """Facts and regions once more."""
    try:
        tried = analysis(graph.model, padding, target, by_size=by_size).graph
    except UsageError:  # the trial's facts show that the graph reads the mask the other way round
        return Trial(graph, 0)
    packed = packed_nodes(choose_regions(tried))
    return Trial(tried, sum(node_flops(tried, node) or 0 for node in packed))


def is_product(graph: Graph, node: ir.Node) -> bool:
    """True for a sum of products, quantised ones among them."""
    expr = graph[first_output(node)].expr
    return expr is not None and contracts(expr)


def _eight_bits(graph: Graph, records: Mapping[ir.Node, NodeRecord]) -> Iterator[Suggestion]:
    """Products of 8-bit integers of which rows are unread, and that are refused all the same."""
    total = sum(record.flops or 0 for record in records.values())
    refused = [
        record
        for node, record in records.items()
        if record.dead and _has_no_form(record) and is_product(graph, node)
        if any(_is_of_bytes(graph, name) for name in input_names(node)[:2])
    ]
    flops = sum(record.flops or 0 for record in refused)
    if total and flops >= LEAST_GAIN * total:
        text = EIGHT_BITS.format(n=len(refused), share=flops / total)
        yield Suggestion("quantisation", text, "", round(flops / total, 4))


def _has_no_form(record: NodeRecord) -> bool:
    """True where it is no matter of prices: a form there is none."""
    refusal = record.refusal
    return refusal is not None and (refusal.code is Code.NO_LOWERING or refusal.reason == UNSHARED)


def _is_of_bytes(graph: Graph, name: str) -> bool:
    """True for 8-bit integers, and for what they are converted to."""
    value = graph[name]
    sources = [name] if value.producer is None else [name, *input_names(value.producer)[:1]]
    return any(
        dtype is not None and dtype.kind in "iu" and dtype.itemsize == 1
        for dtype in (graph[x].dtype for x in sources)
    )


def _constant_masks(graph: Graph) -> Iterator[Suggestion]:
    """Constants that hide the same keys from every query: the mask of the inputs that the model was
    exported with. One of positions, such as a causal one, hides others from each.
    """
    regions = (f.region for value in softmaxes(graph) for f in value.fills)
    tests = (t for region in regions for t in sorted(region, key=str))
    for name in dict.fromkeys(t.src for t in tests if graph.is_constant(t.src)):
        hidden = _hidden_keys(graph, name)
        if hidden is not None:
            text = CONSTANT.format(name=name, hidden=int(hidden.sum()), keys=hidden.size)
            yield Suggestion("constant mask", text)


def _hidden_keys(graph: Graph, name: str) -> Array | None:
    """Which places along the last dimension of a constant hide something, at least in one sequence;
    None where that differs between rows, or all or none are.
    """
    x = graph.array(name)
    if x is None or not x.ndim or x.dtype.kind not in "bf":
        return None
    low = np.asarray(x <= MASKED if x.dtype.kind == "f" else ~x)
    rows = low.reshape(-1, *low.shape[-2:]) if low.ndim > 1 else low.reshape(1, 1, -1)
    alike = (rows == rows[:, :1]).all()
    hidden = np.asarray(rows.any(axis=(0, 1)))
    return hidden if alike and hidden.any() and not low.all() else None


def _libraries(graph: Graph) -> Iterator[Suggestion]:
    """Operators that neither ONNX nor ONNX Runtime has."""
    found: dict[str, Counter[str]] = {}
    for node in graph.nodes:
        if node.domain not in OPERATOR_SETS:
            found.setdefault(node.domain, Counter())[node.op_type] += 1
    for domain, operators in found.items():
        names = ", ".join(operators)
        text = LIBRARY.format(domain=domain, names=names, n=operators.total())
        yield Suggestion("operator library", text)
