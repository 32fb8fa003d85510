"""Warps: the vocabulary of CUDA kernels beside `tir`, and the way from TIR to CUDA source.

A *warp* is 32 lanes that run together and hand each other values. Every lane of a warp must reach
each collective (`ballot`, `total`, `union`, `inclusive`), so these never stand under a condition on
the lane. What one launch wrote, the next may read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.tirx import compilation_pipeline
from tvm.tirx import transform as passes

from pitc.codegen import tir
from pitc.codegen.build.lower import host_object
from pitc.codegen.tir import Expr, T

WARP = 32
"""Lanes of a warp."""

BLOCK_WARPS = 8
"""Warps of a thread block; they are independent."""

ARCHITECTURES = ("sm_80", "sm_90")
"""What is built for; `total` is an instruction from sm_80 on."""

_ALL = 0xFFFFFFFF
_PIPELINE = "pitc-cuda"


@contextmanager
def warps(jobs: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Launch one warp for each of 0..jobs-1; the context value is (job, lane), both int64."""
    # A grid of no block is an error of the driver.
    blocks = tir.larger(tir.int64(1), (jobs + BLOCK_WARPS - 1) // BLOCK_WARPS)
    with (
        T.launch_thread("blockIdx.x", blocks) as block,
        T.launch_thread("threadIdx.y", BLOCK_WARPS) as warp,
        T.launch_thread("threadIdx.x", WARP) as lane,
    ):
        job = tir.bind(T.Cast("int64", block) * BLOCK_WARPS + T.Cast("int64", warp))
        with tir.when(job < jobs):
            yield job, T.Cast("int64", lane)


class Register:
    """A variable that each lane has for itself."""

    def __init__(self, dtype: str, value: Expr) -> None:
        self._buffer = T.alloc_buffer((1,), dtype, scope="local")
        self.set(value)

    @property
    def value(self) -> Expr:
        """What was stored last."""
        return self._buffer[0]

    def set(self, value: Expr) -> None:
        """Store a value."""
        tir.assign(self._buffer, value, 0)

    def add(self, value: Expr) -> None:
        """Add to what was stored last."""
        self.set(self.value + value)


def counter() -> Register:
    """An int32 register that starts at 0."""
    return Register("int32", T.int32(0))


def _collective(dtype: str, name: str, *arguments: Expr) -> Expr:
    # A register: an expression might be computed twice, or under a condition.
    return Register(dtype, T.call_extern(dtype, name, T.uint32(_ALL), *arguments)).value


def ballot(condition: Expr) -> Expr:
    """The uint32 whose bit i says whether the condition holds in lane i; all lanes get it."""
    return _collective("uint32", "__ballot_sync", condition)


def total(value: Expr) -> Expr:
    """The sum of an int32 over all lanes; all lanes get it."""
    return _collective("int32", "__reduce_add_sync", value)


def union(word: Expr) -> Expr:
    """The bits that a uint32 has in some lane; all lanes get it."""
    return _collective("uint32", "__reduce_or_sync", word)


def value_of(value: Expr, lane: Expr) -> Expr:
    """The int32 that a lane has; all lanes get it."""
    return _collective("int32", "__shfl_sync", value, lane)


def inclusive(value: Expr, lane: Expr) -> Expr:
    """The sum of an int32 over the lanes up to and with this one."""
    result = Register("int32", value)
    for distance in (1, 2, 4, 8, 16):
        other = _collective("int32", "__shfl_up_sync", result.value, T.int32(distance))
        result.add(T.Select(lane >= distance, other, T.int32(0)))
    return result.value


def population(word: Expr) -> Expr:
    """How many bits of a uint32 are set, as int32."""
    return T.Cast("int32", T.popcount(word))


def bit(word: Expr, lane: Expr) -> Expr:
    """Whether bit `lane` of a uint32 is set."""
    return (word >> T.Cast("uint32", lane)) & T.uint32(1) != T.uint32(0)


def before(word: Expr, lane: Expr) -> Expr:
    """How many bits of a uint32 below bit `lane` are set, as int32."""
    below = (T.uint32(1) << T.Cast("uint32", lane)) - T.uint32(1)
    return population(word & below)


@dataclass(frozen=True, slots=True)
class CudaModule:
    """What becomes of some TIR functions.

    Args:
        source: CUDA text of all kernels.
        host_object: An object file that holds `__tvm_ffi_<symbol>` of every function: it checks
            the arguments and launches the kernels, each by its name.
        launch: For each kernel what the numbers behind its arguments are, in their order, e.g.
            `("blockIdx.x", "threadIdx.x", "tirx.use_dyn_shared_memory")`.
    """

    source: str
    host_object: bytes
    launch: Mapping[str, tuple[str, ...]]


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


def _pipeline() -> tuple[Any, Any, Any]:
    steps = [
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
    finalize = compilation_pipeline.finalize_host_passes
    return tvm.transform.Sequential(steps), finalize, compilation_pipeline.finalize_device_passes


compilation_pipeline.register_tir_pipeline(_PIPELINE, _pipeline)


def build(functions: Sequence[Any], arch: str) -> CudaModule:
    """Compile TIR functions with thread bindings as far as TVM goes: no device, no CUDA compiler.

    Args:
        functions: The functions, of different symbols.
        arch: One of `ARCHITECTURES`; the source is for this one and later ones.
    """
    host = {"kind": "llvm", "mcpu": "x86-64"}
    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host=host)
    module = tvm.IRModule({f.attrs["global_symbol"]: f for f in functions})
    launches = _Launches()
    with tvm.transform.PassContext(instruments=[launches]), target:
        built = tvm.compile(module, target=target, tir_pipeline=_PIPELINE).mod
    text: str = built.imports[0].inspect_source("cuda")
    return CudaModule(text, host_object(built), launches.found)


def source(functions: Sequence[Any], arch: str) -> str:
    """The CUDA source of some functions."""
    return build(functions, arch).source
