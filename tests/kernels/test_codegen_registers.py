"""Sums stay in registers: no loop of products stores vectors to the stack.

LLVM decides what is spilled, and answers stay right: only this test, or a timing, would tell.
"""

import re
from collections.abc import Iterator

import pytest

from pitc.codegen.build.library import kernel_function
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import cpu_level_of
from tests.codegen_kernels import IS_EMULATED

pytestmark = pytest.mark.skipif(IS_EMULATED, reason="reads code of x86-64")

_MULTIPLY_ADD = ("vfmadd231ps", "vdpbf16ps")
_SPILL = re.compile(r"vmov[au]ps\s+%[xyz]mm\d+, -?\d*\(%r[sb]p\)")
_FEWEST = 8
"""Multiply-adds of a loop of products. Those of activations divide, too."""


def _code(request: KernelRequest, level: str) -> list[str]:
    from pitc.codegen.build import lower

    target = cpu_level_of(level)
    text: str = lower.compiled(kernel_function(request, target), target).inspect_source("asm")
    return [line.split("#")[0].strip() for line in text.splitlines()]


def _loops(lines: list[str]) -> Iterator[list[str]]:
    """Loops without a branch inside: from a label to the jump back to it."""
    label, body = "", list[str]()
    for line in lines:
        if line.startswith(".LBB"):
            label, body = line[:-1], []
        elif line.startswith("j"):
            if line.split()[-1] == label:
                yield body
            label = ""
        else:
            body.append(line)


def _spilling(request: KernelRequest, level: str) -> list[str]:
    """Of each loop of products that spills: multiply-adds, spills."""
    found, products = [], 0
    for body in _loops(_code(request, level)):
        adds = sum(line.startswith(_MULTIPLY_ADD) for line in body)
        spills = sum(bool(_SPILL.match(line)) for line in body)
        if adds >= _FEWEST and not any(line.startswith("vdivps") for line in body):
            products += 1
            if spills > adds // 8:
                found.append(f"{adds} multiply-adds, {spills} spills")
    assert products, "no loop of products was found"
    return found


def _gemm(dtype: str, k: int, activation: str, **others: int) -> KernelRequest:
    fixed = {"n": 256, "residual": 0} | others
    return KernelRequest.of("gather_gemm", dtype, k=k, activation=activation, **fixed)


@pytest.mark.parametrize("activation", ["none", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("k", [384, 768])
@pytest.mark.parametrize("level", ["v4", "v3"])
def test_sums_of_float32(level: str, k: int, activation: str) -> None:
    assert not _spilling(_gemm("float32", k, activation), level)


@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize("level", ["v4_bf16", "v4"])
def test_sums_of_bfloat16(level: str, activation: str) -> None:
    assert not _spilling(_gemm("bfloat16", 768, activation), level)


@pytest.mark.parametrize(
    ("dtype", "level"), [("float32", "v4"), ("bfloat16", "v4"), ("bfloat16", "v4_bf16")]
)
def test_sums_of_attention(dtype: str, level: str) -> None:
    assert not _spilling(KernelRequest.of("attention", dtype, d=64, dv=64, bias=1), level)


@pytest.mark.parametrize("level", ["v4", "v3"])
@pytest.mark.parametrize("family", ["contract_row", "contract_block"])
def test_sums_over_lists(family: str, level: str) -> None:
    request = KernelRequest.of(family, k=3072, n=256, activation="gelu", residual=0)
    assert not _spilling(request, level)
