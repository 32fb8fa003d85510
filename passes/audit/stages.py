"""An oracle between stages: after each, the graph's invariants are checked.

    normalise -> wiring      facts -> statements      regions -> packing      lower -> wiring, plans

The steps of *lower* are checked by themselves: after each one every packed node has the operands
that its plan asks for, of the right types, packed by the detector that they belong to.

A violation is a bug in pitc, whatever the model: a stage has left behind what the next one would
build on. Only where the imported model itself breaks a rule of wiring (an attribute that an
operator lacks) is wiring not judged. Tests check always; users may ask for it (`pitc compile
--check`).
"""

from collections.abc import Collection, Iterator
from itertools import chain, islice

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.passes.audit.packing import wrong_regions
from pitc.passes.audit.plans import wrong_plans
from pitc.passes.audit.statements import wrong_facts
from pitc.passes.audit.wiring import Face, Types, face_of, wrong_ends, wrong_model
from pitc.passes.regions.choose import Regions

ALWAYS = False  # check without being asked: tests set it
SHOWN = 20  # violations of one stage that are reported


class StageError(AssertionError):
    """What a stage has left does not hold together; one line for each violation."""


class Stages:
    """The checks of one compilation; nothing where they are not wanted.

    Args:
        model: The imported model.
        wanted: Check.
    """

    def __init__(self, model: ir.Model, wanted: bool) -> None:
        self._model = model
        self._face: Face | None = face_of(model) if wanted or ALWAYS else None
        self._faulty = self._face is not None and any(wrong_model(model, self._face))

    def normalised(self, types: Types) -> None:
        """After `normalise`.

        Args:
            types: Gives the model's.

        Raises:
            StageError: An invariant does not hold.
        """
        if self._face is not None:
            _demand("normalise", self._wiring(self._face, types))

    def analysed(self, graph: Graph) -> None:
        """After the facts, of the graph and of the bodies in it.

        Raises:
            StageError: An invariant does not hold.
        """
        if self._face is not None:
            _demand("facts", chain(wrong_facts(graph), *map(wrong_facts, graph.bodies.values())))

    def chosen(self, graph: Graph, regions: Regions) -> None:
        """After the regions.

        Raises:
            StageError: An invariant does not hold.
        """
        if self._face is not None:
            _demand("regions", wrong_regions(graph, regions))

    def packed(self, model: ir.Model, step: str) -> None:
        """After a step of the lowering.

        Args:
            model: The model that is lowered, or the body of a loop as one.
            step: Name of the step.

        Raises:
            StageError: An invariant of the packed IR does not hold.
        """
        if self._face is not None:
            _demand(f"lower ({step})", wrong_plans(model))

    def lowered(self, symbols: Collection[str]) -> None:
        """After everything.

        Args:
            symbols: Kernels that were asked for.

        Raises:
            StageError: An invariant does not hold.
        """
        if self._face is not None:
            model = self._model
            found = self._wiring(self._face), wrong_ends(model), wrong_plans(model, symbols)
            _demand("lower", chain(*found))

    def _wiring(self, face: Face, types: Types | None = None) -> Iterator[str]:
        return iter(()) if self._faulty else wrong_model(self._model, face, types)


def _demand(stage: str, violations: Iterator[str]) -> None:
    lines = list(islice(violations, SHOWN))
    if lines:
        raise StageError("\n".join(f"after {stage}: {line}" for line in lines))
