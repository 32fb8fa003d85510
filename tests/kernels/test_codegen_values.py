"""Targets and references: pure values, no TVM."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from pitc.codegen import reference
from pitc.errors import UsageError
from pitc.ir.target import CPU_LEVELS, cpu_level_of


def test_register_tiles_fit_the_registers() -> None:
    for target in CPU_LEVELS:
        registers = 16 // target.vector_lanes  # per lane group
        rows, columns = target.gemm_tile
        tiles = [(rows, columns), *zip(target.attention_rows, target.attention_lanes, strict=True)]
        for height, width in tiles:
            accumulators = height * width // 16 * registers
            operands = width // 16 * registers + 1
            assert accumulators + operands <= target.vector_registers
        assert all(a % b == 0 for a, b in itertools.pairwise(target.attention_lanes))


def test_unknown_level_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="known levels: v4, v3"):
        cpu_level_of("v2")


def test_reference_attention_is_softmax() -> None:
    q = np.array([[1.0, 0.0]])
    k = np.array([[0.0, 0.0], [np.log(3.0), 0.0]])
    v = np.array([[0.0], [4.0]])
    assert np.allclose(reference.attention(q, k, v, 1.0), [[3.0]], rtol=1e-15, atol=0)
    assert np.isnan(reference.attention(q, k[:0], v[:0], 1.0)).all()
    assert (reference.attention(q, k[:0], v[:0], 1.0, nan_to_zero=True) == 0).all()


def test_reference_activations() -> None:
    x = np.array([-1.0, 0.0, 2.0])
    gelu = reference.activate(x, "gelu")
    assert np.allclose(gelu, [-0.15865525393145707, 0.0, 1.9544997361036416], rtol=1e-15, atol=0)
    assert np.array_equal(reference.activate(x, "relu"), [0.0, 0.0, 2.0])
    silu = reference.activate(x, "silu")
    assert np.allclose(silu, [-0.2689414213699951, 0.0, 1.7615941559557649], rtol=1e-15, atol=0)
    with pytest.raises(ValueError, match="swish"):
        reference.activate(x, "swish")


def test_importing_codegen_does_not_import_tvm() -> None:
    code = (
        "import sys; from pitc.codegen import call, reference; from pitc.codegen.build import "
        "library; assert 'tvm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
