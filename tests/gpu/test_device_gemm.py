"""gather_gemm on a GPU that is not there: real kernels, by the emulator, in ONNX Runtime."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pitc.codegen import reference
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count
from tests.device_kernels import clocks, emulated_library, emulated_process, save_with
from tests.device_support import (
    Call,
    FakeDriver,
    bind_at,
    cuda_node,
    detect,
    failure,
    on_device,
    session,
)
from tests.plan_text import Plan, contract_plan
from tests.runtime_support import BOOL, COORDS, FLOAT, OFFSETS, ROWS, Array, make_model

TYPES = {name: ir.DataType[name.upper().replace("32", "")] for name in ("float16", "bfloat16")}
TYPES["float32"] = ir.DataType.FLOAT
SMALL = 3
REQUESTS = (
    KernelRequest.of_cuda("gather_gemm", "float16", k=64, n=72, activation="none", residual=0),
    KernelRequest.of_cuda("gather_gemm", "float16", k=64, n=72, activation="gelu", residual=1),
    KernelRequest.of_cuda("gather_gemm", "bfloat16", k=20, n=7, activation="relu", residual=1),
    KernelRequest.of_cuda("gather_gemm", "float32", k=64, n=72, activation="none", residual=0),
)


@dataclass(frozen=True)
class Case:
    """A model of one contraction.

    Args:
        lead: Extents of a in front of k, and of the mask where there is one.
        dtype: Of the operands.
        k: Columns of a.
        n: Columns of the product.
        activation: As in plans.
        residual: Whether there is one.
        gather: Rows of the mask are read.
        scatter: They are written.
        share: Of the points that live.
        times: The plan's clocks of each tile.
    """

    lead: tuple[int, ...]
    dtype: str = "float16"
    k: int = 64
    n: int = 72
    activation: str = "none"
    residual: int = 0
    gather: int = 0
    scatter: int = 0
    share: float = 0.5
    times: tuple[int, ...] = (1,)

    @property
    def listed(self) -> bool:
        return bool(self.gather or self.scatter)

    def numbers(self) -> dict[str, Array]:
        """Small whole numbers, and the mask."""
        rng = np.random.default_rng(len(self.lead) + self.k)
        live = rng.random(self.lead) < self.share
        t = int(live.sum())
        lead = (t,) if self.scatter and not self.gather else self.lead
        rows = t if self.listed else int(np.prod(self.lead))

        def whole(*shape: int) -> Array:
            return rng.integers(-SMALL, SMALL + 1, shape).astype(np.float32)

        a, w, bias = whole(*lead, self.k), whole(self.k, self.n), whole(self.n)
        return {"live": live, "a": a, "w": w, "bias": bias, "residual": whole(rows, self.n)}

    def plan(self, **other: Any) -> Plan:
        """The plan, some fields of it changed."""
        shape = {"k": self.k, "n": self.n, "activation": self.activation}
        shape["residual"] = self.residual
        fields = {
            **shape,
            "bias": 1,
            "dtype": self.dtype,
            "gather": self.gather,
            "scatter": self.scatter,
            **clocks(self.dtype, *self.times),
        }
        return contract_plan("cuda", **(fields | other))

    def model(self, **changed: Any) -> Any:
        """Casts around the contraction; `panels` or `bias` or fields of the plan may be others."""
        x = self.numbers()
        element = TYPES[self.dtype]
        panels = pack_panels(x["w"].astype(element.numpy()), element.numpy())
        bias = np.zeros(panel_count(self.n) * PANEL_WIDTH, np.float32)
        bias[: self.n] = x["bias"]
        constants = {"b": changed.pop("panels", panels), "bias": changed.pop("bias", bias)}
        from_type = changed.pop("from_type", element)
        fields = changed.pop("fields", {})
        given = ["a", *(["residual"] if self.residual else [])]
        read = ["a.cast", "b", "bias", *(["residual.cast"] if self.residual else [])]
        nodes = [_cast(name, f"{name}.cast", from_type) for name in given]
        if self.listed:
            nodes, read = [detect(), *nodes], [*read, "rows", "live"]
        nodes.append(cuda_node("gemm", self.plan(**changed, **fields), read, ["c"]))
        nodes.append(_cast("c", "y", ir.DataType.FLOAT))
        inputs = [(name, FLOAT, x[name].shape) for name in given]
        values = [("c", int(element), None)]
        if self.listed:
            inputs.append(("live", BOOL, self.lead))
            values += [ROWS, COORDS, OFFSETS]
        return make_model(nodes, inputs, [("y", FLOAT, None)], values, constants)

    def feeds(self) -> dict[str, Array]:
        """What the model reads."""
        names = ["a", *(["residual"] if self.residual else []), *(["live"] if self.listed else [])]
        x = self.numbers()
        return {name: x[name] for name in names}

    def expected(self) -> Array:
        """By float64, rounded once."""
        x = self.numbers()
        rows = x["a"].reshape(-1, self.k).astype(np.float64)
        if self.gather:
            rows = x["a"][x["live"]].astype(np.float64)
        every = np.arange(len(rows), dtype=np.int32)
        residual = x["residual"].astype(np.float64) if self.residual else None
        c = reference.gather_gemm(
            rows, every, x["w"].astype(np.float64), x["bias"], residual, self.activation
        )
        c = c.astype(TYPES[self.dtype].numpy()).astype(np.float32)
        if not self.scatter:
            return c if self.gather else c.reshape(*self.lead, self.n)
        y = np.zeros((*self.lead, self.n), np.float32)
        y[x["live"]] = c
        return y


def _cast(source: str, result: str, to: ir.DataType) -> Any:
    from onnx import helper

    return helper.make_node("Cast", [source], [result], to=int(to))


@pytest.fixture(name="library", scope="module")
def _library() -> Path:
    return emulated_library(*REQUESTS)


def _answer(folder: Path, library: Path, case: Case, given: dict[str, str]) -> tuple[Array, str]:
    """What a session answers, and the kernel that it ran last."""
    run = session(save_with(folder, library, case.model(), "model.onnx"), given=given)
    (y,) = run.run(None, case.feeds())
    again = run.run(None, case.feeds())[0]
    assert np.array_equal(y, again)
    return y, FakeDriver().launched()


CASES = [
    Case((5,)),
    Case((2, 3, 11)),
    Case((3, 7), gather=1),
    Case((3, 7), scatter=1),
    Case((3, 7), gather=1, scatter=1),
    Case((2, 4), gather=1, scatter=1, share=0),
    Case((2, 4), gather=1, scatter=1, share=1),
    Case((0,)),
    Case((2, 9), "bfloat16", 20, 7, "relu", residual=1, gather=1, scatter=1),
    Case((33,), "bfloat16", 20, 7, "relu", residual=1),
    Case((4, 5), "float32", gather=1, scatter=1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_exact(gpu: Call, library: Path, tmp_path: Path, case: Case) -> None:
    y, _ = gpu(_answer, tmp_path, library, case, {})
    np.testing.assert_array_equal(y, case.expected())


def test_is_near_where_an_activation_rounds(gpu: Call, library: Path, tmp_path: Path) -> None:
    case = Case((3, 5), activation="gelu", residual=1, gather=1)
    y, _ = gpu(_answer, tmp_path, library, case, {})
    np.testing.assert_allclose(y, case.expected(), rtol=2e-3, atol=2e-3)


HALF = (512, 400, 620, 500)  # of 128, 64, 32 and 16 rows; the last two take twice the k
FULL = (900, 500, 700, 600, 800, 400)  # the same, then 128 and 32 rows of exact numbers


@pytest.mark.parametrize(
    ("rows", "dtype", "times", "given", "tile"),
    [
        (16, "float16", HALF, {}, "mma16x128"),
        (40, "float16", HALF, {}, "mma32x128"),
        (100, "float16", HALF, {}, "mma64x128"),
        (250, "float16", HALF, {}, "mma128x128"),
        (16, "float32", FULL, {}, "mma16x128"),
        (16, "float32", FULL, {"tf32": "1"}, "mma16x128"),
        (16, "float32", FULL, {"tf32": "0"}, "simt32x128"),
        (250, "float32", FULL, {"tf32": "0"}, "simt128x128"),
        (33, "float32", (9, 9, 9, 9, 1, 1), {}, "simt128x128"),
    ],
)
def test_the_fastest_tile_runs(
    gpu: Call,
    library: Path,
    tmp_path: Path,
    rows: int,
    dtype: str,
    times: Sequence[int],
    given: dict[str, str],
    tile: str,
) -> None:
    case = Case((rows,), dtype, times=tuple(times))
    y, launched = gpu(_answer, tmp_path, library, case, given)
    tag = {"float16": "f16", "float32": "f32"}[dtype]
    assert launched == f"gather_gemm_none_{tag}_{tile}_cuda_kernel"
    np.testing.assert_array_equal(y, case.expected())


def _carveouts(folder: Path, library: Path, cases: Sequence[Case]) -> list[tuple[int, ...]]:
    """What was asked of the driver for each case, and which launches lacked it."""
    names, driver = ("large", "cramped", "attributes", "carveouts"), FakeDriver()
    counts = []
    for case in cases:
        before = [driver.count(name) for name in names]
        _answer(folder, library, case, {})
        counts.append(tuple(driver.count(n) - b for n, b in zip(names, before, strict=True)))
    return counts


def test_kernels_with_much_shared_memory_get_all_of_it(library: Path, tmp_path: Path) -> None:
    """More than 24 KiB, that is of every tile: so that other blocks fit beside."""
    cases = [Case((rows,), times=HALF) for rows in (16, 250, 250)]
    cases += [Case((250,), "float32", times=(9, 9, 9, 9, 9, 1))]
    with emulated_process() as call:
        asked = call(_carveouts, tmp_path, library, cases)
    # each session runs twice and sets them once; 72, 48, 48 and 40 KiB
    assert asked == [(2, 0, 1, 1), (2, 0, 0, 1), (2, 0, 0, 1), (0, 0, 0, 1)]


def _benchmarked(library: Path) -> list[int]:
    from benchmarks.gpu.driver import Device
    from benchmarks.gpu.library import CudaLibrary
    from benchmarks.gpu.products import Machine, Operands, dense
    from pitc.ir.cuda_target import CUDA_TILES

    device, driver, case = Device(), FakeDriver(), Case((250,))
    machine = Machine(device, CudaLibrary(device, library))
    x = {name: array.astype(np.float16) for name, array in case.numbers().items()}
    operands = Operands.of(device, x["a"], x["w"], "float16")
    for tile in CUDA_TILES[:2]:
        work = dense(machine, operands, tile)
        work()
        work()
    device.wait()
    return [driver.count(name) for name in ("large", "cramped", "attributes", "carveouts")]


def test_benchmarks_launch_as_the_runtime_does(library: Path) -> None:
    with emulated_process() as call:
        assert call(_benchmarked, library) == [4, 0, 0, 2]


def _errors(folder: Path, library: Path) -> None:
    case = Case((3, 7), gather=1, scatter=1)

    def text(name: str, given: dict[str, str] | None = None, **changed: Any) -> str:
        path = save_with(folder, library, case.model(**changed), f"{name}.onnx")
        return failure(lambda: session(path, given=given).run(None, case.feeds()))

    half = np.float16
    assert "expected a as float16 of rank >= 2, got float32" in text(
        "type", from_type=ir.DataType.FLOAT
    )
    assert "expected b as float16 of rank 3, got float32 [2, 64, 64]" in text(
        "float", panels=np.zeros((2, 64, 64), np.float32)
    )
    assert "expected b as [ceil(72 / NR), 64, NR], got float16 [1, 64, 64]" in text(
        "few", panels=np.zeros((1, 64, 64), half)
    )
    assert "expected b as panels of 64 columns, got 72" in text(
        "wide", panels=np.zeros((1, 64, 72), half)
    )
    assert "expected bias as float32 [128], got float32 [72]" in text(
        "bias", bias=np.zeros(72, np.float32)
    )
    assert "plan: expected a kernel for 'dense' in kernels, got none" in text(
        "kernel", kernels="tile:gather_gemm_none_f16"
    )
    assert "plan: expected bias=1 for a GPU" in text("none", fields={"bias": 0})
    assert "plan: expected clocks_sm_80 as 4 numbers" in text("clocks", clocks_sm_80="1,2")
    assert "plan: unknown key 'clocks_sm_x'" in text("unknown", clocks_sm_x="1,1,1,1")
    assert "expected tf32 0 or 1, got 'yes'" in text("tf32", {"tf32": "yes"})
    assert "expected kernel 'gather_gemm_silu_f16_mma128x128_cuda' in 'kernels.so'" in text(
        "absent", activation="silu"
    )


def test_what_is_wrong_is_told(gpu: Call, library: Path, tmp_path: Path) -> None:
    gpu(_errors, tmp_path, library)


def _bad_rows(folder: Path, library: Path) -> None:
    case = Case((3, 7), gather=1, scatter=1)
    model = case.model()
    del model.graph.node[0]  # the detector: rows are an input
    rows = model.graph.input.add()
    rows.CopyFrom(next(v for v in model.graph.value_info if v.name == "rows"))
    run = session(save_with(folder, library, model, "model.onnx"))
    for wrong, told in (
        ([0, 21], "expected 0 <= rows[1] < 21, got 21"),
        ([-1, 3], "expected 0 <= rows[0] < 21, got -1"),
        ([3, 3], "expected rows"),
    ):
        given = case.feeds() | {"rows": np.array(wrong, np.int32)}
        assert told in failure(run.run, None, given), told
    driver = FakeDriver()
    with driver.counted() as counts:
        y = run.run(None, case.feeds() | {"rows": np.array([4], np.int32)})[0]
    assert counts["launches"] == 1 and counts["fills"] == 1
    others = np.delete(y.reshape(21, -1), 4, axis=0)
    assert not others.any() and y.reshape(21, -1)[4].any()


def test_rows_are_checked(gpu: Call, library: Path, tmp_path: Path) -> None:
    gpu(_bad_rows, tmp_path, library)


def _between_chunks(folder: Path, library: Path) -> None:
    case = Case((5,), "float32")
    model = case.model()
    del model.graph.node[0]  # the cast: a lies on the device
    model.graph.node[0].input[0] = "a"
    run = session(save_with(folder, library, model, "model.onnx"))
    a = case.feeds()["a"]
    longer = on_device(np.concatenate([[7], a.reshape(-1)]).astype(np.float32))
    binding = run.io_binding()
    bind_at(binding, "a", longer.data_ptr() + 4, a)
    binding.bind_output("y", "cpu")
    with FakeDriver().counted() as counts:
        run.run_with_iobinding(binding)
    assert counts["copies_across"] == 1
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], case.expected())


def test_a_part_of_a_tensor_lies_between_chunks(gpu: Call, library: Path, tmp_path: Path) -> None:
    gpu(_between_chunks, tmp_path, library)


def _without_an_image(folder: Path, library: Path) -> str:
    path = save_with(folder, library, Case((5,)).model(), "model.onnx")
    return failure(session, path)


def test_no_image_for_the_device(library: Path, tmp_path: Path) -> None:
    with emulated_process(arch=70) as call:
        text = call(_without_an_image, tmp_path, library)
    assert (
        "pitc: node 'gemm' (contract): expected code of kernel "
        "'gather_gemm_none_f16_mma128x128_cuda' for CUDA device 0 (Fake GPU 0, sm_70), got sm_80, "
        "PTX for sm_80; compile the model again for cuda:sm_70" in text
    )
