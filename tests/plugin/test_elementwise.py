"""elementwise in a session: shapes of operands and results, threads, what is refused."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.library import build_kernels
from pitc.ir.formula import COLUMN, FLAGS, HALVES, NUMBER, ROW, Formula
from pitc.ir.kernel import KernelRequest
from tests.codegen_kernels import LEVELS, bits
from tests.plan_reference import elementwise
from tests.runtime_support import (
    BOOL,
    FLOAT,
    Array,
    Plan,
    Value,
    answers_on_eight_threads,
    make_model,
    pit_node,
    quiet_options,
    save,
    session,
    use_built_provider,
)

pytest.importorskip("onnxruntime")
pytest.importorskip("tvm")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

FLAT = Formula.of(
    ("whole", "whole", "number"), "LessOrEqual:x0:0x0.0p+0,Where:s0:x2:x1,Neg:s1;s2;s1"
)
BY_ROWS = Formula.of(
    ("row", "flags", "column", "whole", "number"),
    "Mul:x3:x0,ReduceMean:s0,Add:s1:x2,Sub:s0:s1,Where:x1:s3:x4;s4;s0;s2",
)
GATED = Formula.of(
    ("left", "column", "right"), "Sigmoid:x0,Mul:x0:s0,Mul:s1:x2,ReduceSum:s2,Mul:s2:x1;s4;s3"
)
FORMULAS = (FLAT, BY_ROWS, GATED)
#: Of the first result: no rows, one, many; rows of no elements, a part of a vector, several tasks.
SHAPES = [(1,), (70,), (3, 17), (0, 64), (2, 3, 64), (300, 400), (1, 1, 70_000)]


def request(formula: Formula) -> KernelRequest:
    kinds = ",".join(formula.kinds)
    return KernelRequest.of("elementwise", kinds=kinds, formula=formula.text)


def model(formula: Formula) -> onnx.ModelProto:
    fields = {
        "by_rows": int(formula.by_rows),
        "columns": ",".join(str(int(x)) for x in formula.column_results),
        "dtype": "float32",
        "formula": formula.text.replace(":", "%3A")
        .replace(",", "%2C")
        .replace(";", "%3B")
        .replace("+", "%2B"),
        "kernels": f"elementwise:{formula.symbol}",
        "kinds": ",".join(formula.kinds),
        "library": "kernels.so",
    }
    types = (BOOL if kind == FLAGS else FLOAT for kind in formula.kinds)
    inputs: list[Value] = [(f"x{i}", kind, None) for i, kind in enumerate(types)]
    outputs: list[Value] = [(f"y{i}", FLOAT, None) for i in range(len(formula.results))]
    plan = Plan("elementwise", tuple(fields.items()))
    node = pit_node("several", plan, [x for x, *_ in inputs], [y for y, *_ in outputs])
    return make_model([node], inputs, outputs)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("elementwise")
    build_kernels(list(map(request, FORMULAS)), LEVELS, folder / "kernels.so", cache=kernel_cache())
    yield folder


def feeds(formula: Formula, shape: tuple[int, ...], seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {ROW: shape[-1:], COLUMN: (*shape[:-1], 1), NUMBER: (1,)}
    shapes |= dict.fromkeys(HALVES, (*shape[:-1], 2 * shape[-1]))
    found = [rng.standard_normal(shapes.get(kind, shape), np.float32) for kind in formula.kinds]
    pairs = zip(formula.kinds, found, strict=True)
    return {f"x{i}": x > 0 if kind == FLAGS else x for i, (kind, x) in enumerate(pairs)}


def wanted(formula: Formula, given: dict[str, Array]) -> tuple[Array, ...]:
    fields = {"kinds": ",".join(formula.kinds), "formula": formula.text}
    return elementwise(fields, *given.values())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("formula", FORMULAS, ids=("flat", "by rows", "gated"))
def test_all_results_of_all_shapes(folder: Path, formula: Formula, shape: tuple[int, ...]) -> None:
    path, given = save(folder, model(formula)), feeds(formula, shape)
    got = session(path, quiet_options()).run(None, given)
    for mine, theirs in zip(got, wanted(formula, given), strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    several = session(path, quiet_options(5)).run(None, given)
    assert all(np.array_equal(bits(x), bits(y)) for x, y in zip(got, several, strict=True))


def test_results_that_nobody_reads(folder: Path) -> None:
    given = feeds(BY_ROWS, (5, 90))
    run = session(save(folder, model(BY_ROWS)), quiet_options())
    whole = run.run(None, given)
    for k, name in enumerate(("y0", "y1", "y2")):
        (got,) = run.run([name], given)
        assert np.array_equal(bits(got), bits(whole[k]))


def test_rows_of_no_elements(folder: Path) -> None:
    """A mean of none is NaN, for every row."""
    got = session(save(folder, model(BY_ROWS)), quiet_options()).run(None, feeds(BY_ROWS, (3, 0)))
    assert [x.shape for x in got] == [(3, 0), (3, 0), (3, 1)] and np.isnan(got[2]).all()


def test_many_threads_at_once(folder: Path) -> None:
    given = [feeds(BY_ROWS, (200, 500), seed) for seed in range(4)]
    answers_on_eight_threads(session(save(folder, model(BY_ROWS)), quiet_options()), given, 2)


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("x0", (6,), "of 7 elements"),
        ("x1", (5, 6), "of the shape of the other operands"),
        ("x2", (4, 1), "of one element for each row"),
        ("x3", (7,), "of the shape of the other operands"),
        ("x4", (2,), "of one element"),
    ],
)
def test_wrong_shapes_are_told(folder: Path, name: str, shape: tuple[int, ...], text: str) -> None:
    given = feeds(BY_ROWS, (5, 7))
    given[name] = np.ones(shape, given[name].dtype)
    with pytest.raises(Exception, match=text):
        session(save(folder, model(BY_ROWS)), quiet_options()).run(None, given)


@pytest.mark.parametrize(
    ("shape", "text"), [((5, 13), "of rows of two halves"), ((5, 16), "of the shape of the other")]
)
def test_wrong_halves_are_told(folder: Path, shape: tuple[int, ...], text: str) -> None:
    given = feeds(GATED, (5, 7)) | {"x2": np.ones(shape, np.float32)}
    with pytest.raises(Exception, match=text):
        session(save(folder, model(GATED)), quiet_options()).run(None, given)


def test_halves_depend_on_rows(folder: Path) -> None:
    made = model(GATED)
    (text,) = [a for a in made.graph.node[0].attribute if a.name == "ep_cache_context"]
    text.s = text.s.replace(b"by_rows=1", b"by_rows=0")
    with pytest.raises(Exception, match="halves of rows without by_rows=1"):
        session(save(folder, made), quiet_options())


def test_numbers_that_stand_for_truth_values_are_refused(folder: Path) -> None:
    made = model(BY_ROWS)
    made.graph.input[1].type.tensor_type.elem_type = FLOAT
    given = feeds(BY_ROWS, (5, 7))
    given["x1"] = given["x1"].astype(np.float32)
    with pytest.raises(Exception, match="of bool"):
        session(save(folder, made), quiet_options()).run(None, given)
