"""Compare a compiled model with ONNX Runtime on the source graph, output by output."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc.check.feeds import Case
from pitc.ir.plan import CUDA_EP_NAME
from pitc.session import arrays

if TYPE_CHECKING:
    import onnx_ir as ir

    from pitc.ir.region import Test
    from pitc.passes.audit.engine import AuditResult

#: Largest norm-wise relative error per output type; integers and booleans must be equal.
TOLERANCES = {"float64": 1e-10, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}

TF32_TOLERANCE = TOLERANCES["float16"]
"""Of float32 on GPUs: tf32 has as many bits behind the point as float16."""

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def tolerance_on(session: Any, tolerance: float | None) -> float | None:
    """The tolerance for what an ONNX Runtime session answers.

    Args:
        session: It runs PIT nodes on a GPU, or not.
        tolerance: The user's, or None.
    """
    if tolerance is None and CUDA_EP_NAME in session.get_providers():
        return TF32_TOLERANCE
    return tolerance


@dataclass(slots=True)
class OutputDifference:
    """How far one output is from the reference, over all cases.

    Args:
        output: Its name.
        dtype: Its type.
        rows: `all`, or `live` when padded tokens were left out of the comparison.
        tolerance: Largest norm-wise relative error that passes.
        max_abs: Largest absolute difference.
        max_rel: Largest difference relative to a non-zero reference element.
        norm: Largest norm-wise relative error of one case: |a - b| / |b|.
        worst: Title of the case with the largest `norm`.
        problem: What is wrong besides numbers (type, shape, values at padded tokens); empty when
            nothing is.
    """

    output: str
    dtype: str
    tolerance: float
    rows: str = "all"
    max_abs: float = 0.0
    max_rel: float = 0.0
    norm: float = 0.0
    worst: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        """True when the output passes."""
        return not self.problem and self.norm <= self.tolerance


@dataclass(slots=True)
class Comparison:
    """Result of `compare`."""

    outputs: list[OutputDifference] = field(default_factory=list)
    cases: int = 0

    @property
    def ok(self) -> bool:
        """True when every output passes in every case."""
        return all(output.ok for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        outputs = [asdict(output) | {"ok": output.ok} for output in self.outputs]
        return {"ok": self.ok, "cases": self.cases, "outputs": outputs}


def compare(
    compiled: Run,
    reference: Run,
    cases: Iterable[Case],
    *,
    padding: str | None = None,
    token_outputs: Mapping[str, int] = MappingProxyType({}),
    tolerance: float | None = None,
) -> Comparison:
    """Run both on the same inputs.

    Args:
        compiled: Runs the compiled model.
        reference: Runs the source graph.
        cases: The inputs.
        padding: The mask input that the model was compiled with, if any.
        token_outputs: Outputs that hold tokens, and as which dimension (`token_axis`); of these
            only live tokens are compared, and a padded token must be 0 or equal to the reference.
        tolerance: Replaces the table by type for floats.
    """
    result = Comparison()
    by_name: dict[str, OutputDifference] = {}
    for case in cases:
        result.cases += 1
        expected, found = arrays(reference(case.feeds)), arrays(compiled(case.feeds))
        live = case.feeds[padding] != 0 if padding is not None else None
        for name, want in expected.items():
            if name not in by_name:
                by_name[name] = _start(name, want, tolerance)
                result.outputs.append(by_name[name])
            rows, axis = live if name in token_outputs else None, token_outputs.get(name, 1)
            _update(by_name[name], case, found.get(name), want, rows, axis)
    return result


def _start(name: str, want: np.ndarray, tolerance: float | None) -> OutputDifference:
    known = TOLERANCES.get(want.dtype.name, 0.0)
    limit = tolerance if tolerance is not None and known else known
    return OutputDifference(name, want.dtype.name, limit)


def _update(
    out: OutputDifference,
    case: Case,
    got: np.ndarray | None,
    want: np.ndarray,
    live: np.ndarray | None,
    axis: int = 1,
) -> None:
    """Add one case to the difference of one output, whose tokens lie along an axis."""
    if got is None or got.dtype != want.dtype or got.shape != want.shape:
        seen = "nothing" if got is None else f"{got.dtype}{list(got.shape)}"
        out.problem = f"expected {want.dtype}{list(want.shape)}, got {seen} ({case.title})"
        return
    if live is not None and axis < want.ndim:
        got, want = (np.moveaxis(x, axis, 1) for x in (got, want))
        live = live[:, live.shape[1] - want.shape[1] :]  # of a mask over a past, the last ones
    if live is not None and live.shape == want.shape[: live.ndim]:
        out.rows = "live"
        dead_got, dead_want = got[~live], want[~live]
        if not np.all((dead_got == 0) | _same(dead_got, dead_want)):
            out.problem = f"a padded token is neither 0 nor the reference ({case.title})"
        got, want = got[live], want[live]
    max_abs, max_rel, norm = differences(got, want)
    out.max_abs, out.max_rel = max(out.max_abs, max_abs), max(out.max_rel, max_rel)
    if norm > out.norm or not out.worst:
        out.norm, out.worst = norm, case.title


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    equal = a == b
    if a.dtype.kind in "fc" or a.dtype.name == "bfloat16":
        equal |= np.isnan(a) & np.isnan(b)
        with np.errstate(invalid="ignore"):
            equal |= np.abs(a - b) <= 1e-4 * np.maximum(np.abs(b), 1)
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


def token_axis(mask: list[Any], output: list[Any]) -> int | None:
    """The dimension of an output that its tokens lie along; None where it holds none.

    Keys of a cache have the mask's size at another place, logits have that of what is appended:

        mask [b, p + s]     keys [b, h, p + s, d] -> 2     logits [b, s, n] -> 1

    Args:
        mask: Declared shape of the mask: sizes, or names of dynamic sizes, or None.
        output: Declared shape of the output.
    """
    if len(mask) == 2 and output[:1] == mask[:1] and isinstance(mask[1], str):
        whole, sizes = _terms(mask[1]), [_terms(size) for size in output]
        for wanted in ([whole], [[name] for name in whole]):
            axes = [a for a in range(1, len(sizes)) if sizes[a] in wanted]
            if axes:
                return axes[0] if len(axes) == 1 else None
    return 1 if token_shaped(mask, output) else None


def _terms(size: Any) -> list[str]:
    """What a declared size is the sum of, in order of their names; none of a number."""
    return sorted(part.strip() for part in size.split("+")) if isinstance(size, str) else []


def token_shaped(mask: list[Any], output: list[Any]) -> bool:
    """True when the declared leading dimensions of an output are those of the mask.

    Args:
        mask: Declared shape of the mask: sizes, or names of dynamic sizes, or None.
        output: Declared shape of the output.
    """
    head = output[: len(mask)]
    if not mask or len(head) < len(mask):
        return False
    return all(
        m == o
        if isinstance(m, int) and isinstance(o, int)
        else isinstance(m, int) == isinstance(o, int)
        for m, o in zip(mask, head, strict=True)
    )
