"""From TIR functions to an object file: the few TVM passes that these kernels need.

The kernels are written as loops, vectors and scratch arrays already. TVM's full pipeline takes five to eight times as
long, produces the same machine code, and narrows 64-bit index arithmetic where it believes that it may.
"""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.tirx import compilation_pipeline
from tvm.tirx import transform as passes

from pitc.codegen.targets import Target

_PIPELINE = "pitc-kernels"


def _pipeline() -> tuple[Any, Any, Any]:
    steps = [
        passes.FlattenBuffer(),
        passes.StmtSimplify(),
        passes.AnnotateEntryFunc(),
        passes.SplitHostDevice(),
        passes.MakePackedAPI(),
    ]
    sequence = tvm.transform.Sequential(steps)
    finalize = compilation_pipeline.finalize_host_passes
    return sequence, finalize, compilation_pipeline.finalize_device_passes


compilation_pipeline.register_tir_pipeline(_PIPELINE, _pipeline)


def compile_functions(functions: Sequence[Any], target: Target) -> Any:
    """Compile TIR functions into one TVM module of machine code for a CPU level."""
    module = tvm.IRModule({f.attrs["global_symbol"]: f for f in functions})
    machine = {"kind": "llvm", "mcpu": target.mcpu}
    return tvm.compile(module, target=machine, tir_pipeline=_PIPELINE).mod
