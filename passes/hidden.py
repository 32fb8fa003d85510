"""Which values hide keys of attention: a softmax gives 0 where they are 0, or are not."""

from collections import Counter
from collections.abc import Iterator

from pitc.ir.constant import annihilates
from pitc.ir.expr import Combine
from pitc.ir.graph import Graph
from pitc.ir.nodes import first_output
from pitc.ir.value import Value


def softmaxes(graph: Graph) -> Iterator[Value]:
    """Results of softmaxes."""
    for node in graph.nodes:
        value = graph[first_output(node)]
        if value.expr is not None and value.expr.combine is Combine.SOFTMAX:
            yield value


def hidden_keys(graph: Graph) -> Counter[tuple[str, bool]]:
    """How many softmaxes give 0 by a value, or NaN in a row of such alone; where: (value, True) is
    where it is not 0. A test of another key, "some key is not hidden", hides none, and one of the
    row alone says only where a key is hidden.

    Args:
        graph: The graph after `fill_facts`.
    """
    hidden: Counter[tuple[str, bool]] = Counter()
    for value in softmaxes(graph):
        zeros = (f.region for f in value.fills if annihilates(f.constant))
        tests = {t for region in zeros for t in region}
        keys = set() if value.expr is None else set(value.expr.normal)
        of_key = (t for t in tests if t.pred == "nz" and not t.somes and not t.alls)
        hidden.update({(t.src, t.yes) for t in of_key if t.dims() & keys})
    return hidden
