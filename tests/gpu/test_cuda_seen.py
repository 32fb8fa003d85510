"""Attention under formulas of pairs on the emulated device, against float64."""

import functools
from typing import Any

import numpy as np
import pytest

from pitc.codegen.families import attention_cuda
from tests.attention_cases import Case, Sees
from tests.codegen_kernels import Array
from tests.cuda_emulator import Emulated

Kind = tuple[str, str, int, int, int, str]
"""Engine, type, d, dv, bias, formula."""

PRECISION = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-11}
TYPES = [("mma", "float16"), ("mma", "bfloat16"), ("mma", "float32"), ("simt", "float32")]
LENGTHS = [(1, 1), (7, 64), (64, 7), (0, 5), (65, 65), (5, 0), (200, 150), (3, 200), (129, 31)]


def name(kind: Kind) -> str:
    engine, dtype, d, dv, bias, text = kind
    return f"attention_{engine}_{dtype}_d{d}_v{dv}_{bias}_{text}"


@functools.cache
def kernel(kind: Kind) -> Emulated:
    engine, dtype, d, dv, bias, text = kind
    params = {"dtype": dtype, "d": d, "dv": dv, "bias": bias, "sees": text}
    return Emulated([attention_cuda.attention(name(kind), params, engine)])


def run(kind: Kind, case: Case, **options: Any) -> Array:
    return case.run(kernel(kind), name(kind), **options)


def check(kind: Kind, case: Case, out: Array) -> None:
    engine, dtype, *_ = kind
    precision = 1.5e-6 if engine == "simt" else PRECISION[dtype]
    rounded = engine == "mma" and dtype == "float32"
    case.check(out, precision, 2**-10 if rounded else 2**-22)


def extents(lengths: list[tuple[int, int]]) -> tuple[int, int]:
    """How many positions queries and keys have."""
    queries, keys = (np.array(x, int) for x in zip(*lengths, strict=True))
    return Case.room(queries), Case.room(keys)


def made(kind: Kind, lengths: list[tuple[int, int]], density: float = 0.3, **options: Any) -> Case:
    """A case with tests drawn at random."""
    _, dtype, d, dv, bias, text = kind
    case = Case(lengths, d, dv, dtype, **options)
    if bias:
        case.bias = case.normal(*case.bias_shape())
    rng, (eq, ek), s = case.rng, extents(lengths), len(lengths)
    lines = np.array([[1, -1, 0], [-1, 1, 20], [1, -1, 9]], np.int64)
    ops = {c if c not in "elm" else "t" for c in text if c.isalpha()}

    def flags(*shape: int) -> Array:
        return (rng.random((2, s, *shape)) > density).astype(np.int8) * 3

    case.sees = Sees(
        text,
        lines if "p" in ops else None,
        (np.sort(rng.integers(0, 6, (2, s, eq))), np.sort(rng.integers(0, 6, (2, s, ek))))
        if "t" in ops
        else None,
        flags(ek) if "k" in ops else None,
        flags(eq) if "q" in ops else None,
        flags(eq, ek) if "f" in ops else None,
    )
    return case


FORMULAS = ("p0", "p0p1a", "e0", "l0m1o", "k0", "q0", "f0", "p2ne1k1ooq1af1na")
CAUSAL: list[Kind] = [
    (engine, dtype, 16, 32 if dtype == "float32" else 16, 0, "p0") for engine, dtype in TYPES
]
SOME: list[Kind] = [
    (*TYPES[i % 4], 16, 32 if i % 4 > 1 else 16, i % 2, text) for i, text in enumerate(FORMULAS)
]
in_some = pytest.mark.parametrize("kind", SOME, ids=name)
in_causal = pytest.mark.parametrize("kind", CAUSAL, ids=name)


@pytest.mark.parametrize("kind", [*CAUSAL, *SOME], ids=name)
def test_attends(kind: Kind) -> None:
    some = made(kind, LENGTHS)
    first = run(kind, some, blocks=1)
    check(kind, some, first)
    device = kernel(kind)
    with device.backwards():
        assert run(kind, some, blocks=7).tobytes() == first.tobytes()
    with device.shuffled(3):
        assert run(kind, some, blocks=100).tobytes() == first.tobytes()


@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
@in_some
def test_rows_that_see_nothing(kind: Kind, density: float) -> None:
    for mean in (False, True):
        some = made(kind, [(40, 70), (3, 0), (130, 40)], density, no_pairs_to_mean=mean)
        check(kind, some, run(kind, some))
