"""The tests of CUDA kernels, run by a real driver on a machine without TVM and CUDA's compiler.

    python -m pytest -p tests.on_gpu.record ..   here: builds what the tests would have emulated
    python -m pytest -p tests.on_gpu.replay ..   there: runs it

`PITC_GPU_KERNELS` names the folder in between. A test makes kernels by calling an emitter of
`pitc.codegen.families` with plain values. The call's text, the same on both machines, is the name
under which the kernels are kept.
"""

import importlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pitc.ir.digest import joint_sha256

EMITTERS = {
    "attention_cuda": ("attention",),
    "attention_grad_cuda": ("attention_grad",),
    "choose_cuda": ("choose",),
    "contract_block_cuda": ("contract_block",),
    "contract_cuda": ("gather_gemm", "contract_tile", "contract_square"),
    "detect_cuda": ("detect",),
    "elementwise_cuda": ("elementwise",),
    "lists_cuda": ("lists",),
    "pack_cuda": ("pack_func", "unpack_func"),
}
"""Modules of `pitc.codegen.families`, and their functions that make kernels."""

Made = Callable[[str, Callable[[], Any]], Any]
"""Called with the text of a call, and what would make it."""


def folder() -> Path:
    """Where the kernels are."""
    return Path(os.environ["PITC_GPU_KERNELS"])


def library_of(calls: Iterable[str]) -> Path:
    """The library of all kernels that some calls have made."""
    digest = joint_sha256(calls)
    return folder() / f"{digest[:24]}.so"


def intercept(made: Made) -> None:
    """Let `made` answer in place of every emitter; before any test is imported."""
    for name, functions in EMITTERS.items():
        module = importlib.import_module(f"pitc.codegen.families.{name}")
        for function in functions:
            setattr(module, function, _answered(getattr(module, function), made))


def _answered(function: Callable[..., Any], made: Made) -> Callable[..., Any]:
    signature, name = inspect.signature(function), f"{function.__module__}.{function.__name__}"

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return made(f"{name}{tuple(bound.arguments.items())!r}", lambda: function(*args, **kwargs))

    return call


def stand_in(emulated: type, memory: type) -> None:
    """What tests import of `tests.cuda_emulator`, without the emulator."""
    module = types.ModuleType("tests.cuda_emulator")
    errors = {"EmulationError": type("EmulationError", (RuntimeError,), {})}
    vars(module).update(errors, Emulated=emulated, DeviceMemory=memory)
    sys.modules[module.__name__] = module


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Skip tests that need the emulator or a compiler; twins of kernels are among them."""
    for item in items:
        if item.get_closest_marker("here"):
            item.add_marker(pytest.mark.skip(reason="needs the emulator or a compiler"))
