"""What the padding contract has changed, where that is little, and which output stops it.

Every row that an output reads must be computed. So each output that reads most of the work whole
(`readers.py`) is tried: would more run packed if nothing read it?

    y [b, s, 5] is of tokens; emb = mean of all rows    ->    emb reads every row
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter

from pitc.ir.graph import Graph
from pitc.ir.report import Report, WholeReader
from pitc.ir.summary import summary_of
from pitc.passes.analysis import Analysis, analysis
from pitc.passes.hidden import hidden_keys, softmaxes
from pitc.passes.records import node_flops, packed_nodes
from pitc.passes.regions.choose import choose_regions
from pitc.passes.suggest import hiding_inputs

LITTLE, MOST = 0.1, 0.9
"""Of the work: where so much more runs packed with the masks, or so much with them, all is well."""
MOST_TRIALS, MOST_NODES = 3, 20_000
NOTHING = (
    "--padding {padding} changes nothing: the model runs unchanged, on padded tokens, too{why}"
)
SCALES = "; dynamic scales include padding"
A_LITTLE = (
    "--padding {padding} changes little: {share:.0%} of the work run packed, {before:.0%} without "
    "it{why}"
)
NOT_HIDDEN = "; pitc found no attention that hides these tokens"
HIDDEN_BY = "; it hides those of '{name}'"
BY_OUTPUT = "; {read}: without it {share:.0%} would"


@dataclass(frozen=True, slots=True)
class Effect:
    """What is known of the contract's effect.

    Args:
        padding: The masks, as the user writes them, or None.
        runs: Something runs otherwise than in the source model.
        scaled: Dynamic scales that would be of tokens that exist.
        tries: Look for the output that stops it; that takes as long as the analysis for each.
    """

    padding: str | None
    runs: bool
    scaled: int
    tries: bool


def padding_effect(known: Analysis, report: Report, effect: Effect) -> list[str]:
    """A sentence where padding masks were given and little runs packed.

    Args:
        known: The analysed model, not rewritten yet.
        report: What was chosen for its nodes.
        effect: What else is known.
    """
    if effect.padding is None:
        return []
    work = summary_of(report)
    share = work.packed.flops / work.all.flops if work.all.flops else 0.0
    why = SCALES if effect.scaled and not effect.runs else ""
    tries = effect.tries and work.all.flops and len(known.graph.nodes) <= MOST_NODES
    if effect.runs and (share >= MOST or not tries):
        return []
    before = 0.0
    if effect.runs:
        graph = analysis(known.graph.model, None, known.graph.target).graph
        before = _share(graph, work.all.flops)
        if share - before >= LITTLE:
            return []
    why += _not_hidden(known)
    if tries:
        trials = _without(known, report.whole_reader, effect.padding, work.all.flops)
        gain, reader = max(trials, key=itemgetter(0), default=(0.0, WholeReader()))
        if gain >= share + LITTLE:
            why += BY_OUTPUT.format(read=reader.text, share=gain)
    text = A_LITTLE if effect.runs else NOTHING
    return [text.format(padding=effect.padding, share=share, before=before, why=why)]


def _not_hidden(known: Analysis) -> str:
    """What is said where softmaxes hide keys, but none by the masks."""
    hidden = hidden_keys(known.graph)
    if any(hidden[m.name, not m.live] for m in known.masks) or not any(softmaxes(known.graph)):
        return ""
    others = hiding_inputs(known.graph)[:1]
    return NOT_HIDDEN + "".join(HIDDEN_BY.format(name=name) for name in others)


def _without(
    known: Analysis, reader: WholeReader | None, padding: str, total: int
) -> Iterator[tuple[float, WholeReader]]:
    """For each output that reads most of the work whole the share of the work that would run packed
    without it.
    """
    for k, name in enumerate(() if reader is None else reader.outputs[:MOST_TRIALS]):
        trial = analysis(known.graph.model, padding, known.graph.target, unread=name).graph
        alone = WholeReader(outputs=(name,))
        yield (
            _share(trial, total),
            alone if k or reader is None else replace(reader, outputs=(name,)),
        )


def _share(graph: Graph, total: int) -> float:
    """Of the work, what would run packed."""
    packed = packed_nodes(choose_regions(graph))
    return sum(node_flops(graph, node) or 0 for node in packed) / total
