"""The facts of a model, all of them."""

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.region import Region
from pitc.ir.target import Target
from pitc.passes.facts.dead import dead_facts
from pitc.passes.facts.fill import fill_facts
from pitc.passes.padding import check_padding, given_up


def analyse(
    model: ir.Model, padding: str | None, target: Target | None = None, *, by_size: bool = False
) -> tuple[Graph, dict[str, list[Region]]]:
    """Compute every fact of a normalised model, which stays as it is.

    Args:
        model: The model.
        padding: The padding mask input, or None.
        target: What it is lowered for; None: CPUs.
        by_size: Take all outputs for token-shaped that have the mask's sizes in front: what would
            be known if they are. Nothing may be lowered by that.

    Returns:
        The analysed graph, and the regions of each output that the padding contract gives up.

    Raises:
        UsageError: The padding mask is not an input that can be one.
    """
    graph = Graph(model, target)
    if padding is not None:
        check_padding(model, padding)
    fill_facts(graph, padding)
    outputs = given_up(graph, padding, by_size=by_size)
    dead_facts(graph, outputs)
    return graph, outputs
