"""outer_products in a session: the same bits from every variant and on any number of threads."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

import pitc
from models import masked
from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.library import build_kernels
from pitc.ir.kernel import KernelRequest
from tests.codegen_kernels import LEVELS, bits
from tests.plugin.test_sampled_session import TYPES, VARIANTS, of_tiles
from tests.runtime_support import (
    BOOL,
    FLOAT,
    Array,
    Value,
    answers_on_eight_threads,
    kernel_plan,
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

#: (K, M, N): single ones, a word and a bit of the mask, several blocks of sums, panels and tasks.
SIZES = [(1, 1, 1), (5, 64, 64), (65, 65, 65), (517, 150, 90), (400, 70, 2200), (385, 1100, 130)]
TILES = [(1, 1), (16, 1), (32, 1), (64, 64), (32, 64)]


def model(mask: int | None = BOOL) -> onnx.ModelProto:
    """Under a mask of that type, or without one."""
    plan = kernel_plan("outer_products", "outer_products_dense", masked=int(mask is not None))
    inputs: list[Value] = [("a", FLOAT, [None] * 2), ("b", FLOAT, [None] * 2)]
    inputs += [] if mask is None else [("mask", mask, [None] * 2)]
    node = pit_node("outer", plan, [name for name, *_ in inputs], ["c"])
    return make_model([node], inputs, [("c", FLOAT, [None] * 2)])


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("outer_products")
    requests = [KernelRequest.of(f"outer_products{x}") for x in ("", "_dense")]
    build_kernels(requests, LEVELS, folder / "kernels.so", cache=kernel_cache())
    yield folder


def feeds(k: int, live: Array, seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    m, n = live.shape
    a, b = (rng.standard_normal((k, size), np.float32) for size in (m, n))
    return {"a": a, "b": b, "mask": live}


def wanted(given: dict[str, Array]) -> Array:
    return np.where(given["mask"] != 0, given["a"].T.astype(np.float64) @ given["b"], 0)


def answers_of_all(folder: Path, given: dict[str, Array], threads: int = 1) -> Array:
    """Without a mask."""
    path = save(folder, model(None))
    return session(path, quiet_options(threads)).run(None, {x: given[x] for x in "ab"})[0]


def answers(folder: Path, given: dict[str, Array], **options: str) -> Array:
    path = save(folder, model())
    return session(path, quiet_options(), **options).run(None, given)[0]


@pytest.mark.parametrize("sizes", SIZES)
def test_every_variant_gives_the_same_bits(folder: Path, sizes: tuple[int, int, int]) -> None:
    k, m, n = sizes
    path = save(folder, model())
    runs = [session(path, quiet_options(), variant=name) for name in VARIANTS]
    chosen = session(path, quiet_options())
    for tile in TILES:
        for density in (0, 0.1, 0.6, 1):
            given = feeds(k, of_tiles(m, n, tile, density))
            want = wanted(given)
            (got,) = chosen.run(None, given)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
            assert not np.signbit(got[~given["mask"]]).any()
            for run in runs:
                assert np.array_equal(bits(run.run(None, given)[0]), bits(got)), (tile, density)


@pytest.mark.parametrize("sizes", SIZES)
def test_without_a_mask_all_are_computed(folder: Path, sizes: tuple[int, int, int]) -> None:
    """By the same sums as under a mask of ones, on any number of threads."""
    k, m, n = sizes
    given = feeds(k, np.ones((m, n), bool))
    got = answers_of_all(folder, given)
    np.testing.assert_allclose(got, wanted(given), rtol=1e-4, atol=1e-4)
    for same in (answers(folder, given, variant="row"), answers_of_all(folder, given, 5)):
        assert np.array_equal(bits(same), bits(got))


@pytest.mark.parametrize("sizes", [(0, 5, 7), (3, 0, 7), (3, 5, 0), (0, 0, 0), (0, 700, 300)])
def test_sizes_of_0(folder: Path, sizes: tuple[int, int, int]) -> None:
    k, m, n = sizes
    given = feeds(k, np.ones((m, n), bool))
    for got in (answers(folder, given), answers_of_all(folder, given)):
        assert got.shape == (m, n) and np.array_equal(bits(got), np.zeros((m, n), np.uint32))


@pytest.mark.parametrize("dtype", TYPES)
def test_masks_of_all_types(folder: Path, dtype: str) -> None:
    element, kind = TYPES[dtype]
    live = of_tiles(70, 90, (1, 1), 0.3).astype(kind)
    if np.dtype(kind).kind == "f":
        live[0, :3] = -0.0, np.nan, 0.25
    given = feeds(9, live)
    (got,) = session(save(folder, model(element)), quiet_options()).run(None, given)
    np.testing.assert_allclose(got, wanted(given), rtol=1e-4, atol=1e-4)


def test_dead_elements_are_0_whatever_operands_hold(folder: Path) -> None:
    given = feeds(9, of_tiles(70, 90, (16, 1), 0.5))
    given["a"][:, 3], given["b"][:, 5] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        want = given["a"].T.astype(np.float64) @ given["b"]
    want = np.where(given["mask"], want, 0)
    for variant in VARIANTS:
        got = answers(folder, given, variant=variant)
        assert np.array_equal(np.isfinite(got), np.isfinite(want))
        assert np.array_equal(bits(got[~given["mask"]]), bits(np.zeros_like(got)[~given["mask"]]))


def test_a_gradient_from_onnx_to_its_answer() -> None:
    """A masked weight's gradient, compiled: one node that has taken in its mask."""
    compiled = pitc.compile(masked.weight_gradient(96, 130))
    ran = {r.op_type: r.lowering for r in compiled.report.nodes}
    assert ran["Gemm" if "Gemm" in ran else "MatMul"] == "outer_products"
    assert ran["Mul"] == "folded"
    rng = np.random.default_rng(5)
    sizes = {"x": 96, "dy": 130}
    for share, rows in product((0.0, 0.03, 0.4, 1.0), (0, 1, 80, 500)):
        given = {x: rng.standard_normal((rows, n), np.float32) for x, n in sizes.items()}
        mask = rng.random((96, 130)) < share
        want = np.where(mask, given["x"].T.astype(np.float64) @ given["dy"], 0)
        got = compiled.run({**given, "mask": mask})["dw"]
        np.testing.assert_allclose(got, want, atol=1e-4)
        assert not got[~mask].any()


def test_many_threads_at_once(folder: Path) -> None:
    given = [feeds(400, of_tiles(600, 700, tile, 0.2)) for tile in TILES]
    answers_on_eight_threads(session(save(folder, model())), given, 2)


@pytest.mark.parametrize("tile", TILES)
def test_the_same_bits_on_one_thread_and_on_several(folder: Path, tile: tuple[int, int]) -> None:
    path = save(folder, model())
    given = feeds(400, of_tiles(1100, 700, tile, 0.2))
    one, several = (session(path, o).run(None, given)[0] for o in map(quiet_options, (1, 5)))
    assert np.array_equal(bits(one), bits(several))


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [("b", (4, 6), "of 3 rows"), ("mask", (5, 7), "of 5 rows of 6"), ("mask", (6, 5), "of 5 rows")],
)
def test_wrong_shapes_are_told(folder: Path, name: str, shape: tuple[int, int], text: str) -> None:
    given = feeds(3, np.ones((5, 6), bool))
    given[name] = np.ones(shape, given[name].dtype)
    with pytest.raises(Exception, match=text):
        answers(folder, given)
