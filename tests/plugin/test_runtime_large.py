"""Tensors of more than 2^31 elements in nodes, and what is refused: more rows than lists number."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.library import build_kernels
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, TURNED_COLUMNS, panel_count
from pitc.ir.variants import FEATURES
from tests.codegen_kernels import LEVELS, Array, untouched
from tests.plan_text import Plan, contract_plan
from tests.runtime_support import (
    BOOL,
    COORDS,
    FLOAT,
    INT32,
    MASK,
    ROWS,
    Value,
    attention_plan,
    detect_model,
    gemm_plan,
    kernel_plan,
    make_model,
    pit_node,
    save,
    session,
    use_built_provider,
)

K, PANELS = 1 << 16, 513
N = PANELS * PANEL_WIDTH
VARIANTS = ("dense", "row", "tile8", "block16")


@pytest.fixture(scope="module", autouse=True)
def _provider() -> Iterator[None]:
    yield from use_built_provider()


ONES = ",".join(len(FEATURES) * "1")
COSTS = {f"cost_{v}_{level}": ONES for v in VARIANTS[1:] for level in ("v3", "v4")}
FAMILIES = ("gather_gemm", "contract_row", "contract_tile", "contract_block")


def contraction(folder: Path, n: int, gather: int) -> Plan:
    """The plan of a contraction with a left operand of `K` columns; its kernels are built."""
    fields = {"k": K, "n": n, "activation": "none"}
    requests = [KernelRequest.of(family, residual=0, **fields) for family in FAMILIES]
    build_kernels(requests, LEVELS, folder / "kernels.so", cache=kernel_cache())
    return contract_plan(**fields, gather=gather, skips=1, **COSTS)


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    values = [("a", FLOAT, ["t", K]), ("b", FLOAT, [PANELS, K, PANEL_WIDTH])]
    node = pit_node("c", contraction(folder, N, 0), ["a", "b"], ["y"])
    return save(folder, make_model([node], values, [("y", FLOAT, ["t", N])]))


@pytest.fixture(name="panels", scope="module")
def _panels() -> Array:
    """Zeros that take no memory, but for some rows of the first and of the last panel."""
    assert panel_count(N) == PANELS and PANELS * K * PANEL_WIDTH > 1 << 31
    b = untouched(PANELS, K, PANEL_WIDTH)
    rng = np.random.default_rng(1)
    for panel in (0, PANELS - 1):
        b[panel, ::512] = rng.integers(-9, 9, (K // 512, PANEL_WIDTH))
    return b


@pytest.mark.parametrize("variant", VARIANTS)
def test_products_are_exact(path: Path, panels: Array, variant: str) -> None:
    a = np.zeros((1, K), np.float32)
    a[0, ::512] = np.arange(K // 512) % 7 - 3
    for level in LEVELS if variant != "dense" else LEVELS[:1]:
        (y,) = session(path, variant=variant, cpu_level=level).run(None, {"a": a, "b": panels})
        want = np.zeros((1, N), np.float32)
        for panel in (0, PANELS - 1):
            columns = slice(panel * PANEL_WIDTH, (panel + 1) * PANEL_WIDTH)
            want[:, columns] = a @ panels[panel]
        assert want[0, -PANEL_WIDTH:].any()
        np.testing.assert_array_equal(y, want)


FEW, HEADS = 9, 512
ROWS_OF_A = (1 << 15) + FEW
"""The last `FEW` of them, each of `K` elements, begin at element 2^31."""
TAKEN: list[Value] = [ROWS, COORDS, MASK]


@pytest.fixture(name="left", scope="module")
def _left() -> Array:
    left = untouched(1, ROWS_OF_A, K)
    assert left.size > 1 << 31
    left[0, -FEW:, ::512] = np.random.default_rng(2).integers(-9, 9, (FEW, K // 512))
    return left


@pytest.mark.parametrize("stored", ["kn", "nk"])
def test_large_right_operand(tmp_path: Path, stored: str) -> None:
    """Of the stored matrix, a corner behind element 2^31 is not 0."""
    fields = {"k": K, "activation": "none", "residual": 0}
    n = (1 << 15) + PANEL_WIDTH
    dense = KernelRequest.of("gather_gemm", n=n, stored=stored, factor=0, **fields)
    listed = [KernelRequest.of(family, n=TURNED_COLUMNS, **fields) for family in FAMILIES[1:]]
    finish = KernelRequest.of("swrite_columns", n=n, activation="none", residual=0)
    requests = [dense, *listed, KernelRequest.of("panels", k=K), finish]
    if stored == "kn":
        requests.append(KernelRequest.of("stored_rows", k=K, n=n, stored=stored, factor=0))
    build_kernels(requests, LEVELS, tmp_path / "kernels.so", cache=kernel_cache())
    plan = contract_plan(**fields, **COSTS, n=n, right=stored, skips=1)
    shape = (K, n) if stored == "kn" else (n, K)
    s = untouched(*shape)
    s[-FEW:, -PANEL_WIDTH:] = np.random.default_rng(5).integers(-9, 9, (FEW, PANEL_WIDTH))
    values: list[Value] = [("a", FLOAT, ["t", K]), ("s", FLOAT, list(shape))]
    node = pit_node("c", plan, ["a", "s"], ["y"])
    path = save(tmp_path, make_model([node], values, [("y", FLOAT, ["t", n])]))
    a = np.zeros((2, K), np.float32)
    a[:, -PANEL_WIDTH:] = np.arange(2 * PANEL_WIDTH).reshape(2, -1) % 7 - 3
    corner = s if stored == "kn" else s.T
    for variant in ("dense", "row", "block16"):
        (y,) = session(path, variant=variant).run(None, {"a": a, "s": s})
        want = np.zeros((2, n), np.float32)
        want[:, -PANEL_WIDTH:] = a[:, -PANEL_WIDTH:] @ corner[-PANEL_WIDTH:, -PANEL_WIDTH:]
        assert want.any()
        np.testing.assert_array_equal(y, want)


def last_rows() -> dict[str, Array]:
    """The mask of every other one of the last rows, and what `detect` makes of it."""
    live = np.zeros((1, ROWS_OF_A), np.bool_)
    live[0, -FEW::2] = True
    rows = np.flatnonzero(live).astype(np.int32)
    return {"rows": rows, "coords": np.stack([0 * rows, rows]), "live": live}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_a_large_left_operand(tmp_path: Path, left: Array, variant: str) -> None:
    plan = contraction(tmp_path, PANEL_WIDTH, 1)
    values: list[Value] = [("a", FLOAT, [1, "m", K]), ("b", FLOAT, [1, K, PANEL_WIDTH]), ROWS, MASK]
    node = pit_node("c", plan, ["a", "b", "rows", "live"], ["y"])
    path = save(tmp_path, make_model([node], values, [("y", FLOAT, ["t", PANEL_WIDTH])]))
    b = np.random.default_rng(3).integers(-9, 9, (1, K, PANEL_WIDTH)).astype(np.float32)
    taken = {name: x for name, x in last_rows().items() if name != "coords"}
    for level in LEVELS:
        run = session(path, variant=variant, cpu_level=level)
        (y,) = run.run(None, {"a": left, "b": b, **taken})
        assert y.any()
        np.testing.assert_array_equal(y, left[0, -FEW::2] @ b[0])


def test_rows_are_packed_out_of_a_large_tensor(tmp_path: Path, left: Array) -> None:
    node = pit_node(
        "p", kernel_plan("pack", "pack_b4", dims="c0,c1,r"), ["x", "rows", "coords", "live"], ["y"]
    )
    values: list[Value] = [("x", FLOAT, [1, "m", K]), *TAKEN]
    path = save(tmp_path, make_model([node], values, [("y", FLOAT, ["t", K])]))
    (y,) = session(path).run(None, {"x": left, **last_rows()})
    np.testing.assert_array_equal(y, left[0, -FEW::2])


def test_attention_in_the_last_of_many_heads(tmp_path: Path) -> None:
    """One key of its own for each query: the result is its value."""
    rows = (1 << 16) + FEW
    x = untouched(rows, HEADS, 64)
    assert x.size > 1 << 31
    x[-FEW:, -1] = np.random.default_rng(4).integers(-9, 9, (FEW, 64))
    last = (HEADS - 1, HEADS - 1, HEADS - 1)
    request = KernelRequest.of("attention", d=64, dv=64, bias=0)
    build_kernels([request], LEVELS, tmp_path / "kernels.so", cache=kernel_cache())
    node = pit_node("a", attention_plan(64, 64, 1, first=last), ["x", "x", "x", "o", "o"], ["y"])
    values: list[Value] = [("x", FLOAT, ["t", HEADS, 64]), ("o", INT32, ["s"])]
    path = save(tmp_path, make_model([node], values, [("y", FLOAT, ["t", 1, 64])]))
    (y,) = session(path).run(None, {"x": x, "o": np.arange(rows + 1, dtype=np.int32)})
    assert y[-FEW:].any()
    np.testing.assert_array_equal(y[:, 0], x[:, -1])


def refusal(path: Path, **given: Array) -> str:
    with pytest.raises(Exception, match="pitc: node") as caught:
        session(path).run(None, given)
    return str(caught.value)


def test_more_than_int32_numbers_is_refused(tmp_path: Path) -> None:
    """Before any of it is read."""
    many, most = 1 << 31, "expected at most 2147483647"
    values: list[Value] = [("a", FLOAT, ["m", 3]), ("b", FLOAT, [1, 3, 5])]
    out: list[Value] = [("y", FLOAT, ["t", 5])]
    b, a = np.zeros((1, 3, 5), np.float32), np.zeros((4, 3), np.float32)
    node = pit_node("g", gemm_plan(3, 5), ["a", "b"], ["y"])
    path = save(tmp_path, make_model([node], values, out))
    assert f"{most} rows of a, got 2147483648" in refusal(path, a=untouched(many, 3), b=b)
    node = pit_node("g", gemm_plan(3, 5, gather=1), ["a", "b", "rows", "live"], ["y"])
    values += [ROWS, ("live", BOOL, ["m"])]
    path = save(tmp_path, make_model([node], values, out))
    rows, live = untouched(many, dtype=np.int32), np.ones(4, np.bool_)
    assert f"{most} rows, got 2147483648" in refusal(path, a=a, b=b, rows=rows, live=live)
    path = save(tmp_path, detect_model())
    live = untouched(2, 1 << 30, dtype=np.bool_)
    assert f"{most} points of live, got 2147483648" in refusal(path, live=live)
