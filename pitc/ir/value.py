"""What is known of one value: one record, filled in stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import Path
from pitc.ir.constant import FillFact
from pitc.ir.expr import Shape, TensorExpr
from pitc.ir.index import Poly
from pitc.ir.nodes import Array
from pitc.ir.region import Region

Slack = tuple[list[Region], float]  # where, and up to which number any would do


@dataclass(slots=True)
class Value:
    """One value of a graph. What nobody has said is the safe side: unknown, not finite, read.

    Args:
        shape: Extents; None where the rank is unknown.
        dtype: Element type, where numpy knows it.
        producer: The node that computes it; None for inputs and constants.
        uses: The nodes that read it, subgraph captures included.
        captured: Some control-flow body reads it.
        order: Its place among inputs and outputs of nodes in graph order; -1 for others.
        branch: The branch that computes it.
        expr: The tensor expression; None where the node has no rule.
        unruled: Why it has no tensor expression.
        affine: It as an affine function of its own index.
        vectors: The same for each component of an index tensor's last axis.
        ints: A small integer tensor as an array of polynomials.
        live_places_of: The mask whose live places (NonZero) it holds.
        fills: Fill facts.
        finite_if: Where it is finite by construction; None: nowhere for sure.
        clean_if: The same for "neither NaN nor +inf".
        no_infinity: Every element is finite or NaN.
        guard_flag: The flag IsNaN(p), where it is the result of a guard Where(IsNaN(p), 0, p).
        guarded_softmax: The softmax p, where it is Where(c, 0, p) and c holds in rows of -inf.
        guards_softmax: It is such a c, or between p's terms and c.
        bit: Its bit in provenance, once it has facts or is tested (`Graph.note_bit`).
        term: It reaches a softmax element by element.
        score: It is a sum of products among those that is assumed to be bounded.
        contracted: Its zeros arrive as zeros at an operand of a contraction.
        multiplied: The first few values that it, moved or scaled, is multiplied by.
        sign_unseen: No output tells a 0 of it from a -0.0.
        dead: Dead facts: regions of it that no graph output depends on.
        slack: Slack facts: regions in which any number up to a limit would do, and the limit.
        room: Regions in which any number up to a limit would do that keeps what is known of it, and
            the limit.
        signed: Regions in which any number would do with the sign that is known of it
            (`facts/signs.py`).
        dead_rows: Dead facts of its dense form, where it has a row per entry of a list.
        wanted_whole: It is an output of the graph, and no part of that is given up.
        whole_readers: The nodes of which no dead fact of it can come: each reads all of it.
    """

    shape: Shape | None = None
    dtype: np.dtype | None = None
    producer: ir.Node | None = None
    uses: list[ir.Node] = field(default_factory=list)
    captured: bool = False
    order: int = -1
    branch: Path = ()
    expr: TensorExpr | None = None
    unruled: str = ""
    affine: Poly | None = None
    vectors: tuple[Poly | None, ...] | None = None
    ints: Array | None = None
    live_places_of: str | None = None
    fills: list[FillFact] = field(default_factory=list)
    finite_if: Region | None = None
    clean_if: Region | None = None
    no_infinity: bool = False
    guard_flag: str = ""
    guarded_softmax: str = ""
    guards_softmax: bool = False
    bit: int = 0
    term: bool = False
    score: bool = False
    contracted: bool = False
    multiplied: tuple[str, ...] = ()
    sign_unseen: bool = False
    dead: list[Region] = field(default_factory=list)
    slack: Slack = field(default_factory=lambda: ([], inf))
    room: Slack = field(default_factory=lambda: ([], inf))
    signed: list[Region] = field(default_factory=list)
    dead_rows: list[Region] = field(default_factory=list)
    wanted_whole: bool = False
    whole_readers: list[ir.Node] = field(default_factory=list)

    @property
    def is_loose(self) -> bool:
        """Other numbers would do somewhere: it may change where what it is computed from does."""
        weaker = self.slack[0] or self.room[0] or self.signed
        return bool(self.dead or weaker or self.dead_rows)

    def from_before(self) -> Value:
        """The record without what is known from behind the value."""
        return replace(
            self,
            dead=[],
            slack=([], inf),
            room=([], inf),
            signed=[],
            dead_rows=[],
            sign_unseen=False,
            wanted_whole=False,
            whole_readers=[],
        )


class Values(dict[str, Value]):
    """Records by name; one that nobody has asked for yet says nothing."""

    def __missing__(self, name: str) -> Value:
        return self.setdefault(name, Value())
