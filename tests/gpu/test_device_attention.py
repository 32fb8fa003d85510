"""attention on a GPU that is not there: real kernels, by the emulator, in ONNX Runtime."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from pitc.codegen import reference
from pitc.ir.kernel import KernelRequest
from tests.device_kernels import emulated_library, save_with
from tests.device_support import Call, FakeDriver, cuda_node, detect, failure, session
from tests.plan_text import Plan
from tests.runtime_support import BOOL, COORDS, FLOAT, OFFSETS, ROWS, Array, make_model, points

TYPES = {
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "float32": ir.DataType.FLOAT,
}
REQUESTS = (
    KernelRequest.of_cuda("attention", "float16", d=32, dv=16, bias=1),
    KernelRequest.of_cuda("attention", "bfloat16", d=12, dv=20, bias=0),
    KernelRequest.of_cuda("attention", "float32", d=32, dv=16, bias=0),
    KernelRequest.of_cuda("attention", "float16", d=32, dv=16, bias=0, sees="p0e0ak0oq0of0o"),
)
HEADS = 2


@dataclass(frozen=True)
class Case:
    """A model of one attention over packed rows.

    Args:
        lengths: Live tokens of each sequence.
        dtype: Of q, k, v and the output.
        d: Width of a head of q and k.
        dv: Width of a head of v.
        bias: Its extents, or none.
        nan_to_zero: As in plans.
        no_keys_to_zero: As in plans.
    """

    lengths: tuple[int, ...]
    dtype: str = "float16"
    d: int = 32
    dv: int = 16
    bias: tuple[int, ...] = ()
    nan_to_zero: int = 0
    no_keys_to_zero: int = 0

    @property
    def live(self) -> Array:
        longest = max(self.lengths, default=0) + 1
        return np.arange(longest)[::-1] < np.array(self.lengths, int).reshape(-1, 1)

    def feeds(self) -> dict[str, Array]:
        """q and k lie in one tensor, q in front of it; v has a head more in front."""
        rng = np.random.default_rng(len(self.lengths) + self.d)
        t, live = sum(self.lengths), self.live
        x = {
            "qk": rng.normal(size=(t, 2 * HEADS, self.d)).astype(np.float32),
            "v": rng.normal(size=(t, HEADS + 1, self.dv)).astype(np.float32),
            "live": live,
        }
        dtype = TYPES[self.dtype].numpy()
        x = {n: a if n == "live" else a.astype(dtype).astype(np.float32) for n, a in x.items()}
        if self.bias:
            x["bias"] = rng.normal(size=self.bias).astype(np.float32)
        return x

    def plan(self, **other: Any) -> Plan:
        shape = {"d": self.d, "dv": self.dv, "bias": int(bool(self.bias))}
        fields = {
            **shape,
            "dtype": self.dtype,
            "heads": HEADS,
            "k_head": HEADS,
            "library": "kernels.so",
            "nan_to_zero": self.nan_to_zero,
            "no_keys_to_zero": self.no_keys_to_zero,
            "no_pairs": "nan",
            "pairs": 0,
            "q_head": 0,
            "scale": 0.25,
            "v_head": 1,
            "whole": 0,
        }
        kernel = KernelRequest.of_cuda("attention", self.dtype, **shape).symbol
        named = {"kernels": f"attention:{kernel}"}
        return Plan("attention", tuple((fields | named | other).items()))

    def model(self, **changed: Any) -> Any:
        """Casts around attention; fields of the plan may be others."""
        element = TYPES[self.dtype]
        nodes = [detect()]
        for name in ("qk", "v"):
            nodes.append(helper.make_node("Cast", [name], [f"{name}.cast"], to=int(element)))
        read = ["qk.cast", "qk.cast", "v.cast", "offsets", "offsets"]
        x = self.feeds()
        inputs = [("qk", FLOAT, x["qk"].shape), ("v", FLOAT, x["v"].shape)]
        if self.bias:
            read += ["bias", "coords", "coords"]
            inputs.append(("bias", FLOAT, self.bias))
        nodes.append(cuda_node("attend", self.plan(**changed), read, ["out"]))
        nodes.append(helper.make_node("Cast", ["out"], ["y"], to=int(ir.DataType.FLOAT)))
        inputs.append(("live", BOOL, self.live.shape))
        values = [ROWS, COORDS, OFFSETS, ("out", int(element), None)]
        return make_model(nodes, inputs, [("y", FLOAT, None)], values)

    def expected(self) -> Array:
        """By float64, sequence by sequence and head by head."""
        x = self.feeds()
        _, coords, offsets = points(x["live"])
        out = np.zeros((sum(self.lengths), HEADS, self.dv))
        for s, (begin, end) in enumerate(itertools.pairwise(offsets)):
            at = coords[-1, begin:end]
            for h in range(HEADS):
                q, k = x["qk"][begin:end, h], x["qk"][begin:end, HEADS + h]
                bias = None
                if self.bias:
                    whole = np.broadcast_to(
                        x["bias"], (len(self.lengths), HEADS, *(2 * self.live.shape[1:]))
                    )
                    bias = whole[s, h][np.ix_(at, at)]
                v = x["v"][begin:end, 1 + h]
                out[begin:end, h] = reference.attention(q, k, v, 0.25, bias, bool(self.nan_to_zero))
        return out


@pytest.fixture(name="library", scope="module")
def _library() -> Path:
    return emulated_library(*REQUESTS)


def _answer(
    folder: Path, library: Path, case: Case, feeds: dict[str, Array], given: dict[str, str]
) -> tuple[Array, str]:
    """What a session answers, and the kernel that it ran last."""
    run = session(save_with(folder, library, case.model(), "model.onnx"), given=given)
    (y,) = run.run(None, feeds)
    return y, FakeDriver().launched()


BIASED = Case((5, 0, 70, 1), bias=(4, HEADS, 71, 71))
CASES = [
    (BIASED, {}, "attention_d32_v16_bias_f16_cuda_kernel", 3e-3),
    (Case((5, 9), bias=(1, HEADS, 1, 10)), {}, "attention_d32_v16_bias_f16_cuda_kernel", 3e-3),
    (Case((3, 66), "bfloat16", 12, 20), {}, "attention_d12_v20_loose_bf16_cuda_kernel", 2e-2),
    (Case((3, 66), "float32"), {}, "attention_d32_v16_f32_mma_cuda_kernel", 3e-3),
    (Case((3, 66), "float32"), {"tf32": "0"}, "attention_d32_v16_f32_simt_cuda_kernel", 2e-6),
]


@pytest.mark.parametrize(("case", "given", "kernel", "bound"), CASES, ids=str)
def test_is_near_float64(
    gpu: Call,
    library: Path,
    tmp_path: Path,
    case: Case,
    given: dict[str, str],
    kernel: str,
    bound: float,
) -> None:
    y, launched = gpu(_answer, tmp_path, library, case, case.feeds(), given)
    assert launched == kernel
    np.testing.assert_allclose(y, case.expected(), rtol=bound, atol=bound)


def test_nothing_to_attend_to(gpu: Call, library: Path, tmp_path: Path) -> None:
    case = Case((0, 0), "float32")
    y, _ = gpu(_answer, tmp_path, library, case, case.feeds(), {})
    assert y.shape == (0, HEADS, 16)


@pytest.mark.parametrize("to_zero", [0, 1])
def test_a_row_of_nan(gpu: Call, library: Path, tmp_path: Path, to_zero: int) -> None:
    case = Case((4, 3), bias=(2, 1, 5, 5), nan_to_zero=to_zero)
    feeds = case.feeds()
    feeds["bias"][1, 0, 3] = -np.inf
    y, _ = gpu(_answer, tmp_path, library, case, feeds, {})
    rows = np.isnan(y) if not to_zero else y == 0
    assert [bool(row.all()) for row in rows] == [False] * 5 + [True, False]


def _errors(folder: Path, library: Path) -> None:
    def text(name: str, case: Case, feeds: dict[str, Array], **changed: Any) -> str:
        path = save_with(folder, library, case.model(**changed), f"{name}.onnx")
        return failure(lambda: session(path).run(None, feeds))

    case = Case((5, 9), bias=(1, 1, 4, 10))
    assert "expected 0 <= q_coords[0] < 4, got 5" in text("queries", case, case.feeds())
    case = Case((5, 9), bias=(3, 1, 1, 10))
    assert "expected bias as [2 or 1, 2 or 1, queries or 1, keys or 1]" in text(
        "bias", case, case.feeds()
    )
    case = Case((5, 9), "float32")
    assert "expected v as [t, X, 16] with X >= 4" in text("heads", case, case.feeds(), v_head=2)
    assert "expected kernel 'attention_d32_v32_f32_mma_cuda' in 'kernels.so', got none" in text(
        "absent", case, case.feeds(), dv=32, kernels="attention:attention_d32_v32_f32"
    )


def test_what_is_wrong_is_told(gpu: Call, library: Path, tmp_path: Path) -> None:
    gpu(_errors, tmp_path, library)


TESTED = {"positions": 1, "tables": 1, "orders": 0, "key_tests": 1, "query_tests": 1}
PROGRAM = {**TESTED, "pair_tests": 1, "program": "3,4,0,5,1,6,1,7,1"}
"""p0 and equal numbers, or one of three flags."""


def _seen_model(case: Case, feeds: dict[str, Array], **changed: Any) -> Any:
    """`case` under a program, whose tests read inputs."""
    made = case.model(**(PROGRAM | changed))
    (attend,) = (node for node in made.graph.node if node.name == "attend")
    attend.input.extend(["coords", "coords", *list(feeds)[3:]])
    kinds = {np.dtype(np.int64): 7, np.dtype(np.bool_): 9, np.dtype(np.int32): 6}
    for name, x in list(feeds.items())[3:]:
        made.graph.input.append(helper.make_tensor_value_info(name, kinds[x.dtype], x.shape))
    return made


def _tests_of(case: Case) -> dict[str, Array]:
    rng, (s, n) = np.random.default_rng(1), case.live.shape
    return case.feeds() | {
        "position_tests": np.array([[1, -1, 0]], np.int64),
        "q_tables": rng.integers(0, 3, (1, s, n)),
        "k_tables": rng.integers(0, 3, (1, s, n)),
        "key_flags": rng.random((1, s, n)) < 0.9,
        "query_flags": rng.random((1, s, n)) < 0.9,
        "pair_flags": rng.random((1, s, n, n)) < 0.9,
    }


def _seen_answer(folder: Path, library: Path, case: Case, feeds: dict[str, Array]) -> Array:
    kernel = REQUESTS[-1].symbol
    made = _seen_model(case, feeds, kernels=f"attention:{kernel}", no_pairs="mean")
    run = session(save_with(folder, library, made, "model.onnx"))
    return np.asarray(run.run(None, feeds)[0])


@pytest.mark.parametrize("lengths", [(5, 0, 70, 1), (0,), (1,)], ids=str)
def test_pairs_by_tests_of_every_kind(
    gpu: Call, library: Path, tmp_path: Path, lengths: tuple[int, ...]
) -> None:
    case = Case(lengths)
    feeds = _tests_of(case)
    y = gpu(_seen_answer, tmp_path, library, case, feeds)
    _, coords, offsets = points(case.live)
    for s, (begin, end) in enumerate(itertools.pairwise(offsets)):
        at = coords[-1, begin:end]
        q, k = np.ix_(at, at)
        seen = (q - k >= 0) & (feeds["q_tables"][0, s][q] == feeds["k_tables"][0, s][k])
        seen |= ~feeds["key_flags"][0, s][k] | ~feeds["query_flags"][0, s][q]
        seen |= ~feeds["pair_flags"][0, s][q, k]
        for h in range(HEADS):
            of_q, of_k = feeds["qk"][begin:end, h], feeds["qk"][begin:end, HEADS + h]
            hidden = np.where(seen, 0, -np.inf)
            v = feeds["v"][begin:end, 1 + h]
            want = reference.attention(of_q, of_k, v, 0.25, hidden)
            want[~seen.any(axis=1)] = v.mean(axis=0) if len(v) else 0
            np.testing.assert_allclose(y[begin:end, h], want, rtol=3e-3, atol=3e-3)


def _seen_errors(folder: Path, library: Path) -> None:
    case = Case((5, 9))
    feeds = _tests_of(case)
    kernels = {"kernels": f"attention:{REQUESTS[-1].symbol}"}

    def text(name: str, changed: dict[str, Any], given: dict[str, Array]) -> str:
        made = _seen_model(case, given, **(kernels | changed))
        path = save_with(folder, library, made, f"{name}.onnx")
        return failure(lambda: session(path).run(None, given))

    wide = np.zeros((1, 2, 11), np.int64)
    assert "expected key_flags with extent 11 in dimension 2" in text(
        "extents", {}, feeds | {"k_tables": wide}
    )
    short = feeds | {"q_tables": wide[:, :, :4], "query_flags": feeds["query_flags"][:, :, :4]}
    short["pair_flags"] = feeds["pair_flags"][:, :, :4]
    assert "expected 0 <= q_coords[0] < 4, got 5" in text("positions", {}, short)
    assert "expected q_tables as numbers of 1 tests and 2 sequences" in text(
        "sequences", {}, feeds | {"q_tables": wide[:, :1]}
    )
    assert "expected pair_flags as flags of 1 tests and 2 sequences" in text(
        "bytes", {}, feeds | {"pair_flags": feeds["pair_flags"].astype(np.int32)}
    )
    assert "expected position_tests as int64 [1, 3]" in text(
        "lines", {}, feeds | {"position_tests": np.zeros((1, 2), np.int64)}
    )
    assert "a program with all of its tests" in text("unread", {"program": "3,4,0,5,1,6,1"}, feeds)
    assert "a program that leaves one truth value" in text("two", {"program": "3,4"}, feeds)


def test_wrong_tests_of_pairs_are_told(gpu: Call, library: Path, tmp_path: Path) -> None:
    gpu(_seen_errors, tmp_path, library)
