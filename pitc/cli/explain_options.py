"""Options of `pitc explain`: which nodes it shows, and what of them."""

from typing import Annotated

import typer

NodePattern = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN", help="Only nodes whose name or operator matches, e.g. 'MatMul*'."
    ),
]
Whole = Annotated[
    bool,
    typer.Option(
        "--all", help="Also show nodes that only compute shapes or move data; names in full."
    ),
]
Refused = Annotated[bool, typer.Option("--refused", help="Only nodes with a refusal.")]
Facts = Annotated[
    bool,
    typer.Option(
        "--facts",
        help="Below each node: its facts, engine and tiles, its module and source line.",
    ),
]
