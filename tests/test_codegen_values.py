"""Variants, micro-tiles, targets: pure values, no TVM."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from pitc.codegen import reference
from pitc.codegen.targets import LINE_BYTES, TARGETS, target_of
from pitc.codegen.variant import Tile, Variant, derive_micro_tile
from pitc.errors import UsageError

DENSE = Tile.of(m=6, k=768, n=64)


@pytest.mark.parametrize(
    ("operand", "axis", "want"),
    [
        (("m", "k"), "m", {"m": 1, "k": 768}),  # a row of A
        (("m", "k"), "k", {"m": 6, "k": 16}),  # a column would be 4 bytes: one line of 16
        (("k", "m"), "k", {"k": 1, "m": 16}),  # A transposed: 6 rows are less than a line
        (("k", "n"), "k", {"k": 1, "n": 64}),
        (("k", "n"), "n", {"k": 768, "n": 16}),
    ],
)
def test_micro_tile_follows_from_dense_tile(
    operand: tuple[str, ...], axis: str, want: dict[str, int]
) -> None:
    micro = derive_micro_tile(DENSE, operand, axis)
    assert micro == Tile(tuple(want.items()))
    assert micro[operand[-1]] * 4 >= LINE_BYTES


def test_micro_tile_of_bytes_is_a_line_of_bytes() -> None:
    micro = derive_micro_tile(Tile.of(row=1, word=8), ("row", "word"), "row", "int8")
    assert micro["word"] == LINE_BYTES


def test_bad_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Tile.of(m=0)
    with pytest.raises(ValueError, match="named twice"):
        Tile((("m", 1), ("m", 2)))
    with pytest.raises(ValueError, match="PIT axis 'n'"):
        derive_micro_tile(DENSE, ("m", "k"), "n")
    with pytest.raises(ValueError, match="'x'"):
        derive_micro_tile(DENSE, ("x", "k"), "k")
    with pytest.raises(ValueError, match="not in the dense tile"):
        Variant("f", Tile.of(m=1), Tile.of(k=1), "float32", TARGETS[0])
    with pytest.raises(ValueError, match="element type"):
        Variant("f", Tile.of(m=1), Tile.of(m=1), "float33", TARGETS[0])
    with pytest.raises(KeyError):
        _ = DENSE["q"]


def test_variants_are_values() -> None:
    a, b = (Variant("f", DENSE, Tile.of(m=1), "float32", target_of("v4")) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert {a, b} == {a}


def test_register_tiles_fit_the_registers() -> None:
    for target in TARGETS:
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
        target_of("v2")


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
    modules = "call, library, reference, targets, variant"
    code = f"import sys; from pitc.codegen import {modules}; assert 'tvm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
