"""From TIR functions with thread bindings to CUDA text and to the host code that launches it."""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.tirx import transform as passes

from pitc.codegen.build.cuda_compiler import CudaModule
from pitc.codegen.build.lower import host_object, register_pipeline

_PIPELINE = "pitc-cuda"


@tvm.instrument.pass_instrument
class _Launches:
    """Reads the order of launch numbers where kernels and host code part."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, ...]] = {}

    def run_after_pass(self, module: Any, info: Any) -> None:
        """Called by TVM."""
        if info.name != "tirx.SplitHostDevice":
            return
        for function in module.functions.values():
            if (tags := function.attrs.get("tirx.kernel_launch_params")) is not None:
                name = str(function.attrs["global_symbol"])
                self.found[name] = tuple(map(str, tags))


def _steps() -> list[Any]:
    return [
        passes.FlattenBuffer(),
        passes.VectorizeLoop(),
        passes.UnrollLoop(),
        passes.StmtSimplify(),
        passes.AnnotateEntryFunc(),
        passes.SplitHostDevice(),
        passes.MakePackedAPI(),
        # Of the host's code: LLVM gets no pointer to bfloat16, which ends the process.
        passes.BF16StorageLegalize(),
    ]


register_pipeline(_PIPELINE, _steps)


def cuda_module(functions: Sequence[Any], arch: str) -> CudaModule:
    """Compile TIR functions with thread bindings as far as TVM goes: no device, no CUDA compiler.

    Args:
        functions: The functions, of different symbols.
        arch: One of `CUDA_ARCHS`; the source is for this one and later ones.
    """
    host = {"kind": "llvm", "mcpu": "x86-64"}
    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host=host)
    module = tvm.IRModule({f.attrs["global_symbol"]: f for f in functions})
    launches = _Launches()
    with tvm.transform.PassContext(instruments=[launches]), target:
        built = tvm.compile(module, target=target, tir_pipeline=_PIPELINE).mod
    text: str = built.imports[0].inspect_source("cuda")
    return CudaModule(text, host_object(built), launches.found)
