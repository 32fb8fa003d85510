"""Which matrices grouped products read when a model ran, and for how many rows.

A line of a trace is one run of one product whose rows have a matrix each (`docs/experts.md`).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass as checked

_Count = Annotated[int, Field(ge=0)]


@checked(config=ConfigDict(strict=True, extra="ignore"), frozen=True, slots=True)
class GroupRows:
    """One line of a trace, as far as it is looked at here; it may tell more.

    Args:
        node: The product, by its name in the source graph.
        groups: How many matrices there are.
        hit_groups: Those that have rows.
        rows: Rows of all.
        most_rows: Of the matrix that has most.
        matrix_bytes: Size of one matrix.
    """

    node: str
    groups: _Count
    hit_groups: _Count
    rows: _Count
    most_rows: _Count
    matrix_bytes: _Count

    @model_validator(mode="after")
    def _consistent(self) -> "GroupRows":
        if self.hit_groups > self.groups:
            raise ValueError("more groups with rows than groups")
        if not self.most_rows <= self.rows <= self.most_rows * self.hit_groups:
            raise ValueError("another number of rows than groups can have")
        return self


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """All runs of one grouped product.

    Args:
        node: The product, by its name in the source graph.
        runs: How many.
        groups: How many matrices there are.
        hit_groups: Those that had rows, on average.
        rows: Rows of one of these, on average.
        most_rows: The largest number of rows that one had.
        read_bytes: Of matrices, in one run on average; each is read once.
        all_bytes: Of all matrices.
    """

    node: str
    runs: int
    groups: int
    hit_groups: float
    rows: float
    most_rows: int
    read_bytes: float
    all_bytes: int


def grouped_products(lines: Sequence[GroupRows]) -> list[GroupedProduct]:
    """Sum up runs by product, in the order in which they first ran."""
    found: dict[str, list[GroupRows]] = defaultdict(list)
    for each in lines:
        found[each.node].append(each)
    return [_summed_up(node, each) for node, each in found.items()]


def _summed_up(node: str, each: Sequence[GroupRows]) -> GroupedProduct:
    hit, last = sum(x.hit_groups for x in each), each[-1]
    return GroupedProduct(
        node=node,
        runs=len(each),
        groups=last.groups,
        hit_groups=hit / len(each),
        rows=sum(x.rows for x in each) / max(hit, 1),
        most_rows=max(x.most_rows for x in each),
        read_bytes=sum(x.hit_groups * x.matrix_bytes for x in each) / len(each),
        all_bytes=last.groups * last.matrix_bytes,
    )
