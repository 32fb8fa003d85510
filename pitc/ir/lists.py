"""Lists of places (NonZero), as far as they are followed: `pitc.passes.facts.lists`."""

from dataclasses import dataclass, field

from pitc.ir.expr import Shape, TensorExpr
from pitc.ir.index import Poly


@dataclass(frozen=True, slots=True)
class Rows:
    """A value with a row per entry of a list.

    Args:
        places: The output of NonZero that is the list.
        axis: The dimension of the value that counts the entries.
        shape: The extents of its dense form.
    """

    places: str
    axis: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows are written to the places of their entries.

    Args:
        updates: The rows.
        out: What they are written into, as it is then.
        at: Where in that, over the dimensions of the dense form of the updates.
    """

    updates: str
    out: str
    at: tuple[Poly, ...]


@dataclass(slots=True)
class Lists:
    """The lists of a graph that are followed to their ends.

    Args:
        rows: The values with a row per entry, by name.
        dense: For outputs among them the expression that the dense form has.
        sinks: The ends of each list, by the output of NonZero.
    """

    rows: dict[str, Rows] = field(default_factory=dict)
    dense: dict[str, TensorExpr] = field(default_factory=dict)
    sinks: dict[str, list[Sink]] = field(default_factory=dict)
