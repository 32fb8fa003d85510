"""A plug-in of pytest: builds the kernels of tests, and runs none of them.

`PITC_GPU_ARCHS` says for which architectures, `sm_90` or several with commas. A test ends at its
first launch.
"""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from tvm_ffi import structural_equal

from benchmarks.gpu.own_kernels import build_cuda_kernels
from pitc.codegen.build.cache import kernel_cache
from tests import on_gpu

_calls: dict[int, tuple[str, Any]] = {}
"""By the identity of a function, which is kept alive here: the call that made it."""
_wanted: dict[tuple[str, ...], list[Any]] = {}


def _made(text: str, make: Any) -> Any:
    function = make()
    _calls[id(function)] = text, function
    return function


class Memory:
    """Device memory that nobody will use."""

    def __init__(self, *_: Any) -> None:
        self.shape, self.dtype, self._live = (), None, True


class Recorded:
    """Kernels that are wanted."""

    def __init__(self, functions: Sequence[Any]) -> None:
        calls = tuple(_calls[id(f)][0] for f in functions)
        before = _wanted.setdefault(calls, list(functions))
        same = all(map(structural_equal, before, functions))
        assert same, f"the same calls have made other kernels: {calls}"

    def device(self, *_: Any) -> Memory:
        return Memory()

    empty = device

    def backwards(self, *_: Any) -> Any:
        return nullcontext()

    shuffled = backwards

    def run(self, *_: Any) -> None:
        pytest.skip("built")


on_gpu.intercept(_made)
on_gpu.stand_in(Recorded, Memory)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what cannot run there."""
    on_gpu.leave_out(items)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Build what was asked for."""
    archs = os.environ["PITC_GPU_ARCHS"].split(",")
    on_gpu.folder().mkdir(parents=True, exist_ok=True)
    for number, (calls, functions) in enumerate(_wanted.items(), 1):
        build_cuda_kernels(functions, archs, on_gpu.library_of(calls), cache=kernel_cache())
        print(f"\r{number} of {len(_wanted)} kernel libraries", end="", flush=True)
