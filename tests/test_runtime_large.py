"""Right operands of more than 2^31 elements, in every kernel that reads panels."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pitc.codegen.library import build_kernels
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, panel_count
from tests.codegen_kernels import LEVELS, Array
from tests.runtime_support import (
    FLOAT,
    kernel_plan,
    make_model,
    pit_node,
    save,
    session,
    use_built_provider,
)

K, PANELS = 1 << 16, 513
N = PANELS * PANEL_WIDTH
_NO_RESERVE = 0x4000  # of Linux; the module does not name it everywhere
VARIANTS = ("dense", "row", "tile8", "block16")


@pytest.fixture(scope="module", autouse=True)
def _provider() -> Iterator[None]:
    yield from use_built_provider()


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    fields = {"k": K, "n": N, "activation": "none"}
    families = ("gather_gemm", "contract_row", "contract_tile", "contract_block")
    requests = [KernelRequest.of(family, residual=0, **fields) for family in families]
    build_kernels(requests, LEVELS, folder / "kernels.so")
    costs = {
        f"cost_{variant}_{level}": ",".join(12 * "1")
        for variant in VARIANTS[1:]
        for level in ("v3", "v4")
    }
    flags = dict.fromkeys(("bias", "gather", "input_relu", "residual", "scatter"), 0)
    plan = kernel_plan("contract", requests[0].symbol, **fields, **flags, **costs)
    values = [("a", FLOAT, ["t", K]), ("b", FLOAT, [PANELS, K, PANEL_WIDTH])]
    node = pit_node("c", plan, ["a", "b"], ["y"])
    return save(folder, make_model([node], values, [("y", FLOAT, ["t", N])]))


@pytest.fixture(name="panels", scope="module")
def _panels() -> Array:
    """Zeros that take no memory, but for some rows of the first and of the last panel."""
    assert panel_count(N) == PANELS and PANELS * K * PANEL_WIDTH > 1 << 31
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        memory = mmap.mmap(-1, 4 * PANELS * K * PANEL_WIDTH, flags=flags)
    except OSError as error:
        pytest.skip(f"the system lends no addresses: {os.strerror(error.errno or 0)}")
    b = np.frombuffer(memory, np.float32).reshape(PANELS, K, PANEL_WIDTH)
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
