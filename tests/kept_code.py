"""What TVM makes of kernels in tests, kept by the TIR that it is made of.

`build/test-cache/kernels` is lost with every change of a source that writes kernels, or that those
import. Most of them still write the same TIR: of the same TIR, the same code is made. A test that
patches what compiles TIR must clear `VARIABLE`: the key holds the files of that, not the functions.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pitc.codegen.build import cuda_code, library
from pitc.codegen.build.cache import Cache
from pitc.codegen.build.kernel_keys import generator
from pitc.ir.digest import joint_sha256
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import CpuLevel

if TYPE_CHECKING:
    from pitc.codegen.build.cuda_compiler import CudaModule

VARIABLE = "PITC_TEST_CODE"
"""The folder, in all processes of the tests; where it is not set, nothing is kept."""
_BUILD = Path(library.__file__).parent
_PASSES = ("lower.py", "cuda_module.py")


def install(folder: Path | None = None) -> None:
    """What this process compiles of kernels is kept.

    Args:
        folder: Where, in this process and in those that it starts; None: where those say who
            started this one.
    """
    if folder is not None:
        os.environ.setdefault(VARIABLE, str(folder))
    library.object_code = _object_code
    cuda_code.module_of = lambda function, arch: cuda_module([function], arch)


def _object_code(request: KernelRequest, target: CpuLevel) -> bytes:
    from pitc.codegen.build import lower

    function = library.kernel_function(request, target)
    return _made(("cpu", repr(target)), [function], lambda: lower.object_code(function, target))


def cuda_module(functions: Sequence[Any], arch: str) -> "CudaModule":
    """As `pitc.codegen.build.cuda_module`."""
    from pitc.codegen.build import cuda_module as made_by

    def make() -> bytes:
        return cuda_code.encoded({"": made_by.cuda_module(functions, arch)})

    return cuda_code.decoded(_made(("cuda", arch), functions, make))[""]


def _made(how: Sequence[str], functions: Sequence[Any], make: Callable[[], bytes]) -> bytes:
    from tvm_ffi.serialization import to_json_graph_str

    made_by, folder = generator(), os.environ.get(VARIABLE)
    if made_by is None or not folder:
        return make()
    texts = [to_json_graph_str(function) for function in functions]
    parts = (*how, *_passes(), repr(made_by.packages), made_by.machine, *texts)
    return _kept(folder).made(joint_sha256(parts), make)


@cache
def _kept(folder: str) -> Cache:
    return Cache(Path(folder))


@cache
def _passes() -> list[bytes]:
    return [(_BUILD / name).read_bytes() for name in _PASSES]
