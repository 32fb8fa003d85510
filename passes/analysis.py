"""The facts of a model, all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.graph import Graph
from pitc.ir.inference import Inferred
from pitc.ir.mask import PaddingMask
from pitc.ir.region import EVERYWHERE, Region
from pitc.ir.target import Target
from pitc.passes.facts.dead import dead_facts
from pitc.passes.facts.fill import fill_facts
from pitc.passes.hidden import hidden_keys
from pitc.passes.masks import NOT, check_computed, flags, padding_masks
from pitc.passes.padding import Tokens, token_outputs

OTHER_WAY = (
    "padding mask '{name}' hides keys of attention where it is {hides}, in {count} places, and "
    "is not seen to hide any where it is {given}: padding by it would make the real tokens 0"
)


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of a model.

    Args:
        graph: With all its facts.
        masks: Of the padding contract.
        tokens: Outputs that are of tokens, and where these lie.
    """

    graph: Graph
    masks: tuple[PaddingMask, ...]
    tokens: dict[str, Tokens]

    @property
    def given_up(self) -> dict[str, list[Region]]:
        """The regions of each output that the padding contract gives up."""
        return {name: [tokens.padded] for name, tokens in self.tokens.items()}


def analyse(
    model: ir.Model, padding: str | None, target: Target | None = None
) -> tuple[Graph, dict[str, list[Region]]]:
    """The graph of `analysis`, and the regions of each output that are given up."""
    found = analysis(model, padding, target)
    return found.graph, found.given_up


def analysis(
    model: ir.Model,
    padding: str | None,
    target: Target | None = None,
    types: Mapping[str, Inferred] | None = None,
    *,
    by_size: bool = False,
    unread: str = "",
) -> Analysis:
    """Compute every fact of a normalised model, which stays as it is.

    Args:
        model: The model.
        padding: The padding masks (`masks.py`), or None.
        target: What it is lowered for; None: CPUs.
        types: What `infer` gives of the model, where that is known.
        by_size: Take all outputs for token-shaped that have a mask's sizes in front: what would
            be known if they are. Nothing may be lowered by that.
        unread: An output that nobody reads: what would be known then. Nothing may be lowered by it.

    Raises:
        UsageError: A padding mask is no value that can be one, or hides keys of attention only
            where it says that tokens are real.
    """
    masks = padding_masks(model, padding)
    graph = Graph(model, target, types)
    fill_facts(graph, frozenset(flags(masks)))
    check_computed(graph, masks)
    _check_sides(graph, masks)
    tokens = token_outputs(graph, masks, by_size=by_size)
    found = Analysis(graph, masks, tokens)
    dead_facts(graph, found.given_up | ({unread: [EVERYWHERE]} if unread else {}))
    return found


def _check_sides(graph: Graph, masks: tuple[PaddingMask, ...]) -> None:
    """Refuse a mask that the graph itself reads the other way round."""
    hidden = hidden_keys(graph)
    for mask in masks:
        as_said, other = hidden[mask.name, not mask.live], hidden[mask.name, mask.live]
        if other and not as_said:
            says = {True: "not 0", False: "0"}
            text = OTHER_WAY.format(
                name=mask.name, hides=says[mask.live], given=says[not mask.live], count=other
            )
            if mask.number is not None:  # there is no form for all other numbers
                raise UsageError(text)
            flipped = f"{NOT}{mask.text}" if mask.live else mask.text.removeprefix(NOT)
            raise UsageError(text, hint=f"--padding '{flipped}'")
