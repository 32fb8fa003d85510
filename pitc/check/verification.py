"""`pitc.verify`: a compiled model beside ONNX Runtime, on random and padded inputs.

    Verifier(opened) -> compare -> first_difference, audit -> Verification

The command line calls the same steps one by one, and shows what each has found.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc import api
from pitc.check.feeds import Case, cases
from pitc.check.inputs import Shapes, filled, shape_texts, specs_of
from pitc.check.opened import Opened, opened
from pitc.check.reference import contract_of, reference_session, rules_of
from pitc.check.tokens import LiveTokens
from pitc.check.verify import Comparison, OutputDifference, audit_facts, compare
from pitc.compiled import CompiledModel
from pitc.errors import UsageError, one_line
from pitc.ir.json_text import json_text
from pitc.session import run_session

if TYPE_CHECKING:
    from pitc.importer.memory import AnyModel
    from pitc.ir.region import Test
    from pitc.passes.audit.engine import AuditResult


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `pitc.verify`.

    Args:
        comparison: The outputs, over all cases.
        scaled_by_live_tokens: Nodes whose dynamic scales leave padding out, in both models.
        first_difference: If an output differs, the first inner value that differs, or the reason
            why none is named; else empty.
        facts: The audit of the facts, or None if it did not run.
    """

    comparison: Comparison
    scaled_by_live_tokens: tuple[str, ...] = ()
    first_difference: Mapping[str, Any] = field(default_factory=dict)
    facts: "AuditResult | None" = None

    @property
    def ok(self) -> bool:
        """True when every output passes in every case, all facts hold, and some of each was
        checked.
        """
        same = self.comparison.ok and self.comparison.cases > 0
        return same and (self.facts is None or (self.facts.feeds > 0 and not self.facts.failures))

    @property
    def cases(self) -> int:
        """How many cases were compared."""
        return self.comparison.cases

    @property
    def failed(self) -> tuple[str, ...]:
        """Titles of the cases in which an output does not pass."""
        return tuple(self.comparison.failed)

    @property
    def outputs(self) -> tuple[OutputDifference, ...]:
        """How far each output is from the reference."""
        return tuple(self.comparison.outputs)

    def to_dict(self) -> dict[str, Any]:
        """What `pitc verify --json` prints, but for the number of its schema."""
        body = self.comparison.to_dict() | {"ok": self.ok}
        body["scaled_by_live_tokens"] = list(self.scaled_by_live_tokens)
        if self.first_difference:
            body["first_difference"] = dict(self.first_difference)
        if self.facts is not None:
            body["facts"] = asdict(self.facts)
        return body

    def to_json(self) -> str:
        """What `pitc verify --json` prints."""
        return json_text(self.to_dict())


def verify(
    model: "AnyModel | CompiledModel",
    target: str | None = None,
    padding: str | Iterable[str] | None = None,
    *,
    against: str | Path | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    shapes: Shapes | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    facts: bool = False,
) -> Verification:
    """Compare a compiled model with ONNX Runtime on the source, as `pitc verify` does.

    Args:
        model: A compiled model, the folder of an artifact, or what `compile` takes, which is
            compiled for this.
        target: As in `compile`; None for `auto`. Only for a model that is not compiled yet.
        padding: As in `compile`. Only for a model that is not compiled yet.
        against: Another reference for a compiled model; None: the source graph inside it.
        inputs: Real inputs by name. Missing ones are random, with padding of every pattern, at
            several sizes.
        shapes: Sizes of the random ones: `{"input_ids": (2, 16)}`, or `{"batch": 2}` for a named
            dimension.
        seed: Of the random inputs.
        tolerance: Largest norm-wise relative error of floats; None: by the model's arithmetic.
        facts: Also check every fact that the compiler has proven.

    Returns:
        The result. A difference does not raise an exception: check `ok`.

    Raises:
        UsageError: Options do not fit the model, or it fails on the given inputs.
        PitcError: It cannot be compiled or loaded: see `compile` and `load`.
    """
    found = opened(model, target, padding)
    if against is not None:
        if found.compiled.path != found.source.parent:
            text = "against is for what is compiled already; a model is compared with itself"
            raise UsageError(text)
        found = Opened(found.compiled, Path(against), found.name)
    verifier = Verifier(found, inputs or {}, shape_texts(shapes), seed=seed, tolerance=tolerance)
    result = verifier.compare()
    return Verification(
        result,
        tuple(verifier.scaled),
        {} if result.ok else verifier.first_difference(result),
        verifier.audit() if facts else None,
    )


class Verifier:
    """The steps of a verification.

    Args:
        model: What is verified.
        given: Real inputs by name.
        shapes: Sizes of random ones, as `--shape` takes them.
        seed: Of the random ones.
        tolerance: As of `verify`.

    Attributes:
        chosen: The inputs.
        scaled: Nodes whose dynamic scales leave padding out, in both models.

    Raises:
        UsageError: Shapes that fit no input, or beside inputs that are all given.
    """

    def __init__(
        self,
        model: Opened,
        given: Mapping[str, np.ndarray],
        shapes: Sequence[str] = (),
        *,
        seed: int = 0,
        tolerance: float | None = None,
    ) -> None:
        self._compiled, self._source = model.compiled, model.source
        self._padding = model.compiled.manifest.options.padding
        self._given, self._shapes, self._seed = given, shapes, seed
        self._tolerance = tolerance
        self._reference, self.scaled = reference_session(self._source, contract_of(self._compiled))
        self._live = LiveTokens(self._source, self._padding)
        self.chosen: list[Case] = self._cases()

    def compare(self) -> Comparison:
        """The compiled model against the source, by the tolerances of its arithmetic.

        Raises:
            UsageError: One of them fails on inputs that are given.
        """
        session = self._compiled.session()
        return compare(
            lambda feeds: run_session(session, feeds),
            lambda feeds: run_session(self._reference, feeds),
            self.chosen,
            rules_of(self._compiled, self._source, session, self._live, self._tolerance),
            skips=not self._given,
        )

    def first_difference(self, result: Comparison) -> dict[str, Any]:
        """The first inner value that differs, in the case that is worst; or why none is named."""
        from pitc.check.first_difference import FirstDifference, first_difference

        worst = result.worst
        if worst is None:
            return {"none": "no output differs in a single case"}
        output, title = worst
        feeds = next(case.feeds for case in self.chosen if case.title == title)
        try:
            imported = api.import_model(self._source)[0]
            found = first_difference(
                imported, self._compiled, self._padding, feeds, output.tolerance
            )
        except Exception as error:  # what is looked for is a bug: it may hit whoever looks, too
            return {"none": f"the inner values cannot be compared: {one_line(str(error))}"}
        if isinstance(found, FirstDifference):
            return asdict(found) | {"case": title}
        if not found:
            return {"none": "both graphs share no inner value that can be compared"}
        return {"none": f"{found} inner values of both graphs agree"}

    def audit(self) -> "AuditResult":
        """Every fact that was proven, checked on the inputs and on more that its tests ask for."""
        model = api.import_model(self._source)[0]
        return audit_facts(model, self._padding, [case.feeds for case in self.chosen], self._probes)

    def _probes(self, tests: "Iterable[Test]") -> Iterator[Case]:
        """Further inputs for `audit`, for what is not given."""
        from pitc.check.probes import probes

        return filled(
            specs_of(self._compiled, self._given),
            self._given,
            self._shapes,
            lambda missing, dims: probes(missing, tests, dims, self._live.masks, self._seed),
        )

    def _cases(self) -> list[Case]:
        """The given inputs, and random ones for the rest."""
        known = {value.name for value in self._reference.get_inputs()}
        if self._given and known <= self._given.keys():
            if self._shapes:
                raise UsageError("shapes have no effect: every input is given")
            return [Case("given", {}, dict(self._given))]
        specs = specs_of(self._compiled, self._given)
        make = partial(cases, padding=self._live.masks, seed=self._seed)
        return list(filled(specs, self._given, self._shapes, make))
