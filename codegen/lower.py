"""From a TIR function to an object file: the few TVM passes that these kernels need.

The kernels are written as loops, vectors and scratch arrays already. TVM's full pipeline takes five
times as long, produces the same machine code, and narrows 64-bit indices where it thinks it may.
"""

import os
from pathlib import Path
from typing import Any

import tvm
from tvm.tirx import compilation_pipeline
from tvm.tirx import transform as passes

from pitc.ir.target import CpuLevel

_PIPELINE = "pitc-kernels"


def _pipeline() -> tuple[Any, Any, Any]:
    steps = [
        passes.FlattenBuffer(),
        # Indices of vector accesses must be plain ramps, or LLVM gets one access per lane.
        passes.StmtSimplify(),
        passes.AnnotateEntryFunc(),
        passes.SplitHostDevice(),
        passes.MakePackedAPI(),
    ]
    finalize = compilation_pipeline.finalize_host_passes
    return tvm.transform.Sequential(steps), finalize, compilation_pipeline.finalize_device_passes


compilation_pipeline.register_tir_pipeline(_PIPELINE, _pipeline)


def compile_function(function: Any, target: CpuLevel, path: Path) -> None:
    """Compile one TIR function for a CPU level and write its object file.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_bytes(object_code(function, target))


def object_code(function: Any, target: CpuLevel) -> bytes:
    """The bytes of an object file for a CPU level."""
    machine = tvm.target.Target({"kind": "llvm", "mcpu": target.mcpu})
    module = tvm.IRModule.from_expr(function)
    return object_bytes(tvm.compile(module, target=machine, tir_pipeline=_PIPELINE).mod)


def object_bytes(built: Any) -> bytes:
    """The object file of a module. LLVM ends the process when its disk is full: so none is used."""
    with open(os.memfd_create("object"), "rb") as memory:
        built.write_to_file(f"/proc/self/fd/{memory.fileno()}", "o")
        return memory.read()
