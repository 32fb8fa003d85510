"""From a TIR function to an object file: the few TVM passes that these kernels need.

The kernels are written as loops, vectors and scratch arrays already. TVM's full pipeline takes five
times as long, produces the same machine code, and narrows 64-bit indices where it thinks it may.
"""

import os
from collections.abc import Callable
from typing import Any

import tvm
from tvm.tirx import compilation_pipeline
from tvm.tirx import transform as passes

from pitc.ir.target import CpuLevel

_PIPELINE = "pitc-kernels"


def register_pipeline(name: str, steps: Callable[[], list[Any]]) -> None:
    """Make passes known to TVM by a name; each build makes them anew."""

    def pipeline() -> tuple[Any, Any, Any]:
        host = compilation_pipeline.finalize_host_passes
        return tvm.transform.Sequential(steps()), host, compilation_pipeline.finalize_device_passes

    compilation_pipeline.register_tir_pipeline(name, pipeline)


def _steps() -> list[Any]:
    return [
        passes.FlattenBuffer(),
        # Indices of vector accesses must be plain ramps, or LLVM gets one access per lane.
        passes.StmtSimplify(),
        passes.AnnotateEntryFunc(),
        passes.SplitHostDevice(),
        passes.MakePackedAPI(),
    ]


register_pipeline(_PIPELINE, _steps)


def compiled(function: Any, target: CpuLevel) -> Any:
    """TVM's module of one TIR function for a CPU level."""
    named = {"mtriple": target.triple, "mattr": ["+neon"]} if target.triple else {}
    named |= {"mattr": list(target.features)} if target.features else {}
    machine = tvm.target.Target({"kind": "llvm", "mcpu": target.mcpu} | named)
    module = tvm.IRModule.from_expr(function)
    return tvm.compile(module, target=machine, tir_pipeline=_PIPELINE).mod


def object_code(function: Any, target: CpuLevel) -> bytes:
    """Compile one TIR function for a CPU level; the bytes of its object file."""
    return host_object(compiled(function, target))


def host_object(built: Any) -> bytes:
    """A built module's object file. LLVM ends the process when its disk is full: it gets none."""
    with open(os.memfd_create("object"), "rb") as memory:
        built.write_to_file(f"/proc/self/fd/{memory.fileno()}", "o")
        return memory.read()
