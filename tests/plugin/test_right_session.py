"""Products by masked matrices in a session: ONNX Runtime's answer from every variant."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from models.graph import GraphBuilder
from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.library import build_kernels
from pitc.ir.variants import VARIANTS
from tests.codegen_kernels import LEVELS
from tests.lower_support import lower, plans, weight
from tests.runtime_support import Array, quiet_options, save, session, use_built_provider

pytest.importorskip("tvm")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

K, N = 517, 150  # more than one block of sums, more than one panel
#: Rows of x as its leading dimensions: none, one, few, and around the width of one panel and two.
LEADS = ((0, 4), (1, 1), (2, 7), (5, 8), (4, 12), (3, 21), (64, 1), (5, 13), (3, 43), (1, 300))
DENSITIES = (0.0, 0.01, 0.2, 1.0)
TOLERANCE: dict[str, Any] = {"rtol": 3e-5, "atol": 3e-5}
Feeds = dict[str, Array]


def masked(g: GraphBuilder, name: str, *shape: int) -> str:
    """A run-time weight times a run-time mask."""
    keep = g.op("Cast", g.input(f"{name}_mask", np.bool_, shape), to=1)
    return g.op("Mul", g.input(name, np.float32, shape), keep)


def model() -> Any:
    """Every way to store the matrix, and everything that may stand behind the product."""
    g = GraphBuilder("right", 20)
    x = g.input("x", np.float32, ("b", "s", K))
    h = g.op("Add", g.op("MatMul", x, masked(g, "kn", K, N)), weight(g, "bias", N))
    made = {"all": g.op("Add", g.op("Relu", h), g.input("residual", np.float32, ("b", "s", N)))}
    turned = g.op("Transpose", masked(g, "nk", N, K), perm=[1, 0])
    made["transposed"] = g.op("MatMul", x, turned)
    keep = g.input("chosen", np.bool_, (K, N))
    chosen = g.op("Where", keep, weight(g, "constant", K, N), g.const(0.0))
    keep = g.op("Cast", g.input("kept", np.bool_, (K, N)), to=1)
    made["finite"] = g.op("MatMul", x, g.op("Mul", keep, weight(g, "fixed", K, N)))
    made["one matrix"] = g.op("Gelu", g.op("MatMul", x, chosen))
    rows = g.op("Reshape", x, g.ints(-1, K))
    positive = g.op("Relu", g.input("numbers", np.float32, (N, K)))
    made["gemm"] = g.op("Gemm", rows, positive, weight(g, "c", N), transB=1)
    for name, y in made.items():
        g.output(y, name, np.float32, ("b", "s", N) if name != "gemm" else ("t", N))
    return g.model()


WANTED = {("kn", "2"), ("kn", "1"), ("nk", "1"), ("kn", "0"), ("nk", "0")}


@dataclass(frozen=True, slots=True)
class Compiled:
    """The lowered model in a folder with its kernels, and a session of the model as it was."""

    path: Path
    reference: Any

    def expected(self, given: Feeds) -> list[Array]:
        with np.errstate(all="ignore"):
            return list(self.reference.run(None, given))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    import onnx_ir as ir

    proto, folder = model(), tmp_path_factory.mktemp("right")
    lowered = lower(proto)
    assert {(p["right"], p["factor"]) for p in plans(lowered)} == WANTED
    build_kernels(lowered.kernels, LEVELS, folder / "kernels.so", cache=kernel_cache())
    path = save(folder, ir.serde.serialize_model(lowered.model))
    return Compiled(path, ort.InferenceSession(proto.SerializeToString(), quiet_options()))


def feeds(lead: tuple[int, int], density: float, seed: int = 1) -> Feeds:
    """Matrices that are live in tiles of random size."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    def live(rows: int, columns: int) -> Array:
        height, width = rng.choice([1, 2, 8, 32]), rng.choice([1, 4, 16, 64])
        tiles = rng.random((-(-rows // height), -(-columns // width))) < density
        return tiles.repeat(height, 0).repeat(width, 1)[:rows, :columns]

    numbers = np.where(live(N, K), normal(N, K), -1)
    given = {"x": normal(*lead, K), "residual": normal(*lead, N), "numbers": numbers}
    given |= {"kn": normal(K, N), "nk": normal(N, K)}
    given |= {"kn_mask": live(K, N), "nk_mask": live(N, K), "chosen": live(K, N)}
    given["kept"] = live(K, N)
    return given


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("variant", [*VARIANTS, None])
def test_every_variant_is_the_product(compiled: Compiled, variant: str | None, level: str) -> None:
    """The same values whatever runs, and the same bits for every number of threads and each run."""
    forced = {"cpu_level": level} | ({} if variant is None else {"variant": variant})
    one, two = (session(compiled.path, quiet_options(n), **forced) for n in (1, 2))
    for seed, lead in enumerate(LEADS):
        for density in DENSITIES:
            given = feeds(lead, density, seed)
            got, again = one.run(None, given), two.run(None, given)
            for x, y, want in zip(got, again, compiled.expected(given), strict=True):
                np.testing.assert_allclose(x, want, **TOLERANCE, err_msg=f"{lead} {density}")
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_does_not_depend_on_how_many_there_are(compiled: Compiled, level: str) -> None:
    """One row tile may read the matrix in place, more of them read copies: the bits are equal."""
    runner = session(compiled.path, cpu_level=level, variant="dense")
    given = feeds((1, 130), 0.5)
    all_rows = [y.reshape(-1, N) for y in runner.run(None, given)]
    for rows in (1, 2, 3, 7, 48, 49):
        part = given | {name: given[name][:, :rows] for name in ("x", "residual")}
        for few, many in zip(runner.run(None, part), all_rows, strict=True):
            np.testing.assert_array_equal(few.reshape(-1, N), many[:rows])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite(compiled: Compiled, variant: str, odd: float) -> None:
    """0 times them is no 0: their rows are as ONNX Runtime has them, and so are the others."""
    given = feeds((2, 70), 0.1)
    clean = compiled.expected(given)
    touched = [0, 70, 139]
    given["x"].reshape(-1, K)[touched, [0, 64, K - 1]] = odd
    got = session(compiled.path, variant=variant).run(None, given)
    for x, want, before in zip(got, compiled.expected(given), clean, strict=True):
        np.testing.assert_allclose(x, want, **TOLERANCE)
        ours, theirs = x.reshape(-1, N), before.reshape(-1, N)
        assert not np.isfinite(ours[touched]).all(axis=1).any()
        others = np.delete(np.arange(len(ours)), touched)
        np.testing.assert_allclose(ours[others], theirs[others], **TOLERANCE)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("variant", [*VARIANTS, None])
def test_matrices_that_are_not_finite(compiled: Compiled, variant: str | None, level: str) -> None:
    """An Inf that is masked is a NaN; a NaN or an Inf that is not is what it is."""
    forced = {"cpu_level": level} | ({} if variant is None else {"variant": variant})
    runner = session(compiled.path, **forced)
    for lead in ((1, 1), (1, 2), (1, 40)):
        given = not_finite(lead)
        got = runner.run(None, given)
        for x, want in zip(got, compiled.expected(given), strict=True):
            np.testing.assert_allclose(x, want, **TOLERANCE, err_msg=str(lead))


def not_finite(lead: tuple[int, int]) -> Feeds:
    given = feeds(lead, 0.1)
    given["kn_mask"][5, :4] = [False, True, True, True]
    given["kn"][5, :4] = [np.inf, np.nan, np.inf, -np.inf]
    given["nk_mask"][N - 1, K - 1] = False
    given["nk"][N - 1, K - 1] = np.nan
    given["numbers"][3, 7] = np.inf
    return given


def test_a_denormal_number_is_no_zero(compiled: Compiled) -> None:
    given = feeds((1, 40), 0.2)
    given["nk"][:] = 1e-41
    given["x"] = np.abs(given["x"]) * np.float32(1e35)
    want = compiled.reference.run(["transposed"], given)[0]
    assert 0 < want.max() < 1e-3
    for variant in VARIANTS:
        (got,) = session(compiled.path, variant=variant).run(["transposed"], given)
        np.testing.assert_allclose(got, want, rtol=1e-4)
