"""Words that `pitc explain` and the report use, for people: docs/glossary.md has the same."""

from collections.abc import Mapping

#: Where the words are explained.
GLOSSARY = "docs/glossary.md"

WORDS: Mapping[str, str] = {
    "work": "the number of operations: two for each multiply-add, one for each other element "
    "that is computed. A size that is not a number counts as 64",
    "live rows": "the rows that are computed: those of tokens, images or groups that exist in a "
    "batch. Rows of padding are left out",
    "packed": "gathered: the live rows of a batch are contiguous, and the node computes only these "
    "rows",
    "sparse": "the node looks for zeros or unread channels when the model runs, and skips them",
    "folded": "another node of the compiled model computes this node, too",
    "dense": "the node runs as in the source model, on all rows",
    "refused": "the node runs unchanged, although part of its result may be unread or zero. A code "
    "(PIT012) and a reason say why",
    "fact": "a proven statement about a value: at these places it is a constant (fill), or no "
    "output depends on it (dead)",
    "PIT axis": "an axis along which the work may be done in any order: its rows may be gathered",
    "packed region": "neighbouring nodes that run on the same live rows: they are gathered at its "
    "start and scattered at its end",
    "padding": "tokens that only fill up a batch; --padding names the mask that marks them",
}
"""Each word with its meaning."""


def named_counts(names: Mapping[str, int], decisions: int) -> str:
    """Names with counts, where there are several."""
    return ", ".join(n if count == decisions else f"{n} {count}" for n, count in names.items())
