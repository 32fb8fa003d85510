"""Elementwise operators of one pass on a GPU that is not there: shapes, what is refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from pitc.ir.formula import Formula
from pitc.ir.kernel import KernelRequest
from pitc.ir.plan import CUDA_EP_NAME
from tests.device_kernels import emulated_library, save_with
from tests.device_support import Call, FakeDriver, session
from tests.plugin.test_elementwise import BY_ROWS, FLAT, feeds, model, wanted
from tests.runtime_support import Array

#: Of the first result: few elements, rows that begin anywhere, no rows, many.
SHAPES = [(1,), (70,), (3, 17), (0, 64), (2, 3, 64), (300, 40), (1, 1, 9_000)]


def request(formula: Formula) -> KernelRequest:
    kinds = ",".join(formula.kinds)
    return KernelRequest.of("elementwise", "float32", "cuda", kinds=kinds, formula=formula.text)


def on_gpu(formula: Formula) -> onnx.ModelProto:
    made = model(formula)
    (source,) = [a for a in made.graph.node[0].attribute if a.name == "source"]
    source.s = CUDA_EP_NAME.encode()
    return made


@pytest.fixture(name="library", scope="module")
def _library() -> Path:
    return emulated_library(*map(request, (FLAT, BY_ROWS)))


def _answers(
    folder: Path, library: Path, formula: Formula, given: dict[str, Array], names: list[str] | None
) -> tuple[list[Array], dict[str, int]]:
    """Results, and what the driver did for them."""
    run = session(save_with(folder, library, on_gpu(formula), "model.onnx"))
    driver = FakeDriver()
    driver.settled("launches")
    with driver.counted() as counts:
        found = run.run(names, given)
        driver.settled("launches")
    return found, counts


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("formula", (FLAT, BY_ROWS), ids=("flat", "by rows"))
def test_all_results_of_all_shapes(
    gpu: Call, library: Path, tmp_path: Path, formula: Formula, shape: tuple[int, ...]
) -> None:
    """In one launch; nobody waits for anything but the results."""
    given = feeds(formula, shape)
    got, counts = gpu(_answers, tmp_path, library, formula, given, None)
    want = wanted(formula, given)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    assert counts["launches"] == (1 if any(x.size for x in want) else 0)


def test_results_that_nobody_reads(gpu: Call, library: Path, tmp_path: Path) -> None:
    given = feeds(BY_ROWS, (5, 90))
    whole, _ = gpu(_answers, tmp_path, library, BY_ROWS, given, None)
    for k, name in enumerate(("y0", "y1", "y2")):
        (got,), _ = gpu(_answers, tmp_path, library, BY_ROWS, given, [name])
        np.testing.assert_array_equal(got, whole[k])


def test_rows_of_no_elements(gpu: Call, library: Path, tmp_path: Path) -> None:
    """A mean of none is NaN, for every row; without such results nothing is launched."""
    got, counts = gpu(_answers, tmp_path, library, BY_ROWS, feeds(BY_ROWS, (3, 0)), None)
    assert [x.shape for x in got] == [(3, 0), (3, 0), (3, 1)] and np.isnan(got[2]).all()
    assert counts["launches"] == 1
    _, counts = gpu(_answers, tmp_path, library, FLAT, feeds(FLAT, (3, 0)), None)
    assert counts["launches"] == 0


def _refused(folder: Path, library: Path, given: dict[str, Array]) -> str:
    with pytest.raises(Exception) as told:
        _answers(folder, library, BY_ROWS, given, None)
    return str(told.value)


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("x0", (6,), "of 7 elements"),
        ("x1", (5, 6), "of the shape of the other operands"),
        ("x2", (4, 1), "of one element for each row"),
        ("x4", (2,), "of one element"),
    ],
)
def test_wrong_shapes_are_told(
    gpu: Call, library: Path, tmp_path: Path, name: str, shape: tuple[int, ...], text: str
) -> None:
    given = feeds(BY_ROWS, (5, 7))
    given[name] = np.ones(shape, given[name].dtype)
    assert text in gpu(_refused, tmp_path, library, given)


def test_kernels_are_named_by_their_formula() -> None:
    assert request(FLAT).symbol == FLAT.symbol != BY_ROWS.symbol
