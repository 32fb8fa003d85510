"""Gradients of attention on a GPU that is not there: real kernels, by the emulator, in ONNX
Runtime.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from pitc.ir.kernel import KernelRequest
from pitc.ir.plans.ops import AttentionGrad, Plan
from tests import plan_reference
from tests.device_kernels import emulated_library, save_with
from tests.device_support import Call, FakeDriver, cuda_node, detect, failure, session
from tests.runtime_support import (
    BOOL,
    COORDS,
    FLOAT,
    INT32,
    OFFSETS,
    ROWS,
    Array,
    make_model,
    points,
)

D, DV, HEADS = 12, 20, 2
NAMES = ["dq", "dk", "dv"]
TESTED: dict[str, Any] = {"positions": 1, "tables": 1, "orders": 1, "key_tests": 1}
TESTED |= {"query_tests": 1, "pair_tests": 1, "program": (3, 4, 0, 5, 1, 6, 1, 7, 1)}
"""p0 and smaller numbers, or one of three flags."""
SEES = "p0l0ak0oq0of0o"
KIND = {np.dtype(np.int64): ir.DataType.INT64, np.dtype(bool): ir.DataType.BOOL}


def request(*, bias: bool = False, sees: str = "") -> KernelRequest:
    more = {"sees": sees} if sees else {}
    return KernelRequest.of_cuda("attention_grad", "float32", d=D, dv=DV, bias=int(bias), **more)


REQUESTS = request(bias=True), request(), request(bias=True, sees=SEES)


@dataclass(frozen=True)
class Case:
    """A model of the gradients of one attention over packed rows.

    Args:
        lengths: Live tokens of each sequence.
        bias: Its extents, or none.
        tests: Pairs are hidden by tests of every kind.
        floor: As in plans.
        no_pairs: As in plans.
    """

    lengths: tuple[int, ...]
    bias: tuple[int, ...] = ()
    tests: bool = False
    floor: float | None = None
    no_pairs: str = "nan"

    @property
    def live(self) -> Array:
        longest = max(self.lengths, default=0) + 1
        return np.arange(longest)[::-1] < np.array(self.lengths, int).reshape(-1, 1)

    def plan(self, **changed: Any) -> Plan:
        kernel = request(bias=bool(self.bias), sees=SEES if self.tests else "").symbol
        fields: dict[str, Any] = {"d": D, "dv": DV, "heads": HEADS, "scale": 0.25}
        fields |= {"bias": bool(self.bias), "pairs": False, "floor": self.floor}
        fields |= {"no_pairs": self.no_pairs, "dtype": "float32", "library": "kernels.so"}
        fields |= {"kernels": (("attention_grad", kernel),)} | (TESTED if self.tests else {})
        return AttentionGrad(**(fields | changed))

    def feeds(self) -> dict[str, Array]:
        """Heads beside those of a tensor, of k and of g."""
        rng = np.random.default_rng(len(self.lengths))
        t, (s, n) = sum(self.lengths), self.live.shape
        widths = {"q": (HEADS, D), "k": (HEADS + 1, D), "v": (HEADS, DV), "g": (HEADS + 2, DV)}
        found = {name: rng.standard_normal((t, *w), np.float32) for name, w in widths.items()}
        found["live"] = self.live
        if self.bias:
            found["bias"] = rng.standard_normal(self.bias, np.float32)
        if self.tests:
            found |= {
                "position_tests": np.array([[1, -1, 0]], np.int64),
                "q_tables": rng.integers(0, 3, (1, s, n)),
                "k_tables": rng.integers(0, 3, (1, s, n)),
                "key_flags": rng.random((1, s, n)) < 0.9,
                "query_flags": rng.random((1, s, n)) < 0.9,
                "pair_flags": rng.random((1, s, n, n)) < 0.9,
            }
        return found

    def inputs(self, feeds: dict[str, Array]) -> list[str]:
        """Of the node."""
        names = ["q", "k", "v", "offsets", "offsets", *(["bias"] if self.bias else [])]
        names += ["coords", "coords"] if self.bias or self.tests else []
        tests = [name for name in feeds if name.endswith(("_tests", "_tables", "_flags"))]
        return [*names, *tests, "g"]

    def model(self, feeds: dict[str, Array], **changed: Any) -> Any:
        node = cuda_node("grad", self.plan(**changed).text(), self.inputs(feeds), NAMES)
        kinds = {name: KIND.get(x.dtype, FLOAT) for name, x in feeds.items()}
        given = [(name, int(kinds[name]), x.shape) for name, x in feeds.items() if name != "live"]
        outputs = [(name, FLOAT, None) for name in NAMES]
        live = ("live", BOOL, self.live.shape)
        return make_model([detect(), node], [*given, live], outputs, [ROWS, COORDS, OFFSETS])

    def expected(self, feeds: dict[str, Array]) -> tuple[Array, ...]:
        """By float64."""
        _, coords, offsets = points(self.live)
        known = feeds | {"coords": coords, "offsets": offsets}
        fields = plan_reference.parse(self.plan().text())
        return plan_reference.attention_grad(fields, *(known[x] for x in self.inputs(feeds)))


@pytest.fixture(name="library", scope="module")
def _library() -> Path:
    return emulated_library(*REQUESTS)


def _answers(
    folder: Path, library: Path, case: Case, feeds: dict[str, Array], names: list[str]
) -> tuple[list[Array], dict[str, int], str]:
    """Results, what the driver did for them, and the kernel that it ran last."""
    return _answered(folder, library, case.model(feeds), feeds, names)


def _answered(
    folder: Path, library: Path, model: Any, feeds: dict[str, Array], names: list[str] | None = None
) -> tuple[list[Array], dict[str, int], str]:
    """The same of a model."""
    run = session(save_with(folder, library, model, "model.onnx"))
    driver = FakeDriver()
    driver.settled("launches")
    with driver.counted() as counts:
        found = run.run(names, feeds)
        driver.settled("launches")
    return found, counts, driver.launched()


LENGTHS = (5, 0, 70, 1)
CASES = [
    Case(LENGTHS),
    Case(LENGTHS, bias=(4, HEADS, 71, 71)),
    Case((5, 9), bias=(1, 1, 1, 10), floor=-1e30),
    Case(LENGTHS, bias=(4, 1, 71, 71), tests=True),
    Case((70, 33), bias=(1, HEADS, 71, 71), tests=True, no_pairs="zero"),
]


def close(got: Array, want: Array) -> None:
    """Within 1e-5 of the largest number."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    largest = max(1.0, float(np.abs(np.nan_to_num(want)).max(initial=0)))
    assert np.abs(np.nan_to_num(got - want)).max(initial=0) <= 1e-5 * largest


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_near_float64(gpu: Call, library: Path, tmp_path: Path, case: Case) -> None:
    feeds = case.feeds()
    got, counts, launched = gpu(_answers, tmp_path, library, case, feeds, NAMES)
    for mine, theirs in zip(got, case.expected(feeds), strict=True):
        assert mine.shape == (sum(case.lengths), HEADS, theirs.shape[-1])
        close(mine, theirs[:, :HEADS])
    assert counts["launches"] == 2 and launched.endswith("_keys_cuda_kernel")


def test_rows_that_see_no_key(gpu: Call, library: Path, tmp_path: Path) -> None:
    """They are NaN, or 0; and NaN reaches all keys of the sequence."""
    for no_pairs in ("nan", "zero"):
        case = Case((70, 3), bias=(1, 1, 71, 71), tests=True, no_pairs=no_pairs)
        feeds = case.feeds()
        for name in ("key_flags", "query_flags", "pair_flags"):
            feeds[name][...] = True
        feeds["q_tables"][0, 0], feeds["k_tables"][0] = 0, 2
        feeds["q_tables"][0, 0, 40] = 5
        got, _, _ = gpu(_answers, tmp_path, library, case, feeds, NAMES)
        want = case.expected(feeds)
        assert np.isnan(want[0]).any() == (no_pairs == "nan")
        for mine, theirs in zip(got, want, strict=True):
            close(mine, theirs[:, :HEADS])


def test_nothing_is_live(gpu: Call, library: Path, tmp_path: Path) -> None:
    case = Case((0, 0))
    got, counts, _ = gpu(_answers, tmp_path, library, case, case.feeds(), NAMES)
    assert [x.shape for x in got] == [(0, HEADS, D), (0, HEADS, D), (0, HEADS, DV)]
    assert counts["launches"] == 0


def test_results_that_nobody_reads(gpu: Call, library: Path, tmp_path: Path) -> None:
    case = CASES[1]
    feeds = case.feeds()
    whole, _, _ = gpu(_answers, tmp_path, library, case, feeds, NAMES)
    for k, name in enumerate(NAMES):
        (got,), _, _ = gpu(_answers, tmp_path, library, case, feeds, [name])
        np.testing.assert_array_equal(got, whole[k])


@pytest.mark.parametrize("side", "qk")
@pytest.mark.parametrize(
    "case", [Case((5, 40)), Case((5, 40), (2, 1, 41, 41), tests=True)], ids=str
)
def test_one_side_has_no_rows(
    gpu: Call, library: Path, tmp_path: Path, side: str, case: Case
) -> None:
    """Queries without keys have no gradient, and keys without queries none, either."""
    feeds = case.feeds()
    model = case.model(feeds)
    (node,) = (n for n in model.graph.node if n.name == "grad")
    none, rows = np.zeros(3, np.int32), {"q": "qg", "k": "kv"}[side]
    inputs = {"none": (INT32, none), "at": (INT32, np.zeros((2, 0), np.int32))}
    for name, (kind, x) in inputs.items():
        model.graph.input.append(helper.make_tensor_value_info(name, kind, x.shape))
    node.input[3 if side == "q" else 4] = "none"
    if case.bias:
        node.input[6 if side == "q" else 7] = "at"
    given = (
        feeds | {name: feeds[name][:0] for name in rows} | {n: x for n, (_, x) in inputs.items()}
    )
    for value in model.graph.input:
        if value.name in rows:
            value.type.tensor_type.shape.dim[0].dim_value = 0
    got, counts, _ = gpu(_answered, tmp_path, library, model, given)
    sizes = {"q": (0, 45, 45), "k": (45, 0, 0)}[side]
    for x, size in zip(got, sizes, strict=True):
        assert len(x) == size and not x.any()
    assert counts["launches"] == (0 if side == "q" else 1)


def _errors(folder: Path, library: Path) -> None:
    def text(name: str, case: Case, feeds: dict[str, Array], **changed: Any) -> str:
        path = save_with(folder, library, case.model(feeds, **changed), f"{name}.onnx")
        return failure(lambda: session(path).run(None, feeds))

    case = Case((5, 9), bias=(1, 1, 4, 10))
    assert "expected 0 <= q_coords[0] < 4, got 5" in text("queries", case, case.feeds())
    case = Case((5, 9), bias=(3, 1, 1, 10))
    assert "expected bias as [2 or 1, 2 or 1, queries" in text("bias", case, case.feeds())
    case = Case((5, 9))
    feeds = case.feeds()
    assert "expected g of 14 rows, as q, got 13" in text(
        "rows", case, feeds | {"g": feeds["g"][1:]}
    )
    assert "expected g as [t, X, 20] with X >= 2" in text(
        "heads", case, feeds | {"g": feeds["g"][:, :1]}
    )
    assert "expected pairs=0 for a GPU" in text("lists", case, feeds, pairs=True)
    case = Case((5, 9), bias=(1, 1, 1, 10), tests=True)
    assert "a program with all of its tests" in text(
        "unread", case, case.feeds(), program=(3, 4, 0, 5, 1, 6, 1)
    )
    absent = (("attention_grad", "attention_grad_d9_v9_f32"),)
    assert "expected kernel 'attention_grad_d9_v9_f32_queries_cuda'" in text(
        "absent", Case((5, 9)), feeds, kernels=absent
    )


def test_what_is_wrong_is_told(gpu: Call, library: Path, tmp_path: Path) -> None:
    gpu(_errors, tmp_path, library)
