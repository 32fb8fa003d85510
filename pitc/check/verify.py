"""Compare a compiled model with ONNX Runtime on the source graph, output by output."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc.check.feeds import Case
from pitc.check.tokens import Live, Tokens, by_tokens
from pitc.check.tolerance import FLOORS, MEASURED, floor_of, is_single, tolerance_of
from pitc.errors import PitcError, UsageError
from pitc.ir.report import TokenPlace
from pitc.session import arrays

if TYPE_CHECKING:
    import onnx_ir as ir

    from pitc.ir.region import Test
    from pitc.passes.audit.engine import AuditResult

_log = logging.getLogger("pitc.check")
Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(slots=True)
class OutputDifference:
    """How far one output is from the reference, over all cases.

    Args:
        output: Its name.
        dtype: Its type.
        rows: `all`, or `live` when padded tokens were left out of the comparison.
        tolerance: Largest norm-wise relative error that passes.
        why: Where the tolerance comes from.
        yardstick: Largest norm-wise relative error of ONNX Runtime against itself without
            optimisations, of float32 also in float64; None where it was not measured.
        max_abs: Largest absolute difference.
        max_rel: Largest difference relative to a non-zero reference element.
        norm: Largest norm-wise relative error of one case: |a - b| / |b|.
        worst: Title of the case with the largest `norm`.
        problem: What is wrong besides numbers (type, shape, values at padded tokens); empty when
            nothing is.
        norms: `norm` of every case, by title; infinite where there is a `problem`.
        yardsticks: The yardstick of float32 cases in which it was measured, by title.
        limits: What passes in those; in others, `tolerance` does.
    """

    output: str
    dtype: str
    tolerance: float
    why: str = ""
    yardstick: float | None = None
    rows: str = "all"
    max_abs: float = 0.0
    max_rel: float = 0.0
    norm: float = 0.0
    worst: str = ""
    problem: str = ""
    norms: dict[str, float] = field(default_factory=dict, repr=False)
    yardsticks: dict[str, float] = field(default_factory=dict, repr=False)
    limits: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """True when the output passes."""
        limit = self.limits.get(self.worst, self.tolerance)
        return not self.problem and self.norm <= limit and not self.failed

    @property
    def failed(self) -> list[str]:
        """Titles of the cases in which it does not, the worst one first."""
        limits = self.limits
        wrong = [t for t, norm in self.norms.items() if not norm <= limits.get(t, self.tolerance)]
        return sorted(wrong, key=lambda title: -self.norms[title])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        body = asdict(self) | {"ok": self.ok, "failed_cases": self.failed}
        for name in ("norms", "yardsticks", "limits"):
            del body[name]
        return body


@dataclass(slots=True)
class Comparison:
    """Result of `compare`.

    Args:
        outputs: The outputs.
        cases: Cases that were compared.
        skipped: Titles of those that the source model itself fails on, and why.
    """

    outputs: list[OutputDifference] = field(default_factory=list)
    cases: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when every output passes in every case."""
        return all(output.ok for output in self.outputs)

    @property
    def failed(self) -> list[str]:
        """Titles of the cases in which an output does not pass."""
        return list(dict.fromkeys(title for output in self.outputs for title in output.failed))

    @property
    def worst(self) -> tuple[OutputDifference, str] | None:
        """The output farthest beyond its tolerance, and in which case; None when all is ok."""
        wrong = [o for o in self.outputs if o.failed]
        if not wrong:
            return None
        worst = max(wrong, key=lambda o: o.norms[o.failed[0]] / max(o.tolerance, 1e-30))
        return worst, worst.failed[0]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "ok": self.ok and self.cases > 0,
            "cases": self.cases,
            "failed": len(self.failed),
            "skipped": self.skipped,
            "outputs": [output.to_dict() for output in self.outputs],
        }


@dataclass(frozen=True, slots=True)
class Rules:
    """What passes as the same answer.

    Args:
        padding: Which tokens are real, if the model was compiled with padding masks.
        token_outputs: Outputs that hold tokens, and where; of these only live tokens
            are compared, and a padded token must be 0 or equal to the reference.
        tolerance: Of floats, instead of that of their arithmetic.
        arithmetic: What each output is computed in (`tolerance.arithmetic_of`); None: its type.
        plain: Makes what runs the source graph without optimisations, the yardstick of tolerances;
            None: nothing is measured.
        double: Makes what runs it in float64; asked for where a float32 answer is off by more than
            its floor, as `plain` is then.
    """

    padding: Live | None = None
    token_outputs: Mapping[str, TokenPlace] = field(default_factory=dict)
    tolerance: float | None = None
    arithmetic: Mapping[str, frozenset[str]] | None = None
    plain: Callable[[], Run] | None = None
    double: Callable[[], Run] | None = None


def compare(
    compiled: Run,
    reference: Run,
    cases: Iterable[Case],
    rules: Rules | None = None,
    *,
    skips: bool = False,
) -> Comparison:
    """Run both on the same inputs.

    Args:
        compiled: Runs the compiled model.
        reference: Runs the source graph.
        cases: The inputs.
        rules: What passes.
        skips: The inputs are random: a case that the source graph fails on is skipped, and one that
            the compiled model alone fails on is a difference. Else, an error.

    Raises:
        UsageError: One of them fails on the inputs, and `skips` is not set.
    """
    result = Comparison()
    by_name: dict[str, OutputDifference] = {}
    rules = rules or Rules()
    known, plain, tolerance = rules.arithmetic or {}, rules.plain, rules.tolerance
    measured = tolerance is None and any(kinds & MEASURED for kinds in known.values())
    yardstick = _yardstick(plain) if plain is not None and measured else None
    makers = [make for make in (plain, rules.double) if make is not None]
    others = cache(lambda: [_yardstick(make) for make in makers])
    for case in cases:
        try:
            expected = arrays(reference(case.feeds))
        except UsageError as error:
            if not skips:
                raise
            result.skipped[case.title] = str(error)
            _log.info("%s: skipped, the source model fails: %s", case.title, error)
            continue
        result.cases += 1
        live = rules.padding(case.feeds) if rules.padding is not None else {}
        for name, want in expected.items():
            if name not in by_name:
                by_name[name] = OutputDifference(name, want.dtype.name, 0.0)
                result.outputs.append(by_name[name])
        try:
            found = arrays(compiled(case.feeds))
        except UsageError as error:
            if not skips:
                raise
            for name in expected:
                by_name[name].norms[case.title] = np.inf
                by_name[name].problem = f"the compiled model fails: {error} ({case.title})"
            continue
        rough = yardstick(case.feeds) if yardstick is not None else {}
        exact: list[Mapping[str, np.ndarray]] = []
        for name, want in expected.items():
            place = rules.token_outputs.get(name)
            tokens = (live[place.mask], place) if place is not None and live else None
            out = by_name[name]
            kinds = _kinds(known, name)
            share = max(1e-4, 10 * floor_of(kinds))
            out.norms[case.title] = _update(out, case, found.get(name), want, tokens, share)
            if name in rough and kinds & MEASURED:
                out.yardstick = max(out.yardstick or 0.0, _apart(rough[name], want, tokens))
            judged = tolerance is None and is_single(out.dtype, kinds)
            if judged and FLOORS["float32"] < out.norms[case.title] < np.inf:
                exact = exact or [run(case.feeds) for run in others()]
                apart = [_apart(run[name], want, tokens) for run in exact if name in run]
                out.yardsticks[case.title] = max(apart, default=0.0)
            _log.debug("%s: %s is off by %.1e", case.title, name, out.norms[case.title])
        _log.info("%s: compared", case.title)
    for out in result.outputs:
        _limit(out, _kinds(known, out.output), tolerance)
    return result


def _limit(out: OutputDifference, kinds: frozenset[str], given: float | None) -> None:
    """Set what passes: of float32 case by case, as a model may be ill-conditioned in one only."""
    for title, yardstick in out.yardsticks.items():
        out.limits[title] = tolerance_of(out.dtype, kinds, yardstick, given).value
    if out.yardsticks:
        farthest = max(out.limits, key=lambda title: out.norms[title] / out.limits[title])
        out.yardstick = out.yardsticks[farthest]
    limit = tolerance_of(out.dtype, kinds, out.yardstick, given)
    out.tolerance, out.why = limit.value, limit.why


def _kinds(known: Mapping[str, frozenset[str]], name: str) -> frozenset[str]:
    """What an output is computed in; of an element of a sequence or map, what that is."""
    while name not in known and name.endswith("]"):
        name = name[: name.rindex("[")]
    return known.get(name, frozenset())


def _yardstick(plain: Callable[[], Run]) -> Run:
    """The source graph without optimisations; it answers nothing where it does not run so."""
    try:
        run = plain()
    except PitcError as error:
        _log.info("no yardstick: %s", error)
        return lambda feeds: {}

    def answer(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        try:
            return arrays(run(feeds))
        except PitcError as error:
            _log.info("no yardstick: %s", error)
            return {}

    return answer


def _apart(other: np.ndarray, want: np.ndarray, tokens: Tokens) -> float:
    """Norm-wise relative error of ONNX Runtime against itself; 0 where that says nothing."""
    if other.shape != want.shape or other.dtype not in (want.dtype, np.float64):
        return 0.0
    other, want, live = by_tokens(other, want, tokens)
    if live is not None:
        other, want = other[live], want[live]
    norm = differences(other, want)[2]
    return norm if np.isfinite(norm) else 0.0


def _update(
    out: OutputDifference,
    case: Case,
    got: np.ndarray | None,
    want: np.ndarray,
    tokens: Tokens,
    share: float,
) -> float:
    """Add one case to the difference of one output.

    Args:
        out: What is added to.
        case: The case.
        got: What the compiled model gives.
        want: What it has to give.
        tokens: Which tokens are compared, and where they are; None: all of the values.
        share: How far an element of a padded token may be from the reference.

    Returns:
        The norm of the case, infinite where it has a problem.
    """
    if got is None or got.dtype != want.dtype or got.shape != want.shape:
        seen = "nothing" if got is None else f"{got.dtype}{list(got.shape)}"
        out.problem = f"expected {want.dtype}{list(want.shape)}, got {seen} ({case.title})"
        return np.inf
    problem = False
    got, want, live = by_tokens(got, want, tokens)
    if live is not None:
        out.rows = "live"
        dead_got, dead_want = got[~live], want[~live]
        if not np.all((dead_got == 0) | _same(dead_got, dead_want, share)):
            out.problem = f"a padded token is neither 0 nor the reference ({case.title})"
            problem = True
        got, want = got[live], want[live]
    max_abs, max_rel, norm = differences(got, want)
    out.max_abs, out.max_rel = max(out.max_abs, max_abs), max(out.max_rel, max_rel)
    if norm > out.norm or not out.worst:
        out.norm, out.worst = norm, case.title
    return np.inf if problem else norm


def _same(a: np.ndarray, b: np.ndarray, share: float) -> np.ndarray:
    equal = a == b
    if a.dtype.kind in "fc" or a.dtype.name == "bfloat16":
        equal |= np.isnan(a) & np.isnan(b)
        with np.errstate(invalid="ignore"):
            equal |= np.abs(a - b) <= share * np.maximum(np.abs(b), 1)
    return np.asarray(equal)


def differences(got: np.ndarray, want: np.ndarray) -> tuple[float, float, float]:
    """Largest absolute, largest relative and norm-wise relative difference.

    NaN equals NaN and an infinity equals itself; any other difference between values that are not
    finite counts as infinite.
    """
    if got.dtype.kind not in "fcV":  # integers, bools, texts; a double cannot hold all of them
        got, want = got != want, np.zeros(want.shape)
    a, b = (np.asarray(x, np.float64).reshape(-1) for x in (got, want))
    if not np.all((np.isfinite(a) & np.isfinite(b)) | (a == b) | (np.isnan(a) & np.isnan(b))):
        return np.inf, np.inf, np.inf
    finite = np.isfinite(a)
    a, b = a[finite], b[finite]
    if a.size == 0:
        return 0.0, 0.0, 0.0
    gap, size = np.abs(a - b), np.abs(b)
    relative = np.divide(gap, size, out=np.zeros_like(gap), where=size > 0)
    scale = float(np.linalg.norm(b))
    norm = float(np.linalg.norm(gap)) / scale if scale > 0 else float(np.linalg.norm(gap))
    return float(gap.max()), float(relative.max()), norm


def audit_facts(
    model: "ir.Model",
    padding: str | None,
    feeds: Iterable[Mapping[str, np.ndarray]],
    probes: "Callable[[Iterable[Test]], Iterable[Case]] | None" = None,
) -> "AuditResult":
    """Check every fact that the passes prove of a model, and what they make of it before that.

    Args:
        model: The imported model; it is changed in place.
        padding: The mask input that it is compiled with, if any.
        feeds: Inputs by name.
        probes: Makes further inputs from the tests of the facts.
    """
    from pitc.passes.audit.engine import audit, tests_of
    from pitc.passes.live_scales import scale_by_live_tokens
    from pitc.passes.normalise import normalise
    from pitc.passes.pipeline import analyse

    scale_by_live_tokens(model, padding)
    source = model.clone()
    normalise(model)
    graph, given_up = analyse(model, padding)
    more = probes(tests_of(graph)) if probes is not None else ()
    return audit(graph, given_up, feeds, source=source, probes=(case.feeds for case in more))
