"""Vector functions against float64: largest relative errors and special values."""

import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitc.codegen import tir, vector_math
from pitc.codegen.build.link import SHIM, find_compiler
from pitc.codegen.build.lower import object_code
from pitc.codegen.reference import activate
from pitc.ir.target import cpu_level_of
from tests.codegen_kernels import LEVELS, Array, load

erf = np.vectorize(math.erf, otypes=[np.float64])


def _exp_nonpositive(x: tir.Expr) -> tir.Expr:
    return vector_math.exp(x, nonpositive=True)


# name: (vector function, float64 reference, range, largest relative error as documented)
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array], tuple, float]] = {
    "exp": (vector_math.exp, np.exp, (-87.336, 88.722), 1.2e-7),
    "exp_nonpositive": (_exp_nonpositive, np.exp, (-87.336, 0.0), 1.2e-7),
    "erf": (vector_math.erf, erf, (-4.5, 4.5), 3.8e-7),
    "tanh": (vector_math.tanh, np.tanh, (-10.0, 10.0), 1.6e-7),
}
GELUS = {
    name: (getattr(vector_math, name),) for name in ("gelu", "gelu_tanh", "gelu_quick", "silu")
}

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(name="apply", scope="module")
def _apply(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Array], Array]:
    folder = tmp_path_factory.mktemp("vector_math")
    objects: list[Path] = []
    for level in LEVELS:
        for name, (function, *_) in {**FUNCTIONS, **GELUS}.items():

            def body(function: Callable[[Any], Any] = function) -> None:
                count = tir.size()
                x, y = tir.tensor("x", (count,)), tir.tensor("y", (count,))
                with tir.serial(0, count // tir.LANES) as i:
                    value = tir.keep(tir.load(x, i * tir.LANES))
                    tir.store(y, function(value), i * tir.LANES)

            objects.append(folder / f"{name}_{level}.o")
            target = cpu_level_of(level)
            function_code = object_code(tir.prim_func(f"{name}_{level}", body), target)
            objects[-1].write_bytes(function_code)
    so = folder / "functions.so"
    compiler = find_compiler(cpu_level_of(LEVELS[0]).triple)
    inputs = [*map(str, objects), str(SHIM)]
    subprocess.run([*compiler, "-shared", "-fPIC", *inputs, "-o", str(so)], check=True)
    library = load(so)

    def apply(symbol: str, x: Array) -> Array:
        padded = np.zeros(-(-len(x) // 16) * 16, np.float32)
        padded[: len(x)] = x
        out = np.empty_like(padded)
        library.call(symbol, padded, out)
        return out[: len(x)]

    return apply


@pytest.mark.parametrize("name", FUNCTIONS)
def test_largest_relative_error(apply: Callable, name: str, level: str) -> None:
    _, reference, (low, high), bound = FUNCTIONS[name]
    linear = np.linspace(low, high, 1_000_000)
    tiny = np.geomspace(1e-30, min(abs(low), high) or abs(low), 100_000)
    signed = np.concatenate([linear, -tiny, tiny if high > 0 else -tiny])
    x = np.clip(signed.astype(np.float32), np.float32(low), np.float32(high))
    x = x[x != 0]
    want = reference(x.astype(np.float64))
    error = np.abs(apply(f"{name}_{level}", x) / want - 1).max()
    assert bound / 2 < error <= bound


def test_special_values(apply: Callable, level: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 100.0, -100.0, 3e38, -3e38], np.float32)
    payload = np.array([0x7FC12345, -0x3EDCBB, 0x7F800001], np.int64).astype(np.int32)
    want = {
        "exp": [np.nan, np.inf, 0, 1, np.inf, 0, np.inf, 0],
        "erf": [np.nan, 1, -1, 0, 1, -1, 1, -1],
        "tanh": [np.nan, 1, -1, 0, 1, -1, 1, -1],
    }
    want |= {name: [np.nan, np.inf, np.nan, 0, 100, -0.0, x[6], -0.0] for name in GELUS}
    for name, values in want.items():
        got = apply(f"{name}_{level}", x)
        assert np.array_equal(got, np.array(values, np.float32), equal_nan=True), name
        assert np.isnan(apply(f"{name}_{level}", payload.view(np.float32))).all(), name
    got = apply(f"exp_nonpositive_{level}", x[[0, 2, 3, 5, 7]])
    assert np.array_equal(got, np.array([np.nan, 0, 1, 0, 0], np.float32), equal_nan=True)


@pytest.mark.parametrize("name", GELUS)
def test_gelu(apply: Callable, name: str, level: str) -> None:
    x = np.linspace(-30, 30, 300_001).astype(np.float32)
    error = np.abs(apply(f"{name}_{level}", x) - activate(x.astype(np.float64), name))
    assert (error <= 4e-7 * np.abs(x)).all()
